"""Integrate log E_q[p] by quadrature on the product density q̃(f) ∝ q(f)·p(y|f), to 1e-9.

Points are given by δ = f − μ, so that no digit is lost when v is tiny. The log density is
h(δ) = ℓ(μ+δ) − δ²/(2v) up to a constant; for a log-concave likelihood h is concave.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError, UnsupportedError, refuse
from directgp.likelihoods.base import Binary, ClosedFormMode, Derivatives, Likelihood
from directgp.likelihoods.counts import CountLikelihood
from directgp.likelihoods.student_t import StudentTNoise
from directgp.log_expectations.adaptive import POINTS, adaptive_log_expectation
from directgp.log_expectations.nodes import (
    blocks_by_nodes,
    nats_for,
    nodes_for_all,
    recorded_nodes,
    step_for,
)
from directgp.log_expectations.rule import (
    Context,
    Estimate,
    Estimator,
    FlatExamples,
    Rows,
    Rule,
    balanced_weight,
    estimate_rows,
    evaluate,
)
from directgp.log_expectations.scale_mixture import mixture_estimate
from directgp.numerics.autograd import Slopes
from directgp.numerics.fixed_sizes import constant, fixed_size, fixed_sizes, recording
from directgp.numerics.gaussian import gauss_hermite
from directgp.shapes import Points, Row, Values

# Mode, width and support of the product density.

Sides = Float[Tensor, "2 ..."]

Kernel = Callable[[Values], Derivatives]
"""ℓ and its two derivatives at f, for examples fixed beforehand."""

_MAX_NEWTON_STEPS = 200
_PATIENCE = 10
"""Steps after which every other one halves the bracket."""

_MODE_TOLERANCE = 1e-3
"""Newton steps end when the next is below this share of the peak's width."""

_MAX_FALL_STEPS = 40
_FALL_PATIENCE = 4


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
        """Return the peaks of some examples."""
        return Peak(*(column.index_select(0, index) for column in self))


def peak_of(likelihood: Likelihood, y: Values, mean: Values, variance: Values) -> Peak:
    """Return the peak of q̃ for a log-concave likelihood."""

    def kernel(f: Values) -> Derivatives:
        return likelihood.derivatives(y, f)

    if recording():
        return grid_peak(kernel, mean, variance)
    if isinstance(likelihood, ClosedFormMode):
        precision = 1 / variance
        delta = likelihood.product_mode(y, mean, variance)
        here = kernel(mean + delta)
        # The formula is a difference of large numbers when v·y is large: a Newton step corrects it.
        slope, bend = here.first - delta * precision, precision - here.second
        if bool((slope * slope > _MODE_TOLERANCE**2 * bend).any()):
            delta = delta + slope / bend
            here = kernel(mean + delta)
        peak = _peak_at(delta, here, precision)
    else:
        peak = find_peak(kernel, mean, variance)
    if fixed_sizes.get() is not None:
        fixed_size(_GRID_NAME, (variance * kernel(mean).first / peak.width).abs_())
    return peak


def find_peak(kernel: Kernel, mean: Values, variance: Values) -> Peak:
    """Find the mode of q̃ by Newton's method inside a bracket that shrinks.

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


_GRID = 256
"""Points of each grid."""

_GRID_NAME = "widths to the mode"
_GRID_STEP = 0.2
"""Largest step of the last grid, as a share of the peak's width."""


def grid_peak(kernel: Kernel, mean: Values, variance: Values) -> Peak:
    """Find the mode of q̃ on grids, each between two points of the last: the work is fixed.

    h′ falls, so that the number of points before the mode is that of slopes of the first sign.
    """
    precision, fixed = variance.reciprocal(), fixed_sizes.get()
    end = variance * kernel(mean).first
    widths = fixed.sizes[_GRID_NAME] if fixed is not None else 1.0
    grids = max(1, math.ceil(math.log(max(widths / _GRID_STEP, 1.0), _GRID)))
    index = constant("grid", partial(torch.arange, _GRID, dtype=mean.dtype, device=mean.device))
    index = index.reshape(-1, *([1] * mean.dim()))
    delta, step = torch.zeros_like(mean), end
    for _ in range(grids):
        step = step / _GRID
        points = torch.addcmul(delta, index, step)
        here = kernel(mean + points)
        slope = torch.addcmul(here.first, points, precision, value=-1)
        last = (slope * end > 0).sum(0, keepdim=True).sub_(1).clamp_(min=0)
        delta = points.gather(0, last)[0]
    peak = _peak_at(delta, Derivatives(*(each.gather(0, last)[0] for each in here)), precision)
    fixed_size(_GRID_NAME, (end / peak.width).abs_())
    return peak


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
    """h(δ̂) − h and the slope at a distance from the mode, left and right; shapes (2, ...)."""

    distance: Sides
    fallen: Sides
    steepness: Sides
    """Positive where h falls away from the mode."""


def find_fall(
    kernel: Kernel, mean: Values, variance: Values, peak: Peak, drop: Values, tolerance: float
) -> Fall:
    """Find the distances left and right of the mode at which h has fallen by about `drop`.

    Newton's method on log(fall) as a function of log(distance), whose slope is at least 1 because
    h is concave: one step for a Gaussian peak, a few for an exponential edge. A step that leaves
    the bracket of distances known to be too near and too far is replaced by its middle, and so is
    every other step once there have been several: h may be flat and then fall off a cliff.
    """
    side = _sides(mean)
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
    side, reach = _sides(mean), torch.sqrt(2 * drop)
    distance = reach * peak.width
    delta = torch.addcmul(peak.delta, side, distance)
    value, first, _ = kernel(mean + delta)
    pull = delta / variance
    left = torch.addcmul(value, delta, pull, value=-0.5).add_(drop - peak.height)
    step = torch.where(left > -torch.inf, left / (pull - first).mul_(side), 0.0)
    return torch.minimum(step.add_(distance), 1.05 * reach * torch.sqrt(variance))


def _sides(like: Values) -> Sides:
    """Return −1 and 1."""
    sides = constant("sides", lambda: torch.arange(-1, 2, 2, dtype=like.dtype, device=like.device))
    return sides.reshape(2, *([1] * like.dim()))


# Positions of the nodes.


def trapezoid_nodes(ends: Float[Tensor, "2 n"], peak: Peak, num_nodes: int) -> tuple[Points, Row]:
    """Return δ of equal steps over the support, and the log of their common weight."""
    left, right = ends
    step = (left + right) / num_nodes
    steps = partial(torch.arange, 0.5, num_nodes, dtype=step.dtype, device=step.device)
    index = constant(("steps", num_nodes), steps)[:, None]
    return torch.addcmul(peak.delta - left, index, step), torch.log(step)


def hermite_nodes(peak: Peak, num_nodes: int) -> tuple[Points, Points]:
    """Return δ of Gauss–Hermite nodes fitted to the peak, and the logs of their weights."""
    z, log_weight = gauss_hermite(num_nodes, peak.width.dtype, peak.width.device)
    log_scale = 0.5 * math.log(2 * math.pi) + torch.log(peak.width)
    delta = torch.addcmul(peak.delta, z[:, None], peak.width)
    return delta, (log_weight + 0.5 * z * z)[:, None] + log_scale


_CERTAIN_FROM = -math.log(0.01)
"""A count of 0 where less than 0.01 is expected is integrated through its complement."""

_HERMITE_NODES = 32


@final
@dataclass(frozen=True)
class Quadrature(Rule):
    """log E_q[p(y given f)] by nodes laid on q̃ ∝ q·p, summed in log space.

    The trapezoid rule between the points where the log density has fallen far below its peak
    converges exponentially. Nodes are held fixed in the gradient, which averages the slopes of
    `directgp.log_expectations.rule` over them. A nearly certain target is integrated
    through its complement, log Z = log(1 − E_q[1 − p]), so that small losses and gradients keep
    their digits.

    Parameters
    ----------
    num_nodes : int or "auto"
        Nodes for each example; "auto" takes as many as 1e-10 needs, more where q̃ is wide.
    nodes : {"trapezoid", "gauss_hermite"}
        Equal steps over the effective support, or Gauss–Hermite nodes fitted to the peak.
    """

    num_nodes: int | Literal["auto"] = "auto"
    nodes: Literal["trapezoid", "gauss_hermite"] = "trapezoid"

    deterministic = True
    unbiased_gradient = True

    def __post_init__(self) -> None:
        """Raise `InvalidInputError` for an unknown kind or number of nodes."""
        number, kinds = self.num_nodes, ("trapezoid", "gauss_hermite")
        if number != "auto" and not (isinstance(number, int) and number >= 2):
            refuse("num_nodes of Quadrature", "'auto' or at least 2", repr(number))
        if self.nodes not in kinds:
            refuse("nodes of Quadrature", f"one of {kinds}", repr(self.nodes))

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        known = likelihood.log_concave or isinstance(likelihood, StudentTNoise)
        return known and self == Quadrature()

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        return evaluate(*self._estimator(likelihood), likelihood, rows)

    @override
    def slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes:
        return estimate_rows(*self._estimator(likelihood), likelihood, rows)

    def _estimator(self, likelihood: Likelihood) -> tuple[int, Estimator]:
        """Return the number of points for the block size, and the estimator."""
        known = likelihood.log_concave or isinstance(likelihood, StudentTNoise)
        return recorded_nodes() if known else POINTS, lambda examples: self.estimate(*examples)

    def estimate(self, likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
        """Return value and slopes of a flat batch in float64, outside any graph."""
        examples = FlatExamples(likelihood, y, mean, variance)
        if isinstance(likelihood, StudentTNoise):
            return mixture_estimate(likelihood, y, mean, variance, self.num_nodes)
        if not likelihood.log_concave:
            if self.num_nodes != "auto" or self.nodes != "trapezoid":
                raise UnsupportedError(
                    f"Quadrature with nodes of your choice needs a likelihood that is log-concave "
                    f"in f. Got {type(likelihood).__name__}. Use Quadrature()."
                )
            return adaptive_log_expectation(examples)
        if isinstance(likelihood, Binary):
            likely = (2 * y - 1) * mean > 0
            unlikely = torch.where(likely, likelihood.complement(y), y)
            estimate = self._integrate(examples._replace(y=unlikely))
            return estimate.complement().where(likely, estimate)
        if isinstance(likelihood, CountLikelihood):
            rise = torch.where(y == 0, -torch.log(likelihood.conditional_mean(mean)), 0.0)
            if recording() or bool((rise > _CERTAIN_FROM).any()):
                return self._integrate(examples, rise)
        return self._integrate(examples)

    def _integrate(self, examples: FlatExamples, rise: Row | None = None) -> Estimate:
        """Integrate q·p for a log-concave p; `rise` is −log E[y given μ] where y = 0, else 0."""
        likelihood, y, mean, variance = examples
        peak, certain = peak_of(*examples), None if rise is None else rise > _CERTAIN_FROM
        if self.nodes == "gauss_hermite":
            number = _HERMITE_NODES if self.num_nodes == "auto" else self.num_nodes
            return _sum_nodes(examples, peak, *hermite_nodes(peak, number), certain)
        drop = nats_for(peak.width)
        ends = find_support(lambda f: likelihood.derivatives(y, f), mean, variance, peak, drop)
        if rise is not None and certain is not None:
            # The mass of q·(1 − p) lies v to the right of that of q, as far as 1 − p rises.
            right = torch.sqrt(2 * drop * variance).add_(torch.minimum(variance, rise))
            ends[1] = torch.where(certain, right, ends[1])
        needed = ends.sum(0) / step_for(peak.width, likelihood.strip, drop)
        common = nodes_for_all(needed) if self.num_nodes == "auto" else self.num_nodes
        if common is not None:
            return _sum_nodes(examples, peak, *trapezoid_nodes(ends, peak, common), certain)
        parts = []
        for number, index in blocks_by_nodes(needed):
            top, zero = peak.take(index), None if certain is None else certain[index]
            nodes = trapezoid_nodes(ends.index_select(1, index), top, number)
            parts.append((index, _sum_nodes(examples.take(index), top, *nodes, zero)))
        return Estimate.gather(parts)


def _sum_nodes(
    examples: FlatExamples,
    peak: Peak,
    delta: Points,
    log_weight: Values,
    certain: Bool[Tensor, " n"] | None = None,
) -> Estimate:
    """Compute log Σ_k weight_k·q(f_k)·p(y given f_k) over nodes f = μ + δ, and its slopes.

    The slopes average g and ½(g² − w²/v + (1−w)²ℓ″) of `mixed_slopes`, written out for speed.
    """
    likelihood, y, mean, variance = examples
    f = mean + delta
    kernel, first, second = likelihood.derivatives(y, f)
    exponent = delta * delta * (-0.5 / variance)
    value = (kernel + exponent).sub_(peak.height)
    if log_weight.dim() == 2:
        value, exponent = value + log_weight, exponent + log_weight
        log_weight = torch.zeros_like(mean)
    mass = value.exp_()
    ones = constant(("ones", len(mass)), lambda: mass.new_ones(len(mass)))
    total = ones @ mass
    log_z = peak.height + torch.log(total) + log_weight - 0.5 * torch.log(2 * math.pi * variance)
    if certain is not None:
        # log(1 − E_q[1 − p]).
        rare = ones @ torch.expm1(kernel).mul_(exponent.exp_())
        rare.mul_(torch.exp(log_weight) / torch.sqrt(2 * math.pi * variance))
        log_z = torch.where(certain, torch.log1p(rare), log_z)
    weight = balanced_weight(peak.curvature, variance)
    rest = 1 - weight
    slope = torch.addcmul(rest * first, weight / variance, delta)
    bent = ones @ (mass * second)
    pulled = mass * slope
    mean_slope = (ones @ pulled).div_(total)
    square = (rest * rest * bent).add_(ones @ pulled.mul_(slope)).div_(total)
    variance_slope = 0.5 * (square - weight * weight / variance)
    parameters: Slopes = ()
    if likelihood.trainable:
        averages = ((ones @ (mass * each)).div_(total) for each in (f, kernel, first))
        linear = likelihood.slopes_of_averages(y, *averages)
        parameters = likelihood.average_slopes(y, f, mass / total) if linear is None else linear
    return Estimate(log_z + likelihood.log_base(y), mean_slope, variance_slope, parameters)
