"""q(u) in closed form, where the loss is quadratic in f: VFE with any β, FITC and square loss.

Each of the three minimises over q(u), given kernel and inducing inputs,

    Σ_i ½ p_i ((y_i − a_iᵀw)² averaged over q(w)) + β·KL,     p_i the precision of example i,

and differs only in p_i and in what is added that does not depend on q(u):

    VFE          p_i = 1/σ²                  + ½ log 2πσ² + residual_i/(2σ²)
    FITC         p_i = 1/(σ² + residual_i)   + ½ log 2π(σ² + residual_i)
    square loss  p_i = 1                     (its q(u) is a point: u_mean alone enters)

The minimum is at q(w) = N(P⁻¹ A p y, β P⁻¹), P = β I + A diag(p) Aᵀ. The derivative of the minimum
in the hyperparameters is that of the expression with q(u) held there (envelope theorem), so the
projection's closed-form gradient serves here too. At β = 1 the minimum is minus Titsias' bound for
VFE and minus the log marginal likelihood −log N(y; mean, Q + diag(residual) + σ²I) for FITC.
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.cholesky import jittered_cholesky
from directgp.posteriors.projection import Projected

Correction = Literal["vfe", "fitc"]


class Whitened(NamedTuple):
    """q(u) = N(L u_mean, L u_chol u_cholᵀ Lᵀ)."""

    u_mean: Float[Tensor, "*batch m"]
    u_chol: Float[Tensor, "*batch m m"]


def optimal_q(
    A: Float[Tensor, "*#batch m n"],
    target: Float[Tensor, "*#batch n"],
    precision: Float[Tensor, "*#batch n"],
    beta: float,
) -> Whitened:
    """The minimising q(u): mean P⁻¹ A (p ∘ target), covariance β P⁻¹, P = β I + A diag(p) Aᵀ.

    In float64 whatever the dtype of A. At β = 0 the covariance is 0.
    """
    lower = inverse_factor(A, precision, beta)
    b = A.double() @ (precision * target).double().unsqueeze(-1)
    u_mean = (lower @ (lower.mT @ b)).squeeze(-1)
    return Whitened(u_mean.to(A.dtype), (math.sqrt(beta) * lower).to(A.dtype))


def inverse_factor(
    A: Float[Tensor, "*#batch m n"], precision: Float[Tensor, "*#batch n"], beta: float
) -> Float[Tensor, "*batch m m"]:
    """A lower triangular C with C Cᵀ = P⁻¹, P = β I + A diag(p) Aᵀ, in float64.

    P = U Uᵀ with U upper triangular, and C = U⁻ᵀ.
    """
    wide = A.double()
    P = (wide * precision.double().unsqueeze(-2)) @ wide.mT
    diagonal = P.diagonal(dim1=-2, dim2=-1).add_(beta)
    # Examples that say nothing about u leave P at 0 when β = 0; any q(u) is then as good.
    diagonal.add_((diagonal.amax(-1, keepdim=True) == 0).to(P))
    U = jittered_cholesky(P.flip(-2, -1)).factor.flip(-2, -1)
    eye = torch.eye(U.shape[-1], dtype=U.dtype, device=U.device)
    lower: Tensor = torch.linalg.solve_triangular(U.mT, eye, upper=False)
    return lower


def example_noise(
    correction: Correction, noise: Float[Tensor, "..."], residual: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n"]:
    """The variance that each example's Gaussian has around a_iᵀw."""
    return noise + residual if correction == "fitc" else noise.expand(residual.shape)


def collapsed_losses(
    correction: Correction,
    target: Float[Tensor, "*#batch n"],
    projected: Projected,
    noise: Float[Tensor, "..."],
) -> Float[Tensor, "*batch n"]:
    """Loss of each example at a given q(u): what is summed before β·KL is added.

    ½ (log 2πλ_i + ((y_i − μ_i)² + v_i)/λ_i), where the residual is part of the noise λ_i in FITC
    and part of the variance v_i in VFE.
    """
    variance = projected.variance
    if correction == "fitc":
        variance = variance - projected.residual
    total = example_noise(correction, noise, projected.residual)
    square = (target - projected.mean) ** 2 + variance
    return 0.5 * (torch.log(2 * math.pi * total) + square / total)
