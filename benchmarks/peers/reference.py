"""Reference loss in NumPy, with the known changes of each library."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from benchmarks.peers.cases import NUM_SAMPLES, Arrays, Case

Array = Any

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
_LOG_WEIGHTS = np.log(_WEIGHTS / np.sqrt(2 * np.pi) + 1e-300)


@dataclass(frozen=True)
class Departures:
    """Changes of a library to the loss, except the nugget of K_uu that all have."""

    variance_jitter: float = 0.0
    """Added to the variance of every f_i."""

    probit_floor: float = 0.0
    """ε of the link (1 − 2ε)Φ(f) + ε."""

    inaccuracy: float = 0.0
    """By how much its functions are known to be off, in nats an example."""


@dataclass(frozen=True)
class Expected:
    """A loss and its standard error."""

    loss: float
    error: float = 0.0


def expected_loss(
    case: Case,
    objective: str,
    arrays: Arrays,
    moments: tuple[Array, Array],
    departures: Departures,
) -> Expected:
    """Return the mean loss of an example plus KL/n, for `moments` from `marginals`."""
    mean, variance = moments
    variance = variance + departures.variance_jitter
    kl = divergence(arrays) / case.n
    y, noise = arrays["y"], float(arrays["noise"])
    if case.likelihood == "gaussian":
        return Expected(_gaussian(objective, y, mean, variance, noise) + kl)
    if case.likelihood == "probit":
        return Expected(_probit(objective, y, mean, variance, departures.probit_floor) + kl)
    if objective == "elbo":
        gibbs = y * mean - np.exp(mean + variance / 2) - gammaln(y + 1)
        return Expected(-float(np.mean(gibbs)) + kl)
    value, error = averaged(lambda random: _poisson_draw(random, y, mean, variance))
    return Expected(value + kl, error)


def marginals(arrays: Arrays, nugget: float) -> tuple[Array, Array]:
    """Return mean and variance of each q(f_i)."""
    Z, X = arrays["Z"] / arrays["lengthscale"], arrays["X"] / arrays["lengthscale"]
    scale = float(arrays["output_scale"])
    L = np.linalg.cholesky(_rbf(Z, Z, scale) + nugget * scale * np.eye(len(Z)))
    A = solve_triangular(L, _rbf(Z, X, scale), lower=True)
    S = np.tril(arrays["u_chol"])
    variance = scale - np.square(A).sum(0) + np.square(S.T @ A).sum(0)
    return A.T @ arrays["u_mean"], variance


def divergence(arrays: Arrays) -> float:
    """Return KL[q(u) ‖ p(u)]."""
    m, S = arrays["u_mean"], np.tril(arrays["u_chol"])
    log_det = 2 * np.log(np.abs(np.diag(S))).sum()
    return 0.5 * float(m @ m + np.square(S).sum() - len(m) - log_det)


def averaged(draw: Callable[[Any], float], number: int = 400) -> tuple[float, float]:
    """Return the mean of the draws and its standard error."""
    random = np.random.default_rng(1)
    values = np.array([draw(random) for _ in range(number)])
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(number))


def _rbf(a: Array, b: Array, scale: float) -> Array:
    squares = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
    return scale * np.exp(-0.5 * np.maximum(squares, 0))


def _gaussian(objective: str, y: Array, mean: Array, variance: Array, noise: float) -> float:
    squares = np.square(y - mean)
    if objective == "elbo":
        per_row = np.log(2 * np.pi * noise) + (squares + variance) / noise
    else:
        total = variance + noise
        per_row = np.log(2 * np.pi * total) + squares / total
    return 0.5 * float(np.mean(per_row))


def _probit(objective: str, y: Array, mean: Array, variance: Array, floor: float) -> float:
    sign = 2 * y - 1
    if objective == "log_loss":
        return -float(np.mean(_log_link(sign * mean / np.sqrt(1 + variance), floor)))
    f = mean + np.sqrt(variance) * _NODES[:, None]
    return -float(np.mean(np.exp(_LOG_WEIGHTS) @ _log_link(sign * f, floor)))


def _log_link(x: Array, floor: float) -> Array:
    return np.log((1 - 2 * floor) * ndtr(x) + floor) if floor > 0 else log_ndtr(x)


def _poisson_draw(random: Any, y: Array, mean: Array, variance: Array) -> float:
    f = mean + np.sqrt(variance) * random.standard_normal((NUM_SAMPLES, len(y)))
    log_p = y * f - np.exp(f) - gammaln(y + 1)
    return -float(np.mean(logsumexp(log_p, axis=0) - np.log(NUM_SAMPLES)))
