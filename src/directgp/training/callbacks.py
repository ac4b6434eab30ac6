"""Callbacks of a run: budgets, cancelling, history and progress bars."""

import sys
import threading
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from directgp.errors import require
from directgp.text import duration
from directgp.training.result import Progress, Status, Stop
from directgp.training.run import Monitor

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


@final
@dataclass(frozen=True)
class TimeBudget(Monitor):
    """Ends a run after a wall time over all its stages, at the end of the current step."""

    seconds: float
    """Largest wall time."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, "seconds of TimeBudget", "positive", self.seconds)

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        if progress.seconds < self.seconds:
            return None
        return _spent(f"{progress.seconds:.1f} of {self.seconds:g} seconds", progress)


@final
@dataclass(eq=False)
class StepBudget(Monitor):
    """Ends a run after a number of steps, over all its stages; use a new one for each run."""

    steps: int
    """Largest number of steps."""

    _taken: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps of StepBudget", "at least 1", self.steps)

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        self._taken += 1
        if self._taken < self.steps:
            return None
        return _spent(f"{self._taken} of {self.steps} steps", progress)


@final
@dataclass(eq=False)
class EvaluationBudget(Monitor):
    """Ends a run after a number of evaluations of the objective; use a new one for each run."""

    evaluations: int
    """Largest number of evaluations."""

    _before: int = field(default=0, init=False, repr=False)
    _here: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        who = "evaluations of EvaluationBudget"
        require(self.evaluations >= 1, who, "at least 1", self.evaluations)

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        self._here = progress.evaluations
        total = self._before + self._here
        if total < self.evaluations:
            return None
        return _spent(f"{total} of {self.evaluations} evaluations", progress)

    @override
    def reset(self) -> None:
        # Sum over the stages: the count of `Progress` starts at 0 in each stage.
        self._before += self._here
        self._here = 0


@final
@dataclass(eq=False)
class Cancel(Monitor):
    """Ends a run after its current step when another thread calls `cancel`.

    It stays cancelled through all stages; use a new one for another run.

    Examples
    --------
    >>> from directgp.training import Cancel, Progress
    >>> cancel = Cancel()
    >>> cancel.cancel("The window was closed.")
    >>> cancel(Progress("elbo", 1, 100, 1, 0.5, 0.1, 1.0)).reason
    'The window was closed.'
    """

    _event: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _reason: str = field(default="", init=False, repr=False)

    def cancel(self, reason: str = "") -> None:
        """End the run; may be called from any thread, any number of times."""
        self._reason = reason or self._reason
        self._event.set()

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        if not self._event.is_set():
            return None
        reason = self._reason or f"Cancelled at step {progress.step} of {progress.stage}."
        return Stop(Status.CANCELLED, reason)


def _spent(what: str, progress: Progress) -> Stop:
    return Stop(Status.BUDGET, f"{what} are used, at a loss of {progress.loss:.5g}.")


def console_of_stderr() -> "Console | None":
    """Return a console of standard error; None without rich."""
    if find_spec("rich") is None:
        return None
    from rich.console import Console

    return Console(stderr=True)


def print_line(line: str, console: "Console | None") -> None:
    """Print a line as it is, to standard error if there is no console."""
    if console is None:
        print(line, file=sys.stderr)
    else:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@final
@dataclass(eq=False)
class ProgressBar(Monitor):
    """Shows a line for each stage: name, bar, steps, loss, evaluations and time of the run.

    On a terminal the line is updated at each step. Elsewhere (a file, a pipe, a notebook) and
    without rich, a library of the extra `cli`, it is printed once, at the end of the stage.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to print; standard error if None.

    Examples
    --------
    >>> import sys
    >>> from rich.console import Console
    >>> from directgp.training import Progress, ProgressBar
    >>> with ProgressBar(Console(file=sys.stdout, force_terminal=False)) as bar:
    ...     bar(Progress("elbo", 7, 100, 9, 0.5, 0.1, 1.0))
    elbo 7/100 steps, loss 0.5, 9 evaluations, 1 s
    """

    console: "Console | None" = None
    """Where to print."""

    _bars: "Bars | None" = field(default=None, init=False, repr=False)
    _task: "TaskID | None" = field(default=None, init=False, repr=False)
    _last: Progress | None = field(default=None, init=False, repr=False)

    @override
    def __call__(self, progress: Progress) -> None:
        if self._last is not None and self._last.stage != progress.stage:
            self.reset()
        self._last = progress
        self.console = self.console or console_of_stderr()
        if self.console is None or not self.console.is_interactive:
            return
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        if self._bars is None:
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[figures]}", markup=False),
                console=self.console,
            )
            self._bars.start()
        if self._task is None:
            self._task = self._bars.add_task(progress.stage, figures="")
        done = progress.step
        total = progress.max_steps
        self._bars.update(self._task, completed=done, total=total, figures=_figures(progress))

    @override
    def reset(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.stop_task(self._task)
        elif self._last is not None:
            print_line(f"{self._last.stage} {_figures(self._last)}", self.console)
        self._task = None
        self._last = None

    @override
    def close(self) -> None:
        try:
            self.reset()
        finally:
            bars = self._bars
            self._bars = None
            if bars is not None:
                bars.stop()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@final
@dataclass(eq=False)
class History(Monitor):
    """Records every step of all stages of a run; use a new one for another run."""

    records: list[Progress] = field(default_factory=list)
    """The state after each step."""

    @override
    def __call__(self, progress: Progress) -> None:
        self.records.append(progress)

    @property
    def losses(self) -> list[float]:
        """The loss after each step."""
        return [record.loss for record in self.records]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return one list for each field of `Progress`, for a data frame; phases by name."""
        rows = [asdict(record) | {"phase": record.phase.name} for record in self.records]
        return {column.name: [row[column.name] for row in rows] for column in fields(Progress)}


def _figures(progress: Progress) -> str:
    return (
        f"{progress.step}/{progress.max_steps} steps, loss {progress.loss:.5g},"
        f" {progress.evaluations} evaluations, {duration(progress.seconds)}"
    )
