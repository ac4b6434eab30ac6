"""A Cholesky factor that says how much jitter it needed."""

import math
from dataclasses import dataclass
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import NumericalError, require

__all__ = ["JitteredCholesky", "jittered_cholesky"]


@dataclass(frozen=True)
class JitteredCholesky:
    """The lower factor L of K + jitter·I = L Lᵀ, and the jitter."""

    factor: Float[Tensor, "*batch m m"]
    """L."""

    jitter: Float[Tensor, "*batch"]
    """What was added to the diagonal of each matrix; 0 where nothing was needed."""


def jittered_cholesky(K: Float[Tensor, "*batch m m"], max_tries: int = 8) -> JitteredCholesky:
    """Factorise K + jitter·I with the smallest jitter of a ladder that succeeds.

    The ladder starts at 0 and continues, relative to the mean diagonal of each matrix, from 1e-10
    to 1e-4 in float64 and from 1e-6 to 1e-3 in float32, by factors of ten. Differentiable through
    the factor; the jitter is a constant.

    Parameters
    ----------
    K
        Symmetric matrices, shape ``(*batch, m, m)``; only the lower triangles are read.
    max_tries
        Steps of the ladder to climb, the 0 included.

    Raises
    ------
    NumericalError
        If a matrix is not positive definite even with the largest jitter.
    """
    _check(K, max_tries)
    factor, info = torch.linalg.cholesky_ex(K)
    if _succeeded(factor, info):
        return JitteredCholesky(factor, torch.zeros_like(info, dtype=K.dtype))
    _check_finite(K)
    ladder = _ladder(K.dtype)[:max_tries]
    scale = K.detach().diagonal(dim1=-2, dim2=-1).mean(-1)
    jitter, failed = torch.zeros_like(scale), info != 0
    for step in ladder[1:]:
        jitter = torch.where(failed, step * scale, jitter)
        factor, info = torch.linalg.cholesky_ex(_add_diagonal(K, jitter))
        failed = info != 0
        if not bool(failed.any()):
            return JitteredCholesky(factor, jitter)
    _give_up(failed, ladder[-1], K.dtype)


def _succeeded(factor: Tensor, info: Tensor) -> bool:
    """Whether all were factorised; what is not finite shows on the diagonal of its factor."""
    diagonal = factor.detach().diagonal(dim1=-2, dim2=-1)
    return not bool(info.any()) and math.isfinite(diagonal.sum())


def _check(K: Tensor, max_tries: int) -> None:
    require(max_tries >= 1, "max_tries", "at least 1", max_tries)
    square = K.ndim >= 2 and K.shape[-1] == K.shape[-2]
    require(square, "K", "a square matrix, or a batch of them", f"shape {tuple(K.shape)}")


def _check_finite(K: Tensor) -> None:
    finite = K.detach().isfinite()
    require(
        bool(finite.all()),
        "K",
        "finite",
        f"{int((~finite).sum())} NaN or infinite entries of {K.numel()}",
        "Check the inputs and the kernel parameters for NaN, infinity or overflow.",
    )


def _ladder(dtype: torch.dtype) -> list[float]:
    """Return 0 and powers of ten from above rounding error to where K is visibly changed."""
    lowest, highest = (-10, -4) if dtype == torch.float64 else (-6, -3)
    return [0.0] + [10.0**power for power in range(lowest, highest + 1)]


def _add_diagonal(K: Tensor, jitter: Tensor) -> Tensor:
    return K + torch.diag_embed(jitter.unsqueeze(-1).expand(K.shape[:-1]))


def _give_up(failed: Tensor, largest: float, dtype: torch.dtype) -> NoReturn:
    where = f" ({int(failed.sum())} of {failed.numel()} matrices)" if failed.ndim else ""
    precision = "" if dtype == torch.float64 else ", or compute in float64"
    raise NumericalError(
        "K must be positive definite. Got a matrix that is not, even with "
        f"{largest:g} times its mean diagonal added{where}. Remove duplicate inducing points and "
        f"constant columns, or rescale the inputs and the kernel{precision}."
    )
