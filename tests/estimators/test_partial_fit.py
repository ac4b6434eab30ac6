"""`partial_fit`: rows that come in parts."""

import copy
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPWarning, InvalidInputError, UnsupportedError

# Runs as short as these say that they are.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:The noise variance ended at:UserWarning"),
]

LIGHT: dict[str, Any] = {
    "objective": "elbo",
    "beta": 1.0,
    "hyperparameters": "joint",
    "kernel": "rbf",
    "ard": False,
    "num_inducing": 10,
    "max_iter": 15,
    "random_state": 0,
}

RANDOM = np.random.default_rng(1)
X = RANDOM.uniform(-3, 3, (120, 1))
F = np.sin(2 * X[:, 0])
Y = 10 + 5 * (F + 0.2 * RANDOM.normal(size=len(X)))
LABELS = np.where(F + 0.3 * RANDOM.normal(size=len(X)) > 0, "yes", "no")
HOURS = RANDOM.uniform(0.5, 4, len(X))
COUNTS = RANDOM.poisson(3 * HOURS * np.exp(F))
FIRST, SECOND = slice(0, 60), slice(60, 120)


def regressor(**settings: Any) -> SparseGPRegressor:
    return SparseGPRegressor(**{"likelihood": "gaussian", **LIGHT, **settings})


def classifier(**settings: Any) -> SparseGPClassifier:
    return SparseGPClassifier(**{**LIGHT, **settings})


def counter(**settings: Any) -> SparseGPCountRegressor:
    return SparseGPCountRegressor(**{"likelihood": "poisson", **LIGHT, **settings})


@cache
def _fitted(**settings: Any) -> SparseGPRegressor:
    return regressor(**settings).partial_fit(X[FIRST], Y[FIRST])


def fitted(**settings: Any) -> SparseGPRegressor:
    """To the first half of the rows, by a first call of `partial_fit`."""
    return copy.deepcopy(_fitted(**settings))


def held(model: Any) -> dict[str, NDArray[np.float64]]:
    """What no update changes."""
    tensors = {**model.posterior_.state_dict(), **model.likelihood_.state_dict()}
    found = {name: t.numpy().copy() for name, t in tensors.items() if not name.startswith("u_")}
    scalings = model.scalings_
    return found | {"inputs": scalings.inputs.shift, "targets": scalings.targets.scale}


def test_the_first_call_is_fit() -> None:
    np.testing.assert_array_equal(
        fitted().predict(X, return_std=True),
        regressor().fit(X[FIRST], Y[FIRST]).predict(X, return_std=True),
    )


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("objective", ["elbo", "fitc"])
def test_neither_the_order_nor_the_size_of_parts_matters(objective: str, beta: float) -> None:
    predictions = []
    for parts in ([SECOND], [slice(60, 61), slice(61, 120)], [slice(90, 120), slice(60, 90)]):
        model = fitted(objective=objective, beta=beta)
        before = model.predict(X)
        for part in parts:
            assert model.partial_fit(X[part], Y[part]) is model
        assert (model.num_rows_, model.training_result_.hyperparameters) == (120, "held")
        predictions.append(model.predict(X, return_std=True))
        assert np.abs(predictions[-1][0] - before).max() > 0.01
    for each in predictions[1:]:
        np.testing.assert_allclose(each, predictions[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", ["log_loss", "elbo", "square_loss", "crps", "fitc", "vfe"])
def test_new_rows_are_learnt_and_the_rest_is_held(objective: str) -> None:
    model = fitted(objective=objective)
    before, shifted = held(model), Y[SECOND] + 4
    nll = model.nll(X[SECOND], shifted)
    model.partial_fit(X[SECOND], shifted)
    assert model.nll(X[SECOND], shifted) < nll - 0.1
    assert all(np.array_equal(before[name], value) for name, value in held(model).items())


def test_labels_are_learnt() -> None:
    model = classifier().partial_fit(X[:20], LABELS[:20])
    before = model.nll(X[90:], LABELS[90:])
    model.partial_fit(X[20:90], LABELS[20:90])
    assert model.nll(X[90:], LABELS[90:]) < before
    assert model.n_iter_ == model.training_result_.steps > 0


def test_counts_are_learnt_with_their_exposures() -> None:
    first = counter().partial_fit(X[FIRST], COUNTS[FIRST], exposure=HOURS[FIRST])
    rates = []
    for factor in (1, 5):
        model, hours = copy.deepcopy(first), factor * HOURS[SECOND]
        before = model.nll(X[SECOND], COUNTS[SECOND], exposure=hours)
        model.partial_fit(X[SECOND], COUNTS[SECOND], exposure=hours)
        assert model.nll(X[SECOND], COUNTS[SECOND], exposure=hours) < before
        rates.append(model.predict(X).mean())
    assert rates[1] < 0.7 * rates[0]
    assert model.predict(X[:1], exposure=[2.0]) == pytest.approx(2 * model.predict(X[:1]))


def test_exposures_of_later_rows_are_known_to_the_scores() -> None:
    model = counter(max_iter=1).partial_fit(X[:10], COUNTS[:10])
    model.partial_fit(X[10:12], COUNTS[10:12], exposure=HOURS[10:12])
    with pytest.warns(DirectGPWarning, match="trained with exposures"):
        model.nll(X, COUNTS)


def test_weights_are_repetitions() -> None:
    weights = np.tile([0.0, 1.0, 2.0], 20)
    rows = np.repeat(np.arange(60, 120), weights.astype(int))
    weighted = fitted().partial_fit(X[SECOND], Y[SECOND], sample_weight=weights)
    repeated = fitted().partial_fit(X[rows], Y[rows])
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-9)
    assert (weighted.num_rows_, repeated.num_rows_) == (100, 120)


def test_a_chosen_elbo_goes_on_as_one() -> None:
    """Not with the loss that validation has decided against."""
    model = fitted(objective="log_loss")
    assert model.partial_fit(X[60:90], Y[60:90]).training_result_.objective == "log_loss"
    model.members_ = tuple(replace(each, hyperparameters="elbo") for each in model.members_)
    assert model.partial_fit(X[90:], Y[90:]).training_result_.objective == "elbo"
    assert {each.hyperparameters for each in model.members_} == {"elbo"}


def test_both_classes_are_named_where_the_first_rows_have_one() -> None:
    yes = LABELS == "yes"
    model = classifier()
    with pytest.raises(InvalidInputError, match=r"at least two classes.*classes="):
        model.partial_fit(X[yes], LABELS[yes])
    with pytest.warns(DirectGPWarning, match="Every label is 'yes'"):
        model.partial_fit(X[yes][:20], LABELS[yes][:20], classes=["yes", "no"])
    assert (model.classes_.tolist(), model.hyperparameters_) == (["no", "yes"], "held")
    assert set(model.predict(X[yes])) == {"yes"}
    model.partial_fit(X, LABELS)
    assert model.score(X, LABELS) > 0.75


@pytest.mark.parametrize(
    ("classes", "what"),
    [
        (["yes"], "must be at least two. Got 1: 'yes'"),
        (["yes", "maybe"], "'no' in row"),
        ([None, "yes"], "none of them missing. Got None"),
        ([np.nan, 1.0], "none of them missing. Got nan"),
        (["yes", "no", np.nan], "none of them missing. Got nan"),
        (np.array([1, "yes"], dtype=object), "labels of one type.*Got int, str"),
    ],
)
def test_classes_that_cannot_be_are_refused(classes: Any, what: str) -> None:
    model = classifier()
    with pytest.raises(InvalidInputError, match=what):
        model.partial_fit(X, LABELS, classes=classes)
    assert not hasattr(model, "classes_")


def test_the_likelihood_is_for_all_classes_that_are_named() -> None:
    model = classifier(likelihood="probit")
    with pytest.raises(InvalidInputError, match=r"for 3 classes\. Got 'probit'"):
        model.partial_fit(X, LABELS, classes=["yes", "no", "maybe"])
    model.set_params(likelihood="probits")
    with pytest.raises(ValueError, match="The 'likelihood' parameter"):
        model.partial_fit(X, LABELS, classes=["yes", "no", "maybe"])
    assert not hasattr(model, "classes_")


def test_later_classes_are_those_of_the_first_call() -> None:
    model = classifier().partial_fit(X[FIRST], LABELS[FIRST], classes=np.array(["no", "yes"]))
    model.partial_fit(X[60:61], LABELS[60:61], classes=["yes", "no"])
    with pytest.raises(InvalidInputError, match="must be those of the first call, 'no', 'yes'"):
        model.partial_fit(X[61:], LABELS[61:], classes=["yes", "maybe"])
    with pytest.raises(InvalidInputError, match="partial_fit must be one of 'no', 'yes'"):
        model.partial_fit(X[:1], ["maybe"])
    assert (model.num_rows_, model.classes_.tolist()) == (61, ["no", "yes"])


def test_what_cannot_be_used_is_refused_and_changes_nothing() -> None:
    model = fitted()
    before = model.predict(X)
    with pytest.raises(ValueError, match="X has 2 features"):
        model.partial_fit(np.column_stack([X, X]), Y)
    with pytest.raises(InvalidInputError, match=r"SparseGPRegressor\.partial_fit got one, in row"):
        model.partial_fit([[np.nan]], [1.0])
    with pytest.raises(ValueError, match="at least one non-zero"):
        model.partial_fit(X, Y, sample_weight=np.zeros(len(X)))
    with pytest.raises(UnsupportedError, match="depends on the variance of f"):
        model.set_params(objective="absolute_loss").partial_fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.num_rows_ == 60
    words = r"SparseGPRegressor\.partial_fit must be .* Got other values of num_inducing. Call fit."
    with pytest.raises(InvalidInputError, match=words):
        fitted().set_params(num_inducing=5).partial_fit(X, Y)
    with pytest.raises(InvalidInputError, match="beta of update must be positive"):
        fitted(objective="log_loss", beta=0.0).partial_fit(X, Y)


@pytest.mark.parametrize("objective", ["elbo", "log_loss"])
def test_single_rows_in_single_precision(objective: str) -> None:
    model = fitted(objective=objective, dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in range(60, 64):
            model.partial_fit(X[row : row + 1], Y[row : row + 1])
    assert model.num_rows_ == 64
    assert model.nll(X, Y) < 3.0


def test_fit_forgets_and_a_clone_is_new() -> None:
    model = fitted().partial_fit(X[SECOND], Y[SECOND])
    expected = fitted().predict(X)
    assert not np.allclose(model.predict(X), expected, atol=0.01)
    np.testing.assert_array_equal(clone(model).partial_fit(X[FIRST], Y[FIRST]).predict(X), expected)
    np.testing.assert_array_equal(model.fit(X[FIRST], Y[FIRST]).predict(X), expected)
    assert (model.num_rows_, model.hyperparameters_) == (60, fitted().hyperparameters_)


def test_rows_in_other_units_are_mentioned_once() -> None:
    model = regressor().partial_fit(X[:60], Y[:60])
    said = model.findings_
    for _ in range(2):
        with pytest.warns(DirectGPWarning, match="far outside those of the first fit: column 0"):
            model.partial_fit(1000 * X[60:], Y[60:])
    assert len(model.findings_) == len(said) + 1
    model = regressor(standardize=False).partial_fit(X[:60], Y[:60])
    model.partial_fit(1000 * X[60:], Y[60:])
