"""What `directgp reproduce` shows while it runs."""

import io
import math
import re

import pytest
from rich.console import Console
from rich.live import Live

from directgp.cli import reproduce_run
from directgp.cli.reproduce_run import Lines, LiveLines, watching
from directgp.cli.terminal import Terminal
from directgp.experiments.workers import Activity, Refused
from tests.unit.experiments.paper import sweeps

CELLS = [sweeps.fit("elbo"), sweeps.fit("fitc")]
TITLES = [cell.title for cell in CELLS]


def screen(written: str) -> list[str]:
    """What a terminal shows of what was written to it."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", written):
        if part == "\n":
            at += 1
            lines += [""] * (at == len(lines))
        elif part == "\x1b[1A":
            at -= 1
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part[0] not in "\x1b\r":
            lines[at] += part
    return [line for line in lines if line]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    moving = Console(file=file, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(reproduce_run, "console", lambda err: moving)
    monkeypatch.setattr(Terminal, "live", property(lambda self: True))
    return file


def test_lines_of_what_is_done_stay_above_what_moves(shown: io.StringIO) -> None:
    with watching(Terminal()) as watcher:
        assert isinstance(watcher, LiveLines)
        watcher.begin(CELLS, 3)
        for step in range(3):
            watcher.looking([Activity(0, 1, step, 20, 1.5), Activity(1, 1, step, 20, math.nan)])
            watcher.live.refresh()
        watcher.finished(CELLS[0], sweeps.finished(0.5))
        watcher.looking([Activity(1, 1, 3, 20, math.nan)])
        watcher.live.refresh()
        before = screen(shown.getvalue())
        watcher.finished(CELLS[1], Refused("No way down."))
        watcher.looking([])
    done = [
        "2 cells to run. 3 results there already.",
        f"[1/2] {TITLES[0]}: nll 0.5, 1 s",
        f"[2/2] {TITLES[1]}: failed: No way down.",
    ]
    assert before[:-1] == [*done[:2], f"{TITLES[1]}: step 3 of 20"]
    assert before[-1].startswith("1 of 2 cells, ")
    # What moved is gone.
    assert screen(shown.getvalue()) == done


def test_losses_are_told_as_they_fall(shown: io.StringIO) -> None:
    live = Live(console=Console(file=shown))
    watcher = LiveLines(live, Lines(print))
    watcher.begin(CELLS, 0)
    watcher.looking([Activity(0, 1, 0, 0, math.nan), Activity(1, 1, 7, 20, 1.25)])
    page = Console(file=io.StringIO(), width=100)
    page.print(live.get_renderable())
    assert isinstance(page.file, io.StringIO)
    told = page.file.getvalue().splitlines()
    assert told[0].rstrip() == f"{TITLES[0]}: starting"
    assert told[1].rstrip() == f"{TITLES[1]}: step 7 of 20, loss 1.25"


def test_machines_are_told_nothing_on_the_way(shown: io.StringIO) -> None:
    with watching(Terminal(json=True)) as watcher:
        watcher.begin(CELLS, 0)
        watcher.finished(CELLS[0], sweeps.finished(0.5))
        watcher.looking([])
    assert screen(shown.getvalue()) == []
