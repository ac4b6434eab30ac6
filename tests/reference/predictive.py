"""Moments and distribution functions of y for q(f) = N(mean, variance), from the definitions.

Two slow and obvious ways to average over q: Gauss–Legendre sums of mpmath over pieces on which the
function bends little, and a trapezoid sum of numpy with a hundred thousand nodes and more, for the
special functions that are too slow in mpmath. Nothing of the package is used.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
from mpmath import mpf
from numpy.typing import NDArray
from scipy import stats

Function = Callable[[mpf], mpf]
ArrayFunction = Callable[[NDArray[np.float64]], NDArray[np.float64]]

_mp = mpmath.mp.clone()
_mp.dps = 20

_REACH = 12
"""Deviations of q beyond which nothing is left."""

_LONGEST = 2
"""Length in f of the longest piece."""


def average(
    g: Function, mean: float, variance: float, bend: float = 0.0, width: float = 1.0
) -> mpf:
    """E_q[g(f)] for a g that bends on the scale of `width` at `bend` and of 1 elsewhere."""
    mu, deviation = _mp.mpf(mean), _mp.sqrt(_mp.mpf(variance))
    number = int(_mp.ceil(2 * _REACH * max(1, deviation / _LONGEST)))
    ends = {_REACH * (2 * _mp.mpf(i) / number - 1) for i in range(number + 1)}
    offsets = [side * _mp.mpf(width) * 2**i / 2 for side in (-1, 1) for i in range(30)]
    ends |= {(bend + offset - mu) / deviation for offset in [_mp.zero, *offsets]}
    inner = sorted(end for end in ends if abs(end) <= _REACH)
    total = _mp.zero
    for a, b in pairwise(inner):
        middle, half = (a + b) / 2, (b - a) / 2
        for x, weight in _legendre():
            z = middle + half * x
            total += half * weight * _mp.exp(-z * z / 2) * g(mu + deviation * z)
    return total / _mp.sqrt(2 * _mp.pi)


@cache
def _legendre() -> list[tuple[mpf, mpf]]:
    """12 nodes and weights on (−1, 1)."""
    rule = mpmath.calculus.quadrature.GaussLegendre(_mp)
    nodes: list[tuple[mpf, mpf]] = rule.calc_nodes(3, _mp.prec)
    return nodes


def dense_average(g: ArrayFunction, mean: float, variance: float, width: float) -> float:
    """E_q[g(f)] for a g that bends on the scale of `width` or longer, by a fine trapezoid sum."""
    deviation = variance**0.5
    step = min(0.1 * deviation, 0.1 * width)
    z = np.linspace(-10, 10, int(20 * deviation / step) + 1)
    weight = np.exp(-0.5 * z**2)
    return float((weight * g(mean + deviation * z)).sum() / weight.sum())


def exp(f: mpf) -> mpf:
    """Compute e^f."""
    return _mp.exp(f)


def softplus(f: mpf) -> mpf:
    """Compute log(1 + e^f)."""
    return _mp.log1p(_mp.exp(f))


def logistic(f: mpf) -> mpf:
    """Compute 1/(1 + e^−f)."""
    return 1 / (1 + _mp.exp(-f))


def mean_and_variance(
    mean_given: Function, variance_given: Function, mean: float, variance: float
) -> tuple[mpf, mpf]:
    """E[y] and Var[y] = E[y's variance given f] + Var[y's mean given f]."""
    expected = average(mean_given, mean, variance)
    spread = average(lambda f: variance_given(f) + (mean_given(f) - expected) ** 2, mean, variance)
    return expected, spread


def poisson_cdf(k: int, rate: Function, mean: float, variance: float, bend: float) -> mpf:
    """P(Y ≤ k) for Poisson counts of the given rate, which reaches k + 1 at `bend`."""

    def given(f: mpf) -> mpf:
        return _mp.gammainc(k + 1, rate(f), _mp.inf, regularized=True)

    return average(given, mean, variance, bend, (k + 1) ** -0.5)


def negative_binomial_cdf(k: int, dispersion: float, mean: float, variance: float) -> mpf:
    """P(Y ≤ k) for negative binomial counts with mean e^f."""
    r = _mp.mpf(dispersion)

    def given(f: mpf) -> mpf:
        return _mp.betainc(r, k + 1, 0, r / (r + _mp.exp(f)), regularized=True)

    return average(given, mean, variance, float(_mp.log(k + 1)), 0.5)


def dense_poisson_cdf(k: float, mean: float, variance: float) -> float:
    """P(Y ≤ k) for Poisson counts with mean e^f, for any k."""
    width = (k + 1) ** -0.5
    return dense_average(lambda f: stats.poisson.cdf(k, np.exp(f)), mean, variance, width)


def dense_negative_binomial_cdf(k: float, dispersion: float, mean: float, variance: float) -> float:
    """P(Y ≤ k) for negative binomial counts with mean e^f, for any k."""
    width = (1 / (k + 1) + 1 / dispersion) ** 0.5
    return dense_average(
        lambda f: stats.nbinom.cdf(k, dispersion, dispersion / (dispersion + np.exp(f))),
        mean,
        variance,
        min(1.0, width),
    )


def student_t_tail(distance: float, df: float, scale: float, variance: float) -> mpf:
    """P(Y > μ + distance), distance ≥ 0."""
    nu = _mp.mpf(df)

    def given(f: mpf) -> mpf:
        x = (_mp.mpf(distance) - f) / _mp.mpf(scale)
        tail = _mp.betainc(nu / 2, _mp.mpf(1) / 2, 0, nu / (nu + x**2), regularized=True) / 2
        return tail if x > 0 else 1 - tail

    return average(given, 0.0, variance, distance, scale)
