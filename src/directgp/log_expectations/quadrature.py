"""Integrate log E_q[p] by quadrature on the product density q̃(f) ∝ q(f)·p(y|f), to 1e-9.

Points are given by δ = f − μ, so that no digit is lost when v is tiny. The log density is
h(δ) = ℓ(μ+δ) − δ²/(2v) up to a constant; for a log-concave likelihood h is concave.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError, UnsupportedError, refuse
from directgp.likelihoods.base import Binary, ClosedFormMode, Derivatives, Likelihood, ScaleMixture
from directgp.likelihoods.counts import AtLeastOne, CountLikelihood
from directgp.log_expectations.adaptive import POINTS, adaptive_log_expectation
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
    row_blocks,
    rows_for,
)
from directgp.numerics.autograd import Slopes
from directgp.numerics.gaussian import gauss_hermite, log_density
from directgp.shapes import Points, Row, Values

# Mode, width and support of the product density.

Sides = Float[Tensor, "2 ..."]

Kernel = Callable[[Values], Derivatives]
"""ℓ and its two derivatives at f, for examples fixed beforehand."""

_MAX_NEWTON_STEPS = 200
_PATIENCE = 10
"""Steps after which every other one halves the bracket."""

_MODE_TOLERANCE = 1e-4
"""Newton steps end when the next is below this share of the peak's width."""

_MAX_FALL_STEPS = 40
_FALL_PATIENCE = 4
_SUPPORT_TOLERANCE = 0.2
"""Relative error of the fall from which one more step finds the support."""


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
        return Peak(*(column[index] for column in self))


def peak_of(likelihood: Likelihood, y: Values, mean: Values, variance: Values) -> Peak:
    """Return the peak of q̃ for a log-concave likelihood."""
    if not isinstance(likelihood, ClosedFormMode):
        return find_peak(lambda f: likelihood.derivatives(y, f), mean, variance)
    precision = 1 / variance
    delta = likelihood.product_mode(y, mean, variance)
    here = likelihood.derivatives(y, mean + delta)
    # The formula is a difference of large numbers when v·y is large: one Newton step corrects it.
    slope, bend = here.first - delta * precision, precision - here.second
    if bool((slope * slope > _MODE_TOLERANCE**2 * bend).any()):
        delta = delta + slope / bend
        here = likelihood.derivatives(y, mean + delta)
    return _peak_at(delta, here, precision)


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
        proposal = _next_distance(fall, surplus)
        inside = (proposal > near) & (proposal < far)
        if count >= _FALL_PATIENCE and count % 2 == 1:
            inside = torch.zeros_like(inside)
        proposal = torch.where(inside, proposal, 0.5 * (near + far))
        distance = torch.where(moving, proposal, distance)
    return fall


def find_support(kernel: Kernel, mean: Values, variance: Values, peak: Peak, drop: Values) -> Sides:
    """Find the distances at which h has fallen by `drop`, to a few percent."""
    fall = find_fall(kernel, mean, variance, peak, drop, _SUPPORT_TOLERANCE)
    return _next_distance(fall, torch.log(fall.fallen / drop))


def _next_distance(fall: Fall, surplus: Sides) -> Sides:
    """Return Newton's next distance; half the distance where h has overflowed."""
    power = (fall.distance * fall.steepness / fall.fallen).clamp(min=1.0)
    factor = torch.where(fall.fallen < torch.inf, torch.exp(-surplus / power), 0.5)
    return fall.distance * factor


# Number and positions of the nodes.

NATS = 27.0
"""The sum ends where the density has fallen by e^−27, and errs by as much."""

MIN_NODES, MAX_NODES = 16, 4096
"""Bounds of the number of nodes of an example."""

_CPU_GROWTH = 1.15
_DEVICE_GROWTH = 2.0
"""Largest ratio of the numbers of nodes of examples summed together: on a GPU the number of passes
costs more than the number of nodes."""


def nats_for(width: Values) -> Values:
    """Return the fall at which the nodes of a peak of width τ end: NATS + 1.5·log(1 + τ⁴).

    The slope in v of a wide peak is a small difference of what is summed for it.
    """
    return NATS + 1.5 * torch.log1p(width**4)


def step_for(width: Values, strip: float, nats: float | Values) -> Values:
    """Return the step h at which a trapezoid sum over a peak of width τ errs by e^−nats.

    The error is exp(d²/(2τ²) − 2πd/h) for any d up to the half-width of the strip in which the
    integrand is analytic and tame; the best d is τ√(2·nats), or the half-width.
    """
    d = ((2 * nats) ** 0.5 * width).clamp(max=strip)
    return 2 * math.pi * d / (nats + 0.5 * (d / width) ** 2)


def trapezoid_step(width: Values, strip: float, more_nats: float = 0.0) -> Values:
    """Return `step_for` with the nats of `nats_for` this width, plus `more_nats`."""
    return step_for(width, strip, nats_for(width) + more_nats)


def blocks_by_nodes(needed: Row) -> Iterator[tuple[int, Int[Tensor, " r"]]]:
    """Yield blocks of examples that need about the same number of nodes: number and indices.

    No block is smaller than a tenth of the examples for the sake of a few nodes saved.
    """
    needed = needed.clamp(MIN_NODES, MAX_NODES)
    growth = _CPU_GROWTH if needed.device.type == "cpu" else _DEVICE_GROWTH
    least, most = map(float, needed.aminmax()) if len(needed) else (MIN_NODES, MIN_NODES)
    if math.isnan(most):
        raise NumericalError(
            "Quadrature met NaN or infinity. Check mean, variance and the likelihood's parameters."
        )
    if most <= growth * least:
        number = math.ceil(most)
        for _, index in row_blocks(len(needed), number, needed.device):
            yield number, index
        return
    ordered, order = torch.sort(needed)
    start = 0
    while start < len(order):
        alike = int(torch.searchsorted(ordered, growth * ordered[start], right=True))
        stop = min(len(order), max(alike, start + len(order) // 10 + 1))
        number = math.ceil(ordered[stop - 1].item())
        for index in order[start:stop].split(rows_for(number, needed.device)):
            yield number, index
        start = stop


def trapezoid_nodes(ends: Float[Tensor, "2 n"], peak: Peak, num_nodes: int) -> tuple[Points, Row]:
    """Return δ of equal steps over the support, and the log of their common weight."""
    left, right = ends
    step = (left + right) / num_nodes
    index = torch.arange(num_nodes, dtype=step.dtype, device=step.device)[:, None] + 0.5
    return torch.addcmul(peak.delta - left, index, step), torch.log(step)


def hermite_nodes(peak: Peak, num_nodes: int) -> tuple[Points, Points]:
    """Return δ of Gauss–Hermite nodes fitted to the peak, and the logs of their weights."""
    z, log_weight = gauss_hermite(num_nodes, peak.width.dtype, peak.width.device)
    log_scale = 0.5 * math.log(2 * math.pi) + torch.log(peak.width)
    delta = torch.addcmul(peak.delta, z[:, None], peak.width)
    return delta, (log_weight + 0.5 * z * z)[:, None] + log_scale


# p(y given f) = ∫ N(y; f, w(t)) π(t) dt gives E_q[p] = ∫ N(y; μ, v + w(t)) π(t) dt: one smooth
# integral over t whatever the residual and v, where the integral over f may have two far peaks.


_COARSE = 64
"""Points that narrow the range of t before the nodes are placed."""

_MORE_NATS = 5.0
"""The slope in v sums terms of either sign, which cancel more than those of `mixed_slopes`."""

_STRIP = 0.5 * math.pi
"""v + w(t) and the mixing density are analytic and bounded while |Im t| < π/2."""


def mixture_estimate(
    likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, num_nodes: int | Literal["auto"]
) -> Estimate:
    """Compute value and slopes over nodes in t, as many as needed if `num_nodes` is "auto"."""
    bounds = likelihood.mixture_bounds((y - mean) ** 2, variance, NATS + _MORE_NATS)
    value = _log_component(likelihood, y, mean, variance, _mixture_nodes(bounds, _COARSE))
    within = (value > value.amax(0) - NATS - _MORE_NATS).to(torch.int8)
    first, last = within.argmax(0) - 1, _COARSE - within.flip(0).argmax(0)
    step = (bounds[1] - bounds[0]) / (_COARSE - 1)
    bounds = bounds[0] + torch.stack([first, last]).clamp(0, _COARSE - 1) * step
    if num_nodes != "auto":
        return _sum_mixture(likelihood, y, mean, variance, _mixture_nodes(bounds, num_nodes))
    step = trapezoid_step(likelihood.mixture_width(), _STRIP, _MORE_NATS)
    parts = []
    for number, index in blocks_by_nodes((bounds[1] - bounds[0]) / step):
        some = likelihood.take(index), y[index], mean[index], variance[index]
        parts.append((index, _sum_mixture(*some, _mixture_nodes(bounds[:, index], number))))
    return Estimate.gather(parts)


def _mixture_nodes(bounds: Float[Tensor, "2 n"], number: int) -> Points:
    """Return equal steps from the lower to the upper bound, ends included."""
    share = torch.linspace(0, 1, number, dtype=bounds.dtype, device=bounds.device)
    return torch.lerp(bounds[0], bounds[1], share[:, None])


def _log_component(likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, t: Points) -> Points:
    """Return log N(y; μ, v + w(t)) + log π(t)."""
    total = variance + likelihood.mixture_variance(t)
    return log_density(y, mean, total) + likelihood.log_mixing(t)


def _sum_mixture(likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, t: Points) -> Estimate:
    """Compute log Σ_k h·N(y; μ, v + w(t_k))·π(t_k), and its slopes."""
    log_mass = _log_component(likelihood, y, mean, variance, t)
    log_z = torch.logsumexp(log_mass, 0) + torch.log(t[1] - t[0])
    weights = torch.softmax(log_mass, 0)
    precision = 1 / (variance + likelihood.mixture_variance(t))
    slope = precision * (y - mean)
    mean_slope = (weights * slope).sum(0)
    variance_slope = 0.5 * (weights * (slope**2 - precision)).sum(0)
    parameters: Slopes = ()
    if likelihood.trainable:
        slopes = likelihood.mixture_slopes(t, 0.5 * (slope**2 - precision))
        parameters = tuple((weights * each).sum(0) for each in slopes)
    return Estimate(log_z, mean_slope, variance_slope, parameters)


_CERTAIN_BELOW = 0.01
"""A count of 0 where less than this is expected is integrated through its complement."""

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
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        return evaluate(*self._estimator(likelihood), likelihood, rows)

    @override
    def slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes:
        return estimate_rows(*self._estimator(likelihood), likelihood, rows)

    def _estimator(self, likelihood: Likelihood) -> tuple[int, Estimator]:
        """Return the number of points for the block size, and the estimator."""
        known = likelihood.log_concave or isinstance(likelihood, ScaleMixture)
        return 1 if known else POINTS, lambda examples: self.estimate(*examples)

    def estimate(self, likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
        """Return value and slopes of a flat batch in float64, outside any graph."""
        examples = FlatExamples(likelihood, y, mean, variance)
        if isinstance(likelihood, ScaleMixture):
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
            certain = (y == 0) & (likelihood.conditional_mean(mean) < _CERTAIN_BELOW)
            if bool(certain.any()):
                # Nearly certain zeros are the complement of the event y ≥ 1.
                zeros, others = (torch.nonzero(mask).squeeze(-1) for mask in (certain, ~certain))
                event = AtLeastOne(likelihood.take(zeros))
                rare = self._integrate(examples.take(zeros)._replace(likelihood=event))
                rest = self._integrate(examples.take(others))
                return Estimate.gather([(zeros, rare.complement()), (others, rest)])
        return self._integrate(examples)

    def _integrate(self, examples: FlatExamples) -> Estimate:
        """Integrate q·p for a log-concave p."""
        likelihood, y, mean, variance = examples
        peak = peak_of(*examples)
        if self.nodes == "gauss_hermite":
            number = _HERMITE_NODES if self.num_nodes == "auto" else self.num_nodes
            return _sum_nodes(examples, peak, *hermite_nodes(peak, number))
        drop = nats_for(peak.width)
        ends = find_support(lambda f: likelihood.derivatives(y, f), mean, variance, peak, drop)
        if self.num_nodes != "auto":
            return _sum_nodes(examples, peak, *trapezoid_nodes(ends, peak, self.num_nodes))
        parts = []
        needed = ends.sum(0) / trapezoid_step(peak.width, likelihood.strip)
        for number, index in blocks_by_nodes(needed):
            top = peak.take(index)
            nodes = trapezoid_nodes(ends[:, index], top, number)
            parts.append((index, _sum_nodes(examples.take(index), top, *nodes)))
        return Estimate.gather(parts)


def _sum_nodes(examples: FlatExamples, peak: Peak, delta: Points, log_weight: Values) -> Estimate:
    """Compute log Σ_k weight_k·q(f_k)·p(y given f_k) over nodes f = μ + δ, and its slopes.

    The slopes average g and ½(g² − w²/v + (1−w)²ℓ″) of `mixed_slopes`, written out for speed.
    """
    likelihood, y, mean, variance = examples
    f = mean + delta
    value, first, second = likelihood.derivatives(y, f)
    value = torch.addcmul(value, delta * delta, -0.5 / variance).sub_(peak.height)
    if log_weight.dim() == 2:
        value = value + log_weight
        log_weight = torch.zeros_like(mean)
    mass = value.exp_()
    total = mass.sum(0)
    log_z = peak.height + torch.log(total) + log_weight - 0.5 * torch.log(2 * math.pi * variance)
    weight = balanced_weight(peak.curvature, variance)
    rest = 1 - weight
    slope = torch.addcmul(rest * first, weight / variance, delta)
    bent = (mass * second).sum(0)
    pulled = mass * slope
    mean_slope = pulled.sum(0) / total
    square = (pulled.mul_(slope).sum(0) + rest * rest * bent) / total
    variance_slope = 0.5 * (square - weight * weight / variance)
    parameters = likelihood.average_slopes(y, f, mass / total) if likelihood.trainable else ()
    return Estimate(log_z + likelihood.log_base(y), mean_slope, variance_slope, parameters)
