"""Integrate log E_q[p] by quadrature on the product density q̃(f) ∝ q(f)·p(y|f), to 1e-9.

Points are given by δ = f − μ, so that no digit is lost when v is tiny. The log density is
h(δ) = ℓ(μ+δ) − δ²/(2v) up to a constant; for a log-concave likelihood h is concave.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError, UnsupportedError, refuse
from directgp.likelihoods.base import (
    Binary,
    ClosedFormMode,
    Derivatives,
    Likelihood,
    NearlyCertain,
    ZeroInflation,
    has,
)
from directgp.likelihoods.student_t import StudentTNoise
from directgp.log_expectations.adaptive import POINTS, adaptive_log_expectation
from directgp.log_expectations.latents import latent_estimator
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
    gather,
)
from directgp.log_expectations.scale_mixture import mixture_estimate
from directgp.log_expectations.unimodal import Peaks, find_ends, settled_peaks
from directgp.numerics.autograd import Slopes
from directgp.numerics.fixed_sizes import constant, fixed_size, fixed_sizes, recording
from directgp.numerics.gaussian import gauss_hermite
from directgp.shapes import Row, Values

# Mode, width and support of the product density.

Sides = Float[Tensor, "2 ..."]

Kernel = Callable[[Values], Derivatives]
"""ℓ and its two derivatives at f, for examples fixed beforehand."""

_MAX_NEWTON_STEPS = 200
_PATIENCE = 10
"""Steps after which every other one halves the bracket."""

_MODE_TOLERANCE = 1e-3
"""Newton steps end when the next is below this share of the peak's width."""

_ROUGH = 0.1
"""The same for the nodes of a quadrature, which may lie anywhere over the peak."""

_PLAIN_STEPS = 3
"""Newton steps without a bracket."""

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


def peak_of(
    likelihood: Likelihood,
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
        formula: Any = likelihood
        # It is a difference of large numbers when v·y is large: Newton steps correct it.
        start = formula.product_mode(y, mean, variance)
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
        torch.addcmul(here.value, delta, pull, value=-0.5),
        here.first - pull,
        here.second.neg().clamp_(min=0.0),
        (precision - here.second).rsqrt_(),
    )


def highest(peaks: Peaks, variance: Values) -> Peak:
    """Return the higher of two peaks, with the width of the narrower."""
    which = peaks.height.argmax(0, keepdim=True)
    delta, height = (each.gather(0, which)[0] for each in (peaks.delta, peaks.height))
    width = peaks.width.amin(0)
    curvature = (width**-2 - 1 / variance).clamp(min=0.0)
    return Peak(delta, height, torch.zeros_like(delta), curvature, width)


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
    side, reach = _sides(mean), (2 * drop).sqrt_()
    distance = reach * peak.width
    delta = torch.addcmul(peak.delta, side, distance)
    value, first, _ = kernel(mean + delta)
    pull = delta / variance
    left = torch.addcmul(value, delta, pull, value=-0.5).add_(drop - peak.height)
    # No step where h has overflowed.
    step = left.div_(pull.sub_(first).mul_(side)).nan_to_num_(0.0, math.inf, 0.0)
    return torch.minimum(step.add_(distance), reach.mul_(1.05).mul_(variance.sqrt()))


def _sides(like: Values) -> Sides:
    """Return −1 and 1."""
    sides = constant("sides", lambda: torch.arange(-1, 2, 2, dtype=like.dtype, device=like.device))
    return sides.reshape(2, *([1] * like.dim()))


# Nodes δ_k = origin + x_k·scale with weights w_k: Σ_k w_k·scale·g(δ_k) ≈ ∫ g(δ) dδ.


@lru_cache(maxsize=64)
def _midpoints(number: int) -> NDArray[np.float64]:
    """Return the midpoints of equal steps from 0 to 1, and their weights; not to be written to."""
    return np.stack([(np.arange(number) + 0.5) / number, np.full(number, 1 / number)])


def _trapezoid(number: int, like: Row) -> Float[Tensor, "2 k"]:
    """Return x and w for an origin at the left end of the support, and its length as scale."""
    make = partial(torch.as_tensor, _midpoints(number), device=like.device)
    return constant(("midpoints", number), make)


def hermite_nodes(number: int, like: Row) -> Float[Tensor, "2 k"]:
    """Return x and w for an origin at the mode, and the width of the peak as scale."""

    def make() -> Float[Tensor, "2 k"]:
        z, log_weight = gauss_hermite(number, like.dtype, like.device)
        return torch.stack([z, torch.exp(log_weight + 0.5 * z * z).mul_(math.sqrt(2 * math.pi))])

    return constant(("hermite", number), make)


_CERTAIN_BELOW = math.log(0.01)
"""A target is integrated through its complement where log(1 − p) at the mean of q is below."""

_HERMITE_NODES = 32

_DENSE_STRIP = 0.75
"""Half-width in Im t of the strip for nodes that are dense near f = 0; below π/4, where the squares
of a far q grow."""


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
        known = likelihood.log_concave and likelihood.summable
        known = known or isinstance(likelihood, StudentTNoise)
        return known and likelihood.fixed_work and self == Quadrature()

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        return evaluate(*self._estimator(likelihood), likelihood, rows)

    @override
    def slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes:
        return estimate_rows(*self._estimator(likelihood), likelihood, rows)

    def _estimator(self, likelihood: Likelihood) -> tuple[int, Estimator]:
        """Return the number of points for the block size, and the estimator."""
        if likelihood.num_latent > 1:
            return self._over_latents(likelihood)
        known = likelihood.summable or isinstance(likelihood, StudentTNoise)
        return recorded_nodes() if known else POINTS, lambda examples: self.estimate(*examples)

    def _over_latents(self, likelihood: Likelihood) -> tuple[int, Estimator]:
        """Return the estimator of a likelihood of several latents: exact in 1-D, or a grid."""
        if self != Quadrature():
            raise UnsupportedError(
                f"Quadrature with nodes of your choice needs a likelihood of one latent. Got "
                f"{type(likelihood).__name__}. Use Quadrature()."
            )
        return latent_estimator(likelihood, gibbs=False)

    def estimate(self, likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
        """Return value and slopes of a flat batch in float64, outside any graph."""
        examples = FlatExamples(likelihood, y, mean, variance)
        if isinstance(likelihood, ZeroInflation):
            return inflated(likelihood, y, self.estimate(likelihood.base, y, mean, variance))
        if isinstance(likelihood, StudentTNoise):
            return mixture_estimate(likelihood, y, mean, variance, self.num_nodes)
        if not likelihood.summable:
            if self.num_nodes != "auto" or self.nodes != "trapezoid":
                raise UnsupportedError(
                    f"Quadrature with nodes of your choice needs a likelihood that is log-concave "
                    f"or analytic in f, with a strip. Got {type(likelihood).__name__}. Use "
                    "Quadrature()."
                )
            return adaptive_log_expectation(examples)
        if isinstance(likelihood, Binary):
            likely = (2 * y - 1) * mean > 0
            unlikely = torch.where(likely, likelihood.complement(y), y)
            estimate = self._integrate(examples._replace(y=unlikely))
            return estimate.complement().where(likely, estimate)
        if has(likelihood, NearlyCertain):
            formula: Any = likelihood
            doubt = formula.doubt(y, mean)
            if recording() or bool((doubt[0] < _CERTAIN_BELOW).any()):
                return self._integrate(examples, doubt)
        return self._integrate(examples)

    def _integrate(self, examples: FlatExamples, doubt: tuple[Row, Row] | None = None) -> Estimate:
        """Integrate q·p for a log-concave p; `doubt` is that of the likelihood at the mean."""
        likelihood, y, mean, variance = examples
        certain = None if doubt is None else doubt[0] < _CERTAIN_BELOW
        peaks = None if likelihood.log_concave else settled_peaks(examples)
        peak = peak_of(*examples, _ROUGH) if peaks is None else highest(peaks, variance)
        if self.nodes == "gauss_hermite":
            number = _HERMITE_NODES if self.num_nodes == "auto" else self.num_nodes
            rows = _rows(examples, peak, peak.delta, peak.width)
            sums = _sum_nodes(likelihood, rows, hermite_nodes(number, y), certain is not None)
            return _estimate(examples, rows, sums, certain)
        drop = nats_for(peak.width)
        if peaks is None:
            ends = find_support(lambda f: likelihood.derivatives(y, f), mean, variance, peak, drop)
        else:
            ends = (find_ends(examples, peaks, drop) - peak.delta) * _sides(mean)
        if doubt is not None and certain is not None:
            # The mass of q·(1 − p) lies v times the slope of log(1 − p) to the side of that of q
            # to which 1 − p rises, and at most as far as it rises.
            log_doubt, slope = doubt
            steep = slope.abs()
            aside = torch.minimum(variance * steep, -log_doubt / steep)
            far = torch.sqrt(2 * drop * variance).add_(aside)
            ends[0] = torch.where(certain & (slope < 0), far, ends[0])
            ends[1] = torch.where(certain & (slope > 0), far, ends[1])
        length = ends[0] + ends[1]
        rows = _rows(examples, peak, peak.delta - ends[0], length)
        strip = likelihood.widened(likelihood.strip, mean + peak.delta - ends[0])
        needed = length / step_for(peak.width, strip, drop)
        dense = None
        if self.num_nodes == "auto" and fixed_sizes.get() is None and likelihood.bends_at_zero:
            numbers = _dense_needed(rows, peak, drop)
            dense = numbers < needed if bool((numbers < needed).any()) else None
        if dense is None:
            common = nodes_for_all(needed) if self.num_nodes == "auto" else self.num_nodes
            if common is not None:
                sums = _sum_nodes(likelihood, rows, _trapezoid(common, y), certain is not None)
                return _estimate(examples, rows, sums, certain)
            blocks = [(*block, False) for block in blocks_by_nodes(needed)]
        else:
            blocks = [
                (number, members[within], is_dense)
                for is_dense, wanted in ((False, needed), (True, numbers))
                for members in [(dense == is_dense).nonzero()[:, 0]]
                for number, within in blocks_by_nodes(wanted[members])
            ]
        parts = []
        for number, index, is_dense in blocks:
            some, table = rows.index_select(1, index), _trapezoid(number, y)
            own = likelihood.take(index)
            sums = _sum_nodes(own, some, table, certain is not None, is_dense)
            parts.append((index, sums))
        return _estimate(examples, rows, gather(parts), certain)


def inflated(likelihood: ZeroInflation, y: Row, base: Estimate) -> Estimate:
    """Return the estimate for a likelihood with extra zeros, given that of its base."""
    value, weight, by_odds = likelihood.inflate(y, base.value)
    found = base.transformed(value, weight)
    parameters = found.parameters
    if not likelihood.trainable:
        return found
    if parameters and parameters[0].requires_grad:
        with torch.enable_grad():
            parameters = (parameters[0] + by_odds.detach() * likelihood.zero_odds,)
    else:
        parameters = by_odds.detach(), *parameters
    return replace(found, parameters=parameters)


def _rows(examples: FlatExamples, peak: Peak, origin: Row, scale: Row) -> Float[Tensor, "8 n"]:
    """Return y, μ, origin and scale of the nodes, h(δ̂), −1/(2v), w/v and 1 − w."""
    _, y, mean, variance = examples
    weight = balanced_weight(peak.curvature, variance)
    rows = y, mean, origin, scale, peak.height, -0.5 / variance, weight / variance, 1 - weight
    return torch.stack(rows)


def _dense_ends(rows: Float[Tensor, "8 n"]) -> tuple[Row, Row]:
    """Return the ends of the support in t, where f = π sinh t."""
    _, mean, origin, scale = rows[:4]
    left = mean + origin
    return torch.asinh(left / math.pi), torch.asinh((left + scale) / math.pi)


def _dense_needed(rows: Float[Tensor, "8 n"], peak: Peak, drop: Row) -> Row:
    """Return the number of nodes of each example if they are dense near f = 0.

    In t the singularities ±iπ of f lie at ±iπ/2, and a peak of width τ at f grows in Im t = η as
    one of width τ√(1 − η²)/√(π² + f²).
    """
    left, right = _dense_ends(rows)
    at = rows[1] + peak.delta
    width = math.sqrt(1 - _DENSE_STRIP**2) * peak.width / torch.sqrt(math.pi**2 + at * at)
    return (right - left) / step_for(width, _DENSE_STRIP, drop)


def _sum_nodes(
    likelihood: Likelihood,
    rows: Float[Tensor, "8 n"],
    table: Float[Tensor, "2 k"],
    certain: bool,
    dense: bool = False,
) -> Slopes:
    """Sum q·p of the nodes times 1, ℓ″, ℓ where slopes are linear, 1 − 1/p if certain, g and g².

    The sums are rows of the first tensor; `average_slopes` may follow. g is that of `mixed_slopes`.
    `dense` nodes are equal steps in t, where f = π sinh t.
    """
    y, mean, origin, scale, height, spread, pull, rest = rows
    weights = table[1]
    if dense:
        left, right = _dense_ends(rows)
        t = torch.addcmul(left, table[0, :, None], right - left)
        f, share = math.pi * torch.sinh(t), (math.pi * (right - left) / scale) * torch.cosh(t)
        delta = f - mean
    else:
        delta = torch.addcmul(origin, table[0, :, None], scale)
        f = mean + delta
    square = delta * delta
    kernel, first, second = likelihood.derivatives(y, f)
    mass = torch.addcmul(kernel, square, spread).sub_(height).exp_()
    if dense:
        mass.mul_(share)
    sums = [weights @ mass, weights @ (mass * second)]
    parameters: Slopes = ()
    if likelihood.has_linear_slopes():
        sums.append(weights @ (mass * kernel))
    elif likelihood.trainable:
        parameters = likelihood.average_slopes(y, f, mass * (weights[:, None] / sums[0]))
    if certain:
        doubt = torch.expm1(kernel).mul_(square.mul_(spread).exp_())
        sums.append(weights @ (doubt.mul_(share) if dense else doubt))
    slope = (rest * first).addcmul_(pull, delta)
    sums += [weights @ mass.mul_(slope), weights @ mass.mul_(slope)]
    return torch.stack(sums), *parameters


def _estimate(
    examples: FlatExamples,
    rows: Float[Tensor, "8 n"],
    columns: Slopes,
    certain: Bool[Tensor, " n"] | None,
) -> Estimate:
    """Return log Σ_k q·p, or log(1 − E_q[1 − p]) where certain, and its slopes, given the sums.

    The slopes average g and ½(g² − w²/v + (1−w)²ℓ″).
    """
    likelihood, y, mean, variance = examples
    (total, bent, *more, slope, square), parameters = columns[0], columns[1:]
    scale, height, _, pull, rest = rows[3:]
    scale = (2 * math.pi * variance).rsqrt_().mul_(scale)
    value = torch.log(total * scale).add_(height)
    if certain is not None:
        value = torch.where(certain, torch.log1p(more.pop() * scale), value)
    slope = slope / total
    square = torch.addcmul(square, rest * rest, bent).div_(total)
    by_variance = square.addcmul_(pull * pull, variance, value=-1).mul_(0.5)
    if more and likelihood.trainable:
        # E_q̃[(f − μ)/v] = E_q̃[ℓ′].
        f = torch.addcmul(mean, variance, slope)
        parameters = likelihood.slopes_of_averages(y, f, more[0] / total, slope)
    return Estimate(value.add_(likelihood.log_base(y)), slope, by_variance, parameters)
