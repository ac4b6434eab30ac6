"""Stand for distributions by points of equal weight, and mix them."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.predictive.api import predictive_quantiles
from directgp.shapes import Marginals

Points = Float[Tensor, "s n"]
"""Points of equal weight, for each example."""

_NUMBER = 19
"""Points of a distribution."""

_MOST = 200
"""Largest number of points, for a level of 1 %."""


def spread_quantiles(likelihood: Likelihood, marginals: Marginals, level: float = 0.5) -> Points:
    """Return the quantiles of y at the middles of equal parts of (0, 1), with some beyond a level.

    A level nearer to 0 or 1 than 0.25 % lies beyond the last point.
    """
    number = min(_MOST, max(_NUMBER, math.ceil(2 / min(level, 1 - level))))
    levels = [(s + 0.5) / number for s in range(number)]
    return predictive_quantiles(likelihood, marginals, levels)


def _mixed(
    points: Float[Tensor, "c s n"], weights: Float[Tensor, " c"]
) -> tuple[Float[Tensor, "k n"], Float[Tensor, "k n"]]:
    """Return the points of a mixture in order, and the probability up to each."""
    each = (weights / points.shape[1])[:, None, None].expand_as(points).flatten(0, 1)
    values, order = points.flatten(0, 1).sort(0)
    return values, each.gather(0, order).cumsum(0)


def quantile_of(
    points: Float[Tensor, "c s n"], weights: Float[Tensor, " c"], level: float
) -> Float[Tensor, " n"]:
    """Return a quantile of a mixture: linear between the middles of its steps."""
    values, up_to = _mixed(points, weights)
    middle = up_to - 0.5 * torch.diff(up_to, dim=0, prepend=torch.zeros_like(up_to[:1]))
    after = (middle < level).sum(0, keepdim=True).clamp(1, len(values) - 1)
    low, high = values.gather(0, after - 1)[0], values.gather(0, after)[0]
    start, end = middle.gather(0, after - 1)[0], middle.gather(0, after)[0]
    part = ((level - start) / (end - start)).clamp(0, 1)
    return torch.lerp(low, high, part)


def half_distance(
    points: Float[Tensor, "c s n"], weights: Float[Tensor, " c"]
) -> Float[Tensor, " n"]:
    """Return ½E|Y − Y'| of a mixture, ∫ F(t)(1 − F(t)) dt."""
    values, up_to = _mixed(points, weights)
    f = up_to[:-1]
    return (f * (1 - f) * values.diff(dim=0)).sum(0)
