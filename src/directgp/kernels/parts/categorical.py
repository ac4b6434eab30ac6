"""Categories and groups: Categorical and Group."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import ColumnName
from directgp.kernels.parts.base import Evaluation, Link, Part, PartGradient, Values
from directgp.numerics.arrays import Array, library_of, tensor_of

_CORRELATION = 0.5
"""Correlation of two levels at the start."""


class _LevelPart(Part):
    """A covariance that depends on the levels of one column alone."""

    least_columns = 1
    most_columns = 1
    smooth = False

    @override
    def check(self, columns: Sequence[ColumnFacts]) -> None:
        """Accept a column of any kind: numbers are levels, too."""


@final
class Group(_LevelPart):
    """1 for rows of one group, else 0: an effect of each group.

    A product with another part is an effect of each group that depends on other columns:
    ``Group("patient") * Linear("age")`` has a slope of each patient. A group that is not in the
    training rows has the mean effect 0.
    """

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        return {}

    @override
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        return (a == b.mT).to(b)

    @override
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        return Evaluation(_equal(a, b), lambda G: PartGradient(None, {}))


@final
class Categorical(_LevelPart):
    """1 for rows of one level; two levels have a correlation.

    Without a rank all pairs of levels have the same one, between 0 and 1, and a level that is not
    in the training rows, too. With a rank r, each level has a vector v of r numbers, and two levels
    have the correlation v·v′/√((1 + v·v)(1 + v′·v′)); an unseen level has the mean vector.
    """

    parameters: ClassVar[Mapping[str, Link]] = {"correlation": "unit", "vectors": "real"}

    def __init__(self, column: ColumnName, *, rank: int | None = None) -> None:
        super().__init__(column)
        whole = isinstance(rank, int) and not isinstance(rank, bool) and 1 <= rank <= 100
        require(rank is None or whole, "rank of Categorical", "from 1 to 100, or None", repr(rank))
        self.rank = rank

    @property
    @override
    def trained(self) -> tuple[str, ...]:
        return ("correlation",) if self.rank is None else ("vectors",)

    @override
    def check(self, columns: Sequence[ColumnFacts]) -> None:
        (column,) = columns
        who = f"column of Categorical({column.name!r}, rank={self.rank})"
        allowed = "a category or a group"
        remedy = f"Give columns={{{column.name!r}: 'category'}}."
        require(self.rank is None or column.coded, who, allowed, f"a {column.kind}", remedy)

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        if self.rank is None:
            return {"correlation": X.new_full((1,), _CORRELATION)}
        # Vectors that are nearly equal: of length 1, two levels have the correlation ½. Different
        # angles break the symmetry between levels.
        levels = max(1, columns[0].num_levels)
        angle = torch.arange(levels * self.rank).to(X).reshape(levels, self.rank)
        vectors = 0.3 * torch.sin(1.0 + angle * 2.4)
        vectors[:, 0] += 1.0
        return {"vectors": vectors.reshape(-1)}

    @override
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        if self.rank is None:
            correlation = values["correlation"]
            return torch.where(a == b.mT, 1.0, correlation)
        unit, _ = self.directions(values["vectors"])
        codes_a, codes_b = (rows_of_levels(x, unit.shape[-2]) for x in (a, b))
        covariance: Tensor = _taken(unit, codes_a) @ _taken(unit, codes_b).mT
        return torch.where(a == b.mT, 1.0, covariance)

    @override
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        if self.rank is None:
            return self._one_correlation(a, b, values["correlation"])
        vectors = tensor_of(values["vectors"])
        unit, size = self.directions(vectors)
        codes_a, codes_b = (rows_of_levels(tensor_of(x), unit.shape[-2]) for x in (a, b))
        left, right = (_taken(unit, codes) for codes in (codes_a, codes_b))
        equal = _equal(a, b)
        different = 1 - equal
        K = equal + different * _like(left @ right.mT, b)

        def backward(G: Array) -> PartGradient:
            others = tensor_of(G * different)
            by_unit = torch.zeros_like(unit.expand(*others.shape[:-2], *unit.shape[-2:]))
            by_unit = _added(by_unit, codes_a, others @ right)
            by_unit = _added(by_unit, codes_b, others.mT @ left)
            # u = v/s with s = √(1 + v·v): dv = (du − u (u·du))/s.
            by_vector = (by_unit - unit * (unit * by_unit).sum(-1, keepdim=True)) / size
            seen = by_vector[..., :-1, :]
            # The vector of an unseen level is the mean of all.
            seen = seen + by_vector[..., -1:, :] / seen.shape[-2]
            return PartGradient(None, {"vectors": _like(seen.flatten(-2)[..., None, :], b)})

        return Evaluation(K, backward)

    def _one_correlation(self, a: Array, b: Array, correlation: Array) -> Evaluation:
        equal = _equal(a, b)
        K = correlation + (1 - correlation) * equal

        def backward(G: Array) -> PartGradient:
            by_correlation = (G * (1 - equal)).sum(-1).sum(-1)[..., None, None]
            return PartGradient(None, {"correlation": by_correlation})

        return Evaluation(K, backward)

    def directions(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return v/s and s = √(1 + v·v) of each level, and of an unseen one in the last row."""
        v = vectors.reshape(*vectors.shape[:-2], -1, self.rank or 1)
        v = torch.cat([v, v.mean(-2, keepdim=True)], -2)
        size = (1 + v.square().sum(-1, keepdim=True)).sqrt()
        return v / size, size


def _equal(a: Array, b: Array) -> Array:
    """Return 1 for pairs of equal levels, else 0."""
    equal = a == b[..., None, :, 0]
    return equal.to(b.dtype) if isinstance(b, Tensor) else equal.astype(b.dtype)


def rows_of_levels(codes: Tensor, number: int) -> Tensor:
    """Return the row of each level in a table whose last row is for unseen levels."""
    rows = codes[..., 0].detach().long()
    return torch.where((rows >= 0) & (rows < number - 1), rows, number - 1)


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    """Return these rows of a table."""
    index = rows.unsqueeze(-1)
    axes = max(table.dim(), index.dim())
    table, index = (part[(None,) * (axes - part.dim())] for part in (table, index))
    return torch.take_along_dim(table, index, -2)


def _added(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Return the table with values added to these rows."""
    index = rows.unsqueeze(-1).expand(values.shape)
    return table.scatter_add(-2, index, values)


def _like(values: Tensor, b: Array) -> Array:
    """Return values as an array of the library of b."""
    return values if library_of(b) is torch else values.numpy()
