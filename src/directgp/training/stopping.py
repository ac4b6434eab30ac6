"""When a run has converged: stopping rules.

A loss that is not finite never satisfies a rule; the rule starts again after it.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import final

from typing_extensions import override

from directgp.errors import require
from directgp.training.monitors import Monitor
from directgp.training.result import Progress, Status, Stop


@final
@dataclass
class LossRange(Monitor):
    """max − min of the last losses ≤ tolerance: the rule of the paper.

    Parameters
    ----------
    window : int
        How many losses are compared; the rule waits until it has seen as many.
    tolerance : float
        Largest range, in units of the loss of one example.
    smoothing : float
        s in [0, 1). With s > 0 the rule looks at the moving average a_t = s·a_{t−1} + (1−s)·loss_t,
        divided by 1 − s^t, instead of the losses: for losses with noise.

    Examples
    --------
    >>> from directgp.training.result import Progress
    >>> from directgp.training.stopping import LossRange
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
        """Refuse what cannot be meant."""
        require(self.window >= 2, "window of LossRange", "at least 2", self.window)
        _check_tolerance(self.tolerance, "LossRange")
        require(
            0 <= self.smoothing < 1,
            "smoothing of LossRange",
            "at least 0 and less than 1",
            self.smoothing,
        )
        self.reset()

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        """Stop once the last `window` losses are as good as equal."""
        if not math.isfinite(progress.loss):
            self.reset()
            return None
        self._recent.append(self._smoothed(progress.loss))
        spread = max(self._recent) - min(self._recent)
        if len(self._recent) < self.window or spread > self.tolerance:
            return None
        what = "moving averages of the loss" if self.smoothing > 0 else "losses"
        return _converged(
            f"The last {self.window} {what} lie within {spread:.3g} (tolerance {self.tolerance:g})."
        )

    @override
    def reset(self) -> None:
        """Forget the losses and their average."""
        self._recent = deque(maxlen=self.window)
        self._average = 0.0
        self._weight = 0.0

    def _smoothed(self, loss: float) -> float:
        """The moving average up to this loss, free of the bias towards its start at 0."""
        self._average = self.smoothing * self._average + (1 - self.smoothing) * loss
        self._weight = self.smoothing * self._weight + (1 - self.smoothing)
        return self._average / self._weight


@final
@dataclass
class RelativeDecrease(Monitor):
    """loss_{t−window} − loss_t ≤ tolerance·max(1, abs(loss_t)).

    A loss that rose counts as one that did not decrease, so this is a rule for optimisers whose
    steps do not raise the loss, such as L-BFGS; for noisy losses take `LossRange`.

    Parameters
    ----------
    window : int
        Over how many steps the decrease is measured.
    tolerance : float
        Largest decrease, relative to the loss where that is above 1.
    """

    window: int = 20
    tolerance: float = 1e-6
    _recent: deque[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        require(self.window >= 1, "window of RelativeDecrease", "at least 1", self.window)
        _check_tolerance(self.tolerance, "RelativeDecrease")
        self.reset()

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        """Stop once `window` steps no longer lower the loss."""
        if not math.isfinite(progress.loss):
            self.reset()
            return None
        self._recent.append(progress.loss)
        decrease = self._recent[0] - progress.loss
        allowed = self.tolerance * max(1.0, abs(progress.loss))
        if len(self._recent) <= self.window or decrease > allowed:
            return None
        return _converged(
            f"The last {self.window} steps lowered the loss by {decrease:.3g}"
            f" (tolerance {allowed:.3g} at a loss of {progress.loss:.5g})."
        )

    @override
    def reset(self) -> None:
        """Forget the losses."""
        self._recent = deque(maxlen=self.window + 1)


@final
@dataclass(frozen=True)
class SmallGradient(Monitor):
    """Largest absolute entry of the gradient ≤ tolerance.

    Where the optimiser does not look at the gradient, the rule is never satisfied.
    """

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        _check_tolerance(self.tolerance, "SmallGradient")

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        """Stop where the loss is flat."""
        if not progress.gradient_norm <= self.tolerance:
            return None
        return _converged(
            f"The largest entry of the gradient is {progress.gradient_norm:.3g}"
            f" (tolerance {self.tolerance:g})."
        )

    @override
    def reset(self) -> None:
        """Nothing is remembered."""


def _converged(reason: str) -> Stop:
    """A stop for the best of reasons."""
    return Stop(Status.CONVERGED, reason)


def _check_tolerance(tolerance: float, who: str) -> None:
    """Refuse what cannot be a tolerance."""
    allowed = math.isfinite(tolerance) and tolerance >= 0
    require(allowed, f"tolerance of {who}", "finite and at least 0", tolerance)
