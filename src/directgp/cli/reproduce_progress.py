"""How far a reproduction is: what each worker is at on a terminal, a line a cell elsewhere."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from directgp.cli.terminal import Terminal, console, print_line
from directgp.datasets.wording import several
from directgp.experiments.board import Activity
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.results import CurveOutcome, Finished, FitOutcome
from directgp.experiments.paper.sweeper import SweepWatcher
from directgp.experiments.worker import Refused
from directgp.reports.numbers import duration, short


@contextmanager
def watching(terminal: Terminal) -> Iterator[SweepWatcher]:
    """What moves, lines, or nothing."""
    if not terminal.live:
        yield Lines(terminal.say)
        return
    with Live(console=console(err=True), transient=True, refresh_per_second=4) as live:
        yield LiveLines(live, Lines(_above(live) if terminal.talks else terminal.say))


def _above(live: Live) -> Callable[[str], None]:
    """Says lines above what moves: no other console knows where that is."""
    return lambda line: print_line(live.console, line)


@final
@dataclass
class Lines:
    """A line for each cell that is done."""

    say: Callable[[str], None]
    _total: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def begin(self, cells: Sequence[PaperCell], known: int) -> None:
        """Say how much there is to do."""
        self._total = len(cells)
        there = f" {several(known, 'result')} there already." if known else ""
        self.say(f"{several(len(cells), 'cell')} to run.{there}")

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        """Say what came of a cell."""
        self._done += 1
        self.say(f"[{self._done}/{self._total}] {cell.title}: {_told(result)}")

    def looking(self, active: Sequence[Activity]) -> None:
        """Nothing: lines are for what is done."""

    @property
    def clock(self) -> str:
        """Cells done, time spent, and time left at that pace."""
        spent = time.monotonic() - self._since
        text = f"{self._done} of {several(self._total, 'cell')}, {duration(float(round(spent)))}"
        if not self._done:
            return text
        left = spent * (self._total - self._done) / self._done
        return f"{text}, about {duration(float(round(left)))} left"


@final
@dataclass
class LiveLines:
    """Lines, and below them what each worker is at."""

    live: Live
    lines: Lines
    _cells: Sequence[PaperCell] = field(default=(), init=False)

    def begin(self, cells: Sequence[PaperCell], known: int) -> None:
        """Begin."""
        self._cells = cells
        self.lines.begin(cells, known)

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        """A line."""
        self.lines.finished(cell, result)

    def looking(self, active: Sequence[Activity]) -> None:
        """Draw what is going on."""
        now = [Text(self._now(each), no_wrap=True, overflow="ellipsis") for each in active]
        self.live.update(Group(*now, Text(self.lines.clock, style="dim")))

    def _now(self, activity: Activity) -> str:
        title = self._cells[activity.cell].title
        if activity.step == 0:
            return f"{title}: starting"
        now = f"{title}: step {activity.step} of {activity.max_steps}"
        # Studies, which are no training, have none.
        return now if math.isnan(activity.loss) else f"{now}, loss {short(activity.loss, 4)}"


def _told(result: Finished | Refused) -> str:
    if isinstance(result, Refused):
        return f"failed: {result.reason}"
    outcome = result.outcome
    scores: dict[str, float] = {}
    if isinstance(outcome, FitOutcome):
        scores = outcome.scores
    elif isinstance(outcome, CurveOutcome):
        scores = outcome.points[-1].scores
    words = [f"{name} {short(value, 4)}" for name, value in scores.items()]
    return ", ".join([*words, duration(outcome.seconds)])
