"""Integrate ∫ (P(Y ≤ t) − 1{y ≤ t})² dt for a mixture of models.

The distribution function of a mixture bends wherever one of its components does, however far apart
they are. So the integral is a sum over the intervals between quantiles of all components.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from directgp.numerics.roots import TINY
from directgp.shapes import Row

Index = Int[Tensor, " r"]

Tail = Callable[[Index, Tensor, bool], Tensor]
"""Numbers of examples, t of shape (..., r), and whether above → P(Y > t), or else P(Y ≤ t)."""

TAIL = 1e-9
"""Probability beyond the outermost quantiles: it enters the score squared."""

_NEAR_TAIL = 1e-6
"""Probability of the quantiles next to them."""

_SIDE = (TAIL, _NEAR_TAIL, 1e-4, 3e-3, 0.03, 0.15)
LEVELS = (*_SIDE, 0.5, *(1 - level for level in reversed(_SIDE)))
"""Levels of the quantiles between which the score is integrated."""

_PAIRS = 2**21
"""Pairs of Gaussians at a time."""

_NODES = 6
"""Gauss–Legendre nodes of an interval."""


class Gaussians(NamedTuple):
    """A mixture of Gaussians about one centre for each example, of shape (p, n)."""

    weights: Tensor
    """Weights, with that of the model."""

    centre: Row
    """Mean of all."""

    deviations: Tensor
    """Standard deviations."""


def gaussian_score(parts: Sequence[Gaussians], y: Row) -> Row:
    """Compute Σ_k w_k A(y − m_k, s_k) − ½ Σ_jk w_j w_k A(m_j − m_k, √(s_j² + s_k²)).

    A(m, s) = E|N(m, s²)|; the sums are over all Gaussians of all parts.
    """
    score = torch.zeros_like(y)
    for j, one in enumerate(parts):
        score = score + (one.weights * _absolute(y - one.centre, one.deviations)).sum(0)
        for k, other in enumerate(parts[: j + 1]):
            score = score - (0.5 if k == j else 1.0) * _distance(one, other)
    return score


def _distance(one: Gaussians, other: Gaussians) -> Row:
    """Compute Σ w_i w_l E|X_i − Y_l|, some of the pairs at a time."""
    total = torch.zeros_like(one.centre)
    size = max(1, _PAIRS // other.deviations.numel())
    squares = other.deviations.square()
    pairs = zip(one.weights.split(size), one.deviations.split(size), strict=True)
    for weights, deviations in pairs:
        spread = torch.sqrt(deviations.square()[:, None] + squares)
        each = _absolute(one.centre - other.centre, spread)
        total = total + (weights[:, None] * other.weights * each).sum((0, 1))
    return total


def _absolute(mean: Tensor, deviation: Tensor) -> Tensor:
    """Compute E|N(m, s²)| = m·erf(m/(s√2)) + s·√(2/π)·e^{−m²/(2s²)}."""
    z = mean / deviation
    density = math.sqrt(2 / math.pi) * torch.exp(-0.5 * z * z)
    return mean * torch.erf(z * math.sqrt(0.5)) + deviation * density


def integrated_score(tail: Tail, quantiles: Tensor, observed: tuple[Row, Row]) -> Row:
    """Integrate P(Y ≤ t)² below the observed range, and P(Y > t)² above it.

    `quantiles` are those of each component at `LEVELS`, of shape (components, levels, n).
    """
    lower, upper = observed
    every = quantiles.flatten(0, 1)
    ends = torch.cat([every, lower[None], upper[None]]).sort(0).values
    x, weight = (
        torch.as_tensor(rule).to(every)[:, None] for rule in np.polynomial.legendre.leggauss(_NODES)
    )
    score = torch.zeros_like(lower)
    for low, high in pairwise(ends):
        for above, inside in ((False, high <= lower), (True, low >= upper)):
            # Not high > low: the score of a quantile that is NaN is NaN.
            rows = inside.logical_and(~(high <= low)).nonzero()[:, 0]
            if len(rows):
                half = 0.5 * (high - low)[rows]
                squares = tail(rows, low[rows] + (x + 1) * half, above).square()
                score[rows] += (weight * squares).sum(0) * half
    centre = every.median(0).values
    for side, near, level in ((-1.0, 1, 0), (1.0, -2, -1)):
        outer = (side * quantiles[:, level]).amax(0)
        inner = (side * quantiles[:, near]).amax(0)
        score = score + _beyond(tail, side, side * centre, inner, outer)
    return score


def _beyond(tail: Tail, side: float, centre: Row, near: Row, far: Row) -> Row:
    """Integrate the square of a tail beyond `far`, continued as a power d^−a of the distance d.

    ∫ from d on is d·P²/(2a − 1), infinite for a ≤ ½.
    """
    above = side > 0
    every = torch.arange(len(near), device=near.device)
    at_near, at_far = (tail(every, side * t, above) for t in (near, far))
    distance = (far - centre).clamp(min=TINY)
    steps = torch.log(distance / (near - centre).clamp(min=TINY)).clamp(min=TINY)
    power = torch.log(at_near / at_far.clamp(min=TINY)) / steps
    # Quantiles have rounding errors.
    value = torch.where(power > 0.5 + 1e-6, distance * at_far.square() / (2 * power - 1), torch.inf)
    return torch.where(at_far > 0, value, 0.0)
