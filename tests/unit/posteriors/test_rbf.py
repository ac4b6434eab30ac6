"""RBF covariances and their gradients equal gpytorch's."""

import copy

import gpytorch
import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.kernels.profiles import RBF, stationary
from directgp.posteriors.prior import Prior
from tests.reference import gaussian_process as reference

M, N, D = 5, 6, 3

KERNEL_BATCHES = [
    ((), (), ()),
    ((2,), (2,), (2,)),
    ((), (), (2,)),
    ((2,), (), ()),
    ((), (2,), (2,)),
]
"""Leading axes of a, of b and of the scale."""


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def arguments(*batches: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    a, b, log_scale = batches
    values = random(*a, M, D), random(*b, N, D, seed=1), random(*log_scale, seed=2)
    first, second, third = (value.requires_grad_() for value in values)
    return first, second, third


def rbf_covariance(a: Tensor, b: Tensor, log_scale: Tensor) -> Tensor:
    return log_scale.exp()[..., None, None] * stationary(a, b, RBF)


@pytest.mark.parametrize("batches", KERNEL_BATCHES, ids=str)
def test_value_and_gradients_of_every_argument(batches: tuple[tuple[int, ...], ...]) -> None:
    a, b, log_scale = arguments(*batches)
    K = rbf_covariance(a, b, log_scale)
    squares = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
    plain = torch.exp(log_scale[..., None, None] - 0.5 * squares)
    torch.testing.assert_close(K, plain, rtol=1e-13, atol=0)
    weights = random(*K.shape, seed=3)
    ours = torch.autograd.grad((weights * K).sum(), [a, b, log_scale])
    theirs = torch.autograd.grad((weights * plain).sum(), [a, b, log_scale])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


def test_one_tensor_on_both_sides() -> None:
    """K_uu: the slopes of both arguments meet in Z."""
    Z = random(M, D).requires_grad_()
    scale = torch.zeros(()).double()

    def covariance(Z: Tensor) -> Tensor:
        return rbf_covariance(Z, Z, scale)

    assert torch.autograd.gradcheck(covariance, (Z,), rtol=1e-6, atol=1e-7)
    K = covariance(Z).detach()
    torch.testing.assert_close(K, K.T, rtol=1e-14, atol=0)
    torch.testing.assert_close(K.diagonal(), torch.ones(M).double(), rtol=1e-14, atol=0)


def rbf_kernel(ard: bool, scaled: bool, batch: tuple[int, ...] = ()) -> gpytorch.kernels.Kernel:
    shape = torch.Size(batch)
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=D if ard else None, batch_shape=shape)
    kernel.double().lengthscale = 0.5 + random(*batch, 1, D if ard else 1).abs()
    if scaled:
        kernel = gpytorch.kernels.ScaleKernel(kernel, batch_shape=shape).double()
        kernel.outputscale = 0.5 + random(*batch, seed=4).abs()
    return kernel


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("ard", [False, True])
def test_prior_has_the_values_and_gradients_of_gpytorch(
    ard: bool, scaled: bool, batch: tuple[int, ...]
) -> None:
    kernel = rbf_kernel(ard, scaled, batch)
    prior, theirs = Prior(copy.deepcopy(kernel)), kernel
    Z = random(*batch, M, D, seed=5).requires_grad_()
    X = random(N, D, seed=6).requires_grad_()
    # In one piece with its own gradient, gpytorch's kernel loses no digits on these inputs.
    ours, expected = prior.covariance(Z, X), theirs(Z, X).to_dense()
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=0)
    weights = random(*ours.shape, seed=7)
    slopes = torch.autograd.grad((weights * ours).sum(), [Z, X, *prior.kernel.parameters()])
    known = torch.autograd.grad((weights * expected).sum(), [Z, X, *theirs.parameters()])
    for one, other in zip(slopes, known, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    variance = prior.variance(X).expand(*batch, N)
    torch.testing.assert_close(variance, theirs(X, diag=True), rtol=1e-12, atol=0)


def test_gradients_of_the_variance_are_gpytorchs() -> None:
    kernel = rbf_kernel(ard=False, scaled=True)
    prior = Prior(copy.deepcopy(kernel))
    X, weights = random(N, D), random(N, seed=1)
    ours = torch.autograd.grad((weights * prior.variance(X)).sum(), prior.kernel.raw_outputscale)
    known = torch.autograd.grad((weights * kernel(X, diag=True)).sum(), kernel.raw_outputscale)
    torch.testing.assert_close(ours[0], known[0], rtol=1e-10, atol=0)


@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_far_from_the_origin(shift: float) -> None:
    """X + 1e6 is itself rounded to 1e-10, and nothing more is lost.

    Squares about the origin would be 1e12, with an error of 1e-4 in the exponent.
    """
    X = random(30, D)
    moved = X + shift
    prior = Prior(rbf_kernel(ard=True, scaled=True))
    far, near = prior.covariance(moved[:9], moved), prior.covariance(X[:9], X)
    torch.testing.assert_close(far, near, rtol=1e-8, atol=0)


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_gradient_far_from_the_origin(shift: float) -> None:
    X = random(30, D)
    slopes = []
    for moved in (X, X + shift):
        Z = moved[:9].clone().requires_grad_()
        prior = Prior(rbf_kernel(ard=True, scaled=False))
        (slope,) = torch.autograd.grad(prior.covariance(Z, moved).square().sum(), Z)
        slopes.append(slope)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-7, atol=1e-9)


def test_inputs_wide_in_lengthscales_keep_the_digits_of_their_squares() -> None:
    """Over 200 lengthscales the squares reach 1e4: an error of 1e-12 in the exponent."""
    x = torch.linspace(-100, 100, 401, dtype=torch.float64).reshape(-1, 1)
    K = rbf_covariance(x, x, torch.zeros(()).double())
    exact = torch.as_tensor(reference.rbf(x.numpy(), x.numpy()))
    near = exact > 1e-30
    torch.testing.assert_close(K[near], exact[near], rtol=2e-11, atol=0)


def test_against_the_definition() -> None:
    X1, X2 = random(M, D), random(N, D, seed=1)
    prior = Prior(rbf_kernel(ard=True, scaled=False), output_scale=2.5)
    lengthscale = prior.kernel.lengthscale.detach().numpy()
    expected = reference.rbf(X1.numpy(), X2.numpy(), lengthscale, scale=2.5)
    np.testing.assert_allclose(prior.covariance(X1, X2).detach().numpy(), expected, rtol=1e-12)


class Doubled(gpytorch.kernels.RBFKernel):  # type: ignore[misc]
    """A kernel that is not what its base is."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        values: Tensor = 2 * super().forward(x1, x2, diag=diag, **params)
        return values


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("where", ["active_dims", "outer_active_dims", "subclass"])
def test_what_is_not_a_plain_rbf_kernel_is_left_to_gpytorch(where: str, scaled: bool) -> None:
    if where == "active_dims":
        kernel = gpytorch.kernels.RBFKernel(active_dims=(0, 2))
    elif where == "subclass":
        kernel = Doubled()
    else:
        kernel = gpytorch.kernels.RBFKernel()
    if scaled or where == "outer_active_dims":
        active_dims = (1,) if where == "outer_active_dims" else None
        kernel = gpytorch.kernels.ScaleKernel(kernel, active_dims=active_dims)
    kernel.double()
    X1, X2 = random(M, D), random(N, D, seed=1)
    prior = Prior(kernel, output_scale=3.0)
    expected = 3 * kernel(X1, X2).to_dense()
    torch.testing.assert_close(prior.covariance(X1, X2), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(prior.variance(X1), 3 * kernel(X1, diag=True), rtol=1e-12, atol=0)
    plain = gpytorch.kernels.RBFKernel().double()(X1, X2).to_dense()
    assert not torch.allclose(expected, 3 * plain)


def test_float32_stays_float32() -> None:
    a, b = random(M, D), random(N, D, seed=1)
    narrow = rbf_covariance(a.float(), b.float(), torch.zeros(()))
    assert narrow.dtype == torch.float32
    exact = rbf_covariance(a, b, torch.zeros(()).double())
    torch.testing.assert_close(narrow.double(), exact, rtol=1e-5, atol=0)
