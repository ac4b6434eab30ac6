"""Show the progress of a fit on one line, which rich redraws if it is installed."""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from threading import Thread, current_thread
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
@dataclass
class Part:
    """The steps of a part of a fit: of a run, or of a stage of a fit with a single run."""

    since: float
    """Time of its start."""

    thread: Thread
    """The thread that takes its steps; it takes those of one part at a time."""

    last: Progress
    """Its last step."""

    until: float = 0.0
    """Time of its last step."""

    steps: int = 0
    """Number of its steps."""

    share: float = 0.0
    """Finished share of its steps, if each of its runs takes all that it may."""

    def has(self, progress: Progress) -> bool:
        """Return whether a step is one of this part."""
        return _key(progress) == _key(self.last)

    def add(self, progress: Progress, now: float) -> None:
        """Count a step."""
        self.last = progress
        self.until = now
        self.steps += 1
        # A part may consist of several runs; the share does not fall when the next one starts.
        self.share = max(self.share, min(1.0, progress.step / max(1, progress.max_steps)))

    @property
    def name(self) -> str:
        """The candidate in words, or the stage of a single run."""
        return self.last.phase.name or self.last.stage

    @property
    def place(self) -> str:
        """Number of a run; empty for the stages of a single run."""
        phase = self.last.phase
        if not phase.name:
            return ""
        of = "" if phase.parts is None else f" of {phase.parts}"
        return f"{'final run' if phase.final else 'run'} {phase.part}{of}"

    @property
    def line(self) -> str:
        """Name, steps, loss and time."""
        place = f"{self.place}: " if self.place else ""
        steps = plural(self.steps, "step")
        seconds = duration(self.until - self.since)
        return f"{place}{self.name}: {steps}, loss {self.last.loss:.4g}, {seconds}"


def _key(progress: Progress) -> tuple[bool, int, str]:
    """Identify the part of a step; the stages of a single run are parts of it."""
    phase = progress.phase
    return phase.final, phase.part, phase.name or progress.stage


@final
class StepCounter:
    """Counts the runs and steps of a fit that began at the time `since`.

    Several runs may go on at once, each in a thread of its own; the thread that made the counter
    waits for them.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.runs = 0
        self.steps = 0
        self.parts = list[Part]()
        """The parts that go on, the newest last."""
        self._owner = current_thread()
        self._in_runs = set[Thread]()
        self._final_since = since

    def new_run(self) -> None:
        """Note that the next step of this thread is the first of a run."""
        self._in_runs.discard(current_thread())

    def add(self, progress: Progress, now: float) -> list[Part]:
        """Count a step; return the parts that were over before it."""
        thread = current_thread()
        over = list[Part]()
        mine = next((part for part in self.parts if part.thread is thread), None)
        if mine is None or not mine.has(progress):
            over = [each for each in self.parts if each is mine or self._is_over(each)]
            final = progress.phase.final
            if final and not (self.parts and self.parts[-1].last.phase.final):
                self._final_since = now
            mine = Part(now if self.steps else self.since, thread, progress)
            self.parts = [*(each for each in self.parts if each not in over), mine]
        mine.add(progress, now)
        self.runs += thread not in self._in_runs
        self._in_runs.add(thread)
        self.steps += 1
        return over

    def _is_over(self, part: Part) -> bool:
        """Return whether a part of another thread is over."""
        return part.thread is self._owner or not part.thread.is_alive()

    @property
    def newest(self) -> Part:
        """The part that began last."""
        return self.parts[-1]

    @property
    def fraction(self) -> float | None:
        """The finished share of the fit or of its final phase; None while the end is unknown."""
        phase = self.newest.last.phase
        if phase.parts is None:
            return None
        return min(1.0, (phase.part - 1 + self.newest.share) / max(1, phase.parts))

    def seconds_left(self, now: float) -> float | None:
        """Return the mean time of the finished parts times those left; None before the first."""
        phase = self.newest.last.phase
        if phase.parts is None or phase.part < 2:
            return None
        since = self._final_since if phase.final else self.since
        mean = (self.newest.since - since) / (phase.part - 1)
        current = max(0.0, mean - (now - self.newest.since))
        return mean * max(0, phase.parts - phase.part) + current

    def status_line(self, now: float) -> str:
        """Return part, loss, time, time left and the name of the part."""
        last = self.newest.last
        left = self.seconds_left(now)
        texts = [
            self.newest.place or f"{last.step:,} of {last.max_steps:,} steps",
            f"loss {last.loss:.4g}",
            duration(float(round(now - self.since))),
            *([] if left is None else [f"{rough_time(left)} left"]),
        ]
        return f"{', '.join(texts)}: {self.newest.name}"

    def closing_line(self, now: float, failed: bool) -> str:
        """Return time, runs, steps and, of a single model, the loss of the fit that is over."""
        seconds = duration(now - self.since)
        counts = f"{plural(self.runs, 'run')}, {plural(self.steps, 'step')}"
        if failed:
            return f"Not fitted, ended after {seconds}: {counts}."
        # Other phases end with one of several candidates or members.
        last = self.newest.last
        loss = f", loss {last.loss:.4g}" if last.phase.parts == 1 else ""
        return f"Fitted in {seconds}: {counts}{loss}."


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
        over = self._counter.add(progress, now)
        if self.level > 1:
            self._print_parts(over)
        if now >= self._due:
            self._show(now)

    @override
    def reset(self) -> None:
        self._counter.new_run()

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
            self._print_parts(counter.parts)
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

    def _print_parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._print(part.line)

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
    """Return the bar first and the name last, so that nothing moves when names change.

    A race has no bar: it ends when no further run pays.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    fraction = counter.fraction
    bar = 20 if width >= _WIDE else 10
    text = Text(visible(counter.status_line(now)))
    grid = Table.grid(padding=(0, 2, 0, 0))
    # Without this the grid would shorten the bar as well.
    text.truncate(max(1, width - (0 if fraction is None else bar + 2)), overflow="ellipsis")
    cells = [] if fraction is None else [ProgressBar(total=1.0, completed=fraction, width=bar)]
    grid.add_row(*cells, text)
    return grid
