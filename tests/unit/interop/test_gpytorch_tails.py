"""Improbable targets in a GPyTorch model: accurate where GPyTorch's own loss is not."""

import math

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import PredictiveLogLikelihood
from torch import Tensor

from directgp.interop.gpytorch import DirectLogLoss, GPyTorchLikelihood
from directgp.likelihoods import Poisson
from tests.reference.log_expectation import log_expectation as truth
from tests.unit.interop.gpytorch_models import Model, whitened

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
def test_the_foundations_numbers(dtype: torch.dtype) -> None:
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
