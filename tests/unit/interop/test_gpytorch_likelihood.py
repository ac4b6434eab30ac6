"""Likelihoods of directgp where GPyTorch wants one of its own."""

from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from directgp import Marginals, log_expectation
from directgp.interop.gpytorch import GPyTorchLikelihood
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.predictive import predictive_mean, predictive_quantiles
from tests.unit.interop.gpytorch_models import Model, whitened

X = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
COUNTS = torch.tensor([0, 1, 3, 2, 5, 8, 4, 1], dtype=torch.float64)

LIKELIHOODS: list[tuple[Likelihood, Tensor]] = [
    (Gaussian(0.2), COUNTS / 4),
    (StudentT(), COUNTS / 4),
    (Probit(), (COUNTS > 2).double()),
    (Logistic(), (COUNTS > 2).double()),
    (Poisson(), COUNTS),
    (NegativeBinomial(), COUNTS),
]


def latent() -> MultivariateNormal:
    return MultivariateNormal(torch.sin(3 * X[:, 0]), torch.diag(0.1 + X[:, 0]))


@pytest.mark.parametrize(("base", "y"), LIKELIHOODS)
def test_gpytorchs_objectives_take_it(base: Likelihood, y: Tensor) -> None:
    model = Model(X[::3].clone(), whitened).double()
    likelihood = GPyTorchLikelihood(base)
    for objective in (gpytorch.mlls.VariationalELBO, gpytorch.mlls.PredictiveLogLikelihood):
        value = objective(likelihood, model, 8)(model(X), y)
        learned = [*model.parameters(), *likelihood.parameters()]
        slopes = torch.autograd.grad(value, learned, allow_unused=True)
        assert torch.isfinite(value)
        assert all(torch.isfinite(each).all() for each in slopes if each is not None)
        assert all(each is not None for each in slopes[-len(list(base.parameters())) or None :])


@pytest.mark.parametrize(("base", "y"), LIKELIHOODS)
def test_predictions(base: Likelihood, y: Tensor) -> None:
    q, likelihood = latent(), GPyTorchLikelihood(base)
    p = likelihood(q)
    marginals = Marginals(q.mean, q.variance)
    torch.testing.assert_close(p.mean, predictive_mean(base, marginals))
    if isinstance(base, Gaussian):
        assert isinstance(p, MultivariateNormal)
        torch.testing.assert_close(p.variance, q.variance + 0.2)
        return
    torch.testing.assert_close(p.log_prob(y), log_expectation(base, y, q.mean, q.variance))
    torch.testing.assert_close(p.icdf(0.9), predictive_quantiles(base, marginals, [0.9])[0])
    assert p.icdf(torch.tensor([[0.1], [0.9]])).shape == (2, 8)
    levels = torch.linspace(0.1, 0.9, 8, dtype=torch.float64)
    each = [p.icdf(level.item())[i] for i, level in enumerate(levels)]
    torch.testing.assert_close(p.icdf(levels), torch.stack(each))
    if isinstance(base, StudentT):
        torch.testing.assert_close(p.icdf(p.cdf(y)), y)
    assert bool((p.cdf(p.icdf(0.9)) >= 0.9 - 1e-9).all())


@pytest.mark.parametrize(("base", "y"), LIKELIHOODS)
def test_draws_have_the_moments(base: Likelihood, y: Tensor) -> None:
    q, likelihood = latent(), GPyTorchLikelihood(base)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for distribution in (likelihood(q.mean), likelihood(q)):
            drawn = distribution.sample(torch.Size([4000]))
            assert drawn.shape == (4000, 8)
            error = drawn.std(0) / 4000**0.5
            assert bool(((drawn.mean(0) - distribution.mean).abs() < 4.5 * error).all())


def test_conditional_values() -> None:
    f = torch.tensor([-20.0, 0.5], dtype=torch.float64)
    given = GPyTorchLikelihood(Probit())(f)
    assert given.batch_shape == f.shape
    torch.testing.assert_close(given.log_prob(torch.ones(2)), Probit().log_prob(torch.ones(2), f))
    torch.testing.assert_close(given.variance, given.mean * (1 - given.mean))


def test_exposure() -> None:
    exposure = torch.linspace(1, 3, 8, dtype=torch.float64)
    likelihood, q = GPyTorchLikelihood(Poisson()), latent()
    exposed: Any = likelihood(q, exposure=exposure)
    torch.testing.assert_close(exposed.mean, likelihood(q).mean * exposure)
    value = likelihood.log_marginal(COUNTS, q, exposure=exposure)
    torch.testing.assert_close(value, exposed.log_prob(COUNTS))


def test_state_goes_with_the_model() -> None:
    likelihood, other = GPyTorchLikelihood(Gaussian(0.3)), GPyTorchLikelihood(Gaussian(1.0))
    other.load_state_dict(likelihood.state_dict())
    base = other.base
    assert isinstance(base, Gaussian)
    torch.testing.assert_close(base.noise.item(), 0.3)


def test_tasks_keep_their_order() -> None:
    """The covariance of several tasks may list them one after the other, or in turn."""
    apart = [MultivariateNormal(torch.zeros(3), scale * torch.eye(3)) for scale in (1.0, 10.0)]
    q = gpytorch.distributions.MultitaskMultivariateNormal.from_independent_mvns(apart)
    p = GPyTorchLikelihood(Gaussian(0.5)).float()(q)
    torch.testing.assert_close(p.variance, torch.tensor([[1.5, 10.5]]).expand(3, 2))
    each = GPyTorchLikelihood(Gaussian(torch.tensor([0.1, 0.2])))(q)
    torch.testing.assert_close(each.variance, torch.tensor([[1.1, 10.2]]).expand(3, 2))
