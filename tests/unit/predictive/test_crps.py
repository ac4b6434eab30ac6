"""The CRPS of predictive distributions, against sums and integrals."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor
from typing_extensions import override

from directgp.errors import InvalidInputError
from directgp.likelihoods import (
    Beta,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Logistic,
    LogNormal,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
    Weibull,
)
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


FIRST_INTERPOLATED = 1000
"""The reference replaces sums over counts from this one on by integrals over real k."""


def tail_of_poisson(k: np.ndarray, mean: float, variance: float) -> np.ndarray:
    """P(Y > k) for real k."""
    f, weights = latent(mean, variance)
    tail: np.ndarray = special.gammainc(k[:, None] + 1, np.exp(f)) @ weights
    return tail


@pytest.mark.parametrize(("y", "mean", "variance"), [(1, 0.0, 9.0), (3, 4.0, 4.0), (30, 0.0, 9.0)])
def test_counts_over_many_magnitudes_are_the_sum(y: int, mean: float, variance: float) -> None:
    above = tail_of_poisson(np.arange(FIRST_INTERPOLATED), mean, variance)
    near = np.square(1 - above[:y]).sum() + np.square(above[y:]).sum()
    x, weights = np.polynomial.legendre.leggauss(200)
    start = np.log(FIRST_INTERPOLATED - 0.5)
    half = 0.5 * (mean + 9 * variance**0.5 - start)
    k = np.exp(start + half * (1 + x))
    far = half * weights @ (k * np.square(tail_of_poisson(k, mean, variance)))
    assert score(Poisson(), y, mean, variance) == pytest.approx(near + far, rel=1e-3)


def test_target_far_from_narrow_counts() -> None:
    # E|Y − y| − ½E|Y − Y′|, of nearly normal counts of mean λ = e⁹.
    rate = np.exp(9.0)
    spread = np.sqrt(rate / np.pi)
    assert score(Poisson(), 0, 9.0, 1e-12) == pytest.approx(rate - spread, rel=1e-6)
    assert score(Poisson(), 20000, 9.0, 1e-12) == pytest.approx(20000 - rate - spread, rel=1e-6)


@pytest.mark.parametrize(("shape", "y"), [(2.0, 1.0), (0.3, 50.0)])
def test_wide_gamma_is_the_integral(shape: float, y: float) -> None:
    f, weights = latent(0.0, 25.0)

    def square(x: float) -> float:
        ratio = shape * np.exp(x - f)
        sides = special.gammainc(shape, ratio), special.gammaincc(shape, ratio)
        return float(np.exp(x) * (sides[int(x >= np.log(y))] @ weights) ** 2)

    ends = [np.log(y) - 40, np.log(y), 10.0, 20.0, 40.0]
    pieces = [integrate.quad(square, *pair, limit=200)[0] for pair in pairwise(ends)]
    assert score(Gamma(shape), y, 0.0, 25.0) == pytest.approx(sum(pieces), rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "y", "mean", "variance"),
    [(5.0, 0.001, -4.0, 4.0), (5.0, 0.999, 4.0, 4.0), (0.5, 0.01, 0.0, 0.1), (1.0, 1e-6, 2.0, 9.0)],
)
def test_beta_is_the_integral(precision: float, y: float, mean: float, variance: float) -> None:
    f, weights = latent(mean, variance)
    m = special.expit(f)

    def square(x: float) -> float:
        t = special.expit(x)
        below = special.betainc(precision * m, precision * (1 - m), t) @ weights
        return float(t * special.expit(-x) * (below - (x >= special.logit(y))) ** 2)

    ends = sorted([-40.0, -10.0, special.logit(y), 0.0, 10.0, 40.0])
    pieces = [integrate.quad(square, *pair, limit=200)[0] for pair in pairwise(ends)]
    found = score(Beta(precision), y, mean, variance)
    assert found == pytest.approx(sum(pieces), rel=1e-5)


@pytest.mark.parametrize("variance", [1.0, 100.0, 200.0])
def test_log_normal_keeps_its_digits_for_wide_q(variance: float) -> None:
    with mpmath.workdps(100):
        scale = mpmath.sqrt(mpmath.mpf(variance) + mpmath.mpf("0.1"))
        share = mpmath.ncdf(-scale) - mpmath.ncdf(-scale / mpmath.sqrt(2))
        truth = float(-2 * mpmath.exp(scale**2 / 2) * share)
    assert score(LogNormal(0.1), 1.0, 0.0, variance) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("df", [0.55, 0.7, 1.0, 3.0])
def test_heavy_tails_of_students_t_count(df: float) -> None:
    u = np.linspace(0, 690, 200_001)
    whole = 2 * (u[1] - u[0]) * np.sum(stats.t.sf(np.sinh(u[1:]), df) ** 2 * np.cosh(u[1:]))
    whole += (u[1] - u[0]) * 0.25
    assert score(StudentT(df, 1.0), 0.0, 0.0, 1e-12) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("df", [0.05, 0.3, 0.5])
def test_score_of_the_heaviest_tails_is_infinite(df: float) -> None:
    assert score(StudentT(df, 1.0), 3.0, 0.0, 1.0) == np.inf


class ManyZeros(Likelihood):
    """An exponential y of mean e^f, or 0 with a given probability."""

    def __init__(self, zeros: float) -> None:
        super().__init__()
        self.zeros = zeros

    @override
    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        others = math.log(1 - self.zeros) - y * torch.exp(-f) - f
        return torch.where(y > 0, others, math.log(self.zeros))

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        below = 1 - (1 - self.zeros) * torch.exp(-y.clamp(min=0.0) * torch.exp(-f))
        return torch.where(y < 0, 0.0, below)


@pytest.mark.parametrize("y", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("zeros", [0.6, 0.9])
def test_a_value_may_have_a_large_probability(y: float, zeros: float) -> None:
    # With p = 1 − zeros, ∫ (p·e^−t)² dt from y on, and ∫ (1 − p·e^−t)² dt up to y.
    p = 1 - zeros
    lower = y - 2 * p * (1 - math.exp(-y)) + 0.5 * p**2 * (1 - math.exp(-2 * y))
    truth = lower + 0.5 * p**2 * math.exp(-2 * y)
    assert score(ManyZeros(zeros), y, 0.0, 1e-12) == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "y", "variance", "message"),
    [
        (Gaussian(), [0.0, 1.0], -1.0, "variance"),
        (LogNormal(), [-1.0, 1.0], 1.0, "y of LogNormal"),
        (Gaussian(), [[0.0], [1.0]], 1.0, "Flatten a column"),
        (Probit(), [5.0, 1.0], 1.0, "a label, 0 or 1"),
        (Poisson(), [float("nan"), 1.0], 1.0, "finite"),
    ],
)
def test_arguments_are_checked(
    likelihood: Likelihood, y: list[float], variance: float, message: str
) -> None:
    q = Marginals(torch.zeros(2), torch.full((2,), variance))
    with pytest.raises(InvalidInputError, match=message):
        predictive_crps(likelihood, torch.tensor(y), q)


def test_float32_has_the_score_of_float64() -> None:
    q = Marginals(torch.tensor([1e6]), torch.tensor([1e-4]))
    y = torch.tensor([1e6 + 0.125])
    wide = predictive_crps(
        StudentT(4.0, 0.1), y.double(), Marginals(q.mean.double(), q.variance.double())
    )
    found = predictive_crps(StudentT(4.0, 0.1), y, q)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wide.float())


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(), StudentT(), Gamma(), Weibull(), Beta(), Poisson(), HeteroscedasticGaussian()],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_batches_are_scored_as_each_alone(likelihood: Likelihood) -> None:
    y = torch.tensor([0.0, 1.0, 4.0] if likelihood.task == "count" else [0.2, 0.5, 0.9]).double()
    shape = (2, 3) if likelihood.num_latent == 1 else (2, 2, 3)
    mean = torch.linspace(-1, 1, int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    variance = mean.square() + 0.1
    alone = [predictive_crps(likelihood, y, Marginals(mean[i], variance[i])) for i in range(2)]
    found = predictive_crps(likelihood, y, Marginals(mean, variance))
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-6, atol=0.0)


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
