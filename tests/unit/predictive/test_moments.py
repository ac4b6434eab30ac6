"""Mean and variance of y against integrals from the definitions."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from mpmath import mpf
from torch import Tensor

from directgp.likelihoods import Likelihood, Logistic, Poisson, StudentT
from directgp.predictive import predictive_mean, predictive_variance
from directgp.shapes import Marginals
from tests.reference import predictive as reference
from tests.reference.predictive import Function
from tests.unit.predictive.families import FAMILIES, GRID, marginals, row

INTEGRATED = [*GRID[::5], (0.0, 100.0)]


def logistic_spread(f: mpf) -> mpf:
    return reference.logistic(f) * reference.logistic(-f)


@pytest.mark.parametrize(
    ("name", "mean_given", "variance_given"),
    [
        ("poisson_softplus", reference.softplus, reference.softplus),
        ("logistic", reference.logistic, logistic_spread),
    ],
)
def test_moments_are_integrals(name: str, mean_given: Function, variance_given: Function) -> None:
    truth = [reference.mean_and_variance(mean_given, variance_given, *at) for at in INTEGRATED]
    expected, spread = (row(*map(float, column)) for column in zip(*truth, strict=True))
    q = marginals(*INTEGRATED)
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=0.0)
    close(predictive_mean(FAMILIES[name], q), expected)
    close(predictive_variance(FAMILIES[name], q), spread)


def test_tiny_probabilities_keep_their_digits() -> None:
    truth = reference.average(reference.logistic, -80.0, 4.0)
    value = predictive_mean(Logistic(), marginals((-80.0, 4.0))).item()
    assert abs(value / float(truth) - 1) < 1e-11


def test_softplus_far_below_zero_is_the_lognormal_mean() -> None:
    q = marginals((-90.0, 9.0), (-300.0, 100.0))
    expected = torch.exp(q.mean + 0.5 * q.variance)
    value = predictive_mean(Poisson(link="softplus"), q)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=0.0)


def test_exposure_multiplies_the_mean() -> None:
    likelihood = Poisson(link="softplus")
    q = marginals((0.5, 1.0), (-2.0, 4.0))
    exposure = row(1e6, 0.1)
    exposed = likelihood.with_exposure(exposure)
    torch.testing.assert_close(
        predictive_mean(exposed, q), exposure * predictive_mean(likelihood, q)
    )
    rate_spread = predictive_variance(likelihood, q) - predictive_mean(likelihood, q)
    expected = predictive_mean(exposed, q) + exposure**2 * rate_spread
    torch.testing.assert_close(predictive_variance(exposed, q), expected)


def test_student_t_without_moments() -> None:
    q = marginals((0.5, 1.0))
    assert predictive_mean(StudentT(df=0.9), q).isnan().all()
    assert predictive_variance(StudentT(df=1.5), q).isinf().all()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("moment", [predictive_mean, predictive_variance])
def test_gradients(name: str, moment: Callable[[Likelihood, Marginals], Tensor]) -> None:
    def of(mean: Tensor, variance: Tensor) -> Tensor:
        return moment(FAMILIES[name], Marginals(mean, variance))

    q = marginals((0.3, 0.5), (-1.0, 2.0))
    torch.autograd.gradcheck(of, (q.mean.requires_grad_(), q.variance.requires_grad_()))
