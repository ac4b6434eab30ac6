"""Folders, progress and commands that `compare` and `reproduce` share."""

import math
import os
import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from directgp.cli.output_paths import check_report_folder
from directgp.cli.terminal import Terminal, console, print_line
from directgp.errors import InvalidInputError, StoreError
from directgp.experiments.cell import Cell, Record
from directgp.experiments.engine import RunCallback
from directgp.experiments.store import Store
from directgp.experiments.workers import FailedJob, WorkerStatus
from directgp.text import duration, number, plural, time_left


def check_run_folder(out: Path, store: str, resume: bool, force: bool) -> None:
    """Raise if the folder holds other files, or results without `--resume` or `--force`."""
    path = out / store
    try:
        if path.is_file() and not resume:
            with Store(path) as opened:
                # A run that failed before its first cell leaves an empty store.
                resume = opened.is_empty()
    except StoreError:
        # A damaged store is not empty.
        pass
    check_report_folder(out, store, resume, force)


def clear_run_folder(out: Path, store: str, document: str) -> None:
    """Delete the results and the report of an earlier run; other files are kept."""
    path = out / store
    try:
        if path.is_file():
            with Store(path) as opened:
                in_use = bool(opened.view().leased)
            if in_use:
                raise InvalidInputError(
                    f"{path} is in use by another program. End it first, or name another folder by "
                    "--out."
                )
    except StoreError:
        # A damaged store, or one of another version, is deleted too.
        pass
    names = (store, f"{store}-journal", document, "index.html", "results.parquet", "figures")
    for each in (out / name for name in names):
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink(missing_ok=True)


def cores() -> int:
    """Return the number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def command_typed(*more: str) -> str:
    """Return the command without the options that resume, force or print."""
    ignored = ("--resume", "--force", "--quiet", "-q", "--json", "--debug", *more)
    return shlex.join(["directgp", *(a for a in sys.argv[1:] if a not in ignored)])


def plain_table(
    heads: Sequence[str], rows: Sequence[Sequence[str | Text]], title: str = ""
) -> Table:
    """Return a table without lines; the last column is folded."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None)
    table.pad_edge = False
    for head in heads:
        table.add_column(head, no_wrap=head != heads[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(each) if isinstance(each, str) else each for each in row))
    return table


@contextmanager
def show_progress(terminal: Terminal, noun: str) -> Iterator["ProgressDisplay"]:
    """Show the progress of a run: a live display on a terminal, otherwise lines."""
    screen = console(err=True)

    def say(line: str) -> None:
        # On the console of the live display, which is drawn below the line.
        if terminal.prints_text:
            print_line(screen, line)

    try:
        if terminal.live:
            with Live(console=screen, transient=True, refresh_per_second=4) as live:
                yield ProgressDisplay(noun, say, live)
        else:
            yield ProgressDisplay(noun, say)
    except KeyboardInterrupt:
        terminal.note("What is finished is kept: the same command with --resume goes on.")
        raise


_DONE, _FAILED, _RUNNING, _WAITING = "●", "✗", "◐", "·"
_GAP = 2
"""Spaces between two columns."""


@final
@dataclass
class ProgressDisplay(RunCallback):
    """Prints a line for each finished cell; a live display shows groups of cells and workers."""

    noun: str
    """Name of a cell: "fit" or "cell"."""

    say: Callable[[str], None]
    live: Live | None = None
    _cells: Sequence[Cell] = field(default=(), init=False)
    _results: dict[Cell, Record[Any, Any] | FailedJob] = field(default_factory=dict, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    @override
    def begin(self, cells: Sequence[Cell], known: int) -> None:
        self._cells = cells
        finished = f" {plural(known, self.noun)} finished already." if known else ""
        self.say(f"{plural(len(cells), self.noun)} to run.{finished}")
        self.update(())

    @override
    def finished(self, cell: Cell, result: Record[Any, Any] | FailedJob) -> None:
        self._results[cell] = result
        count = f"[{len(self._results)}/{len(self._cells)}]"
        self.say(f"{count} {cell.title}: {_describe(result)}")

    @override
    def update(self, statuses: Sequence[WorkerStatus]) -> None:
        if self.live is not None:
            running = {self._cells[status.job]: status for status in statuses}
            workers = [
                Text(f"{cell.title}: {_step(status)}", no_wrap=True, overflow="ellipsis")
                for cell, status in running.items()
            ]
            clock = Text(self._clock(), style="dim")
            self.live.update(
                Group(self._table(set(running), self.live.console.width), *workers, clock)
            )

    def _table(self, running: set[Cell], width: int) -> Table:
        """Return a sign for each cell by group, or counts where the signs are too wide."""
        signs: dict[str, str] = defaultdict(str)
        for cell in self._cells:
            signs[cell.group] += self._sign(cell, running)
        available = width - max(map(len, signs), default=0) - _GAP
        wide = any(len(each) > available for each in signs.values())
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
        for group, text in signs.items():
            table.add_row(group, _count(text) if wide else text)
        return table

    def _sign(self, cell: Cell, running: set[Cell]) -> str:
        result = self._results.get(cell)
        if result is None:
            return _RUNNING if cell in running else _WAITING
        return _FAILED if isinstance(result, FailedJob) else _DONE

    def _clock(self) -> str:
        spent = time.monotonic() - self._since
        total = plural(len(self._cells), self.noun)
        text = f"{len(self._results)} of {total}, {duration(float(round(spent)))}"
        left = self._remaining(spent)
        return text if left is None else f"{text}, {time_left(left)}"

    def _remaining(self, spent: float) -> float | None:
        """Return the estimated seconds left; the time per row is that of the cell's group."""
        paces: dict[str, list[float]] = defaultdict(list)
        for cell, result in self._results.items():
            if isinstance(result, Record):
                paces[cell.group].append(result.outcome.seconds / cell.size)
        every = [pace for group in paces.values() for pace in group]
        if not every:
            return None
        work = {True: 0.0, False: 0.0}
        for cell in self._cells:
            known = paces.get(cell.group, every)
            work[cell in self._results] += sum(known) / len(known) * cell.size
        return spent * work[False] / work[True] if work[True] else None


def _count(signs: str) -> str:
    failed = signs.count(_FAILED)
    return f"{signs.count(_DONE)}/{len(signs)}" + (f" {failed}{_FAILED}" if failed else "")


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
