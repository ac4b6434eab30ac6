"""Trials, and other constants of rows, in the methods of the estimators."""

import tempfile
from typing import Any

import numpy as np
import pytest
import torch

import directgp
from directgp import SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import InvalidInputError
from directgp.estimators import neg_nll
from directgp.estimators.preprocessing import ColumnScaling, Scalings
from directgp.estimators.validation import RowValues

QUICK: Any = {
    "beta": 1.0,
    "hyperparameters": "joint",
    "kernel": "rbf",
    "num_inducing": 10,
    "random_state": 0,
    "max_iter": 40,
}


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    X = random.uniform(0, 3, (120, 1))
    trials = random.integers(1, 30, 120)
    return X, random.binomial(trials, 1 / (1 + np.exp(-np.sin(2 * X[:, 0])))), trials


@pytest.mark.filterwarnings("ignore")
def test_trials_make_counts_binomial(rows: Any) -> None:
    X, y, trials = rows
    model = SparseGPCountRegressor(**QUICK).fit(X, y, trials=trials)
    assert type(model.likelihood_).__name__ == "Binomial"
    assert not model.likelihood_.rows.present(model.likelihood_)
    share = model.predict(X, trials=np.ones(120))
    np.testing.assert_allclose(model.predict(X, trials=trials), trials * share, rtol=1e-9)
    lower, upper = model.predict_interval(X, 0.9, trials=trials)
    assert (upper <= trials).all() and np.mean((lower <= y) & (y <= upper)) > 0.85
    pmf = model.predict_pmf(X[:3], 30, trials=trials[:3])
    np.testing.assert_allclose(pmf.sum(1), 1.0, rtol=1e-9)
    assert neg_nll(model, X, y, trials=trials) == -model.nll(X, y, trials=trials)
    assert (model.sample_y(X, trials=trials)[:, 0] <= trials).all()
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model")
        again = directgp.load(f"{folder}/model")
    assert (again.predict(X, trials=trials) == model.predict(X, trials=trials)).all()
    model.partial_fit(X[:5], y[:5], trials=trials[:5])


@pytest.mark.filterwarnings("ignore")
def test_validation_rows_have_trials_too(rows: Any) -> None:
    X, y, trials = rows
    own = {**QUICK, "beta": "auto", "max_iter": 15}
    half = slice(0, 60), slice(60, 120)
    parts = [(X[some], y[some], trials[some]) for some in half]
    model = SparseGPCountRegressor(**own)
    model.fit(*parts[0][:2], validation_data=parts[1], trials=parts[0][2])
    assert model.beta_path_ is not None
    with pytest.raises(InvalidInputError, match=r"a tuple \(X, y, trials\)"):
        model.fit(*parts[0][:2], validation_data=parts[1][:2], trials=parts[0][2])


def test_values_without_use_and_missing_ones_are_refused(rows: Any) -> None:
    X, y, trials = rows
    counts = SparseGPCountRegressor(**QUICK)
    for model, given, text in (
        (counts.set_params(likelihood="binomial"), {}, "trials of fit must be given with"),
        (SparseGPCountRegressor(likelihood="poisson"), {"trials": trials}, "that uses it"),
        (SparseGPRegressor(likelihood="gaussian"), {"noise": trials}, "that uses it"),
        (SparseGPRegressor(), {"noise": trials, "upper": trials}, "one at a time"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            model.fit(X, y, **given)


def test_values_change_with_the_scale_of_the_targets() -> None:
    targets = ColumnScaling(np.array([5.0]), np.array([2.0]))
    scalings = Scalings(ColumnScaling.identity(1), targets)
    given = np.array([4.0, 8.0, np.inf])
    for argument, wanted in (
        ("exposure", [4.0, 8.0, np.inf]),
        ("noise", [1.0, 2.0, np.inf]),
        ("upper", [-0.5, 1.5, np.inf]),
    ):
        assert scalings.scaled_rows(RowValues(argument, given)).tolist() == wanted


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "zeros"),
    [
        ("com_poisson", 0.0),
        ("zero_inflated_poisson", 0.4),
        ("zero_inflated_negative_binomial", 0.4),
    ],
)
def test_other_families_of_counts(name: str, zeros: float) -> None:
    """Fitted, saved and loaded; with an exposure, the mean is larger."""
    random = np.random.default_rng(1)
    X = random.uniform(0, 3, (150, 1))
    y = random.poisson(np.exp(1 + np.sin(2 * X[:, 0]))) * (random.uniform(size=150) > zeros)
    model = SparseGPCountRegressor(likelihood=name, **QUICK).fit(X, y)
    lower, upper = model.predict_interval(X)
    assert np.mean((lower <= y) & (y <= upper)) > 0.85
    assert (model.predict(X, exposure=np.full(150, 3.0)) > 2 * model.predict(X)).all()
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model")
        again = directgp.load(f"{folder}/model")
    assert (again.predict_interval(X)[1] == model.predict_interval(X)[1]).all()
    assert again.summary() == model.summary()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_auto_takes_the_family_that_made_the_counts() -> None:
    random = np.random.default_rng(2)
    X = random.uniform(0, 3, (300, 1))
    rate = np.exp(2 + np.sin(2 * X[:, 0]))
    quick = {**QUICK, "likelihood": "auto", "num_inducing": 15}
    few = np.round(rate + random.normal(scale=0.8, size=300)).clip(0)
    assert type(_fitted(quick, X, few).likelihood_).__name__ == "ConwayMaxwellPoisson"
    many = random.poisson(rate) * (random.uniform(size=300) > 0.5)
    assert type(_fitted(quick, X, many).likelihood_).__name__.startswith("ZeroInflated")


def _fitted(settings: Any, X: Any, y: Any) -> SparseGPCountRegressor:
    return SparseGPCountRegressor(**settings).fit(X, y)


@pytest.mark.filterwarnings("ignore")
def test_folds_compare_likelihoods_of_rows_with_exposures() -> None:
    """Each fold has the exposures of its own rows, also for the second likelihood."""
    random = np.random.default_rng(1)
    X, exposure = random.normal(size=(30, 2)), random.uniform(1, 5, 30)
    y = random.poisson(3 * exposure)
    model = SparseGPCountRegressor(kernel="rbf", num_inducing=5, max_iter=2, random_state=0)
    model.fit(X, y, exposure=exposure)
    np.testing.assert_allclose(model.predict(X, exposure=exposure).sum(), y.sum(), rtol=0.3)


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_require_gradients_count_as_numbers() -> None:
    random = np.random.default_rng(2)
    X, y, weights = random.normal(size=(20, 2)), random.normal(size=20), random.uniform(1, 2, 20)
    given: Any = [torch.tensor(each, requires_grad=True) for each in (X, y, weights)]
    found = SparseGPRegressor(**{**QUICK, "max_iter": 2}).fit(*given).predict(given[0])
    plain = SparseGPRegressor(**{**QUICK, "max_iter": 2}).fit(X, y, weights).predict(X)
    np.testing.assert_array_equal(found, plain)
