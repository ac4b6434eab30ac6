"""Out-of-fold features: no leakage, the scale of each task, estimators of the user, errors."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from threadpoolctl import ThreadpoolController

from directgp.errors import InvalidInputError
from directgp.registry import Task
from directgp.stack.scales import Scale
from directgp.stack.sources import (
    ForeignModel,
    Rows,
    check_stack,
    few_threads,
    sources_of,
    with_every_class,
)
from directgp.stack.stack import Stack, fit_stack, fold_of_rows
from directgp.stack.trees import Trees

Array = NDArray[np.float64]

N = 600


def inputs(n: int = N, d: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d))


def score(X: Array) -> Array:
    return np.asarray(np.sin(2 * X[:, 0]) + X[:, 1])


def noise(n: int = N, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=n)


def fitted(
    value: Any, X: Array, y: Array, task: Task = "regression", seed: int = 0, **options: Any
) -> tuple[Stack, Array]:
    sources = sources_of(value, task, "fit")
    return fit_stack(sources, X, y, task=task, seed=seed, **options)


def correlation(a: Array, b: Array) -> float:
    return float(np.corrcoef(a, b)[0, 1])


# No leakage


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stack", ["trees", RandomForestRegressor(20, n_jobs=1)])
def test_features_do_not_know_the_noise_of_their_row(stack: Any, seed: int) -> None:
    X, y = inputs(seed=seed), noise(seed=100 + seed)
    fit, columns = fitted(stack, X, y, seed=seed)
    # The correlation of independent columns has the standard error 1/√n; that of out-of-fold
    # predictions lies below it, as the rows of other folds pull the other way.
    assert correlation(columns[:, 0], y) <= 3 / np.sqrt(N)
    # Four of the five models of a new row saw the training rows.
    assert correlation(fit.columns(X)[:, 0], y) >= 10 / np.sqrt(N)


@pytest.mark.parametrize("classes", [2, 4])
def test_features_do_not_know_the_class_of_their_row(classes: int) -> None:
    X = inputs()
    y = np.random.default_rng(5).integers(classes, size=N).astype(float)
    _, columns = fitted("trees", X, y, "classification", num_classes=classes)
    for k in range(columns.shape[1]):
        is_class = (y == (1 if classes == 2 else k)).astype(float)
        assert correlation(columns[:, k], is_class) <= 3 / np.sqrt(N)


def test_a_model_without_splits_gives_the_same_number_to_all_rows() -> None:
    # Five rows of each leaf cannot be had: the mean outside of a fold would tell the fold's mean.
    _, columns = fitted("trees", inputs(8), noise(8))
    assert np.ptp(columns) == 0


def test_a_target_changes_no_feature_of_its_own_row() -> None:
    X, y = inputs(), score(inputs())
    other = y.copy()
    # Its rank does not change, and so neither do the folds.
    largest = int(y.argmax())
    other[largest] += 5.0
    stack = RandomForestRegressor(10, random_state=0)
    changed = np.flatnonzero((fitted(stack, X, y)[1] != fitted(stack, X, other)[1])[:, 0])
    assert largest not in changed and len(changed) > 0


def test_out_of_fold_features_are_as_good_as_features_of_new_rows() -> None:
    X, new = inputs(), inputs(seed=9)
    fit, columns = fitted("trees", X, score(X) + 0.1 * noise())
    assert correlation(columns[:, 0], score(X)) > 0.9
    assert correlation(fit.columns(new)[:, 0], score(new)) > 0.9


# Folds


def test_folds_have_the_same_targets() -> None:
    y = np.sort(noise())
    folds = fold_of_rows(y, False, np.random.default_rng(0))
    assert np.bincount(folds).tolist() == [N // 5] * 5
    for start in range(0, N, 5):
        assert sorted(folds[start : start + 5]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows_of_class", [[5, 300], [7, 6, 11, 5]])
def test_every_fold_has_each_class_of_five_rows(rows_of_class: list[int]) -> None:
    y = np.repeat(np.arange(len(rows_of_class)), rows_of_class).astype(float)
    y = np.random.default_rng(0).permutation(y)
    folds = fold_of_rows(y, True, np.random.default_rng(0))
    for k in range(5):
        assert set(y[folds == k]) == set(y)


@pytest.mark.parametrize("n", [2, 3, 5, 11, 12, 13, 30])
@pytest.mark.parametrize("task", ["regression", "count", "classification"])
def test_few_rows_have_features(n: int, task: Task) -> None:
    y = (np.arange(n) % 2).astype(float)
    link = "log" if task == "count" else "identity"
    fit, columns = fitted("trees", inputs(n), y, task, link=link)
    assert columns.shape == (n, 1) and np.isfinite(columns).all()
    assert np.isfinite(fit.columns(inputs(50))).all()
    assert len(fit.sources[0].folds) == min(n, 5)


def test_the_seed_fixes_every_bit() -> None:
    X, y = inputs(), score(inputs()) + noise()
    stack = ["trees", RandomForestRegressor(5)]
    first, again, other = (fitted(stack, X, y, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first[1], again[1])
    np.testing.assert_array_equal(first[0].columns(X), again[0].columns(X))
    assert (first[1] != other[1]).any(axis=0).all()


def test_gaps_are_allowed() -> None:
    X, y = inputs(), score(inputs())
    X[::3, 0] = np.nan
    fit, columns = fitted("trees", X, y)
    assert np.isfinite(columns).all()
    assert np.isfinite(fit.columns(np.full((4, 3), np.nan))).all()


# The scale of each task


def test_features_of_positive_targets_are_logs() -> None:
    X, y = inputs(), np.exp(score(inputs()))
    _, columns = fitted("trees", X, y, link="log")
    assert abs(np.mean(columns[:, 0] - np.log(y))) < 0.1
    assert correlation(columns[:, 0], np.log(y)) > 0.9


def test_features_of_proportions_are_log_odds() -> None:
    X, logits = inputs(), score(inputs())
    fit, columns = fitted("trees", X, 1 / (1 + np.exp(-logits)), link="logit")
    assert correlation(columns[:, 0], logits) > 0.9
    # A share of 0 or 1 counts as a quarter of a failure or success in all other rows.
    (ends,) = {(f.scale.low, f.scale.high) for f in fit.sources[0].folds}
    assert ends == pytest.approx((0.25 / (0.8 * N), 1 - 0.25 / (0.8 * N)))


def test_features_of_counts_are_logs_of_rates() -> None:
    X = inputs(3000)
    exposure = np.random.default_rng(0).uniform(1, 100, size=3000)
    y = np.random.default_rng(1).poisson(exposure * np.exp(score(X))).astype(float)
    _, columns = fitted("trees", X, y, "count", link="log", amounts=exposure)
    assert abs(np.mean(columns[:, 0] - score(X))) < 0.1
    assert correlation(columns[:, 0], score(X)) > 0.95


def test_features_of_successes_are_log_odds_of_shares() -> None:
    X = inputs(3000)
    trials = np.random.default_rng(0).integers(1, 50, size=3000).astype(float)
    chance = 1 / (1 + np.exp(-score(X)))
    y = np.random.default_rng(1).binomial(trials.astype(int), chance).astype(float)
    fit, columns = fitted("trees", X, y, "count", link="logit", amounts=trials)
    assert correlation(columns[:, 0], score(X)) > 0.95
    least = fit.sources[0].folds[0].scale.low
    assert least == pytest.approx(0.25 / (0.8 * trials.sum()), rel=0.1)


def test_counts_of_zero_alone_have_a_finite_log() -> None:
    y = np.zeros(50)
    y[0] = 1.0
    _, columns = fitted("trees", inputs(50), y, "count", link="log")
    assert columns.min() >= np.log(0.25 / 50)


def test_an_exposure_is_a_weight_of_the_rate() -> None:
    X, y, exposure = inputs(), np.ones(N), np.random.default_rng(0).uniform(1, 9, size=N)
    model = PoissonRegressor(alpha=0, max_iter=1000, tol=1e-8)
    _, by_exposure = fitted(model, X, y, "count", link="log", amounts=exposure)
    _, by_weight = fitted(model, X, y / exposure, "count", link="log", weights=exposure)
    # The folds differ, as they are of equal rates.
    assert abs(np.mean(by_exposure - by_weight)) < 0.05


@pytest.mark.parametrize("classes", [2, 3])
def test_features_of_classes_are_scores(classes: int) -> None:
    X = inputs(2000)
    y = np.digitize(score(X), [0.0] if classes == 2 else [-0.5, 0.5]).astype(float)
    fit, columns = fitted("trees", X, y, "classification", num_classes=classes)
    assert columns.shape == (2000, 1 if classes == 2 else 3)
    found = columns[:, 0] > 0 if classes == 2 else columns.argmax(1)
    assert np.mean(found == y) > 0.9
    assert fit.names == (("trees",) if classes == 2 else ("trees 0", "trees 1", "trees 2"))


@pytest.mark.parametrize(
    "stack",
    ["trees", RandomForestClassifier(10), LogisticRegression(), LinearSVC(), SVC()],
    ids=lambda stack: type(stack).__name__,
)
@pytest.mark.parametrize("counts", [[1, 99], [1, 49, 50], [2, 1, 1, 96]])
def test_a_class_without_rows_outside_a_fold_has_its_column(stack: Any, counts: list[int]) -> None:
    y = np.repeat(np.arange(len(counts)), counts).astype(float)
    number = len(counts)
    fit, columns = fitted(stack, inputs(100), y, "classification", num_classes=number)
    new = fit.columns(inputs(20, seed=3))
    assert columns.shape[1] == new.shape[1] == (1 if number == 2 else number)
    assert np.isfinite(columns).all() and np.isfinite(new).all()
    # The first class is the rarest one, and the only column of two is that of the second.
    assert new.mean(0)[-1] > (0 if number == 2 else new.mean(0)[0])


def test_rows_added_for_a_class_weigh_a_quarter_of_a_row_together() -> None:
    rows = Rows(inputs(10), np.repeat([0.0, 2.0], 5), None, None)
    more = with_every_class(rows, 3, seed=0)
    assert more.y[10:].tolist() == [1.0, 1.0] and more.weights is not None
    assert more.weights.tolist() == [1.0] * 10 + [0.125] * 2
    assert all((row == rows.X).all(1).any() for row in more.X)
    assert with_every_class(rows._replace(y=np.repeat([0.0, 1.0], 5)), 2, seed=0).weights is None


def test_names_of_classes() -> None:
    y = (np.arange(60) % 3).astype(float)
    labels = ["a", "b", "c"]
    fit, _ = fitted("trees", inputs(60), y, "classification", num_classes=3, labels=labels)
    assert fit.names == ("trees a", "trees b", "trees c")


# Weights


def test_weights_reach_the_models_that_take_them() -> None:
    X = np.concatenate([inputs(200), inputs(200)])
    y = np.concatenate([np.zeros(200), np.ones(200)]) + 0.1 * noise(400)
    weights = np.repeat([1.0, 9.0], 200)
    stack = ["trees", LinearRegression(), KNeighborsRegressor(20)]
    _, columns = fitted(stack, X, y, weights=weights)
    # At equal inputs the mean with weights is 0.9, and without 0.5.
    assert (columns.mean(0) > 0.7).tolist() == [True, True, False]


# Estimators of the user


def test_a_list_has_a_column_each() -> None:
    X, y = inputs(), score(inputs())
    stack = [LinearRegression(), "trees", make_pipeline(StandardScaler(), LinearRegression())]
    fit, columns = fitted([*stack, LinearRegression()], X, y)
    assert fit.names == ("LinearRegression", "trees", "Pipeline", "LinearRegression 2")
    assert columns.shape == (N, 4) == fit.columns(X).shape
    np.testing.assert_allclose(columns[:, 0], columns[:, 2], rtol=0, atol=0.1)


def test_an_estimator_is_cloned() -> None:
    forest = RandomForestRegressor(5)
    fitted(forest, inputs(), score(inputs()))
    assert not hasattr(forest, "estimators_") and forest.random_state is None


@pytest.mark.parametrize(
    ("link", "loss", "scale"),
    [
        ("identity", "squared_error", Scale()),
        ("log", "gamma", Scale(low=np.log(0.25))),
        ("log", "squared_error", Scale("log", 0.25)),
    ],
)
def test_boosting_of_the_user_is_kept_as_arrays(link: Any, loss: str, scale: Scale) -> None:
    X, y = inputs(), 1 + np.exp(score(inputs()))
    y[:10] = 1.0
    model = HistGradientBoostingRegressor(loss=loss, max_iter=20, random_state=0)
    fit, columns = fitted(model, X, y, link=link)
    assert all(isinstance(f.model, Trees) and f.scale == scale for f in fit.sources[0].folds)
    expected = np.log(y) if link == "log" else y
    assert correlation(columns[:, 0], expected) > 0.8


def test_boosting_on_another_scale_is_kept_as_it_is() -> None:
    X, y = inputs(), np.exp(score(inputs()))
    model = HistGradientBoostingRegressor(loss="gamma", max_iter=20)
    fit, columns = fitted(model, X, y)
    assert isinstance(fit.sources[0].folds[0].model, ForeignModel)
    assert correlation(columns[:, 0], y) > 0.5
    many = HistGradientBoostingClassifier(max_leaf_nodes=None, min_samples_leaf=1, max_iter=2)
    labels = (noise() > 0).astype(float)
    fit, _ = fitted(many, X, labels, "classification")
    assert isinstance(fit.sources[0].folds[0].model, ForeignModel)


class Strange(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts what it is told to."""

    def __init__(self, prediction: Any = 0.0) -> None:
        self.prediction = prediction

    def fit(self, X: Any, y: Any) -> "Strange":
        if self.prediction is None:
            raise RuntimeError("no fit today.")
        return self

    def predict(self, X: Any) -> Any:
        return np.broadcast_to(self.prediction, (len(X), *np.shape(self.prediction)))


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (None, "The source 'Strange' of the stack cannot be fitted: no fit today."),
        (np.nan, "predict of the source 'Strange' of the stack must be finite numbers. Got nan"),
        (np.inf, "must be finite numbers. Got inf in row 0"),
        ([1.0, 2.0], "must be 1 numbers for each row. Got 2"),
    ],
)
def test_a_strange_source_is_named(prediction: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        fitted(Strange(prediction), inputs(), score(inputs()))
    assert message in str(error.value)


class Fails(Strange):
    def predict(self, X: Array) -> Array:
        raise ValueError("no predictions today")


def test_a_source_whose_predictions_fail_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"source 'Fails' of the stack failed: no predict"):
        fitted(Fails(1.0), inputs(), score(inputs()))


def test_amounts_reach_the_source_or_it_is_refused() -> None:
    """A pipeline takes no sample_weight: rates of all rows would count alike."""
    rates = make_pipeline(StandardScaler(), PoissonRegressor())
    with pytest.raises(InvalidInputError, match="Pipeline' of the stack must be one whose fit"):
        fitted(rates, inputs(), np.ones(N), "count", link="log", amounts=np.ones(N))


def test_one_row_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="rows of a stack must be at least two different"):
        fitted("trees", inputs(1), np.ones(1))


def test_predictions_without_a_logarithm_are_clipped() -> None:
    X, y = inputs(), 2 + np.abs(noise())
    _, columns = fitted(Strange(-1.0), X, y, link="log")
    np.testing.assert_allclose(columns, np.log(y.min() / 4), rtol=0.2)


@pytest.mark.parametrize(
    ("value", "task", "got"),
    [
        ("forest", "regression", "Got 'forest'."),
        ([], "regression", "Got an empty list."),
        (3, "regression", "Got 3."),
        (["auto"], "regression", "Got 'auto'."),
        ([None], "regression", "Got None."),
        (LinearRegression, "regression", "Give an instance: LinearRegression()."),
        (LogisticRegression(), "regression", "Got LogisticRegression."),
        ([LinearRegression(), SVC()], "count", "Got SVC."),
        (LinearRegression(), "classification", "Got LinearRegression."),
        (StandardScaler(), "regression", "Got StandardScaler, which has no predict."),
    ],
)
def test_what_cannot_be_a_source_is_refused(value: Any, task: Task, got: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        check_stack(value, task, "SparseGPRegressor.fit")
    kind = "classifier" if task == "classification" else "regressor"
    start = f"stack of SparseGPRegressor.fit must be 'auto', 'trees', None, a scikit-learn {kind}"
    assert str(error.value).startswith(start)
    assert got in str(error.value)


@pytest.mark.parametrize("value", [None, "auto", "trees", ["trees"], LinearRegression()])
def test_what_can_be_a_source(value: Any) -> None:
    check_stack(value, "regression", "fit")
    assert len(sources_of(value, "regression", "fit")) == (value is not None)


def test_rows_of_another_width_are_refused() -> None:
    fit, _ = fitted("trees", inputs(), score(inputs()))
    with pytest.raises(InvalidInputError, match=r"X of the stack must be of shape \(n, 3\)"):
        fit.columns(inputs(4, 2))


@pytest.mark.parametrize(
    ("before", "entries", "inside"), [(8, 100, 2), (8, 2**20, 4), (1, 2**20, 1)]
)
def test_boosting_takes_the_threads_that_pay_and_restores_their_number(
    before: int, entries: int, inside: int
) -> None:
    def threads() -> set[int]:
        libraries = ThreadpoolController().select(user_api="openmp").info()
        return {library["num_threads"] for library in libraries}

    with ThreadpoolController().limit(limits=before, user_api="openmp"):
        with few_threads(entries):
            assert threads() == {inside}
        assert threads() == {before}
