"""Find mode, width and support of the product density q̃(f) ∝ q(f)·p(y|f) with one peak.

Points are given by δ = f − μ, so that no digit is lost when v is tiny. The log density is
h(δ) = ℓ(μ+δ) − δ²/(2v) up to a constant; for a log-concave density p it is concave.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.integration.contract import ClosedFormMode, Density, Derivatives, has
from directgp.integration.unimodal import Peaks
from directgp.numerics.fixed_sizes import constant, fixed_size, fixed_sizes, recording
from directgp.shapes import Values
from directgp.text import plural

Sides = Float[Tensor, "2 ..."]

Kernel = Callable[[Values], Derivatives]
"""ℓ and its two derivatives at f, for examples fixed beforehand."""

_MAX_NEWTON_STEPS = 200
"""Largest number of steps inside a bracket."""

_PATIENCE = 10
"""Steps after which every other one halves the bracket."""

_MODE_TOLERANCE = 1e-3
"""Newton steps end when the next is below this share of the peak's width."""

ROUGH = 0.1
"""Tolerance of the mode for the nodes of a quadrature, which may lie anywhere over the peak."""

_PLAIN_STEPS = 3
"""Newton steps without a bracket."""

_MAX_FALL_STEPS = 40
"""Largest number of steps to the point where h has fallen."""

_FALL_PATIENCE = 4
"""Of these, steps after which every other one halves the bracket."""


class Peak(NamedTuple):
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

    def take(self, index: Int[Tensor, " r"]) -> "Peak":
        """Return the peaks of the examples of these indices."""
        return Peak(*(column.index_select(0, index) for column in self))


def peak_of(
    likelihood: Density,
    y: Values,
    mean: Values,
    variance: Values,
    tolerance: float = _MODE_TOLERANCE,
) -> Peak:
    """Return the peak of q̃ for a log-concave likelihood, with its mode to a share of its width."""

    def kernel(f: Values) -> Derivatives:
        return likelihood.derivatives(y, f)

    if recording():
        return grid_peak(kernel, mean, variance)
    peak = _newton_peak(kernel, mean, variance, torch.zeros_like(mean), tolerance)
    if peak is None and has(likelihood, ClosedFormMode):
        # The formula is a difference of large numbers when v·y is large: Newton steps correct it.
        start = cast(ClosedFormMode, likelihood).product_mode(y, mean, variance)
        peak = _newton_peak(kernel, mean, variance, start, tolerance)
    if peak is None:
        peak = find_peak(kernel, mean, variance, tolerance)
    if fixed_sizes.get() is not None:
        fixed_size(_GRID_NAME, (variance * kernel(mean).first / peak.width).abs_())
    return peak


def _newton_peak(
    kernel: Kernel, mean: Values, variance: Values, delta: Values, tolerance: float
) -> Peak | None:
    """Take a few steps of Newton's method; None if one more would not be short.

    A short step is near the mode, since h is concave.
    """
    precision = variance.reciprocal()
    for _ in range(_PLAIN_STEPS):
        here = kernel(mean + delta)
        slope = torch.addcmul(here.first, delta, precision, value=-1)
        step = slope / (precision - here.second)
        if bool((slope.mul_(step) <= tolerance**2).all()):
            return _peak_at(delta, here, precision)
        delta = delta + step
    return None


def find_peak(
    kernel: Kernel, mean: Values, variance: Values, tolerance: float = _MODE_TOLERANCE
) -> Peak:
    """Find the mode of q̃ by Newton's method inside a bracket that shrinks.

    Where ℓ′(μ) > 0 the mode lies in (0, v·ℓ′(μ)), since ℓ′ falls; likewise on the other side. A
    step that leaves the bracket, or that follows one which did not halve the slope, is replaced by
    the bracket's middle; so is every other step once there have been many, since Newton's method
    creeps along an exponential. A point where ℓ′(μ) underflows to 0 has its mode at μ.
    """
    undefined = (mean + variance).isnan()
    if bool(undefined.any()):
        raise NumericalError(
            f"The mean or the variance of f is NaN for {plural(int(undefined.sum()), 'example')}."
        )
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
        # NaN, where slope and bend have overflowed, is moving, too.
        moving = ~(step * slope <= tolerance**2)
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


_GRID = 256
"""Points of each grid."""

_GRID_NAME = "widths to the mode"
_GRID_STEP = 0.2
"""Largest step of the last grid, as a share of the peak's width."""


def grid_peak(kernel: Kernel, mean: Values, variance: Values) -> Peak:
    """Find the mode of q̃ on grids, each between two points of the last: the work is fixed.

    h′ falls, so that the number of points before the mode is that of slopes of the first sign.
    """
    precision = variance.reciprocal()
    fixed = fixed_sizes.get()
    end = variance * kernel(mean).first
    widths = fixed.sizes[_GRID_NAME] if fixed is not None else 1.0
    grids = max(1, math.ceil(math.log(max(widths / _GRID_STEP, 1.0), _GRID)))
    index = constant("grid", partial(torch.arange, _GRID, dtype=mean.dtype, device=mean.device))
    index = index.reshape(-1, *([1] * mean.dim()))
    delta = torch.zeros_like(mean)
    step = end
    for _ in range(grids):
        step = step / _GRID
        points = torch.addcmul(delta, index, step)
        here = kernel(mean + points)
        slope = torch.addcmul(here.first, points, precision, value=-1)
        last = (slope * end > 0).sum(0, keepdim=True).sub_(1).clamp_(min=0)
        delta = points.gather(0, last)[0]
    at_last = Derivatives(*(column.gather(0, last)[0] for column in here))
    peak = _peak_at(delta, at_last, precision)
    fixed_size(_GRID_NAME, (end / peak.width).abs_())
    return peak


def _peak_at(delta: Values, here: Derivatives, precision: Values) -> Peak:
    pull = delta * precision
    return Peak(
        delta,
        torch.addcmul(here.value, delta, pull, value=-0.5),
        here.first - pull,
        here.second.neg().clamp_(min=0.0),
        (precision - here.second).rsqrt_(),
    )


def highest(peaks: Peaks, variance: Values) -> Peak:
    """Return the higher of two peaks, with the width of the narrower."""
    which = peaks.height.argmax(0, keepdim=True)
    delta = peaks.delta.gather(0, which)[0]
    height = peaks.height.gather(0, which)[0]
    width = peaks.width.amin(0)
    curvature = (width**-2 - 1 / variance).clamp(min=0.0)
    return Peak(delta, height, torch.zeros_like(delta), curvature, width)


class Fall(NamedTuple):
    """The fall of h left and right of the mode; shapes (2, ...)."""

    distance: Sides
    """Distance from the mode."""

    fallen: Sides
    """h(δ̂) − h."""

    steepness: Sides
    """Slope of the fall: positive where h falls away from the mode."""


def find_fall(
    kernel: Kernel, mean: Values, variance: Values, peak: Peak, drop: Values, tolerance: float
) -> Fall:
    """Find the distances left and right of the mode at which h has fallen by about `drop`.

    Newton's method on log(fall) as a function of log(distance), whose slope is at least 1 because
    h is concave: one step for a Gaussian peak, a few for an exponential edge. A step that leaves
    the bracket of distances known to be too near and too far is replaced by its middle, and so is
    every other step once there have been several: h may be flat and then fall off a cliff.
    """
    side = sides_of(mean)
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
        power = (distance * fall.steepness / fallen).clamp(min=1.0)
        # Half the distance where h has overflowed.
        proposal = distance * torch.where(fallen < torch.inf, torch.exp(-surplus / power), 0.5)
        inside = (proposal > near) & (proposal < far)
        if count >= _FALL_PATIENCE and count % 2 == 1:
            inside = torch.zeros_like(inside)
        proposal = torch.where(inside, proposal, 0.5 * (near + far))
        distance = torch.where(moving, proposal, distance)
    return fall


def find_support(kernel: Kernel, mean: Values, variance: Values, peak: Peak, drop: Values) -> Sides:
    """Find distances left and right of the mode at which h has fallen by `drop`, or a bit more.

    One step of Newton's method from where a Gaussian peak has fallen so far: h is concave, so that
    the step never ends too near, nor much too far.
    """
    side = sides_of(mean)
    reach = (2 * drop).sqrt_()
    distance = reach * peak.width
    delta = torch.addcmul(peak.delta, side, distance)
    value, first, _ = kernel(mean + delta)
    pull = delta / variance
    left = torch.addcmul(value, delta, pull, value=-0.5).add_(drop - peak.height)
    # No step where h has overflowed.
    step = left.div_(pull.sub_(first).mul_(side)).nan_to_num_(0.0, math.inf, 0.0)
    return torch.minimum(step.add_(distance), reach.mul_(1.05).mul_(variance.sqrt()))


def sides_of(mean: Values) -> Sides:
    """Return −1 and 1 along an axis before those of the mean."""
    sides = constant("sides", lambda: torch.arange(-1, 2, 2, dtype=mean.dtype, device=mean.device))
    return sides.reshape(2, *([1] * mean.dim()))
