"""Factorise and multiply matrices: Cholesky with jitter, triangular products, reused buffers."""

import itertools
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import NumericalError, require

_streams: dict[torch.device, torch.cuda.Stream] = {}


@final
class Aside:
    """What is asked for inside goes on beside what follows, until `join`; on a CPU, before it.

    Arrays made inside may be used after `join`, and freed at any time: every such work waits for
    all that was asked for before it, and so for all that used memory it takes over. Arrays made
    outside and used inside must be kept until `join`.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = _stream_of(device) if device.type == "cuda" else None
        self._inside: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> "Aside":
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            self._inside = torch.cuda.stream(self._stream)
        self._inside.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside.__exit__(kind, error, trace)

    def join(self) -> None:
        """What follows waits for what was done inside."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


@final
class Workspace:
    """Arrays by name and shape: new ones, with pages not yet touched, cost as much as a product.

    What an array was taken for is lost when it is taken again. None is let go: a CUDA graph may
    write to it.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An array with whatever it holds, of the dtype and device of another."""
        key = name, shape, like.dtype, like.device
        if key not in self._kept:
            self._kept[key] = torch.empty(shape, dtype=like.dtype, device=like.device)
        return self._kept[key]

    def identity(self, m: int, like: Tensor) -> Tensor:
        """The identity matrix; not to be written to."""
        key = "identity", m, like.dtype, like.device
        if key not in self._kept:
            self._kept[key] = torch.eye(m, dtype=like.dtype, device=like.device)
        return self._kept[key]


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


# They are taken in bands of rows, each as long as its nonzero part: ⅝ of the work with four.


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
