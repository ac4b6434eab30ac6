"""Schedules of the convergence corollaries, to be handed to `BiasedMonteCarlo`.

The theory counts steps from t = 1, the rules from step = 0: t = step + 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from directgp.diagnostics.sample_sizes import Difficulty
from directgp.errors import NumericalError, require

StepSize = Callable[[int], float]
"""γ_t as a function of the training step: Σγ_t = ∞, Σγ_t² < ∞ and γ_t ≤ ½."""


def harmonic_step_size(step: int) -> float:
    """γ_t = 1/(t + 1), which starts at ½."""
    return 1 / (step + 2)


@dataclass(frozen=True)
class SampleSize:
    """The number of samples at one step, and whether it is what the theory asks for."""

    required: float
    """L has to exceed this."""

    used: int
    """The smallest such L, or the cap."""

    @property
    def capped(self) -> bool:
        """Whether fewer samples are used than required: then the corollary does not apply."""
        return self.used <= self.required


@dataclass(frozen=True)
class SampleSchedule:
    """L_t as a function of the step, for the difficulty of one state of a model.

    The corollaries want E φ at every step's own state. For difficulties of the absolute form the
    schedule is theirs if E φ stays above the ζ of that state; for others it is a plan from there.
    """

    difficulty: Difficulty
    step_size: StepSize
    failure: Callable[[int], float]
    """δ_t as a function of the step."""

    cap: int | None = None
    """At most so many samples; None for no limit."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        require(self.cap is None or self.cap >= 1, "cap", "None or at least 1", self.cap)

    def __call__(self, step: int) -> int:
        """L_t, capped."""
        return self.at(step).used

    def at(self, step: int) -> SampleSize:
        """L_t, with what was required."""
        bounds = self.difficulty.required(self.step_size(step), self.failure(step))
        required = float(bounds.max())
        if self.cap is not None and required >= self.cap:
            return SampleSize(required, self.cap)
        if not math.isfinite(required):
            raise NumericalError(
                f"The number of samples at step {step} is beyond float64. Give the schedule a cap."
            )
        return SampleSize(required, math.floor(required) + 1)


@dataclass(frozen=True)
class SmoothingSchedule:
    """ν_t = γ_t ζ as a function of the step."""

    zeta: float
    """ζ ≤ E φ for every example and step."""

    step_size: StepSize

    def __call__(self, step: int) -> float:
        """ν_t."""
        return self.step_size(step) * self.zeta


def bmc_schedule(
    difficulty: Difficulty,
    *,
    delta: float = 0.05,
    step_size: StepSize = harmonic_step_size,
    cap: int | None = None,
) -> SampleSchedule:
    """Plan L_t for bMC with δ_t = 6δ/(π²t²), so that it converges with probability 1 − δ.

    Examples
    --------
    >>> import torch
    >>> from directgp.diagnostics import difficulty
    >>> from directgp.likelihoods import Probit
    >>> from directgp.shapes import Marginals
    >>> y, zero, one = torch.ones(3), torch.zeros(3), torch.ones(3)
    >>> hard = difficulty(Probit(), y, Marginals(zero, one), form="absolute")
    >>> schedule = bmc_schedule(hard, cap=100)
    >>> schedule(0), schedule(5), schedule.at(5).capped
    (52, 100, True)
    """
    require(0 < delta < 1, "delta", "between 0 and 1", delta)
    return SampleSchedule(difficulty, step_size, partial(_basel_share, delta), cap)


def smooth_bmc_schedules(
    difficulty: Difficulty,
    *,
    step_size: StepSize = harmonic_step_size,
    cap: int | None = None,
) -> tuple[SampleSchedule, SmoothingSchedule]:
    """Plan L_t with δ_t = γ_t⁴, and ν_t = γ_t ζ: smooth-bMC then converges with probability 1."""
    samples = SampleSchedule(difficulty, step_size, partial(_fourth_power, step_size), cap)
    return samples, SmoothingSchedule(difficulty.zeta, step_size)


def _basel_share(delta: float, step: int) -> float:
    """6δ/(π²t²), which sums to δ over t = 1, 2, …."""
    return 6 * delta / (math.pi * (step + 1)) ** 2


def _fourth_power(step_size: StepSize, step: int) -> float:
    """γ_t⁴."""
    return step_size(step) ** 4
