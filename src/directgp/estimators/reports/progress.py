"""What a fit shows while it goes on: one line that moves, or now and then a plain one."""

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

from directgp.estimators.reports.fit_tally import Tally
from directgp.training.monitors import Monitor
from directgp.training.result import Progress

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
    >>> from directgp.estimators.reports.progress import FitProgress
    >>> from directgp.training.result import Phase, Progress
    >>> shown = FitProgress(2, Console(file=sys.stdout), clock=lambda: 0.0)
    >>> shown(Progress("elbo", 1, 100, 2, 0.5, 0.1, 1.0, Phase("ELBO, rbf", 1, 9)))
    >>> shown.close()
    1 of 9: ELBO, rbf: 1 step, loss 0.5, 0.0 s
    Fitted in 0.0 s: 1 run, 1 step.
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
