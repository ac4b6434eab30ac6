"""Find the periods of a column of times: calendar periods, and peaks of a periodogram."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from directgp.kernels.parts.periodic import period_in_days

Times = Float64[np.ndarray, " n"]

_CYCLES = 2.0
"""Number of periods that the times must span."""

_ROWS_PER_PERIOD = 2.5
"""Number of typical gaps between times in a period, at least."""

_CALENDAR = ("1d", "1w", "1mo", "1y")
"""Periods that people live by."""

_PEAKS = 2
"""Number of peaks of the periodogram that become periods."""

_FALSE_ALARM = 1e-3
"""Probability that noise alone has a peak as high as one that counts."""

_SNAP = 0.05
"""A peak this close to a calendar period, as a share of it, is that period."""

_HARMONICS = 4
"""A peak at up to this fraction of a calendar period is a harmonic of it."""

_ROUNDING = 1e-9
"""A residual this small, relative to the largest value, is rounding."""

_MOST_TIMES = 3000
"""Largest number of times in a periodogram: the last ones."""


class Period(NamedTuple):
    """A period of a column of times."""

    length: float
    """Length in the unit of the times."""

    text: str
    """A calendar period such as "1y", or empty."""


def periods_of(times: Times, values: Times, *, in_days: bool) -> list[Period]:
    """Return periods that the values may have, the likeliest first.

    Peaks of the Lomb–Scargle periodogram come first, those near a calendar period as that period;
    then the other calendar periods of dates, the longest first.
    """
    order = np.argsort(times, kind="stable")[-_MOST_TIMES:]
    t = times[order]
    gaps = np.diff(t)
    gaps = gaps[gaps > 0]
    if len(gaps) < 2 * _ROWS_PER_PERIOD:
        return []
    shortest = _ROWS_PER_PERIOD * float(np.median(gaps))
    longest = float(t[-1] - t[0]) / _CYCLES
    calendar = {}
    if in_days:
        lengths = {text: period_in_days(text) for text in reversed(_CALENDAR)}
        calendar = {text: p for text, p in lengths.items() if shortest <= p <= longest}
    peaks = [_named(p, calendar) for p in _peaks(t, values[order], shortest, longest)]
    rest = [Period(length, text) for text, length in calendar.items()]
    return list(dict.fromkeys([*peaks, *rest]))


def _named(length: float, calendar: dict[str, float]) -> Period:
    """Return the calendar period of which a length is one, a half, a third or a fourth."""
    for parts in range(1, _HARMONICS + 1):
        for text, exact in calendar.items():
            if abs(parts * length / exact - 1) < _SNAP:
                return Period(exact, text)
    return Period(length, "")


def _peaks(t: Times, values: Times, shortest: float, longest: float) -> list[float]:
    """Return the periods of the highest peaks that noise would not have."""
    if longest <= shortest:
        return []
    from scipy.signal import lombscargle

    residual = values - _trend(t, values)
    spread = float(residual.std())
    if not spread > _ROUNDING * float(np.abs(values).max()):
        return []
    span = float(t[-1] - t[0])
    # Five frequencies for each width of a peak.
    number = min(20_000, int(5 * span * (1 / shortest - 1 / longest)) + 2)
    frequencies = np.linspace(1 / longest, 1 / shortest, number)
    power = lombscargle(t - t[0], residual / spread, 2 * np.pi * frequencies) * 2 / len(t)
    # Noise has e^(−n p/2) above p at one frequency, and about `number` / 5 of them are independent.
    least = 2 * np.log(number / 5 / _FALSE_ALARM) / len(t)
    peaks: list[float] = []
    inner = (power[1:-1] >= power[:-2]) & (power[1:-1] >= power[2:]) & (power[1:-1] > least)
    places = 1 + np.flatnonzero(inner)
    for place in places[np.argsort(-power[places])]:
        period = float(1 / frequencies[place])
        # A harmonic of a longer period is part of its shape.
        ratios = [longer / period for longer in peaks]
        if not any(abs(r - round(r)) < _SNAP * r and round(r) >= 1 for r in ratios):
            peaks.append(period)
        if len(peaks) == _PEAKS:
            break
    return peaks


def _trend(t: Times, values: Times) -> Times:
    """Return a cubic polynomial through the values."""
    unit = 2 * (t - t[0]) / (t[-1] - t[0]) - 1
    fitted: Times = np.polynomial.Polynomial.fit(unit, values, 3)(unit)
    return fitted
