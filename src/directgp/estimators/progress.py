"""Show the progress of a fit."""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import final

from rich.console import Console
from rich.errors import LiveError
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from directgp.text import duration, plural, time_left
from directgp.training.callbacks import Monitor
from directgp.training.result import Progress


@final
class Tally:
    """Counts the steps of a fit.

    Parameters
    ----------
    since : float
        When the fit began, by the clock whose times the methods are given.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.runs = 0
        self.steps = 0
        self.last: Progress | None = None
        """The last step seen."""
        self._part_since = since
        self._part_steps = 0
        self._within = 0.0
        self._new_run = True

    def begin_run(self) -> None:
        """Another run follows."""
        self._new_run = True

    def begins_part(self, progress: Progress) -> bool:
        """Whether a part is over and this is the first step of the next."""
        return self.last is not None and _part(progress) != _part(self.last)

    def add(self, progress: Progress, now: float) -> None:
        """Count a step."""
        if self.begins_part(progress):
            self._part_since, self._part_steps, self._within = now, 0, 0.0
        self.runs += self._new_run
        self.steps += 1
        self._part_steps += 1
        # A part may be several runs; what it has done is not undone by the next of them.
        self._within = max(self._within, min(1.0, progress.step / max(1, progress.max_steps)))
        self._new_run, self.last = False, progress

    @property
    def fraction(self) -> float:
        """What is done, between 0 and 1, if no part ends before its last step."""
        if self.last is None:
            return 0.0
        phase = self.last.phase
        return min(1.0, (phase.part - 1 + self._within) / max(1, phase.parts))

    def seconds_left(self, now: float) -> float | None:
        """Mean time of the parts that are over, for each that is not; None before the first."""
        if self.last is None or self.last.phase.part < 2:
            return None
        phase = self.last.phase
        mean = (self._part_since - self.since) / (phase.part - 1)
        current = max(0.0, mean - (now - self._part_since))
        return mean * max(0, phase.parts - phase.part) + current

    def name(self) -> str:
        """What is being trained."""
        return "" if self.last is None else self.last.phase.name or self.last.stage

    def figures(self, now: float) -> str:
        """How far it is."""
        if self.last is None:
            return ""
        words = [
            self._place(),
            f"loss {self.last.loss:.4g}",
            duration(float(round(now - self.since))),
        ]
        left = self.seconds_left(now)
        return ", ".join(words if left is None else [*words, time_left(left)])

    def part_line(self, now: float) -> str:
        """The part that is over."""
        if self.last is None:
            return ""
        phase, seconds = self.last.phase, duration(now - self._part_since)
        place = f"{phase.part} of {phase.parts}: " if phase.name else ""
        steps = plural(self._part_steps, "step")
        return f"{place}{self.name()}: {steps}, loss {self.last.loss:.4g}, {seconds}"

    def closing_line(self, now: float, failed: bool) -> str:
        """The fit that is over."""
        seconds = duration(now - self.since)
        counts = f"{plural(self.runs, 'run')}, {plural(self.steps, 'step')}"
        if failed:
            return f"Not fitted, ended after {seconds}: {counts}."
        return f"Fitted in {seconds}: {counts}{self._final_loss()}."

    def _place(self) -> str:
        """Parts of the whole, or steps where there is one part only."""
        if self.last is None:
            return ""
        phase = self.last.phase
        if phase.parts > 1:
            return f"{phase.part} of {phase.parts}"
        return f"{self.last.step:,} of {self.last.max_steps:,} steps"

    def _final_loss(self) -> str:
        # The last of several candidates need not be the one that is kept.
        if self.last is None or not (self.last.phase.parts == 1 or self.name() == "all examples"):
            return ""
        return f", loss {self.last.loss:.4g}"


def _part(progress: Progress) -> tuple[int, str]:
    """What tells a part from the others; the stages of a single run are parts of it."""
    return progress.phase.part, progress.phase.name or progress.stage


_REDRAWN_EVERY = 0.1
_WIDE = 100


@final
@dataclass(eq=False)
class FitProgress(Monitor):
    """One line for the whole fit: bar, part, loss, time, time left, and what is being tried.

    It moves on a terminal and in a notebook. In a file or a pipe, in a worker process and where
    another live display is active, plain lines are printed instead, the first after `every`
    seconds. One more line says how the fit ended.

    Parameters
    ----------
    level : int
        From 2 on, a plain line for each part that is over and nothing that moves.
    console : rich.console.Console, optional
        Where to print; standard error if None.
    every : float
        Seconds between two plain lines, at least.
    clock : callable
        Tells the time in seconds.

    Examples
    --------
    >>> import sys
    >>> from rich.console import Console
    >>> from directgp.estimators.progress import FitProgress
    >>> from directgp.training.result import Phase, Progress
    >>> shown = FitProgress(2, Console(file=sys.stdout), clock=lambda: 0.0)
    >>> shown(Progress("elbo", 1, 100, 2, 0.5, 0.1, 1.0, Phase("ELBO, rbf", 1, 9)))
    >>> shown.close()
    1 of 9: ELBO, rbf: 1 step, loss 0.5, 0 s
    Fitted in 0 s: 1 run, 1 step.
    """

    level: int = 1
    console: Console | None = None
    every: float = 5.0
    clock: Callable[[], float] = time.perf_counter
    _tally: Tally = field(init=False, repr=False)
    _error: BaseException | None = field(init=False, repr=False)
    _live: Live | None = field(init=False, repr=False)
    _due: float = field(init=False, repr=False)
    _opened: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin to count."""
        self._begin()

    @override
    def __call__(self, progress: Progress) -> None:
        """Count the step, and show where the fit is if that was not done just now."""
        now = self.clock()
        if self.level > 1 and self._tally.begins_part(progress):
            self._print(self._tally.part_line(now))
        self._tally.add(progress, now)
        if now >= self._due:
            self._show(now)

    @override
    def reset(self) -> None:
        """Another run of the fit follows."""
        self._tally.begin_run()

    @override
    def close(self) -> None:
        """Give the terminal back and say how it went; nothing where no step was taken."""
        live, tally, error = self._live, self._tally, self._error
        self._begin()
        if live is not None:
            live.stop()
        if tally.last is None:
            return
        now = self.clock()
        if self.level > 1:
            self._print(tally.part_line(now))
        self._print(tally.closing_line(now, sys.exception() not in (None, error)))

    def _begin(self) -> None:
        now = self.clock()
        self._tally = Tally(now)
        # A fit may be called while an error is being handled, which is then not its own.
        self._error = sys.exception()
        self._live, self._opened = None, False
        self._due = now + _REDRAWN_EVERY if self.level == 1 else math.inf

    def _show(self, now: float) -> None:
        if not self._opened:
            self._open()
        if self._live is not None:
            line = _line(self._tally, now, self._live.console.width)
            self._live.update(line, refresh=True)
            # Drawing over a slow connection must not become all that is done.
            self._due = self.clock() + _REDRAWN_EVERY
        elif now >= self._tally.since + self.every:
            self._print(f"{self._tally.figures(now)}: {self._tally.name()}")
            self._due = now + self.every
        else:
            self._due = self._tally.since + self.every

    def _open(self) -> None:
        """Start the line that moves, where there can be one."""
        self._opened = True
        console = self._target()
        if not _can_move(console):
            return
        self._live = Live(console=console, auto_refresh=False, transient=True)
        try:
            self._live.start()
        except LiveError:
            self._live = None

    def _target(self) -> Console:
        """The console, made when it is first needed."""
        if self.console is None:
            self.console = Console(stderr=True)
            # Colours can be asked for in a pipe, too; a line that moves is then still not wanted.
            self.console.is_interactive &= self.console.file.isatty()
        return self.console

    def _print(self, line: str) -> None:
        console = self._target()
        if console.stderr and isinstance(sys.stderr, FileProxy):
            # A live display holds standard error, and prints above itself what comes this way.
            print(line, file=sys.stderr)
        else:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _can_move(console: Console) -> bool:
    """Whether a line can be redrawn here without drawing over something else."""
    if multiprocessing.current_process().name != "MainProcess" or _occupied(console):
        return False
    return console.is_interactive or (console.is_jupyter and find_spec("ipywidgets") is not None)


def _occupied(console: Console) -> bool:
    """Whether another live display is active; rich tells in private, since 14.1 as a stack."""
    held = getattr(console, "_live_stack", None) or getattr(console, "_live", None)
    return bool(held) or isinstance(sys.stderr, FileProxy) or isinstance(sys.stdout, FileProxy)


def _line(tally: Tally, now: float, width: int) -> Table:
    """The bar first and the name last, so that nothing jumps as names change."""
    bar = 20 if width >= _WIDE else 10
    text = Text(f"{tally.figures(now)}: {tally.name()}")
    # Left to itself, the grid would shorten the bar as well.
    text.truncate(max(1, width - bar - 2), overflow="ellipsis")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(ProgressBar(total=1.0, completed=tally.fraction, width=bar), text)
    return grid
