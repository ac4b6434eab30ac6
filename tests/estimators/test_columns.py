"""Columns that are not numbers: dates, categories, groups and places."""

import datetime
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor, load
from directgp.errors import DirectGPWarning, InvalidInputError, ModelFileError
from directgp.estimators import partial_dependence
from directgp.export import to_numpy
from directgp.io import read_file, write_file
from directgp.persistence.models import MODEL

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

N = 40
LIGHT: dict[str, Any] = {
    "objective": "elbo",
    "beta": 1.0,
    "kernel": "rbf",
    "ard": True,
    "hyperparameters": "joint",
    "num_inducing": 8,
    "max_iter": 15,
    "random_state": 0,
}
GAUSSIAN = LIGHT | {"likelihood": "gaussian"}
CITIES = ["Bern", "Aarau", "Chur"]


def frame() -> pd.DataFrame:
    """Return a number, a category, a date, and a place."""
    random = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "size": random.normal(size=N),
            "city": [CITIES[k % 3] for k in range(N)],
            "date": pd.date_range("2021-03-01", periods=N, freq="D"),
            "lat": random.uniform(46, 47, N),
            "lon": random.uniform(6, 10, N),
        }
    )


TABLE = frame()
Y = TABLE["size"] + (TABLE["city"] == "Chur") + np.arange(N) / N
LABELS = np.where(Y > Y.mean(), "high", "low")
COUNTS = (3 * (Y - Y.min())).round()


def fitted(X: Any = TABLE, y: Any = Y, **settings: Any) -> Any:
    return SparseGPRegressor(**{**GAUSSIAN, **settings}).fit(X, y)


@pytest.fixture(scope="module")
def model() -> Any:
    return fitted()


def kinds(model: Any) -> list[str]:
    return [column.kind for column in model.columns_.columns]


def levels(model: Any, j: int = 0) -> tuple[Any, ...]:
    found: tuple[Any, ...] = model.columns_.columns[j].levels
    return found


# Kinds by the types of a table


def test_kinds_follow_from_the_types_of_a_data_frame(model: Any) -> None:
    size, city, date, lat, lon = model.columns_.columns
    assert (size.kind, size.unit, size.levels) == ("number", "", ())
    assert (city.kind, city.levels) == ("category", ("Aarau", "Bern", "Chur"))
    assert (date.kind, date.unit) == ("time", "days")
    assert (lat.kind, lat.unit) == ("place", "degrees north")
    assert (lon.kind, lon.unit) == ("place", "degrees east")
    assert model.columns_.place == (3, 4)
    assert model.n_features_in_ == 5
    assert [column.name for column in model.columns_.columns] == list(model.feature_names_in_)


@pytest.mark.parametrize("library", [pl.from_pandas, pa.Table.from_pandas])
def test_other_libraries_give_the_same_model(model: Any, library: Callable[[Any], Any]) -> None:
    table = library(TABLE)
    again = fitted(table)
    assert again.columns_ == model.columns_
    assert again.predict(table).tolist() == model.predict(TABLE).tolist()
    assert model.predict(table).tolist() == model.predict(TABLE).tolist()


COLUMNS: list[tuple[Any, str]] = [
    (pd.Series([1, 2, 3, 4], dtype="Int64"), "number"),
    (pd.Series([1.5, 2, 3, 4], dtype="Float32"), "number"),
    (pd.Series([True, False, True, True], dtype="boolean"), "number"),
    (pd.Series([1, 2.5, True, 4], dtype=object), "number"),
    (pd.Series(["b", "a", "a", "b"], dtype="string"), "category"),
    (pd.Series(["b", "a", "a", "b"], dtype=object), "category"),
    (pd.Series(["b", 1, "a", 2.5], dtype=object), "category"),
    (pd.Series([3, 1, 2, 1]).astype("category"), "category"),
    (pd.Series(["b", "a", "a", "b"], dtype=pd.ArrowDtype(pa.string())), "category"),
    (pd.Series(pd.date_range("2020-01-01", periods=4, tz="Europe/Rome")),
     "time"),
    (pd.Series(pd.period_range("2020-01", periods=4, freq="M")), "time"),
    (pd.Series([datetime.date(2020, 1, day) for day in (1, 2, 3, 4)]), "time"),
    (pl.Series(["b", "a", "a", "b"], dtype=pl.Categorical), "category"),
    (pl.Series(["b", "a", "a", "b"], dtype=pl.Enum(["b", "a"])), "category"),
    (pl.Series([datetime.date(2020, 1, day) for day in (1, 2, 3, 4)]), "time"),
    (pl.Series([True, False, True, True]), "number"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "kind"), COLUMNS, ids=lambda x: str(getattr(x, "dtype", x)))
def test_each_type_of_a_column_has_its_kind(column: Any, kind: str) -> None:
    frames: Any = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    X = frames({"x": column, "word": ["u", "v", "u", "v"]})
    model = fitted(X, [0.0, 1.0, 0.5, 2.0])
    assert kinds(model) == [kind, "category"]
    assert np.isfinite(model.predict(X)).all()


def test_numbers_alone_have_no_kinds_and_change_nothing(tmp_path: Path) -> None:
    X = TABLE[["size"]].assign(flag=np.arange(N) % 2 == 0, other=np.arange(N))
    model = fitted(X)
    plain = fitted(X.to_numpy(dtype=float))
    assert model.columns_ is None
    assert plain.columns_ is None
    assert model.predict(X).tolist() == plain.predict(X.to_numpy(dtype=float)).tolist()
    model.save(tmp_path / "model")
    manifest = read_file(MODEL, tmp_path / "model").manifest
    assert manifest["format"] == 1
    assert "columns" not in manifest
    assert "columns" not in manifest["params"]


def test_text_in_an_array_is_an_error_as_before() -> None:
    with pytest.raises(InvalidInputError, match=r"must be numbers: .* Got 'Bern' in column 1\."):
        fitted(TABLE.to_numpy(dtype=object))


def test_durations_are_an_error_as_before() -> None:
    X = TABLE[["size"]].assign(wait=pd.to_timedelta(np.arange(N), unit="D"))
    with pytest.raises(InvalidInputError, match="Convert times to numbers"):
        fitted(X)
    with pytest.raises(InvalidInputError, match=r"'wait' of X of .* must be numbers"):
        fitted(X.assign(city=TABLE["city"]))


# The parameter


def test_an_array_takes_kinds_by_number(model: Any) -> None:
    given = {1: "category", 2: "time", 3: "place", 4: "place"}
    rows = TABLE.to_numpy(dtype=object)
    again = fitted(rows, columns=given)
    assert kinds(again) == kinds(model)
    assert again.predict(rows).tolist() == model.predict(TABLE).tolist()
    assert again.predict(rows.tolist()).tolist() == model.predict(TABLE).tolist()
    assert fitted(rows.tolist(), columns=given).columns_ == again.columns_


def test_given_kinds_come_before_types() -> None:
    X = pd.DataFrame(
        {
            "shop": [7, 3, 7, 11] * 10,
            "day": np.arange(40),
            "when": [f"2021-01-{1 + k % 28:02d}" for k in range(40)],
            "lat": np.linspace(0, 9, 40),
            "lon": np.linspace(0, 9, 40),
        }
    )
    model = fitted(X, columns={"shop": "group", "day": "time", "when": "time", "lat": "number"})
    assert kinds(model) == ["group", "time", "time", "number", "number"]
    assert levels(model) == (3, 7, 11)
    assert [column.unit for column in model.columns_.columns] == ["", "", "days", "", ""]
    moved = X.assign(when=pd.to_datetime(X["when"]), shop=X["shop"].astype(float))
    assert model.predict(moved).tolist() == model.predict(X).tolist()


def test_the_first_of_a_place_is_the_latitude_unless_names_say_otherwise() -> None:
    X = TABLE[["lat", "lon"]].to_numpy()
    model = fitted(X, columns={1: "place", 0: "place"})
    assert model.columns_.place == (1, 0)
    named = fitted(TABLE[["lon", "lat"]], columns={"lon": "place", "lat": "place"})
    assert named.columns_.place == (1, 0)


WRONG: list[tuple[Any, str]] = [
    ({"town": "category"}, r"names of columns: 'size', 'city', .* Got 'town'"),
    ({"sise": "number"}, r"Did you mean 'size'\?"),
    ({"city": "text"}, r"columns\['city'\] of .* must be one of 'number', .*Got 'text'"),
    ({"lat": "place"}, r"of kind 'place' of .* must be two, the latitude and the longitude. Got 1"),
    ({"size": "place", "city": "place"}, r"could not convert string to float: 'Bern'"),
    ({"city": "time"}, r"column 'city' of X of .* must be dates or times.* Got 'Bern' in row 0"),
    ({"date": "number"}, r"column 'date' of X of .* must be numbers"),
    ("all", r"The 'columns' parameter of SparseGPRegressor must be a str among {'auto'}"),
    (3, r"The 'columns' parameter of SparseGPRegressor must be"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=lambda x: str(x)[:20])
def test_wrong_kinds_are_errors(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(columns=given)


def test_an_array_has_no_names() -> None:
    with pytest.raises(InvalidInputError, match="numbers of columns, from 0 to 1, for an array"):
        fitted(TABLE[["lat", "lon"]].to_numpy(), columns={"lat": "time"})


def test_angles_out_of_range_are_errors(model: Any) -> None:
    X = TABLE.assign(lat=TABLE["lat"].where(TABLE.index != 3, 95.0))
    with pytest.raises(
        InvalidInputError, match=r"'lat' .* latitudes from -90 to 90 .* 95\.0 in ro"
    ):
        model.predict(X)
    with pytest.raises(InvalidInputError, match=r"longitudes from -360 to 360 degrees"):
        fitted(TABLE.assign(lon=400.0), columns={"lat": "place", "lon": "place"})
    assert kinds(fitted(X)) == ["number", "category", "time", "number", "number"]


# Values


def test_levels_are_known_by_value_in_any_order_of_rows(model: Any) -> None:
    order = np.random.default_rng(0).permutation(N)
    shuffled = fitted(TABLE.iloc[order], Y.iloc[order])
    assert shuffled.columns_ == model.columns_
    assert np.allclose(shuffled.predict(TABLE), model.predict(TABLE), rtol=0, atol=1e-8)
    one = TABLE.iloc[[2]]
    category = one.assign(city=pd.Categorical(one["city"], categories=["Chur", "Zug"]))
    assert model.predict(category).tolist() == model.predict(one).tolist()


def test_levels_are_numbers_before_text() -> None:
    X = pd.DataFrame({"mixed": ["b", 2.5, "a", 10, "2", True] * 5})
    assert levels(fitted(X, np.arange(30.0))) == (1, 2.5, 10, "2", "a", "b")
    flags = pd.DataFrame({"flag": pd.Categorical([True, False] * 5)})
    assert levels(fitted(flags, np.arange(10.0))) == (False, True)


def test_a_gap_in_a_dictionary_of_arrow_is_no_level() -> None:
    cities = pa.array(["Bern", None, "Chur", "Bern"] * 10).dictionary_encode()
    table = pa.table({"size": np.arange(40.0), "city": cities})
    model = SparseGPRegressor(missing="impute", **GAUSSIAN).fit(table, np.arange(40.0))
    assert model.columns_ is not None
    assert set(model.columns_.columns[1].levels) == {"Bern", "Chur", None}
    gaps = pa.table({"size": np.arange(40.0), "city": cities.dictionary_decode()})
    assert np.array_equal(model.predict(table), model.predict(gaps))


def test_unseen_levels_are_not_an_error(model: Any) -> None:
    X = TABLE.assign(city=["Zug", "Genf"] * (N // 2))
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    other = model.predict(TABLE.assign(city="Basel"))
    assert mean.tolist() == other.tolist()


def test_rows_of_weight_0_bring_no_levels() -> None:
    X = TABLE.assign(city=[*TABLE["city"][:-1], "Zug"])
    weights = np.ones(N)
    weights[-1] = 0
    model = fitted_with_weights(X, weights)
    without = fitted(X.iloc[:-1], Y.iloc[:-1])
    assert model.columns_ == without.columns_
    assert model.predict(X).tolist() == without.predict(X).tolist()


def fitted_with_weights(X: Any, weights: Any) -> Any:
    return SparseGPRegressor(**GAUSSIAN).fit(X, Y, sample_weight=weights)


def test_times_are_days_in_utc() -> None:
    utc = pd.date_range("2021-01-01", periods=N, freq="6h", tz="UTC")
    model = fitted(pd.DataFrame({"t": utc}))
    same = [
        pd.DataFrame({"t": utc.tz_convert("America/New_York")}),
        pd.DataFrame({"t": utc.tz_localize(None)}),
        pl.DataFrame({"t": utc.to_pydatetime().tolist()}),
        pd.DataFrame({"t": [moment.isoformat() for moment in utc]}),
    ]
    first = model.predict(pd.DataFrame({"t": utc}))
    assert model.scalings_.inputs.shift[0] == pytest.approx(18628 + (N - 1) / 8)
    for X in same:
        assert model.predict(X).tolist() == first.tolist()
    with pytest.raises(InvalidInputError, match=r"'t' .* must be dates or times, as in fit"):
        model.predict(pd.DataFrame({"t": np.arange(3.0)}))


def test_numbers_that_become_text_are_an_error(model: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"Got 'big' in column 'size'"):
        model.predict(TABLE.assign(size="big"))


def test_other_columns_are_an_error_of_scikit_learn(model: Any) -> None:
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(TABLE[["city", "size", "date", "lat", "lon"]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(TABLE[["city"]])
    with pytest.raises(InvalidInputError, match=r"columns with different names\. Got 2"):
        fitted(pd.concat([TABLE, TABLE[["city"]]], axis=1))


def test_infinity_names_row_and_column(model: Any) -> None:
    X = TABLE.assign(size=TABLE["size"].where(TABLE.index != 4, np.inf))
    with pytest.raises(InvalidInputError, match="one, in row 4, column 'size'"):
        model.predict(X)
    shops = pd.DataFrame({"shop": [1.0, 2.0, np.inf, 3.0] * 3})
    with pytest.raises(InvalidInputError, match="3 of them, the first in row 2, column 'shop'"):
        fitted(shops, np.arange(12.0), columns={"shop": "group"})


# Gaps


@pytest.mark.parametrize("column", ["city", "date", "size"])
def test_gaps_are_errors(model: Any, column: str) -> None:
    X = TABLE.assign(**{column: TABLE[column].where(TABLE.index != 5)})
    message = f"Input X contains NaN.* one, in row 5, column '{column}'. Fit with missing='impute'"
    with pytest.raises(InvalidInputError, match=message):
        fitted(X)
    with pytest.raises(InvalidInputError, match=message):
        model.predict(X)


def test_a_missing_level_is_a_level_if_training_had_gaps() -> None:
    X = TABLE.assign(city=TABLE["city"].where(TABLE.index % 4 != 0), date=TABLE["date"])
    X.loc[7, "date"] = pd.NaT
    model = fitted(X, missing="impute")
    assert levels(model, 1) == ("Aarau", "Bern", "Chur", None)
    assert model.scalings_.imputation.indicated == (2,)
    assert np.isfinite(model.predict(X)).all()
    polars = pl.from_pandas(X)
    assert fitted(polars, missing="impute").columns_ == model.columns_
    assert model.predict(polars).tolist() == model.predict(X).tolist()


def test_a_missing_level_is_unseen_if_training_had_no_gaps() -> None:
    model = fitted(missing="impute")
    assert levels(model, 1) == ("Aarau", "Bern", "Chur")
    missing = model.predict(TABLE.assign(city=pd.Series([None] * N, dtype=object)))
    assert missing.tolist() == model.predict(TABLE.assign(city="Zug")).tolist()


def test_codes_are_not_scaled() -> None:
    for settings in ({}, {"missing": "impute"}, {"standardize": False}):
        model = fitted(TABLE[["city", "size"]], **settings)
        scaling = model.scalings_.inputs
        assert (scaling.shift[0], scaling.scale[0]) == (0, 1)
        assert set(np.unique(model.scalings_.scaled_inputs(np.array([[0.0, 1.0]]))[:, 0])) == {0.0}


# Everything that an estimator does


@pytest.mark.parametrize(
    ("make", "settings", "y"),
    [
        (SparseGPRegressor, GAUSSIAN, Y),
        (SparseGPClassifier, LIGHT, LABELS),
        (SparseGPCountRegressor, LIGHT | {"likelihood": "poisson"}, COUNTS),
    ],
)
def test_every_estimator_predicts_saves_and_updates(
    make: Any, settings: Any, y: Any, tmp_path: Path
) -> None:
    given = {"city": "group"}
    model = make(**settings, columns=given).fit(TABLE, y)
    assert kinds(model)[1] == "group"
    model.save(tmp_path / "model")
    copies = [load(tmp_path / "model"), pickle.loads(pickle.dumps(model))]
    for again in copies:
        assert again.columns_ == model.columns_
        assert again.columns == given
        assert again.predict(TABLE).tolist() == model.predict(TABLE).tolist()
        assert again.predict_frame(TABLE).equals(model.predict_frame(TABLE))
        again.partial_fit(TABLE.assign(city="Zug").iloc[:5], y[:5])
        assert again.columns_ == model.columns_
    assert clone(model).columns == given
    warm = copies[1].set_params(warm_start=True).fit(TABLE.iloc[:20], y[:20])
    assert warm.columns_ == model.columns_
    with pytest.raises(InvalidInputError, match="other values of columns"):
        warm.set_params(columns="auto").fit(TABLE, y)


def test_a_file_with_columns_has_its_own_format(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model.save(path)
    contents = read_file(MODEL, path)
    # Columns of levels give the kernel an expression, which has the format after that of columns.
    assert contents.manifest["format"] == 6
    assert contents.manifest["columns"][1] == {
        "name": "city",
        "kind": "category",
        "unit": "",
        "levels": ["Aarau", "Bern", "Chur"],
    }
    changes: list[Any] = [
        lambda columns: columns.pop(),
        lambda columns: columns[1]["levels"].append("Bern"),
        lambda columns: columns[0].update(kind="group", levels=[1]),
        lambda columns: columns[3].update(unit=""),
        lambda columns: columns[0].update(kind="colour"),
    ]
    for change in changes:
        broken = read_file(MODEL, path)
        change(broken.manifest["columns"])
        write_file(MODEL, tmp_path / "broken", *broken)
        with pytest.raises(ModelFileError):
            load(tmp_path / "broken")


def test_levels_of_every_type_come_back_from_a_file(tmp_path: Path) -> None:
    X = pd.DataFrame({"mixed": ["b", 2.5, 3, None, "3", ""] * 5})
    model = fitted(X, np.arange(30.0), missing="impute")
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert levels(again) == (2.5, 3, "", "3", "b", None)
    assert [type(level) for level in levels(again)] == [type(level) for level in levels(model)]
    assert again.predict(X).tolist() == model.predict(X).tolist()


def test_validation_data_has_the_levels_of_training() -> None:
    settings = GAUSSIAN | {"objective": "log_loss", "beta": "auto", "stack": None}
    other = TABLE.assign(city=["Zug", "Chur"] * (N // 2))
    model = SparseGPRegressor(**settings).fit(TABLE, Y, validation_data=(other, Y))
    assert levels(model, 1) == ("Aarau", "Bern", "Chur")


def test_several_outputs_have_the_levels_of_their_rows(tmp_path: Path) -> None:
    second = Y.where(TABLE["city"] != "Chur")
    model = fitted(TABLE, pd.DataFrame({"first": Y, "second": second}))
    assert levels(model, 1) == ("Aarau", "Bern", "Chur")
    assert levels(model.outputs_[1], 1) == ("Aarau", "Bern")
    alone = fitted(TABLE[second.notna()], second.dropna())
    assert model.predict(TABLE)[:, 1].tolist() == alone.predict(TABLE).tolist()
    assert np.isfinite(model.nll(TABLE, np.column_stack([Y, second])))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.columns_ == model.columns_
    assert again.predict(TABLE).tolist() == model.predict(TABLE).tolist()
    given = {1: "category", 2: "time", 3: "place", 4: "place"}
    rows = TABLE.to_numpy(dtype=object)
    array = fitted(rows, np.column_stack([Y, second]), columns=given)
    assert array.predict(rows).tolist() == model.predict(TABLE).tolist()


def test_explanations_have_a_point_for_each_level(model: Any) -> None:
    size, city, date = partial_dependence(model, TABLE, ["size", "city", "date"])
    assert city.levels == ("Aarau", "Bern", "Chur")
    assert city.to_dict()["value"] == ["Aarau", "Bern", "Chur"]
    assert city.mean.argmax() == 2
    assert city.discrete
    assert date.dates
    assert not (size.dates or size.levels)
    axes = model.plot_partial_dependence(TABLE, ["city", "date"])
    assert [label.get_text() for label in axes[0].get_xticklabels()] == [*city.levels]
    assert "2021" in axes[1].get_xticklabels()[0].get_text()
    relevance = model.feature_relevance(TABLE, Y, n_repeats=2)
    assert relevance.features == tuple(TABLE.columns)
    assert model.plot_predictions(TABLE, Y) is not None


def test_a_curve_needs_numbers_along_its_axis() -> None:
    model = fitted(TABLE[["city"]])
    assert model.plot_predictions(TABLE[["city"]], Y) is not None
    with pytest.raises(InvalidInputError, match="given with a feature of levels"):
        model.plot_predictions(TABLE[["city"]])
    classifier = SparseGPClassifier(**LIGHT).fit(TABLE[["city"]], LABELS)
    with pytest.raises(InvalidInputError, match="called for a feature of numbers"):
        classifier.plot_predictions(TABLE[["city"]])
    dates = fitted(TABLE[["date"]])
    assert dates.plot_predictions(TABLE[["date"]], Y) is not None


def test_trees_get_the_codes() -> None:
    model = fitted(stack="trees")
    assert model.stack_ is not None
    assert model.stack_.num_features == 5
    assert np.isfinite(model.predict(TABLE.assign(city="Zug"))).all()


def test_tools_of_scikit_learn_take_the_estimators() -> None:
    scaled = make_column_transformer((StandardScaler(), ["size"]), remainder="passthrough")
    pipeline = make_pipeline(scaled.set_output(transform="pandas"), SparseGPRegressor(**GAUSSIAN))
    predictions = cross_val_predict(pipeline, TABLE, Y, cv=2)
    assert np.isfinite(predictions).all()
    pipeline.fit(TABLE, Y)
    assert kinds(pipeline[-1])[:3] == ["number", "category", "time"]


def test_the_summary_names_the_columns(model: Any) -> None:
    text = str(model.summary())
    assert "city (3 levels)" in text
    assert "lat, lon" in text
    assert ["time", "date"] in model.summary().to_dict()["columns"]


def test_a_name_of_each_row_is_a_finding() -> None:
    X = pd.DataFrame({"size": np.arange(60.0), "name": [f"row {k}" for k in range(60)]})
    with pytest.warns(DirectGPWarning, match="as many levels as rows, 60 of 60: 'name'"):
        model = fitted(X, np.arange(60.0))
    assert any("looks like a name of each row" in text for text in model.findings_)
    groups = fitted(X, np.arange(60.0), columns={"name": "group"})
    assert not any("looks like a name of each row" in text for text in groups.findings_)


def test_dates_as_text_are_a_finding() -> None:
    X = TABLE[["size"]].assign(day=TABLE["date"].dt.strftime("%Y-%m-%d"))
    with pytest.warns(DirectGPWarning, match="Dates as text, .* without an order: 'day'"):
        model = fitted(X)
    assert kinds(model) == ["number", "category"]
    given = fitted(X, columns={"day": "time"})
    assert not any("Dates as text" in text for text in given.findings_)
    dates = TABLE[["size"]].assign(day=TABLE["date"])
    assert given.predict(X).tolist() == fitted(dates).predict(dates).tolist()


def test_a_constant_column_of_text_is_a_finding_as_a_number_is() -> None:
    with pytest.warns(DirectGPWarning, match="The same value in every training row: 'city'"):
        fitted(TABLE.assign(city="Bern"))


def test_exports_have_numbers_alone(model: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="fitted to columns of numbers"):
        to_numpy(model, tmp_path / "model")
