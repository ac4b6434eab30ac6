"""The joint distribution of f, against dense unwhitened formulas."""

import gpytorch
import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.errors import InvalidInputError
from directgp.posteriors import Prior, SparsePosterior
from directgp.registry import KernelName
from tests.reference import gaussian_process as reference
from tests.unit.posteriors.test_sparse import KERNELS, Dense, X, Z, each_kernel, random, somewhere

M, N, D = len(Z), *X.shape


@each_kernel
def test_whitened_is_unwhitened(kernel: KernelName) -> None:
    posterior = somewhere(kernel)
    dense, f = Dense(posterior, kernel, X), posterior.joint(X)
    np.testing.assert_allclose(f.mean.detach(), dense.mean, rtol=1e-8)
    np.testing.assert_allclose(f.covariance.detach(), dense.covariance_f, rtol=0, atol=1e-9)
    assert torch.equal(f.covariance, f.covariance.mT)


def test_a_kernel_of_gpytorch() -> None:
    kernel = gpytorch.kernels.PeriodicKernel() + gpytorch.kernels.LinearKernel()
    prior = Prior(kernel, output_scale=2.0)
    posterior = SparsePosterior(prior, Z)
    posterior.set_q(random(M, seed=3), random(M, M, seed=4))
    with torch.no_grad():
        Kuu, Kuf, Kff = (2 * kernel(a, b).to_dense() for a, b in ((Z, Z), (Z, X), (X, X)))
        Kuu += posterior.nugget * torch.diag(Kuu.diagonal())
        L, S = torch.linalg.cholesky(Kuu), posterior.u_chol.tril()
        m, V = L @ posterior.u_mean, L @ S @ S.T @ L.T
    matrices = (each.numpy() for each in (Kuu, Kuf, Kff, m, V))
    expected, f = reference.sparse_posterior(*matrices), posterior.joint(X)
    np.testing.assert_allclose(f.mean.detach(), expected.mean, rtol=1e-7)
    np.testing.assert_allclose(f.covariance.detach(), expected.variance, rtol=0, atol=1e-7)


@each_kernel
def test_the_diagonal_is_the_variance_of_the_marginals(kernel: KernelName) -> None:
    """To the last digits, even where q(u) is certain and all but the nugget is lost to rounding."""
    posterior = somewhere(kernel)
    with torch.no_grad():
        posterior.u_chol.zero_()
    inputs = torch.cat([X, Z])
    f, marginals = posterior.joint(inputs), posterior.marginals(inputs)
    variance = f.covariance.diagonal()
    assert variance.min() > 0
    torch.testing.assert_close(variance, marginals.variance, rtol=0, atol=1e-14)
    torch.testing.assert_close(f.mean, marginals.mean, rtol=1e-12, atol=1e-12)


@each_kernel
def test_batch_axes_of_the_inputs(kernel: KernelName) -> None:
    posterior, inputs = somewhere(kernel), random(2, 3, 4, D, seed=9)
    f = posterior.joint(inputs)
    assert f.mean.shape == (2, 3, 4)
    assert f.covariance.shape == (2, 3, 4, 4)
    for i in range(2):
        for j in range(3):
            alone = posterior.joint(inputs[i, j])
            torch.testing.assert_close(f.mean[i, j], alone.mean)
            torch.testing.assert_close(f.covariance[i, j], alone.covariance)


@pytest.mark.parametrize("shared_prior", [False, True])
def test_a_batch_is_its_members(shared_prior: bool) -> None:
    single = somewhere()
    batch = single.repeated(3, shared_prior)
    with torch.no_grad():
        for i, parameter in enumerate(batch.parameters()):
            parameter.add_(0.1 * random(*parameter.shape, seed=i))
    f = batch.joint(X)
    for i in range(3):
        alone = batch.member(i, single).joint(X)
        torch.testing.assert_close(f.mean[i], alone.mean, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(f.covariance[i], alone.covariance, rtol=1e-11, atol=1e-12)
    inputs = random(5, 1, 4, D)
    assert batch.joint(inputs).covariance.shape == (5, 3, 4, 4)


# Matérn ½ has a kink where inputs meet.
SMOOTH = [(kernel, True) for kernel in KERNELS if kernel != "matern12"]


@pytest.mark.parametrize(("kernel", "repeated"), [("matern12", False), ("rbf", False), *SMOOTH])
def test_gradients_in_the_inputs(kernel: KernelName, repeated: bool) -> None:
    """Against central differences, also with an input that is there twice."""
    posterior = somewhere(kernel, nugget=1e-4).requires_grad_(False)
    inputs = random(2, 3, D, seed=9)
    if repeated:
        inputs[:, 2] = inputs[:, 0]

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        f = posterior.joint(x)
        return f.mean, f.covariance

    assert torch.autograd.gradcheck(both, inputs.requires_grad_(), eps=1e-5, atol=1e-5)


def test_gradients_reach_every_parameter() -> None:
    posterior = somewhere()
    f = posterior.joint(X)
    (f.mean.sin().sum() + f.covariance.sum()).backward()
    for name, parameter in posterior.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_a_factor_at_hand_is_used() -> None:
    posterior = somewhere()
    factor = posterior.factor()
    known, found = posterior.joint(X), posterior.joint(X, factor)
    assert torch.equal(found.covariance, known.covariance)
    other = factor._replace(L=2 * factor.L)
    assert not torch.allclose(posterior.joint(X, other).covariance, known.covariance)


def test_float32_stays_float32() -> None:
    f = somewhere().float().joint(X.float())
    assert f.mean.dtype == f.covariance.dtype == torch.float32
    torch.testing.assert_close(
        f.covariance.double(), somewhere().joint(X).covariance, rtol=1e-3, atol=1e-3
    )


@pytest.mark.usefixtures("without_shape_checks")
def test_refuses_another_width() -> None:
    with pytest.raises(InvalidInputError, match=r"X must be of shape \(n, 2\)"):
        somewhere().joint(X[:, :1])
