"""The product density q̃(f) ∝ q(f)·p(y given f): its mode, its width, its effective support.

Everything is said in δ = f − μ, so that no digit is lost when v is tiny. The log density is
h(δ) = ℓ(μ+δ) − δ²/(2v) up to a constant; for a log-concave likelihood h is concave.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from directgp.errors import NumericalError
from directgp.likelihoods.base import Derivatives, Likelihood
from directgp.likelihoods.capabilities import ClosedFormMode

Values = Float[Tensor, "..."]

Kernel = Callable[[Values], Derivatives]
"""ℓ and its two derivatives at f, for examples fixed beforehand."""

_MAX_NEWTON_STEPS = 60
_MODE_TOLERANCE = 1e-4
"""Newton steps end when the next is below this share of the peak's width."""

_SUPPORT_STEPS = 4


@dataclass(frozen=True)
class Peak:
    """The peak of a product density, as found by `find_peak`."""

    delta: Values
    """δ̂: the mode, relative to the mean of q."""

    height: Values
    """h(δ̂)."""

    slope: Values
    """h′(δ̂), nearly 0."""

    curvature: Values
    """−ℓ″ at the mode, at least 0."""

    width: Values
    """τ = 1/√(1/v − ℓ″): the standard deviation of the Gaussian that fits the peak."""

    def take(self, mask: Bool[Tensor, "..."]) -> "Peak":
        """The peaks of some examples."""
        columns = self.delta, self.height, self.slope, self.curvature, self.width
        return Peak(*(column[mask] for column in columns))


def peak_of(likelihood: Likelihood, y: Values, mean: Values, variance: Values) -> Peak:
    """The peak of q̃ for a log-concave likelihood."""
    known = isinstance(likelihood, ClosedFormMode)
    start = likelihood.product_mode(y, mean, variance) if known else None
    return find_peak(lambda f: likelihood.derivatives(y, f), mean, variance, start)


def find_peak(kernel: Kernel, mean: Values, variance: Values, start: Values | None = None) -> Peak:
    """The mode of q̃, by Newton's method inside a bracket that shrinks.

    Where ℓ′(μ) > 0 the mode lies in (0, v·ℓ′(μ)), since ℓ′ falls; likewise on the other side. A
    step that leaves the bracket, or that follows one which did not halve the slope, is replaced by
    the bracket's middle. A point where ℓ′(μ) underflows to 0
    has its mode at μ.
    """
    precision = 1 / variance
    pull = variance * kernel(mean).first
    lower, upper = torch.clamp(pull, max=0.0), torch.clamp(pull, min=0.0)
    delta = torch.zeros_like(mean) if start is None else torch.clamp(start, lower, upper)
    last = torch.full_like(mean, torch.inf)
    for _ in range(_MAX_NEWTON_STEPS):
        value, first, second = kernel(mean + delta)
        slope = first - delta * precision
        bend = precision - second
        step = slope / bend
        moving = step.abs() * torch.sqrt(bend) > _MODE_TOLERANCE
        if not bool(moving.any()):
            break
        lower = torch.where(slope > 0, delta, lower)
        upper = torch.where(slope < 0, delta, upper)
        proposal = delta + step
        sound = (proposal > lower) & (proposal < upper) & (slope.abs() <= 0.5 * last)
        proposal = torch.where(sound, proposal, 0.5 * (lower + upper))
        last = slope.abs()
        delta = torch.where(moving, proposal, delta)
    else:
        raise NumericalError(
            f"The mode of q(f)·p(y given f) was not found in {_MAX_NEWTON_STEPS} steps for "
            f"{int(moving.sum())} examples. Check that the likelihood is log-concave in f."
        )
    return Peak(
        delta, value - 0.5 * delta**2 * precision, slope, torch.clamp(-second, min=0.0), bend.rsqrt()
    )


def find_support(
    kernel: Kernel, mean: Values, variance: Values, peak: Peak, drop: float
) -> Float[Tensor, "2 ..."]:
    """Distances left and right of the mode at which h has fallen by `drop`.

    Newton's method on log(fall) as a function of log(distance), whose slope is at least 1 because
    h is concave: one step for a Gaussian peak, a few for an exponential edge.
    """
    side = torch.tensor([-1.0, 1.0], dtype=mean.dtype, device=mean.device)
    side = side.reshape(2, *([1] * mean.dim()))
    distance = math.sqrt(2 * drop) * peak.width.expand(2, *mean.shape)
    for _ in range(_SUPPORT_STEPS):
        delta = peak.delta + side * distance
        value, first, _ = kernel(mean + delta)
        fallen = peak.height - value + 0.5 * delta**2 / variance
        steepness = distance * side * (delta / variance - first) / fallen
        distance = distance * torch.exp(-torch.log(fallen / drop) / steepness)
    return distance
