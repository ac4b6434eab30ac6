"""Integrate log E_q[p] by quadrature on the product density, to 1e-9."""

import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError, UnsupportedError, require
from directgp.likelihoods.base import Binary, Likelihood, ScaleMixture
from directgp.likelihoods.counts import AtLeastOne, CountLikelihood
from directgp.log_expectations.adaptive import POINTS, adaptive_log_expectation
from directgp.log_expectations.product_density import Peak, find_support, peak_of
from directgp.log_expectations.rule import (
    Estimate,
    Moment,
    Rule,
    balanced_weight,
    evaluate,
    parameter_term,
    row_blocks,
    rows_for,
)
from directgp.numerics.gaussian import gauss_hermite, log_density
from directgp.shapes import Points, Row, Values

_ROOM = 1.5
"""Nodes that a recorded step has for each that the steps before it needed."""


@final
class FixedNodes:
    """Learns how many nodes are needed, then gives as many to every example and step.

    It watches whether they are enough.

    Parameters
    ----------
    at_least : int
        Nodes, whatever the steps before the recorded one need.
    """

    def __init__(self, at_least: int = 0) -> None:
        self.number = at_least
        self._short: Tensor | None = None

    @property
    def recording(self) -> bool:
        """Whether the number is final, and no question may be asked about the numbers."""
        return self._short is not None

    def record(self, device: torch.device) -> None:
        """From now on the number is final. What watches it must be there before the recording."""
        self._short = torch.zeros((), dtype=torch.bool, device=device)

    def note(self, needed: float) -> None:
        """So many were needed by some example."""
        self.number = max(self.number, math.ceil(_ROOM * needed))

    def take(self, needed: Row) -> int:
        """The number for all; remembers, on the device, whether one needed more."""
        if self._short is not None:
            self._short.logical_or_((needed > self.number).any())
        return self.number

    def exceeded(self) -> bool:
        """Whether an example needed more, in any step since it was recorded."""
        return self._short is not None and bool(self._short)


fixed_nodes: ContextVar[FixedNodes | None] = ContextVar("fixed_nodes", default=None)
"""What the steps that are being recorded go by; None for steps that are taken as they come."""


NATS = 27.0
"""Nodes reach to where the density has fallen by e^−27, and are as dense as that error asks."""

_FEWEST = 16
_MOST = 4096
"""Bounds of the number of nodes; the upper one serves any wider peak."""

_CPU_GROWTH = 1.15
_DEVICE_GROWTH = 2.0
"""Examples that need up to this times as many nodes as others are summed with them: on a device
the number of passes counts for more than the number of nodes."""


def nats_for(width: Values) -> Values:
    """How far down the nodes of a peak of width τ reach: NATS + 1.5·log(1 + τ⁴).

    The slope in v of a wide peak is a small difference of what is summed for it.
    """
    return NATS + 1.5 * torch.log1p(width**4)


def step_for(width: Values, strip: float, nats: float | Values) -> Values:
    """The step h at which a trapezoid sum over a peak of standard deviation τ errs by e^−nats.

    The error is exp(d²/(2τ²) − 2πd/h) for any d up to the half-width of the strip in which the
    integrand is analytic and tame; the best d is τ√(2·nats), or the most there is.
    """
    d = ((2 * nats) ** 0.5 * width).clamp(max=strip)
    return 2 * math.pi * d / (nats + 0.5 * (d / width) ** 2)


def trapezoid_step(width: Values, strip: float, more_nats: float = 0.0) -> Values:
    """`step_for` as many nats as a peak of this width is given, and some more where asked."""
    return step_for(width, strip, nats_for(width) + more_nats)


def blocks_by_nodes(needed: Row) -> Iterator[tuple[int, Int[Tensor, " r"]]]:
    """Split examples into blocks that need about the same number of nodes: it, and the indices.

    No block is smaller than a tenth of the examples for the sake of a few nodes saved.
    """
    needed = needed.clamp(_FEWEST, _MOST)
    fixed = fixed_nodes.get()
    growth = _CPU_GROWTH if needed.device.type == "cpu" else _DEVICE_GROWTH
    least, most = map(float, needed.aminmax()) if len(needed) else (_FEWEST, _FEWEST)
    if math.isnan(most):
        raise NumericalError(
            "Quadrature met NaN or infinity. Check mean, variance and the likelihood's parameters."
        )
    if fixed is not None:
        fixed.note(most)
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


def learn_nodes(needed: Row) -> None:
    """Remember how many nodes examples needed, where steps are to be recorded."""
    fixed = fixed_nodes.get()
    if fixed is not None:
        fixed.note(float(needed.clamp(_FEWEST, _MOST).max()))


def nodes_for_all(needed: Row) -> int | None:
    """The number of nodes of every example, where that is fixed; None where they are to differ."""
    fixed = fixed_nodes.get()
    return fixed.take(needed.clamp(_FEWEST, _MOST)) if fixed and fixed.recording else None


def trapezoid_nodes(ends: Float[Tensor, "2 n"], peak: Peak, num_nodes: int) -> tuple[Points, Row]:
    """Equal steps over the support: δ and log of the weight, the same for all nodes."""
    left, right = ends
    step = (left + right) / num_nodes
    index = torch.arange(num_nodes, dtype=step.dtype, device=step.device)[:, None] + 0.5
    return torch.addcmul(peak.delta - left, index, step), torch.log(step)


def hermite_nodes(peak: Peak, num_nodes: int) -> tuple[Points, Points]:
    """Gauss–Hermite nodes fitted to the peak: δ and log of the weights."""
    z, log_weight = gauss_hermite(num_nodes, peak.width.dtype, peak.width.device)
    log_scale = 0.5 * math.log(2 * math.pi) + torch.log(peak.width)
    delta = torch.addcmul(peak.delta, z[:, None], peak.width)
    return delta, (log_weight + 0.5 * z * z)[:, None] + log_scale


# p(y given f) = ∫ N(y; f, w(t)) π(t) dt gives E_q[p] = ∫ N(y; μ, v + w(t)) π(t) dt: one smooth
# integral over t whatever the residual and v, where the integral over f may have two far peaks.


_COARSE = 64
"""Points that narrow the range of t before the nodes are laid."""

_MORE_NATS = 5.0
"""The slope in v sums terms of either sign, which cancel more than those of `mixed_slopes`."""

_STRIP = 0.5 * math.pi
"""v + w(t) and the mixing density are tame while |Im t| < π/2."""


def mixture_estimate(
    likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, num_nodes: int | None
) -> Estimate:
    """Value and slopes; with no number given, as many nodes as needed."""
    bounds = likelihood.mixture_bounds((y - mean) ** 2, variance, NATS + _MORE_NATS)
    bounds = _narrow(likelihood, y, mean, variance, bounds)
    if num_nodes is not None:
        return _sum(likelihood, y, mean, variance, _nodes(bounds, num_nodes))
    parts = []
    needed = (bounds[1] - bounds[0]) / trapezoid_step(
        likelihood.mixture_width(), _STRIP, _MORE_NATS
    )
    for number, index in blocks_by_nodes(needed):
        some = likelihood.take(index), y[index], mean[index], variance[index]
        parts.append((index, _sum(*some, _nodes(bounds[:, index], number))))
    return Estimate.gather(parts)


def _nodes(bounds: Float[Tensor, "2 n"], number: int) -> Points:
    """Equal steps from the lower to the upper bound, ends included."""
    share = torch.linspace(0, 1, number, dtype=bounds.dtype, device=bounds.device)
    return torch.lerp(bounds[0], bounds[1], share[:, None])


def _log_component(likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, t: Points) -> Points:
    """log N(y; μ, v + w(t)) + log π(t)."""
    total = variance + likelihood.mixture_variance(t)
    return log_density(y, mean, total) + likelihood.log_mixing(t)


def _narrow(
    likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, bounds: Float[Tensor, "2 n"]
) -> Float[Tensor, "2 n"]:
    """The part of the range where the integrand is within reach of its top."""
    value = _log_component(likelihood, y, mean, variance, _nodes(bounds, _COARSE))
    within = (value > value.amax(0) - NATS - _MORE_NATS).to(torch.int8)
    first, last = within.argmax(0) - 1, _COARSE - within.flip(0).argmax(0)
    step = (bounds[1] - bounds[0]) / (_COARSE - 1)
    return bounds[0] + torch.stack([first, last]).clamp(0, _COARSE - 1) * step


def _sum(likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, t: Points) -> Estimate:
    """log Σ_k h·N(y; μ, v + w(t_k))·π(t_k), and its slopes."""
    log_mass = _log_component(likelihood, y, mean, variance, t)
    log_z = torch.logsumexp(log_mass, 0) + torch.log(t[1] - t[0])
    weights = torch.softmax(log_mass, 0)
    precision = 1 / (variance + likelihood.mixture_variance(t))
    slope = precision * (y - mean)
    mean_slope = (weights * slope).sum(0)
    variance_slope = 0.5 * (weights * (slope**2 - precision)).sum(0)
    term = None
    if likelihood.trainable:
        with torch.enable_grad():
            term = (weights * _log_component(likelihood, y, mean, variance, t)).sum(0)
    return Estimate(log_z, mean_slope, variance_slope, term)


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
        """Refuse what cannot be meant."""
        number = self.num_nodes
        enough = number == "auto" or (isinstance(number, int) and number >= 2)
        require(enough, "num_nodes of Quadrature", "'auto' or at least 2", repr(number))
        kinds = ("trapezoid", "gauss_hermite")
        require(self.nodes in kinds, "nodes of Quadrature", f"one of {kinds}", repr(self.nodes))

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values, moment: Moment
    ) -> Values:
        known = likelihood.log_concave or isinstance(likelihood, ScaleMixture)
        return evaluate(self.estimate, likelihood, y, mean, variance, 1 if known else POINTS)

    def estimate(self, likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
        """Value and slopes for a flat batch in float64, outside of any graph."""
        if isinstance(likelihood, ScaleMixture):
            fixed = None if self.num_nodes == "auto" else self.num_nodes
            return mixture_estimate(likelihood, y, mean, variance, fixed)
        if not likelihood.log_concave:
            if self.num_nodes != "auto" or self.nodes != "trapezoid":
                raise UnsupportedError(
                    f"Quadrature with nodes of your choice needs a likelihood that is log-concave "
                    f"in f. Got {type(likelihood).__name__}. Use Quadrature()."
                )
            return adaptive_log_expectation(likelihood, y, mean, variance)
        if isinstance(likelihood, Binary):
            likely = (2 * y - 1) * mean > 0
            unlikely = torch.where(likely, likelihood.complement(y), y)
            estimate = self._integrate(likelihood, unlikely, mean, variance)
            return estimate.complement().otherwise(likely, estimate)
        if isinstance(likelihood, CountLikelihood):
            return self._integrate_counts(likelihood, y, mean, variance)
        return self._integrate(likelihood, y, mean, variance)

    def _integrate_counts(
        self, likelihood: CountLikelihood, y: Row, mean: Row, variance: Row
    ) -> Estimate:
        """`_integrate`, with nearly certain zeros as the complement of the event y ≥ 1."""
        certain = (y == 0) & (likelihood.conditional_mean(mean) < _CERTAIN_BELOW)
        zeros, others = torch.nonzero(certain).squeeze(-1), torch.nonzero(~certain).squeeze(-1)
        if len(zeros) == 0:
            return self._integrate(likelihood, y, mean, variance)
        some = y[zeros], mean[zeros], variance[zeros]
        at_least_one = self._integrate(AtLeastOne(likelihood.take(zeros)), *some)
        rest = y[others], mean[others], variance[others]
        estimate = self._integrate(likelihood.take(others), *rest)
        return Estimate.gather([(zeros, at_least_one.complement()), (others, estimate)])

    def _integrate(self, likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
        """The integral of q·p for a log-concave p."""
        peak = peak_of(likelihood, y, mean, variance)
        if self.nodes == "gauss_hermite":
            number = _HERMITE_NODES if self.num_nodes == "auto" else self.num_nodes
            return sum_nodes(likelihood, y, mean, variance, peak, *hermite_nodes(peak, number))
        drop = nats_for(peak.width)
        ends = find_support(lambda f: likelihood.derivatives(y, f), mean, variance, peak, drop)
        if self.num_nodes != "auto":
            nodes = trapezoid_nodes(ends, peak, self.num_nodes)
            return sum_nodes(likelihood, y, mean, variance, peak, *nodes)
        parts = []
        needed = ends.sum(0) / trapezoid_step(peak.width, likelihood.strip)
        for number, index in blocks_by_nodes(needed):
            some = likelihood.take(index), y[index], mean[index], variance[index]
            top = peak[index]
            nodes = trapezoid_nodes(ends[:, index], top, number)
            parts.append((index, sum_nodes(*some, top, *nodes)))
        return Estimate.gather(parts)


def sum_nodes(
    likelihood: Likelihood,
    y: Row,
    mean: Row,
    variance: Row,
    peak: Peak,
    delta: Points,
    log_weight: Values,
) -> Estimate:
    """log Σ_k weight_k·q(f_k)·p(y given f_k) over nodes f = μ + δ, and its slopes.

    The slopes average g and ½(g² − w²/v + (1−w)²ℓ″) of `mixed_slopes`, written out for speed.
    """
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
    moment = mass * slope
    mean_slope = moment.sum(0) / total
    square = (moment.mul_(slope).sum(0) + rest * rest * bent) / total
    variance_slope = 0.5 * (square - weight * weight / variance)
    term = parameter_term(likelihood, y, f, mass / total) if likelihood.trainable else None
    return Estimate(log_z + likelihood.log_base(y), mean_slope, variance_slope, term)
