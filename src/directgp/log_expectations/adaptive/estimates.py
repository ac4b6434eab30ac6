"""log E_q[p] and E_q[log p] from the values and slopes of log p(y given f) alone.

Places are measured in standard deviations of q, z = (f − μ)/√v. Only the first derivative in f is
asked for, so that a kink, as in Laplace's density, does no harm.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.adaptive.panels import Owner, Panels, Points, refined
from directgp.log_expectations.adaptive.peaks import Scan, peaks, scan, widened
from directgp.log_expectations.estimate import Estimate, Row, parameter_term

POINTS = 32
"""Values of an example at a time, counted low: large blocks save more than they take."""

_NATS = 45.0
"""Panels are left out where the density is below e^−45 of its peak."""

_REACH = 9.0
_FARTHEST = 32.0
"""Standard deviations to either side that E_q[log p] is summed over, and as far as it may be where
log p grows as an exponential."""

_LOG_ROOT = 0.5 * math.log(2 * math.pi)


@final
@dataclass(frozen=True)
class Examples:
    """Targets of a likelihood and their q, as functions of z."""

    likelihood: Likelihood
    y: Row
    mean: Row
    deviation: Row

    def log_likelihood(self, z: Points) -> Points:
        """ℓ at places of every example."""
        return self.likelihood.log_kernel(self.y, self.f(z))

    def log_density(self, z: Points) -> Points:
        """ℓ − z²/2: the log of q̃ up to a constant."""
        return self.log_likelihood(z) - 0.5 * z * z

    def f(self, z: Points) -> Points:
        """μ + z·√v."""
        return torch.addcmul(self.mean, self.deviation, z)

    def of(self, owner: Owner) -> "Examples":
        """Those that own some panels, one for each panel."""
        some = self.y[owner], self.mean[owner], self.deviation[owner]
        return Examples(self.likelihood.take(owner), *some)

    def sum(self, owner: Owner, values: Points) -> Row:
        """Sums over the places of each example."""
        return torch.zeros_like(self.mean).index_add(0, owner, values.sum(0))

    def parameter_term(self, owner: Owner, z: Points, weights: Points) -> Row | None:
        """The sum of log p(y given f), for its gradient in the likelihood's parameters."""
        some = self.of(owner)
        term = parameter_term(some.likelihood, some.y, some.f(z), weights)
        if term is None:
            return None
        with torch.enable_grad():
            return torch.zeros_like(self.mean).index_add(0, owner, term)


def adaptive_log_expectation(likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
    """log E_q[p(y given f)] and its slopes, for a flat batch in float64 outside of any graph."""
    examples = Examples(likelihood, y, mean, variance.sqrt())
    found = widened(examples.log_density, scan(examples.log_density, mean), _NATS)
    rise = Scan(found.grid, found.heights + 0.5 * found.grid[:, None] ** 2)
    # A spike of p away from the bulk of q̃ is not its peak, but may hold much of its mass.
    tops, spikes = peaks(examples.log_density, found), peaks(examples.log_likelihood, rise)
    edges = _edges(found.grid[-1].item(), torch.cat([tops, spikes]))
    heights = examples.log_density(edges)
    top = heights.amax(0)

    def density(owner: Owner, z: Points) -> Points:
        return (examples.of(owner).log_density(z) - top[owner]).exp_() * (1 + z * z)

    panels = _panels(edges, heights >= top - _NATS)
    panels = refined(density, panels, len(y))
    return _log_estimate(examples, top, panels)


def adaptive_gibbs(likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
    """E_q[log p(y given f)] and its slopes, E_q[ℓ′] in μ and ½E_q[ℓ′z]/√v in v."""
    examples = Examples(likelihood, y, mean, variance.sqrt())
    found = scan(examples.log_likelihood, mean)
    spikes = peaks(examples.log_likelihood, found)
    edges = _edges(_FARTHEST, spikes)
    heights = examples.log_likelihood(edges).abs().log() - 0.5 * edges * edges
    # Where q is nothing, log p may well be −∞ by underflow.
    matters = (heights < torch.inf) | (edges.abs() < _REACH)
    high = matters & (heights >= heights.where(matters, -torch.inf).amax(0) - _NATS)

    def term(owner: Owner, z: Points) -> Points:
        return examples.of(owner).log_likelihood(z) * torch.exp(-0.5 * z * z) * (1 + z * z)

    panels = _panels(edges, high)
    panels = refined(term, panels, len(y))
    owner, (z, widths) = panels.owner, panels.gauss_legendre()
    some, weights = examples.of(owner), widths * torch.exp(-0.5 * z * z - _LOG_ROOT)
    value, slope = some.likelihood.value_and_slope(some.y, some.f(z))
    size = examples.sum(owner, weights * value.abs() * (1 + z * z))
    return Estimate(
        examples.sum(owner, weights * value) + likelihood.log_base(y),
        _slope(
            examples.sum(owner, weights * slope),
            examples.sum(owner, weights * value * z) / examples.deviation,
            size / examples.deviation,
        ),
        _slope(
            0.5 * examples.sum(owner, weights * slope * z) / examples.deviation,
            0.5 * examples.sum(owner, weights * value * (z * z - 1)) / variance,
            size / variance,
        ),
        examples.parameter_term(owner, z, weights),
    )


def _slope(pathwise: Row, score: Row, size: Row) -> Row:
    """The slope by ℓ′, or where that misses a jump by ℓ alone, which cancels about its size."""
    return torch.where(_differ(pathwise, score, size), score, pathwise)


def _differ(pathwise: Row, score: Row, size: Row) -> Bool[Tensor, " n"]:
    """Whether two forms of a slope differ by more than rounding."""
    return (pathwise - score).abs() > 1e-6 * pathwise.abs() + 1e-8 * size


def _edges(reach: float, tops: Float[Tensor, "t p"]) -> Points:
    """0, ±1, ±2, ±4 … ±reach and the tops, in order, for each example."""
    side = 2.0 ** torch.arange(int(math.log2(reach)) + 1, dtype=tops.dtype, device=tops.device)
    grid = torch.cat([-side, side.new_zeros(1), side])
    return torch.cat([grid[:, None].expand(-1, tops.shape[1]), tops]).sort(0).values


def _panels(edges: Points, high: Bool[Tensor, "k n"]) -> Panels:
    """The panels between edges, where either is high and they are not one."""
    left, right = edges[:-1], edges[1:]
    wanted = (right > left) & (high[:-1] | high[1:])
    owner = torch.arange(edges.shape[1], device=edges.device).expand(left.shape)
    return Panels(owner[wanted], left[wanted], right[wanted])


def _log_estimate(examples: Examples, top: Row, panels: Panels) -> Estimate:
    """The estimate from panels on which the density is smooth.

    The slope in μ is E_q̃[z]/√v and also E_q̃[ℓ′]; that in v is ½(E_q̃[z²] − 1)/v and also
    ½E_q̃[ℓ′z]/√v. The first forms suit a q̃ much narrower than q, the others one that is nearly q;
    they are mixed by the variance of z. A jump of p, which ℓ′ does not see, leaves the first.
    """
    owner, (z, widths) = panels.owner, panels.gauss_legendre()
    some, deviation = examples.of(owner), examples.deviation
    value, slope = some.likelihood.value_and_slope(some.y, some.f(z))
    mass = widths * torch.exp(value - 0.5 * z * z - top[owner])
    total = examples.sum(owner, mass)
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise NumericalError(
            "E_q[p(y given f)] is 0 or infinite. Check that log p(y given f) is finite in f."
        )
    weights = mass / total[owner]
    first, second = examples.sum(owner, weights * z), examples.sum(owner, weights * z * z)
    pull, push = examples.sum(owner, weights * slope), examples.sum(owner, weights * slope * z)
    narrow = (1 - second + first * first).clamp(0.0, 1.0)
    narrow = torch.where(_differ(pull, first / deviation, 1 / deviation), 1.0, narrow)
    mean_slope = narrow * first / deviation + (1 - narrow) * pull
    bend = narrow * (second - 1) / deviation + (1 - narrow) * push
    return Estimate(
        top + torch.log(total) - _LOG_ROOT + examples.likelihood.log_base(examples.y),
        mean_slope,
        0.5 * bend / deviation,
        examples.parameter_term(owner, z, weights),
    )
