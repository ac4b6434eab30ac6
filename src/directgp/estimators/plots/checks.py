"""What may be drawn: arrays of one axis and equal length, with values that have a place."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from directgp.errors import require

Array = NDArray[np.float64]


def column(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """The values as floats, refused unless they are a non-empty array of one axis."""
    array = np.asarray(values, dtype=np.float64)
    require(array.ndim == 1 and len(array) > 0, who, "one axis of values", f"shape {array.shape}")
    if length is not None:
        require(len(array) == length, who, f"{length} values, as the others are", len(array))
    return array


def finite(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """A column, refused where a value is NaN or infinite."""
    array = column(values, who, length)
    _require_each(np.isfinite(array), array, who, "finite")
    return array


def shares(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """A column of values from 0 to 1."""
    array = column(values, who, length)
    _require_each((array >= 0) & (array <= 1), array, who, "from 0 to 1")
    return array


def labels(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """A column of 0 and 1."""
    array = column(values, who, length)
    _require_each((array == 0) | (array == 1), array, who, "labels 0 and 1")
    return array


def interval(lower: ArrayLike, upper: ArrayLike, length: int) -> tuple[Array, Array]:
    """The ends of intervals, in order."""
    low, high = column(lower, "lower", length), column(upper, "upper", length)
    _require_each(low <= high, low, "lower", "at most upper")
    return low, high


def check_coverage(coverage: float) -> None:
    """Refuse a share of the predictive mass that no interval has."""
    require(0 < coverage < 1, "coverage", "between 0 and 1", coverage)


def check_bins(bins: int) -> None:
    """Refuse a number of bins that is none."""
    require(bins >= 1, "bins", "at least 1", bins)


def _require_each(mask: NDArray[np.bool_], array: Array, who: str, allowed: str) -> None:
    if not mask.all():
        first = int(np.argmin(mask))
        require(False, who, allowed, f"{array[first].item()!r} at index {first}")
