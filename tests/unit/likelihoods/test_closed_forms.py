"""Formulas of expectations: slopes written by hand against differences, in two orders."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import Gaussian, Poisson, Probit

N = 6
GENERATOR = torch.Generator().manual_seed(0)
MEAN = torch.randn(N, generator=GENERATOR, dtype=torch.float64)
VARIANCE = 0.1 + torch.rand(N, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0.0, 1.0] * 3, dtype=torch.float64)
COUNTS = torch.tensor([0.0, 1.0, 2.0, 3.0, 5.0, 40.0], dtype=torch.float64)
EXPOSURE = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1, 8.0], dtype=torch.float64)

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]

GAUSSIAN = Gaussian(0.3)
FORMULAS: dict[str, tuple[Formula, Tensor]] = {
    "probit, predictive": (Probit().log_predictive, LABELS),
    "gaussian, predictive": (GAUSSIAN.log_predictive, MEAN.flip(0)),
    "gaussian, gibbs": (GAUSSIAN.expected_log_prob, MEAN.flip(0)),
    "poisson, gibbs": (Poisson().expected_log_prob, COUNTS),
    "exposed, gibbs": (Poisson().with_exposure(EXPOSURE).expected_log_prob, COUNTS),
}
each = pytest.mark.parametrize("name", FORMULAS)


def marginals() -> tuple[Tensor, Tensor]:
    return MEAN.clone().requires_grad_(), VARIANCE.clone().requires_grad_()


@each
def test_slopes_in_mean_and_variance(name: str) -> None:
    formula, y = FORMULAS[name]
    assert torch.autograd.gradcheck(lambda *q: formula(y, *q), marginals())
    assert torch.autograd.gradgradcheck(lambda *q: formula(y, *q), marginals())


@each
def test_the_value_does_not_depend_on_who_asks(name: str) -> None:
    """With slopes and without them, two ways of computing the same."""
    formula, y = FORMULAS[name]
    with torch.no_grad():
        plain = formula(y, *marginals())
    torch.testing.assert_close(formula(y, *marginals()).detach(), plain, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("noise", [0.3, torch.tensor([[0.2], [0.5]])], ids=["one", "batch"])
@pytest.mark.parametrize("name", ["log_predictive", "expected_log_prob"])
def test_slope_in_the_noise(name: str, noise: float | Tensor) -> None:
    likelihood = Gaussian(noise)
    q = MEAN.expand(2, N), VARIANCE.expand(2, N)
    y = MEAN.flip(0).expand(2, N)

    def value(raw: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(likelihood, {"raw_noise": raw}, (name,))
        return found

    likelihood.forward = lambda name: getattr(likelihood, name)(y, *q)
    raw = likelihood.raw_noise.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(value, (raw,))
    assert torch.autograd.gradgradcheck(value, (raw,))


@pytest.mark.parametrize("name", ["log_predictive", "expected_log_prob"])
def test_a_frozen_noise_gets_no_gradient(name: str) -> None:
    mean, variance = marginals()
    likelihood = Gaussian(0.3)
    getattr(likelihood.frozen(), name)(MEAN.flip(0), mean, variance).sum().backward()
    assert likelihood.raw_noise.grad is None and mean.grad is not None


@each
def test_targets_may_be_broadcast(name: str) -> None:
    """One row of targets for several rows of marginals, with and without gradients."""
    formula, y = FORMULAS[name]
    mean, variance = (q.detach().expand(3, N).clone().requires_grad_() for q in marginals())
    found = formula(y, mean, variance)
    torch.testing.assert_close(found[1], formula(y, *marginals()), rtol=1e-14, atol=0)
    found.sum().backward()
    one_mean, one_variance = marginals()
    formula(y, one_mean, one_variance).sum().backward()
    for many, one in ((mean, one_mean), (variance, one_variance)):
        assert many.grad is not None and one.grad is not None
        torch.testing.assert_close(many.grad[1], one.grad)
