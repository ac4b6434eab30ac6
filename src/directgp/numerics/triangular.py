"""Products of which a triangle is known to be zero, or to mirror the other one.

They are taken in bands of rows, each as long as its nonzero part: ⅝ of the work with four.
"""

import itertools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_MOST = 4
_ROWS, _MIRRORED_ROWS, _DEVICE_ROWS = 32, 100, 128
"""Fewest rows of a band whose product costs less for being short; more where it is mirrored."""


def lower_times(
    L: Float[Tensor, "*#batch m m"],
    B: Float[Tensor, "*#batch m n"],
    out: Float[Tensor, "*batch m n"],
) -> Float[Tensor, "*batch m n"]:
    """L B for a lower triangular L, zero above its diagonal, written to `out`."""
    for first, last in _bands(L, _ROWS):
        band = L[..., first:last, :last]
        torch.matmul(band, B[..., :last, :], out=out[..., first:last, :])
    return out


def upper_times(
    U: Float[Tensor, "*#batch m m"],
    B: Float[Tensor, "*#batch m n"],
    out: Float[Tensor, "*batch m n"],
) -> Float[Tensor, "*batch m n"]:
    """U B for an upper triangular U, zero below its diagonal, written to `out`."""
    for first, last in _bands(U, _ROWS):
        band = U[..., first:last, first:]
        torch.matmul(band, B[..., first:, :], out=out[..., first:last, :])
    return out


def symmetric_product(
    A: Float[Tensor, "*#batch m n"], B: Float[Tensor, "*#batch m n"]
) -> Float[Tensor, "*batch m m"]:
    """A Bᵀ where that is known to be symmetric."""
    bands = _bands(A, _MIRRORED_ROWS)
    if len(bands) == 1:
        return A @ B.mT
    shape = np.broadcast_shapes(A.shape[:-1], B.shape[:-1])
    product = A.new_empty(*shape, A.shape[-2])
    for first, last in bands:
        band = A[..., first:last, :] @ B[..., :last, :].mT
        product[..., first:last, :last] = band
        product[..., :first, first:last] = band[..., :first].mT
    return product


def congruence(
    C: Float[Tensor, "*#batch m m"], L: Float[Tensor, "*#batch m m"]
) -> Float[Tensor, "*batch m m"]:
    """Lᵀ C L for a symmetric C and a lower triangular L, zero above its diagonal."""
    bands = _bands(L, _MIRRORED_ROWS)
    if len(bands) == 1:
        return L.mT @ C @ L
    product = L.new_empty(np.broadcast_shapes(C.shape, L.shape))
    for first, last in bands:
        rest = L[..., first:, first:]
        band = L[..., first:, first:last].mT @ C[..., first:, first:] @ rest
        product[..., first:last, first:] = band
        product[..., last:, first:last] = band[..., last - first :].mT
    return product


def _bands(triangle: Tensor, rows: int) -> list[tuple[int, int]]:
    m = triangle.shape[-2]
    if triangle.is_cuda:
        number = _MOST if m >= _MOST * _DEVICE_ROWS else 1
    else:
        number = max(1, min(_MOST, m // rows))
    ends = [m * band // number for band in range(number + 1)]
    return list(itertools.pairwise(ends))
