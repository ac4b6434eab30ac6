"""Compute marginals of q(f) under a prior, and gradients of a loss through them, without a tape."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.kernels.structured import StructuredGradient, StructuredNatural
from directgp.numerics.arrays import (
    Array,
    column_squares,
    congruence,
    diagonal_of,
    factorise,
    solve_lower,
    tensor_of,
    triangular_times,
    without_warnings,
)
from directgp.numerics.linalg import SideStream, Square, Vector
from directgp.posteriors.blocks import Block, Projection, Scratch, Sums
from directgp.shapes import BatchedRow, Inputs

# f is s times a process of mean variance 1: all matrices are those of that process. With its
# covariance κ and variance k,
#
# A = L⁻¹ K_uf,     L Lᵀ = K_uu in float64
# mean = s Aᵀm,     residual = s² (k − ΣA²),     variance = residual + s² Σ(SᵀA)²
# KL = ½ (‖S‖² + ‖m‖² − M) − Σ log abs S_jj
#
# and, for gradients g_μ, g_v and g_KL of a loss in mean/s, variance/s² and KL,
#
# (2H; dmᵀ) = (2 A diag g_v; g_μᵀ) Aᵀ             dS = tril(2H S) + g_KL (S − diag 1/S_jj)
# dK_uf = L⁻ᵀ (S Sᵀ − I, m) (2 A diag g_v; g_μᵀ)
# dK_uu = −½ L⁻ᵀ sym(2H − S (2H S)ᵀ − m dmᵀ) L⁻¹    sym: the lower triangle, mirrored
#
# because tril(Lᵀ tril(W)) = tril(Lᵀ W): what the factorisation passes on needs no solve with dL.
# Several q(u) may share a kernel and its A. Then dK_uf and dK_uu are sums over the q(u).
# A gradient g_r in the residual alone adds 2H(g_r) = 2 A diag g_r Aᵀ to the sum in dK_uu, and
# −2 L⁻ᵀ A diag g_r to dK_uf; dk = g_v + g_r.
#
# d log s² = ½ Σ g_μ mean/s + Σ g_v variance/s²


class Stationary(NamedTuple):
    """Natural parameters of an RBF or a Matérn kernel of variance 1."""

    nu: float
    """Smoothness of the Matérn kernel: ½, 1½, 2½, or `RBF`."""

    lengthscale: Float[Tensor, "*#batch 1 k"]
    """One number, or one for each feature."""


class Natural(NamedTuple):
    """Natural parameters of a prior with kernel s²κ."""

    kernel: Stationary | StructuredNatural
    """Parameters of κ."""

    scale: Float[Tensor, "*#batch"]
    """s²."""

    constant: Float[Tensor, "*#batch"] | None
    """The prior mean; None for 0."""

    def plus_constant(self, mean: BatchedRow) -> BatchedRow:
        """Return a mean of f with the prior mean added."""
        return mean if self.constant is None else mean + self.constant.unsqueeze(-1)


KernelGradient = Float[Tensor, "*batch 1 k"] | StructuredGradient
"""Gradient in the lengthscale of a stationary kernel, or in the parameters of an expression."""


class Gradient(NamedTuple):
    """Gradient of a loss in the parameters of the marginals and the KL."""

    Z: Float[Tensor, "*batch m d"]
    """Gradient in the inducing inputs."""

    kernel: KernelGradient
    """Gradient in the parameters of the kernel."""

    log_scale: Float[Tensor, "*batch"]
    """Gradient in log s²."""

    u_mean: Float[Tensor, "*batch m"]
    """Gradient in the whitened mean."""

    u_chol: Float[Tensor, "*batch m m"]
    """Gradient in the factor of the whitened covariance."""


class KnownSums(NamedTuple):
    """Sums over rows that the caller of `gradient` knows from `weighted_gram`."""

    gram_factor: float
    """Factor c with 2 A diag(g_v) Aᵀ = c · (last result of `weighted_gram`); 0 if the loss does not
    depend on the variance."""

    variance: Float[Tensor, "*batch"]
    """Σ g_v·variance; 0 for a loss without the variance."""


class KernelBlock(Block):
    """A block of rows, with scratch buffers of the size of K_uf."""

    def __init__(
        self,
        rows: slice,
        m: int,
        sums: Sums,
        results: list[Array],
        new: Callable[..., Array],
        scratch: Scratch,
    ) -> None:
        width = rows.stop - rows.start
        super().__init__(rows, sums, new(m, width), results)
        self.work, self.spare = (scratch.view(key, m, width) for key in range(2))


class _Buffers:
    """Buffers and views of size M × M."""

    def __init__(self, m: int, new: Callable[..., Array], new_of_q: Callable[..., Array]) -> None:
        self.inner = new(m, m, dtype=torch.float64)
        self.D = new_of_q(m, m + 1)
        """(S Sᵀ − I, m)."""
        self.LD = new_of_q(m, m + 1)
        """L⁻ᵀ D."""
        self.D_square = self.D[..., :m]
        self.D_mean = self.D[..., m]
        self.D_diagonal = diagonal_of(self.D_square)


BlockT = TypeVar("BlockT", bound=KernelBlock)
NaturalT = TypeVar("NaturalT", Stationary, StructuredNatural)


class KernelMarginals(Projection, ABC, Generic[NaturalT, BlockT]):
    """Marginals of q(f) at rows of X, in blocks of rows, and gradients of a loss through them.

    Order of calls: `set_prior`, `set_q`, `marginals`, `gradient`. If q(u) depends on A:
    `set_prior`, `whiten`, `weighted_gram`, `set_q`, `project`, `gradient`. With `constant_inputs`
    the contents of X never change between two calls with the same tensor. With `shared`, all q(u)
    of the batch have one kernel and one Z: what depends on these has no batch axes.
    """

    def __init__(
        self,
        nugget: float,
        template: Float[Tensor, "1 d"],
        size: int,
        batch: tuple[int, ...] = (),
        *,
        shared: bool = False,
        constant_inputs: bool = False,
    ) -> None:
        super().__init__(size, template, batch)
        self._shared = shared
        self._nugget = nugget
        self._constant = constant_inputs
        self._seen: Tensor | None = None
        self._one, self._rounding = (
            self.array(template.new_tensor(number))
            for number in (1.0, torch.finfo(template.dtype).eps)
        )
        self._narrow = template.dtype != torch.float64
        self._kept: dict[int, tuple[list[Tensor], list[Array], list[BlockT]]] = {}
        self._buffers: _Buffers | None = None

    @without_warnings
    def set_prior(
        self, Z: Float[Tensor, "*#batch m d"], natural: Natural, *, checked: bool = True
    ) -> None:
        """Factorise K_uu of each prior.

        With `checked=False` a K_uu that needs jitter gives NaN, and the device is not waited for.
        """
        self._scale = self.array(natural.scale)
        if self._buffers is None:
            m = Z.shape[-2]
            self.sums = Sums(m, self.new)
            self._buffers = _Buffers(m, self._new, self.new)
            self._scratch = Scratch(self._new) if self._shared else self.sums.scratch
        self._set_kernel(Z, cast(NaturalT, natural.kernel))
        # Factorise on a side stream; until `_whiten` the main one does what needs no factor.
        with SideStream(Z.device) as self._side_stream:
            self._L, self._inverse, self._jitter = factorise(self._gram(), checked)
        self._deviation = self.xp.sqrt(self._scale)

    @abstractmethod
    def _set_kernel(self, Z: Float[Tensor, "*#batch m d"], kernel: NaturalT) -> None:
        """Set inducing inputs and parameters of κ."""

    @abstractmethod
    def _gram(self) -> Array:
        """Return K_uu with the nugget, in float64."""

    @abstractmethod
    def _block(self, rows: slice, m: int, n: int, results: list[Array]) -> BlockT:
        """Return a block of n rows."""

    @abstractmethod
    def _read(self, X: Inputs) -> None:
        """Read the inputs of all rows."""

    @abstractmethod
    def _cross(self, block: BlockT) -> Array:
        """Return K_uf of a block; keep what its gradient needs."""

    @abstractmethod
    def _variance(self, block: BlockT) -> Array:
        """Return k at the rows of a block."""

    @abstractmethod
    def _gram_gradient(self, G: Array) -> None:
        """Keep the gradient through K_uu, in which the gradient is −½ G, symmetric."""

    @abstractmethod
    def _add_cross_gradient(
        self, block: BlockT, W: Array, by_k: tuple[Array, Array | None], first: bool
    ) -> None:
        """Add the gradient through a block of K_uf from the gradients in K_uf and in k.

        W may be overwritten. The gradient in k is in two parts: for each q(u), and in the
        residual alone, summed over q(u).
        """

    @abstractmethod
    def _kernel_gradient(self) -> tuple[Array, KernelGradient]:
        """Return the gradients in Z and in the parameters of κ."""

    def _new(self, *shape: int, dtype: torch.dtype | None = None) -> Array:
        """Return an array of ones for each kernel."""
        if not self._shared:
            return self.new(*shape, dtype=dtype)
        like = self._template
        return torch.ones(*shape, dtype=dtype or like.dtype, device=like.device)

    def _over_q(self, values: Array) -> Array:
        """Return the sum over the q(u) that share the kernel."""
        return values.sum([*range(len(self.batch))]) if self._shared else values

    def _product_over_q(self, left: Array, right: Array, out: Array | None = None) -> Array:
        """Return left · right, summed over the q(u) that share the kernel."""
        if self._shared:
            left = left.movedim(-2, 0).flatten(1)
            right = right.flatten(0, -2)
        return self.xp.matmul(left, right, out=out)

    @property
    def _inducing(self) -> _Buffers:
        if self._buffers is None:
            raise RuntimeError("set_prior comes first")
        return self._buffers

    @override
    def set_q(self, u_mean: Vector, u_chol: Square) -> None:
        super().set_q(u_mean, u_chol)
        at = self._inducing
        self.xp.matmul(self.S, self.U, out=at.D_square)
        at.D_diagonal -= 1
        at.D_mean[...] = self.m

    @property
    def jitter(self) -> Float[Tensor, "*batch"]:
        """Jitter that the factorisation of K_uu needed beyond the nugget."""
        return self._jitter * tensor_of(self._scale)

    @without_warnings
    def marginals(self, X: Inputs) -> tuple[BatchedRow, BatchedRow]:
        """Return mean, without the prior mean, and variance at each row."""
        for block in self._start(X):
            self._whiten(block)
            self.project_block(block)
        return self._scaled_results()

    @without_warnings
    def whiten(self, X: Inputs) -> BatchedRow:
        """Compute A, and return the residual at each row."""
        for block in self._start(X):
            self._whiten(block)
        return self.results[2] * tensor_of(self._scale).unsqueeze(-1)

    @override
    def project(self) -> tuple[BatchedRow, BatchedRow]:
        super().project()
        return self._scaled_results()

    def project_mean(self) -> BatchedRow:
        """Return the mean alone, without the prior mean."""
        for block in self._blocks:
            self.xp.matmul(self.m[..., None, :], block.A, out=block.mean_row)
        return tensor_of(self._arrays[0] * self._deviation[..., None])

    def _scaled_results(self) -> tuple[BatchedRow, BatchedRow]:
        """Scale mean and variance of the process of unit variance to f."""
        mean, variance, _ = self._arrays
        scaled_mean = mean * self._deviation[..., None]
        scaled_variance = variance * self._scale[..., None]
        return tensor_of(scaled_mean), tensor_of(scaled_variance)

    @override
    def weighted_gram(
        self, weights: BatchedRow, values: BatchedRow
    ) -> tuple[Float[Tensor, "*batch m m"], Float[Tensor, "*batch m"]]:
        scale = self._scale[..., None]
        deviation = self._deviation[..., None]
        self.gram(self.array(weights) * scale, self.array(values) * deviation)
        return tensor_of(self.sums.H), tensor_of(self.sums.dm)

    @without_warnings
    def gradient(
        self,
        mean: BatchedRow,
        variance: BatchedRow,
        kl: float | Float[Tensor, "*#batch"],
        residual: BatchedRow | None = None,
        *,
        known: KnownSums | None = None,
    ) -> Gradient:
        """Return the gradient of a loss from its gradients in mean, variance, KL and residual."""
        at = self._inducing
        xp = self.xp
        blocks = self._blocks
        scale = self._scale[..., None]
        deviation = self._deviation[..., None]
        g_mean = self.array(mean) * deviation
        g_variance = self.array(variance) * scale
        g_residual = None if residual is None else self.array(residual) * scale
        extra: Array = 0.0
        if g_residual is not None:
            # Multiply by 1 to copy; in torch, +H would be H itself.
            last = 1 * self.sums.H
            self.gram(2 * g_residual, g_mean)
            extra = self._over_q(1 * self.sums.H)
            self.sums.H[...] = last
            g_residual = self._over_q(g_residual)
        twice = 2 * g_variance
        if known is None:
            self.gram(twice, g_mean)
        else:
            self.use_gram(known.gram_factor, twice, g_mean)
        with self._side_stream:
            inner = self._product_over_q(at.D, self.sums.both)
            self._gram_gradient(self._by_gram(inner if g_residual is None else inner - extra))
            in_q = self.q_gradient(kl)
        inverse = self._narrowed(self._inverse.swapaxes(-1, -2))
        LD = triangular_times(inverse, at.D, out=at.LD, upper=True)
        # Use the last row of (2 A diag g_v; g_μᵀ) if the gradient in the variance is 0.
        mean_only = known is not None and known.gram_factor == 0
        used = slice(-1 if mean_only else 0, None)
        for index, block in enumerate(blocks):
            if len(blocks) > 1:
                self.write_scaled(block, twice, g_mean)
            scaled = block.scaled[..., used, :]
            W = self._product_over_q(LD[..., used], scaled, out=block.work)
            if g_residual is not None:
                xp.multiply(block.A, -2 * g_residual[..., None, block.rows], out=block.spare)
                W += triangular_times(inverse, block.spare, out=xp.empty_like(W), upper=True)
            self._add_cross_gradient(block, W, (g_variance, g_residual), first=index == 0)
        d_log_scale = self._log_scale_gradient(g_mean, g_variance, g_residual, known)
        self._side_stream.join()
        dZ, kernel = self._kernel_gradient()
        return Gradient(tensor_of(dZ), kernel, tensor_of(d_log_scale), *in_q)

    def _log_scale_gradient(
        self, g_mean: Array, g_variance: Array, g_residual: Array | None, known: KnownSums | None
    ) -> Array:
        mean, variance, residual = self._arrays
        gradient = 0.5 * (g_mean * mean).sum(-1)
        if known is None:
            gradient = gradient + (g_variance * variance).sum(-1)
        else:
            gradient = gradient + self.array(known.variance)
        gradient = self._over_q(gradient)
        return gradient if g_residual is None else gradient + (g_residual * residual).sum(-1)

    def _by_gram(self, inner: Array) -> Array:
        """Return −2 times the gradient in K_uu: L⁻ᵀ C L⁻¹ with C the lower triangle, mirrored."""
        C = self._inducing.inner
        self.xp.multiply(inner, self.sums.lower, out=C)
        C += (inner * self.sums.strict).swapaxes(-1, -2)
        return congruence(C, self._inverse.swapaxes(-1, -2))

    def _narrowed(self, matrix: Array) -> Array:
        """Return a float64 array in the dtype of the inputs."""
        if not self._narrow:
            return matrix
        return matrix.to(self.S.dtype) if self.xp is torch else matrix.astype(self.S.dtype)

    def _start(self, X: Inputs) -> list[BlockT]:
        """Return the blocks of these rows, with buffers for their results."""
        m = self._inducing.inner.shape[-1]
        n = len(X)
        if n not in self._kept:
            of_kernel = () if self._shared else self.batch
            results = [X.new_empty(*each, n) for each in (self.batch, self.batch, of_kernel)]
            arrays = [self.array(result) for result in results]
            blocks = [self._block(rows, m, n, arrays) for rows in self.row_blocks(n, m)]
            self._kept[n] = results, arrays, blocks
        self.results, self._arrays, self._blocks = self._kept[n]
        self.used = [*self._blocks]
        if not (self._constant and self._seen is X):
            self._read(X)
            self._seen = X
        return self._blocks

    def _whiten(self, block: BlockT) -> None:
        """Compute K_uf, A and the residual of one block."""
        xp = self.xp
        Kuf = self._cross(block)
        self._side_stream.join()
        if not self._narrow:
            triangular_times(self._inverse, Kuf, out=block.A, upper=False)
            explained = column_squares(block.A)
        elif xp is torch and Kuf.is_cuda:
            # Multiply in float64: rounded to float32, the inverse loses the digits of s² − ΣA².
            A = self._inverse @ Kuf.double()
            explained = column_squares(A)
            block.A.copy_(A)
        else:
            # Solve in float32: this keeps the digits too, and is faster on a CPU.
            solve_lower(self._narrowed(self._L), Kuf, out=block.A)
            explained = column_squares(block.A)
        variance = self._variance(block)
        xp.subtract(variance, explained, out=block.residual)
        xp.maximum(block.residual, self._rounding * variance, out=block.residual)
