"""From q(u) to the joint distribution of f at several inputs.

With A = L_uu⁻¹ K_uf, w ~ N(m, S Sᵀ), m = u_mean and S = u_chol,

    f given w:  mean prior mean + Aᵀw, covariance R = K_ff − AᵀA
    f:          mean prior mean + Aᵀm, covariance R + AᵀS SᵀA

The diagonals are the variances of `directgp.posteriors.projection`, which has them alone.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.posteriors.projection import residual_variance


@dataclass(frozen=True)
class Joint:
    """Mean and covariance of q(f) at several inputs."""

    mean: Float[Tensor, "*batch n"]
    covariance: Float[Tensor, "*batch n n"]


class Conditional(NamedTuple):
    """f given the whitened inducing variables w."""

    mean: Float[Tensor, "*batch n"]
    """Prior mean, to which Aᵀw is added."""

    A: Float[Tensor, "*batch m n"]
    residual: Float[Tensor, "*batch n n"]
    """R, which no w changes."""


def residual_covariance(
    Kff: Float[Tensor, "*#batch n n"],
    k_diag: Float[Tensor, "*#batch n"],
    A: Float[Tensor, "*#batch m n"],
) -> Float[Tensor, "*batch n n"]:
    """K_ff − AᵀA, on its diagonal no less than the rounding error of k_ii."""
    rest = Kff - A.mT @ A
    variance = residual_variance(k_diag, A).expand(rest.shape[:-1])
    return torch.diagonal_scatter(rest, variance, dim1=-2, dim2=-1)


def joint(
    given: Conditional, u_mean: Float[Tensor, "*#batch m"], u_chol: Float[Tensor, "*#batch m m"]
) -> Joint:
    """q(f) with w integrated out, differentiable in everything."""
    T = u_chol.tril().mT @ given.A
    told = (given.A.mT @ u_mean.unsqueeze(-1)).squeeze(-1)
    return Joint(given.mean + told, given.residual + T.mT @ T)
