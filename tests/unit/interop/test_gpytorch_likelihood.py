"""Likelihoods of directgp as GPyTorch likelihoods."""

from collections.abc import Callable
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

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


def averaged(q: MultivariateNormal, function: Callable[[Tensor], Tensor]) -> Tensor:
    """E_q of a function of f, by a sum over very many places."""
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)[:, None]
    weights = torch.exp(-0.5 * z * z)
    return (weights * function(q.mean + q.variance.sqrt() * z)).sum(0) / weights.sum()


@pytest.mark.parametrize(("base", "y"), LIKELIHOODS)
def test_predictions(base: Likelihood, y: Tensor) -> None:
    q, likelihood = latent(), GPyTorchLikelihood(base)
    p = likelihood(q)
    with torch.no_grad():
        mean = averaged(q, base.conditional_mean)
        square = averaged(q, lambda f: base.conditional_variance(f) + base.conditional_mean(f) ** 2)
        density = averaged(q, lambda f: base.log_prob(y, f).exp())
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.variance, square - mean**2)
    if isinstance(base, Gaussian):
        assert isinstance(p, MultivariateNormal)
        return
    torch.testing.assert_close(p.log_prob(y), density.log())
    levels = torch.linspace(0.1, 0.9, 8, dtype=torch.float64)
    for level in (0.9, levels, torch.tensor([[0.1], [0.9]], dtype=torch.float64)):
        quantile = p.icdf(level)
        assert bool((p.cdf(quantile) >= torch.as_tensor(level) - 1e-9).all())
        # Just below, or at the count or label below, there is less.
        assert bool((p.cdf(quantile - (1e-6 if isinstance(base, StudentT) else 1)) < level).all())


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
