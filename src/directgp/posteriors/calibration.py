"""Variances for a posterior whose loss saw the mean alone."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.posteriors.collapsed import optimal_q
from directgp.posteriors.projection import project_whitened
from directgp.posteriors.sparse import SparsePosterior


class Calibrated(NamedTuple):
    """A posterior with the mean of another, its variances, and the noise that goes with them."""

    posterior: SparsePosterior
    noise: float


def calibrate(
    posterior: SparsePosterior,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    ridge: float,
    weights: Num[Tensor, " n"] | None = None,
) -> Calibrated:
    """Keep the mean of f; choose kernel scale, q(u)'s covariance and noise for it.

    Square loss with weight β on the KL gives the mean of a Gaussian model with kernel c·k and
    noise variance c·β, for every c: ``ridge`` is that ratio ρ of noise to scale. The covariance is
    that model's, and c maximises the leave-one-out log predictive density. With
    h_i = a_iᵀ(ρI + AAᵀ)⁻¹a_i and residuals e_i = y_i − μ_i,

        c = mean of (e_i/(1−h_i))² / (residual_i + ρ/(1−h_i)).
    """
    features = posterior.features(X)
    ridge = max(ridge, 1e-10)
    with torch.no_grad():
        flat = torch.ones_like(features.mean) if weights is None else weights.to(X.dtype)
        q = optimal_q(features.A, y - features.mean, flat, ridge)
        held = project_whitened(features.A, features.residual, posterior.u_mean, q.u_chol)
        leverage = ((held.variance - held.residual) / ridge * flat).clamp(max=1 - 1e-6)
        error = (y - features.mean - held.mean) / (1 - leverage)
        ratio = error.square() / (features.residual + ridge / (1 - leverage))
        scale = max(float((flat * ratio).sum() / flat.sum()), torch.finfo(X.dtype).tiny ** 0.5)
        calibrated = SparsePosterior(posterior.prior.rescaled(scale), posterior.Z, posterior.nugget)
        calibrated.u_mean.copy_(posterior.u_mean / scale**0.5)
        calibrated.u_chol.copy_(q.u_chol)
    return Calibrated(calibrated, scale * ridge)
