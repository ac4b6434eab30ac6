"""Likelihoods of several latents that have no integral of their own: grids and draws."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from directgp import expected_log_prob, log_expectation
from directgp.errors import NumericalError, UnsupportedError
from directgp.integration import LatentGrid
from directgp.likelihoods import Derivatives, Gaussian, Likelihood
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature

NOISE = 0.3


class SumOfLatents(Likelihood):
    """N(y; Σ_p f_p, σ²), whose integrals are those of one Gaussian latent."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.num_latent = number

    @property
    def integration(self) -> LatentGrid:
        return LatentGrid(log_concave=True)

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return -0.5 * (y - f.sum(-2)) ** 2 / NOISE

    def log_base(self, y: Tensor) -> Tensor:
        return torch.full_like(y, -0.5 * math.log(2 * math.pi * NOISE))

    def derivatives(self, y: Tensor, f: Tensor) -> Derivatives:
        slope = ((y - f.sum(-2)) / NOISE).unsqueeze(-2).expand_as(f)
        return Derivatives(self.log_kernel(y, f), slope, torch.full_like(f, -1 / NOISE))

    def conditional_mean(self, f: Tensor) -> Tensor:
        return f.sum(-2)

    def conditional_variance(self, f: Tensor) -> Tensor:
        return torch.full_like(f[..., 0, :], NOISE)

    def check_targets(self, y: Tensor) -> None:
        """All are allowed."""


def latents(number: int, n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    y, mean, variance = (
        torch.randn(*shape, generator=random, dtype=torch.float64)
        for shape in ((n,), (number, n), (number, n))
    )
    return 2 * y, mean.requires_grad_(), variance.exp().requires_grad_()


@pytest.mark.parametrize("integral", [log_expectation, expected_log_prob])
def test_a_grid_over_two_latents_is_exact(integral: Any) -> None:
    y, mean, variance = latents(2)
    found = integral(SumOfLatents(2), y, mean, variance)
    truth = integral(Gaussian(NOISE), y, mean.sum(0), variance.sum(0))
    torch.testing.assert_close(found, truth, rtol=1e-7, atol=1e-8)
    for given in (mean, variance):
        (slope,), (exact,) = (
            torch.autograd.grad(each.sum(), given, retain_graph=True) for each in (found, truth)
        )
        torch.testing.assert_close(slope, exact, rtol=1e-6, atol=1e-7)


def test_a_grid_that_would_be_too_fine_is_refused() -> None:
    y, mean, variance = latents(2)
    with pytest.raises(NumericalError, match="variance of f is large"):
        Quadrature()(SumOfLatents(2), y, mean, 1e6 * variance)


def test_three_latents_need_draws() -> None:
    y, mean, variance = latents(3)
    with pytest.raises(UnsupportedError, match="at most two latents"):
        log_expectation(SumOfLatents(3), y, mean, variance)
    with pytest.raises(UnsupportedError, match="nodes of your choice"):
        Quadrature(20)(SumOfLatents(2), *latents(2))


@pytest.mark.parametrize("form", ["mixed", "score", "pathwise"])
@pytest.mark.slow
def test_draws_of_three_latents_are_unbiased(form: Any) -> None:
    number = 20_000
    y, mean, variance = latents(3, 1)
    m, v = (each.detach().expand(3, number).clone().requires_grad_() for each in (mean, variance))
    rule, random = ProductSampling(1, gradient=form), torch.Generator().manual_seed(2)
    value = log_expectation(SumOfLatents(3), y.expand(number), m, v, rule, random)
    truth = log_expectation(Gaussian(NOISE), y, mean.sum(0), variance.sum(0))
    drawn = torch.autograd.grad(value.sum(), (m, v))
    exact = torch.autograd.grad(truth.sum(), (mean, variance))
    for slopes, slope in zip(drawn, exact, strict=True):
        z = (slopes.mean(1) - slope[:, 0]) / (slopes.std(1) / number**0.5)
        assert float(z.abs().max()) < 4.5


def test_bmc_of_three_latents_converges_to_the_log_expectation() -> None:
    y, mean, variance = (each.detach() for each in latents(3))
    number, random = 200_000, torch.Generator().manual_seed(0)
    found = log_expectation(SumOfLatents(3), y, mean, variance, BiasedMonteCarlo(number), random)
    total = mean.sum(0), variance.sum(0)
    truth = log_expectation(Gaussian(NOISE), y, *total).detach()
    # N(y; f, σ²)² = N(y; f, σ²/2) / √(4πσ²).
    square = log_expectation(Gaussian(NOISE / 2), y, *total).detach()
    square = square - 0.5 * math.log(4 * math.pi * NOISE)
    error = torch.expm1(square - 2 * truth).div(number).sqrt()
    assert bool(((found - truth).abs() < 4.5 * error).all())
