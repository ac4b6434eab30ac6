"""Kernels that are expressions, chosen by the user or by `fit`."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor, load
from directgp.errors import InvalidInputError
from directgp.estimators.base import SparseGPEstimator
from directgp.kernels import Group, Linear, Matern52, Periodic
from directgp.race import structure

pytestmark = pytest.mark.usefixtures("without_shape_checks")

GIVEN = {"objective": "elbo", "beta": 1.0, "random_state": 0}
GAUSSIAN = GIVEN | {"likelihood": "gaussian"}


def monthly(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Return months, and a trend with a season of a year and noise of 0.3."""
    months = np.arange(n)
    noise = 0.3 * np.random.default_rng(seed).normal(size=n)
    y = 0.1 * months + 3 * np.sin(2 * np.pi * months / 12) + noise
    return pd.DataFrame({"date": pd.date_range("2010-01-01", periods=n, freq="MS")}), y


def people(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Return 15 people with ten rows each: effects of deviation 2, noise of 0.5."""
    random = np.random.default_rng(seed)
    person = np.repeat(np.arange(15), 10)
    x = random.normal(size=150)
    y = 2 * random.normal(size=15)[person] + x + 0.5 * random.normal(size=150)
    return pd.DataFrame({"x": x, "person": person}), y


def test_text_and_objects_are_the_same_kernel() -> None:
    X, y = monthly(60)
    kernel = Linear("date") + Periodic("date", period="1y")
    by_object = SparseGPRegressor(kernel=kernel, **GAUSSIAN).fit(X, y)
    by_text = SparseGPRegressor(kernel=repr(kernel), **GAUSSIAN).fit(X, y)
    assert np.array_equal(by_object.predict(X), by_text.predict(X))
    assert clone(by_text).kernel == repr(kernel)


def test_forecasts_continue_trend_and_season() -> None:
    X, y = monthly(96)
    model = SparseGPRegressor(kernel="Linear('date') + Periodic('date', period='1y')", **GAUSSIAN)
    model.fit(X[:72], y[:72])
    mean, std = model.predict(X[72:], return_std=True)
    # Six standard deviations of the noise bound the errors of 24 forecasts, with those of f.
    assert np.abs((y[72:] - mean) / std).max() < 6
    assert std.max() < 2 * 0.3


@pytest.mark.parametrize("estimator", [SparseGPRegressor, SparseGPClassifier])
def test_positions_are_columns_of_an_array(estimator: type[SparseGPEstimator]) -> None:
    X, y = people()
    targets = y if estimator is SparseGPRegressor else y > 0
    model = estimator(kernel=Matern52(0) + Group(1), **GIVEN).fit(X.to_numpy(), targets)
    assert np.isfinite(model.predict(X.to_numpy()).astype(float)).all()


def test_counts_have_group_effects() -> None:
    X, y = people()
    counts = np.random.default_rng(1).poisson(np.exp(0.5 * y))
    settings = GIVEN | {"likelihood": "poisson"}
    kernel = "Linear('x') + Group('person')"
    model = SparseGPCountRegressor(kernel=kernel, columns={"person": "group"}, **settings)
    plain = SparseGPCountRegressor(kernel="Linear('x')", **settings)
    assert model.fit(X, counts).nll(X, counts) < plain.fit(X, counts).nll(X, counts) - 0.2


def test_a_new_group_has_a_wider_prediction() -> None:
    X, y = people()
    kernel = "Linear('x') + Group('person')"
    model = SparseGPRegressor(kernel=kernel, columns={"person": "group"}, **GAUSSIAN).fit(X, y)
    rows = pd.DataFrame({"x": [0.0, 0.0], "person": [3, 99]})
    mean, std = model.predict(rows, return_std=True)
    # The deviation of an effect is 2, estimated from 15 people: s.e. 2/√30.
    assert std[1] == pytest.approx(np.hypot(2, 0.5), abs=3 * 2 / 30**0.5)
    assert std[0] < 0.7
    assert abs(mean[0] - y[30:40].mean() + X.x[30:40].mean()) < 1


def test_effects_are_shared_by_names_of_kernels_too() -> None:
    # Without an expression, levels are one lengthscale apart.
    X, y = people()
    model = SparseGPRegressor(kernel="matern52", columns={"person": "group"}, **GAUSSIAN)
    model.fit(X, y)
    assert "Matern52" in repr(model.posterior_.prior.structure.expression)
    residual = y - model.predict(X)
    assert residual.std() < 0.6


@pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning")
def test_auto_finds_trend_and_season_of_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_STEPS", 10)
    monkeypatch.setattr(structure, "_INDUCING", 20)
    X, y = monthly(84)
    model = SparseGPRegressor(likelihood="gaussian", effort="fast", num_inducing=25, random_state=0)
    model.fit(X[:72], y[:72])
    text = repr(model.posterior_.prior.structure.expression)
    assert "period='1y'" in text
    assert "Linear" in text
    assert model.beta_path_ is not None
    assert "forecasts from 3 origins" in model.beta_path_.validation
    assert any("Periodic('date', period='1y')" in said for said in model.beta_path_.decisions)
    error = np.sqrt(np.mean((model.predict(X[72:]) - y[72:]) ** 2))
    repeated = np.sqrt(np.mean((y[60:72] - y[72:]) ** 2))
    assert error < 0.6 < repeated


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning")
def test_a_structure_with_a_long_name_is_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(structure, "_STEPS", 3)
    monkeypatch.setattr(structure, "_INDUCING", 10)
    X, y = monthly(48)
    X.columns = ["date of the first day of each month " * 5]
    model = SparseGPRegressor(effort="fast", likelihood="gaussian", max_iter=5, num_inducing=10)
    model.set_params(random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").predict(X), model.predict(X))


def test_new_groups_are_validated_by_groups() -> None:
    X, y = people()
    settings = {"likelihood": "gaussian", "kernel": "rbf", "num_inducing": 20, "effort": "fast"}
    by_groups = SparseGPRegressor(
        validation="groups", columns={"person": "group"}, **settings, random_state=0
    )
    by_groups.fit(X, y)
    assert by_groups.beta_path_ is not None
    assert by_groups.beta_path_.validation.endswith("folds by person")
    chosen = by_groups.beta_path_.points[by_groups.beta_path_.chosen]
    # Validation knows no effect of the held-out people: deviation √(2² + 0.5²), not 0.5.
    assert chosen.rmse is not None
    assert chosen.rmse > 1.2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kernel": "RBF('age')"}, "'age'"),
        ({"kernel": "RBF('x'"}, "RBF('x'"),
        ({"kernel": "Group('x') - RBF('x')"}, "sum or product"),
        ({"kernel": "RBF('x')", "ard": True}, "ard with an expression"),
        ({"validation": "forward"}, "kind 'time'"),
        ({"validation": "groups"}, "kind 'group'"),
        ({"kernel": "Periodic('x', period='1y')"}, "not of dates"),
    ],
)
def test_wrong_settings_raise_an_error(settings: dict[str, object], words: str) -> None:
    X, y = people()
    with pytest.raises(InvalidInputError) as raised:
        SparseGPRegressor(**settings, random_state=0).fit(X, y)
    assert words in str(raised.value)
