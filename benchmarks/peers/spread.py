"""Medians with quartiles, ratios within a round, and exponents with standard errors."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> Spread:
    """Return the ratio of two times within each round."""
    return Spread.of([a / b for a, b in zip(numerator, denominator, strict=True)])


@dataclass(frozen=True)
class Exponent:
    """b of time = a·size^b, with its standard error."""

    value: float
    error: float


def exponent(sizes: Sequence[float], times: Sequence[float]) -> Exponent:
    """Fit log time to log size by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    fit = statistics.linear_regression(x, y)
    residuals = [b - fit.slope * a - fit.intercept for a, b in zip(x, y, strict=True)]
    centre = statistics.fmean(x)
    squares = sum((a - centre) ** 2 for a in x)
    variance = sum(r**2 for r in residuals) / (len(x) - 2) if len(x) > 2 else math.nan
    return Exponent(fit.slope, math.sqrt(variance / squares))
