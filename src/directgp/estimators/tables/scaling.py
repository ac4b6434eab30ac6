"""Columns with mean 0 and deviation 1: the same numbers in whatever units the data come."""

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Float64, Num
from numpy.typing import NDArray

_GRID = 2.0**32
"""Scaled values are multiples of 1/grid: the last digits, which change with the units, are gone."""

_FARTHEST = 1e12
"""Deviations from the mean beyond which inputs are alike: every stationary kernel is 0 there."""

_ROUNDING = 2.0**-48
"""A column whose range is no more than this part of its largest value does not vary."""

_BLOCK = 2**16

Column = Float64[np.ndarray, " n"]


@dataclass(frozen=True)
class Scaling:
    """z = (x − shift) / scale for each column, rounded to a multiple of 2⁻³².

    So data in other units, a·x + b with a > 0, give the same z, and training takes the same path.

    Examples
    --------
    >>> import numpy as np
    >>> metres = np.array([[1.0], [3.0]])
    >>> Scaling.from_data(metres).forward(metres).tolist()
    [[-1.0], [1.0]]
    >>> Scaling.from_data(100 * metres).forward(100 * metres).tolist()
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
    ) -> "Scaling":
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
    def identity(cls, d: int) -> "Scaling":
        """Values as they are, not even rounded."""
        return cls(np.zeros(d), np.ones(d), rounded=False)

    def flipped(self, signs: Float64[np.ndarray, " d"]) -> "Scaling":
        """This scaling with the columns of sign −1 turned round."""
        return Scaling(self.shift, self.scale * signs, self.rounded)

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
