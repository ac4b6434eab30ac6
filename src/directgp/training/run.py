"""Define a run: its settings (`Recipe`), callbacks, stopping rules and steps (`Run`)."""

import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final, runtime_checkable

from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import GibbsLoss, PointLoss, resolve_point_loss
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import Phase, Progress, Status, Stop


@runtime_checkable
class Monitor(Protocol):
    """A callback that sees every step of a run, and may end it.

    Examples
    --------
    >>> from directgp.training import Monitor
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

    It is called after every `every` steps, with the current state. A last step that is no multiple
    of `every` is not shown. With an exact loss, the result of the run is the best state, which may
    be another one.

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
    """Close each monitor that has a `close`; a monitor of the user may have none."""
    for monitor in monitors:
        getattr(monitor, "close", lambda: None)()


@final
class Run:
    """Counts the steps and evaluations of a stage, and calls the monitors.

    `since` is `time.perf_counter` at the start of the first stage. `agree` gets the stop of this
    process, or None, and returns the stop on which all processes agree.
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
        self.stage = stage
        self.max_steps = max_steps
        self.evaluations = 0
        self.losses: list[float] = []
        self.exhausted = False
        """Whether the run ended because its own steps were taken."""
        self._monitors = monitors
        self._since = since
        self._agree = agree
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
            self._record(loss, math.nan)
        self.evaluations = evaluations

    def step(self, loss: float, gradient_norm: float = math.nan) -> Stop | None:
        """Record one step, and return a reason to stop, if there is one."""
        stop = self._record(loss, gradient_norm)
        if self._agree is not None:
            stop = self._agree(stop)
        if stop is None and self.steps >= self.max_steps:
            self.exhausted = True
            stop = Stop(Status.BUDGET, f"{self.max_steps} steps were taken, as many as allowed.")
        return stop

    def _record(self, loss: float, gradient_norm: float) -> Stop | None:
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
        # Call every monitor at every step, also after one has returned a stop.
        stops = [monitor(progress) for monitor in self._monitors]
        return next((stop for stop in stops if stop is not None), None)


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
    >>> from directgp.training import LossRange, Progress
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
        allowed = "at least 0 and less than 1"
        require(0 <= self.smoothing < 1, "smoothing of LossRange", allowed, self.smoothing)
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
        self._average = self._weight = 0.0


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


OptimizerName = Literal["auto", "lbfgs", "adam"]
"""Names of optimisers."""

Eliminated = Literal["vfe", "fitc", "square_loss"]
"""The closed forms of the optimal q(u)."""

_FULL_BATCH_ENTRIES = 5 * 10**7
"""Entries of K_uf beyond which "auto" trains on batches."""

_BATCH_SIZE = 1024
"""Examples of a batch chosen by "auto"."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a run; `directgp.train` describes them in full."""

    objective: str | PointLoss = "log_loss"
    """Training loss, or its name."""

    rule: Rule | str = "auto"
    """Rule for log E[p(y given f)], or its name."""

    optimizer: OptimizerName = "auto"
    """Optimiser, or "auto" for the choice by data and rule."""

    batch_size: int | None = None
    """Examples of a step of Adam; None for all, or for a default number where n is very large."""

    learning_rate: float | None = None
    """Learning rate of Adam; None for the paper's."""

    max_steps: int | None = None
    """Steps of a run; None for the default of the optimiser."""

    stopping: Monitor | None = None
    """Stopping rule; None for the default of the optimiser."""

    monitors: Sequence[Monitor] = ()
    """Callbacks that see every step."""

    observer: Observer | None = None
    """Callback that gets the model while Adam trains it."""

    whitened: bool = True
    """Whether q(u) is changed relative to the prior."""

    def __post_init__(self) -> None:
        names = ("auto", "lbfgs", "adam")
        require(self.optimizer in names, "optimizer", f"one of {names}", repr(self.optimizer))
        for name in ("batch_size", "max_steps"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "at least 1", value)
        rate = self.learning_rate
        require(rate is None or 0 < rate < math.inf, "learning_rate", "positive", rate)

    @property
    def name(self) -> str:
        """Name of the objective."""
        return self.objective if isinstance(self.objective, str) else self.objective.name

    @property
    def collapsed(self) -> Literal["vfe", "fitc"] | None:
        """Name of a collapsed objective; None for other objectives."""
        if self.objective == "vfe":
            return "vfe"
        return "fitc" if self.objective == "fitc" else None

    def point_loss(self) -> PointLoss:
        """Return the loss of one example; VFE and FITC have the loss of the ELBO."""
        if self.collapsed is not None:
            require(self.rule == "auto", f"rule for {self.name}", "'auto'", repr(self.rule))
            return GibbsLoss()
        return resolve_point_loss(self.objective, self.rule)

    def settings(self) -> tuple[object, ...]:
        """Return the settings that must not change when a run resumes; stopping rules may."""
        function = self.objective, self.rule, self.optimizer
        whitening = () if self.whitened else ("unwhitened",)
        return *function, self.batch_size, self.learning_rate, self.max_steps, *whitening

    def check(self, likelihood: Likelihood) -> None:
        """Raise an error for settings that do not fit each other or the likelihood."""
        if self.observer is not None:
            allowed = "'adam' with an observer"
            require(self.optimizer == "adam", "optimizer", allowed, repr(self.optimizer))
        loss = self.point_loss()
        if not self.whitened:
            allowed = "'adam' with whitened=False"
            require(self.optimizer == "adam", "optimizer", allowed, repr(self.optimizer))
            formula = self.collapsed is not None or loss.eliminates == "square_loss"
            allowed = "one whose q(u) is trained, with whitened=False"
            require(not formula, "objective", allowed, repr(self.name), "Use 'elbo'.")
        loss.check(likelihood)
        if self.collapsed is not None and not isinstance(likelihood, ConjugateLikelihood):
            raise UnsupportedError(
                f"{self.name} needs the Gaussian likelihood. Got "
                f"{type(likelihood).__name__}. Use 'elbo' or 'log_loss'."
            )
        allowed = "None, because L-BFGS and collapsed objectives use all examples in each step"
        for whole, who, instead in (
            (self.collapsed is not None, f"objective='{self.name}'", "objective='elbo'"),
            (self.optimizer == "lbfgs", "optimizer='lbfgs'", "optimizer='adam'"),
        ):
            fits = not whole or self.batch_size is None
            remedy = f"Use {instead} for batches."
            require(fits, f"batch_size with {who}", allowed, self.batch_size, remedy)
        if self.optimizer == "lbfgs" and not loss.smooth:
            raise UnsupportedError(
                "optimizer='lbfgs' needs a rule whose gradient is that of its value: exact, or "
                f"bMC with its samples held and no schedule. Got {loss}. Use optimizer='adam'."
            )

    def chosen_optimizer(self, num_data: int, num_inducing: int) -> Literal["lbfgs", "adam"]:
        """Return L-BFGS for full batches and a deterministic loss, else Adam."""
        if self.optimizer != "auto":
            return self.optimizer
        batches = self.chosen_batch_size(num_data, num_inducing) is not None
        return "adam" if batches or not self.point_loss().deterministic else "lbfgs"

    def chosen_batch_size(self, num_data: int, num_inducing: int) -> int | None:
        """Return the examples of a step; None for all."""
        if self.batch_size is not None:
            return self.batch_size if self.batch_size < num_data else None
        large = num_data * num_inducing > _FULL_BATCH_ENTRIES
        whole = self.collapsed is not None or self.optimizer == "lbfgs" or not large
        return None if whole else _BATCH_SIZE

    def chosen_max_steps(self, optimizer: str, likelihood: Likelihood) -> int:
        """Return 500 for L-BFGS, or the paper's 5000 (regression) or 3000 for Adam."""
        if self.max_steps is not None:
            return self.max_steps
        if optimizer == "lbfgs":
            return 500
        return 5000 if isinstance(likelihood, ConjugateLikelihood) else 3000

    def chosen_stopping(
        self, optimizer: str, likelihood: Likelihood, noisy: bool, held: bool
    ) -> Monitor:
        """Return the paper's rule for Adam, on a moving average where losses are noisy.

        L-BFGS over q(u) alone, in its scaled coordinates, needs a shorter window.
        """
        if self.stopping is not None:
            return self.stopping
        if optimizer == "lbfgs":
            return RelativeDecrease(10, 5e-6) if held else RelativeDecrease(20, 1e-5)
        window = 50 if isinstance(likelihood, ConjugateLikelihood) else 20
        return LossRange(window, 1e-4, smoothing=0.98 if noisy else 0.0)

    def eliminated(
        self, likelihood: Likelihood, beta: float | Tensor, optimizer: str, batches: bool
    ) -> Eliminated | None:
        """Return how q(u) is eliminated, if a formula exists; for the ELBO only with L-BFGS."""
        if self.collapsed is not None:
            return self.collapsed
        if not isinstance(likelihood, ConjugateLikelihood) or batches:
            return None
        eliminated = self.point_loss().eliminates
        if eliminated == "vfe" and not (optimizer == "lbfgs" and float(beta) > 0):
            return None
        return eliminated
