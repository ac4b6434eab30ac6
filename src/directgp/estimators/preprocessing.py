"""Scale and order a table for training."""

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Num
from numpy.typing import NDArray
from torch import Tensor

# A row of weight 2 stands for two equal rows, a row of weight 0 for none.


Column = Float64[np.ndarray, " n"]
Columns = Float64[np.ndarray, "n d"]

_CLEARLY = 1e-6
"""Part of Σ|terms| that a sum has to reach before its sign means something."""


@dataclass(frozen=True)
class CanonicalData:
    """Distinct rows in canonical order."""

    X: Float64[np.ndarray, "m d"]
    y: Float64[np.ndarray, " m"]

    weights: Float64[np.ndarray, " m"] | None
    """How often each row counts; None where that is once."""

    exposure: Float64[np.ndarray, " m"] | None

    rows: Int[np.ndarray, " m"]
    """Where each row first stands in the data as given."""

    signs: Float64[np.ndarray, " d"]
    """Directions in which the columns of X were sorted, 1 or −1: X·signs is the same when columns
    change their sign."""

    num_merged: int
    """Rows that repeat another one."""


def canonical(
    X: Columns,
    y: Column,
    weights: Column | None = None,
    exposure: Column | None = None,
    *,
    signed_target: bool = False,
) -> CanonicalData:
    """Drop rows of weight 0, sort, and merge equal rows into one that has their weight.

    Parameters
    ----------
    X, y : array of shape (n, d), (n,)
        Scaled and rounded; columns of X, and a signed target, about 0.
    weights, exposure : array of shape (n,)
        1 for every row unless given.
    signed_target : bool
        Whether −y could as well have been the target, as in regression.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.array([[3.0], [-1.0], [-1.0]]), np.array([0.0, 1.0, 1.0])
    >>> data = canonical(X, y)
    >>> data.X.tolist(), data.weights.tolist(), data.rows.tolist()
    ([[-1.0], [3.0]], [2.0, 1.0], [1, 0])
    """
    kept = np.arange(len(y)) if weights is None else np.flatnonzero(weights > 0)
    w = np.ones(len(y)) if weights is None else weights[kept]
    # There is one 0, not two.
    table = np.asfortranarray(np.column_stack([X[kept], y[kept]]) + 0.0)
    signs = _signs(table, w / w.max(), signed_target)
    if exposure is not None:
        table, signs = np.column_stack([table, exposure[kept]]), np.append(signs, 1.0)
    order, starts = _sorted(table, signs, w)
    # Weights are a key of the order, so that those of equal rows are added in one order, too.
    total, table = np.add.reduceat(w[order], starts), table[order[starts]]
    d = X.shape[1]
    return CanonicalData(
        X=np.ascontiguousarray(table[:, :d]),
        y=table[:, d].copy(),
        weights=None if (total == 1).all() else total,
        exposure=None if exposure is None else table[:, d + 1].copy(),
        rows=kept[np.minimum.reduceat(order, starts)],
        signs=signs[:d],
        num_merged=len(kept) - len(starts),
    )


def _sorted(
    table: Columns, signs: Float64[np.ndarray, " d"], weights: Column
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
    """A lexicographic order of the rows, and where in it a new row begins.

    Each key sorts only rows that are equal so far; mostly few are after the first.
    """
    order = np.arange(len(table))
    new = order == 0
    for sign, column in zip(signs, table.T, strict=True):
        tied = _sort_tied(order, new, sign * column)
        new[tied[1:]] |= np.diff(column[order[tied]]) != 0
    _sort_tied(order, new, weights)
    return order, np.flatnonzero(new)


def _sort_tied(
    order: Int[np.ndarray, " n"], new: Bool[np.ndarray, " n"], key: Column
) -> Int[np.ndarray, " k"]:
    """Sort the members of each run of equal rows by the key, in place; return their positions."""
    tied = np.flatnonzero(~(new & np.append(new[1:], True)))
    rows, run = order[tied], np.cumsum(new)[tied]
    order[tied] = rows[np.lexsort([key[rows], run])]
    return tied


def _signs(table: Columns, weights: Column, signed_target: bool) -> Float64[np.ndarray, " d"]:
    """A direction for each column, which turns round with the column; 1 where none is clear.

    It is the sign of the column's third moment; else of its product with the squared length of the
    row, which no change of sign alters; else of that with the columns that have a direction.
    """
    squares = np.einsum("ij,ij->i", table, table)
    target = table.shape[1] - 1
    signs, guide = np.ones(table.shape[1]), np.zeros(len(table))
    for j in (target, *range(target)):
        column = table[:, j]
        if j < target or signed_target:
            signs[j] = _sign(column, (column * column, squares, guide), weights)
        guide += signs[j] * column
    return signs


def _sign(column: Column, others: tuple[Column, ...], weights: Column) -> float:
    for other in others:
        terms = weights * column * other
        total = float(terms.sum())
        if abs(total) > _CLEARLY * float(np.abs(terms).sum()):
            return math.copysign(1.0, total)
    return 1.0


_GRID = 2.0**32
"""Scaled values are multiples of 1/grid: the last digits, which change with the units, are gone."""

_FARTHEST = 1e12
"""Deviations from the mean beyond which inputs are alike: every stationary kernel is 0 there."""

_ROUNDING = 2.0**-48
"""A column whose range is no more than this part of its largest value does not vary."""

_BLOCK = 2**16


@dataclass(frozen=True)
class ColumnScaling:
    """z = (x − shift) / scale for each column, rounded to a multiple of 2⁻³².

    So data in other units, a·x + b with a > 0, give the same z, and training takes the same path.

    Examples
    --------
    >>> import numpy as np
    >>> metres = np.array([[1.0], [3.0]])
    >>> ColumnScaling.from_data(metres).forward(metres).tolist()
    [[-1.0], [1.0]]
    >>> ColumnScaling.from_data(100 * metres).forward(100 * metres).tolist()
    [[-1.0], [1.0]]
    """

    shift: Float64[np.ndarray, " d"]

    scale: Float64[np.ndarray, " d"]
    """Not 0; negative where a column is turned round."""

    rounded: bool = True
    """Whether values are rounded and bounded; not where they are left as they are."""

    @classmethod
    def from_data(
        cls, values: Num[np.ndarray, "n d"], weights: Num[np.ndarray, " n"] | None = None
    ) -> "ColumnScaling":
        """Weighted mean and deviation of each column.

        Neither the order of the rows nor whether a row is repeated or has an integer weight
        changes a bit of them. A column that is constant, but for rounding, is only centred.
        """
        if weights is not None:
            values, weights = values[weights > 0], weights[weights > 0].astype(np.float64)
            weights = np.ldexp(weights, -math.frexp(_largest(weights))[1])
        moments = [_moments(column.astype(np.float64), weights) for column in values.T]
        shift, scale = np.array(moments, dtype=np.float64).reshape(-1, 2).T
        return cls(shift, scale)

    @classmethod
    def identity(cls, d: int) -> "ColumnScaling":
        """Values as they are, not even rounded."""
        return cls(np.zeros(d), np.ones(d), rounded=False)

    def flipped(self, signs: Float64[np.ndarray, " d"]) -> "ColumnScaling":
        """This scaling with the columns of sign −1 turned round."""
        return ColumnScaling(self.shift, self.scale * signs, self.rounded)

    def forward(self, values: Num[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """Scaled values of shape (n, d); always finite.

        What lies more than 10¹² deviations from the mean is put there: kernels are 0 long before,
        and squares of distances would overflow further out.
        """
        if not self.rounded:
            return self.exact(values)
        # Powers of 2 change no digit, and keep the difference of values near ±1e308 finite.
        mantissa, exponent = np.frexp(self.scale)
        with np.errstate(over="ignore", under="ignore"):
            near = np.ldexp(values.astype(np.float64), -exponent) - np.ldexp(self.shift, -exponent)
            z: NDArray[np.float64] = np.clip(near / mantissa, -_FARTHEST, _FARTHEST)
        return np.rint(z * _GRID) / _GRID

    def exact(self, values: Num[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """Scaled values with all their digits, however far out: for densities."""
        with np.errstate(over="ignore"):
            return _finite((values.astype(np.float64) - self.shift) / self.scale)

    def backward(self, values: Float64[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """Undo `forward`; the largest float where that is beyond it."""
        with np.errstate(over="ignore"):
            return _finite(values * self.scale + self.shift)

    def backward_deviation(self, std: Float64[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """A standard deviation of scaled values, in the units of the data."""
        with np.errstate(over="ignore"):
            return _finite(std * np.abs(self.scale))

    @property
    def log_scale(self) -> float:
        """Σ log scale: the log density of the data is that of the scaled values minus this."""
        return float(np.log(np.abs(self.scale)).sum())


def _moments(column: Column, weights: Column | None) -> tuple[float, float]:
    """Shift and scale of one column, from values scaled into [−1, 1], where no square overflows."""
    if column.min() == column.max():
        return float(column[0]), 1.0
    largest = _largest(column)
    exponent = math.frexp(largest)[1]
    unit = np.ldexp(column, -exponent)
    total = float(len(column)) if weights is None else math.fsum(_numbers(weights))
    mean = _exact_sum(unit, weights) / total
    shift = math.ldexp(mean, exponent)
    if np.ptp(unit) <= _ROUNDING * math.ldexp(largest, -exponent):
        # Divided by the largest value the rounding, too, is gone.
        return shift, max(1.0, largest)
    deviation = math.sqrt(_exact_sum(np.square(unit - mean), weights) / total)
    return shift, max(math.ldexp(deviation, exponent), math.ulp(0.0))


def _largest(values: Column) -> float:
    return max(-float(values.min()), float(values.max()))


def _exact_sum(values: Column, weights: Column | None) -> float:
    """Σ w·v of values in [−1, 4], right to the last bit for integer w below 2²⁴, so in any order.

    The 24 bits of a float32, and the 29 that remain, times such a weight are exact.
    """
    if weights is None:
        return math.fsum(_numbers(values))
    coarse = values.astype(np.float32).astype(np.float64)
    return math.fsum(chain(_numbers(weights * coarse), _numbers(weights * (values - coarse))))


def _numbers(values: Column) -> chain[float]:
    """The values as Python floats, a block at a time."""
    starts = range(0, len(values), _BLOCK)
    return chain.from_iterable(values[start : start + _BLOCK].tolist() for start in starts)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values, with the largest float in place of infinity."""
    largest = np.finfo(np.float64).max
    return np.clip(values, -largest, largest)


@dataclass(frozen=True)
class Scalings:
    """How inputs and targets were scaled."""

    inputs: ColumnScaling
    targets: ColumnScaling

    @classmethod
    def from_data(
        cls,
        X: Float64[np.ndarray, "n d"],
        y: Column,
        weights: Column | None,
        *,
        inputs: bool,
        targets: bool,
    ) -> "Scalings":
        """Mean 0 and deviation 1 where asked for; else as they are."""
        column = y.reshape(-1, 1)
        return cls(
            ColumnScaling.from_data(X, weights) if inputs else ColumnScaling.identity(X.shape[1]),
            ColumnScaling.from_data(column, weights) if targets else ColumnScaling.identity(1),
        )

    def scaled_targets(self, y: Column) -> Column:
        """The targets in the units of training."""
        scaled: Column = self.targets.forward(y.reshape(-1, 1))[:, 0]
        return scaled


@dataclass(frozen=True)
class TrainingTable:
    """Distinct training rows in the units and the order of training."""

    X: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    weights: Float[Tensor, " n"] | None
    exposure: Float[Tensor, " n"] | None
    scalings: Scalings
    num_rows: int
    """Rows of the user's table that have a weight."""

    num_merged: int
    """How many of them repeat another one."""

    @property
    def count(self) -> float:
        """Rows, each as often as its weight says."""
        return float(len(self.y)) if self.weights is None else float(self.weights.sum())


def training_table(
    X: Float64[np.ndarray, "n d"],
    y: Column,
    weights: Column | None,
    exposure: Column | None,
    scalings: Scalings,
    *,
    turn: bool,
    real_valued: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> TrainingTable:
    """Scale, sort and merge rows.

    Parameters
    ----------
    X, y, weights, exposure : arrays
        As the user has them, checked.
    scalings : Scalings
        Of inputs and targets.
    turn : bool
        Whether columns may be turned round, so that their sign does not matter either.
    real_valued : bool
        Whether −y could as well have been the target.
    dtype, device
        Of the tensors.
    """
    table = canonical(
        scalings.inputs.forward(X),
        scalings.scaled_targets(y),
        weights,
        exposure,
        signed_target=real_valued,
    )
    signs = table.signs if turn else np.ones_like(table.signs)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    return TrainingTable(
        # One 0, not two.
        X=tensor(table.X * signs + 0.0),
        y=tensor(table.y),
        weights=None if table.weights is None else tensor(table.weights),
        exposure=None if table.exposure is None else tensor(table.exposure),
        scalings=Scalings(scalings.inputs.flipped(signs), scalings.targets),
        num_rows=len(table.y) + table.num_merged,
        num_merged=table.num_merged,
    )
