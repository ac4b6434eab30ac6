"""Folders, progress and commands that `compare` and `reproduce` share."""

import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typing_extensions import override

from directgp.cli.output_paths import check_writable, held_in, refuse_path
from directgp.cli.terminal import Terminal, console, print_line
from directgp.errors import InvalidInputError, StoreError
from directgp.experiments.cell import Cell, Record
from directgp.experiments.engine import RunCallback
from directgp.experiments.store import Store
from directgp.experiments.workers import FailedJob, WorkerStatus
from directgp.reports.folder import MANIFEST, ReportFolder
from directgp.text import duration, number, plural, rough_time

_LONG = 30.0
"""Expected seconds above which a run starts with an estimate of its time."""


def check_run_folder(out: Path, store: str, document: str, resume: bool, force: bool) -> None:
    """Raise `InvalidInputError` if the folder has other files, or results that would be lost."""
    held = held_in(out)
    place = Path(os.path.realpath(out))
    # A report is written into its folder, which is not replaced.
    check_writable(out, (place, *place.parents))
    folder = ReportFolder(out)
    other_store = {"fits.sqlite", "cells.sqlite"} - {store}
    if held and (other_store & folder.holds() or not (MANIFEST in held or store in folder.names)):
        refuse_path(out, "a new folder or that of a report", "holds other files", "Name another.")
    folder.check((store, document, *_SHARED))
    # Accept an empty store, from a run that failed before its first cell.
    empty = not folder.holds()
    with suppress(StoreError):
        if store in held and not resume:
            with Store(out / store, read_only=True) as opened:
                empty = opened.is_empty()
    if held and not (resume or force or empty):
        remedy = "Continue with --resume, or start again with --force."
        refuse_path(out, "a new folder", "holds the fits of an earlier run", remedy)


_SHARED = ("index.html", "results.parquet")
"""Files that the reports of both commands have."""


def open_run_folder(out: Path, store: str, force: bool) -> None:
    """Create the folder of a run; with `force` delete what directgp wrote there before."""
    folder = ReportFolder(out)
    path = out / store
    if force:
        # Delete a damaged store, or a store of another version, too.
        with suppress(StoreError):
            if path.is_file():
                with Store(path, read_only=True) as opened:
                    if opened.is_in_use():
                        raise InvalidInputError(
                            f"{path} is in use by another program. End it first, or name another "
                            "folder by --out."
                        )
        if out.is_dir():
            folder.clear()
    folder.add((store, f"{store}-journal"))


def check_kept(out: Path, store: str) -> None:
    """Raise `StoreError` if the fits have been deleted since they were run."""
    if not (out / store).is_file():
        raise StoreError(
            f"{out / store} was deleted while directgp ran, and its results are gone. Run the "
            "command again."
        )


def command_typed(*more: str) -> str:
    """Return the command without the options that resume, force or print."""
    ignored = ("--resume", "--force", "--quiet", "-q", "--json", "--debug", *more)
    return shlex.join(["directgp", *(a for a in sys.argv[1:] if a not in ignored)])


@contextmanager
def show_progress(
    terminal: Terminal, noun: str, workers: int | None = None
) -> Iterator["ProgressDisplay"]:
    """Show the progress of a run: a live display on a terminal, otherwise lines.

    With the number of workers, a long run begins with an estimate of its time.
    """
    screen = console(err=True)

    def say(line: str) -> None:
        # On the console of the live display, which is drawn below the line.
        if terminal.prints_text:
            print_line(screen, line)

    try:
        if terminal.live:
            with Live(console=screen, transient=True, refresh_per_second=4) as live:
                yield ProgressDisplay(noun, say, live, workers)
        else:
            yield ProgressDisplay(noun, say, workers=workers)
    except KeyboardInterrupt:
        terminal.note("Finished results are kept. The same command with --resume continues.")
        raise


def _bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )


@final
@dataclass
class ProgressDisplay(RunCallback):
    """Prints a line for each finished cell; a live display shows groups of cells and workers."""

    noun: str
    """Name of a cell: "fit" or "cell"."""

    say: Callable[[str], None]
    live: Live | None = None
    workers: int | None = None
    _cells: Sequence[Cell] = field(default=(), init=False)
    _num_finished: int = field(default=0, init=False)
    _bars: Progress = field(default_factory=_bars, init=False)
    _groups: dict[str, TaskID] = field(default_factory=dict, init=False)

    @override
    def begin(self, cells: Sequence[Cell], num_finished: int) -> None:
        self._cells = cells
        sizes = Counter(cell.group for cell in cells)
        self._groups = {name: self._bars.add_task(name, total=n) for name, n in sizes.items()}
        finished = f" {plural(num_finished, self.noun)} finished already." if num_finished else ""
        expected = math.fsum(cell.expected_seconds for cell in cells) / (self.workers or math.inf)
        left = f", {rough_time(expected)} in all" if expected > _LONG else ""
        self.say(f"{plural(len(cells), self.noun)} to run{left}.{finished}")
        self.update(())

    @override
    def finished(self, cell: Cell, result: Record[Any, Any] | FailedJob) -> None:
        self._num_finished += 1
        self._bars.advance(self._groups[cell.group])
        self.say(f"[{self._num_finished}/{len(self._cells)}] {cell.title}: {_describe(result)}")

    @override
    def update(self, statuses: Sequence[WorkerStatus]) -> None:
        if self.live is not None:
            lines = [f"{self._cells[status.job].title}: {_step(status)}" for status in statuses]
            workers = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
            self.live.update(Group(self._bars, *workers))


def _describe(result: Record[Any, Any] | FailedJob) -> str:
    if isinstance(result, FailedJob):
        return f"failed: {result.reason}"
    scores = [f"{name} {number(value, 4)}" for name, value in result.outcome.headline.items()]
    return ", ".join([*scores, duration(result.outcome.seconds)])


def _step(status: WorkerStatus) -> str:
    if status.step == 0:
        return "starting"
    run = f"run {status.run}, " if status.run else ""
    # Studies of gradients and samplers have no loss.
    loss = "" if math.isnan(status.loss) else f", loss {number(status.loss, 4)}"
    return f"{run}step {status.step} of {status.max_steps}{loss}"
