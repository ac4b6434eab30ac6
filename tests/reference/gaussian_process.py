"""Gaussian processes, exact and sparse, from the definitions: dense matrices and explicit inverses.

Slow and obvious, in NumPy. Nothing is whitened or factorised, and nothing of the package is used.
Names follow the paper: Q = K_fu K_uu⁻¹ K_uf, and q(u) = N(m, V) in the space of u itself.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating[Any]]


class Gaussian(NamedTuple):
    """A mean, and a variance of each element or a covariance of all."""

    mean: Array
    variance: Array


def rbf(X1: Array, X2: Array, lengthscale: ArrayLike = 1.0, scale: float = 1.0) -> Array:
    """scale · exp(−r²/2)."""
    K: Array = scale * np.exp(-0.5 * _distance(X1, X2, lengthscale) ** 2)
    return K


def matern(
    nu: float, X1: Array, X2: Array, lengthscale: ArrayLike = 1.0, scale: float = 1.0
) -> Array:
    """scale · e^{−a} times 1, 1 + a or 1 + a + a²/3, a = √(2ν) r, for ν = ½, 3/2 and 5/2."""
    a = np.sqrt(2 * nu) * _distance(X1, X2, lengthscale)
    polynomial = {0.5: np.ones_like(a), 1.5: 1 + a, 2.5: 1 + a + a**2 / 3}[nu]
    K: Array = scale * polynomial * np.exp(-a)
    return K


def _distance(X1: Array, X2: Array, lengthscale: ArrayLike) -> Array:
    differences = (X1[:, None, :] - X2[None, :, :]) / np.asarray(lengthscale)
    distance: Array = np.sqrt((differences**2).sum(-1))
    return distance


def log_normal(y: Array, covariance: Array) -> float:
    """log N(y; 0, covariance)."""
    _, log_determinant = np.linalg.slogdet(covariance)
    square = y @ np.linalg.solve(covariance, y)
    return float(-0.5 * (len(y) * np.log(2 * np.pi) + log_determinant + square))


def kl(q_mean: Array, q_covariance: Array, p_covariance: Array) -> float:
    """KL[N(q_mean, q_covariance) ‖ N(0, p_covariance)]."""
    inverse = np.linalg.inv(p_covariance)
    trace = np.trace(inverse @ q_covariance)
    log_ratio = np.linalg.slogdet(p_covariance)[1] - np.linalg.slogdet(q_covariance)[1]
    return float(0.5 * (trace + q_mean @ inverse @ q_mean - len(q_mean) + log_ratio))


def exact_regression(Kff: Array, Kfs: Array, Kss: Array, y: Array, noise: float) -> Gaussian:
    """Mean and covariance of f at new inputs s, given y = f + noise."""
    weights = np.linalg.solve(Kff + noise * np.eye(len(y)), Kfs).T
    return Gaussian(weights @ y, Kss - weights @ Kfs)


def exact_log_marginal(Kff: Array, y: Array, noise: float) -> float:
    """log p(y) of exact regression."""
    return log_normal(y, Kff + noise * np.eye(len(y)))


def sparse_posterior(Kuu: Array, Kuf: Array, Kff: Array, m: Array, V: Array) -> Gaussian:
    """Mean and covariance of f under q(u) = N(m, V): W m and K_ff − Q + W V Wᵀ, W = K_fu K_uu⁻¹."""
    W = Kuf.T @ np.linalg.inv(Kuu)
    return Gaussian(W @ m, Kff - W @ Kuf + W @ V @ W.T)


def vfe_objective(
    Kuu: Array, Kuf: Array, k_diag: Array, y: Array, noise: float, beta: float
) -> float:
    """min over q(u) of Σ_i E_q[−log N(y_i; f_i, noise)] + β·KL; minus Titsias' bound at β = 1.

    β(−log N(y; 0, Q + βσ²I)) + (n/2)(log 2πσ² − β log 2πβσ²) + tr(K_ff − Q)/(2σ²)
    """
    Q = nystrom(Kuu, Kuf)
    constants = np.log(2 * np.pi * noise) - beta * np.log(2 * np.pi * beta * noise)
    trace = (k_diag - Q.diagonal()).sum() / (2 * noise)
    fit = -log_normal(y, Q + beta * noise * np.eye(len(y)))
    return float(beta * fit + 0.5 * len(y) * constants + trace)


def fitc_objective(Kuu: Array, Kuf: Array, k_diag: Array, y: Array, noise: float) -> float:
    """−log N(y; 0, Q + diag(K_ff − Q) + σ²I)."""
    Q = nystrom(Kuu, Kuf)
    return -log_normal(y, Q + np.diag(k_diag - Q.diagonal() + noise))


def optimal_u(Kuu: Array, Kuf: Array, y: Array, precision: Array, beta: float) -> Gaussian:
    """The q(u) that minimises Σ_i ½ p_i E_q[(y_i − w_iᵀu)²] + β·KL, w_i = K_uu⁻¹ k_ui.

    Its inverse covariance is K_uu⁻¹ + K_uu⁻¹ K_uf diag(p/β) K_fu K_uu⁻¹.
    """
    W = np.linalg.inv(Kuu) @ Kuf
    precision_of_u = np.linalg.inv(Kuu) + W @ np.diag(precision / beta) @ W.T
    V = np.linalg.inv(precision_of_u)
    return Gaussian(V @ W @ (precision / beta * y), V)


def square_loss_m(Kuu: Array, Kuf: Array, y: Array, beta: float) -> Array:
    """The m that minimises ½‖K_fu K_uu⁻¹ m − y‖² + (β/2) mᵀK_uu⁻¹m."""
    return Kuu @ np.linalg.solve(beta * Kuu + Kuf @ Kuf.T, Kuf @ y)


def square_loss_objective(Kuu: Array, Kuf: Array, y: Array, m: Array, beta: float) -> float:
    """½‖K_fu K_uu⁻¹ m − y‖² + (β/2) mᵀK_uu⁻¹m."""
    a = np.linalg.solve(Kuu, m)
    return float(0.5 * ((Kuf.T @ a - y) ** 2).sum() + 0.5 * beta * m @ a)


def nystrom(Kuu: Array, Kuf: Array) -> Array:
    """Q = K_fu K_uu⁻¹ K_uf."""
    return Kuf.T @ np.linalg.solve(Kuu, Kuf)
