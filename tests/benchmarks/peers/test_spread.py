"""Ratios, quartiles and exponents against known numbers."""

from functools import partial

import numpy as np
import pytest
from scipy.stats import linregress

from benchmarks.peers.rounds import interleaved
from benchmarks.peers.spread import Spread, exponent, ratios


def test_quartiles_are_those_of_numpy() -> None:
    values = [3.0, 1.0, 2.0, 8.0, 5.0, 1.5]
    found = Spread.of(values)
    expected = np.quantile(values, [0.25, 0.5, 0.75])
    assert [found.low, found.median, found.high] == pytest.approx(expected)
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0)


def test_ratios_are_taken_within_rounds() -> None:
    # A machine that becomes three times slower leaves the ratio as it is.
    assert ratios([2.0, 6.0], [1.0, 3.0]) == Spread(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_exponents_and_their_errors_are_those_of_scipy() -> None:
    sizes, times = [1.0, 2.0, 4.0, 8.0], [1.1, 1.9, 4.4, 7.7]
    fit = linregress(np.log(sizes), np.log(times))
    found = exponent(sizes, times)
    assert (found.value, found.error) == pytest.approx((fit.slope, fit.stderr))
    assert exponent(sizes, [3 * s**1.5 for s in sizes]).value == pytest.approx(1.5)


def test_every_round_has_everyone_and_orders_differ() -> None:
    calls: list[str] = []

    def task(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    times = interleaved({name: partial(task, name) for name in "abc"}, 20)
    rounds = ["".join(calls[i : i + 3]) for i in range(0, 60, 3)]
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert len(set(rounds)) > 3
    assert [len(t) for t in times.values()] == [20, 20, 20]
