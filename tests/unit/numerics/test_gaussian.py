"""Gaussian densities and divergences against torch.distributions and by hand."""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal
from torch.distributions import kl_divergence as torch_kl

from directgp.numerics.gaussian import kl_from_standard, log_density


def gaussian(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    """A random mean and lower factor."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(*shape, generator=generator, dtype=torch.float64)
    square = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)
    diagonal = square.diagonal(dim1=-2, dim2=-1).abs() + 0.1
    return mean, square.tril(-1) + torch.diag_embed(diagonal)


def test_log_density_against_torch() -> None:
    y = torch.linspace(-50, 50, 11, dtype=torch.float64)[:, None]
    variance = torch.tensor([1e-8, 0.3, 1e8], dtype=torch.float64)
    mean = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    expected = Normal(mean, variance.sqrt()).log_prob(y)
    torch.testing.assert_close(log_density(y, mean, variance), expected, rtol=1e-13, atol=0)


def test_log_density_gradients() -> None:
    arguments = tuple(
        torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (1.5, -0.3, 0.7)
    )
    assert torch.autograd.gradcheck(log_density, arguments)


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3, 4)])
def test_kl_from_standard_against_torch(shape: tuple[int, ...]) -> None:
    u_mean, u_chol = gaussian(0, *shape)
    standard = MultivariateNormal(torch.zeros_like(u_mean), torch.eye(shape[-1]).double())
    expected = torch_kl(MultivariateNormal(u_mean, scale_tril=u_chol), standard)
    value = kl_from_standard(u_mean, u_chol)
    assert value.shape == shape[:-1]
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)


def test_kl_from_standard_of_the_standard_is_zero_and_stationary() -> None:
    u_mean = torch.zeros(3, requires_grad=True)
    u_chol = torch.eye(3, requires_grad=True)
    value = kl_from_standard(u_mean, u_chol)
    slopes = torch.autograd.grad(value, (u_mean, u_chol))
    assert value == 0
    assert all(torch.count_nonzero(slope) == 0 for slope in slopes)


def test_kl_from_standard_gradient_by_hand() -> None:
    """∂/∂u_mean = u_mean and ∂/∂u_chol = u_chol − diag(1/diag u_chol)."""
    u_mean, u_chol = gaussian(1, 4)
    slopes = torch.autograd.grad(
        kl_from_standard(u_mean.requires_grad_(), u_chol.requires_grad_()), (u_mean, u_chol)
    )
    torch.testing.assert_close(slopes[0], u_mean)
    torch.testing.assert_close(slopes[1], u_chol - torch.diag(1 / u_chol.diagonal()))


def test_kl_from_standard_ignores_the_sign_of_the_diagonal() -> None:
    u_mean, u_chol = gaussian(2, 4)
    torch.testing.assert_close(kl_from_standard(u_mean, -u_chol), kl_from_standard(u_mean, u_chol))
