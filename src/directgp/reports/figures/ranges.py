"""The range in which most values can be told apart, where a few are far off or not finite."""

import math
from collections.abc import Sequence

import numpy as np

_FAR = 4.0
"""A value is far off this many usual distances above the lowest."""


def clear_range(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest finite value up to where one is far above most others."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    usual = _FAR * float(np.quantile(finite - low, 0.6))
    if 0 < usual < high - low:
        high = float(finite[finite <= low + usual].max())
    return low, high


def widened(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """With a margin, and never empty."""
    span = high - low or 0.1 * abs(low) or 1.0
    return low - share * span, high + share * span
