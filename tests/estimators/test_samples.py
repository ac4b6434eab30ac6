"""Samples of y: number, repeatability and distribution."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.estimators.fitted_models import (
    SPENT,
    THERE,
    Array,
    counter,
    marginals,
    parameter,
    regressor,
)

# Runs as short as these say that they are.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DRAWS = 5000
MODELS = [regressor, counter]


@pytest.mark.parametrize("make", MODELS)
def test_shapes_and_seeds(make: Any) -> None:
    model = make()
    assert model.sample_y(THERE).shape == (17, 1)
    drawn = model.sample_y(THERE, 4, random_state=1)
    assert drawn.shape == (17, 4)
    np.testing.assert_array_equal(drawn, model.sample_y(THERE, 4, random_state=1))
    assert (drawn != model.sample_y(THERE, 4, random_state=2)).any()
    assert (drawn[:, 0] != drawn[:, 1]).any()
    source = np.random.RandomState(1)
    first, second = (model.sample_y(THERE, 4, random_state=source) for _ in range(2))
    np.testing.assert_array_equal(first, drawn)
    assert (first != second).any()


def assert_moments(drawn: Array, mean: Array, std: Array) -> None:
    """Within five standard errors, that of the deviation taken from the draws."""
    within = 5 / np.sqrt(drawn.shape[1])
    assert (np.abs(drawn.mean(1) - mean) <= within * std).all()
    square = (drawn - mean[:, None]) ** 2
    assert (np.abs(square.mean(1) - std**2) <= within * square.std(1)).all()


def test_real_numbers() -> None:
    model = regressor()
    mean, std = model.predict(THERE, return_std=True)
    assert_moments(model.sample_y(THERE, DRAWS), mean, std)


def test_heavy_tails() -> None:
    """Shares of draws below quantiles, as moments need not exist."""
    model = regressor("student_t")
    drawn = model.sample_y(THERE, DRAWS)
    levels = np.array([0.01, 0.1587, 0.5, 0.8413, 0.99])
    ends = model.predict_quantiles(THERE, levels)
    shares = (drawn[:, None, :] < ends[:, :, None]).mean(2)
    assert (np.abs(shares - levels) <= 5 * np.sqrt(levels * (1 - levels) / DRAWS)).all()


@pytest.mark.parametrize("likelihood", ["poisson", "poisson_softplus", "negative_binomial"])
def test_counts(likelihood: str) -> None:
    model, inputs, hours = counter(likelihood), THERE[4:12], SPENT[4:12]
    counts = np.arange(301)
    pmf = model.predict_pmf(inputs, 300, hours)
    mean = model.predict(inputs, hours)
    std = np.sqrt(pmf @ counts**2 - mean**2)
    drawn = model.sample_y(inputs, DRAWS, exposure=hours)
    assert (drawn == np.round(drawn)).all() and drawn.min() >= 0
    assert_moments(drawn, mean, std)


def test_draws_are_joint() -> None:
    """Far out f is uncertain; at two inputs side by side it is the same, noise is not."""
    model = regressor()
    pair = np.array([[1100.0], [1100.1]])
    _, variance = marginals(model, pair)
    expected = variance[0] / (variance[0] + parameter(model, "noise"))
    assert expected > 0.3
    drawn = model.sample_y(pair, DRAWS)
    found = np.arctanh(stats.pearsonr(*drawn).statistic)
    assert abs(found - np.arctanh(expected)) < 5 / np.sqrt(DRAWS)
    apart = model.sample_y(np.array([[1100.0], [-1e5]]), DRAWS)
    assert stats.pearsonr(*apart).pvalue > 1e-6
