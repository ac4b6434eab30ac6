"""Find mode, width and support of the product density q̃(f) ∝ q(f)·p(y|f).

Everything is said in δ = f − μ, so that no digit is lost when v is tiny. The log density is
h(δ) = ℓ(μ+δ) − δ²/(2v) up to a constant; for a log-concave likelihood h is concave.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.likelihoods.base import ClosedFormMode, Derivatives, Likelihood
from directgp.shapes import Values

Sides = Float[Tensor, "2 ..."]

Kernel = Callable[[Values], Derivatives]
"""ℓ and its two derivatives at f, for examples fixed beforehand."""

_MAX_NEWTON_STEPS = 200
_PATIENCE = 10
_MODE_TOLERANCE = 1e-4
"""Newton steps end when the next is below this share of the peak's width."""

_MAX_FALL_STEPS = 40
_FALL_PATIENCE = 4
_SUPPORT_TOLERANCE = 0.2
"""The support is taken from a fall within a fifth of the drop asked for, one step improved."""


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

    def __getitem__(self, index: Int[Tensor, " r"] | slice) -> "Peak":
        """The peaks of some examples."""
        columns = self.delta, self.height, self.slope, self.curvature, self.width
        return Peak(*(column[index] for column in columns))


def peak_of(likelihood: Likelihood, y: Values, mean: Values, variance: Values) -> Peak:
    """The peak of q̃ for a log-concave likelihood."""
    if not isinstance(likelihood, ClosedFormMode):
        return find_peak(lambda f: likelihood.derivatives(y, f), mean, variance)
    precision = 1 / variance
    delta = likelihood.product_mode(y, mean, variance)
    here = likelihood.derivatives(y, mean + delta)
    # The formula is a difference of large numbers when v·y is large: one Newton step mends it.
    slope, bend = here.first - delta * precision, precision - here.second
    if bool((slope * slope > _MODE_TOLERANCE**2 * bend).any()):
        delta = delta + slope / bend
        here = likelihood.derivatives(y, mean + delta)
    return _peak_at(delta, here, precision)


def find_peak(kernel: Kernel, mean: Values, variance: Values) -> Peak:
    """The mode of q̃, by Newton's method inside a bracket that shrinks.

    Where ℓ′(μ) > 0 the mode lies in (0, v·ℓ′(μ)), since ℓ′ falls; likewise on the other side. A
    step that leaves the bracket, or that follows one which did not halve the slope, is replaced by
    the bracket's middle; so is every other step once there have been many, since Newton's method
    creeps along an exponential. A point where ℓ′(μ) underflows to 0 has its mode at μ.
    """
    precision = 1 / variance
    delta = torch.zeros_like(mean)
    here = kernel(mean)
    lower = torch.clamp(variance * here.first, max=0.0)
    upper = torch.clamp(variance * here.first, min=0.0)
    last = torch.full_like(mean, torch.inf)
    for count in range(_MAX_NEWTON_STEPS):
        slope = torch.addcmul(here.first, delta, precision, value=-1)
        bend = precision - here.second
        step = slope / bend
        moving = step * slope > _MODE_TOLERANCE**2
        if not bool(moving.any()):
            return _peak_at(delta, here, precision)
        rising = slope > 0
        lower = torch.where(rising, delta, lower)
        upper = torch.where(rising, upper, delta)
        proposal = delta + step
        slope = slope.abs()
        sound = (proposal > lower) & (proposal < upper) & (slope <= 0.5 * last)
        if count >= _PATIENCE and count % 2 == 1:
            sound = torch.zeros_like(sound)
        proposal = torch.where(sound, proposal, 0.5 * (lower + upper))
        last = slope
        delta = torch.where(moving, proposal, delta)
        here = kernel(mean + delta)
    raise NumericalError(
        f"The mode of q(f)·p(y given f) was not found in {_MAX_NEWTON_STEPS} steps for "
        f"{int(moving.sum())} examples. Check that the likelihood is log-concave in f."
    )


def _peak_at(delta: Values, here: Derivatives, precision: Values) -> Peak:
    pull = delta * precision
    return Peak(
        delta,
        here.value - 0.5 * delta * pull,
        here.first - pull,
        torch.clamp(-here.second, min=0.0),
        torch.rsqrt(precision - here.second),
    )


class Fall(NamedTuple):
    """How h falls at two distances from the mode, left and right; shapes (2, ...)."""

    distance: Sides
    fallen: Sides
    """h(δ̂) − h there."""

    steepness: Sides
    """The slope of h there, positive when it falls away from the mode."""


def find_fall(
    kernel: Kernel, mean: Values, variance: Values, peak: Peak, drop: Values, tolerance: float
) -> Fall:
    """Distances left and right of the mode at which h has fallen by about `drop`.

    Newton's method on log(fall) as a function of log(distance), whose slope is at least 1 because
    h is concave: one step for a Gaussian peak, a few for an exponential edge. A step that leaves
    the bracket of distances known to be too near and too far is replaced by its middle, and so is
    every other step once there have been several: h may be flat and then fall off a cliff.
    """
    side = torch.tensor([-1.0, 1.0], dtype=mean.dtype, device=mean.device)
    side = side.reshape(2, *([1] * mean.dim()))
    distance = (torch.sqrt(2 * drop) * peak.width).expand(2, *mean.shape)
    near = torch.zeros_like(distance)
    far = (1.01 * torch.sqrt(2 * drop * variance)).expand_as(distance)
    for count in range(_MAX_FALL_STEPS):
        delta = peak.delta + side * distance
        value, first, _ = kernel(mean + delta)
        pull = delta / variance
        fallen = peak.height - value + 0.5 * delta * pull
        fall = Fall(distance, fallen, side * (pull - first))
        surplus = torch.log(fallen / drop)
        moving = surplus.abs() > tolerance
        if not bool(moving.any()):
            break
        near = torch.where(surplus < 0, distance, near)
        far = torch.where(surplus < 0, far, distance)
        proposal = _nearer(fall, surplus)
        inside = (proposal > near) & (proposal < far)
        if count >= _FALL_PATIENCE and count % 2 == 1:
            inside = torch.zeros_like(inside)
        proposal = torch.where(inside, proposal, 0.5 * (near + far))
        distance = torch.where(moving, proposal, distance)
    return fall


def find_support(kernel: Kernel, mean: Values, variance: Values, peak: Peak, drop: Values) -> Sides:
    """Distances left and right of the mode at which h has fallen by `drop`, to a few percent."""
    fall = find_fall(kernel, mean, variance, peak, drop, _SUPPORT_TOLERANCE)
    return _nearer(fall, torch.log(fall.fallen / drop))


def _nearer(fall: Fall, surplus: Sides) -> Sides:
    """The next distance by Newton's method; half the distance where h has overflowed."""
    power = (fall.distance * fall.steepness / fall.fallen).clamp(min=1.0)
    factor = torch.where(fall.fallen < torch.inf, torch.exp(-surplus / power), 0.5)
    return fall.distance * factor
