"""Columns of a stack in a fit: none of a row's own target, names, later rows."""

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from directgp import SparseGPClassifier, SparseGPRegressor

# One candidate: no race.
ONE: dict[str, Any] = {
    "kernel": "rbf",
    "ard": True,
    "beta": 1.0,
    "hyperparameters": "joint",
    "num_inducing": 10,
    "max_iter": 60,
    "random_state": 0,
    "stack": "trees",
}

pytestmark = pytest.mark.filterwarnings("ignore:.*Training has not converged")


def regressor(**settings: Any) -> SparseGPRegressor:
    return SparseGPRegressor(**{**ONE, "likelihood": "gaussian", **settings})


@pytest.mark.parametrize("again", [False, True], ids=["fit", "warm start"])
def test_targets_of_pure_noise_stay_noise(again: bool) -> None:
    """Trees that had seen the target of their row would explain it, on training rows alone."""
    random = np.random.default_rng(0)
    X, y = random.normal(size=(1400, 4)), random.normal(size=1400)
    model = regressor(objective="elbo", warm_start=True).fit(X[:400], y[:400])
    if again:
        model.fit(X[:400], y[:400])
    # What the mean and the deviation of the training targets give to new ones.
    z = (y[400:] - y[:400].mean()) / y[:400].std()
    known = 0.5 * np.mean(z**2) + 0.5 * np.log(2 * np.pi) + np.log(y[:400].std())
    assert model.nll(X[400:], y[400:]) < known + 0.005
    assert np.abs(model.predict(X) - y[:400].mean()).max() < 0.05


@pytest.mark.filterwarnings("ignore:The 90 % intervals")
def test_a_stack_knows_steps_that_the_kernel_does_not() -> None:
    random = np.random.default_rng(1)
    X = random.uniform(-1, 1, (800, 5))
    y = np.sign(X[:, 0]) * np.sign(X[:, 1]) + 0.1 * random.normal(size=800)
    with_trees, without = (
        regressor(objective="elbo", stack=stack).fit(X[:400], y[:400]).nll(X[400:], y[400:])
        for stack in ("trees", None)
    )
    assert with_trees < without - 0.3


@pytest.mark.parametrize("weighted", [True, False])
def test_a_source_without_weights_is_mentioned_where_rows_have_some(weighted: bool) -> None:
    random = np.random.default_rng(6)
    X, y = random.normal(size=(60, 2)), random.normal(size=60)
    weights = random.uniform(1, 2, 60) if weighted else None
    sources = [make_pipeline(StandardScaler(), Ridge()), Ridge()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regressor(max_iter=1, stack=sources).fit(X, y, weights)
    found = [str(each.message) for each in caught if "sample_weight" in str(each.message)]
    assert len(found) == weighted
    assert all("source 'Pipeline' of the stack" in text for text in found)


def test_one_feature_and_the_column_of_a_stack_have_lengthscales_of_their_own() -> None:
    random = np.random.default_rng(5)
    X = random.uniform(-1, 1, (100, 1))
    y = np.sign(X[:, 0]) + 0.1 * random.normal(size=100)
    model = regressor(objective="elbo", ard="auto", max_iter=1).fit(X, y)
    assert model.posterior_.prior.kernel.lengthscale.shape == (1, 2)


@pytest.mark.parametrize("unit", [1.0, 1e-20])
def test_units_of_positive_targets_do_not_matter(unit: float) -> None:
    random = np.random.default_rng(4)
    X = random.normal(size=(200, 2))
    y = np.exp(X[:, 0] + 0.3 * random.normal(size=200))
    model = regressor(likelihood="gamma", objective="elbo").fit(X[:100], unit * y[:100])
    assert np.corrcoef(np.log(model.predict(X[100:])), np.log(y[100:]))[0, 1] > 0.85


def test_positive_targets_that_float32_rounds_to_zero() -> None:
    random = np.random.default_rng(3)
    y = np.r_[np.exp(4 * random.normal(size=20)), 1e-6 * np.arange(1, 11)]
    model = regressor(likelihood="auto", dtype="float32", objective="elbo", max_iter=3)
    assert model.fit(random.normal(size=(30, 2)), y).stack_ is not None


def test_columns_of_several_classes_have_their_names() -> None:
    random = np.random.default_rng(2)
    X = random.normal(size=(90, 2))
    y = np.array(["red", "dark\ngreen", "blue"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = SparseGPClassifier(**ONE | {"likelihood": "softmax", "max_iter": 2}).fit(X, y)
    assert model.stack_ is not None
    assert model.stack_.names == ("trees blue", "trees dark green", "trees red")
    assert "trees red of the stack" in model.summary()


def test_later_rows_do_not_change_the_stack() -> None:
    random = np.random.default_rng(3)
    X, y = random.normal(size=(120, 2)), random.normal(size=120)
    model = regressor().fit(X[:80], y[:80])
    stack, before = model.stack_, model.predict(X)
    model.partial_fit(X[80:], y[80:])
    assert model.stack_ is stack and not np.array_equal(model.predict(X), before)
