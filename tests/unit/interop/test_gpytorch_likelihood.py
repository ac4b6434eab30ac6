"""Likelihoods of directgp as GPyTorch likelihoods, accurate also for improbable targets."""

import math
from collections.abc import Callable
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import PredictiveLogLikelihood
from torch import Tensor

from directgp.interop.gpytorch import DirectLogLoss, GPyTorchLikelihood
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from tests.reference.log_expectation import log_expectation as truth
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
def test_predictions_are_averages_over_q(base: Likelihood, y: Tensor) -> None:
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


def test_exposure_multiplies_the_mean_count() -> None:
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


DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-8}

# Name of the reference, GPyTorch likelihood, y, μ, v.
CASES = [
    ("probit", gpytorch.likelihoods.BernoulliLikelihood, 1.0, -20.0, 0.5),
    ("probit", gpytorch.likelihoods.BernoulliLikelihood, 1.0, -30.0, 1e-4),
    ("probit", gpytorch.likelihoods.BernoulliLikelihood, 0.0, 30.0, 10.0),
    ("poisson_softplus", gpytorch.likelihoods.PoissonLikelihood, 300.0, 0.5, 0.3),
    ("poisson_softplus", gpytorch.likelihoods.PoissonLikelihood, 5000.0, -3.0, 1.0),
]


def model_with(mean: float, variance: float, dtype: torch.dtype) -> tuple[Model, Tensor]:
    """A model whose q(f) at one input, far from the inducing ones, is N(mean, variance)."""
    model = Model(torch.linspace(0, 1, 4, dtype=dtype)[:, None], whitened).to(dtype)
    model.mean_module.constant.data.fill_(mean)
    model.covar_module.outputscale = variance
    return model, torch.tensor([[1e6]], dtype=dtype)


def value_and_slope(objective: torch.nn.Module, model: Model, x: Tensor, y: float) -> list[float]:
    """The data term, with q(u) at the prior, and its slope in the model's mean."""
    model.zero_grad()
    value = objective(model(x), torch.tensor([y], dtype=x.dtype))
    (slope,) = torch.autograd.grad(value, model.mean_module.constant)
    return [value.item(), slope.item()]


def objectives(likelihood: object, model: Model) -> list[torch.nn.Module]:
    both = DirectLogLoss, PredictiveLogLikelihood
    return [each(likelihood, model, 1, beta=1e-30) for each in both]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "likelihood", "y", "mean", "variance"), CASES)
def test_right_where_gpytorch_is_not(
    name: str, likelihood: type, y: float, mean: float, variance: float, dtype: torch.dtype
) -> None:
    model, x = model_with(mean, variance, dtype)
    with torch.no_grad():
        q = model(x)
    expected = truth(name, y, q.mean.item(), q.variance.item())
    found, theirs = (value_and_slope(each, model, x, y) for each in objectives(likelihood(), model))
    for ours, exact in zip(found, expected[:2], strict=True):
        assert ours == pytest.approx(float(exact), rel=TOLERANCE[dtype])
    # The control: without our rules the same model gives −∞, NaN, no gradient or another number.
    value, slope = theirs
    assert not math.isfinite(value + slope) or slope == 0 or value < 1.5 * float(expected.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_documented_numbers(dtype: torch.dtype) -> None:
    """Poisson counts with λ = e^f, and the probit of the first page."""
    q = MultivariateNormal(torch.tensor([0.5], dtype=dtype), torch.tensor([[0.3]], dtype=dtype))
    likelihood = GPyTorchLikelihood(Poisson())
    value = likelihood.log_marginal(torch.tensor([300.0], dtype=dtype), q)
    assert value.item() == pytest.approx(-50.6238, abs=1e-4)
    model, x = model_with(-20.0, 0.5, dtype)
    objective = DirectLogLoss(gpytorch.likelihoods.BernoulliLikelihood(), model, 1, beta=0.0)
    # GPyTorch adds jitter to the variance of the data: 1e-4 in float32.
    expected = truth("probit", 1.0, -20.0, model(x).variance.item())
    found = value_and_slope(objective, model, x, 1.0)
    assert found == pytest.approx([float(each) for each in expected[:2]], rel=TOLERANCE[dtype])
    assert found[0] == pytest.approx(-137.05, abs=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("y", [3e2, 3e4, -1e6])
def test_outliers_of_students_t(y: float, dtype: torch.dtype) -> None:
    model, x = model_with(0.0, 1.0, dtype)
    likelihood = gpytorch.likelihoods.StudentTLikelihood().to(dtype)
    q = model(x)
    expected = truth(
        "student_t",
        y,
        q.mean.item(),
        q.variance.item(),
        df=likelihood.deg_free.item(),
        scale=likelihood.noise.double().sqrt().item(),
    )
    objective = DirectLogLoss(likelihood, model, 1, beta=0.0)
    found = value_and_slope(objective, model, x, y)
    assert found == pytest.approx([float(each) for each in expected[:2]], rel=TOLERANCE[dtype])
