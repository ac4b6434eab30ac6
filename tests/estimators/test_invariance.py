"""Order, units and repetition of rows do not change predictions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPWarning
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

HELD_OUT: dict[str, Any] = {"validation_fraction": 0.3}
ORDER = np.random.default_rng(1).permutation(24)
FACTORS, SHIFTS = np.array([-3.7, 2e4]), np.array([20.0, -1e5])


def predictions(model: Any, table: np.ndarray = X) -> Any:
    return model.predict_proba(table) if hasattr(model, "predict_proba") else model.predict(table)


def _whole_search_agrees(maker: Maker, y: Any, **settings: Any) -> None:
    """Everything chosen, from other rows first and in other units."""
    model = maker(random_state=0, **settings).fit(X, y)
    other = X * FACTORS + SHIFTS
    twin = maker(random_state=0, **settings).fit(other[ORDER], y[ORDER])
    np.testing.assert_allclose(predictions(twin, other), predictions(model), rtol=1e-6)
    assert (twin.beta_, twin.hyperparameters_) == (model.beta_, model.hyperparameters_)


@pytest.mark.parametrize(
    ("maker", "y", "validated"),
    [
        pytest.param(SparseGPRegressor, Y, {}, id="regressor, by folds"),
        pytest.param(SparseGPCountRegressor, COUNTS, HELD_OUT, id="counts, by rows held out"),
    ],
)
@pytest.mark.slow_for("counts")
def test_order_and_units_of_the_inputs_do_not_change_predictions(
    maker: Maker, y: Any, validated: dict[str, Any]
) -> None:
    _whole_search_agrees(maker, y, num_inducing=3, max_iter=2, **validated)


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_order_and_units_do_not_change_predictions_by_default(
    maker: Maker, settings: Any, y: Any
) -> None:
    _whole_search_agrees(maker, y)


def _units_of_the_target_agree(**settings: Any) -> None:
    model = SparseGPRegressor(random_state=0, **settings).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    for factor, shift in ((1e6, 3e6), (-0.02, 0.5)):
        twin = SparseGPRegressor(random_state=0, **settings).fit(X, factor * Y + shift)
        found = twin.predict(X, return_std=True)
        scale = 1e-6 * abs(factor)
        np.testing.assert_allclose(found[0], factor * mean + shift, rtol=1e-6, atol=scale)
        np.testing.assert_allclose(found[1], abs(factor) * std, rtol=1e-6)
        assert twin.nll(X, factor * Y + shift) == pytest.approx(
            model.nll(X, Y) + np.log(abs(factor)), rel=1e-6, abs=1e-6
        )


@pytest.mark.slow
def test_units_of_the_target_change_predictions_by_their_factor() -> None:
    _units_of_the_target_agree(num_inducing=3, max_iter=2, **HELD_OUT)


@pytest.mark.slow
def test_units_of_the_target_by_default_settings() -> None:
    _units_of_the_target_agree()


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_a_weight_is_a_number_of_repetitions(maker: Maker, settings: Any, y: Any) -> None:
    weights = np.random.default_rng(2).integers(0, 4, 24)
    weighted = maker(**settings).fit(X, y, sample_weight=weights)
    repeated = maker(**settings).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_array_equal(predictions(weighted), predictions(repeated))


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_a_row_of_weight_0_is_as_if_removed(maker: Maker, settings: Any, y: Any) -> None:
    searched = maker is SparseGPRegressor
    search = {**settings, "hyperparameters": "auto" if searched else "joint"}
    kept = np.arange(24) % 3 > 0
    weighted = maker(**search).fit(X, y, sample_weight=kept)
    removed = maker(**search).fit(X[kept], y[kept])
    np.testing.assert_array_equal(predictions(weighted), predictions(removed))
    assert weighted.num_rows_ == removed.num_rows_ == 16


@pytest.mark.parametrize("kind", [str, object])
def test_a_label_of_weight_0_is_as_if_removed(kind: type) -> None:
    kept = np.arange(24) % 3 > 0
    y: Any = np.where(kept, LABELS, "maybe").astype(kind)
    weighted = SparseGPClassifier(**LIGHT).fit(X, y, sample_weight=kept)
    removed = SparseGPClassifier(**LIGHT).fit(X[kept], LABELS[kept])
    np.testing.assert_array_equal(predictions(weighted), predictions(removed))
    weighted.partial_fit(X, y, sample_weight=kept)
    assert weighted.num_rows_ == 32


def test_warnings_ignore_rows_of_weight_0() -> None:
    kept = np.arange(24) % 3 > 0
    with pytest.warns(DirectGPWarning, match="only two values, 0 and 1"):
        SparseGPRegressor(**REGRESSION).fit(X, np.where(kept, Y > 0, 7), sample_weight=kept)


def test_an_exposure_of_weight_0_is_as_if_removed() -> None:
    kept, hours = np.arange(24) % 3 > 0, np.linspace(1.0, 3.0, 24)
    weighted, removed = SparseGPCountRegressor(**COUNTING), SparseGPCountRegressor(**COUNTING)
    weighted.fit(X, COUNTS, kept, exposure=hours).partial_fit(X, COUNTS, kept, hours)
    for learn in (removed.fit, removed.partial_fit):
        learn(X[kept], COUNTS[kept], exposure=hours[kept])
    np.testing.assert_array_equal(predictions(weighted), predictions(removed))
    assert weighted.num_rows_ == 32


@pytest.mark.parametrize(("maker", "settings", "y"), CASES)
def test_the_size_of_a_block_does_not_change_predictions(
    maker: Maker, settings: Any, y: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = maker(**settings).fit(X, y)
    expected, density = (predictions(model), *model.predict_latent(X)), model.log_density(X, y)
    for size in (1, 7):
        monkeypatch.setattr(
            "directgp.estimators.predictions._BLOCK_VALUES", size * len(model.posterior_.Z)
        )
        found = predictions(model), *model.predict_latent(X)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
        # Quadrature has fewer digits than the marginals.
        np.testing.assert_allclose(model.log_density(X, y), density, rtol=1e-9)


def test_predicted_counts_are_proportional_to_exposure() -> None:
    hours = np.linspace(1.0, 3.0, 24)
    model = SparseGPCountRegressor(**COUNTING).fit(X, COUNTS, exposure=hours)
    alike = model.predict(X, exposure=2 * hours)
    np.testing.assert_allclose(alike, 2 * model.predict(X, exposure=hours), rtol=1e-12)
    np.testing.assert_allclose(model.predict(X), model.predict(X, np.ones(24)), rtol=1e-12)
