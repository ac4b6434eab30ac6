"""Callbacks of a run: stopping rules, budgets, cancelling, history and progress bars."""

import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from types import TracebackType
from typing import Any, Protocol, final, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from typing_extensions import override

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.text import duration
from directgp.training.result import Phase, Progress, Status, Stop


@runtime_checkable
class Monitor(Protocol):
    """A callback that sees every step of a run, and may end it.

    Examples
    --------
    >>> from directgp.training.callbacks import Monitor
    >>> class Print(Monitor):
    ...     def __call__(self, progress):
    ...         print(progress.step, progress.loss)
    """

    @abstractmethod
    def __call__(self, progress: Progress) -> Stop | None:
        """Handle a step; a returned `Stop` ends the run."""

    def reset(self) -> None:
        """Forget the steps: a run, or its next stage, begins."""
        return None

    def close(self) -> None:
        """Release resources; called once at the end of a run, also after an error."""
        return None


@final
@dataclass(frozen=True)
class Observer:
    """A callback that gets the model itself while Adam trains it, for learning curves.

    It gets the model after a step, and after the last step too; the result has the best state
    where the loss is exact.

    Parameters
    ----------
    every : int
        Steps between two calls.
    see : callable
        Called with the number of steps, the posterior and the likelihood, which it must not change.
    """

    every: int
    see: Callable[[int, SparsePosterior, Likelihood], None]

    def __post_init__(self) -> None:
        require(self.every >= 1, "every of Observer", "at least 1", self.every)


def close(monitors: Sequence[Monitor]) -> None:
    """Close each monitor; one that a user wrote may have no `close`."""
    for monitor in monitors:
        getattr(monitor, "close", lambda: None)()


@final
class Run:
    """Counts the steps and evaluations of a stage, and calls the monitors.

    `since` is `time.perf_counter` at the start of the first stage. `agree` turns the stop of this
    process, or None, into that of all processes.
    """

    def __init__(
        self,
        stage: str,
        max_steps: int,
        monitors: Sequence[Monitor],
        since: float,
        phase: Phase | None = None,
        agree: Callable[[Stop | None], Stop | None] | None = None,
    ) -> None:
        self.stage, self.max_steps = stage, max_steps
        self.evaluations = 0
        self.losses: list[float] = []
        self.exhausted = False
        """Whether the run ended because its own steps were taken."""
        self._monitors, self._since, self._agree = monitors, since, agree
        self._phase = phase or Phase()
        for monitor in monitors:
            monitor.reset()

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.losses)

    def resume(self, losses: Sequence[float], evaluations: int) -> None:
        """Replay the losses of an interrupted run to the monitors."""
        for loss in losses:
            self._watch(loss, math.nan)
        self.evaluations = evaluations

    def step(self, loss: float, gradient_norm: float = math.nan) -> Stop | None:
        """Record one step, and return a reason to stop, if there is one."""
        stop = self._watch(loss, gradient_norm)
        if self._agree is not None:
            stop = self._agree(stop)
        if stop is None and self.steps >= self.max_steps:
            self.exhausted = True
            stop = Stop(Status.BUDGET, f"{self.max_steps} steps were taken, as many as allowed.")
        return stop

    def _watch(self, loss: float, gradient_norm: float) -> Stop | None:
        self.losses.append(loss)
        progress = Progress(
            stage=self.stage,
            step=self.steps,
            max_steps=self.max_steps,
            evaluations=self.evaluations,
            loss=loss,
            gradient_norm=gradient_norm,
            seconds=time.perf_counter() - self._since,
            phase=self._phase,
        )
        # Every monitor sees every step, also after one that stops.
        stops = [monitor(progress) for monitor in self._monitors]
        return next((stop for stop in stops if stop is not None), None)


@final
@dataclass(frozen=True)
class TimeBudget(Monitor):
    """Wall time for a whole run, with all its stages; the current step is finished."""

    seconds: float

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
    """Steps of a whole run, all its stages together; use a new one for each run."""

    steps: int
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
    """Evaluations of the objective in a whole run; use a new one for each run."""

    evaluations: int
    _before: int = field(default=0, init=False, repr=False)
    _here: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        number = self.evaluations
        require(number >= 1, "evaluations of EvaluationBudget", "at least 1", number)

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        self._here = progress.evaluations
        total = self._before + self._here
        if total < self.evaluations:
            return None
        return _spent(f"{total} of {self.evaluations} evaluations", progress)

    @override
    def reset(self) -> None:
        # The counts of `Progress` start again in each stage.
        self._before, self._here = self._before + self._here, 0


@final
@dataclass(eq=False)
class Cancel(Monitor):
    """Ends a run after its current step when another thread calls `cancel`.

    It stays cancelled through all stages; use a new one for another run.

    Examples
    --------
    >>> from directgp.training.callbacks import Cancel
    >>> from directgp.training.result import Progress
    >>> cancel = Cancel()
    >>> cancel.cancel("The window was closed.")
    >>> cancel(Progress("elbo", 1, 100, 1, 0.5, 0.1, 1.0)).reason
    'The window was closed.'
    """

    _asked: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _reason: str = field(default="", init=False, repr=False)

    def cancel(self, reason: str = "") -> None:
        """End the run; may be called from any thread, any number of times."""
        self._reason = reason or self._reason
        self._asked.set()

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        if not self._asked.is_set():
            return None
        reason = self._reason or f"Cancelled at step {progress.step} of {progress.stage}."
        return Stop(Status.CANCELLED, reason)


def _spent(what: str, progress: Progress) -> Stop:
    return Stop(Status.BUDGET, f"{what} are used, at a loss of {progress.loss:.5g}.")


@final
@dataclass
class LossRange(Monitor):
    """max − min of the last losses ≤ tolerance: the rule of the paper.

    A loss that is not finite resets the rule.

    Parameters
    ----------
    window : int
        Number of losses that are compared.
    tolerance : float
        Largest range, in units of the loss of one example.
    smoothing : float
        s in [0, 1). With s > 0 the rule uses the moving average a_t = s·a_{t−1} + (1−s)·loss_t,
        divided by 1 − s^t, instead of the losses: for losses with noise.

    Examples
    --------
    >>> from directgp.training.result import Progress
    >>> from directgp.training.callbacks import LossRange
    >>> rule = LossRange(window=3, tolerance=0.1)
    >>> for step, loss in enumerate([2.0, 1.0, 0.96, 0.95], start=1):
    ...     stop = rule(Progress("elbo", step, 100, step, loss, 0.5, 1.0))
    >>> stop.reason
    'The last 3 losses lie within 0.05 (tolerance 0.1).'
    """

    window: int = 50
    tolerance: float = 1e-4
    smoothing: float = 0.0
    _recent: deque[float] = field(init=False, repr=False, compare=False)
    _average: float = field(init=False, repr=False, compare=False)
    _weight: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.window >= 2, "window of LossRange", "at least 2", self.window)
        _check_tolerance(self.tolerance, "LossRange")
        inside = 0 <= self.smoothing < 1
        allowed = "at least 0 and less than 1"
        require(inside, "smoothing of LossRange", allowed, self.smoothing)
        self.reset()

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        if not math.isfinite(progress.loss):
            self.reset()
            return None
        # The moving average, without its bias towards the start at 0.
        s = self.smoothing
        self._average = s * self._average + (1 - s) * progress.loss
        self._weight = s * self._weight + (1 - s)
        self._recent.append(self._average / self._weight)
        spread = max(self._recent) - min(self._recent)
        if len(self._recent) < self.window or spread > self.tolerance:
            return None
        what = "moving averages of the loss" if self.smoothing > 0 else "losses"
        return Stop(
            Status.CONVERGED,
            f"The last {self.window} {what} lie within {spread:.3g}"
            f" (tolerance {self.tolerance:g}).",
        )

    @override
    def reset(self) -> None:
        self._recent = deque(maxlen=self.window)
        self._average = 0.0
        self._weight = 0.0


@final
@dataclass
class RelativeDecrease(Monitor):
    """loss_{t−window} − loss_t ≤ tolerance·max(1, abs(loss_t)).

    For optimisers whose steps do not raise the loss, such as L-BFGS; use `LossRange` for noisy
    losses. A loss that is not finite resets the rule.

    Parameters
    ----------
    window : int
        Number of steps over which the decrease is measured.
    tolerance : float
        Largest decrease, relative to the loss where that is above 1.
    """

    window: int = 20
    tolerance: float = 1e-6
    _recent: deque[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.window >= 1, "window of RelativeDecrease", "at least 1", self.window)
        _check_tolerance(self.tolerance, "RelativeDecrease")
        self.reset()

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        if not math.isfinite(progress.loss):
            self.reset()
            return None
        self._recent.append(progress.loss)
        decrease = self._recent[0] - progress.loss
        allowed = self.tolerance * max(1.0, abs(progress.loss))
        if len(self._recent) <= self.window or decrease > allowed:
            return None
        return Stop(
            Status.CONVERGED,
            f"The last {self.window} steps lowered the loss by {decrease:.3g}"
            f" (tolerance {allowed:.3g} at a loss of {progress.loss:.5g}).",
        )

    @override
    def reset(self) -> None:
        self._recent = deque(maxlen=self.window + 1)


@final
@dataclass(frozen=True)
class SmallGradient(Monitor):
    """Largest absolute entry of the gradient ≤ tolerance.

    Adam does not compute it, and never satisfies the rule.
    """

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        _check_tolerance(self.tolerance, "SmallGradient")

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        if not progress.gradient_norm <= self.tolerance:
            return None
        return Stop(
            Status.CONVERGED,
            f"The largest entry of the gradient is {progress.gradient_norm:.3g}"
            f" (tolerance {self.tolerance:g}).",
        )


def _check_tolerance(tolerance: float, who: str) -> None:
    allowed = math.isfinite(tolerance) and tolerance >= 0
    require(allowed, f"tolerance of {who}", "finite and at least 0", tolerance)


@final
@dataclass(eq=False)
class ProgressBar(Monitor):
    """Shows a line for each stage: name, bar, steps, loss, evaluations and time of the run.

    On a terminal the line of the current stage moves. Elsewhere (a file, a pipe, a notebook)
    the line is printed at the end of the stage.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to print; standard error if None.

    Examples
    --------
    >>> import sys
    >>> from rich.console import Console
    >>> from directgp.training.callbacks import ProgressBar
    >>> from directgp.training.result import Progress
    >>> with ProgressBar(Console(file=sys.stdout, force_terminal=False)) as bar:
    ...     bar(Progress("elbo", 7, 100, 9, 0.5, 0.1, 1.0))
    elbo 7/100 steps, loss 0.5, 9 evaluations, 1 s
    """

    console: Console | None = None
    _bars: Bars | None = field(default=None, init=False, repr=False)
    _task: TaskID | None = field(default=None, init=False, repr=False)
    _last: Progress | None = field(default=None, init=False, repr=False)

    @override
    def __call__(self, progress: Progress) -> None:
        if self._last is not None and self._last.stage != progress.stage:
            self.reset()
        self._last = progress
        if self._target().is_interactive:
            self._draw(progress)

    @override
    def reset(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.stop_task(self._task)
        elif self._last is not None:
            line = f"{self._last.stage} {_figures(self._last)}"
            self._target().print(line, markup=False, highlight=False, soft_wrap=True)
        self._task = self._last = None

    @override
    def close(self) -> None:
        try:
            self.reset()
        finally:
            bars, self._bars = self._bars, None
            if bars is not None:
                bars.stop()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _target(self) -> Console:
        self.console = Console(stderr=True) if self.console is None else self.console
        return self.console

    def _draw(self, progress: Progress) -> None:
        if self._bars is None:
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[figures]}", markup=False),
                console=self._target(),
            )
            self._bars.start()
        if self._task is None:
            self._task = self._bars.add_task(progress.stage, figures="")
        done, total = progress.step, progress.max_steps
        self._bars.update(self._task, completed=done, total=total, figures=_figures(progress))


@final
@dataclass(eq=False)
class History(Monitor):
    """Records every step of a run, of all its stages; use a new one for another run."""

    records: list[Progress] = field(default_factory=list)

    @override
    def __call__(self, progress: Progress) -> None:
        self.records.append(progress)

    @property
    def losses(self) -> list[float]:
        """The loss after each step."""
        return [record.loss for record in self.records]

    def to_dict(self) -> dict[str, list[Any]]:
        """One list for each field of `Progress`, ready for a data frame; the phase by its name."""
        rows = [asdict(record) | {"phase": record.phase.name} for record in self.records]
        return {column.name: [row[column.name] for row in rows] for column in fields(Progress)}


def _figures(progress: Progress) -> str:
    return (
        f"{progress.step}/{progress.max_steps} steps, loss {progress.loss:.5g},"
        f" {progress.evaluations} evaluations, {duration(progress.seconds)}"
    )
