"""Compute the data term of the ELBO, E_q[log p(y|f)]."""

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from directgp.likelihoods.base import (
    ClosedFormGibbs,
    Derivatives,
    Likelihood,
    SymmetricLink,
    ZeroInflation,
    has,
)
from directgp.log_expectations.adaptive import POINTS, adaptive_gibbs
from directgp.log_expectations.latents import latent_estimator
from directgp.log_expectations.nodes import (
    NATS,
    blocks_by_nodes,
    nodes_for_all,
    recorded_nodes,
    trapezoid_step,
)
from directgp.log_expectations.rule import (
    Estimate,
    Estimator,
    FlatExamples,
    Rows,
    estimate_rows,
    evaluate,
    gather,
    of_one_shape,
    row_blocks,
)
from directgp.numerics.autograd import Slopes
from directgp.numerics.fixed_sizes import constant, fixed_sizes
from directgp.shapes import Points, Row, Targets, Values

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
        return [self.weights @ each for each in at]


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
    left, right = reach + max(highest, 0.0), reach + max(-lowest, 0.0)
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


def own_nodes_estimate(examples: FlatExamples, nats: float) -> Estimate:
    """Integrate by the trapezoid rule over each q, with an error of e^−nats."""
    reach, needed = nodes_needed(examples, nats)
    common = nodes_for_all(needed)
    if common is not None:
        return _sum(examples, reach, common)
    parts = [
        (index, _sum(examples.take(index), reach[index], number).columns)
        for number, index in blocks_by_nodes(needed)
    ]
    return Estimate.of(gather(parts))


def nodes_needed(examples: FlatExamples, nats: float) -> tuple[Row, Row]:
    """Return the largest distance of nodes from the mean of each example, and their number.

    Far enough for q alone, and for q·|ℓ| when ℓ is nearly 0 at the mean and its mass lies towards
    f = 0, at most |μ| away.
    """
    likelihood, _, mean, variance = examples
    deviation = torch.sqrt(variance)
    reach = math.sqrt(2 * nats) * deviation + mean.abs() * variance.clamp(max=1.0)
    if likelihood.growth:
        reach = reach + likelihood.growth * variance
    strip = likelihood.widened(likelihood.log_strip, mean - reach)
    return reach, 2 * reach / trapezoid_step(deviation, strip, nats - NATS)


def _sum(examples: FlatExamples, reach: Row, number: int) -> Estimate:
    """Compute Σ_k q(f_k)·ℓ(f_k), with slopes E_q[ℓ′] in the mean and ½E_q[ℓ″] in the variance."""
    likelihood, y, mean, variance = examples
    place, power = constant(("places", number), partial(_places, number, mean))[..., None]
    weights = (power * (reach * reach / (2 * variance))).exp_()
    weights /= weights.sum(0)
    f = torch.addcmul(mean, place, reach)
    averages = [(weights * each).sum(0) for each in likelihood.derivatives(y, f)]
    return _estimate(likelihood, y, mean, averages, f, weights)


def _places(number: int, like: Row) -> Float[Tensor, "2 k"]:
    """Return equal steps x from −1 to 1, and x₀² − x² for the x₀ next to 0: its weight is 1."""
    place = torch.arange(1 - number, number, 2, dtype=like.dtype, device=like.device) / number
    return torch.stack([place, ((number + 1) % 2 / number) ** 2 - place * place])


def _estimate(
    likelihood: Likelihood, y: Row, mean: Row, averages: list[Row], f: Points, weights: Points
) -> Estimate:
    """Return the estimate with these averages of ℓ, ℓ′ and ℓ″ over points f and their weights."""
    value, first, second = averages
    parameters: Slopes = ()
    if likelihood.trainable:
        if likelihood.has_linear_slopes():
            parameters = likelihood.slopes_of_averages(y, mean, value, first)
        else:
            parameters = likelihood.average_slopes(y, f, weights)
    return Estimate(value + likelihood.log_base(y), first, 0.5 * second, parameters)


NATS_OF_FLOAT32 = 21.0
"""Values err by some 1e-9, and slopes by less than the precision of float32, 1e-7."""


def gibbs_term(likelihood: Likelihood, y: Targets, mean: Values, variance: Values) -> Values:
    """Compute E_q[log p(y given f)] for q(f) = N(mean, variance), by closed form or quadrature.

    Computed in float64, returned in the dtype of the mean; targets are not checked.
    """
    rows = of_one_shape(y, mean, variance, likelihood.num_latent)
    if has(likelihood, ClosedFormGibbs):
        formula: Any = likelihood
        value: Values = formula.expected_log_prob(*rows)
        return value
    return evaluate(*_estimator(likelihood, mean.dtype), likelihood, rows)


def gibbs_slopes(likelihood: Likelihood, rows: Rows) -> Slopes | None:
    """Return E_q[log p(y given f)] and slopes without a graph, as the likelihood does, or None."""
    if has(likelihood, ClosedFormGibbs):
        return likelihood.expected_log_prob_slopes(*(row.double() for row in rows))
    return estimate_rows(*_estimator(likelihood, rows[1].dtype), likelihood, rows)


def _estimator(likelihood: Likelihood, dtype: torch.dtype) -> tuple[int, Estimator]:
    """Return the number of points for the block size, and the estimator."""
    if likelihood.num_latent > 1:
        return latent_estimator(likelihood, gibbs=True)
    nats = NATS_OF_FLOAT32 if dtype == torch.float32 else NATS
    if isinstance(likelihood, ZeroInflation):
        return recorded_nodes(), partial(_inflated, nats=nats)
    if not likelihood.summable:
        return POINTS, adaptive_gibbs
    return recorded_nodes(), partial(_integrate, nats=nats)


def _inflated(examples: FlatExamples, nats: float) -> Estimate:
    """Integrate over q where y = 0; other counts differ from those of the base by a constant."""
    zero = examples.y == 0
    parts = []
    for mask in (zero, ~zero):
        index = mask.nonzero().squeeze(-1)
        if not len(index):
            continue
        some = examples.take(index)
        if mask is zero:
            parts.append((index, own_nodes_estimate(some, nats).columns))
            continue
        likelihood: Any = some.likelihood
        found = Estimate.of(gibbs_slopes(likelihood.base, some[1:]) or ())
        value, _, by_odds = likelihood.inflate(some.y, found.value)
        own = (by_odds, *found.parameters) if likelihood.trainable else ()
        parts.append((index, (value, *found.columns[1:3], *own)))
    return Estimate.of(gather(parts)) if parts else own_nodes_estimate(examples, nats)


def _integrate(examples: FlatExamples, nats: float) -> Estimate:
    """Apply the trapezoid rule over q, with an error of e^−nats."""
    # A recorded step has the nodes that the steps before it needed.
    own = not len(examples.y) or fixed_sizes.get() is not None
    # The common nodes reach far enough for a log p that grows as f² at most.
    own = own or (examples.likelihood.growth > 0 and bool((examples.variance > _WIDE).any()))
    estimate = None if own else _common_nodes_estimate(examples, nats)
    return own_nodes_estimate(examples, nats) if estimate is None else estimate


def _common_nodes_estimate(examples: FlatExamples, nats: float) -> Estimate | None:
    """Integrate with nodes that all examples have in common; None if they would be too many.

    For a symmetric link the integral is over (2y−1)f: there every target is 1 and ℓ rises to 0.
    """
    likelihood, y, mean, variance = examples
    deviation = torch.sqrt(variance)
    link: SymmetricLink | None = None
    centres = mean
    if isinstance(likelihood, SymmetricLink) and not likelihood.state_dict():
        link, mean = likelihood, (2 * y - 1) * mean
        centres = mean.clamp(min=0.0)
    strip = likelihood.log_strip
    nodes = common_nodes(centres, deviation, strip, nats)
    if nodes is None:
        return None
    parts = []
    for rows, index in row_blocks(len(y), len(nodes.z), y.device):
        f = nodes.points(mean[rows], deviation[rows])
        if link is not None:
            value, slope, bend = nodes.averages(link.link_derivatives(f))
            parts.append(Estimate(value, slope, 0.5 * bend))
            continue
        some, target = likelihood.take(index), y[rows]
        averages = nodes.averages(some.derivatives(target, f))
        weights = nodes.weights[:, None].expand(f.shape)
        parts.append(_estimate(some, target, mean[rows], averages, f, weights))
    estimate = Estimate.join(parts)
    if link is None:
        return estimate
    return replace(estimate, mean_slope=estimate.mean_slope * (2 * y - 1))
