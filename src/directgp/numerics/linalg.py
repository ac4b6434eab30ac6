"""Factorise matrices by Cholesky with jitter, on a GPU beside other work."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import NumericalError, refuse, require

Vector = Float[Tensor, "*#batch m"]
"""A vector whose leading axes broadcast."""

Matrix = Float[Tensor, "*#batch m n"]
"""A matrix whose leading axes broadcast."""

Square = Float[Tensor, "*#batch m m"]
"""A square matrix whose leading axes broadcast."""

_streams: dict[torch.device, torch.cuda.Stream] = {}
"""The side stream of each GPU."""


@final
class SideStream:
    """Context manager that runs CUDA work on a second stream until `join`; no effect on a CPU.

    Tensors allocated inside may be used after `join` and freed at any time, because the side
    stream waits for the main one on entry. Tensors allocated outside and used inside must be kept
    until `join`.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            if device not in _streams:
                _streams[device] = torch.cuda.Stream(device)
            self._stream = _streams[device]
        self._inside: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> "SideStream":
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            self._inside = torch.cuda.stream(self._stream)
        self._inside.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)

    def join(self) -> None:
        """Make the main stream wait for the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Cholesky(NamedTuple):
    """K + jitter·I = L Lᵀ with a lower triangular L."""

    L: Float[Tensor, "*batch m m"]
    """The lower triangular factor."""

    jitter: Float[Tensor, "*batch"]
    """The number added to the diagonal of each matrix; 0 where none was needed."""


def jittered_cholesky(K: Float[Tensor, "*batch m m"], *, checked: bool = True) -> Cholesky:
    """Factorise K + jitter·I with the smallest jitter of a ladder that succeeds.

    The ladder starts at 0 and continues, relative to the mean diagonal of each matrix, from 1e-10
    to 1e-4 in float64 and from 1e-6 to 1e-3 in float32, by factors of ten. Differentiable through
    the factor; the jitter is a constant.
    Only the lower triangles of K are read. Raises `NumericalError` if a matrix is not positive
    definite with the largest jitter. With `checked=False` the ladder ends at 0, where a matrix that
    needs jitter gives NaN, and the device is not waited for.
    """
    square = K.ndim >= 2 and K.shape[-1] == K.shape[-2]
    require(square, "K", "a square matrix, or a batch of them", f"shape {tuple(K.shape)}")
    factor, info = torch.linalg.cholesky_ex(K)
    # Check the diagonal of the factor: it shows NaN and infinity in K.
    diagonal = factor.detach().diagonal(dim1=-2, dim2=-1)
    if not checked or (not bool(info.any()) and math.isfinite(diagonal.sum())):
        return Cholesky(factor, torch.zeros_like(info, dtype=K.dtype))
    finite = K.detach().isfinite()
    if not bool(finite.all()):
        got = f"{int((~finite).sum())} NaN or infinite entries of {K.numel()}"
        remedy = "Check the inputs and the kernel parameters for NaN, infinity or overflow."
        refuse("K", "finite", got, remedy)
    # Climb from above rounding error to where K is visibly changed.
    powers = range(-10, -3) if K.dtype == torch.float64 else range(-6, -2)
    ladder = [10.0**power for power in powers]
    scale = K.detach().diagonal(dim1=-2, dim2=-1).mean(-1)
    jitter = torch.zeros_like(scale)
    failed = info != 0
    for step in ladder:
        jitter = torch.where(failed, step * scale, jitter)
        shifted = K + torch.diag_embed(jitter.unsqueeze(-1).expand(K.shape[:-1]))
        factor, info = torch.linalg.cholesky_ex(shifted)
        failed = info != 0
        if not bool(failed.any()):
            return Cholesky(factor, jitter)
    where = f" ({int(failed.sum())} of {failed.numel()} matrices)" if failed.ndim else ""
    precision = "" if K.dtype == torch.float64 else ", or compute in float64"
    raise NumericalError(
        "K must be positive definite. Got a matrix that is not, even with "
        f"{ladder[-1]:g} times its mean diagonal added{where}. Remove duplicate inducing points "
        f"and constant columns, or rescale the inputs and the kernel{precision}."
    )
