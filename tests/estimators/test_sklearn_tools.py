"""Estimators in pipelines, searches and other tools of scikit-learn."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.exceptions import DataConversionWarning
from sklearn.model_selection import (
    GridSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from tests.estimators import small_data
from tests.estimators.small_data import COUNTS, LABELS, X, Y

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

# What these tools do does not depend on the objective, and this one takes the least time.
LIGHT, REGRESSION, COUNTING = (
    {**settings, "objective": "elbo"}
    for settings in (small_data.LIGHT, small_data.REGRESSION, small_data.COUNTING)
)
FRAME = pd.DataFrame(X, columns=["age", "height"])

Maker = Callable[..., Any]
CASES = [
    pytest.param(SparseGPRegressor, REGRESSION, Y, id="regressor"),
    pytest.param(SparseGPClassifier, LIGHT, LABELS, id="classifier"),
    pytest.param(SparseGPCountRegressor, COUNTING, COUNTS, id="counts"),
]


def probabilities(model: Any, table: Any = X) -> Any:
    """What is predicted, as finely as it can be told."""
    return model.predict_proba(table) if hasattr(model, "predict_proba") else model.predict(table)


@pytest.fixture(scope="module")
def regressor() -> SparseGPRegressor:
    return SparseGPRegressor(**REGRESSION).fit(X, Y)


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_copies_of_a_fitted_model_predict_the_same(maker: Maker, settings: Any, y: Any) -> None:
    model = maker(**settings).fit(X, y)
    expected = probabilities(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(probabilities(twin), expected)
        assert twin.get_params() == model.get_params()


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_a_clone_has_the_settings_and_nothing_learnt(maker: Maker, settings: Any, y: Any) -> None:
    model = maker(**settings).fit(X, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert not [name for name in vars(twin) if name.endswith("_")]
    np.testing.assert_array_equal(probabilities(twin.fit(X, y)), probabilities(model))


def test_settings_are_kept_as_they_are_given() -> None:
    inducing = X[:3]
    model = SparseGPRegressor(inducing=inducing, beta=np.float32(2))
    assert model.get_params()["inducing"] is inducing
    assert model.set_params(beta=0.5, kernel="matern32").get_params()["kernel"] == "matern32"
    with pytest.raises(ValueError, match="Invalid parameter 'betta'"):
        model.set_params(betta=1.0)


def test_a_pipeline_predicts_as_the_estimator(regressor: SparseGPRegressor) -> None:
    scaled = make_pipeline(StandardScaler(), SparseGPRegressor(**REGRESSION)).fit(X, Y)
    np.testing.assert_allclose(scaled.predict(X), regressor.predict(X), rtol=1e-6, atol=1e-8)
    assert scaled.set_params(sparsegpregressor__beta=3.0)[-1].beta == 3.0


def test_columns_of_strings_are_encoded_by_a_transformer() -> None:
    table = FRAME.assign(colour=["red", "green", "blue"] * 8)
    encode = ColumnTransformer(
        [("names", OneHotEncoder(sparse_output=False), ["colour"])], remainder="passthrough"
    )
    model = make_pipeline(encode, SparseGPClassifier(**LIGHT)).fit(table, LABELS)
    assert model.predict_proba(table).shape == (24, 2)
    assert model[-1].n_features_in_ == 5


@pytest.mark.slow
def test_a_grid_is_searched_by_two_processes() -> None:
    grid = {"beta": [0.5, 5.0], "kernel": ["rbf", "matern52"]}
    search = GridSearchCV(SparseGPRegressor(**REGRESSION), grid, cv=2, n_jobs=2).fit(X, Y)
    alone = GridSearchCV(SparseGPRegressor(**REGRESSION), grid, cv=2).fit(X, Y)
    assert search.best_params_ == alone.best_params_
    np.testing.assert_allclose(search.predict(X), alone.predict(X), rtol=1e-10)


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_cross_validation_gives_finite_scores(maker: Maker, settings: Any, y: Any) -> None:
    assert np.isfinite(cross_val_score(maker(**settings), X, y, cv=2)).all()
    assert cross_val_predict(maker(**settings), X, y, cv=2).shape == (24,)


def test_probabilities_can_be_calibrated() -> None:
    model = CalibratedClassifierCV(SparseGPClassifier(**LIGHT), cv=2).fit(X, LABELS)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


def test_three_classes_by_one_against_the_rest() -> None:
    flowers, kinds = load_iris(return_X_y=True)
    settings = {**LIGHT, "num_inducing": 10, "max_iter": 10}
    model = OneVsRestClassifier(SparseGPClassifier(**settings)).fit(flowers[::2], kinds[::2])
    probability = model.predict_proba(flowers[1::2])
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    assert model.score(flowers[1::2], kinds[1::2]) > 0.9


def test_fit_accepts_arrays_mapped_from_a_file(
    tmp_path: Path, regressor: SparseGPRegressor
) -> None:
    joblib.dump((X, Y), tmp_path / "data")
    table, y = joblib.load(tmp_path / "data", mmap_mode="r")
    assert not table.flags.writeable
    model = SparseGPRegressor(**REGRESSION).fit(table, y)
    np.testing.assert_array_equal(model.predict(table), regressor.predict(X))


def test_columns_of_a_frame_are_known_by_name(regressor: SparseGPRegressor) -> None:
    model = SparseGPRegressor(**REGRESSION).fit(FRAME, pd.Series(Y))
    assert model.feature_names_in_.tolist() == ["age", "height"]
    np.testing.assert_array_equal(model.predict(FRAME), regressor.predict(X))
    with pytest.raises(ValueError, match="same order"):
        model.predict(FRAME[["height", "age"]])
    with pytest.raises(ValueError, match="Feature names unseen at fit time"):
        model.predict(FRAME.rename(columns={"age": "weight"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)


def test_columns_of_a_polars_frame_are_known_by_name(regressor: SparseGPRegressor) -> None:
    frame = pl.DataFrame({"age": X[:, 0], "height": X[:, 1]})
    model = SparseGPRegressor(**REGRESSION).fit(frame, pl.Series(Y))
    assert model.feature_names_in_.tolist() == ["age", "height"]
    np.testing.assert_array_equal(model.predict(frame), regressor.predict(X))


def test_results_are_plain_arrays_of_float64() -> None:
    model = SparseGPRegressor(dtype="float32", **REGRESSION).fit(FRAME, Y)
    found = [*model.predict(FRAME, return_std=True), *model.predict_interval(FRAME)]
    assert all(type(each) is np.ndarray and each.dtype == np.float64 for each in found)


def test_weights_and_exposures_are_routed() -> None:
    hours = np.linspace(1.0, 3.0, 24)
    with config_context(enable_metadata_routing=True):
        model = SparseGPCountRegressor(**COUNTING)
        model.set_fit_request(exposure=True, sample_weight=True)
        model.set_predict_request(exposure=True)
        model.set_score_request(exposure=True, sample_weight=True)
        scaled = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model)
        scaled.fit(X, COUNTS, exposure=hours, sample_weight=np.ones(24))
        assert (scaled.predict(X, exposure=3 * hours) > scaled.predict(X, exposure=hours)).all()
        parameters = {"exposure": hours, "sample_weight": np.ones(24)}
        scores = cross_validate(scaled, X, COUNTS, cv=2, params=parameters)
    assert np.isfinite(scores["test_score"]).all()


def test_a_column_of_targets_is_flattened_with_a_warning(regressor: SparseGPRegressor) -> None:
    with pytest.warns(DataConversionWarning, match="column-vector"):
        model = SparseGPRegressor(**REGRESSION).fit(X, Y[:, None])
    np.testing.assert_array_equal(model.predict(X), regressor.predict(X))


@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        *((("no", "yes"), kind) for kind in ("as they are", "objects", "categories")),
        *(((1, 2), kind) for kind in ("as they are", "objects", "categories")),
        ((False, True), "as they are"),
        ((False, True), "objects"),
        ((-1, 1), "as they are"),
        ((-1.0, 1.0), "as they are"),
        ((-1.0, 1.0), "categories"),
        ((np.int8(3), np.int8(7)), "as they are"),
    ],
)
def test_labels_may_have_any_type(pair: tuple[Any, Any], kind: str) -> None:
    y: Any = np.where(LABELS == "yes", pair[1], pair[0])
    if kind == "objects":
        y = y.astype(object)
    if kind == "categories":
        y = pd.Series(y, dtype="category")
    model = SparseGPClassifier(**LIGHT).fit(X, y)
    assert model.classes_.tolist() == list(pair)
    second = model.predict_proba(X)[:, 1] > 0.5
    assert model.predict(X).tolist() == [pair[int(each)] for each in second]
    assert model.score(X, y) > 0.5
    assert np.isfinite(model.nll(X, y))
