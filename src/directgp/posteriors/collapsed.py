"""Solve for q(u) in closed form: VFE, FITC, square loss, and variances after square loss."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.numerics.linalg import Matrix, jittered_cholesky
from directgp.posteriors.projection import PerRow, Projected, project_whitened
from directgp.posteriors.sparse import Features, SparsePosterior
from directgp.shapes import BatchedRow, Inputs, Row, Values

# Each of the three minimises over q(u), given kernel and inducing inputs,
#
# Σ_i ½ p_i ((y_i − a_iᵀw)² averaged over q(w)) + β·KL,     p_i the precision of example i,
#
# and differs only in p_i and in terms that do not depend on q(u):
#
# VFE          p_i = 1/σ²                  + ½ log 2πσ² + residual_i/(2σ²)
# FITC         p_i = 1/(σ² + residual_i)   + ½ log 2π(σ² + residual_i)
# square loss  p_i = 1                     (only u_mean enters)
#
# The minimum is at q(w) = N(P⁻¹ A p y, β P⁻¹), P = β I + A diag(p) Aᵀ. The derivative of the
# minimum in the hyperparameters is that of the expression with q(u) held there (envelope theorem),
# so the projection's closed-form gradient serves here too. At β = 1 the minimum is minus Titsias'
# bound for VFE and minus the log marginal likelihood −log N(y; mean, Q + diag(residual) + σ²I) for
# FITC.


Correction = Literal["vfe", "fitc"]
"""Where the residual variance counts: in the trace term (VFE) or as noise (FITC)."""


class Whitened(NamedTuple):
    """q(u) = N(L u_mean, L u_chol u_cholᵀ Lᵀ)."""

    u_mean: Float[Tensor, "*batch m"]
    """Whitened mean."""

    u_chol: Float[Tensor, "*batch m m"]
    """Lower triangular factor of the whitened covariance."""


def optimal_q(A: Matrix, target: PerRow, precision: PerRow, beta: float) -> Whitened:
    """Return the optimal q(u): mean P⁻¹ A (p ∘ target), covariance β P⁻¹, P = β I + A diag(p) Aᵀ.

    In float64 whatever the dtype of A. At β = 0 the covariance is 0.
    """
    wide = A.double()
    weighted = wide * precision.double().unsqueeze(-2)
    q = optimal_q_of(
        weighted @ wide.mT, (weighted @ target.double().unsqueeze(-1)).squeeze(-1), beta
    )
    return Whitened(q.u_mean.to(A.dtype), q.u_chol.to(A.dtype))


def optimal_q_of(
    gram: Float[Tensor, "*#batch m m"],
    b: Float[Tensor, "*#batch m"],
    beta: float,
    *,
    checked: bool = True,
) -> Whitened:
    """Return `optimal_q` from A diag(p) Aᵀ and A (p ∘ target) in float64.

    With `checked=False` a P that needs jitter gives NaN, and the device is not waited for.
    """
    lower = inverse_factor(gram, beta, checked=checked)
    u_mean = (lower @ (lower.mT @ b.unsqueeze(-1))).squeeze(-1)
    return Whitened(u_mean, math.sqrt(beta) * lower)


def inverse_factor(
    gram: Float[Tensor, "*batch m m"], beta: float, *, checked: bool = True
) -> Float[Tensor, "*batch m m"]:
    """Return a lower triangular C with C Cᵀ = P⁻¹, P = β I + A diag(p) Aᵀ, in float64.

    P = U Uᵀ with U upper triangular, and C = U⁻ᵀ.
    """
    P = gram.double().clone()
    diagonal = P.diagonal(dim1=-2, dim2=-1).add_(beta)
    # Add I where P is 0 (β = 0 and A = 0): any q(u) is optimal there.
    diagonal.add_((diagonal.amax(-1, keepdim=True) == 0).to(P))
    U = jittered_cholesky(P.flip(-2, -1), checked=checked).L.flip(-2, -1)
    eye = torch.eye(U.shape[-1], dtype=U.dtype, device=U.device)
    lower: Tensor = torch.linalg.solve_triangular(U.mT, eye, upper=False)
    return lower


def example_noise(correction: Correction, noise: Values, residual: BatchedRow) -> BatchedRow:
    """Return the variance of each example around a_iᵀw."""
    return noise + residual if correction == "fitc" else noise.expand(residual.shape)


def collapsed_losses(
    correction: Correction, target: PerRow, projected: Projected, noise: Values
) -> BatchedRow:
    """Return the loss of each example at a given q(u), without β·KL.

    ½ (log 2πλ_i + ((y_i − μ_i)² + v_i)/λ_i), where the residual is part of the noise λ_i in FITC
    and part of the variance v_i in VFE.
    """
    variance = projected.variance
    if correction == "fitc":
        variance = variance - projected.residual
    total = example_noise(correction, noise, projected.residual)
    square = (target - projected.mean) ** 2 + variance
    return 0.5 * (torch.log(2 * math.pi * total) + square / total)


class Calibrated(NamedTuple):
    """A posterior with calibrated variances, and the noise that belongs to it."""

    posterior: SparsePosterior
    """The posterior, with the same mean of f."""

    noise: float
    """Variance of the noise."""


def calibrate(
    posterior: SparsePosterior,
    X: Inputs,
    y: Row,
    ridge: float,
    weights: Num[Tensor, " n"] | None = None,
) -> Calibrated:
    """Choose kernel scale, covariance of q(u) and noise for a given mean of f.

    Square loss with weight β on the KL gives the mean of a Gaussian model with kernel c·k and
    noise variance c·β, for every c: ``ridge`` is the ratio ρ of noise to scale. The covariance is
    the covariance of this model, and c maximises the leave-one-out log predictive density. With
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


# With q₀(w) = N(m₀, S₀S₀ᵀ) and w = m₀ + S₀w′, q(w′) = N(m′, S′S′ᵀ),
#
# KL[q(u) ‖ q₀(u)] = KL[q(w′) ‖ N(0, I)]
# mean_i     = prior mean_i + a_iᵀm₀ + a′_iᵀm′,     A′ = S₀ᵀA
# variance_i = residual_i + ‖S′ᵀa′_i‖²
# m = m₀ + S₀m′,     S = S₀S′
#
# so the formulas for features A and prior N(0, I) hold for features A′ and prior q₀.


def relative_features(before: Whitened, features: Features) -> Features:
    """Return A′ = S₀ᵀA, with the mean of q₀ in place of the prior mean."""
    A, residual, mean = features
    shift = (before.u_mean.unsqueeze(-2) @ A).squeeze(-2)
    return Features(before.u_chol.mT @ A, residual, mean + shift)


def composed(before: Whitened, relative: Whitened) -> Whitened:
    """Return the whitened moments of u, m₀ + S₀m′ and S₀S′."""
    S = before.u_chol
    moved = (S @ relative.u_mean.unsqueeze(-1)).squeeze(-1)
    return Whitened(before.u_mean + moved, S @ relative.u_chol)
