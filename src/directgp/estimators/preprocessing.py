"""Impute, scale, sort and merge the rows of a table for training.

A row of weight 2 stands for two equal rows, a row of weight 0 for none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Num
from numpy.typing import NDArray
from torch import Tensor

from directgp.estimators.validation import RowValues
from directgp.likelihoods.base import Likelihood
from directgp.registry import ROW_CONSTANTS

Column = Float64[np.ndarray, " n"]
Columns = Float64[np.ndarray, "n d"]

_CLEAR = 1e-6
"""A sum has a clear sign if it exceeds this part of the sum of its absolute terms."""

GRID = 2.0**32
"""Scaled values are multiples of 1/grid: rounding drops the digits that depend on the units."""

MAX_DEVIATIONS = 1e12
"""Scaled inputs are clipped here, where every stationary kernel is 0 and squares still finite."""

_CONSTANT = 2.0**-48
"""A column whose range is at most this part of its largest value counts as constant."""


@dataclass(frozen=True)
class ColumnScaling:
    """z = (x − shift) / scale for each column, rounded to a multiple of 2⁻³².

    Data in other units, a·x + b with a > 0, give the same z, so training takes the same path.

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
    """Value that becomes 0."""

    scale: Float64[np.ndarray, " d"]
    """Not 0; negative if the sign of the column is reversed."""

    rounded: bool = True
    """Whether `forward` rounds and clips; False for the identity."""

    @classmethod
    def from_data(
        cls, values: Num[np.ndarray, "n d"], weights: Num[np.ndarray, " n"] | None = None
    ) -> "ColumnScaling":
        """Return the weighted mean and standard deviation of each column.

        They are equal to the last bit for rows in any order, and for a row of integer weight and
        as many equal rows. A column that is constant up to rounding is only centred.
        """
        if weights is not None:
            values = values[weights > 0]
            weights = weights[weights > 0].astype(np.float64)
            weights = np.ldexp(weights, -math.frexp(float(weights.max()))[1])
        moments = [_moments(column.astype(np.float64), weights) for column in values.T]
        shift, scale = np.array(moments, dtype=np.float64).reshape(-1, 2).T
        return cls(shift, scale)

    @classmethod
    def identity(cls, d: int) -> "ColumnScaling":
        """Return the scaling that changes nothing."""
        return cls(np.zeros(d), np.ones(d), rounded=False)

    def without(self, columns: Sequence[int]) -> "ColumnScaling":
        """Return the scaling that does not change these columns."""
        shift, scale = _with(self.shift, columns, 0.0), _with(self.scale, columns, 1.0)
        return replace(self, shift=shift, scale=scale)

    def forward(self, values: Num[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """Return scaled values, clipped to 10¹² deviations from the mean, so always finite."""
        if not self.rounded:
            return self.exact(values)
        # Powers of 2 change no digit, and keep the difference of values near ±1e308 finite.
        mantissa, exponent = np.frexp(self.scale)
        with np.errstate(over="ignore", under="ignore"):
            near = np.ldexp(values.astype(np.float64), -exponent) - np.ldexp(self.shift, -exponent)
            z: NDArray[np.float64] = np.clip(near / mantissa, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return np.rint(z * GRID) / GRID

    def exact(self, values: Num[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """Return scaled values without rounding and clipping, for densities."""
        with np.errstate(over="ignore"):
            return _finite((values.astype(np.float64) - self.shift) / self.scale)

    def backward(self, values: Float64[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """Return scaled values in the units of the data; the largest float on overflow."""
        with np.errstate(over="ignore"):
            return _finite(values * self.scale + self.shift)

    def backward_deviation(self, std: Float64[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """Return a standard deviation of scaled values in the units of the data."""
        with np.errstate(over="ignore"):
            return _finite(std * np.abs(self.scale))

    @property
    def log_scale(self) -> float:
        """Σ log scale: log p(data) = log p(scaled values) − log_scale."""
        return float(np.log(np.abs(self.scale)).sum())


def _moments(column: Column, weights: Column | None) -> tuple[float, float]:
    """Return shift and scale of one column, from values in [−1, 1], where no square overflows."""
    if column.min() == column.max():
        return float(column[0]), 1.0
    largest = float(np.abs(column).max())
    exponent = math.frexp(largest)[1]
    unit = np.ldexp(column, -exponent)
    total = float(len(column)) if weights is None else math.fsum(weights.data)
    mean = _exact_sum(unit, weights) / total
    shift = math.ldexp(mean, exponent)
    if np.ptp(unit) <= _CONSTANT * math.ldexp(largest, -exponent):
        # Division by the largest value removes the rounding errors, too.
        return shift, max(1.0, largest)
    deviation = math.sqrt(_exact_sum(np.square(unit - mean), weights) / total)
    return shift, max(math.ldexp(deviation, exponent), math.ulp(0.0))


def _exact_sum(values: Column, weights: Column | None) -> float:
    """Return Σ w·v of values in [−1, 4], exact for integer w below 2²⁴ and so in any order.

    The first 24 bits of a value and the other 29, each times such a weight, are exact in float64.
    """
    if weights is None:
        return math.fsum(values.data)
    coarse = values.astype(np.float32).astype(np.float64)
    return math.fsum(chain((weights * coarse).data, (weights * (values - coarse)).data))


def _with(
    values: Float64[np.ndarray, " d"], places: Sequence[int], value: float
) -> Float64[np.ndarray, " d"]:
    """Return a copy of the values with another value at some places."""
    changed = values.copy()
    changed[np.array(places, dtype=np.int64)] = value
    return changed


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values with the largest float in place of infinity."""
    largest = np.finfo(np.float64).max
    return np.clip(values, -largest, largest)


@dataclass(frozen=True)
class Imputation:
    """Medians in place of NaN, and a column of 0 and 1 for each column with gaps in training.

    It is scikit-learn's ``SimpleImputer(strategy="median", add_indicator=True)``. A column without
    any value has the median 0.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 5.0], [np.nan, 6.0], [3.0, 8.0]])
    >>> Imputation.from_data(X).forward(np.array([[np.nan, np.nan]])).tolist()
    [[2.0, 6.0, 1.0]]
    """

    medians: Float64[np.ndarray, " d"]
    """Values in place of gaps."""

    indicated: tuple[int, ...]
    """The columns with gaps in training, in order."""

    @classmethod
    def from_data(cls, X: Columns) -> "Imputation":
        """Return the medians of the columns, without weights."""
        from sklearn.impute import SimpleImputer  # 0.3 s that data without gaps do not need

        options = {"add_indicator": True, "keep_empty_features": True}
        imputer = SimpleImputer(strategy="median", **options).fit(X)
        return cls(imputer.statistics_, tuple(imputer.indicator_.features_.tolist()))

    def without(self, columns: Sequence[int]) -> "Imputation":
        """Return an imputation whose medians of these columns, which have no gaps, are 0."""
        return replace(self, medians=_with(self.medians, columns, 0.0))

    def forward(self, X: Columns) -> Float64[np.ndarray, "n e"]:
        """Return the columns without gaps, and then the indicators."""
        gaps = np.isnan(X)
        return np.column_stack([np.where(gaps, self.medians, X), gaps[:, list(self.indicated)]])

    def names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the columns of `forward`: "x" and "x missing"."""
        return [*names, *(f"{names[j]} missing" for j in self.indicated)]


@dataclass(frozen=True)
class Scalings:
    """The scalings of inputs and targets."""

    inputs: ColumnScaling
    """Scaling of the features."""

    targets: ColumnScaling
    """Scaling of the targets."""

    imputation: Imputation | None = None
    """Applied before the inputs are scaled; None unless missing='impute'."""

    sources: ColumnScaling | None = None
    """Scaling of the columns of the stack; None without a stack."""

    @classmethod
    def from_data(
        cls,
        X: Columns,
        y: Column,
        weights: Column | None,
        *,
        inputs: bool,
        targets: bool,
        impute: bool = False,
        fine: bool = False,
        coded: Sequence[int] = (),
    ) -> "Scalings":
        """Return scalings to mean 0 and deviation 1, or identities where the flag is False.

        With `fine`, targets are not rounded. The columns `coded` have codes of levels, which stay.
        """
        column = y.reshape(-1, 1)
        imputation = Imputation.from_data(X).without(coded) if impute else None
        X = X if imputation is None else imputation.forward(X)
        scaling = ColumnScaling.from_data(column, weights) if targets else ColumnScaling.identity(1)
        return cls(
            ColumnScaling.from_data(X, weights).without(coded)
            if inputs
            else ColumnScaling.identity(X.shape[1]),
            replace(scaling, rounded=False) if fine else scaling,
            imputation,
        )

    @property
    def unit(self) -> float:
        """Unit of the scaled targets: the targets of the user are unit·y + offset."""
        return float(self.targets.scale[0])

    @property
    def offset(self) -> float:
        """Target of the user where the scaled target is 0."""
        return float(self.targets.shift[0])

    def scaled_inputs(self, X: Columns) -> Float64[np.ndarray, "n e"]:
        """Return the inputs in the units of training, with gaps imputed."""
        return self.inputs.forward(X if self.imputation is None else self.imputation.forward(X))

    def scaled_targets(self, y: Column) -> Column:
        """Return the targets in the units of training."""
        scaled: Column = self.targets.forward(y.reshape(-1, 1))[:, 0]
        return scaled

    def exact_targets(self, y: Column) -> Column:
        """Return the targets in the units of training without rounding, for densities."""
        scaled: Column = self.targets.exact(y.reshape(-1, 1))[:, 0]
        return scaled

    def targets_in_units(self, values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
        """Return scaled targets of any shape in the units of the user."""
        return self.targets.backward(values[..., None])[..., 0]

    def deviations_in_units(self, std: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
        """Return standard deviations of scaled targets in the units of the user."""
        return self.targets.backward_deviation(std[..., None])[..., 0]

    def of_latent(self, likelihood: Likelihood, index: int = 0) -> ColumnScaling:
        """Return the scaling between a reported latent and the latent of training.

        The reported latent has the units of the targets, or the scale of the likelihood's link.
        """
        if index in likelihood.units.log_variances:
            shift = 2 * self.targets.log_scale
        elif likelihood.latent_scale:
            shift = likelihood.units.latent_offset
        else:
            return self.targets
        return replace(ColumnScaling.identity(1), shift=np.array([shift]))

    def scaled_rows(self, row_values: RowValues, exact: bool = False) -> Column:
        """Return row values in the units of training; `exact` for densities, without rounding."""
        scales = ROW_CONSTANTS[row_values.argument].scales
        values = np.asarray(row_values.values)
        if scales == "not":
            return values
        if scales == "as variance":
            return np.asarray(values / self.targets.scale[0] ** 2)
        forward = self.targets.exact if exact else self.targets.forward
        infinite = np.isinf(values)
        scaled = forward(np.where(infinite, 0.0, values).reshape(-1, 1))[:, 0]
        return np.where(infinite, values / self.targets.scale[0], scaled)


class CheckedRows(NamedTuple):
    """Checked rows of a table, all of positive weight."""

    X: Columns
    """Features; NaN where a value is to be imputed."""

    y: Column
    """Targets as numbers."""

    weights: Column | None
    """Positive weight of each row; None if all are 1."""

    values: RowValues | None
    """A constant of each row; None without one."""

    @property
    def argument(self) -> str | None:
        """The argument by which the row values were passed."""
        return None if self.values is None else self.values.argument


@dataclass(frozen=True)
class TrainingTable:
    """Distinct training rows in the units and the order of training."""

    X: Float[Tensor, "n d"]
    """Scaled inputs."""

    y: Float[Tensor, " n"]
    """Scaled targets."""

    weights: Float[Tensor, " n"] | None
    """Weight of each row; None if all are 1."""

    row_argument: str | None
    """The argument by which the row values were given."""

    row_values: Float[Tensor, " n"] | None
    """The constant of each row."""

    scalings: Scalings
    """Scalings of inputs and targets."""

    num_rows: int
    """Rows of the user's table with a positive weight."""

    num_merged: int
    """Rows that repeat another row."""

    @property
    def count(self) -> float:
        """The sum of the weights."""
        return float(len(self.y)) if self.weights is None else float(self.weights.sum())


def prepare_rows(
    rows: CheckedRows,
    scalings: Scalings,
    *,
    turn: bool,
    real_valued: bool,
    coded: Sequence[int] = (),
    dtype: torch.dtype,
    device: torch.device,
) -> TrainingTable:
    """Scale rows, sort them, and merge equal rows into one with the sum of their weights.

    With `turn`, signs of columns are reversed so that training does not depend on them. With
    `real_valued`, the sign of y is arbitrary, too. The columns `coded` have codes of levels.
    """
    weights = np.ones(len(rows.y)) if rows.weights is None else rows.weights
    inputs = scalings.scaled_inputs(rows.X)
    # Adding 0 turns −0 into 0.
    table = np.asfortranarray(np.column_stack([inputs, scalings.scaled_targets(rows.y)]) + 0.0)
    d = inputs.shape[1]
    signs = _with(_signs(table, weights / weights.max(), real_valued), coded, 1.0)
    if rows.values is not None:
        table = np.column_stack([table, scalings.scaled_rows(rows.values)])
        # Values that scale as the target have its sign.
        as_target = ROW_CONSTANTS[rows.values.argument].scales == "as target"
        signs = np.append(signs, signs[d] if as_target else 1.0)
    order, starts = _sorted(table, signs, weights)
    # Weights are the last key of the order, so weights of equal rows are added in a fixed order.
    total = np.add.reduceat(weights[order], starts)
    table = table[order[starts]]
    turned = signs[:d] if turn else np.ones(d)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values.copy(), dtype=dtype, device=device)

    turned_inputs = replace(scalings.inputs, scale=scalings.inputs.scale * turned)
    return TrainingTable(
        X=tensor(table[:, :d] * turned + 0.0),
        y=tensor(table[:, d]),
        weights=None if (total == 1).all() else tensor(total),
        row_argument=rows.argument,
        row_values=None if rows.values is None else tensor(table[:, d + 1]),
        scalings=replace(scalings, inputs=turned_inputs),
        num_rows=len(weights),
        num_merged=len(weights) - len(starts),
    )


def _sorted(
    table: Columns, signs: Float64[np.ndarray, " d"], weights: Column
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
    """Return the lexicographic order of the rows, and the positions where a new row begins.

    Each key sorts only the rows that are equal so far, mostly few after the first key. The weights
    are the last key, and do not make rows different.
    """
    order = np.arange(len(table))
    new = order == 0
    for sign, key in zip((*signs, 1.0), (*table.T, weights), strict=True):
        starts = np.flatnonzero(new)
        tied = np.flatnonzero(~(new & np.append(new[1:], True)))
        rows = order[tied]
        run = np.cumsum(new)[tied]
        order[tied] = rows[np.lexsort([sign * key[rows], run])]
        new[tied[1:]] |= np.diff(key[order[tied]]) != 0
    return order, starts


def _signs(table: Columns, weights: Column, signed_target: bool) -> Float64[np.ndarray, " d"]:
    """Return a sign for each column that is reversed with the column; 1 if none is clear.

    It is the sign of the column's third moment; else of its product with the squared norm of the
    row, which does not depend on signs; else of that with the columns whose sign is known.
    """
    squares = np.einsum("ij,ij->i", table, table)
    target = table.shape[1] - 1
    signs = np.ones(table.shape[1])
    signed_sum = np.zeros(len(table))
    for j in (target, *range(target)):
        column = table[:, j]
        if j < target or signed_target:
            for reference in (column * column, squares, signed_sum):
                terms = weights * column * reference
                total = float(terms.sum())
                if abs(total) > _CLEAR * float(np.abs(terms).sum()):
                    signs[j] = math.copysign(1.0, total)
                    break
        signed_sum += signs[j] * column
    return signs
