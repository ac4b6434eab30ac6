"""What differences say: their mean, its error, a test and an interval, infinite ones included."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from directgp.datasets.wording import several
from directgp.experiments.paper.claims.thresholds import LEVEL
from directgp.experiments.standings import corrected_p_value

_UPPER = (1 + LEVEL) / 2


@final
@dataclass(frozen=True)
class Evidence:
    """Of a mean difference."""

    effect: float
    error: float
    """Standard error; NaN where it is not known."""

    p_value: float
    """Two-sided; NaN where there is no test."""

    low: float
    high: float
    """The 95 % interval; all numbers where nothing is known."""

    over: str = ""
    """What was averaged over: "5 repeats"."""

    note: str = ""


def differences(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """One minus other in float64; what is not finite is worst, and two of the worst are equal."""
    first, second = worst(one), worst(other)
    tie = np.isinf(first) & np.isinf(second)
    return np.subtract(first, second, out=np.zeros_like(first), where=~tie)


def worst(values: NDArray[Any]) -> NDArray[np.float64]:
    """The same in float64, with ∞ for what is not finite."""
    wide = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(wide), wide, np.inf)


def over_repeats(values: NDArray[np.float64], ratio: float, resolution: float = 0.0) -> Evidence:
    """Of one difference a repeat: the paired t-test of `corrected_p_value`, and its interval.

    The standard error is the plain one; test and interval have the corrected variance.
    """
    finite = values[np.isfinite(values)]
    mean, error = _mean_and_error(finite)
    found = Evidence(
        effect=mean,
        error=error,
        p_value=corrected_p_value(finite, ratio, resolution),
        low=mean - _half_width(finite, ratio, resolution),
        high=mean + _half_width(finite, ratio, resolution),
        over=several(len(values), "repeat"),
    )
    return _with_infinite(found, values)


def over_rows(repeats: Sequence[NDArray[np.float64]]) -> Evidence:
    """Of the differences of test rows, averaged over repeats: a z-test."""
    finite = [rows[np.isfinite(rows)] for rows in repeats]
    moments = np.array([_mean_and_error(rows) for rows in finite if len(rows)]).reshape(-1, 2)
    number = max(len(moments), 1)
    found = measured(
        float(moments[:, 0].sum()) / number, float(np.linalg.norm(moments[:, 1])) / number
    )
    over = several(sum(map(len, repeats)), "test row")
    return _with_infinite(replace(found, over=over), np.concatenate(repeats))


def measured(effect: float, error: float) -> Evidence:
    """Of a number whose standard error is known: a z-test."""
    if not (math.isfinite(effect) and math.isfinite(error)):
        return Evidence(effect, math.nan, math.nan, -math.inf, math.inf)
    half = float(stats.norm.ppf(_UPPER)) * error
    return Evidence(effect, error, _z_test(effect, error), effect - half, effect + half)


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Of finite values; NaN where there are too few."""
    number = len(values)
    mean = float(values.mean()) if number else math.nan
    return mean, float(values.std(ddof=1)) / math.sqrt(number) if number > 1 else math.nan


def _half_width(values: NDArray[np.float64], ratio: float, resolution: float) -> float:
    """Of the interval that belongs to `corrected_p_value`."""
    number = len(values)
    if number < 2:
        return math.inf
    deviation = max(float(values.std(ddof=1)), resolution)
    return float(stats.t.ppf(_UPPER, number - 1)) * deviation * math.sqrt(1 / number + ratio)


def _z_test(effect: float, error: float) -> float:
    if error == 0:
        return 1.0 if effect == 0 else 0.0
    return float(2 * stats.norm.sf(abs(effect) / error))


def _with_infinite(found: Evidence, values: NDArray[np.float64]) -> Evidence:
    """The same with infinite differences, which decide alone only where there is nothing else.

    An infinite one says for whom it is but not how surely: the finite ones have to say the same.
    """
    above, below = int(np.isposinf(values).sum()), int(np.isneginf(values).sum())
    if not above + below:
        return found
    end = math.nan if above and below else math.inf if above else -math.inf
    note = f"{above + below} of {several(len(values), 'difference')} infinite"
    infinite = replace(found, effect=end, error=math.nan, note=note)
    if above + below == len(values):
        return _all_infinite(infinite, len(values))
    agrees = found.effect * end > 0
    return replace(
        infinite,
        p_value=found.p_value if agrees else math.nan,
        low=-math.inf if below else found.low,
        high=math.inf if above else found.high,
    )


def _all_infinite(found: Evidence, number: int) -> Evidence:
    """Sure of itself, unless there is but one or they contradict each other."""
    if number == 1 or math.isnan(found.effect):
        return replace(found, p_value=math.nan, low=-math.inf, high=math.inf)
    return replace(found, p_value=0.0, low=found.effect, high=found.effect)
