"""Split a kernel into summands: its terms, and the effects of single columns and of pairs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import combinations
from operator import mul
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.kernels.parts import Additive, Linear, Periodic
from directgp.kernels.parts.base import Part
from directgp.kernels.parts.stationary import DistancePart
from directgp.kernels.structured import StructuredKernel, places

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

    levels: tuple[int, ...] = ()
    """Numbers of the terms of which the summand has the level, those of seasons.

    `terms` have seasons around 0.
    """


def split_part(kernel: StructuredKernel, term: int) -> Part | None:
    """Return the part whose effects are the summands of a term; None if the term is one."""
    factors = kernel.terms[term]
    part = kernel.parts[factors[0]]
    several = isinstance(part, Additive) or (isinstance(part, Linear) and len(part.columns) > 1)
    return part if len(factors) == 1 and several else None


def season_of(kernel: StructuredKernel, term: int) -> int | None:
    """Return the number of the part that is a season around a level; None without one."""
    factors = kernel.terms[term]
    seasons = [j for j in factors if isinstance(kernel.parts[j], Periodic)]
    others = [kernel.parts[j] for j in factors if j not in seasons]
    if len(seasons) != 1:
        return None
    columns = kernel.parts[seasons[0]].columns
    along = all(isinstance(part, DistancePart) and part.columns == columns for part in others)
    return seasons[0] if along else None


def summands_of(kernel: StructuredKernel) -> list[Summand]:
    """Return the summands of a kernel, in the order of its terms.

    The level of a season belongs to the first smooth trend of the same column, else to a linear
    one, else it is a summand of its own.
    """
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
    for term in range(len(kernel.terms)):
        season = season_of(kernel, term)
        if season is None:
            continue
        trend = _trend_along(kernel, kernel.parts[season].columns)
        if trend is None:
            summands.append(Summand((), levels=(term,)))
            continue
        index = [summand.terms for summand in summands].index((trend,))
        before = summands[index]
        summands[index] = replace(before, levels=(*before.levels, term))
    return summands


def _trend_along(kernel: StructuredKernel, columns: tuple[object, ...]) -> int | None:
    """Return the number of the term that is a trend along a column; None without one."""
    for kind in (DistancePart, Linear):
        for term, factors in enumerate(kernel.terms):
            part = kernel.parts[factors[0]]
            if len(factors) == 1 and isinstance(part, kind) and part.columns == columns:
                return term
    return None


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
    """Return the numbers of the parts of the terms of a summand, or of the level that it is."""
    if summand.terms:
        return [j for term in summand.terms for j in kernel.terms[term]]
    (term,) = summand.levels
    return [j for j in kernel.terms[term] if j != season_of(kernel, term)]


def part_of_variance(kernel: StructuredKernel, summand: Summand) -> float:
    """Return π_t of the terms of a summand, times 1 − c or c of a season or its level."""
    natural = kernel.natural()
    total = 0.0
    for term in {*summand.terms, *(() if summand.terms else summand.levels)}:
        share = float(natural.shares[..., term].mean())
        season = season_of(kernel, term)
        if season is not None:
            level = float(level_of(natural.values[season]).mean())
            share *= 1 - level if summand.terms else level
        total += share
    return total


def level_of(values: Mapping[str, Tensor]) -> Tensor:
    """Return c of a Periodic part, of shape (*batch, 1, 1)."""
    level: Tensor = torch.special.i0e(values["lengthscale"] ** -2)
    return level


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
        return part.covariance(X1[..., places(part)], X2[..., places(part)], values)

    return _evaluated(kernel, X2, summands, covariance, (X1.shape[-2], X2.shape[-2]))


def variances(
    kernel: StructuredKernel, X: Float[Tensor, "*#batch n d"], summands: Sequence[Summand]
) -> Iterator[Float[Tensor, "*batch n"]]:
    """Yield the variance at each input under each summand."""

    def variance(part: Part, values: Mapping[str, Tensor]) -> Tensor:
        return part.variance(X[..., places(part)], values)

    return _evaluated(kernel, X, summands, variance, (X.shape[-2],))


def _evaluated(
    kernel: StructuredKernel,
    like: Tensor,
    summands: Sequence[Summand],
    compute: Callable[[Part, Mapping[str, Tensor]], Tensor],
    shape: tuple[int, ...],
) -> Iterator[Tensor]:
    """Yield the value of each summand from a function of parts, whose results end in this shape."""
    axes = len(shape)
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

    def level(season: int) -> Tensor:
        return level_of(values[season]).reshape(*shares.shape[:-1], *[1] * axes)

    for summand in summands:
        total: Tensor | float = 0.0
        for term in summand.terms:
            first, *_ = kernel.terms[term]
            if summand.effect:
                product = reduce(mul, (effect_of_column(first, k) for k in summand.effect))
                if len(summand.effect) == 2:
                    product = values[first]["pairs"].reshape(share(term).shape) * product
            else:
                season = season_of(kernel, term)
                around = (
                    factor(j) - level(j) if j == season else factor(j) for j in kernel.terms[term]
                )
                product = reduce(mul, around)
            total = total + share(term) * product
        for term in summand.levels:
            season = season_of(kernel, term)
            others = [factor(j) for j in kernel.terms[term] if j != season]
            if season is not None:
                total = total + share(term) * reduce(mul, others, level(season))
        # A level alone is a number: every pair has it.
        yield like.new_zeros(shape) + total


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
