"""E[y given f] and Var[y given f], by summing or integrating over y."""

import math

import pytest
import torch

from directgp.likelihoods import Gaussian, StudentT
from directgp.likelihoods.bernoulli import Bernoulli
from directgp.likelihoods.counts import CountLikelihood
from tests.properties.tables import LIKELIHOODS, LikelihoodRow
from tests.properties.test_accuracy import named

FLOAT64 = torch.float64
PLACES = torch.tensor([-4.0, -0.5, 0.0, 1.0, 3.0], dtype=FLOAT64)


@pytest.mark.parametrize("row", [row for row in LIKELIHOODS if row.discrete], ids=named)
def test_moments_of_discrete_targets(row: LikelihoodRow) -> None:
    likelihood = row.make()
    outcomes = torch.arange(2 if isinstance(likelihood, Bernoulli) else 4000, dtype=FLOAT64)
    y, f = torch.meshgrid(outcomes, PLACES, indexing="ij")
    p = likelihood.log_prob(y, f).exp()
    mean = (p * y).sum(0)
    torch.testing.assert_close(p.sum(0), torch.ones_like(PLACES))
    torch.testing.assert_close(likelihood.conditional_mean(PLACES), mean)
    torch.testing.assert_close(
        likelihood.conditional_variance(PLACES), (p * (y - mean) ** 2).sum(0)
    )


@pytest.mark.parametrize("likelihood", [Gaussian(noise=0.25), StudentT(df=12.0, scale=0.5)])
def test_moments_of_real_targets(likelihood: Gaussian | StudentT) -> None:
    step = 0.01
    y, f = torch.meshgrid(torch.arange(-200, 200, step, dtype=FLOAT64), PLACES, indexing="ij")
    p = likelihood.log_prob(y, f).exp() * step
    torch.testing.assert_close(p.sum(0), torch.ones_like(PLACES))
    torch.testing.assert_close(likelihood.conditional_mean(PLACES), (p * y).sum(0))
    spread = (p * (y - PLACES) ** 2).sum(0)
    torch.testing.assert_close(likelihood.conditional_variance(PLACES), spread)


@pytest.mark.parametrize(
    ("df", "mean", "variance"), [(2.0, 1.0, math.inf), (1.0, math.nan, math.inf)]
)
def test_moments_that_do_not_exist(df: float, mean: float, variance: float) -> None:
    f = torch.ones(1, dtype=FLOAT64)
    likelihood = StudentT(df=df)
    assert likelihood.conditional_mean(f).item() == pytest.approx(mean, nan_ok=True)
    assert likelihood.conditional_variance(f).item() == variance


def test_exposure_multiplies_the_mean_count() -> None:
    exposure = torch.tensor([0.1, 1.0, 9.0, 100.0, 2.0])
    for row in LIKELIHOODS:
        likelihood = row.make()
        if isinstance(likelihood, CountLikelihood):
            got = likelihood.with_exposure(exposure).conditional_mean(PLACES)
            torch.testing.assert_close(got, exposure.double() * likelihood.conditional_mean(PLACES))
