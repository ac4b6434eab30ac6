"""Calibration in a report: the bins, the levels, and the sentence about them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from directgp.experiments.plan import Comparison
from directgp.metrics import reliability
from directgp.plots.calibration import pit_bars
from directgp.reports.findings import Findings, pooled
from directgp.reports.verdict import calibration
from tests.unit.reports.made import Recipe, comparison


def test_of_real_numbers_it_is_the_usual_histogram() -> None:
    pit = np.random.default_rng(0).uniform(0.001, 0.999, 500)
    expected, _ = np.histogram(pit, bins=8, range=(0, 1), density=True)
    np.testing.assert_allclose(pit_bars(pit, pit, 8), expected, rtol=1e-12)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8),
    st.integers(1, 12),
)
@example([(0.0, 5e-324)], 2)
def test_each_row_spreads_its_weight_evenly(rows: list[tuple[float, float]], bins: int) -> None:
    below, up_to = np.sort(np.array(rows), axis=1).T
    bars = pit_bars(below, up_to, bins)
    assert bars.sum() == pytest.approx(bins)
    expected = np.zeros(bins)
    for low, high in zip(below, up_to, strict=True):
        if high - low > 1e-9:
            for k in range(bins):
                overlap = min(high, (k + 1) / bins) - max(low, k / bins)
                expected[k] += bins * max(overlap, 0.0) / (high - low) / len(rows)
    if (up_to - below > 1e-9).all():
        np.testing.assert_allclose(bars, expected, atol=1e-6)


def test_ends_are_kept() -> None:
    np.testing.assert_allclose(
        pit_bars(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 4), [2, 0, 0, 2]
    )


def test_right_counts_are_flat_and_wrong_ones_are_not() -> None:
    random = np.random.default_rng(1)
    rate = random.uniform(0.5, 4, 20_000)
    y = random.poisson(rate)
    flat = pit_bars(stats.poisson.cdf(y - 1, rate), stats.poisson.cdf(y, rate), 10)
    np.testing.assert_allclose(flat, 1.0, atol=0.06)
    low = pit_bars(stats.poisson.cdf(y - 1, rate / 2), stats.poisson.cdf(y, rate / 2), 10)
    assert low[-1] > 1.5 and low[0] < 0.7


def test_reliability_is_what_one_counts() -> None:
    random = np.random.default_rng(2)
    p = random.uniform(0, 1, 300)
    ones = (random.uniform(0, 1, 300) < p**2).astype(float)
    found = reliability(ones, p, bins=5)
    total = 0.0
    for k in range(5):
        inside = [(a, b) for a, b in zip(p, ones, strict=True) if k / 5 <= a < (k + 1) / 5]
        assert found.count[k] == len(inside)
        assert found.predicted[k] == pytest.approx(sum(a for a, _ in inside) / len(inside))
        assert found.observed[k] == pytest.approx(sum(b for _, b in inside) / len(inside))
        total += abs(sum(a - b for a, b in inside))
    assert found.expected_error == pytest.approx(total / 300)


def test_empty_bins_are_left_out() -> None:
    found = reliability(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    assert found.count.tolist() == [1, 1]
    assert found.expected_error == 0


def test_rows_that_are_not_finite_are_left_out() -> None:
    runs = comparison(Recipe(methods=("elbo",), repeats=2, num_test=7)).runs
    assert len(pooled(runs).actual) == 14
    runs[0].predictions.mean[2] = np.inf
    runs[1].predictions.up_to[0] = np.nan
    assert len(pooled(runs).actual) == 12


ONE = comparison(Recipe(task="classification", repeats=1, methods=("elbo",)))
FIVE = comparison(Recipe(task="classification", repeats=5, methods=("elbo",)))
WRONG = "not calibrated"
TIMES = 200

Array = NDArray[np.float64]


def words(made: Comparison, told: list[tuple[Array, Array]], num_rows: int = 10**6) -> str:
    """Of labels and the probabilities that were given to them, repeat by repeat."""
    runs = [
        replace(run, predictions=replace(run.predictions, **_rows(*each)))
        for run, each in zip(made.runs, told, strict=True)
    ]
    data = made.plan.data.model_copy(update={"num_rows": num_rows})
    findings = Findings(replace(made, runs=tuple(runs), plan=replace(made.plan, data=data)))
    return calibration(findings, findings.ranking[0])


def _rows(ones: Array, p: Array) -> dict[str, Array]:
    zero = np.zeros(len(p))
    return {
        "actual": ones,
        "mean": p,
        "lower": zero,
        "upper": zero + 1,
        "below": zero,
        "up_to": zero + 1,
    }


def drawn(random: np.random.Generator, p: Array) -> Array:
    return (random.random(len(p)) < p).astype(np.float64)


@pytest.mark.parametrize("rows", [30, 150, 300, 700])
@pytest.mark.parametrize("shape", [(1.0, 1.0), (0.3, 0.3), (0.5, 5.0)])
def test_right_probabilities_are_believed(rows: int, shape: tuple[float, float]) -> None:
    random = np.random.default_rng([7, rows])
    wrong = 0
    for _ in range(TIMES):
        p = random.beta(*shape, rows)
        wrong += WRONG in words(ONE, [(drawn(random, p), p)])
    assert wrong <= 0.06 * TIMES


def test_right_probabilities_are_believed_where_repeats_share_rows() -> None:
    random, table = np.random.default_rng(8), 280
    wrong = 0
    for _ in range(TIMES):
        p = random.random(table)
        ones = drawn(random, p)
        repeats = [random.permutation(table)[: table // 2] for _ in range(5)]
        wrong += WRONG in words(FIVE, [(ones[each], p[each]) for each in repeats], table)
    assert wrong <= 0.06 * TIMES


@pytest.mark.parametrize(("rows", "least"), [(150, 0.7), (700, 1.0)])
def test_wrong_probabilities_are_not(rows: int, least: float) -> None:
    random = np.random.default_rng([9, rows])
    found = 0
    for _ in range(TIMES):
        p = random.random(rows)
        sure = p**3 / (p**3 + (1 - p) ** 3)
        found += WRONG in words(ONE, [(drawn(random, p), sure)])
    assert found >= least * TIMES


def test_what_few_rows_can_show_is_said() -> None:
    random = np.random.default_rng(10)
    p = random.random(100)
    assert "are as near the observed shares as so few rows can show, off by " in words(
        ONE, [(drawn(random, p), p)]
    )
    p = random.random(100_000)
    assert "are near the observed shares, off by " in words(ONE, [(drawn(random, p), p)])


def test_the_error_by_chance_is_what_chance_gives() -> None:
    random = np.random.default_rng(11)
    p = random.random(500)
    errors = [reliability(drawn(random, p), p).expected_error for _ in range(1000)]
    limit = reliability(drawn(random, p), p).error_by_chance()
    assert limit == pytest.approx(np.mean(errors) + 2 * np.std(errors), rel=0.05)
