"""Losses of one example under q(f) = N(mean, variance), by mpmath from their definitions.

Predictive means and chances are averages over q; medians, quantiles and distribution functions are
those of N(mean, variance + noise). Nothing of the package is used.
"""

from itertools import pairwise

import mpmath
from mpmath import mpf

from tests.reference import log_expectation
from tests.reference.predictive import average

_mp = mpmath.mp.clone()
_mp.dps = 22

_REACH = 10
"""Deviations beyond which a normal distribution function is 0 or 1 in twenty digits."""


def conditional_mean(name: str, f: mpf) -> mpf:
    """E[y given f]."""
    if name == "probit":
        return _mp.ncdf(f)
    if name.startswith("zero_inflated"):
        # The odds of an extra zero are 0.4 in the table of likelihoods.
        return _mp.exp(f) / (1 + _mp.mpf(0.4))
    return f if name == "gaussian" else _mp.exp(f)


def square(name: str, y: float, mean: float, variance: float) -> mpf:
    """Half the squared distance of y from the average of E[y given f]."""
    predicted = average(lambda f: conditional_mean(name, f), mean, variance)
    return (predicted - _mp.mpf(y)) ** 2 / 2


def normal_quantile(level: float, mean: float, variance: float) -> mpf:
    """The t with Φ((t − mean)/√variance) = level, by bisection."""
    low, high = _mp.mpf(-40), _mp.mpf(40)
    while high - low > _mp.mpf(10) ** -20:
        middle = (low + high) / 2
        low, high = (middle, high) if _mp.ncdf(middle) < level else (low, middle)
    return _mp.mpf(mean) + _mp.sqrt(_mp.mpf(variance)) * low


def pinball(level: float, y: float, mean: float, variance: float, noise: float) -> mpf:
    """`level` for each unit of y above the quantile, 1 − `level` for each below."""
    quantile = normal_quantile(level, mean, _mp.mpf(variance) + noise)
    residual = _mp.mpf(y) - quantile
    return residual * level if residual > 0 else -residual * (1 - _mp.mpf(level))


def wrong_label(name: str, y: float, mean: float, variance: float) -> mpf:
    """E_q[p(1−y given f)]."""
    return _mp.exp(log_expectation.log_expectation(name, 1 - y, mean, variance).value)


def crps(y: float, mean: float, variance: float, noise: float) -> mpf:
    """∫ (F(t) − 1{y ≤ t})² dt for F of N(mean, variance + noise), over pieces of two deviations."""
    scale = _mp.sqrt(_mp.mpf(variance) + noise)
    z = (_mp.mpf(y) - mean) / scale
    fine = {_mp.mpf(i) for i in range(-_REACH, _REACH + 1, 2)}
    below = sorted({end for end in fine if end < z} | {z})
    above = sorted({end for end in fine if end > z} | {z})
    total = sum(_mp.quad(lambda t: _mp.ncdf(t) ** 2, [a, b]) for a, b in pairwise(below))
    total += sum(_mp.quad(lambda t: _mp.ncdf(-t) ** 2, [a, b]) for a, b in pairwise(above))
    return scale * total
