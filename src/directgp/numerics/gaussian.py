"""Gaussian densities and divergences, covariances given by their lower Cholesky factors."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["kl_divergence", "kl_from_standard", "log_density"]


def log_density(
    y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Compute log N(y; mean, variance) = −½ (log 2π + log variance + (y − mean)²/variance).

    Elementwise; the three broadcast.
    """
    return -0.5 * (math.log(2 * math.pi) + torch.log(variance) + (y - mean) ** 2 / variance)


def kl_from_standard(
    u_mean: Float[Tensor, "*batch m"], u_chol: Float[Tensor, "*batch m m"]
) -> Float[Tensor, "*batch"]:
    """Compute KL[N(u_mean, u_chol u_cholᵀ) ‖ N(0, I)], one number per batch element.

    ½ (‖u_chol‖² + ‖u_mean‖² − m) − Σ log |diag u_chol|, for a lower triangular factor.
    """
    squares = u_chol.square().sum((-2, -1)) + u_mean.square().sum(-1)
    log_scale = u_chol.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return 0.5 * (squares - u_mean.shape[-1]) - log_scale


def kl_divergence(
    mean_q: Float[Tensor, "*batch m"],
    chol_q: Float[Tensor, "*batch m m"],
    mean_p: Float[Tensor, "*#batch m"],
    chol_p: Float[Tensor, "*#batch m m"],
) -> Float[Tensor, "*batch"]:
    """Compute KL[q ‖ p] for q = N(mean_q, chol_q chol_qᵀ) and p likewise.

    The divergence does not change when both are whitened by p, u = chol_p⁻¹ (f − mean_p), and then
    it is `kl_from_standard`.
    """
    offset = (mean_q - mean_p).unsqueeze(-1)
    u_mean = torch.linalg.solve_triangular(chol_p, offset, upper=False).squeeze(-1)
    u_chol = torch.linalg.solve_triangular(chol_p, chol_q, upper=False)
    return kl_from_standard(u_mean, u_chol)
