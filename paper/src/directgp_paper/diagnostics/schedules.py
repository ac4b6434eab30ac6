"""Compute sample sizes and schedules of the convergence corollaries."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import NumericalError, require
from directgp.likelihoods import Likelihood
from directgp.log_expectations import Rule, resolve_rule
from directgp.shapes import BatchedRow, Marginals
from directgp_paper.diagnostics.bounds import paper_bounds, tight_bounds

# The corollaries require, at step t with step size γ_t and for every example i,
#
# L_t > log(6n/δ_t)/(2γ_t²) · M_i,  M_i = max{B²/(E φ)², (B′−b′)²/P², (B″−b″)²/Q²},
#
# expectations over q(f_i), P = |E φ′| or 1 where that is 0, Q likewise with φ″. The corollaries are
# about the gradient in V by φ″, `BiasedMonteCarlo(gradient="second_derivative")`, and hold while
# E φ ≥ ζ > 0 and V stays away from singular.


@dataclass(frozen=True)
class Difficulty:
    """The terms of M_i and E φ at one state of a model: how many samples it needs."""

    log_terms: Float[Tensor, "3 *batch n"]
    """Logs of the three terms of M_i: for φ, φ′ and φ″."""

    log_density: BatchedRow
    """log E φ."""

    @property
    def log_factor(self) -> BatchedRow:
        """The log of M_i."""
        return self.log_terms.amax(dim=0)

    @property
    def zeta(self) -> float:
        """ζ = min_i E φ; `NumericalError` if it underflows, since ν_t = γ_t·ζ would be 0."""
        zeta = math.exp(float(self.log_density.min()))
        if zeta == 0:
            raise NumericalError(
                "ζ = min E[p(y|f)] underflows: an example is so improbable that the corollary "
                "gives no smoothing. Start from marginals nearer to the targets."
            )
        return zeta

    @property
    def num_data(self) -> int:
        """The number n of examples."""
        return self.log_density.shape[-1]

    def required(self, step_size: float, failure: float) -> BatchedRow:
        """Return log(6n/δ_t)/(2γ_t²) · M_i, which L has to exceed for example i."""
        # The proof takes α = γ_t as relative error and needs α ≤ ½.
        require(0 < step_size <= 0.5, "step size", "above 0 and at most ½", step_size)
        require(0 < failure < 1, "failure", "between 0 and 1", failure)
        log_scale = math.log(math.log(6 * self.num_data / failure) / 2) - 2 * math.log(step_size)
        return torch.exp(log_scale + self.log_factor)


def difficulty(
    likelihood: Likelihood,
    y: Num[Tensor, "..."],
    marginals: Marginals,
    *,
    bounds: Literal["tight", "paper"] = "tight",
    form: Literal["relative", "absolute"] = "relative",
    rule: Rule | None = None,
) -> Difficulty:
    """Compute the terms of M_i = max{B²/(E φ)², (B′−b′)²/P², (B″−b″)²/Q²} for each example.

    Parameters
    ----------
    likelihood : Likelihood
        With derivative bounds.
    y : tensor
        Targets (..., n), all n of the training set.
    marginals : Marginals
        The marginals of the model's state.
    bounds : {"tight", "paper"}
        `tight_bounds` or `paper_bounds`.
    form : {"relative", "absolute"}
        The published condition; or M_i = max{B²/ζ², (B′−b′)², (B″−b″)²}, which suffices (an
        absolute error of E φ′ and E φ″ does) and does not explode where E φ′ or E φ″ is small.
    rule : Rule, optional
        The rule for E φ; the closed form or quadrature by default.
    """
    require(bounds in ("tight", "paper"), "bounds", "'tight' or 'paper'", repr(bounds))
    require(form in ("relative", "absolute"), "form", "'relative' or 'absolute'", repr(form))
    y = y.expand(marginals.mean.shape)
    exact = rule or resolve_rule("auto", likelihood)
    mean, variance = (
        x.detach().double().requires_grad_() for x in (marginals.mean, marginals.variance)
    )
    with torch.enable_grad():
        value = exact(likelihood, y, mean, variance)
        by_mean, by_variance = torch.autograd.grad(value.sum(), (mean, variance))
    log_density = value.detach()
    # E φ′ = E φ · ∂_μ log E φ and E φ″ = E φ · 2∂_v log E φ.
    slopes = torch.stack([by_mean, 2 * by_variance])
    log_sizes = torch.where(slopes == 0, 0.0, log_density + torch.log(torch.abs(slopes)))
    log_expectations = torch.cat([log_density[None], log_sizes])
    if form == "absolute":
        # log ζ, log 1, log 1 give |N′/D′ − N/D| ≤ α(1 + B*)/(ζ(1−α)).
        log_expectations = torch.zeros_like(log_expectations)
        log_expectations[0] = log_density.amin(dim=-1, keepdim=True)
    limits = (tight_bounds if bounds == "tight" else paper_bounds)(likelihood, y)
    ranges = torch.stack([limits.density_upper, limits.slope_range, limits.curvature_range])
    return Difficulty(2 * (torch.log(ranges) - log_expectations), log_density)


# The theory counts steps from t = 1, the rules from step = 0: t = step + 1.


StepSize = Callable[[int], float]
"""Training step → γ_t, with Σγ_t = ∞, Σγ_t² < ∞ and γ_t ≤ ½."""


def harmonic_step_size(step: int) -> float:
    """Return γ_t = 1/(t + 1), which starts at ½."""
    return 1 / (step + 2)


@dataclass(frozen=True)
class HarmonicSteps:
    """γ_t = min(½, c/(t + 1)); a large c suits an objective of small curvature."""

    scale: float
    """c > 0."""

    def __post_init__(self) -> None:
        require(self.scale > 0, "scale", "above 0", self.scale)

    def __call__(self, step: int) -> float:
        """Return γ_t."""
        return min(0.5, self.scale / (step + 2))


@dataclass(frozen=True)
class SampleSize:
    """The number of samples at one step, and the number that the theory requires."""

    required: float
    """Lower bound that L has to exceed."""

    used: int
    """Smallest L above the bound, or the cap."""

    @property
    def capped(self) -> bool:
        """Whether fewer samples are used than required: then the corollary does not apply."""
        return self.used <= self.required


@dataclass(frozen=True)
class SampleSchedule:
    """L_t as a function of the step, for the difficulty of one state of a model.

    The corollaries need E φ at the state of every step. With the absolute form the schedule
    satisfies them if E φ stays above the ζ of that state; with the relative form it is a plan.
    """

    difficulty: Difficulty
    """The terms of M_i and E φ at that state."""

    step_size: StepSize
    """γ_t as a function of the step."""

    failure: Callable[[int], float]
    """δ_t as a function of the step."""

    cap: int | None = None
    """Largest number of samples; None for no limit."""

    def __post_init__(self) -> None:
        require(self.cap is None or self.cap >= 1, "cap", "None or at least 1", self.cap)

    def __call__(self, step: int) -> int:
        """Return L_t, capped."""
        return self.at(step).used

    def at(self, step: int) -> SampleSize:
        """Return L_t and the required number."""
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
        """Return ν_t."""
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
    >>> from directgp_paper.diagnostics import difficulty
    >>> from directgp.likelihoods import Probit
    >>> from directgp.shapes import BatchedRow, Marginals
    >>> y, zero, one = torch.ones(3), torch.zeros(3), torch.ones(3)
    >>> hard = difficulty(Probit(), y, Marginals(zero, one), form="absolute")
    >>> schedule = bmc_schedule(hard, cap=100)
    >>> schedule(0), schedule(5), schedule.at(5).capped
    (52, 100, True)
    """
    require(0 < delta < 1, "delta", "between 0 and 1", delta)
    return SampleSchedule(difficulty, step_size, partial(_basel_share, delta), cap)


def smooth_bmc_schedules(
    difficulty: Difficulty, *, step_size: StepSize = harmonic_step_size, cap: int | None = None
) -> tuple[SampleSchedule, SmoothingSchedule]:
    """Plan L_t with δ_t = γ_t⁴, and ν_t = γ_t ζ: smooth-bMC then converges with probability 1."""
    samples = SampleSchedule(difficulty, step_size, partial(_fourth_power, step_size), cap)
    return samples, SmoothingSchedule(difficulty.zeta, step_size)


# Not lambdas: a checkpoint's fingerprint has the repr of these functions, with their arguments.


def _basel_share(delta: float, step: int) -> float:
    """Return 6δ/(π²t²), which sums to δ over t = 1, 2, …."""
    return 6 * delta / (math.pi * (step + 1)) ** 2


def _fourth_power(step_size: StepSize, step: int) -> float:
    """Return γ_t⁴."""
    return step_size(step) ** 4
