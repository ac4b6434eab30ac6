"""Gaussian densities, divergences and the Gauss–Hermite rule."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal
from torch.distributions import kl_divergence as torch_kl

from directgp.errors import InvalidInputError
from directgp.numerics.gaussian import gauss_hermite, kl_from_standard, log_density
from tests.reference.hermite import node_and_log_weight


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


@pytest.fixture
def restored_default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5, 20, 50])
def test_exact_for_polynomials_up_to_degree_2k_minus_1(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    for degree in range(2 * num_nodes):
        terms = torch.exp(log_weights) * nodes**degree
        moment = 0 if degree % 2 else math.prod(range(1, degree, 2))
        assert abs(float(terms.sum()) - moment) <= 1e-12 * float(terms.abs().sum())


@pytest.mark.parametrize("num_nodes", [1, 2, 5])
def test_not_exact_for_degree_2k(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    moment = math.prod(range(1, 2 * num_nodes, 2))
    assert float((torch.exp(log_weights) * nodes ** (2 * num_nodes)).sum()) < 0.9 * moment


@pytest.mark.parametrize("num_nodes", [20, 101, 300])
def test_nodes_and_log_weights_against_mpmath(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    for index in (0, num_nodes // 4, num_nodes // 2 - 1):
        node, log_weight = node_and_log_weight(num_nodes, nodes[index].item())
        assert abs(float(nodes[index].item() - node)) < 1e-14 * float(abs(node))
        assert abs(float(log_weights[index].item() - log_weight)) < 1e-11


@pytest.mark.parametrize("num_nodes", [300, 1000])
def test_many_nodes_do_not_underflow(num_nodes: int) -> None:
    nodes, log_weights = gauss_hermite(num_nodes)
    assert log_weights.isfinite().all()
    assert log_weights.min() < -500
    log_mean = torch.logsumexp(log_weights + 12 * nodes, 0)
    torch.testing.assert_close(log_mean.item(), 72.0, rtol=1e-12, atol=0)


def test_symmetric_and_ascending() -> None:
    nodes, log_weights = gauss_hermite(31)
    assert torch.equal(nodes, -nodes.flip(0))
    assert torch.equal(log_weights, log_weights.flip(0))
    assert (nodes.diff() > 0).all()


@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("restored_default_dtype")
def test_default_dtype_does_not_matter(default: torch.dtype) -> None:
    expected = gauss_hermite(17)
    torch.set_default_dtype(default)
    for tensor, reference in zip(gauss_hermite(17), expected, strict=True):
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, reference)


def test_float32_is_the_float64_rule_rounded() -> None:
    for single, double in zip(gauss_hermite(9, torch.float32), gauss_hermite(9), strict=True):
        assert single.dtype == torch.float32
        assert torch.equal(single, double.float())


def test_result_is_the_callers_own() -> None:
    gauss_hermite(6)[0].zero_()
    assert gauss_hermite(6)[0].abs().max() > 1


def test_refuses_an_empty_rule() -> None:
    with pytest.raises(InvalidInputError, match=r"num_nodes must be at least 1\. Got 0\."):
        gauss_hermite(0)
