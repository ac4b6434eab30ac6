"""Periods of series with known seasons."""

import numpy as np
import pytest

from directgp.race.periods import periods_of

YEAR = 365.2425


def monthly(n: int) -> np.ndarray:
    """Return the days of the first of n months from 1970."""
    months = np.datetime64("1970-01") + np.arange(n)
    return months.astype("datetime64[D]").astype(np.float64)


def noise(n: int) -> np.ndarray:
    """Return noise of deviation 0.2."""
    return 0.2 * np.random.default_rng(0).normal(size=n)


def test_a_yearly_season_of_months_is_a_year() -> None:
    t = monthly(120)
    y = 1e-6 * t**2 + np.sin(2 * np.pi * t / YEAR) + noise(120)
    first, *_ = periods_of(t, y, in_days=True)
    assert (first.length, first.text) == (YEAR, "1y")


def test_two_waves_a_year_are_a_season_of_a_year() -> None:
    t = monthly(120)
    y = np.sin(4 * np.pi * t / YEAR) + noise(120)
    assert [period.text for period in periods_of(t, y, in_days=True)] == ["1y"]


def test_the_weeks_of_days_come_before_the_year() -> None:
    t = np.arange(1000.0)
    y = np.sin(2 * np.pi * t / 7) + noise(1000)
    assert [period.text for period in periods_of(t, y, in_days=True)] == ["1w", "1y", "1mo"]


def test_a_period_of_numbers_is_found_by_the_periodogram() -> None:
    t = np.linspace(0, 50, 400)
    y = np.sin(2 * np.pi * t / 3.7) ** 3 + noise(400)
    periods = periods_of(t, y, in_days=False)
    # A width of the peak is the span over the number of cycles, squared.
    assert [period.text for period in periods] == [""]
    assert periods[0].length == pytest.approx(3.7, abs=3.7**2 / 50 / 2)


def test_noise_has_no_period() -> None:
    for seed in range(20):
        t = np.arange(200.0)
        y = np.random.default_rng(seed).normal(size=200)
        assert periods_of(t, y, in_days=False) == []


def test_short_and_constant_series_have_no_period() -> None:
    assert periods_of(np.arange(4.0), np.arange(4.0), in_days=True) == []
    assert periods_of(np.zeros(50), np.arange(50.0), in_days=True) == []
    assert periods_of(np.arange(50.0), np.ones(50), in_days=False) == []


def test_a_calendar_period_must_fit_twice() -> None:
    t = np.arange(600.0)
    texts = [period.text for period in periods_of(t, noise(600), in_days=True)]
    assert "1y" not in texts
    assert texts == ["1mo", "1w"]
