"""Split a kernel into summands: its terms, and the effects of single columns and of pairs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import combinations
from operator import mul
from typing import final

from jaxtyping import Float
from torch import Tensor

from directgp.kernels.parts import Additive, Linear
from directgp.kernels.parts.base import Part
from directgp.kernels.structured import StructuredKernel
from directgp.numerics.arrays import columns_of

# A term that is a single Additive part is split further: with the effect κ_d of column d,
#
# π (Σ_d v_d κ_d + w Σ_{d<d′} v_d v_d′ κ_d κ_d′)
#
# has the summands π v_d κ_d and π w v_d v_d′ κ_d κ_d′. A term that is a Linear part of several
# columns has the summands π v_d (x_d − o_d)(x_d′ − o_d).

_BY_NODE = ("nodes", "weights")
"""Constants with a row for each column; other values have the columns along the last axis."""


@final
@dataclass(frozen=True)
class Summand:
    """A summand of a kernel: some of its terms, or one effect of a term."""

    terms: tuple[int, ...]
    """Numbers of the terms; empty for a kernel that is no expression, as a whole."""

    effect: tuple[int, ...] = ()
    """Numbers of the columns of the effect, among those of the part that is the only term."""


def split_part(kernel: StructuredKernel, term: int) -> Part | None:
    """Return the part whose effects are the summands of a term; None if the term is one."""
    factors = kernel.terms[term]
    part = kernel.parts[factors[0]]
    several = isinstance(part, Additive) or (isinstance(part, Linear) and len(part.columns) > 1)
    return part if len(factors) == 1 and several else None


def summands_of(kernel: StructuredKernel) -> list[Summand]:
    """Return the summands of a kernel, in the order of its terms."""
    summands: list[Summand] = []
    for term in range(len(kernel.terms)):
        part = split_part(kernel, term)
        if part is None:
            summands.append(Summand((term,)))
            continue
        columns = range(len(part.columns))
        orders = (1, 2) if isinstance(part, Additive) and part.order == 2 else (1,)
        effects = [effect for order in orders for effect in combinations(columns, order)]
        summands += [Summand((term,), effect) for effect in effects]
    return summands


def factors_of(kernel: StructuredKernel, summand: Summand) -> list[Part]:
    """Return the parts of a summand; those of an effect have the columns of the effect alone."""
    parts = [kernel.parts[j] for j in numbers_of_factors(kernel, summand)]
    if not summand.effect:
        return parts
    (part,) = parts
    columns = tuple(part.columns[k] for k in summand.effect)
    restricted = part.with_columns(columns)
    return [restricted] if isinstance(restricted, Part) else []


def numbers_of_factors(kernel: StructuredKernel, summand: Summand) -> list[int]:
    """Return the numbers of the parts of the terms of a summand."""
    return [j for term in summand.terms for j in kernel.terms[term]]


def positions_of(kernel: StructuredKernel, summand: Summand) -> list[int]:
    """Return the positions of the columns that a summand looks at, in order."""
    return sorted({int(c) for part in factors_of(kernel, summand) for c in part.columns})


def covariances(
    kernel: StructuredKernel,
    X1: Float[Tensor, "*#batch m d"],
    X2: Float[Tensor, "*#batch n d"],
    summands: Sequence[Summand],
) -> Iterator[Float[Tensor, "*batch m n"]]:
    """Yield the covariance of each pair under each summand, from factors that are computed once."""

    def covariance(part: Part, values: Mapping[str, Tensor]) -> Tensor:
        return part.covariance(
            columns_of(X1, part.positions), columns_of(X2, part.positions), values
        )

    return _evaluated(kernel, X2, summands, covariance, axes=2)


def variances(
    kernel: StructuredKernel, X: Float[Tensor, "*#batch n d"], summands: Sequence[Summand]
) -> Iterator[Float[Tensor, "*batch n"]]:
    """Yield the variance at each input under each summand."""

    def variance(part: Part, values: Mapping[str, Tensor]) -> Tensor:
        return part.variance(columns_of(X, part.positions), values)

    return _evaluated(kernel, X, summands, variance, axes=1)


def _evaluated(
    kernel: StructuredKernel,
    like: Tensor,
    summands: Sequence[Summand],
    compute: Callable[[Part, Mapping[str, Tensor]], Tensor],
    axes: int,
) -> Iterator[Tensor]:
    """Yield the value of each summand from a function of parts, whose results have these axes."""
    values = [{name: v.to(like) for name, v in each.items()} for each in kernel.values()]
    shares = kernel.shares.to(like)

    @cache
    def factor(index: int) -> Tensor:
        return compute(kernel.parts[index], values[index])

    @cache
    def effect_of_column(index: int, column: int) -> Tensor:
        return compute(*_of_column(kernel.parts[index], values[index], column))

    def share(term: int) -> Tensor:
        return shares[..., term].reshape(*shares.shape[:-1], *[1] * axes)

    for summand in summands:
        total: Tensor | float = 0.0
        for term in summand.terms:
            first, *_ = kernel.terms[term]
            if summand.effect:
                product = reduce(mul, (effect_of_column(first, k) for k in summand.effect))
                if len(summand.effect) == 2:
                    product = values[first]["pairs"].reshape(share(term).shape) * product
            else:
                product = reduce(mul, (factor(j) for j in kernel.terms[term]))
            total = total + share(term) * product
        yield like.new_zeros(()) + total


def _of_column(
    part: Part, values: Mapping[str, Tensor], column: int
) -> tuple[Part, dict[str, Tensor]]:
    """Return the part of one of its columns, with its values: one effect of the part."""
    (position,) = part.columns[column : column + 1]
    one = slice(column, column + 1)
    restricted = {
        name: value[one] if name in _BY_NODE else value[..., one]
        for name, value in values.items()
        if name != "pairs"
    }
    return (Additive if isinstance(part, Additive) else Linear)(position), restricted
