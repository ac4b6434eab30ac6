"""Positive targets, proportions, censored targets and known noise in the regressor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

import directgp
from directgp import SparseGPRegressor
from directgp.errors import InvalidInputError
from directgp.estimators.fitting import Fit
from directgp.estimators.starting_models import candidates
from directgp.likelihoods import (
    Beta,
    Gamma,
    Gaussian,
    GaussianKnownNoise,
    HeteroscedasticGaussian,
    Likelihood,
    LogNormal,
    Tobit,
)
from directgp.likelihoods.capabilities import description
from directgp.race.candidates import Choices

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RANDOM = np.random.default_rng(0)
N = 150
X = RANDOM.uniform(-2, 2, (N, 1))
F = np.sin(2 * X[:, 0])
SHARE = 1 / (1 + np.exp(-F))
TARGETS = {
    "gamma": 50 * np.exp(F) * RANDOM.gamma(4, 1 / 4, N),
    "log_normal": 1e-3 * np.exp(F + 0.4 * RANDOM.normal(size=N)),
    "beta": RANDOM.beta(15 * SHARE, 15 * (1 - SHARE)),
}
CLASSES: dict[str, type[Likelihood]] = {"gamma": Gamma, "log_normal": LogNormal, "beta": Beta}
QUICK: dict[str, Any] = {"objective": "elbo", "beta": 1.0, "kernel": "rbf", "random_state": 0}
each = pytest.mark.parametrize("name", TARGETS)


@each
@pytest.mark.slow_for("beta")
def test_fit_predict_and_save(name: str, tmp_path: Path) -> None:
    y = TARGETS[name]
    model = SparseGPRegressor(likelihood=name, **QUICK).fit(X, y)
    assert isinstance(model.likelihood_, CLASSES[name])
    lower, upper = model.predict_interval(X, 0.9)
    assert 0.84 < np.mean((lower < y) & (y < upper)) < 0.97
    assert bool((lower > 0).all()) and (name != "beta" or bool((upper < 1).all()))
    mean, std = model.predict(X, return_std=True)
    draws = model.sample_y(X, 4000, random_state=0)
    # 4000 draws of a variable whose fourth moment is that of an exponential one, or less.
    assert np.max(np.abs(draws.mean(1) - mean) / std) < 0.12
    assert np.mean(draws.std(1) / std) == pytest.approx(1.0, abs=0.05)
    model.save(tmp_path / "model")
    again = directgp.load(tmp_path / "model")
    assert np.array_equal(
        again.predict_quantiles(X, [0.1, 0.5]), model.predict_quantiles(X, [0.1, 0.5])
    )
    assert again.nll(X, y) == model.nll(X, y)
    assert again.likelihood_.settings() == model.likelihood_.settings()


@pytest.mark.parametrize("name", ["gamma", "log_normal"])
def test_units_of_positive_targets_do_not_matter(name: str) -> None:
    """y in other units: the same model, and log y moved by the log of the factor."""
    y = TARGETS[name]
    one, other = (SparseGPRegressor(likelihood=name, **QUICK).fit(X, c * y) for c in (1.0, 1024.0))
    for mine, theirs, shift in zip(
        one.predict_latent(X), other.predict_latent(X), (np.log(1024.0), 0.0), strict=True
    ):
        np.testing.assert_allclose(theirs, mine + shift, rtol=1e-5, atol=1e-6)
    assert other.nll(X, 1024 * y) == pytest.approx(one.nll(X, y) + np.log(1024.0), abs=1e-6)
    latent, _ = one.predict_latent(X)
    assert np.corrcoef(latent, F)[0, 1] > 0.97
    assert np.mean(latent - np.log(y)) == pytest.approx(0.0, abs=0.2)


@each
@pytest.mark.parametrize("rule", ["quadrature", "bmc", "smooth_bmc", "ups"])
def test_every_rule_trains(name: str, rule: str) -> None:
    settings = {**QUICK, "objective": "log_loss", "hyperparameters": "joint", "max_iter": 5}
    model = SparseGPRegressor(likelihood=name, rule=rule, num_inducing=8, **settings)
    assert np.isfinite(model.fit(X[:40], TARGETS[name][:40]).nll(X, TARGETS[name]))


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("gamma", 0.0, r"y of Gamma must be positive and finite. Got 0.0 at index 3\. For zeros"),
        ("log_normal", -1.5, r"y of LogNormal must be positive and finite. Got -1.5 at index 3"),
        ("beta", 1.0, r"y of Beta must be between 0 and 1, .* Got 1.0 at index 3\. For zeros and"),
    ],
)
def test_errors_have_the_values_and_rows_of_the_user(name: str, bad: float, message: str) -> None:
    y = TARGETS[name].copy()
    model = SparseGPRegressor(likelihood=name, max_iter=2, **QUICK).fit(X, y)
    y[3] = bad
    with pytest.raises(InvalidInputError, match=message):
        SparseGPRegressor(likelihood=name).fit(X, y)
    with pytest.raises(InvalidInputError, match=message):
        model.log_density(X, y)


def test_values_next_to_0_keep_their_digits() -> None:
    """The grid of scaled targets would round them to 0 or below."""
    y = np.exp(6 * F + RANDOM.normal(size=N))
    y[0] = 1e-9
    model = SparseGPRegressor(likelihood="log_normal", **QUICK).fit(X, y)
    assert not model.scalings_.targets.rounded
    assert np.isfinite(model.nll(X, y))
    latent, _ = model.predict_latent(X)
    assert np.corrcoef(latent, np.log(y))[0, 1] > 0.8


def names(y: np.ndarray) -> tuple[str, ...]:
    return candidates("auto", task="regression", row_argument=None, y=y)


def test_auto_compares_likelihoods_by_the_kind_of_the_target() -> None:
    plain = ("gaussian", "student_t")
    assert names(F) == names(F + 10) == plain
    assert names(TARGETS["gamma"]) == (*plain, "gamma", "log_normal")
    assert names(SHARE) == (*plain, "beta")
    assert names(TARGETS["log_normal"]) == (*plain, "gamma", "log_normal", "beta")
    # One value of 0 excludes all of them.
    assert names(np.append(TARGETS["log_normal"], 0.0)) == plain


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["elbo", "log_loss"])
def test_auto_chooses_a_likelihood_of_positive_targets(objective: str) -> None:
    y = np.exp(1.5 * F) * RANDOM.gamma(2, 1 / 2, N)
    settings = {"objective": objective, "kernel": "rbf", "effort": "fast", "random_state": 0}
    model = SparseGPRegressor(**settings).fit(X, y)
    assert isinstance(model.likelihood_, Gamma | LogNormal)
    gaussian = SparseGPRegressor(likelihood="gaussian", **settings).fit(X, y)
    fresh = RANDOM.uniform(-2, 2, (500, 1))
    new = np.exp(1.5 * np.sin(2 * fresh[:, 0])) * RANDOM.gamma(2, 1 / 2, 500)
    assert model.nll(fresh, new) < gaussian.nll(fresh, new) - 0.1


def changing(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return y = sin 3x + noise of deviation 0.1 + 0.4|x|."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, n)
    return x[:, None], np.sin(3 * x) + (0.1 + 0.4 * np.abs(x)) * random.standard_normal(n)


FAST: dict[str, Any] = {"kernel": "rbf", "effort": "fast", "num_inducing": 20, "random_state": 0}


@pytest.mark.parametrize(
    "settings",
    [{"beta": 1.0}, {}, {"validation_fraction": 0.3}],
    ids=["by evidence", "by folds", "by rows held out"],
)
@pytest.mark.slow_for("by folds", "by rows held out")
def test_auto_chooses_changing_noise(settings: dict[str, Any]) -> None:
    """By the ELBO; constant noise costs 0.2 nats here, and coverage where the noise is large."""
    rows, new = changing(400, 0), changing(1000, 1)
    common = {**FAST, "objective": "elbo", **settings}
    model = SparseGPRegressor(**common).fit(*rows)
    assert isinstance(model.likelihood_, HeteroscedasticGaussian)
    gaussian = SparseGPRegressor(likelihood="gaussian", **common).fit(*rows)
    assert model.nll(*new) < gaussian.nll(*new) - 0.1
    lower, upper = model.predict_interval(new[0])
    inside, wide = (lower <= new[1]) & (new[1] <= upper), np.abs(new[0][:, 0]) > 1.5
    # 0.9 ± 5 standard errors of about 250 rows.
    assert abs(inside[wide].mean() - 0.9) < 0.1 and abs(inside[~wide].mean() - 0.9) < 0.06
    _, deviation = gaussian.predict(new[0], return_std=True)
    assert np.ptp(deviation) < 0.2
    (_, log_noise), _ = (each.T for each in model.predict_latent([[0.0], [2.0]]))
    # Deviations of 0.1 and 0.9, in the units of y.
    assert abs(0.5 * (log_noise[1] - log_noise[0]) - np.log(9)) < 0.7
    assert abs(0.5 * log_noise[1] - np.log(0.9)) < 0.3


@pytest.mark.parametrize("settings", [{"objective": "elbo", "beta": 1.0}, {}], ids=["elbo", "all"])
def test_noise_of_one_level_loses_nothing(settings: dict[str, Any]) -> None:
    x, new = changing(200, 2)[0], changing(2000, 7)[0]
    noise = np.random.default_rng(2).standard_normal(2200)
    y, truth = (np.sin(3 * rows[:, 0]) for rows in (x, new))
    models = [
        SparseGPRegressor(**FAST, **settings, likelihood=name).fit(x, y + 0.3 * noise[:200])
        for name in ("auto", "gaussian")
    ]
    losses = [model.nll(new, truth + 0.3 * noise[200:]) for model in models]
    assert losses[0] < losses[1] + 0.01


def test_log_loss_needs_no_model_of_changing_noise() -> None:
    """The variance of f takes the place of the noise, so that none of it is left."""
    rows, new = changing(400, 0), changing(1000, 1)
    model = SparseGPRegressor(hyperparameters="joint", **FAST).fit(*rows)
    assert not isinstance(model.likelihood_, HeteroscedasticGaussian)
    elbo = SparseGPRegressor(likelihood="gaussian", objective="elbo", beta=1.0, **FAST).fit(*rows)
    assert model.nll(*new) < elbo.nll(*new) - 0.1


@pytest.mark.slow
def test_whole_numbers_have_no_tails_of_any_width() -> None:
    """Log loss with noise that depends on X would put peaks on them, and millions in the tails."""
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, (400, 3))
    y = np.round(5.6 + 0.6 * x[:, 0] + 0.5 * random.standard_normal(400))
    model = SparseGPRegressor(random_state=0).fit(x[:300], y[:300])
    assert "heteroscedastic" in model.summary()
    ends = model.predict_quantiles(x[300:], [0.001, 0.999])
    assert y.min() - 5 < ends.min() and ends.max() < y.max() + 5


@pytest.mark.parametrize(
    ("settings", "by_elbo"),
    [
        ({}, ("heteroscedastic",)),
        ({"hyperparameters": "joint"}, ()),
        ({"likelihood": "heteroscedastic"}, ()),
        ({"likelihood": "student_t"}, ()),
    ],
)
def test_changing_noise_is_trained_by_the_elbo(
    settings: dict[str, Any], by_elbo: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    raced: list[Choices] = []

    def stop(fit: Fit, choices: Choices, examples: object) -> None:
        raced.append(choices)
        raise KeyboardInterrupt

    monkeypatch.setattr(Fit, "_race", stop)
    with pytest.raises(KeyboardInterrupt):
        SparseGPRegressor(stack=None, **settings).fit(*changing(40, 0))
    assert raced[0].by_elbo == by_elbo


def test_changing_noise_is_left_out_where_it_does_not_apply() -> None:
    rows = changing(200, 0)
    for settings in ({"objective": "vfe"}, {"likelihood": "gaussian"}, {"kernel": RBFKernel()}):
        model = SparseGPRegressor(**{**FAST, "objective": "elbo", "beta": 1.0, **settings})
        assert not isinstance(model.fit(*rows).likelihood_, HeteroscedasticGaussian)
    assert isinstance(SparseGPRegressor(objective="vfe", **FAST).fit(*rows).likelihood_, Gaussian)


def test_objectives_that_a_family_does_not_have_leave_it_out() -> None:
    model = SparseGPRegressor(objective="crps", max_iter=2, kernel="rbf", random_state=0)
    assert not isinstance(model.fit(X[:40], TARGETS["gamma"][:40]).likelihood_, Gamma)


TRUE = 10 + 3 * F + RANDOM.normal(scale=0.5, size=N)
LIMIT = 9.0
CENSORED = np.maximum(TRUE, LIMIT)


@pytest.mark.parametrize("objective", ["elbo", pytest.param("log_loss", marks=pytest.mark.slow)])
def test_tobit_finds_the_values_below_the_limit(objective: str, tmp_path: Path) -> None:
    """Limits are in the units of y; predictions are of the true value."""
    settings = {**QUICK, "objective": objective}
    model = SparseGPRegressor(likelihood=Tobit(lower=LIMIT), **settings).fit(X, CENSORED)
    low = TRUE < LIMIT
    plain = SparseGPRegressor(likelihood="gaussian", **settings).fit(X, CENSORED)
    errors = [np.abs(each.predict(X)[low] - (10 + 3 * F)[low]).mean() for each in (model, plain)]
    assert errors[0] < 0.6 * errors[1]
    lower, upper = model.predict_interval(X, 0.9)
    assert np.mean((lower < TRUE) & (TRUE < upper)) > 0.8
    model.save(tmp_path / "model")
    again = directgp.load(tmp_path / "model")
    assert again.likelihood_.settings()["lower"] == LIMIT
    assert again.nll(X, CENSORED) == model.nll(X, CENSORED)


def test_tobit_with_intervals_of_rows() -> None:
    """Values known to the whole number below and above, or only as above 11."""
    low, high = np.floor(TRUE), np.floor(TRUE) + 1
    low, high = np.where(low >= 11, 11, low), np.where(low >= 11, np.inf, high)
    model = SparseGPRegressor(likelihood="tobit", **QUICK).fit(X, low, upper=high)
    mean = model.predict(X)
    assert np.corrcoef(mean, 10 + 3 * F)[0, 1] > 0.97
    assert np.abs(mean - (10 + 3 * F)).mean() < 0.35
    assert np.isfinite(model.nll(X, low, upper=high))
    wrong = np.where(np.arange(N) == 2, low - 1, high)
    with pytest.raises(InvalidInputError, match="upper of Tobit must be at least y"):
        SparseGPRegressor(likelihood="tobit", **QUICK).fit(X, low, upper=wrong)


def test_known_noise(tmp_path: Path) -> None:
    noise = RANDOM.uniform(0.01, 2.0, N)
    y = 10 + 3 * F + np.sqrt(noise) * RANDOM.normal(size=N)
    model = SparseGPRegressor(**QUICK).fit(X, y, noise=noise)
    assert isinstance(model.likelihood_, GaussianKnownNoise)
    # The mean and f need no noise; the deviation of y does.
    mean, (latent, deviation) = model.predict(X), model.predict_latent(X)
    assert np.array_equal(mean, latent)
    with pytest.raises(InvalidInputError, match="noise of GaussianKnownNoise must be given"):
        model.predict_interval(X)
    _, std = model.predict(X, return_std=True, noise=noise)
    np.testing.assert_allclose(std, np.sqrt(deviation**2 + noise), rtol=1e-9)
    lower, upper = model.predict_interval(X, 0.9, noise=noise)
    assert 0.82 < np.mean((lower < y) & (y < upper)) < 0.99
    plain = SparseGPRegressor(likelihood="gaussian", **QUICK).fit(X, y)
    truth = 10 + 3 * F
    assert np.abs(mean - truth).mean() < np.abs(plain.predict(X) - truth).mean()
    model.save(tmp_path / "model")
    assert np.array_equal(directgp.load(tmp_path / "model").predict(X), mean)


def test_noise_besides_the_known_one() -> None:
    noise = np.full(N, 0.01)
    y = 10 + 3 * F + np.sqrt(0.01 + 0.5) * RANDOM.normal(size=N)
    likelihood = GaussianKnownNoise(extra=0.1)
    model = SparseGPRegressor(likelihood=likelihood, **QUICK).fit(X, y, noise=noise)
    with torch.no_grad():
        (extra,) = description(model.likelihood_, model.scalings_.unit).values()
    assert extra == pytest.approx(0.5**0.5, rel=0.15)


def test_float32() -> None:
    for name, y in TARGETS.items():
        model = SparseGPRegressor(likelihood=name, dtype="float32", max_iter=20, **QUICK).fit(X, y)
        double = SparseGPRegressor(likelihood=name, max_iter=20, **QUICK).fit(X, y)
        assert model.nll(X, y) == pytest.approx(double.nll(X, y), abs=0.05)
