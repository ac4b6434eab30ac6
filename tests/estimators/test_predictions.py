"""Predictions in the user's units, against those computed by hand from the model's parts."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, d2_tweedie_score, mean_poisson_deviance, r2_score

from directgp import SparseGPRegressor
from directgp.errors import DirectGPWarning, InvalidInputError, NumericalError
from directgp.objectives import ZeroOneCost
from directgp.predictive import predictive_quantiles
from directgp.shapes import Marginals
from tests.estimators.fitted_models import (
    COUNTS,
    HOURS,
    LABELS,
    LIGHT,
    SPENT,
    THERE,
    Array,
    X,
    Y,
    classifier,
    counter,
    marginals,
    parameter,
    regressor,
)

# Runs as short as these say that they are.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

CENTRE, SPREAD = float(Y.mean()), float(Y.std())
ONE_DEVIATION = stats.norm.cdf([-1.0, 1.0])
NODES = np.linspace(-10, 10, 4001)
WEIGHTS = stats.norm.pdf(NODES) / stats.norm.pdf(NODES).sum()


def over_f(function: Any, mean: Array, variance: Array) -> Array:
    """E_q[function(f)] by a sum over a fine grid."""
    return np.asarray(WEIGHTS @ function(mean + np.sqrt(variance) * NODES[:, None]))


# Real numbers


def by_hand() -> tuple[SparseGPRegressor, Array, Array]:
    """A model with Gaussian noise, and mean and deviation of y."""
    model = regressor()
    mean, variance = marginals(model, THERE)
    noise = parameter(model, "noise")
    return model, CENTRE + SPREAD * mean, SPREAD * np.sqrt(variance + noise)


def test_mean_and_deviation() -> None:
    model, mean, std = by_hand()
    np.testing.assert_allclose(model.predict(THERE), mean, rtol=1e-8)
    np.testing.assert_allclose(model.predict(THERE, return_std=True), [mean, std], rtol=1e-8)
    assert np.ptp(std) > 0.1, "the new inputs tell deviations apart"


def test_the_latent_function_has_no_noise() -> None:
    model, mean, _ = by_hand()
    _, variance = marginals(model, THERE)
    found = model.predict_latent(THERE)
    np.testing.assert_allclose(found, [mean, SPREAD * np.sqrt(variance)], rtol=1e-8)


def test_quantiles_and_intervals() -> None:
    model, mean, std = by_hand()
    levels = [0.9, 0.01, 0.5, 1e-6]
    expected = stats.norm.ppf(levels, mean[:, None], std[:, None])
    np.testing.assert_allclose(model.predict_quantiles(THERE, levels), expected, rtol=1e-8)
    ends = stats.norm.interval(0.75, mean, std)
    np.testing.assert_allclose(model.predict_interval(THERE, 0.75), ends, rtol=1e-8)


def test_densities_are_of_the_users_units() -> None:
    model, mean, std = by_hand()
    y = mean + np.linspace(-40, 3, len(mean)) * std
    expected = stats.norm.logpdf(y, mean, std)
    np.testing.assert_allclose(model.log_density(THERE, y), expected, rtol=1e-7)


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
def test_densities_integrate_to_one_and_to_the_quantiles(likelihood: str) -> None:
    model, x = regressor(likelihood), THERE[5:6]

    def density(y: Array) -> Array:
        found: Array = np.exp(model.log_density(np.repeat(x, len(y), axis=0), y))
        return found

    ends = model.predict_quantiles(x, [1e-4, 0.2, 0.7, 1 - 1e-4])[0]
    pairs = itertools.pairwise(ends)
    shares = [integrate.fixed_quad(density, *pair, n=100)[0] for pair in pairs]
    np.testing.assert_allclose(shares, [0.1999, 0.5, 0.2999], atol=1e-5)


def test_deviation_with_heavy_tails_is_half_the_central_interval() -> None:
    """Its distribution function is an average over f of Student's t, inverted by root finding."""
    model = regressor("student_t")
    mean, variance = marginals(model, THERE)
    df, scale = parameter(model, "df"), parameter(model, "scale")
    ends = np.empty((2, len(mean)))
    for i, (m, v) in enumerate(zip(mean, variance, strict=True)):
        for k, level in enumerate(ONE_DEVIATION):

            def excess(y: float, m: float = m, v: float = v, level: float = level) -> float:
                return float(WEIGHTS @ stats.t.cdf(y, df, m + np.sqrt(v) * NODES, scale)) - level

            ends[k, i] = optimize.brentq(excess, m - 50, m + 50, xtol=1e-12)
    found = model.predict(THERE, return_std=True)
    np.testing.assert_allclose(found[0], CENTRE + SPREAD * mean, rtol=1e-8)
    np.testing.assert_allclose(found[1], SPREAD * (ends[1] - ends[0]) / 2, rtol=1e-5)


def test_densities_with_heavy_tails() -> None:
    model = regressor("student_t")
    mean, variance = marginals(model, THERE)
    df, scale = parameter(model, "df"), parameter(model, "scale")
    y = np.linspace(-5, 25, len(mean))
    scaled = (y - CENTRE) / SPREAD
    density = over_f(lambda f: stats.t.pdf(scaled, df, f, scale), mean, variance) / SPREAD
    np.testing.assert_allclose(model.log_density(THERE, y), np.log(density), rtol=1e-5)


def test_without_standardization_nothing_is_scaled() -> None:
    inputs, targets = (X - 700) / 100, Y - 10
    settings = {**LIGHT, "standardize": False, "likelihood": "gaussian", "objective": "elbo"}
    model = SparseGPRegressor(**settings).fit(inputs, targets)
    q = model.posterior_.predict(torch.as_tensor(inputs))
    noise = parameter(model, "noise")
    found = model.predict(inputs, return_std=True)
    np.testing.assert_allclose(found, [q.mean, (q.variance + noise).sqrt()], rtol=1e-10)
    scalings = model.scalings_
    for each in (scalings.inputs, scalings.targets):
        assert (each.shift.tolist(), each.scale.tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize("mean", ["auto", "zero", "constant"])
def test_far_away_predictions_are_the_prior_mean(mean: str) -> None:
    model = regressor(mean=mean)
    far = model.predict([[1e7]])[0]
    if mean == "constant":
        constant = model.posterior_.prior.mean_function.constant
        assert far == pytest.approx(CENTRE + SPREAD * float(constant.detach()))
    else:
        assert far == pytest.approx(CENTRE)


def test_single_precision_is_close() -> None:
    one, other = regressor(), regressor(dtype="float32")
    assert other.posterior_.Z.dtype == torch.float32
    found = other.predict(THERE, return_std=True)
    np.testing.assert_allclose(found, one.predict(THERE, return_std=True), rtol=0.02)
    np.testing.assert_allclose(other.log_density(X, Y), one.log_density(X, Y), atol=0.1)


@pytest.mark.parametrize("make", [regressor, counter])
def test_single_precision_is_of_the_model_alone(make: Any) -> None:
    model = make(dtype="float32")
    levels = [0.1, 0.5, 1 - 1e-12]
    found = model.predict_quantiles(THERE, levels)
    scaled = torch.as_tensor(model.scalings_.inputs.forward(THERE)).float()
    q = model.posterior_.predict(scaled)
    wide = Marginals(q.mean.detach().double(), q.variance.detach().double())
    expected = predictive_quantiles(model.likelihood_, wide, levels).detach().numpy().T
    units = model.scalings_.targets
    np.testing.assert_allclose(found, expected * units.scale + units.shift, rtol=1e-14)


# Labels


def test_probabilities() -> None:
    model = classifier()
    mean, variance = marginals(model, THERE)
    p = stats.norm.cdf(mean / np.sqrt(1 + variance))
    np.testing.assert_allclose(model.predict_proba(THERE), np.stack([1 - p, p], 1), rtol=1e-8)
    np.testing.assert_allclose(model.predict_latent(THERE), [mean, np.sqrt(variance)], rtol=1e-8)
    assert model.classes_.tolist() == ["no", "yes"]


def test_probabilities_by_the_logistic_function() -> None:
    model = classifier(likelihood="logistic")
    p = over_f(lambda f: 1 / (1 + np.exp(-f)), *marginals(model, THERE))
    np.testing.assert_allclose(model.predict_proba(THERE)[:, 1], p, rtol=1e-6)


def test_log_probabilities_are_right_where_probabilities_underflow() -> None:
    model = classifier()
    with torch.no_grad():
        model.posterior_.u_mean.mul_(200)
    mean, variance = marginals(model, THERE)
    t = mean / np.sqrt(1 + variance)
    assert np.abs(t).max() > 40
    expected = np.stack([stats.norm.logcdf(-t), stats.norm.logcdf(t)], 1)
    np.testing.assert_allclose(model.predict_log_proba(THERE), expected, rtol=1e-9)
    assert model.predict_proba(THERE).min() == 0.0
    decision = model.decision_function(THERE)
    np.testing.assert_allclose(decision, expected[:, 1] - expected[:, 0], rtol=1e-9)


def test_decisions() -> None:
    model = classifier()
    p = model.predict_proba(X)[:, 1]
    np.testing.assert_allclose(model.decision_function(X), np.log(p / (1 - p)), atol=1e-9)
    assert model.predict(X).tolist() == np.where(p > 0.5, "yes", "no").tolist()
    assert {"yes", "no"} == set(model.predict(X))
    with pytest.raises(InvalidInputError, match=r"SparseGPClassifier\.predict got one"):
        model.predict([[np.nan]])


def test_costs_move_the_decision() -> None:
    """A missed "yes" costs nine times as much: say it from a probability of a tenth."""
    model = classifier(objective=ZeroOneCost(1.0, 9.0), max_iter=3)
    p = model.predict_proba(X)[:, 1]
    assert model.threshold_ == 0.1 and ((p > 0.1) & (p < 0.5)).any()
    assert model.predict(X).tolist() == np.where(p > 0.1, "yes", "no").tolist()
    assert ((model.decision_function(X) > 0) == (p > 0.1)).all()


def test_log_density_of_labels() -> None:
    model = classifier()
    expected = model.predict_log_proba(X)[np.arange(len(X)), (LABELS == "yes").astype(int)]
    np.testing.assert_allclose(model.log_density(X, LABELS), expected)


# Counts


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_mean_counts(likelihood: str) -> None:
    model = counter(likelihood)
    mean, variance = marginals(model, THERE)
    expected = np.exp(mean + variance / 2)
    np.testing.assert_allclose(model.predict(THERE), expected, rtol=1e-8)
    np.testing.assert_allclose(model.predict(THERE, SPENT), SPENT * expected, rtol=1e-8)


def test_mean_counts_by_the_softplus_function() -> None:
    model = counter("poisson_softplus")
    expected = over_f(lambda f: np.logaddexp(0, f), *marginals(model, THERE))
    np.testing.assert_allclose(model.predict(THERE, SPENT), SPENT * expected, rtol=1e-6)


def test_probabilities_of_counts() -> None:
    model = counter()
    mean, variance = marginals(model, THERE)
    counts = np.arange(12)
    expected = [
        over_f(lambda f, k=k: stats.poisson.pmf(k, SPENT * np.exp(f)), mean, variance)
        for k in counts
    ]
    found = model.predict_pmf(THERE, 11, SPENT)
    np.testing.assert_allclose(found, np.transpose(expected), rtol=1e-5, atol=1e-12)
    third = model.log_density(THERE, np.full(len(THERE), 3.0), SPENT)
    np.testing.assert_allclose(third, np.log(expected[3]), rtol=1e-5)


def test_probabilities_of_overdispersed_counts() -> None:
    model = counter("negative_binomial")
    mean, variance = marginals(model, THERE)
    r = parameter(model, "dispersion")

    def pmf(f: Array) -> Array:
        rate = SPENT * np.exp(f)
        return np.asarray(stats.nbinom.pmf(4, r, r / (r + rate)))

    found = model.predict_pmf(THERE, 4, SPENT)[:, 4]
    np.testing.assert_allclose(found, over_f(pmf, mean, variance), rtol=1e-5)


@pytest.mark.parametrize("likelihood", ["poisson", "poisson_softplus", "negative_binomial"])
def test_probabilities_sum_to_one_and_have_the_quantiles(likelihood: str) -> None:
    model, inputs, hours = counter(likelihood), THERE[3:13:3], SPENT[3:13:3]
    pmf = model.predict_pmf(inputs, 400, hours)
    np.testing.assert_allclose(pmf.sum(1), 1.0, atol=1e-6)
    np.testing.assert_allclose(pmf @ np.arange(401), model.predict(inputs, hours), rtol=1e-4)
    levels = np.array([0.05, 0.5, 0.95])
    expected = (pmf.cumsum(1)[:, None, :] < levels[:, None] - 1e-12).sum(2)
    np.testing.assert_array_equal(model.predict_quantiles(inputs, levels, hours), expected)
    lower, upper = model.predict_interval(inputs, 0.9, hours)
    np.testing.assert_array_equal([lower, upper], expected[:, [0, 2]].T)


def test_a_largest_count_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"max_count of .* an integer of at least 0"):
        counter().predict_pmf(THERE, -1)


# Scores


def test_nll_is_the_mean_of_log_densities() -> None:
    weights = np.arange(90) % 4
    for model, y in ((regressor(), Y), (classifier(), LABELS)):
        densities = model.log_density(X, y)
        assert model.nll(X, y) == pytest.approx(-densities.mean())
        assert model.nll(X, y, weights) == pytest.approx(-np.average(densities, weights=weights))
    model = counter()
    weighted = model.nll(X, COUNTS, weights, HOURS)
    densities = model.log_density(X, COUNTS, HOURS)
    assert weighted == pytest.approx(-np.average(densities, weights=weights))
    with pytest.warns(DirectGPWarning, match="trained with exposures"):
        assert weighted < model.nll(X, COUNTS, weights), "exposures tell something"


def test_scores_are_those_of_sklearn() -> None:
    weights = np.arange(90) % 4
    numbers, labels, counts = regressor(), classifier(), counter()
    expected = r2_score(Y, numbers.predict(X), sample_weight=weights)
    assert numbers.score(X, Y, weights) == pytest.approx(expected)
    expected = accuracy_score(LABELS, labels.predict(X), sample_weight=weights)
    assert labels.score(X, LABELS, weights) == pytest.approx(expected)
    with pytest.warns(DirectGPWarning, match="trained with exposures"):
        found = counts.score(X, COUNTS, weights)
    expected = d2_tweedie_score(COUNTS, counts.predict(X), sample_weight=weights, power=1)
    assert found == pytest.approx(expected)
    rate = (weights * COUNTS).sum() / (weights * HOURS).sum()
    deviances = [
        mean_poisson_deviance(COUNTS, mean, sample_weight=weights)
        for mean in (counts.predict(X, HOURS), rate * HOURS)
    ]
    found = counts.score(X, COUNTS, weights, HOURS)
    assert found == pytest.approx(1 - deviances[0] / deviances[1])


def test_counts_of_rows_of_weight_0_do_not_define_a_score() -> None:
    counts = np.array([0.0, 0.0, 3.0])
    with pytest.warns(UndefinedMetricWarning, match="every count is 0"):
        assert np.isnan(counter().score(X[:3], counts, [1, 1, 0], HOURS[:3]))


def test_blocks_of_rows_are_as_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything() -> list[Array]:
        numbers, labels, counts = regressor(), classifier(), counter()
        return [
            *numbers.predict(THERE, return_std=True),
            *numbers.predict_quantiles(THERE, [0.1, 0.9]).T,
            numbers.log_density(THERE, THERE[:, 0]),
            *labels.predict_log_proba(THERE).T,
            *counts.predict_pmf(THERE, 3, SPENT).T,
            counts.log_density(THERE, np.arange(17.0), SPENT),
        ]

    whole = everything()
    monkeypatch.setattr("directgp.estimators.predictions._BLOCK_VALUES", 50)
    np.testing.assert_allclose(everything(), whole, rtol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_nan_is_an_error_with_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def undefined(likelihood: Any, q: Any, levels: Any) -> torch.Tensor:
        found = torch.zeros(len(levels), len(q.mean), dtype=torch.float64)
        found[0, 3] = torch.nan
        return found

    X = np.linspace(0, 1, 8)[:, None]
    settings = {"beta": 1.0, "kernel": "rbf", "num_inducing": 3, "max_iter": 1}
    model = SparseGPRegressor(**settings, combine="best", stack=None)
    model.fit(X, X[:, 0])
    monkeypatch.setattr("directgp.predictive.mixture.predictive_quantiles", undefined)
    with pytest.raises(NumericalError, match="predict_quantiles is not defined for row 3 of X"):
        model.predict_quantiles(X, [0.1, 0.5])
