"""How far a comparison is: a board that moves on a terminal, a line a fit elsewhere."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from directgp.cli.progress_table import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    ProgressRow,
    progress_table,
)
from directgp.cli.terminal import Terminal, console
from directgp.experiments.board import Activity
from directgp.experiments.cells import Cell
from directgp.experiments.comparing import Watcher
from directgp.experiments.comparison import Plan
from directgp.experiments.methods import METHODS
from directgp.experiments.results import Finished
from directgp.experiments.worker import Refused
from directgp.reports.numbers import duration, number, short


@contextmanager
def watcher(plan: Plan, terminal: Terminal) -> Iterator[Watcher]:
    """The board, lines, or nothing."""
    if not terminal.live:
        yield Lines(plan, terminal)
        return
    with Live(console=console(err=True), transient=True, refresh_per_second=4) as live:
        yield LiveBoard(live)


@final
@dataclass
class Lines:
    """A line for each fit that is done."""

    plan: Plan
    terminal: Terminal
    _total: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """Say how much there is to do."""
        self._total = len(cells)
        self.terminal.say(_announcement(len(cells), known))

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Say what came of a fit."""
        self._done += 1
        place = f"{METHODS[cell.method].label}, split {cell.repeat + 1}"
        size = f", {cell.size:,} rows" if len(self.plan.sizes) > 1 else ""
        self.terminal.say(f"[{self._done}/{self._total}] {place}{size}: {_told(result)}")

    def looking(self, active: Sequence[Activity]) -> None:
        """Nothing: lines are for what is done."""


@final
@dataclass
class LiveBoard:
    """Methods × splits, what is known of them, and what each worker is at."""

    live: Live
    _cells: Sequence[Cell] = field(default=(), init=False)
    _results: dict[str, Finished | Refused] = field(default_factory=dict, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """Draw the empty board."""
        self._cells = cells
        self.live.console.print(_announcement(len(cells), known), highlight=False)
        self.looking(())

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Fill a place."""
        self._results[cell.key] = result

    def looking(self, active: Sequence[Activity]) -> None:
        """Draw what is known now."""
        self.live.update(Group(self._table(active), Text(self._clock(), style="dim")))

    def _table(self, active: Sequence[Activity]) -> Table:
        running = {self._cells[each.cell].key: each for each in active}
        by_method = defaultdict(list)
        for cell in self._cells:
            by_method[cell.method].append(cell)
        rows = [self._row(name, cells, running) for name, cells in by_method.items()]
        return progress_table(rows, self.live.console.width)

    def _row(self, name: str, cells: Sequence[Cell], running: dict[str, Activity]) -> ProgressRow:
        signs = "".join(self._sign(cell, running) for cell in cells)
        now = next((_now(running[cell.key]) for cell in cells if cell.key in running), "")
        return ProgressRow(name, METHODS[name].label, signs, self._mean(cells), now)

    def _sign(self, cell: Cell, running: dict[str, Activity]) -> str:
        result = self._results.get(cell.key)
        if result is None:
            return RUNNING if cell.key in running else WAITING
        return DONE if isinstance(result, Finished) else FAILED

    def _mean(self, cells: Sequence[Cell]) -> str:
        """Mean NLL of what is done, at the largest size that has any."""
        by_size = defaultdict(list)
        for cell in cells:
            if isinstance(result := self._results.get(cell.key), Finished):
                by_size[cell.size].append(result.outcome.scores["nll"])
        if not by_size:
            return ""
        values = by_size[max(by_size)]
        return number(sum(values) / len(values), 3)

    def _clock(self) -> str:
        """Fits done, time spent, time left."""
        spent = time.monotonic() - self._since
        text = f"{len(self._results)} of {len(self._cells)} fits, {duration(float(round(spent)))}"
        left = self._left(spent)
        return text if left is None else f"{text}, about {duration(float(round(left)))} left"

    def _left(self, spent: float) -> float | None:
        """What is to be done, at the pace of what was done: each method has its own."""
        seconds = defaultdict(list)
        for cell in self._cells:
            if isinstance(result := self._results.get(cell.key), Finished):
                seconds[cell.method].append(result.outcome.seconds / cell.size)
        every = [each for some in seconds.values() for each in some]
        if not every:
            return None
        pace = {name: sum(some) / len(some) for name, some in seconds.items()}
        usual = sum(every) / len(every)
        work = {True: 0.0, False: 0.0}
        for cell in self._cells:
            work[cell.key in self._results] += pace.get(cell.method, usual) * cell.size
        return spent * work[False] / work[True] if work[True] else None


def _announcement(to_run: int, known: int) -> str:
    there = f" {known} {'is' if known == 1 else 'are'} there already." if known else ""
    return f"{to_run} {'fit' if to_run == 1 else 'fits'} to run.{there}"


def _told(result: Finished | Refused) -> str:
    if isinstance(result, Refused):
        return f"failed: {result.reason}"
    outcome = result.outcome
    scores = ", ".join(f"{name} {short(value, 4)}" for name, value in outcome.scores.items())
    return f"{scores}, β {short(outcome.beta)}, {duration(outcome.seconds)}"


def _now(activity: Activity) -> str:
    if activity.step == 0:
        return "starting"
    loss = short(activity.loss, 4)
    return f"run {activity.run}, step {activity.step} of {activity.max_steps}, loss {loss}"
