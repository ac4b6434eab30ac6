"""Mean 0 and deviation 1 for each column, learnt in one pass over the rows."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.streams.batch import Batch
from directgp.errors import require

Vector = NDArray[np.float64]

_ROUNDING = 2.0**-48
"""A column whose range is no more than this part of its largest value does not vary."""


@final
@dataclass(frozen=True)
class Scaling:
    """z = (x − offset) / scale for each feature, and for the target."""

    offsets: tuple[float, ...]
    scales: tuple[float, ...]
    target_offset: float = 0.0
    target_scale: float = 1.0


def measured(blocks: Iterable[Batch], features: tuple[str, ...], target: str | None) -> Scaling:
    """The means and deviations of all rows, weighted where they have weights.

    A column that is constant, but for rounding, is only centred. The target is scaled if named.
    """
    names = (*features, target) if target else features
    moments = _Moments(len(names))
    for block in blocks:
        values = np.column_stack([block.X, block.y]) if target else block.X
        moments.add(values, block.weights)
    require(moments.total > 0, "Weights", "positive somewhere", "a weight of zero for every row")
    _check_spread(names, moments.scales())
    offsets, scales = moments.mean.tolist(), moments.scales().tolist()
    if target is None:
        return Scaling(tuple(offsets), tuple(scales))
    return Scaling(tuple(offsets[:-1]), tuple(scales[:-1]), offsets[-1], scales[-1])


def _check_spread(names: tuple[str, ...], scales: Vector) -> None:
    for name, scale in zip(names, scales.tolist(), strict=True):
        allowed, remedy = "of numbers whose squares are finite", "Give it in a larger unit."
        require(math.isfinite(scale), f"Column {name!r}", allowed, "larger ones", remedy)


@final
class _Moments:
    """Mean and sum of squared deviations of each column, of all blocks so far."""

    def __init__(self, columns: int) -> None:
        self.total = 0.0
        self.mean: Vector = np.zeros(columns)
        self.squares: Vector = np.zeros(columns)
        self.least: Vector = np.full(columns, np.inf)
        self.most: Vector = np.full(columns, -np.inf)

    def add(self, values: NDArray[np.float64], weights: Vector | None) -> None:
        """Merge those of a block with what is known (Chan, Golub and LeVeque 1983)."""
        if weights is not None:
            values, weights = values[weights > 0], weights[weights > 0]
        if not len(values):
            return
        columns = np.ascontiguousarray(values.T)
        with np.errstate(over="ignore", invalid="ignore"):
            self._merge(*_block_moments(columns, weights))
        self.least = np.minimum(self.least, columns.min(axis=1))
        self.most = np.maximum(self.most, columns.max(axis=1))

    def scales(self) -> Vector:
        """Deviation of each column, 1 where a column does not vary."""
        largest = np.maximum(np.abs(self.least), np.abs(self.most))
        with np.errstate(over="ignore"):
            constant = self.most - self.least <= _ROUNDING * largest
        return np.where(constant, 1.0, np.sqrt(self.squares / self.total))

    def _merge(self, total: float, mean: Vector, squares: Vector) -> None:
        both = self.total + total
        apart = mean - self.mean
        self.mean = self.mean + apart * (total / both)
        self.squares = self.squares + squares + apart**2 * (self.total * total / both)
        self.total = both


def _block_moments(columns: Vector, weights: Vector | None) -> tuple[float, Vector, Vector]:
    """Sum of weights, and of each column the mean and the sum of squared deviations from it."""
    total = float(columns.shape[1] if weights is None else weights.sum())
    # From the first row on, since sums of numbers far from 0 lose their last digits.
    first = columns[:, 0]
    mean = first + _sums(columns - first[:, None], weights) / total
    return total, mean, _sums((columns - mean[:, None]) ** 2, weights)


def _sums(columns: Vector, weights: Vector | None) -> Vector:
    sums: Vector = (columns if weights is None else columns * weights).sum(axis=1)
    return sums
