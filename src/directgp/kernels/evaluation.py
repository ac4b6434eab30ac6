"""Evaluate sums of products of parts, with the gradient by hand."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add, mul
from typing import NamedTuple

from torch import Tensor

from directgp.kernels.parts.base import Part, Values
from directgp.kernels.structured import StructuredNatural
from directgp.numerics.arrays import Array, add_to_columns, columns_of, library_of, zeros

# For K = Σ_t π_t Π_j κ_tj and the gradient G of a loss in K,
#
# dκ_tj = π_t G ∘ Π_{i≠j} κ_ti,     dπ_t = ΣG ∘ Π_j κ_tj
#
# A part that occurs in several terms gets the sum.


class KernelArrays(NamedTuple):
    """Natural parameters of an expression, as arrays of one library and dtype."""

    parts: Sequence[Part]
    """The parts."""

    terms: Sequence[tuple[int, ...]]
    """Numbers of the factors of each term."""

    values: Sequence[Values]
    """Parameters and constants of each part."""

    shares: Array
    """Share of each term, of shape (*batch, t)."""

    @classmethod
    def of(cls, natural: StructuredNatural, array: Callable[[Tensor], Array]) -> "KernelArrays":
        """Return the parameters as arrays that `array` makes."""
        values = [{name: array(v) for name, v in each.items()} for each in natural.values]
        return cls(natural.parts, natural.terms, values, array(natural.shares))


class KernelGradient(NamedTuple):
    """Gradient of a loss through a covariance matrix."""

    inputs: Array
    """Gradient in the first inputs."""

    values: list[dict[str, Array]]
    """Gradients in the parameters of each part."""

    shares: Array
    """Gradient in the share of each term."""


class KernelEvaluation(NamedTuple):
    """A covariance matrix, and the function from the gradient in it to that in its arguments."""

    value: Array
    """Covariance of each pair."""

    backward: Callable[[Array], KernelGradient]
    """Takes the gradient of a loss in `value`; the second inputs count as constant."""


def evaluate(kernel: KernelArrays, a: Array, b: Array, *, exact: bool) -> KernelEvaluation:
    """Compute the covariance of each pair; `exact` as in `Part.evaluate`."""
    xp = library_of(b)
    parts = kernel.parts
    evaluations = [
        part.evaluate(columns_of(a, part.positions), columns_of(b, part.positions), values, exact)
        for part, values in zip(parts, kernel.values, strict=True)
    ]
    factors = [evaluation.value for evaluation in evaluations]
    shares = [kernel.shares[..., t, None, None] for t in range(len(kernel.terms))]
    products = [reduce(mul, (factors[j] for j in term)) for term in kernel.terms]
    value = reduce(add, (share * product for share, product in zip(shares, products, strict=True)))

    def backward(G: Array) -> KernelGradient:
        by_share = [_dot(G, product) for product in products]
        by_factor: list[Array | None] = [None] * len(parts)
        for term, share in zip(kernel.terms, shares, strict=True):
            for j in term:
                if parts[j].trained or parts[j].smooth:
                    others = [factors[i] for i in term if i != j]
                    gradient = reduce(mul, others, share * G)
                    before = by_factor[j]
                    by_factor[j] = gradient if before is None else before + gradient
        inputs = zeros((*G.shape[:-1], a.shape[-1]), b)
        by_value: list[dict[str, Array]] = []
        for part, evaluation, through in zip(parts, evaluations, by_factor, strict=True):
            by_value.append({})
            if through is not None:
                gradient = evaluation.backward(through)
                by_value[-1] = gradient.parameters
                if gradient.inputs is not None:
                    add_to_columns(inputs, part.positions, gradient.inputs)
        return KernelGradient(inputs, by_value, xp.stack(by_share, -1))

    return KernelEvaluation(value, backward)


def _dot(G: Array, K: Array) -> Array:
    """Return Σ_ij G_ij K_ij of each pair of matrices."""
    return library_of(G).einsum("...ij,...ij->...", G, K)


class VarianceGradient(NamedTuple):
    """Gradient of a loss through variances."""

    values: list[dict[str, Array]]
    """Gradients in the parameters of each part."""

    shares: Array
    """Gradient in the share of each term."""


class KernelVariance(NamedTuple):
    """The variance at inputs, and the function from its gradient to that in the parameters."""

    value: Array
    """Variance of each input."""

    backward: Callable[[Array], VarianceGradient]
    """Takes the gradient of a loss in `value`."""


def evaluate_variance(kernel: KernelArrays, b: Array) -> KernelVariance | None:
    """Compute the variance at each input; None if it is 1 everywhere."""
    parts = kernel.parts
    if all(part.unit_variance for part in parts):
        return None
    xp = library_of(b)
    evaluations = {
        j: part.evaluate_variance(columns_of(b, part.positions), kernel.values[j])
        for j, part in enumerate(parts)
        if not part.unit_variance
    }
    one = zeros(b.shape[:-1], b) + 1
    shares = [kernel.shares[..., t, None] for t in range(len(kernel.terms))]
    products = [
        reduce(mul, (evaluations[j].value for j in term if j in evaluations), one)
        for term in kernel.terms
    ]
    value = reduce(add, (share * product for share, product in zip(shares, products, strict=True)))

    def backward(g: Array) -> VarianceGradient:
        by_value: list[dict[str, Array]] = [{} for _ in parts]
        for j, evaluation in evaluations.items():
            if not parts[j].trained:
                continue
            through = 0 * g
            for term, share in zip(kernel.terms, shares, strict=True):
                if j in term:
                    others = (evaluations[i].value for i in term if i in evaluations and i != j)
                    through = through + reduce(mul, others, share * g)
            by_value[j] = evaluation.backward(through)
        by_share = [(g * product).sum(-1) for product in products]
        return VarianceGradient(by_value, xp.stack(by_share, -1))

    return KernelVariance(value, backward)
