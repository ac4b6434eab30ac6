"""Show the progress of a fit on one line, which rich redraws if it is installed."""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, final

from typing_extensions import override

from directgp.text import duration, plural, rough_time, visible
from directgp.training.callbacks import console_of_stderr, print_line
from directgp.training.result import Progress
from directgp.training.run import Monitor

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

_REDRAW_INTERVAL = 0.1
"""Seconds between two drawings of the bar."""

_WIDE = 100
"""Columns of a terminal from which the bar is long."""


@final
class StepCounter:
    """Counts the runs and steps of a fit that began at the time `since`."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.runs = 0
        self.steps = 0
        self.last = Progress("", 0, 0, 0, math.nan, math.nan, 0.0)
        self._part_since = since
        self._part_steps = 0
        self._part_done = 0.0
        self.new_run = True
        """Whether the next step is the first of a run."""

    def begins_part(self, progress: Progress) -> bool:
        """Return whether this step is the first of a new part."""
        return self.steps > 0 and _part(progress) != _part(self.last)

    def add(self, progress: Progress, now: float) -> None:
        """Count a step."""
        if self.begins_part(progress):
            self._part_since = now
            self._part_steps = 0
            self._part_done = 0.0
        self.runs += self.new_run
        self.steps += 1
        self._part_steps += 1
        # A part may consist of several runs; the bar does not go back when the next one starts.
        done = min(1.0, progress.step / max(1, progress.max_steps))
        self._part_done = max(self._part_done, done)
        self.new_run = False
        self.last = progress

    @property
    def fraction(self) -> float:
        """The finished part of the fit, between 0 and 1, if each run takes all its steps."""
        phase = self.last.phase
        return min(1.0, (phase.part - 1 + self._part_done) / max(1, phase.parts))

    def seconds_left(self, now: float) -> float | None:
        """Return the mean time of the finished parts times those left; None before the first."""
        phase = self.last.phase
        if phase.part < 2:
            return None
        mean = (self._part_since - self.since) / (phase.part - 1)
        current = max(0.0, mean - (now - self._part_since))
        return mean * max(0, phase.parts - phase.part) + current

    def status_line(self, now: float) -> str:
        """Return part, loss, time, time left and the name of the part."""
        phase = self.last.phase
        last = self.last
        left = self.seconds_left(now)
        several = phase.parts > 1
        steps = f"{last.step:,} of {last.max_steps:,} steps"
        texts = [
            f"{phase.part} of {phase.parts}" if several else steps,
            f"loss {last.loss:.4g}",
            duration(float(round(now - self.since))),
            *([] if left is None else [f"{rough_time(left)} left"]),
        ]
        return f"{', '.join(texts)}: {_part(last)[1]}"

    def part_line(self, now: float) -> str:
        """Return name, steps, loss and time of the part that is over."""
        phase = self.last.phase
        place = f"{phase.part} of {phase.parts}: " if phase.name else ""
        steps = plural(self._part_steps, "step")
        seconds = duration(now - self._part_since)
        return f"{place}{_part(self.last)[1]}: {steps}, loss {self.last.loss:.4g}, {seconds}"

    def closing_line(self, now: float, failed: bool) -> str:
        """Return time, runs, steps and loss of the fit that is over."""
        seconds = duration(now - self.since)
        counts = f"{plural(self.runs, 'run')}, {plural(self.steps, 'step')}"
        if failed:
            return f"Not fitted, ended after {seconds}: {counts}."
        # The last of several candidates need not be the chosen one.
        final = self.last.phase.parts == 1 or self.last.phase.final
        return f"Fitted in {seconds}: {counts}{f', loss {self.last.loss:.4g}' if final else ''}."


def _part(progress: Progress) -> tuple[int, str]:
    """Return number and name of a part; the stages of a single run are parts of it."""
    return progress.phase.part, progress.phase.name or progress.stage


@final
@dataclass(eq=False)
class FitProgress(Monitor):
    """Shows one line for the whole fit: bar, part, loss, time, time left and current candidate.

    The line is redrawn on a terminal and in a notebook; elsewhere, beside another live display and
    without rich, a library of the extra `cli`, a plain line is printed after each `every` seconds.
    A last line reports the result. Level 2 prints a plain line for each finished part and no bar.
    """

    level: int = 1
    """Level of detail, the parameter `verbose` of the estimators."""

    console: "Console | None" = None
    """Terminal or notebook; None for standard error."""

    every: float = 5.0
    """Seconds between two plain lines."""

    clock: Callable[[], float] = time.perf_counter
    """Returns the time in seconds."""

    _counter: StepCounter = field(init=False, repr=False)
    _error: BaseException | None = field(init=False, repr=False)
    _live: "Live | None" = field(init=False, repr=False)
    _due: float = field(init=False, repr=False)
    _opened: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Start to count."""
        now = self.clock()
        self._counter = StepCounter(now)
        # If `fit` is called while an error is handled, that error is not one of the fit.
        self._error = sys.exception()
        self._live = None
        self._opened = False
        self._due = now + _REDRAW_INTERVAL if self.level == 1 else math.inf

    @override
    def __call__(self, progress: Progress) -> None:
        """Count the step, and show the status if it is due."""
        now = self.clock()
        if self.level > 1 and self._counter.begins_part(progress):
            self._print(self._counter.part_line(now))
        self._counter.add(progress, now)
        if now >= self._due:
            self._show(now)

    @override
    def reset(self) -> None:
        self._counter.new_run = True

    @override
    def close(self) -> None:
        """Remove the bar and print the result, if any step was taken."""
        live = self._live
        counter = self._counter
        error = self._error
        self.__post_init__()
        if live is not None:
            live.stop()
        if counter.steps == 0:
            return
        now = self.clock()
        if self.level > 1:
            self._print(counter.part_line(now))
        self._print(counter.closing_line(now, sys.exception() not in (None, error)))

    def _show(self, now: float) -> None:
        if not self._opened:
            self._open()
        first = self._counter.since + self.every
        if self._live is not None:
            line = _line(self._counter, now, self._live.console.width)
            self._live.update(line, refresh=True)
            # Counted from the end of drawing, which a slow connection delays.
            self._due = self.clock() + _REDRAW_INTERVAL
        elif now >= first:
            self._print(self._counter.status_line(now))
            self._due = now + self.every
        else:
            self._due = first

    def _open(self) -> None:
        """Start the live display, if one is possible."""
        self._opened = True
        console = self._target()
        if console is not None and _can_redraw(console):
            from rich.errors import LiveError
            from rich.live import Live

            live = Live(console=console, auto_refresh=False, transient=True)
            with suppress(LiveError):
                live.start()
                self._live = live

    def _target(self) -> "Console | None":
        """Return the console, created at its first use."""
        if self.console is None:
            self.console = console_of_stderr()
            if self.console is not None:
                # Colours may be forced in a pipe; redrawing is still not wanted there.
                self.console.is_interactive &= self.console.file.isatty()
        return self.console

    def _print(self, line: str) -> None:
        console = self._target()
        # Another live display that replaces standard error prints these lines above itself.
        beside = console is not None and console.stderr and _replaced(sys.stderr)
        print_line(visible(line), None if beside else console)


def _replaced(stream: object) -> bool:
    """Return whether a live display of rich has taken the place of a stream."""
    from rich.file_proxy import FileProxy

    return isinstance(stream, FileProxy)


def _can_redraw(console: "Console") -> bool:
    """Return whether a line can be redrawn here without disturbing another live display."""
    # rich keeps its displays private: in one attribute, since 14.1 in a stack.
    live = getattr(console, "_live_stack", None) or getattr(console, "_live", None)
    proxies = _replaced(sys.stderr) or _replaced(sys.stdout)
    if live or proxies or multiprocessing.current_process().name != "MainProcess":
        return False
    return console.is_interactive or (console.is_jupyter and find_spec("ipywidgets") is not None)


def _line(counter: StepCounter, now: float, width: int) -> "Table":
    """Return the bar first and the name last, so that nothing moves when names change."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = 20 if width >= _WIDE else 10
    text = Text(visible(counter.status_line(now)))
    # Without this the grid would shorten the bar as well.
    text.truncate(max(1, width - bar - 2), overflow="ellipsis")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(ProgressBar(total=1.0, completed=counter.fraction, width=bar), text)
    return grid
