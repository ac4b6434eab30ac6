"""Project q(u) onto f from A = L⁻¹ K_uf in blocks of rows, forward and backward, without a tape."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.arrays import (
    Array,
    add_lower_product,
    column_squares,
    diagonal_of,
    lower_product_views,
    one_thread,
    tensor_of,
    times_triangular,
    triangular_times,
    without_warnings,
)
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import Square, Vector
from directgp.shapes import BatchedRow

# With A = L⁻¹ K_uf, m = u_mean and S = u_chol,
#
# mean = Aᵀm,     residual = k − ΣA²,     variance = residual + Σ(SᵀA)²
#
# and, for gradients g_μ, g_v and g_KL of a loss in mean, variance and KL,
#
# (2H; dmᵀ) = (2 A diag g_v; g_μᵀ) Aᵀ
# dS = tril(2H S) + g_KL (S − diag 1/S_jj),     dm = dm + g_KL m


_DEVICE_ENTRIES = 2**26
"""Entries of A in one block on a GPU."""

_ONE_THREAD = 2**20
"""Largest number of entries of A that one thread computes. Several threads save little time there,
and lose much if other programs use the cores: those of torch and of BLAS wait for each other."""


class QGradient(NamedTuple):
    """Gradient of a loss in the whitened q(u)."""

    u_mean: Float[Tensor, "*batch m"]
    """Gradient in u_mean."""

    u_chol: Float[Tensor, "*batch m m"]
    """Gradient in u_chol."""


class Block:
    """Buffers and views of a block of rows."""

    def __init__(self, rows: slice, sums: "Sums", A: Array, results: list[Array]) -> None:
        m, width = A.shape[-2:]
        self.rows = rows
        self.A = A
        self.T = sums.scratch.view(0, m, width)
        self.scaled = sums.scratch.view(2, m + 1, width)
        self.scaled_A = self.scaled[..., :m, :]
        self.scaled_mean = self.scaled[..., m, :]
        self.lower = lower_product_views(sums.both, self.scaled, A)
        self.mean, self.variance, self.residual = (result[..., rows] for result in results)
        self.mean_row = self.mean[..., None, :]


@final
class Scratch:
    """Buffers that blocks share, by number."""

    def __init__(self, new: Callable[..., Array]) -> None:
        self._new = new
        self._buffers: dict[int, Array] = {}

    def view(self, key: int, m: int, width: int) -> Array:
        """Return a view of a buffer, which is made larger if needed."""
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape[-1] * buffer.shape[-2] < m * width:
            buffer = self._new(m, width)
            self._buffers[key] = buffer
        shape = *buffer.shape[:-2], m, width
        return buffer.reshape(-1)[: math.prod(shape)].reshape(shape)


@final
class Sums:
    """Buffers of size M × M for sums over rows, and scratch buffers."""

    def __init__(self, m: int, new: Callable[..., Array]) -> None:
        self.both = new(m + 1, m)
        """(2H; dmᵀ)."""
        self.H = self.both[..., :m, :]
        self.dm = self.both[..., m, :]
        self.HS = new(m, m)
        # The masks need no batch axes.
        self.lower, self.strict = (mask[(0,) * (mask.ndim - 2)] for mask in (new(m, m), new(m, m)))
        for mask, k in ((self.lower, 1), (self.strict, 0)):
            tensor_of(mask).tril_(k - 1)
        self.scratch = Scratch(new)


class Projection:
    """Mean and variance of f at rows of inputs, and the gradient of a loss in q(u) through them.

    Buffers are reused: a result is valid until the next call. The leading axes of the arguments
    broadcast to `batch`. numpy computes small problems of one model on a CPU, by the same formulas
    in a quarter of the time of torch.
    """

    cpu_entries: ClassVar[int] = 2**22
    """Entries of A in one block on a CPU."""

    def __init__(self, size: int, template: Tensor, batch: tuple[int, ...] = ()) -> None:
        small = size <= _ONE_THREAD or torch.get_num_threads() == 1
        self._small = small and not template.is_cuda
        self.xp: Any = np if self._small and not batch else torch
        self.batch = batch
        self._template = template
        self.sums: Sums
        self.used: list[Block] = []

    def threads(self) -> AbstractContextManager[None]:
        """Return a context for the computations: one thread for few entries on a CPU."""
        return one_thread() if self._small else nullcontext()

    def array(self, tensor: Tensor) -> Array:
        """Return an array of the library in use that shares the memory of a tensor."""
        return tensor.detach().numpy() if self.xp is np else tensor.detach()

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Array:
        """Return an array of ones for each model of the batch."""
        dtype = dtype or self._template.dtype
        device = self._template.device
        return self.array(torch.ones(*self.batch, *shape, dtype=dtype, device=device))

    def row_blocks(self, n: int, m: int) -> list[slice]:
        """Return blocks of rows of nearly equal size."""
        entries = _DEVICE_ENTRIES if self._template.is_cuda else self.cpu_entries
        number = min(n, -(-n * m * math.prod(self.batch) // entries))
        ends = [n * k // number for k in range(number + 1)]
        return [slice(*rows) for rows in pairwise(ends)]

    def set_features(
        self, A: Float[Tensor, "*#batch m n"], residual: Float[Tensor, "*#batch n"]
    ) -> None:
        """Use a constant A and residual."""
        m, n = A.shape[-2:]
        self.sums = Sums(m, self.new)
        self.results = [torch.empty(*self.batch, n).to(A) for _ in range(3)]
        self.results[2].copy_(residual)
        arrays = [self.array(result) for result in self.results]
        self.used = []
        for rows in self.row_blocks(n, m):
            part = self.array(A[..., rows].contiguous())
            self.used.append(Block(rows, self.sums, part, arrays))

    def set_q(self, u_mean: Vector, u_chol: Square) -> None:
        """Set the whitened q(u); u_chol must be zero above its diagonal."""
        self.m = self.array(u_mean)
        self.S = self.array(u_chol)
        self.U = self.S.swapaxes(-1, -2)

    @without_warnings
    def kl(self) -> Float[Tensor, "*batch"]:
        """Return KL[q(u) ‖ p(u)]."""
        m = self.m
        S = self.S
        if self.xp is torch:
            return kl_from_standard(m, S)
        squares = np.vdot(S, S) + np.vdot(m, m) - len(m)
        return tensor_of(0.5 * squares - np.log(abs(diagonal_of(S))).sum())

    @without_warnings
    def project(self) -> tuple[BatchedRow, BatchedRow]:
        """Return mean, without the prior mean, and variance at each row."""
        for block in self.used:
            self.project_block(block)
        return self.results[0], self.results[1]

    def project_block(self, block: Block) -> None:
        """Compute mean and variance of one block."""
        self.xp.matmul(self.m[..., None, :], block.A, out=block.mean_row)
        T = triangular_times(self.U, block.A, out=block.T, upper=True)
        self.xp.add(column_squares(T), block.residual, out=block.variance)

    @without_warnings
    def weighted_gram(
        self, weights: BatchedRow, values: BatchedRow
    ) -> tuple[Float[Tensor, "*batch m m"], Float[Tensor, "*batch m"]]:
        """Return A diag(weights) Aᵀ and A values."""
        self.gram(self.array(weights), self.array(values))
        return tensor_of(self.sums.H), tensor_of(self.sums.dm)

    def gram(self, weights: Array, values: Array) -> None:
        """Compute H = A diag(weights) Aᵀ and dm = A values."""
        at = self.sums
        for index, block in enumerate(self.used):
            self.write_scaled(block, weights, values)
            add_lower_product(block.lower, first=index == 0)
        if len(self.used[0].lower) > 1:
            self.xp.multiply(at.H, at.strict, out=at.HS)
            at.H *= at.lower
            at.H += at.HS.swapaxes(-1, -2)

    def use_gram(self, factor: float, weights: Array, values: Array) -> None:
        """Compute dm = A values; H is the H of the last call times a factor."""
        at = self.sums
        at.H *= factor
        at.dm[...] = 0
        for block in self.used:
            self.write_scaled(block, weights, values)
            at.dm += self.xp.matmul(block.A, block.scaled_mean[..., None])[..., 0]

    def write_scaled(self, block: Block, weights: Array, values: Array) -> None:
        """Write (A diag(weights); valuesᵀ)."""
        self.xp.multiply(block.A, weights[..., None, block.rows], out=block.scaled_A)
        block.scaled_mean[...] = values[..., block.rows]

    @without_warnings
    def gradient_in_q(
        self, mean: BatchedRow, variance: BatchedRow, kl: float | Float[Tensor, "*#batch"]
    ) -> QGradient:
        """Return the gradient of a loss in q(u) from the gradients in mean, variance and KL."""
        self.gram(2 * self.array(variance), self.array(mean))
        return self.q_gradient(kl)

    def q_gradient(self, kl: float | Float[Tensor, "*#batch"]) -> QGradient:
        """Return the gradient in q(u) from the sums of `gram`, which are overwritten.

        With a weight of 0 the KL is left out, even where S_jj = 0 makes it infinite.
        """
        at = self.sums
        S = self.S
        dS = times_triangular(at.H, S, out=at.HS)
        if not (isinstance(kl, float) and kl == 0):
            one: Any = kl if isinstance(kl, float) else kl[..., None]
            two: Any = kl if isinstance(kl, float) else kl[..., None, None]
            dS += two * S
            diagonal = diagonal_of(dS)
            diagonal -= one / diagonal_of(S)
            at.dm += one * self.m
        dS *= at.lower
        return QGradient(tensor_of(at.dm), tensor_of(dS))
