"""The public functions: shapes, dtypes and errors; mean and variance against integrals."""

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from mpmath import mpf
from torch import Tensor

from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Gaussian, Likelihood, Logistic, NegativeBinomial, Poisson, StudentT
from directgp.predictive import (
    predictive_cdf,
    predictive_interval,
    predictive_log_density,
    predictive_mean,
    predictive_quantiles,
    predictive_variance,
)
from directgp.shapes import Marginals
from tests.reference import predictive as reference
from tests.reference.predictive import Function
from tests.unit.objectives.test_gradient import Curved
from tests.unit.predictive.families import FAMILIES, GRID, marginals, marked, row

Q = marginals((0.3, 1.0), (1.0, 2.0))
Y = row(1.0, 0.0)


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_float32_in_float32_out(name: str) -> None:
    likelihood, narrow = FAMILIES[name], Marginals(Q.mean.float(), Q.variance.float())
    wide = Marginals(narrow.mean.double(), narrow.variance.double())
    for function in (predictive_mean, predictive_variance):
        check_precision(function(likelihood, narrow), function(likelihood, wide))
    for density in (predictive_log_density, predictive_cdf):
        check_precision(density(likelihood, Y, narrow), density(likelihood, Y, wide))
    levels = [0.1, 0.7]
    check_precision(
        predictive_quantiles(likelihood, narrow, levels),
        predictive_quantiles(likelihood, wide, levels),
    )


def check_precision(single: Tensor, double: Tensor) -> None:
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, double.float(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_a_batch_is_its_rows(name: str) -> None:
    likelihood = FAMILIES[name]
    mean = torch.linspace(-2, 2, 6, dtype=torch.float64).reshape(2, 1, 3)
    variance = torch.tensor([1e-8, 0.5, 60.0], dtype=torch.float64).expand(2, 1, 3)
    y = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64).expand(2, 1, 3)
    q = Marginals(mean, variance)
    quantiles = predictive_quantiles(likelihood, q, row(0.1, 0.5))
    assert quantiles.shape == (2, 2, 1, 3)
    for i in range(2):
        some = Marginals(mean[i, 0], variance[i, 0])
        rows = predictive_quantiles(likelihood, some, [0.1, 0.5])
        torch.testing.assert_close(rows, quantiles[:, i, 0], rtol=1e-11, atol=1e-12)
        for function in (predictive_cdf, predictive_log_density):
            whole = function(likelihood, y, q)
            assert whole.shape == (2, 1, 3)
            torch.testing.assert_close(function(likelihood, y[i, 0], some), whole[i, 0])
        for moment in (predictive_mean, predictive_variance):
            torch.testing.assert_close(moment(likelihood, some), moment(likelihood, q)[i, 0])


def test_a_parameter_for_each_member_of_a_batch() -> None:
    q = Marginals(torch.zeros(2, 3).double(), torch.full((2, 3), 0.5).double())
    both = predictive_quantiles(NegativeBinomial(torch.tensor([[0.5], [9.0]])), q, [0.2, 0.9])
    for i, dispersion in enumerate((0.5, 9.0)):
        one = predictive_quantiles(
            NegativeBinomial(dispersion), Marginals(q.mean[i], q.variance[i]), [0.2, 0.9]
        )
        assert torch.equal(both[:, i], one)


def test_exposure_for_each_example() -> None:
    exposed = Poisson(link="softplus").with_exposure(row(1.0, 50.0))
    quantiles = predictive_quantiles(exposed, Q, [0.5])
    for i, exposure in enumerate((1.0, 50.0)):
        one = Poisson(link="softplus").with_exposure(row(exposure))
        q = Marginals(Q.mean[i : i + 1], Q.variance[i : i + 1])
        assert torch.equal(predictive_quantiles(one, q, [0.5])[0], quantiles[0, i : i + 1])


def test_no_examples() -> None:
    q = marginals((0.0, 1.0))
    none = Marginals(q.mean[:0], q.variance[:0])
    for likelihood in FAMILIES.values():
        assert predictive_quantiles(likelihood, none, [0.5, 0.6]).shape == (2, 0)
        assert predictive_mean(likelihood, none).shape == (0,)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: predictive_quantiles(Poisson(), Q, [0.5, 1.0]),
            "levels of predictive_quantiles must be between 0 and 1, ends excluded. "
            "Got 1.0 at index 1.",
        ),
        (
            lambda: predictive_quantiles(Poisson(), Q, torch.tensor([[0.5]])),
            "levels of predictive_quantiles must be a list of numbers. Got shape (1, 1).",
        ),
        (
            lambda: predictive_interval(Poisson(), Q, 95.0),
            "coverage of predictive_interval must be between 0 and 1, ends excluded. Got 95.0.",
        ),
        (
            lambda: predictive_mean(Poisson(), marginals((0.0, 1.0), (torch.nan, 1.0))),
            "mean of predictive_mean must be finite. Got nan at index 1.",
        ),
        (
            lambda: predictive_variance(Poisson(), marginals((0.0, 0.0), (0.0, -1.0))),
            "variance of predictive_variance must be positive and finite. "
            "Got 0.0 at index 0 (and 1 more).",
        ),
        (
            lambda: predictive_cdf(Gaussian(), row(torch.inf, 0.0), Q),
            "y of predictive_cdf must be finite. Got inf at index 0.",
        ),
        (
            lambda: predictive_cdf(Gaussian(), Y.reshape(-1, 1), Q),
            "y of predictive_cdf must be of shape (..., 2), broadcasting with (2,). "
            "Got shape (2, 1). Flatten a column first.",
        ),
        (
            lambda: predictive_log_density(Poisson(), row(1.5, 0.0), Q),
            "y of PoissonExp must be a count, 0, 1, 2, …. Got 1.5 at index 0.",
        ),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(text)):
        call()


def test_a_likelihood_without_a_cdf_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Curved has neither\. Give it one"):
        predictive_cdf(Curved(), Y, Q)


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
@pytest.mark.slow_for("logistic")
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


@pytest.mark.parametrize("name", marked(FAMILIES))
@pytest.mark.parametrize("moment", [predictive_mean, predictive_variance])
def test_gradients_of_moments_agree_with_differences(
    name: str, moment: Callable[[Likelihood, Marginals], Tensor]
) -> None:
    def of(mean: Tensor, variance: Tensor) -> Tensor:
        return moment(FAMILIES[name], Marginals(mean, variance))

    q = marginals((0.3, 0.5), (-1.0, 2.0))
    torch.autograd.gradcheck(of, (q.mean.requires_grad_(), q.variance.requires_grad_()))
