"""A fit changes no argument, is repeatable, and leaves a model after every kind of end."""

import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPWarning, InvalidInputError, NumericalError
from directgp.estimators.fitting import Fit
from directgp.estimators.progress import FitProgress
from directgp.likelihoods import StudentT
from directgp.training.result import Progress
from tests.estimators.small_data import COUNTING, COUNTS, LABELS, LIGHT, REGRESSION, X, Y

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

Maker = Callable[..., Any]
CASES = [
    pytest.param(SparseGPRegressor, REGRESSION, Y, id="regressor"),
    pytest.param(SparseGPClassifier, LIGHT, LABELS, id="classifier"),
    pytest.param(SparseGPCountRegressor, COUNTING, COUNTS, id="counts"),
]
SEARCH: dict[str, Any] = {"num_inducing": 3, "max_iter": 2, "ard": False}
HELD_OUT: dict[str, Any] = {"validation_fraction": 0.3}


def predictions(model: Any) -> Any:
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


def frozen(values: np.ndarray) -> np.ndarray:
    """A copy that cannot be written to."""
    copied = values.copy()
    copied.setflags(write=False)
    return copied


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_fit_changes_no_argument(maker: Maker, settings: Any, y: Any) -> None:
    given = {"X": X, "y": y, "weights": np.arange(24.0), "other": X + 1, "levels": np.array([0.5])}
    kept = {name: values.tobytes() for name, values in given.items()}
    model = maker(inducing=given["other"], **{**settings, "num_inducing": "auto"})
    model.fit(X, y, given["weights"], (given["other"], y))
    predictions(model)
    model.nll(X, y, given["weights"])
    if hasattr(model, "predict_quantiles"):
        model.predict_quantiles(X, given["levels"])
    assert {name: values.tobytes() for name, values in given.items()} == kept


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_fit_accepts_read_only_arrays(maker: Maker, settings: Any, y: Any) -> None:
    weights = frozen(np.arange(24.0))
    model = maker(**settings).fit(frozen(X), frozen(y), weights, (frozen(X), frozen(y)))
    assert len(predictions(model)) == 24


@pytest.mark.parametrize("seed", [lambda: 3, lambda: np.random.RandomState(5)])
@pytest.mark.parametrize(("maker", "settings", "y"), CASES[1:])
def test_the_same_random_state_gives_the_same_bits(
    maker: Maker, settings: Any, y: Any, seed: Callable[[], Any]
) -> None:
    def fitted() -> Any:
        random = seed()
        return maker(**{**settings, "random_state": random, "inducing": "random"}).fit(X, y)

    first, second = fitted(), fitted()
    np.testing.assert_array_equal(predictions(first), predictions(second))
    assert first.posterior_.Z.tolist() == second.posterior_.Z.tolist()


@pytest.mark.parametrize(
    ("maker", "y", "validated"),
    [
        pytest.param(SparseGPRegressor, Y, {}, id="regressor, by folds"),
        pytest.param(SparseGPClassifier, LABELS, HELD_OUT, id="classifier, by rows held out"),
    ],
)
def test_a_second_fit_predicts_the_same(maker: Maker, y: Any, validated: dict[str, Any]) -> None:
    model = maker(random_state=0, **SEARCH, **validated).fit(X, y)
    once = predictions(model)
    np.testing.assert_array_equal(predictions(model.fit(X, y)), once)


def test_rules_that_draw_repeat_their_draws() -> None:
    settings = {**REGRESSION, "rule": "bmc", "optimizer": "adam", "batch_size": 8}
    first, second = (SparseGPRegressor(**settings).fit(X, Y) for _ in range(2))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_a_warm_start_continues_training(maker: Maker, settings: Any, y: Any) -> None:
    cold = maker(**settings).fit(X, y)
    warm = maker(**{**settings, "warm_start": True}).fit(X, y)
    np.testing.assert_array_equal(predictions(warm), predictions(cold))
    before = warm.training_result_.loss
    for _ in range(3):
        warm.fit(X, y)
    assert warm.training_result_.loss < before


def test_validation_data_determine_the_validation_losses() -> None:
    far = SparseGPRegressor(random_state=0, **SEARCH).fit(X, Y, validation_data=(X, 9 * Y))
    near = SparseGPRegressor(random_state=0, **SEARCH).fit(X, Y, validation_data=(X, Y))
    assert far.beta_path_ is not None and near.beta_path_ is not None
    losses = [point.validation_loss for point in far.beta_path_.points]
    assert losses != [point.validation_loss for point in near.beta_path_.points]
    assert far.beta_path_.validation == "24 examples given for validation"


def test_validation_data_may_have_exposures() -> None:
    hours = np.linspace(1.0, 3.0, 24)
    model = SparseGPCountRegressor(random_state=0, **SEARCH)
    model.fit(X, COUNTS, validation_data=(X, COUNTS, hours), exposure=hours)
    assert np.isfinite(model.predict(X, hours)).all()


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_a_fit_that_fails_leaves_the_model_before(
    maker: Maker, settings: Any, y: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = maker(**settings).fit(X, y)
    once = predictions(model)
    for error in (NumericalError("It overflowed."), KeyboardInterrupt()):

        def fail(*args: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(Fit, "train", fail)
        with pytest.raises(type(error)):
            model.fit(X[:, :1], np.asarray(y == y[0], dtype=float))
        np.testing.assert_array_equal(predictions(model), once)
    with pytest.raises(InvalidInputError):
        model.fit(X * np.nan, y)
    np.testing.assert_array_equal(predictions(model), once)


@pytest.mark.parametrize(
    ("maker", "y", "step"),
    [
        *((SparseGPRegressor, Y, step) for step in (1, 2, 7, 30)),
        (SparseGPClassifier, LABELS, 7),
        (SparseGPCountRegressor, COUNTS, 7),
    ],
)
def test_an_interrupt_leaves_a_usable_model(
    maker: Maker, y: Any, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watch(self: FitProgress, progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(FitProgress, "__call__", watch)
    with pytest.warns(DirectGPWarning, match="Training was ended before it converged. Interrupted"):
        model = maker(random_state=0, verbose=1, **SEARCH).fit(X, y)
    assert len(seen) == step
    assert np.isfinite(predictions(model)).all()
    assert any("Interrupted" in finding for finding in model.findings_)


# Guards of the default


def loud_in_part(seed: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """sin x with little noise, and wild values in three rows of ten where x > 7."""
    random = np.random.default_rng(seed)
    x = random.uniform(0, 10, 200)
    noise = 0.1 * random.normal(size=200)
    wild = (x > 7) & (random.random(200) < 0.3)
    return x[:, None], np.sin(x) + noise + wild * random.normal(scale=3, size=200)


@pytest.mark.slow
def test_the_default_has_a_variance_and_says_where_its_intervals_are_too_narrow() -> None:
    """Without a bound ν is 0.38, and no warning said that targets of large x are not covered."""
    model = SparseGPRegressor(random_state=0).fit(*loud_in_part())
    assert isinstance(model.likelihood_, StudentT)
    assert model.likelihood_.df.item() == pytest.approx(2.1)
    tails, narrow = model.findings_
    assert tails.startswith("The number of degrees of freedom of the Student-t noise ended at")
    found = re.search(r"(\d+) of 20 validation targets where column 0 is from (\S+) to", narrow)
    assert found and int(found[1]) < 13 and float(found[2]) > 7


@pytest.mark.parametrize("hyperparameters", ["joint", "fixed"])
@pytest.mark.slow
def test_heavier_tails_have_to_be_asked_for(hyperparameters: str) -> None:
    settings: dict[str, Any] = {"beta": 1.0, "num_inducing": 20, "kernel": "rbf", "random_state": 0}
    bounds, own = [], StudentT(df=1.5)
    for likelihood in ("student_t", own, StudentT(df=4.0, min_df=3.0)):
        model = SparseGPRegressor(
            likelihood=likelihood, hyperparameters=hyperparameters, **settings
        ).fit(*loud_in_part())
        assert isinstance(model.likelihood_, StudentT)
        bounds.append(round(model.likelihood_.df.item(), 6))
        at_bound = [text for text in model.findings_ if "degrees of freedom" in text]
        assert len(at_bound) == (likelihood is not own)
    assert bounds[0] == 2.1 and bounds[1] < 2 and bounds[2] == 3


# Time and jobs


def test_a_time_budget_leaves_a_model_and_says_what_was_not_tried() -> None:
    with pytest.warns(DirectGPWarning, match="The time budget ended the race.*Not tried: "):
        model = SparseGPRegressor(time_budget=1e-3, random_state=0).fit(X, Y)
    assert np.isfinite(model.predict(X)).all()


def test_jobs_do_not_change_the_model() -> None:
    one, two = (SparseGPRegressor(n_jobs=n, random_state=0, **SEARCH).fit(X, Y) for n in (1, 2))
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    with pytest.raises(InvalidInputError, match="n_jobs must be an integer other than 0"):
        SparseGPRegressor(n_jobs=0, random_state=0, **SEARCH).fit(X, Y)
