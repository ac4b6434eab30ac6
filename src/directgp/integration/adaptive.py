"""Integrate over q for likelihoods settled only by log p(y|f)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.integration.contract import (
    NEEDED_NODES,
    Density,
    Estimate,
    FlatExamples,
    IntegrationMethod,
    Integrator,
    Nodes,
    require_needed_nodes,
)
from directgp.integration.evaluate import average_slopes
from directgp.numerics.autograd import Slopes
from directgp.shapes import Points, Row

Array = NDArray[np.float64]
PanelPoints = Float[Tensor, "k p"]
Owner = Int[Tensor, " p"]

Integrand = Callable[[Owner, PanelPoints], PanelPoints]
"""The example of each panel and points on it → values there."""

_ORDER = 16
"""Degree of the finer rule on a panel."""

_TOLERANCE = 1e-11
"""Relative difference of rules with 9 and 17 points; the error of the finer one is far smaller."""

_ROUNDING = 1e-3
"""Largest error, as a share of the integral, that is accepted as rounding of log p itself."""

_SHARE = 0.15
"""An error is rounding if a halving leaves more than this share of it …"""

_GENERATIONS = 3
"""… in this many halvings in a row."""

_HALVINGS = 60
"""Largest number of halvings."""

_MAX_PANELS = 256
"""Largest average number of panels of an example: more are a sign of noise."""


class Panels(NamedTuple):
    """Intervals [left, right], each on the line of one example."""

    owner: Owner
    left: Float[Tensor, " p"]
    right: Float[Tensor, " p"]

    def select(self, mask: Tensor) -> "Panels":
        """Return the panels where the mask holds."""
        return Panels(*(column[mask] for column in self))

    def halves(self) -> "Panels":
        """Return both halves of every panel."""
        middle = 0.5 * (self.left + self.right)
        return Panels(
            torch.cat([self.owner, self.owner]),
            torch.cat([self.left, middle]),
            torch.cat([middle, self.right]),
        )

    def points(self, x: Array, weights: Array) -> tuple[PanelPoints, PanelPoints]:
        """Return the points and weights of a rule for [−1, 1] on each panel."""
        half = 0.5 * (self.right - self.left)
        column = torch.from_numpy(np.stack([x, weights])).to(half)[..., None]
        return torch.addcmul(self.left + half, column[0], half), column[1] * half


def refined(integrand: Integrand, panels: Panels, num_examples: int) -> Panels:
    """Halve panels until the integrand is integrated accurately on each.

    Where both halves err as much as their panel for several generations, the error is rounding; a
    kink or a jump is in one of the halves only.
    """
    finished: list[Panels] = []
    settled = panels.left.new_zeros(num_examples)
    before = torch.full_like(panels.left, torch.inf)
    rough = torch.zeros_like(panels.owner)
    for _ in range(_HALVINGS):
        z, weights = panels.points(*clenshaw_curtis(_ORDER))
        values = integrand(panels.owner, z)
        coarse = (panels.points(*clenshaw_curtis(_ORDER // 2))[1] * values[::2]).sum(0)
        error = ((weights * values).sum(0) - coarse).abs()
        size = (weights * values.abs()).sum(0)
        if len(panels.owner) > _MAX_PANELS * num_examples or not bool(torch.isfinite(size).all()):
            break
        scale = settled.index_add(0, panels.owner, size)[panels.owner]
        # The order of `Panels.halves` puts the two halves of a panel this far apart.
        sibling = error.roll(len(error) // 2)
        rough = (rough + 1) * (torch.minimum(error, sibling) > _SHARE * before)
        noise = (rough >= _GENERATIONS) & (error <= _ROUNDING * scale)
        good = (error <= _TOLERANCE * scale) | noise
        finished.append(panels.select(good))
        if bool(good.all()):
            return Panels(*(torch.cat(column) for column in zip(*finished, strict=True)))
        settled = settled.index_add(0, panels.owner, size * good)
        panels = panels.select(~good).halves()
        before = error[~good].repeat(2)
        rough = rough[~good].repeat(2)
    raise NumericalError(
        f"Quadrature did not settle for {len(panels.owner.unique())} examples. Check that "
        "log p(y given f) is finite and does not oscillate fast in f."
    )


GAUSS_LEGENDRE: tuple[Array, Array] = np.polynomial.legendre.leggauss(_ORDER)
"""Points inside a panel, so that a kink at an end is on no point."""


@lru_cache(maxsize=4)
def clenshaw_curtis(order: int) -> tuple[Array, Array]:
    """Return cos(πj/order), j = 0 … order, and weights exact for polynomials of that degree.

    The points include both ends, where a spike may be.
    """
    angle = np.pi * np.arange(order + 1) / order
    k = np.arange(0, order + 1, 2)
    moments = np.where(k == order, 1.0, 2.0) / (1.0 - k**2)
    moments[0] = 1.0
    weights = 2 / order * np.cos(np.outer(angle, k)) @ moments
    weights[[0, -1]] /= 2
    return np.cos(angle), weights


Height = Callable[[Points], Points]
Grid = Float[Tensor, " k"]

_GOLDEN = (math.sqrt(5) - 1) / 2
_SHRINKINGS = 40
_DOUBLINGS = 40
_MAX_PEAKS = 12
"""Local maxima of a scan that are refined."""


def scan(height: Height, template: Row, nats: float = -math.inf) -> tuple[Grid, Points]:
    """Return a grid from −8 to 8 in eighths, and the height of every example on it.

    The grid is doubled until both ends are `nats` below the largest height.
    """
    grid = torch.linspace(-8, 8, 129, dtype=template.dtype, device=template.device)
    heights = height(grid[:, None].expand(-1, len(template)))
    if bool(torch.isnan(heights).any()):
        raise NumericalError(
            "log p(y given f) is NaN. Check mean, variance and the likelihood's parameters."
        )
    for _ in range(_DOUBLINGS):
        unfinished = heights[[0, -1]].amax(0) > heights.amax(0) - nats
        if not bool(unfinished.any()):
            return grid, heights
        ends = 2 * grid[[0, -1]]
        # NaN so far out counts as a density of 0.
        more = height(ends[:, None].expand(-1, len(template))).nan_to_num(nan=-torch.inf)
        grid = torch.cat([ends[:1], grid, ends[1:]])
        heights = torch.cat([more[:1], heights, more[1:]])
    raise NumericalError(
        f"No peak of q(f)·p(y given f) was found for {int(unfinished.sum())} examples. Check that "
        "log p(y given f) is finite near the mean of q, and does not outgrow f²."
    )


def peaks(height: Height, grid: Grid, heights: Points) -> Float[Tensor, "t n"]:
    """Return the highest point near each local maximum of the scan, the best one first.

    Examples with fewer maxima than others repeat their best one.
    """
    inner = heights[1:-1]
    top = (inner >= heights[:-2]) & (inner > heights[2:])
    ranked = torch.where(top, inner, -torch.inf).sort(0, descending=True)
    best = heights.argmax(0).clamp(1, len(grid) - 2)
    points = [highest_between(height, grid[best - 1], grid[best + 1])]
    for values, index in list(zip(*ranked, strict=True))[1:_MAX_PEAKS]:
        if bool((values == -torch.inf).all()):
            break
        # The inner points of the grid begin at 1.
        at = torch.where(values > -torch.inf, index + 1, best)
        points.append(highest_between(height, grid[at - 1], grid[at + 1]))
    return torch.stack(points)


def highest_between(height: Height, low: Row, high: Row) -> Row:
    """Find the highest point between two, by golden sections."""
    span = _GOLDEN * (high - low)
    points = torch.stack([high - span, low + span])
    heights = height(points)
    for _ in range(_SHRINKINGS):
        left = heights[0] >= heights[1]
        low = torch.where(left, low, points[0])
        high = torch.where(left, points[1], high)
        span = _GOLDEN * (high - low)
        best = torch.where(left, points[0], points[1])
        fresh = torch.where(left, high - span, low + span)
        points = torch.where(left, torch.stack([fresh, best]), torch.stack([best, fresh]))
        top = heights.amax(0)
        tried = height(fresh[None])[0]
        heights = torch.where(left, torch.stack([tried, top]), torch.stack([top, tried]))
    return torch.where(heights[0] >= heights[1], points[0], points[1])


# Points are in standard deviations of q, z = (f − μ)/√v. Only the first derivative in f is used, so
# that a kink, as in Laplace's density, does no harm.


POINTS = 32
"""Points of an example, for the block size; low, since large blocks are faster."""

_NATS = 45.0
"""Panels where the density is below e^−45 of its peak are dropped."""

_REACH = 9.0
"""Standard deviations on either side over which E_q[log p] is summed."""

_FARTHEST = 32.0
"""The largest number of them, where log p grows as an exponential."""

_LOG_ROOT = 0.5 * math.log(2 * math.pi)
"""log √(2π)."""


@final
class StandardExamples(FlatExamples):
    """Examples as functions of z."""

    @property
    def deviation(self) -> Row:
        """√v."""
        return self.variance.sqrt()

    def log_likelihood(self, z: PanelPoints) -> PanelPoints:
        """Return ℓ at points of every example."""
        return self.likelihood.log_kernel(self.y, self.f(z))

    def log_density(self, z: PanelPoints) -> PanelPoints:
        """Return ℓ − z²/2, the log of q̃ up to a constant."""
        return self.log_likelihood(z) - 0.5 * z * z

    def f(self, z: PanelPoints) -> PanelPoints:
        """Return μ + z·√v."""
        return torch.addcmul(self.mean, self.deviation, z)

    def sum(self, owner: Owner, values: PanelPoints) -> Row:
        """Sum over the points of each example."""
        return torch.zeros_like(self.mean).index_add(0, owner, values.sum(0))

    def average_slopes(self, owner: Owner, z: PanelPoints, weights: PanelPoints) -> Slopes:
        """Return `average_slopes` summed over the panels of each example."""
        owners = self.take(owner)
        slopes = average_slopes(owners.likelihood, owners.y, owners.f(z), weights)
        with torch.enable_grad():
            return tuple(torch.zeros_like(self.mean).index_add(0, owner, slope) for slope in slopes)


@final
@dataclass(frozen=True, kw_only=True)
class Adaptive(Integrator):
    """Integrals of any density, by panels that are halved until they are accurate.

    The search for all peaks and kinks of p(y given f) takes longer than `TrapezoidSums`.
    """

    @override
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> IntegrationMethod:
        needs = "that is log-concave or analytic in f, with a strip"
        require_needed_nodes(density, nodes, needs)
        return IntegrationMethod(POINTS, adaptive_log_expectation)

    @override
    def of_log_density(self, density: Density, nats: float) -> IntegrationMethod:
        return IntegrationMethod(POINTS, adaptive_gibbs)


def adaptive_log_expectation(flat: FlatExamples) -> Estimate:
    """Compute log E_q[p(y given f)] and its slopes."""
    examples = StandardExamples(*flat)
    grid, heights = scan(examples.log_density, flat.mean, _NATS)
    rise = heights + 0.5 * grid[:, None] ** 2
    # A spike of p away from the bulk of q̃ is not its peak, but may hold much of its mass.
    tops = peaks(examples.log_density, grid, heights)
    spikes = peaks(examples.log_likelihood, grid, rise)
    edges = _edges(grid[-1].item(), torch.cat([tops, spikes]))
    heights = examples.log_density(edges)
    top = heights.amax(0)

    def density(owner: Owner, z: PanelPoints) -> PanelPoints:
        return (examples.take(owner).log_density(z) - top[owner]).exp_() * (1 + z * z)

    panels = refined(density, _panels(edges, heights >= top - _NATS), len(flat.y))
    return _log_estimate(examples, top, panels)


def adaptive_gibbs(flat: FlatExamples) -> Estimate:
    """Compute E_q[log p(y given f)] and its slopes, E_q[ℓ′] in μ and ½E_q[ℓ′z]/√v in v."""
    likelihood, y, mean, variance = flat
    examples = StandardExamples(*flat)
    tops = peaks(examples.log_likelihood, *scan(examples.log_likelihood, mean))
    edges = _edges(_FARTHEST, tops)
    heights = examples.log_likelihood(edges).abs().log() - 0.5 * edges * edges
    # Where q underflows, log p may be −∞.
    matters = (heights < torch.inf) | (edges.abs() < _REACH)
    high = matters & (heights >= heights.where(matters, -torch.inf).amax(0) - _NATS)

    def term(owner: Owner, z: PanelPoints) -> PanelPoints:
        return examples.take(owner).log_likelihood(z) * torch.exp(-0.5 * z * z) * (1 + z * z)

    panels = refined(term, _panels(edges, high), len(y))
    owner = panels.owner
    z, widths = panels.points(*GAUSS_LEGENDRE)
    owners = examples.take(owner)
    weights = widths * torch.exp(-0.5 * z * z - _LOG_ROOT)
    value, slope = owners.likelihood.value_and_slope(owners.y, owners.f(z))
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
        examples.average_slopes(owner, z, weights),
    )


def _slope(pathwise: Row, score: Row, size: Row) -> Row:
    """Return the slope by ℓ′; by ℓ, which is less accurate, where ℓ′ misses a jump."""
    return torch.where(_differ(pathwise, score, size), score, pathwise)


def _differ(pathwise: Row, score: Row, size: Row) -> Bool[Tensor, " n"]:
    """Return whether two forms of a slope differ by more than rounding."""
    return (pathwise - score).abs() > 1e-6 * pathwise.abs() + 1e-8 * size


def _edges(reach: float, tops: Float[Tensor, "t p"]) -> PanelPoints:
    """Return 0, ±1, ±2, ±4 … ±reach and the tops, sorted, for each example."""
    side = 2.0 ** torch.arange(int(math.log2(reach)) + 1, dtype=tops.dtype, device=tops.device)
    grid = torch.cat([-side, side.new_zeros(1), side])
    return torch.cat([grid[:, None].expand(-1, tops.shape[1]), tops]).sort(0).values


def _panels(edges: PanelPoints, high: Bool[Tensor, "k n"]) -> Panels:
    """Return the panels between distinct edges of which at least one is high."""
    left = edges[:-1]
    right = edges[1:]
    wanted = (right > left) & (high[:-1] | high[1:])
    owner = torch.arange(edges.shape[1], device=edges.device).expand(left.shape)
    return Panels(owner[wanted], left[wanted], right[wanted])


def _log_estimate(examples: StandardExamples, top: Row, panels: Panels) -> Estimate:
    """Compute the estimate from panels on which the density is smooth.

    The slope in μ is E_q̃[z]/√v and also E_q̃[ℓ′]; that in v is ½(E_q̃[z²] − 1)/v and also
    ½E_q̃[ℓ′z]/√v. The first forms suit a q̃ much narrower than q, the others one that is nearly q;
    they are mixed by the variance of z. A jump of p, which ℓ′ does not see, leaves the first.
    """
    owner = panels.owner
    z, widths = panels.points(*GAUSS_LEGENDRE)
    owners = examples.take(owner)
    deviation = examples.deviation
    value, slope = owners.likelihood.value_and_slope(owners.y, owners.f(z))
    mass = widths * torch.exp(value - 0.5 * z * z - top[owner])
    total = examples.sum(owner, mass)
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise NumericalError(
            "E_q[p(y given f)] is 0 or infinite. Check that log p(y given f) is finite in f."
        )
    weights = mass / total[owner]
    first = examples.sum(owner, weights * z)
    second = examples.sum(owner, weights * z * z)
    pull = examples.sum(owner, weights * slope)
    push = examples.sum(owner, weights * slope * z)
    narrow = (1 - second + first * first).clamp(0.0, 1.0)
    narrow = torch.where(_differ(pull, first / deviation, 1 / deviation), 1.0, narrow)
    mean_slope = narrow * first / deviation + (1 - narrow) * pull
    bend = narrow * (second - 1) / deviation + (1 - narrow) * push
    return Estimate(
        top + torch.log(total) - _LOG_ROOT + examples.likelihood.log_base(examples.y),
        mean_slope,
        0.5 * bend / deviation,
        examples.average_slopes(owner, z, weights),
    )
