"""The numbers that estimators report, and parameters that have an effect or raise an error."""

from dataclasses import replace
from typing import Any, final

import numpy as np
import pytest
import torch
from jaxtyping import Num
from sklearn.exceptions import ConvergenceWarning, UndefinedMetricWarning
from torch import Tensor

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import InvalidInputError
from directgp.likelihoods import Likelihood, Poisson
from directgp.objectives import PointLoss, ZeroOneCost
from directgp.shapes import BatchedRow, Marginals

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

LIGHT: dict[str, Any] = {
    "num_inducing": 8,
    "max_iter": 10,
    "kernel": "rbf",
    "ard": False,
    "random_state": 0,
}
GIVEN: dict[str, Any] = {**LIGHT, "beta": 1.0, "hyperparameters": "joint"}
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * RANDOM.standard_normal(60)


def test_validation_losses_do_not_depend_on_repetitions() -> None:
    """Five times each row is five times the evidence, and the same kind of loss."""
    settings = {**LIGHT, "likelihood": "gaussian", "hyperparameters": "fixed"}
    weighted = SparseGPRegressor(**settings).fit(X, Y, sample_weight=np.full(60, 5.0))
    repeated = SparseGPRegressor(**settings).fit(np.repeat(X, 5, 0), np.repeat(Y, 5))
    path, other = weighted.beta_path_, repeated.beta_path_
    assert path is not None and other is not None
    assert replace(path, seconds=0.0) == replace(other, seconds=0.0)
    loss = path.points[path.chosen].validation_loss
    assert abs(loss - weighted.nll(X, Y)) < 1.0


@final
class Distance(PointLoss):
    """|y − μ|, by a class that the registry does not have."""

    name = "distance"
    unit_power = 1

    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> BatchedRow:
        return (y - marginals.mean).abs()

    def uses_variance(self, likelihood: Likelihood) -> bool:
        return False


@pytest.mark.parametrize("objective", ["absolute_loss", Distance()])
def test_validation_losses_have_the_unit_of_the_target(objective: str | PointLoss) -> None:
    settings = {**GIVEN, "max_iter": 2, "hyperparameters": "auto", "likelihood": "gaussian"}
    model, other = (
        SparseGPRegressor(objective=objective, **settings).fit(X, y, validation_data=(X, y))
        for y in (Y, 1024 * Y)
    )
    path, larger = model.beta_path_, other.beta_path_
    assert path is not None and larger is not None
    for one, many in zip(path.points, larger.points, strict=True):
        assert many.validation_loss == pytest.approx(1024 * one.validation_loss)
        assert many.validation_error == pytest.approx(1024 * one.validation_error)


def test_counts_and_labels_have_their_own_estimators() -> None:
    with pytest.raises(InvalidInputError, match="SparseGPCountRegressor for counts"):
        SparseGPRegressor(likelihood=Poisson(), standardize=False).fit(X, np.round(np.exp(Y)))


def test_a_warm_start_goes_on_with_the_same_model_or_not_at_all() -> None:
    model = SparseGPRegressor(**GIVEN, likelihood="gaussian", warm_start=True).fit(X, Y)
    model.set_params(max_iter=5, objective="elbo").fit(X, Y)
    with pytest.raises(InvalidInputError, match="other values of kernel, num_inducing"):
        model.set_params(kernel="matern12", num_inducing=20).fit(X, Y)


def test_a_warm_start_needs_both_classes() -> None:
    model = SparseGPClassifier(**GIVEN, warm_start=True).fit(X, Y > 0)
    before = model.predict_proba(X)
    with pytest.raises(InvalidInputError, match="at least two classes"):
        model.fit(X[Y > 0], Y[Y > 0] > 0)
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_the_threshold_is_that_of_the_fit() -> None:
    model = SparseGPClassifier(**GIVEN).fit(X, Y > 0)
    before = model.predict(X)
    model.set_params(objective=ZeroOneCost(1.0, 1000.0))
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.threshold_ == 0.5


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_very_short_runs_are_not_converged(steps: int) -> None:
    with pytest.warns(ConvergenceWarning):
        SparseGPRegressor(**{**GIVEN, "max_iter": steps}, likelihood="gaussian").fit(X, Y)


def test_d2_is_against_a_constant_rate() -> None:
    hours = RANDOM.uniform(1, 50, 60)
    counts = RANDOM.poisson(2.0 * hours)
    model = SparseGPCountRegressor(**GIVEN, likelihood="poisson").fit(X, counts, exposure=hours)
    assert abs(model.score(X, counts, exposure=hours)) < 0.5
    plain = SparseGPCountRegressor(**GIVEN, likelihood="poisson").fit(X, np.round(np.exp(Y)))
    with pytest.warns(UndefinedMetricWarning, match="every count is 0"):
        assert np.isnan(plain.score(X, np.zeros(60)))
    # With these weights, the mean of equal counts of 7 and of 13 differs from them by rounding.
    for count, base in ((4.0, 1.0), (7.0, 1.1), (13.0, 0.9)):
        with pytest.warns(UndefinedMetricWarning, match="constant rate already fits"):
            assert np.isnan(plain.score(X, np.full(60, count), base ** np.arange(60)))


def test_a_first_fit_is_not_compared_with_an_earlier_one() -> None:
    settings = {**GIVEN, "max_iter": 2, "likelihood": "gaussian", "standardize": False}
    model = SparseGPRegressor(**settings, warm_start=True).fit(X + 100, Y)
    assert not any("first fit" in finding for finding in model.findings_)


def test_small_weights_and_other_units_are_told() -> None:
    settings = {**GIVEN, "likelihood": "gaussian"}
    model = SparseGPRegressor(**settings).fit(X, Y, sample_weight=np.full(60, 1 / 60))
    assert any("A weight is a number of rows" in finding for finding in model.findings_)
    model = SparseGPRegressor(**settings, warm_start=True).fit(X, Y)
    assert not any("The scaling is that of the first fit" in finding for finding in model.findings_)
    model.fit(1e3 * X + 1e5, Y)
    assert any("The scaling is that of the first fit" in finding for finding in model.findings_)
