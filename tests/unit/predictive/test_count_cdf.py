"""P(Y ≤ k) for counts against integrals over q, for k up to a million and q from point to vast."""

import math

import pytest
import torch
from mpmath import mpf

from directgp.likelihoods import Likelihood, NegativeBinomial, Poisson
from directgp.likelihoods.counts import CountLikelihood
from directgp.predictive import predictive_cdf, predictive_log_density
from tests.reference import predictive as reference
from tests.unit.predictive.families import COUNTS, marginals, row

TOLERANCE = 1e-11

# Counts that are likely, and counts at either side, under each q.
CASES = [
    (0, -12.0, 1e-8),
    (0, 0.3, 0.5),
    (0, -5.0, 100.0),
    (3, 1.5, 1e-4),
    (7, 0.0, 10.0),
    (40, 3.5, 0.01),
    (150, 5.0, 1.0),
    (12, 12.0, 100.0),
]


@pytest.mark.parametrize(("k", "mean", "variance"), CASES)
def test_poisson_exp(k: int, mean: float, variance: float) -> None:
    truth = reference.poisson_cdf(k, reference.exp, mean, variance, math.log(k + 1))
    assert cdf(Poisson(), k, mean, variance) == pytest.approx(float(truth), abs=TOLERANCE)


@pytest.mark.parametrize("exposure", [0.1, 30.0, 1e4])
@pytest.mark.parametrize(("k", "mean", "variance"), CASES[::2])
def test_poisson_softplus(k: int, mean: float, variance: float, exposure: float) -> None:
    def rate(f: mpf) -> mpf:
        return exposure * reference.softplus(f)

    level = (k + 1) / exposure
    bend = level + math.log(-math.expm1(-level))
    truth = reference.poisson_cdf(k, rate, mean, variance, bend)
    likelihood = Poisson(link="softplus").with_exposure(row(exposure))
    assert cdf(likelihood, k, mean, variance) == pytest.approx(float(truth), abs=TOLERANCE)


@pytest.mark.parametrize("dispersion", [0.3, 80.0])
@pytest.mark.parametrize(("k", "mean", "variance"), CASES[1::2])
def test_negative_binomial(k: int, mean: float, variance: float, dispersion: float) -> None:
    truth = reference.negative_binomial_cdf(k, dispersion, mean, variance)
    value = cdf(NegativeBinomial(dispersion), k, mean, variance)
    assert value == pytest.approx(float(truth), abs=TOLERANCE)


LARGE = [
    (k, math.log(k) + shift * max(variance, 1 / k) ** 0.5, variance)
    for k in (1e3, 1e5, 1e6)
    for variance in (1e-8, 1e-6, 1e-4, 1e-2, 1.0, 100.0)
    for shift in (-1.5, 0.2)
]


def test_large_counts_of_poisson() -> None:
    truth = row(*(reference.dense_poisson_cdf(*case) for case in LARGE))
    assert (values(Poisson(), LARGE) - truth).abs().max() < TOLERANCE


@pytest.mark.parametrize("dispersion", [0.05, 2.5, 1e4])
def test_large_counts_of_negative_binomial(dispersion: float) -> None:
    truth = row(
        *(reference.dense_negative_binomial_cdf(k, dispersion, *at) for k, *at in LARGE[::3])
    )
    assert (values(NegativeBinomial(dispersion), LARGE[::3]) - truth).abs().max() < TOLERANCE


def test_poisson_is_the_limit_of_negative_binomial() -> None:
    limit = values(NegativeBinomial(dispersion=1e14), LARGE)
    assert (limit - values(Poisson(), LARGE)).abs().max() < 1e-8


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("variance", [1e-8, 0.01, 1.0, 100.0])
def test_steps_are_probabilities(name: str, variance: float) -> None:
    likelihood = COUNTS[name]
    k = torch.arange(60.0, dtype=torch.float64)
    q = marginals(*[(1.2, variance)] * 60)
    steps = predictive_cdf(likelihood, k, q) - predictive_cdf(likelihood, k - 1, q)
    log_density = predictive_log_density(likelihood, k, q).detach()
    torch.testing.assert_close(steps, torch.exp(log_density), rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("name", COUNTS)
def test_probabilities_sum_to_the_cdf(name: str) -> None:
    k = torch.arange(4000.0, dtype=torch.float64)
    q = marginals(*[(1.0, 0.5)] * len(k))
    total = torch.exp(predictive_log_density(COUNTS[name], k, q).detach()).sum()
    assert abs(total.item() - 1) < TOLERANCE


@pytest.mark.parametrize("name", ["poisson_exp", "negative_binomial"])
def test_exposure_is_a_shift_under_the_exp_link(name: str) -> None:
    likelihood = COUNTS[name]
    assert isinstance(likelihood, CountLikelihood)
    exposure = row(0.2, 3.0, 1e3)
    k = row(0.0, 2.0, 1500.0)
    q = marginals((0.3, 1.0), (0.1, 1e-6), (0.5, 30.0))
    shifted = marginals(*zip((q.mean + exposure.log()).tolist(), q.variance.tolist(), strict=True))
    torch.testing.assert_close(
        predictive_cdf(likelihood.with_exposure(exposure), k, q),
        predictive_cdf(likelihood, k, shifted),
        rtol=0.0,
        atol=TOLERANCE,
    )


@pytest.mark.parametrize("name", COUNTS)
def test_between_and_below_the_counts(name: str) -> None:
    q = marginals(*[(0.3, 1.0)] * 4)
    below, at, between, beyond = predictive_cdf(COUNTS[name], row(-0.5, 2.0, 2.9, 1e12), q).tolist()
    assert below == 0
    assert at == pytest.approx(between, abs=1e-13)
    assert beyond == pytest.approx(1, abs=1e-13)


def test_huge_variance_stays_finite() -> None:
    q = marginals((0.0, 1e4), (0.0, 1e6))
    value = predictive_cdf(Poisson(), row(3.0, 1e9), q)
    assert ((value > 0.4) & (value < 0.6)).all()


def cdf(likelihood: Likelihood, k: float, mean: float, variance: float) -> float:
    return predictive_cdf(likelihood, row(k), marginals((mean, variance))).item()


def values(likelihood: Likelihood, cases: list[tuple[float, float, float]]) -> torch.Tensor:
    q = marginals(*((mean, variance) for _, mean, variance in cases))
    return predictive_cdf(likelihood, row(*(k for k, _, _ in cases)), q)
