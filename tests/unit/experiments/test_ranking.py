"""The ranking of methods, and tests of differences from the best."""

import math

import numpy as np
import pytest
from scipy import stats

from directgp.experiments.plan import Parts
from directgp.experiments.stats import corrected_p_value, estimates
from directgp.metrics import COVERED, ERROR, NLL

PARTS = Parts(training=300, validation=40, test=100)


def test_without_shared_rows_it_is_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=6), random.normal(0.5, size=6)
    assert corrected_p_value(a - b, 0.0) == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_shared_rows_make_it_more_careful() -> None:
    differences = np.array([0.5, 0.8, 0.6])
    t = differences.mean() / (differences.std(ddof=1) * math.sqrt(1 / 3 + 0.4))
    assert corrected_p_value(differences, 0.4) == pytest.approx(2 * stats.t.sf(t, 2))
    assert corrected_p_value(differences, 0.4) > corrected_p_value(differences, 0.0)


@pytest.mark.parametrize(("differences", "p"), [([0.0, 0.0], 1.0), ([0.1, 0.1], 0.0)])
def test_differences_that_do_not_vary(differences: list[float], p: float) -> None:
    assert corrected_p_value(np.array(differences), 0.4) == p


def test_the_correction_keeps_its_level_on_splits_of_one_table() -> None:
    """Two constant predictors that are equally good: the plain test calls them different too often.

    400 tables; a rate of 5 % has a standard error of 1.1 points.
    """
    random = np.random.default_rng(1)
    plain, corrected = 0, 0
    for _ in range(400):
        y = random.normal(size=80)
        differences = []
        for _ in range(10):
            order = random.permutation(80)
            train, test = y[order[:60]], y[order[60:]]
            # Means of the first and of the second half of the rows that are trained on.
            a, b = train[:30].mean(), train[30:].mean()
            differences.append(np.mean((test - a) ** 2 - (test - b) ** 2))
        plain += corrected_p_value(np.array(differences), 0.0) < 0.05
        corrected += corrected_p_value(np.array(differences), 20 / 60) < 0.05
    assert corrected / 400 < 0.05 + 2 * 0.011
    assert corrected < plain


def test_best_and_close() -> None:
    values = np.array([[1.0, 1.1, 0.9], [1.01, 1.09, 0.91], [3.0, 3.1, 2.9]])
    first, second, third = estimates(NLL, values, PARTS)
    assert (first.best, second.best, third.best) == (True, False, False)
    assert (first.close, second.close, third.close) == (True, True, False)
    assert math.isnan(first.p_value) and second.p_value > 0.05 > third.p_value
    assert first.mean == pytest.approx(1.0)
    assert first.error == pytest.approx(0.1 / math.sqrt(3))


def test_coverage_is_best_at_its_nominal_value() -> None:
    found = estimates(COVERED, np.array([[0.99, 0.99], [0.88, 0.91], [0.5, 0.5]]), PARTS)
    assert [each.best for each in found] == [False, True, False]


def test_one_repeat_has_no_test() -> None:
    first, second = estimates(NLL, np.array([[1.0], [1.001]]), PARTS)
    assert first.best and first.close
    assert not second.close and math.isnan(second.p_value) and math.isnan(second.error)


def test_coverage_is_told_apart_by_its_values() -> None:
    values = np.array([[0.85, 0.95, 0.84, 0.96], [0.88, 0.88, 0.89, 0.88]])
    first, second = estimates(COVERED, values, PARTS)
    assert first.best and second.close


def test_shares_that_differ_by_the_same_rows_are_not_told_apart_by_that() -> None:
    """Two repeats that differ by 4 of 100 rows each: as if their deviation were one row."""
    first, second = estimates(ERROR, np.array([[0.04, 0.08], [0.08, 0.12]]), PARTS)
    t = 0.04 / (0.01 * math.sqrt(1 / 2 + 100 / 300))
    assert first.best and second.close
    assert second.p_value == pytest.approx(2 * stats.t.sf(t, 1))


def test_what_is_no_number_is_worst() -> None:
    values = np.array([[math.nan, 1.0], [3.0, 3.0], [math.inf, 1.0]])
    found = estimates(NLL, values, PARTS)
    assert [each.best for each in found] == [False, True, False]
    assert [each.close for each in found] == [False, True, False]
