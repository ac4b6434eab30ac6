"""The progress of `compare` and `reproduce`: its text, and that it fits the terminal."""

import io
import math
import re

import pytest
from rich.console import Console
from rich.live import Live

from directgp.cli import experiment
from directgp.cli.experiment import ProgressDisplay, show_progress
from directgp.cli.terminal import Terminal
from directgp.experiments.cell import Circumstances, Record
from directgp.experiments.workers import FailedJob, WorkerStatus
from tests.unit.experiments.cells import finished, small_cell
from tests.unit.reports.made import Recipe, comparison

HERE = Circumstances.here("cpu")
CELLS = [small_cell("elbo"), small_cell("fitc")]
TITLES = [cell.title for cell in CELLS]


def display_at(width: int) -> list[str]:
    """Return the display when nine tenths of the fits are done, one failed and one runs."""
    made = comparison(Recipe(repeats=5, sizes=(500, 1000, 2000, 5000), num_test=20))
    cells = made.plan.cells()
    live = Live(console=Console(file=io.StringIO(), width=width))
    display = ProgressDisplay("fit", lambda line: None, live)
    display.begin(cells, 0)
    for run in made.runs[: len(cells) * 9 // 10]:
        display.finished(run.cell, Record(run.cell, run.outcome, HERE))
    display.finished(cells[1], FailedJob("No."))
    display.update([WorkerStatus(len(cells) - 1, 12, 345, 500, -1.2345)])
    return drawn(live, width)


def drawn(live: Live, width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(live.get_renderable())
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 80, 40])
def test_groups_have_a_bar_and_a_count(width: int) -> None:
    lines = display_at(width)
    assert max(map(len, lines)) <= width
    (row,) = (line for line in lines if line.startswith("log-loss DLM, joint  "))
    assert "18/20" in row


def test_workers_have_their_lines_and_long_ones_are_cut() -> None:
    whole = "5,000 rows, repeat 5: run 12, step 345 of 500, loss −1.234"
    assert any(line.endswith(whole) for line in display_at(200))
    assert any(line.endswith("…") for line in display_at(40))


def screen(written: str) -> list[str]:
    """Return what a terminal shows of what was written to it."""
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
    return [line.rstrip() for line in lines if line.strip()]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    moving = Console(file=file, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(experiment, "console", lambda err: moving)
    monkeypatch.setattr(Terminal, "live", property(lambda self: True))
    return file


def test_lines_of_finished_cells_stay_above_the_display(shown: io.StringIO) -> None:
    with show_progress(Terminal(), "cell") as display:
        assert display.live is not None
        display.begin(CELLS, 3)
        for step in range(3):
            statuses = (WorkerStatus(n, 1, step, 20, loss) for n, loss in ((0, 1.5), (1, math.nan)))
            display.update(list(statuses))
            display.live.refresh()
        display.finished(CELLS[0], finished(CELLS[0], 0.5))
        display.update([WorkerStatus(1, 0, 3, 20, math.nan)])
        display.live.refresh()
        before = screen(shown.getvalue())
        display.finished(CELLS[1], FailedJob("No way down."))
        display.update([])
    done = [
        "2 cells to run. 3 cells finished already.",
        f"[1/2] {TITLES[0]}: nll 0.5, β 1, 1 s",
        f"[2/2] {TITLES[1]}: failed: No way down.",
    ]
    assert before[:2] == done[:2] and before[-1] == f"{TITLES[1]}: step 3 of 20"
    assert [(line.split()[0], line.split()[2]) for line in before[2:-1]] == [
        ("ELBO", "1/1"),
        ("FITC", "0/1"),
    ]
    # The display is gone.
    assert screen(shown.getvalue()) == done


def test_a_worker_that_starts_and_one_that_trains(shown: io.StringIO) -> None:
    live = Live(console=Console(file=shown))
    display = ProgressDisplay("cell", print, live)
    display.begin(CELLS, 0)
    display.update([WorkerStatus(0, 1, 0, 0, math.nan), WorkerStatus(1, 1, 7, 20, 1.25)])
    lines = drawn(live, 100)
    assert f"{TITLES[0]}: starting" in lines
    assert f"{TITLES[1]}: run 1, step 7 of 20, loss 1.25" in lines


def test_json_prints_nothing_on_the_way(shown: io.StringIO) -> None:
    with show_progress(Terminal(json=True), "cell") as display:
        display.begin(CELLS, 0)
        display.finished(CELLS[0], finished(CELLS[0], 0.5))
        display.update([])
    assert screen(shown.getvalue()) == []


@pytest.mark.parametrize(
    ("to_run", "known", "words"),
    [
        (2, 0, "2 fits to run.\n"),
        (1, 1, "1 fit to run. 1 fit finished already.\n"),
        (2, 3, "2 fits to run. 3 fits finished already.\n"),
    ],
)
def test_one_and_many(
    capsys: pytest.CaptureFixture[str], to_run: int, known: int, words: str
) -> None:
    with show_progress(Terminal(), "fit") as display:
        display.begin(CELLS[:to_run], known)
    assert capsys.readouterr().err == words


def test_the_time_of_a_long_run_is_told_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    """35 fits of 7 s each on two workers; four of them take no minute."""
    cells = comparison(Recipe(repeats=5, num_test=20)).plan.cells()
    for some in (cells, cells[:4]):
        with show_progress(Terminal(), "fit", 2) as display:
            display.begin(some, 0)
    assert capsys.readouterr().err == "35 fits to run, about 2 min in all.\n4 fits to run.\n"
