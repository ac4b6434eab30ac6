"""Products of which a triangle is known to be zero, or to mirror the other one.

Large ones are taken in bands of rows, each as long as its nonzero part: ⅝ of the work with four.
"""

import itertools

import torch
from jaxtyping import Float
from torch import Tensor

_BANDS = 4
_SMALLEST_BANDED = 512
"""Rows from where on four products cost less than the whole one."""


def lower_times(
    L: Float[Tensor, "*#batch m m"],
    B: Float[Tensor, "*#batch m n"],
    out: Float[Tensor, "*batch m n"],
) -> Float[Tensor, "*batch m n"]:
    """L B for a lower triangular L, zero above its diagonal, written to `out`."""
    for first, last in _bands(L.shape[-1]):
        band = L[..., first:last, :last]
        torch.matmul(band, B[..., :last, :], out=out[..., first:last, :])
    return out


def upper_times(
    U: Float[Tensor, "*#batch m m"],
    B: Float[Tensor, "*#batch m n"],
    out: Float[Tensor, "*batch m n"],
) -> Float[Tensor, "*batch m n"]:
    """U B for an upper triangular U, zero below its diagonal, written to `out`."""
    for first, last in _bands(U.shape[-1]):
        band = U[..., first:last, first:]
        torch.matmul(band, B[..., first:, :], out=out[..., first:last, :])
    return out


def symmetric_product(
    A: Float[Tensor, "*#batch m n"], B: Float[Tensor, "*#batch m n"]
) -> Float[Tensor, "*batch m m"]:
    """A Bᵀ where that is known to be symmetric."""
    bands = _bands(A.shape[-2])
    if len(bands) == 1:
        return A @ B.mT
    shape = torch.broadcast_shapes(A.shape[:-1], B.shape[:-1])
    product = A.new_empty(*shape, A.shape[-2])
    for first, last in bands:
        band = A[..., first:last, :] @ B[..., :last, :].mT
        product[..., first:last, :last] = band
        product[..., :first, first:last] = band[..., :first].mT
    return product


def _bands(m: int) -> list[tuple[int, int]]:
    if m < _SMALLEST_BANDED:
        return [(0, m)]
    ends = [m * band // _BANDS for band in range(_BANDS + 1)]
    return list(itertools.pairwise(ends))
