"""Means over repeats."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np

_Key = TypeVar("_Key", bound=Hashable)


@final
@dataclass(frozen=True)
class Average:
    """A mean and its standard error, which is NaN for one value."""

    mean: float
    error: float


def average(values: Sequence[float]) -> Average:
    """Over repeats; infinite or NaN if one of them is."""
    numbers = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(numbers.mean())
        deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return Average(mean, deviation / math.sqrt(len(numbers)))


def averages(pairs: Iterable[tuple[_Key, float]]) -> dict[_Key, Average]:
    """The mean at each place, in the order in which places come first."""
    found: dict[_Key, list[float]] = {}
    for place, value in pairs:
        found.setdefault(place, []).append(value)
    return {place: average(values) for place, values in found.items()}
