"""Integrate densities with one peak, analytic in a strip, by trapezoid sums over q̃, to 1e-9."""

import math
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import cast, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from directgp.integration.contract import (
    NEEDED_NODES,
    Binary,
    Density,
    Estimate,
    FlatExamples,
    IntegrationMethod,
    Integrator,
    NearlyCertain,
    Nodes,
    has,
)
from directgp.integration.evaluate import (
    average_slopes,
    gather,
    linear_slopes,
    without_overflow,
)
from directgp.integration.gaussian_sums import GaussianSums, WidenedStrip
from directgp.integration.nodes import (
    blocks_by_nodes,
    nats_for,
    nodes_for_all,
    recorded_nodes,
    step_for,
)
from directgp.integration.peaks import ROUGH, Peak, Sides, find_support, highest, peak_of, sides_of
from directgp.integration.slopes import balanced_weight
from directgp.integration.unimodal import find_ends, settled_peaks
from directgp.numerics.autograd import Slopes
from directgp.numerics.fixed_sizes import constant, fixed_sizes, recording
from directgp.numerics.gaussian import gauss_hermite
from directgp.shapes import Row, Values

# Nodes δ_k = origin + x_k·scale with weights w_k: Σ_k w_k·scale·g(δ_k) ≈ ∫ g(δ) dδ.


@lru_cache(maxsize=64)
def _midpoints(number: int) -> NDArray[np.float64]:
    """Return the midpoints of equal steps from 0 to 1, and their weights; not to be written to."""
    return np.stack([(np.arange(number) + 0.5) / number, np.full(number, 1 / number)])


def _trapezoid(number: int, row: Row) -> Float[Tensor, "2 k"]:
    """Return x and w for an origin at the left end of the support, and its length as scale."""
    make = partial(torch.as_tensor, _midpoints(number), device=row.device)
    return constant(("midpoints", number), make)


def hermite_nodes(number: int, row: Row) -> Float[Tensor, "2 k"]:
    """Return x and w for an origin at the mode, and the width of the peak as scale."""

    def make() -> Float[Tensor, "2 k"]:
        z, log_weight = gauss_hermite(number, row.dtype, row.device)
        return torch.stack([z, torch.exp(log_weight + 0.5 * z * z).mul_(math.sqrt(2 * math.pi))])

    return constant(("hermite", number), make)


_CERTAIN_BELOW = math.log(0.01)
"""A target is integrated through its complement where log(1 − p) at the mean of q is below."""

_HERMITE_NODES = 32

_DENSE_STRIP = 0.75
"""Half-width in Im t of the strip for nodes that are dense near f = 0; below π/4, where the squares
of a far q grow."""


@final
@dataclass(frozen=True, kw_only=True)
class TrapezoidSums(Integrator):
    """Integrals of a density that has one peak over f and is analytic in a strip.

    log E_q[p(y given f)] is summed over nodes laid on q̃ ∝ q·p, in log space. The trapezoid rule
    between the points where the log density has fallen far below its peak converges exponentially.
    Nodes are held fixed in the gradient, which averages `mixed_slopes` over them. A nearly certain
    target is integrated through its complement, log Z = log(1 − E_q[1 − p]), so that small losses
    and gradients keep their digits. E_q[log p] is summed over nodes laid on q.

    Parameters
    ----------
    strip, smooth, fixed_work
        As in `Integrator`.
    log_concave : bool
        Whether log p(y given f) is concave in f. If not, p still has one peak (`OnePeak`).
    log_strip : float
        Half-width of the strip where log p(y given f) is analytic; by default `strip`.
    growth : float
        c where log p(y given f) falls as −e^{cf} to the right; 0 where it grows as f² at most.
    bends_at_zero : bool
        Whether the nearest singularities of p(y given f) are those of log(1 + e^f), at ±iπ: over a
        wide q the nodes then have to be dense only near f = 0.
    widened : callable
        The strip of nodes that lie far to the right, if it is wider there.
    """

    strip: float = field()
    log_concave: bool = True
    log_strip: float | None = None
    growth: float = 0.0
    bends_at_zero: bool = False
    widened: WidenedStrip | None = None

    @property
    @override
    def summable(self) -> bool:
        return True

    @property
    def gaussian_sums(self) -> GaussianSums:
        """The sums over q of the log density."""
        strip = self.strip if self.log_strip is None else self.log_strip
        return GaussianSums(strip, self.growth, self.widened)

    @override
    def strip_right_of(self, density: Density, lower: Values) -> Values | float:
        return self.strip if self.widened is None else self.widened(density, self.strip, lower)

    @override
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> IntegrationMethod:
        fixed = self.fixed_work and self.log_concave
        return IntegrationMethod(recorded_nodes(), partial(self._estimate, nodes=nodes), fixed)

    @override
    def of_log_density(self, density: Density, nats: float) -> IntegrationMethod:
        fixed = self.fixed_work and self.log_concave
        return IntegrationMethod(
            recorded_nodes(), partial(self.gaussian_sums.estimate, nats=nats), fixed
        )

    def _estimate(self, examples: FlatExamples, nodes: Nodes) -> Estimate:
        """Return log E_q[p] and its slopes, through the complement of a nearly certain target."""
        density, y, mean, _ = examples
        if has(density, Binary):
            likely = (2 * y - 1) * mean > 0
            unlikely = torch.where(likely, cast(Binary, density).complement(y), y)
            estimate = self._integrate(examples._replace(y=unlikely), nodes)
            return estimate.complement().where(likely, estimate)
        if has(density, NearlyCertain):
            doubt = cast(NearlyCertain, density).doubt(y, mean)
            if recording() or bool((doubt[0] < _CERTAIN_BELOW).any()):
                return self._integrate(examples, nodes, doubt)
        return self._integrate(examples, nodes)

    def _integrate(
        self, examples: FlatExamples, nodes: Nodes, doubt: tuple[Row, Row] | None = None
    ) -> Estimate:
        """Integrate q·p; `doubt` is that of the density at the mean."""
        density, y, mean, variance = examples
        certain = None if doubt is None else doubt[0] < _CERTAIN_BELOW
        peaks = None if self.log_concave else settled_peaks(examples)
        peak = peak_of(*examples, ROUGH) if peaks is None else highest(peaks, variance)
        if nodes.kind == "gauss_hermite":
            number = _HERMITE_NODES if nodes.number == "auto" else nodes.number
            rows = _rows(examples, peak, peak.delta, peak.width)
            sums = _sum_nodes(density, rows, hermite_nodes(number, y), certain is not None)
            return _total(examples, rows, sums, certain)
        drop = nats_for(peak.width)
        if peaks is None:
            ends = find_support(lambda f: density.derivatives(y, f), mean, variance, peak, drop)
        else:
            ends = (find_ends(examples, peaks, drop) - peak.delta) * sides_of(mean)
        if doubt is not None and certain is not None:
            _include_doubt(ends, certain, doubt, variance, drop)
        length = ends[0] + ends[1]
        rows = _rows(examples, peak, peak.delta - ends[0], length)
        strip = self.strip_right_of(density, mean + peak.delta - ends[0])
        needed = length / step_for(peak.width, strip, drop)
        sums = self._sums(density, rows, (peak, drop, needed), nodes, certain is not None)
        return _total(examples, rows, sums, certain)

    def _sums(
        self,
        density: Density,
        rows: Float[Tensor, "8 n"],
        layout: tuple[Peak, Row, Row],
        nodes: Nodes,
        certain: bool,
    ) -> Slopes:
        """Return `_sum_nodes`, of examples together that need about the same number of nodes."""
        peak, drop, needed = layout
        y = rows[0]
        dense = None
        if nodes.number == "auto" and fixed_sizes.get() is None and self.bends_at_zero:
            numbers = _dense_needed(rows, peak, drop)
            dense = numbers < needed if bool((numbers < needed).any()) else None
        if dense is None:
            common = nodes_for_all(needed) if nodes.number == "auto" else nodes.number
            if common is not None:
                return _sum_nodes(density, rows, _trapezoid(common, y), certain)
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
            block = rows.index_select(1, index)
            table = _trapezoid(number, y)
            parts.append((index, _sum_nodes(density.take(index), block, table, certain, is_dense)))
        return gather(parts)


def _include_doubt(
    ends: Sides, certain: Bool[Tensor, " n"], doubt: tuple[Row, Row], variance: Row, drop: Row
) -> None:
    """Move the ends of the support, in place, to include the mass of q·(1 − p) where certain.

    This mass lies v times the slope of log(1 − p) away from q, on the side to which 1 − p rises,
    and at most as far as 1 − p rises.
    """
    log_doubt, slope = doubt
    steep = slope.abs()
    aside = torch.minimum(variance * steep, -log_doubt / steep)
    far = torch.sqrt(2 * drop * variance).add_(aside)
    ends[0] = torch.where(certain & (slope < 0), far, ends[0])
    ends[1] = torch.where(certain & (slope > 0), far, ends[1])


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
    density: Density,
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
        f = math.pi * torch.sinh(t)
        share = (math.pi * (right - left) / scale) * torch.cosh(t)
        delta = f - mean
    else:
        delta = torch.addcmul(origin, table[0, :, None], scale)
        f = mean + delta
    square = delta * delta
    kernel, first, second = density.derivatives(y, f)
    # q·p up to a constant: exp(ℓ − δ²/(2v) − h(δ̂)).
    mass = torch.addcmul(kernel, square, spread).sub_(height).exp_()
    if dense:
        mass.mul_(share)
    first, second = without_overflow(mass, first, second)
    sums = [weights @ mass, weights @ (mass * second)]
    parameters: Slopes = ()
    if linear_slopes(density) is not None:
        sums.append(weights @ (mass * kernel))
    elif density.learned():
        parameters = average_slopes(density, y, f, mass * (weights[:, None] / sums[0]))
    if certain:
        doubt = torch.expm1(kernel).mul_(square.mul_(spread).exp_())
        sums.append(weights @ (doubt.mul_(share) if dense else doubt))
    # g = (1−w)·ℓ′ + w·δ/v.
    slope = (rest * first).addcmul_(pull, delta)
    sums += [weights @ mass.mul_(slope), weights @ mass.mul_(slope)]
    return torch.stack(sums), *parameters


def _total(
    examples: FlatExamples,
    rows: Float[Tensor, "8 n"],
    columns: Slopes,
    certain: Bool[Tensor, " n"] | None,
) -> Estimate:
    """Return log Σ_k q·p, or log(1 − E_q[1 − p]) where certain, and its slopes, given the sums."""
    density, y, mean, variance = examples
    total, bent, *more, slope, square = columns[0]
    parameters = columns[1:]
    scale, height, _, pull, rest = rows[3:]
    scale = (2 * math.pi * variance).rsqrt_().mul_(scale)
    value = torch.log(total * scale).add_(height)
    if certain is not None:
        value = torch.where(certain, torch.log1p(more.pop() * scale), value)
    # ∂_μ = E_q̃[g] and ∂_v = ½E_q̃[g² − w²/v + (1−w)²·ℓ″].
    slope = slope / total
    square = torch.addcmul(square, rest * rest, bent).div_(total)
    by_variance = square.addcmul_(pull * pull, variance, value=-1).mul_(0.5)
    linear = linear_slopes(density)
    if linear is not None and density.learned():
        # E_q̃[(f − μ)/v] = E_q̃[ℓ′].
        f = torch.addcmul(mean, variance, slope)
        parameters = linear.slopes_of_averages(y, f, more[0] / total, slope)
    return Estimate(value.add_(density.log_base(y)), slope, by_variance, parameters)
