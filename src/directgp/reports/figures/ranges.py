"""The range in which most values can be told apart, where a few are far off or not finite."""

import math
from collections.abc import Sequence

import numpy as np

_FAR = 4.0
"""A value is far off this many usual distances above the lowest."""

_LEAST = 1e-3
"""Of a range, as a share of its values."""


def clear_range(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest finite value up to where one is far above most others."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    usual = _FAR * float(np.quantile(finite - low, 0.6))
    if 0 < 2 * usual < high - low:
        high = float(finite[finite <= low + usual].max())
    return low, high


def widened(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """With a margin, and never so narrow that noise looks like a difference."""
    least = _LEAST * max(abs(low), abs(high)) or 1.0
    extra = max(0.0, least - (high - low)) / 2
    margin = share * max(high - low, least)
    return low - extra - margin, high + extra + margin
