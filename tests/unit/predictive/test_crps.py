"""The CRPS of predictive distributions, against sums and integrals."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from directgp.likelihoods import Gaussian, Logistic, NegativeBinomial, Poisson, Probit, StudentT
from directgp.likelihoods.base import Likelihood
from directgp.predictive import predictive_mean
from directgp.predictive.api import predictive_crps
from directgp.shapes import Marginals


def score(likelihood: Likelihood, y: float, mean: float, variance: float) -> float:
    q = Marginals(torch.tensor([mean]).double(), torch.tensor([variance]).double())
    return float(predictive_crps(likelihood, torch.tensor([y]).double(), q)[0])


def latent(mean: float, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of f and their probabilities, far finer than the rule under test."""
    z = np.linspace(-9, 9, 401)
    weights = stats.norm.pdf(z)
    return mean + variance**0.5 * z, weights / weights.sum()


def summed(cdf: np.ndarray, y: float) -> float:
    return float(np.square(cdf - (np.arange(len(cdf)) >= y)).sum())


@pytest.mark.parametrize(
    ("y", "mean", "variance"),
    [
        (0, -1.0, 0.3),
        (1, 0.0, 1e-6),
        (3, 1.0, 0.3),
        (40, 1.0, 0.3),
        (5, 2.0, 0.4),
        (200, 5.0, 1e-3),
    ],
)
def test_poisson_is_the_sum_over_counts(y: int, mean: float, variance: float) -> None:
    f, weights = latent(mean, variance)
    cdf = stats.poisson.cdf(np.arange(600)[:, None], np.exp(f)) @ weights
    assert score(Poisson(), y, mean, variance) == pytest.approx(summed(cdf, y), rel=1e-6)


@pytest.mark.parametrize(("y", "mean", "variance"), [(5, 2.0, 0.3), (0, 1.0, 0.1)])
def test_negative_binomial_is_the_sum_over_counts(y: int, mean: float, variance: float) -> None:
    f, weights = latent(mean, variance)
    cdf = stats.nbinom.cdf(np.arange(600)[:, None], 2.0, 2 / (2 + np.exp(f))) @ weights
    found = score(NegativeBinomial(2.0), y, mean, variance)
    assert found == pytest.approx(summed(cdf, y), rel=1e-6)


@pytest.mark.parametrize(
    ("y", "mean", "variance"),
    [(500, 6.0, 0.5), (150, 6.0, 0.01), (7, 2.0, 1.0), (0, 3.0, 0.5), (3000, 6.0, 0.1)],
)
def test_wide_counts_are_close_to_the_sum(y: int, mean: float, variance: float) -> None:
    f, weights = latent(mean, variance)
    cdf = stats.poisson.cdf(np.arange(8000)[:, None], np.exp(f[::2])) @ (2 * weights[::2])
    assert score(Poisson(), y, mean, variance) == pytest.approx(summed(cdf, y), rel=5e-4)


@pytest.mark.parametrize("y", [0.1, -3.0, 5.0, 400.0])
def test_students_t_is_the_integral(y: float) -> None:
    f, weights = latent(0.2, 0.3)

    def square(t: float) -> float:
        return float((stats.t.cdf((t - f) / 0.3, 4.0) @ weights - (t >= y)) ** 2)

    ends = sorted([-100.0, -2.0, 0.2, 2.0, 500.0, y])
    pieces = [integrate.quad(square, *pair)[0] for pair in pairwise(ends)]
    assert score(StudentT(4.0, 0.3), y, 0.2, 0.3) == pytest.approx(sum(pieces), rel=1e-5)


def test_gaussian_is_the_integral() -> None:
    def square(t: float) -> float:
        return float((stats.norm.cdf(t, 1.0, 1.0) - (t >= 2.5)) ** 2)

    whole = integrate.quad(square, -9, 2.5)[0] + integrate.quad(square, 2.5, 12)[0]
    assert score(Gaussian(0.25), 2.5, 1.0, 0.75) == pytest.approx(whole, rel=1e-7)


@pytest.mark.parametrize("likelihood", [Probit(), Logistic()])
def test_labels_have_briers_score(likelihood: Likelihood) -> None:
    q = Marginals(torch.tensor([0.7]).double(), torch.tensor([2.0]).double())
    p = float(predictive_mean(likelihood, q)[0])
    assert score(likelihood, 1, 0.7, 2.0) == pytest.approx((1 - p) ** 2)
    assert score(likelihood, 0, 0.7, 2.0) == pytest.approx(p**2)


def test_rows_do_not_know_each_other() -> None:
    y = torch.tensor([0.0, 900.0, 3.0]).double()
    q = Marginals(torch.tensor([-2.0, 6.0, 1.0]).double(), torch.tensor([0.1, 0.5, 2.0]).double())
    alone = [
        score(Poisson(), float(y[i]), float(q.mean[i]), float(q.variance[i])) for i in range(3)
    ]
    assert predictive_crps(Poisson(), y, q).tolist() == pytest.approx(alone, rel=5e-4)
