"""Plans of a comparison: methods, splits, and the ranking at the end."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from directgp.errors import InvalidInputError
from directgp.experiments.cell import METHODS, methods_to_compare, suited_methods
from directgp.experiments.plan import make_plan
from directgp.experiments.splits import Parts, parts_of, split
from directgp.experiments.stats import corrected_p_value, estimates
from directgp.metrics import COVERED, ERROR, NLL
from directgp.registry import Task
from tests.unit.experiments.small import problem


def test_what_is_run_unless_one_says_otherwise() -> None:
    plan = make_plan(problem(n=400))
    assert plan.repeats == 5 and plan.sizes == (220,) and len(plan.methods) == 12
    chosen = plan.settings
    assert (chosen.likelihood, chosen.kernel, chosen.ard) == ("auto", "auto", "auto")
    assert len(plan.cells()) == 60 == len({cell.key for cell in plan.cells()})
    # Of labels only one likelihood is a candidate.
    labels = make_plan(problem("classification", n=400))
    assert labels.settings.likelihood == "probit" and len(labels.methods) == 8


def test_what_methods_start_from() -> None:
    def starts(**settings: Any) -> dict[str, str | None]:
        plan = make_plan(problem(n=400), repeats=1, **settings)
        return {c.method: None if c.start is None else c.start.method for c in plan.cells()}

    found = starts()
    assert found["elbo"] is None and found["elbo-basic"] == found["log-joint"] == "elbo"
    # They have Gaussian noise, whatever the likelihood of the others is.
    assert found["fitc"] == found["square-joint"] == found["square-fixed"] == "elbo-basic"
    assert {found[name] for name in ("auto", "mean", "linear", "boosting")} == {None}
    given = starts(likelihood="gaussian", kernel="rbf", ard=True)
    assert "elbo-basic" not in given
    assert given["fitc"] is None and given["square-joint"] == given["log-fixed"] == "elbo"


def test_many_rows_are_not_all_trained_on() -> None:
    assert make_plan(problem(n=40_000)).sizes == (20_000,)
    assert make_plan(problem(n=40_000), sizes=[None, 500]).sizes == (500, 26_800)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"repeats": 0}, "repeats must be at least 1. Got 0."),
        ({"num_inducing": 0}, "num_inducing must be at least 1. Got 0."),
        ({"max_steps": 0}, "max_steps must be at least 1. Got 0."),
        ({"betas": []}, "betas must be of at least one value. Got none."),
        ({"betas": [1.0, -1.0]}, "betas must be finite numbers of at least 0. Got -1.0."),
        ({"betas": [math.nan]}, "betas must be finite numbers of at least 0. Got nan."),
        (
            {"kernel": "cosine"},
            "kernel must be one of auto, rbf, matern12, matern32, matern52.",
        ),
        ({"seed": -1}, "seed must be at least 0. Got -1."),
        ({"dtype": "float16"}, "dtype must be 'float64' or 'float32'. Got 'float16'."),
        ({"device": "tpu"}, "device must be 'cpu' or 'cuda'. Got 'tpu'."),
        ({"sizes": []}, "sizes must be of at least one value. Got none."),
        ({"sizes": [9]}, "sizes must be 'all' or from 10 to 220"),
        ({"likelihood": "probit"}, "likelihood must be one of gaussian, student_t, "),
        ({"methods": ["magic"]}, "methods must be of elbo, beta-elbo"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_a_wrong_plan_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        make_plan(problem(n=400), **asked)
    assert str(raised.value).startswith(words)


def test_regression_has_all_methods() -> None:
    assert [method.name for method in suited_methods("regression")] == list(METHODS)


@pytest.mark.parametrize("task", ["classification", "count"])
def test_other_tasks_have_the_methods_that_need_no_gaussian(task: Task) -> None:
    names = [method.name for method in suited_methods(task)]
    assert names == ["elbo", "beta-elbo", "log-joint", "log-fixed"]


def test_other_noise_has_what_needs_no_gaussian() -> None:
    assert len(suited_methods("regression", "student_t")) == 4


def test_the_order_is_always_the_same() -> None:
    found = methods_to_compare("regression", ["log-joint", "elbo"], "gaussian")
    assert [method.name for method in found] == ["elbo", "log-joint"]


def test_an_unknown_method_is_refused() -> None:
    words = r"methods must be of elbo, .* here\. Got 'fitc'\. FITC needs a real-valued target"
    with pytest.raises(InvalidInputError, match=words):
        methods_to_compare("count", ["fitc"], "poisson")
    with pytest.raises(InvalidInputError, match=r"methods must be at least one of"):
        methods_to_compare("count", [], "poisson")


@pytest.mark.parametrize(
    ("rows", "training", "validation", "test"),
    [
        (100, 55, 20, 25),
        (442, 244, 88, 110),
        (1000, 650, 100, 250),
        (15000, 10050, 1200, 3750),
        (2_000_000, 1_975_000, 5000, 20_000),
    ],
)
def test_sizes_of_the_parts(rows: int, training: int, validation: int, test: int) -> None:
    parts = parts_of(rows)
    assert (parts.training, parts.validation, parts.test) == (training, validation, test)


def test_parts_share_no_row() -> None:
    found = split(problem(n=200), repeat=0, size=parts_of(200).training, seed=1)
    rows = np.concatenate(found)
    assert sorted(rows.tolist()) == list(range(200))


def test_sizes_share_what_they_can() -> None:
    small, large = (split(problem(n=200), 3, size, seed=1) for size in (20, 90))
    assert small[0].tolist() == large[0][:20].tolist()
    assert [each.tolist() for each in small[1:]] == [each.tolist() for each in large[1:]]


def test_repeats_and_seeds_differ_and_come_back() -> None:
    def rows(repeat: int, seed: int) -> list[int]:
        return list(split(problem(n=200), repeat, 50, seed)[0])

    assert rows(0, 0) == rows(0, 0)
    assert len({tuple(rows(r, s)) for r in range(3) for s in range(3)}) == 9


def test_labels_are_spread_evenly() -> None:
    given = problem("classification", n=400)
    share = given.y.mean()
    for rows in split(given, 0, 40, seed=0):
        # Each stratum is within two places of where an even spread has it.
        assert abs(given.y[rows].sum() - share * len(rows)) <= 4


def test_real_targets_are_drawn_without_their_help() -> None:
    given = problem(n=400)
    means = [given.y[split(given, r, 100, 0)[2]].mean() for r in range(30)]
    error = given.y.std() / np.sqrt(100) * np.sqrt(300 / 399)
    assert 0.6 * error < np.std(means, ddof=1) < 1.5 * error


@pytest.mark.parametrize("size", [0, 56])
def test_a_size_beyond_the_training_rows_is_refused(size: int) -> None:
    with pytest.raises(InvalidInputError, match=r"size must be from 1 to 55\. Got"):
        split(problem(n=100), 0, size, 0)


PARTS = Parts(training=300, validation=40, test=100)


def test_without_shared_rows_it_is_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=6), random.normal(0.5, size=6)
    assert corrected_p_value(a - b, 0.0) == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_shared_rows_raise_the_p_value() -> None:
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


def test_the_best_and_those_close_to_it_are_marked() -> None:
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
