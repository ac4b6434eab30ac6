import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from directgp.plots.calibration import pit_bars, reliability
from directgp.reports.verdict import pooled
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
