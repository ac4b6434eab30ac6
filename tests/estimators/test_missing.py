"""Missing values: an error, or the median of the column and an indicator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor, load
from directgp.errors import InvalidInputError, ModelFileError
from directgp.estimators.preprocessing import ColumnScaling, Imputation
from directgp.experiments.splits import CellData, ScaledParts
from directgp.io import read_file, write_file
from directgp.persistence.models import MODEL
from tests.estimators.small_data import COUNTING, COUNTS, LABELS, LIGHT, REGRESSION, Y
from tests.estimators.small_data import X as COMPLETE

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

GAP = np.nan
X = COMPLETE.copy()
X[[2, 5, 9], 0] = GAP
"""The second column has no gap here, and has one in the new rows."""

NEW = np.array([[GAP, 0.5], [0.3, GAP], [GAP, GAP], [0.2, -0.7]])
CASES = [
    pytest.param(SparseGPRegressor, REGRESSION, Y, id="regressor"),
    pytest.param(SparseGPClassifier, LIGHT, LABELS, id="classifier"),
    pytest.param(SparseGPCountRegressor, COUNTING, COUNTS, id="counts"),
]
Maker = Callable[..., Any]


def imputed(**settings: Any) -> SparseGPRegressor:
    given = {**REGRESSION, "missing": "impute", **settings}
    return SparseGPRegressor(**given).fit(X, Y)


def predictions(model: Any, inputs: Any = NEW) -> list[Any]:
    found = [*model.predict_latent(inputs), model.predict(inputs)]
    if isinstance(model, SparseGPClassifier):
        return [*found, model.predict_proba(inputs)]
    return [*found, *model.predict_interval(inputs), model.sample_y(inputs, 2)]


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_it_is_a_pipeline_with_the_imputer_of_scikit_learn(
    maker: Maker, settings: Any, y: Any
) -> None:
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    pipeline = make_pipeline(imputer, maker(**settings)).fit(X, y)
    model = maker(missing="impute", **settings).fit(X, y)
    assert model.posterior_.Z.shape[1] == 3 and model.n_features_in_ == 2
    for ours, theirs in zip(
        predictions(model), predictions(pipeline[-1], imputer.transform(NEW)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    labels = y[: len(NEW)]
    assert model.nll(NEW, labels) == pipeline[-1].nll(imputer.transform(NEW), labels)
    model.partial_fit(NEW, labels)
    pipeline[-1].partial_fit(imputer.transform(NEW), labels)
    np.testing.assert_array_equal(
        model.predict_latent(NEW)[0], pipeline[-1].predict_latent(imputer.transform(NEW))[0]
    )


def test_without_gaps_nothing_is_added() -> None:
    plain = SparseGPRegressor(**REGRESSION).fit(COMPLETE, Y)
    model = SparseGPRegressor(missing="impute", **REGRESSION).fit(COMPLETE, Y)
    np.testing.assert_array_equal(model.predict(COMPLETE), plain.predict(COMPLETE))
    filled = np.where(np.isnan(NEW), np.median(COMPLETE, axis=0), NEW)
    np.testing.assert_array_equal(model.predict(NEW), plain.predict(filled))


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_an_error_names_the_option(maker: Maker, settings: Any, y: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"X contains NaN.* Fit with missing='impute', or"):
        maker(**settings).fit(X, y)
    model = maker(**settings).fit(COMPLETE, y)
    # A parameter that is changed after the fit does not change the model.
    with pytest.raises(InvalidInputError, match=r"NaN.* got .* Fit with missing='impute'"):
        model.set_params(missing="impute").predict(NEW)
    with pytest.raises(InvalidInputError, match=r"parameters of .*partial_fit must be"):
        model.partial_fit(X, y)


def test_infinity_stays_an_error() -> None:
    with pytest.raises(InvalidInputError, match=r"infinity .* got one, in row 1, column 1"):
        imputed().predict([[GAP, 0.0], [GAP, np.inf]])


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_the_tag_of_scikit_learn_follows_the_parameter(maker: Maker, settings: Any, y: Any) -> None:
    for missing in ("error", "impute"):
        tags = maker(missing=missing).__sklearn_tags__()
        assert tags.input_tags.allow_nan == (missing == "impute")


def test_gaps_of_a_pandas_table_and_the_names_of_indicators() -> None:
    table = pd.DataFrame(X, columns=["x", "z"]).astype("Float64")
    assert table["x"].isna().sum() == 3
    model = SparseGPRegressor(missing="impute", **{**REGRESSION, "ard": True}).fit(table, Y)
    assert list(model.feature_names_in_) == ["x", "z"] and model.n_features_in_ == 2
    said = model.summary()
    assert "24 rows, 2 features" in said and "\n  x missing " in said


def test_validation_rows_and_inducing_inputs_may_be_given() -> None:
    given = {**REGRESSION, "beta": "auto", "num_inducing": "auto", "inducing": COMPLETE[:5]}
    model = SparseGPRegressor(missing="impute", **given).fit(X, Y, validation_data=(NEW, Y[:4]))
    assert np.isfinite(model.predict(NEW)).all()
    with pytest.raises(InvalidInputError, match=r"inducing of fit must be .*\(m, 2\)"):
        imputed(num_inducing="auto", inducing=np.zeros((4, 3)))


def test_a_column_without_values_is_constant() -> None:
    empty = np.column_stack([X, np.full(24, GAP)])
    with pytest.warns(UserWarning, match="every training row: 'column 2', 'column 2 missing'"):
        SparseGPRegressor(missing="impute", **REGRESSION).fit(empty, Y)


def test_a_model_of_one_feature_is_plotted() -> None:
    model = SparseGPRegressor(missing="impute", **REGRESSION).fit(X[:, :1], Y)
    drawn = model.plot_predictions(X[:, :1], Y)
    assert np.isfinite(drawn.get_xlim()).all()


# Files


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_a_loaded_model_predicts_and_learns_the_same(
    maker: Maker, settings: Any, y: Any, tmp_path: Path
) -> None:
    model = maker(missing="impute", **settings).fit(X, y)
    model.save(tmp_path / "model")
    found = load(tmp_path / "model")
    assert found.missing == "impute" and found.n_features_in_ == 2
    for _ in range(2):
        for ours, theirs in zip(predictions(found), predictions(model), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for each in (model, found):
            each.partial_fit(NEW, y[:4])


def medians(tensors: Any, record: Any) -> None:
    tensors["arrays.medians"] = tensors["arrays.medians"][:1]


def indicated(tensors: Any, record: Any) -> None:
    record["indicated"] = [2]


def twice(tensors: Any, record: Any) -> None:
    record["indicated"] = [0, 0]


@pytest.mark.parametrize("damage", [medians, indicated, twice])
def test_an_imputation_that_does_not_fit_is_refused(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    imputed().save(path)
    contents = read_file(MODEL, path)
    damage(contents.tensors, contents.manifest["record"])
    write_file(MODEL, path, *contents)
    with pytest.raises(ModelFileError):
        load(path)


# The rows of experiments


def parts(gaps: np.ndarray) -> CellData:
    return CellData((gaps[:12], Y[:12]), (gaps[12:18], Y[12:18]), (gaps[18:], Y[18:]), 12)


@pytest.mark.parametrize("row", [3, 13, 20], ids=["training", "validation", "test"])
def test_rows_of_experiments_are_imputed_by_the_training_rows(row: int) -> None:
    with_gaps = COMPLETE.copy()
    with_gaps[row, 1] = GAP
    rows = ScaledParts.of(parts(with_gaps), "regression")
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(with_gaps[:12])
    filled = imputer.transform(with_gaps)
    scaled = ColumnScaling.from_data(filled[:12]).forward(filled)
    found = np.concatenate([part[0] for part in (rows.train, rows.validation, rows.test)])
    np.testing.assert_array_equal(found, scaled)
    assert found.shape == (24, 3 if row < 12 else 2)


def test_rows_without_gaps_stay_as_they_were() -> None:
    rows = ScaledParts.of(parts(COMPLETE), "regression")
    scaled = ColumnScaling.from_data(COMPLETE[:12]).forward(COMPLETE)
    found = np.concatenate([part[0] for part in (rows.train, rows.validation, rows.test)])
    assert found.tobytes() == scaled.tobytes()


def test_the_imputation_of_random_tables_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(1)
    for share in (0.0, 0.3, 0.9):
        table = random.normal(size=(30, 5))
        table[random.random(table.shape) < share] = GAP
        imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        imputer.fit(table[:20])
        ours = Imputation.from_data(table[:20])
        np.testing.assert_array_equal(ours.forward(table), imputer.transform(table))
        names = [f"x{j}" for j in range(5)]
        assert len(ours.names(names)) == len(imputer.get_feature_names_out())
