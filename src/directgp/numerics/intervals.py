"""Compute the probability of an interval under a normal distribution, as its log, with slopes.

T ~ N(0, 1) given a < T < b has E[T] and Var[T]; for D = Φ(b) − Φ(a) with both ends moved by −f,
∂ log D/∂f = E[T] and ∂² log D/∂f² = Var[T] − 1. Ends may be infinite.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from directgp.numerics.fixed_sizes import constant
from directgp.numerics.special import inverse_mills, log1mexp, log_ndtr, mills_and_excess
from directgp.shapes import Values

ENDLESS = 1e150
"""Finite end that replaces infinity, whose product with 0 would be NaN."""

_FAR = 100.0
"""Distance between the ends that counts as infinite: the smaller Φ vanishes next to the larger."""

_LARGEST = 1e100
"""Ends beyond this count as infinite."""

_NARROW = 1.0
"""Below this width, and width times distance from 0, quadrature replaces the difference of Φ."""

_NODES = 12
"""Gauss–Legendre nodes, right to the last digit for exp(−mt − t²/2) on a narrow interval."""

_LOG_ROOT = 0.5 * math.log(2 * math.pi)
"""½ log 2π."""


class IntervalSlopes(NamedTuple):
    """log(Φ(b) − Φ(a)), its slopes in a and b, and the moments of T."""

    value: Values
    """log(Φ(b) − Φ(a))."""

    by_lower: Values
    """Slope in a."""

    by_upper: Values
    """Slope in b."""

    mean: Values
    """E[T] = −`by_lower` − `by_upper`."""

    excess: Values
    """Var[T] − 1, from −1 to 0."""

    scale_slope: Values
    """Slope in log s of the log probability of (a/s, b/s) at s = 1: E[T²] − 1."""


def log_ndtr_between(lower: Tensor, upper: Tensor) -> Tensor:
    """Compute log(Φ(upper) − Φ(lower)) for lower < upper; differentiable.

    In the smaller tail it is log Φ(b) + log(1 − Φ(a)/Φ(b)); for a narrow interval of middle m and
    width w it is log φ(m) + log ∫ exp(−mt − t²/2) dt over |t| < w/2.
    """
    a, b, _, narrow = _ends(lower, upper)
    wide_a = torch.where(narrow, -2.0, a)
    wide_b = torch.where(narrow, 0.0, b)
    top = log_ndtr(wide_b)
    wide = top + log1mexp(_log_ratio(wide_a, wide_b))
    near_a = torch.where(narrow, a, -0.5)
    near_b = torch.where(narrow, b, 0.5)
    middle = 0.5 * (near_a + near_b)
    width = near_b - near_a
    mass = _masses(middle, width)[1].sum(0)
    near = torch.log(mass) + torch.log(width) - 0.5 * middle * middle - _LOG_ROOT
    return torch.where(narrow, near, wide)


def interval_slopes(lower: Tensor, upper: Tensor) -> IntervalSlopes:
    """Compute the log probability and its slopes, without a graph.

    With λ and e = x + λ of both ends, ε = Φ(a)/(Φ(b) − Φ(a)) and d = λ(b) − λ(a), the slopes are
    R = λ(b)(1 + ε) and −S = −λ(a)ε, and 1 − Var[T] = R·e(b) − S·e(a) + ε(1 + ε)d², where nothing
    cancels.
    """
    with torch.no_grad():
        a, b, mirrored, narrow = _ends(lower, upper)
        near = _narrow_slopes(a, b, narrow)
        wide = _wide_slopes(a, b, narrow)
        value, left, right, mean, excess, scale = (
            torch.where(narrow, narrow_value, wide_value)
            for narrow_value, wide_value in zip(near, wide, strict=True)
        )
        by_lower = torch.where(mirrored, -right, left)
        by_upper = torch.where(mirrored, -left, right)
        return IntervalSlopes(
            value, by_lower, by_upper, torch.where(mirrored, -mean, mean), excess, scale
        )


def _ends(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return finite ends with a + b ≤ 0, whether mirrored, and whether the interval is narrow."""
    lower, upper = torch.broadcast_tensors(lower, upper)
    endless = upper > _LARGEST
    no_start = lower < -_LARGEST
    start = torch.where(no_start, 0.0, lower)
    high = torch.where(endless, start.detach().abs() + _FAR, upper)
    low = torch.where(no_start, -high.detach().abs() - _FAR, lower)
    mirrored = low + high > 0
    a = torch.where(mirrored, -high, low)
    b = torch.where(mirrored, -low, high)
    width = (b - a).detach()
    distance = (0.5 * (a + b)).detach().abs()
    return a, b, mirrored, width * torch.clamp(distance, min=1.0) < _NARROW


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return log Φ(b) − log Φ(a) > 0, by e^{x²/2}Φ(x) where both ends are in the left tail."""
    deep = b < -1
    at_a = torch.where(deep, a, -2.0)
    at_b = torch.where(deep, b, -1.0)
    # log(e^{x²/2}Φ(x)) = −log λ(x) − ½log 2π.
    fall = 0.5 * (at_b - at_a) * -(at_a + at_b)
    tail = fall + torch.log(inverse_mills(at_a)) - torch.log(inverse_mills(at_b))
    plain_a = torch.where(deep, -2.0, a)
    plain_b = torch.where(deep, -1.0, b)
    return torch.where(deep, tail, log_ndtr(plain_b) - log_ndtr(plain_a))


def _wide_slopes(a: Tensor, b: Tensor, narrow: Tensor) -> tuple[Tensor, ...]:
    a = torch.where(narrow, -2.0, a)
    b = torch.where(narrow, 0.0, b)
    ratio = _log_ratio(a, b)
    share = 1 / torch.expm1(ratio)
    (mills_a, excess_a) = mills_and_excess(a)
    (mills_b, excess_b) = mills_and_excess(b)
    right = mills_b * (1 + share)
    left = mills_a * share
    gap = torch.where(b < 0, a - b + excess_b - excess_a, mills_b - mills_a)
    mean = -(mills_b + share * gap)
    bend = right * excess_b - left * excess_a + share * (1 + share) * gap * gap
    value = log_ndtr(b) + log1mexp(ratio)
    return value, -left, right, mean, -bend, mean * mean - bend


def _narrow_slopes(a: Tensor, b: Tensor, narrow: Tensor) -> tuple[Tensor, ...]:
    a = torch.where(narrow, a, -0.5)
    b = torch.where(narrow, b, 0.5)
    middle = 0.5 * (a + b)
    width = b - a
    t, mass = _masses(middle, width)
    total = mass.sum(0)
    offset = (t * mass).sum(0) / total
    variance = ((t - offset).square() * mass).sum(0) / total
    value = torch.log(total) + torch.log(width) - 0.5 * middle * middle - _LOG_ROOT
    # φ(b)/φ(m) = exp(−mw/2 − w²/8), and with w in place of −w for a.
    scale = torch.exp(-0.125 * width * width) / (width * total)
    tilt = 0.5 * middle * width
    left = scale * torch.exp(tilt)
    right = scale * torch.exp(-tilt)
    mean = middle + offset
    return value, -left, right, mean, variance - 1, mean * mean + variance - 1


def _masses(middle: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes t, and terms whose sum is the mean of exp(−mt − t²/2) over |t| < w/2."""
    nodes = constant(("legendre", middle.dtype), lambda: torch.from_numpy(_legendre()).to(middle))
    x, weights = nodes.reshape(2, -1, *([1] * middle.dim()))
    t = 0.5 * width * x
    return t, weights * torch.exp(-t * (middle + 0.5 * t))


@lru_cache(maxsize=1)
def _legendre() -> NDArray[np.float64]:
    """Return Gauss–Legendre nodes on (−1, 1) and weights that sum to 1; do not write to them."""
    x, weights = np.polynomial.legendre.leggauss(_NODES)
    return np.stack([x, 0.5 * weights])
