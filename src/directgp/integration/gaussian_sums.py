"""Integrate E_q[log p(y|f)] by trapezoid sums over q, for a log density analytic in a strip."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from directgp.integration.contract import (
    Density,
    Derivatives,
    Estimate,
    FlatExamples,
    SymmetricLink,
    has,
)
from directgp.integration.evaluate import average_slopes, gather, linear_slopes, row_blocks
from directgp.integration.nodes import NATS, blocks_by_nodes, nodes_for_all, trapezoid_step
from directgp.numerics.autograd import Slopes
from directgp.numerics.fixed_sizes import constant, fixed_sizes
from directgp.shapes import Points, Row, Values

_MAX_COMMON = 64
"""Largest number of common nodes: if some examples need more, each gets its own nodes."""

_WIDEST = 1e30
"""Standard deviations from which on their powers overflow."""

_WIDE = 0.1
"""Variance from which on the mass of q·e^f lies off that of q."""

_GRAIN = 4
"""The ends are rounded to quarters, so that the nodes stay the same for many training steps."""

Array = NDArray[np.floating]


class CommonNodes(NamedTuple):
    """E_q[g(f)] ≈ Σ_k w_k g(μ + z_k·√v) for every example."""

    z: Float[Tensor, "k 1"]
    weights: Float[Tensor, " k"]

    def points(self, mean: Row, deviation: Row) -> Points:
        """μ + z_k·√v."""
        return torch.addcmul(mean, self.z, deviation)

    def averages(self, at: Derivatives) -> list[Row]:
        """E_q[ℓ], E_q[ℓ′] and E_q[ℓ″]."""
        return [self.weights @ column for column in at]


def common_nodes(mean: Row, deviation: Row, strip: float, nats: float) -> CommonNodes | None:
    """Return equal steps over q that err by e^−nats for every example, or None if too many.

    They reach far enough for q alone, and for q·|ℓ| where ℓ is nearly 0 at the mean and its mass
    lies towards f = 0, at most |μ| away. The widest q needs the smallest step in its own measure.
    """
    towards_zero = torch.minimum(deviation, deviation.reciprocal()).mul_(mean)
    extremes = torch.stack([deviation.amax(), *towards_zero.aminmax()])
    widest, lowest, highest = extremes.tolist()
    if not 0 < widest < _WIDEST:
        return None
    step = _step(widest, strip, nats)
    reach = math.sqrt(2 * nats)
    # In this order NaN stays NaN, and compares as false.
    left = reach + max(highest, 0.0)
    right = reach + max(-lowest, 0.0)
    if not left + right <= (_MAX_COMMON - 1) * step:
        return None
    left, right = (math.ceil(_GRAIN * side) / _GRAIN for side in (left, right))
    # `_rule` is cached: its arrays must not be written to.
    z, weights = _rule(math.ceil((left + right) / step), left, right)
    return CommonNodes(torch.from_numpy(z).to(mean), torch.from_numpy(weights).to(mean))


def _step(widest: float, strip: float, nats: float) -> float:
    """Return the step of `step_for` over the widest q, in its standard deviations."""
    more = nats + 1.5 * math.log1p(widest**4)
    d = min(math.sqrt(2 * more), strip / widest)
    return 2 * math.pi * d / (more + 0.5 * d * d)


@lru_cache(maxsize=64)
def _rule(number: int, left: float, right: float) -> tuple[Array, Array]:
    """Return the midpoints of equal steps from −left to right, and their weights under N(0, 1)."""
    z: Array = (np.arange(number) + 0.5) * ((left + right) / number) - left
    weights: Array = np.exp(-0.5 * z * z)
    weights /= weights.sum()
    return z[:, None], weights


WidenedStrip = Callable[[Any, float, Values], Values]
"""A density, its strip and a lower bound of Re f → the half-width of the strip from there on."""


@final
@dataclass(frozen=True)
class GaussianSums:
    """Sums over q of the log of a density.

    Parameters
    ----------
    strip : float
        Half-width in Im f of the strip about the real line where log p(y given f) is analytic.
    growth : float
        c where log p(y given f) falls as −e^{cf} to the right: the mass of q·abs(log p) then lies c
        variances to the right of that of q.
    widened : callable
        The strip of nodes that lie far to the right, if it is wider there.
    """

    strip: float
    growth: float = 0.0
    widened: WidenedStrip | None = None

    def estimate(self, examples: FlatExamples, nats: float) -> Estimate:
        """Apply the trapezoid rule over q, with an error of e^−nats."""
        # A recorded step has the nodes that the steps before it needed.
        separate = not len(examples.y) or fixed_sizes.get() is not None
        # The common nodes reach far enough for a log p that grows as f² at most.
        separate = separate or (self.growth > 0 and bool((examples.variance > _WIDE).any()))
        estimate = None if separate else self._over_common_nodes(examples, nats)
        return self.over_separate_nodes(examples, nats) if estimate is None else estimate

    def over_separate_nodes(self, examples: FlatExamples, nats: float) -> Estimate:
        """Integrate by the trapezoid rule over each q, with an error of e^−nats."""
        reach, needed = self.nodes_needed(examples, nats)
        common = nodes_for_all(needed)
        if common is not None:
            return _sum(examples, reach, common)
        parts = [
            (index, _sum(examples.take(index), reach[index], number).columns)
            for number, index in blocks_by_nodes(needed)
        ]
        return Estimate.of(gather(parts))

    def nodes_needed(self, examples: FlatExamples, nats: float) -> tuple[Row, Row]:
        """Return the largest distance of nodes from the mean of each example, and their number.

        Far enough for q alone, and for q·|ℓ| when ℓ is nearly 0 at the mean and its mass lies
        towards f = 0, at most |μ| away.
        """
        density, _, mean, variance = examples
        deviation = torch.sqrt(variance)
        reach = math.sqrt(2 * nats) * deviation + mean.abs() * variance.clamp(max=1.0)
        if self.growth:
            reach = reach + self.growth * variance
        strip: float | Values = self.strip
        if self.widened is not None:
            strip = self.widened(density, self.strip, mean - reach)
        return reach, 2 * reach / trapezoid_step(deviation, strip, nats - NATS)

    def _over_common_nodes(self, examples: FlatExamples, nats: float) -> Estimate | None:
        """Integrate with nodes that all examples have in common; None if they would be too many.

        For a symmetric link the integral is over (2y−1)f: there every target is 1 and ℓ rises to 0.
        """
        density, y, mean, variance = examples
        deviation = torch.sqrt(variance)
        link: SymmetricLink | None = None
        centres = mean
        if has(density, SymmetricLink):
            candidate: Any = density
            link = None if candidate.state_dict() else candidate
        if link is not None:
            mean = (2 * y - 1) * mean
            centres = mean.clamp(min=0.0)
        nodes = common_nodes(centres, deviation, self.strip, nats)
        if nodes is None:
            return None
        parts = []
        for rows, index in row_blocks(len(y), len(nodes.z), y.device):
            f = nodes.points(mean[rows], deviation[rows])
            if link is not None:
                value, slope, bend = nodes.averages(link.link_derivatives(f))
                parts.append(Estimate(value, slope, 0.5 * bend))
                continue
            block = density.take(index)
            target = y[rows]
            averages = nodes.averages(block.derivatives(target, f))
            weights = nodes.weights[:, None].expand(f.shape)
            parts.append(_estimate(block, target, mean[rows], averages, f, weights))
        estimate = Estimate.join(parts)
        if link is None:
            return estimate
        return replace(estimate, mean_slope=estimate.mean_slope * (2 * y - 1))


def _sum(examples: FlatExamples, reach: Row, number: int) -> Estimate:
    """Compute Σ_k q(f_k)·ℓ(f_k), with slopes E_q[ℓ′] in the mean and ½E_q[ℓ″] in the variance."""
    density, y, mean, variance = examples
    place, power = constant(("places", number), partial(_places, number, mean))[..., None]
    weights = (power * (reach * reach / (2 * variance))).exp_()
    weights /= weights.sum(0)
    f = torch.addcmul(mean, place, reach)
    averages = [(weights * column).sum(0) for column in density.derivatives(y, f)]
    return _estimate(density, y, mean, averages, f, weights)


def _places(number: int, row: Row) -> Float[Tensor, "2 k"]:
    """Return equal steps x from −1 to 1, and x₀² − x² for the x₀ next to 0: its weight is 1."""
    place = torch.arange(1 - number, number, 2, dtype=row.dtype, device=row.device) / number
    return torch.stack([place, ((number + 1) % 2 / number) ** 2 - place * place])


def _estimate(
    density: Density, y: Row, mean: Row, averages: list[Row], f: Points, weights: Points
) -> Estimate:
    """Return the estimate with these averages of ℓ, ℓ′ and ℓ″ over points f and their weights."""
    value, first, second = averages
    parameters: Slopes = ()
    if density.learned():
        linear = linear_slopes(density)
        if linear is not None:
            parameters = linear.slopes_of_averages(y, mean, value, first)
        else:
            parameters = average_slopes(density, y, f, weights)
    return Estimate(value + density.log_base(y), first, 0.5 * second, parameters)
