"""Compute marginals under expressions of kernels, and gradients through them, without a tape."""

from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.kernels.evaluation import (
    KernelArrays,
    KernelEvaluation,
    KernelGradient,
    KernelVariance,
    evaluate,
    evaluate_variance,
)
from directgp.kernels.structured import StructuredGradient, StructuredNatural
from directgp.numerics.arrays import Array, diagonal_of, tensor_of
from directgp.posteriors.marginals import KernelBlock, KernelMarginals
from directgp.shapes import Inputs


@final
class _StructuredBlock(KernelBlock):
    """A block with its evaluation of the kernel."""

    evaluation: KernelEvaluation
    inputs: Array
    prior_variance: KernelVariance | None


@final
class StructuredMarginals(KernelMarginals[StructuredNatural, _StructuredBlock]):
    """Marginals and gradients of a kernel that is an expression."""

    # Several arrays of the size of a block stay in the cache.
    cpu_entries: ClassVar[int] = 2**18

    _sum: KernelGradient
    """Gradient through the blocks of K_uf so far."""

    @override
    def _set_kernel(self, Z: Float[Tensor, "*#batch m d"], kernel: StructuredNatural) -> None:
        self._Z = self.array(Z)
        self._wide_Z = self.array(Z.double())
        dtype = Z.dtype
        self._kernel = KernelArrays.of(kernel, lambda value: self.array(value.to(dtype)))
        self._wide_kernel = self._kernel
        if self._narrow:
            self._wide_kernel = KernelArrays.of(kernel, lambda value: self.array(value.double()))

    @override
    def _gram(self) -> Array:
        self._gram_evaluation = evaluate(self._wide_kernel, self._wide_Z, self._wide_Z, exact=True)
        K = 1 * self._gram_evaluation.value
        diagonal = diagonal_of(K)
        diagonal *= 1 + self._nugget
        return K

    @override
    def _block(self, rows: slice, m: int, n: int, results: list[Array]) -> _StructuredBlock:
        return _StructuredBlock(rows, m, self.sums, results, self._new, self._scratch)

    @override
    def _read(self, X: Inputs) -> None:
        for block in self._blocks:
            block.inputs = self.array(X)[block.rows]

    @override
    def _cross(self, block: _StructuredBlock) -> Array:
        exact = self._narrow and not tensor_of(self._Z).is_cuda
        block.evaluation = evaluate(self._kernel, self._Z, block.inputs, exact=exact)
        block.prior_variance = evaluate_variance(self._kernel, block.inputs)
        return block.evaluation.value

    @override
    def _variance(self, block: _StructuredBlock) -> Array:
        return self._one if block.prior_variance is None else block.prior_variance.value

    @override
    def _gram_gradient(self, G: Array) -> None:
        G *= -0.5
        diagonal = diagonal_of(G)
        diagonal *= 1 + self._nugget
        self._by_gram_inputs = self._gram_evaluation.backward(G)

    @override
    def _add_cross_gradient(
        self,
        block: _StructuredBlock,
        W: Array,
        by_k: tuple[Array, Array | None],
        first: bool,
    ) -> None:
        through_cross = block.evaluation.backward(W)
        values = through_cross.values
        shares = through_cross.shares
        if block.prior_variance is not None:
            by_variance, by_residual = by_k
            by_k_of_block = self._over_q(by_variance)[..., block.rows]
            if by_residual is not None:
                by_k_of_block = by_k_of_block + by_residual[..., block.rows]
            through_k = block.prior_variance.backward(by_k_of_block)
            values = _added(values, through_k.values)
            shares = shares + through_k.shares
        inputs = through_cross.inputs
        if not first:
            inputs = inputs + self._sum.inputs
            values = _added(values, self._sum.values)
            shares = shares + self._sum.shares
        self._sum = KernelGradient(inputs, values, shares)

    @override
    def _kernel_gradient(self) -> tuple[Array, StructuredGradient]:
        gram = self._by_gram_inputs
        inputs = self._sum.inputs + 2 * self._narrowed(gram.inputs)
        narrow = [{n: self._narrowed(v) for n, v in each.items()} for each in gram.values]
        values = _added(self._sum.values, narrow)
        shares = self._sum.shares + self._narrowed(gram.shares)
        tensors = [{name: tensor_of(v) for name, v in each.items()} for each in values]
        return inputs, StructuredGradient(tensors, tensor_of(shares))


def _added(first: list[dict[str, Array]], second: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Return sums of gradients by name; a missing one is 0."""
    return [
        {n: a[n] + b[n] if n in a and n in b else a.get(n, b.get(n)) for n in {**a, **b}}
        for a, b in zip(first, second, strict=True)
    ]
