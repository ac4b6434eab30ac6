"""The distribution function of q̃(f) ∝ q(f)·p(y given f) on a fine grid, by NumPy and SciPy."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln, i0e, log_expit, log_ndtr, logit

from tests.reference.log_expectation import TOBIT_LIMITS

Array = NDArray[np.float64]
LogDensity = Callable[..., Array]
"""log p(y given f) up to a term free of f, called with y, f and parameters by name."""

_GRID = 20_001
_DROP = 45.0
"""Nats below the top at which the grid ends."""


def _poisson_softplus(y: float, f: Array) -> Array:
    rate = np.logaddexp(0, f)
    return y * np.where(f < -30, f, np.log(rate)) - rate


def _student_t(y: float, f: Array, df: float, scale: float) -> Array:
    return -0.5 * (df + 1) * np.log1p(((y - f) / scale) ** 2 / df)


def _negative_binomial(y: float, f: Array, dispersion: float) -> Array:
    return y * f - (y + dispersion) * np.logaddexp(np.log(dispersion), f)


def _beta(y: float, f: Array, precision: float) -> Array:
    a, b = precision * expit(f), precision * expit(-f)
    ends: Array = log_expit(f) + log_expit(-f) - gammaln(1 + a) - gammaln(1 + b)
    found: Array = a * logit(y) + ends
    return found


def _tobit(y: float, f: Array, noise: float) -> Array:
    low, high = TOBIT_LIMITS
    if low < y < high:
        return -0.5 * (y - f) ** 2 / noise
    end: Array = log_ndtr(((low - f) if y <= low else (f - high)) / noise**0.5)
    return end


def _ordinal(y: float, f: Array, first: float, gap_1: float, gap_2: float) -> Array:
    edges = np.cumsum([first, gap_1, gap_2])
    low, high = np.append(-np.inf, edges)[int(y)] - f, np.append(edges, np.inf)[int(y)] - f
    # The smaller tail, where differences keep their digits.
    low, high = np.where(low + high > 0, [-high, -low], [low, high])
    top = log_ndtr(high)
    found: Array = top + np.log1p(-np.exp(log_ndtr(low) - top))
    return found


def _com_poisson(y: float, f: Array, dispersion: float) -> Array:
    assert dispersion == 1 / 1.9  # ν = 2. Σ_k (e^{kf}/k!)² is Bessel's function I₀(2e^f).
    rate = np.exp(np.minimum(f, 300))
    return np.asarray(2 * y * f - np.log(i0e(2 * rate)) - 2 * rate)


def _inflated(y: float, log_p: Array, zero_odds: float) -> Array:
    return np.logaddexp(log_p, np.log(zero_odds)) if y == 0 else log_p


def _zero_inflated_negative_binomial(
    y: float, f: Array, zero_odds: float, dispersion: float
) -> Array:
    scale = dispersion * np.log(dispersion) if y == 0 else 0.0
    return _inflated(y, _negative_binomial(y, f, dispersion) + scale, zero_odds)


LOG_DENSITIES: Mapping[str, LogDensity] = {
    "gaussian": lambda y, f, noise: -0.5 * (y - f) ** 2 / noise,
    "probit": lambda y, f: log_ndtr((2 * y - 1) * f),
    "logistic": lambda y, f: log_expit((2 * y - 1) * f),
    "poisson_exp": lambda y, f: y * f - np.exp(f),
    "poisson_softplus": _poisson_softplus,
    "negative_binomial": _negative_binomial,
    "student_t": _student_t,
    "gaussian_known_noise": lambda y, f, extra: -0.5 * (y - f) ** 2 / (0.2 + extra),
    "gamma": lambda y, f, shape: -shape * (f + y * np.exp(-f)),
    "log_normal": lambda y, f, noise: -0.5 * (np.log(y) - f) ** 2 / noise,
    "weibull": lambda y, f, shape: -shape * f - np.exp(shape * (np.log(y) - f)),
    "weibull_censored": lambda y, f, shape: -np.exp(shape * (np.log(y) - f)),
    "beta": _beta,
    "tobit": _tobit,
    "ordinal": _ordinal,
    "binomial": lambda y, f: y * log_expit(f) + (60 - y) * log_expit(-f),
    "com_poisson": _com_poisson,
    "zero_inflated_poisson": lambda y, f, zero_odds: _inflated(y, y * f - np.exp(f), zero_odds),
    "zero_inflated_negative_binomial": _zero_inflated_negative_binomial,
}


class Distribution(NamedTuple):
    """A distribution of δ = f − μ."""

    grid: Array
    cumulative: Array
    deviation: float

    def cdf(self, delta: Array) -> Array:
        """P(Δ ≤ delta)."""
        return np.interp(delta, self.grid, self.cumulative, left=0.0, right=1.0)


def product_distribution(
    name: str, y: float, mean: float, variance: float, **theta: float
) -> Distribution:
    """Zoom in on the part of the line that matters, then sum by the trapezoid rule."""

    def height(delta: Array) -> Array:
        # Far out, e^f overflows and log p is rightly −∞.
        with np.errstate(over="ignore", divide="ignore"):
            log_p: Array = LOG_DENSITIES[name](y, mean + delta, **theta)
        return log_p - 0.5 * delta**2 / variance

    low, high = _zoom(height, variance**0.5)
    grid = np.linspace(low, high, _GRID)
    density = height(grid)
    density = np.exp(density - density.max())
    cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    weights = density / density.sum()
    centre = float(weights @ grid)
    deviation = float(weights @ (grid - centre) ** 2) ** 0.5
    return Distribution(grid, cumulative / cumulative[-1], deviation)


def _zoom(height: Callable[[Array], Array], deviation: float) -> tuple[float, float]:
    """The interval in which the density is within e^−45 of its top."""
    low, high = -1e5 * deviation, 1e5 * deviation
    for _ in range(6):
        grid = np.linspace(low, high, _GRID)
        values = height(grid)
        inside = np.flatnonzero(values > values.max() - _DROP)
        low = grid[max(inside[0] - 1, 0)]
        high = grid[min(inside[-1] + 1, _GRID - 1)]
    return float(low), float(high)
