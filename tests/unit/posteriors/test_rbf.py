"""RBF covariances equal gpytorch's, the fused step the plain formula: values and gradients."""

import copy
from typing import NamedTuple

import gpytorch
import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.numerics.linalg import Workspace
from directgp.posteriors.prior import Prior
from directgp.posteriors.rbf import rbf_covariance, rbf_gram, rbf_marginals
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


@pytest.mark.parametrize("batches", KERNEL_BATCHES, ids=str)
def test_gradcheck(batches: tuple[tuple[int, ...], ...]) -> None:
    assert torch.autograd.gradcheck(rbf_covariance, arguments(*batches), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("held", range(3))
def test_a_held_argument_gets_no_gradient_and_changes_no_other(held: int) -> None:
    full = arguments((), (), ())
    everything = torch.autograd.grad(rbf_covariance(*full).square().sum(), full)
    a, b, log_scale = arguments((), (), ())
    free = [value for i, value in enumerate((a, b, log_scale)) if i != held]
    (a, b, log_scale)[held].requires_grad_(False)
    some = torch.autograd.grad(rbf_covariance(a, b, log_scale).square().sum(), free)
    kept = [slope for i, slope in enumerate(everything) if i != held]
    for one, other in zip(some, kept, strict=True):
        assert torch.equal(one, other)


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


def test_second_derivatives_are_refused() -> None:
    a, b, log_scale = arguments((), (), ())
    for loss in (rbf_covariance(a, b, log_scale).sum(), rbf_gram(a, log_scale).square().sum()):
        with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, a, create_graph=True)


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


M, N, D = 5, 8, 3
NUGGET = 1e-6

BATCHES = [(), (2,)]
each_batch = pytest.mark.parametrize("batch", BATCHES, ids=str)
each_ard = pytest.mark.parametrize("ard", [True, False], ids=["ARD", "isotropic"])


class Inputs(NamedTuple):
    Z: Tensor
    lengthscale: Tensor
    log_scale: Tensor
    u_mean: Tensor
    u_chol: Tensor


NAMES = Inputs._fields


def inputs(
    batch: tuple[int, ...] = (), ard: bool = True, m: int = M, dtype: torch.dtype = torch.float64
) -> Inputs:
    values = (
        random(*batch, m, D, seed=0),
        0.8 + 0.3 * random(*batch, 1, D if ard else 1, seed=1).square(),
        0.4 * random(*batch, seed=2),
        random(*batch, m, seed=3),
        0.6 / m**0.5 * random(*batch, m, m, seed=4) + torch.eye(m, dtype=torch.float64),
    )
    return Inputs(*(value.to(dtype).requires_grad_() for value in values))


def points(n: int = N) -> Tensor:
    return random(n, D, seed=5)


def taped(
    inputs: Inputs, X: Tensor, nugget: float = NUGGET, jitter: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """K from all differences, torch's Cholesky and solves, torch's own KL."""
    Z, lengthscale, log_scale, u_mean, u_chol = inputs

    def covariance(a: Tensor, b: Tensor) -> Tensor:
        difference = a.unsqueeze(-2) - b.unsqueeze(-3)
        squares = (difference / lengthscale.unsqueeze(-2)).square().sum(-1)
        return torch.exp(log_scale[..., None, None] - 0.5 * squares)

    scale = log_scale.exp()
    noise = nugget * scale + jitter
    eye = torch.eye(Z.shape[-2], dtype=Z.dtype)
    L = torch.linalg.cholesky(covariance(Z, Z) + noise[..., None, None] * eye)
    A = torch.linalg.solve_triangular(L, covariance(Z, X), upper=False)
    S = u_chol.tril()
    mean = (A.mT @ u_mean.unsqueeze(-1)).squeeze(-1)
    variance = scale.unsqueeze(-1) - A.square().sum(-2) + (S.mT @ A).square().sum(-2)
    q = torch.distributions.MultivariateNormal(u_mean, covariance_matrix=S @ S.mT)
    p = torch.distributions.MultivariateNormal(torch.zeros_like(u_mean), eye)
    return mean, variance, torch.distributions.kl_divergence(q, p)


def gradients(
    outputs: tuple[Tensor, ...], inputs: Inputs, which: range | list[int]
) -> list[Tensor]:
    weights = [random(*output.shape, seed=10 + i) for i, output in enumerate(outputs)]
    chosen = [(weights[i].to(outputs[i].dtype) * outputs[i]).sum() for i in which]
    found = torch.autograd.grad(torch.stack(chosen).sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


@each_batch
@each_ard
@pytest.mark.parametrize("which", [[0], [1], [2], [0, 1], [0, 1, 2]], ids=str)
def test_values_and_gradients_are_those_of_the_tape(
    batch: tuple[int, ...], ard: bool, which: list[int]
) -> None:
    """For a loss of any of the three outputs: those left out hand no gradient back."""
    ours, theirs, X = inputs(batch, ard), inputs(batch, ard), points()
    fused, plain = rbf_marginals(*ours, X, NUGGET)[:3], taped(theirs, X)
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    pairs = zip(gradients(fused, ours, which), gradients(plain, theirs, which), strict=True)
    for name, (one, other) in zip(NAMES, pairs, strict=True):
        tolerance = 1e-9 * max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=1e-9, atol=tolerance, msg=name)


def test_large_sizes_go_by_bands() -> None:
    """With many inducing inputs, products leave out the triangles that are zero."""
    ours, theirs, X = inputs(m=415), inputs(m=415), points(20)
    fused, plain = rbf_marginals(*ours, X, NUGGET)[:3], taped(theirs, X)
    pairs = zip(gradients(fused, ours, range(3)), gradients(plain, theirs, range(3)), strict=True)
    for name, (one, other) in zip(NAMES, pairs, strict=True):
        # K_uu has a condition of about 415/NUGGET.
        tolerance = 1e-7 * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance, msg=name)


def test_float32_keeps_its_digits() -> None:
    """K_uu is built and factorised in float64, so what is left is rounding of what comes in."""
    narrow, wide = inputs(dtype=torch.float32), inputs()
    wide = Inputs(*(x.detach().double().requires_grad_() for x in narrow))
    X = points().float()
    ours, theirs = rbf_marginals(*narrow, X, 1e-5)[:3], rbf_marginals(*wide, X.double(), 1e-5)[:3]
    assert all(output.dtype == torch.float32 for output in ours)
    pairs = zip(gradients(ours, narrow, range(3)), gradients(theirs, wide, range(3)), strict=True)
    for name, (one, other) in zip(NAMES, pairs, strict=True):
        tolerance = 1e-4 * float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance, msg=name)


def test_float32_knows_small_variances() -> None:
    """Close inducing inputs and a narrow q(u): little is left of s² − ΣA²."""
    X = torch.linspace(-3, 3, 40).reshape(-1, 1)
    Z = torch.linspace(-3, 3, 60).reshape(-1, 1).contiguous()
    scales, q = (torch.ones(1, 1), torch.zeros(())), (torch.zeros(60), 1e-3 * torch.eye(60))
    given = Inputs(Z, *scales, *q)
    narrow = rbf_marginals(*given, X, 1e-5).variance
    wide = rbf_marginals(*Inputs(*(x.double() for x in given)), X.double(), 1e-5).variance
    assert float(wide.max()) < 2e-5
    # K_uf of float32 is off by 6e-8, and L⁻¹ is up to 300.
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=2e-6)


def test_a_shared_prior_serves_a_batch_of_q() -> None:
    one, many, X = inputs(), inputs((3,)), points()
    found = rbf_marginals(*one[:3], *many[3:], X, NUGGET)
    for member in range(3):
        q = many.u_mean[member], many.u_chol[member]
        alone = rbf_marginals(*one[:3], *q, X, NUGGET)
        for ours, theirs in zip(found[:3], alone[:3], strict=True):
            torch.testing.assert_close(ours[member], theirs, rtol=1e-12, atol=1e-13)
    gradient = torch.autograd.grad(found.variance.sum(), one.Z)[0]
    assert gradient.shape == one.Z.shape and bool(gradient.isfinite().all())


def test_far_inputs_have_the_prior() -> None:
    """Also where squares of distances overflow, without NaN in any gradient."""
    given = inputs()
    far = torch.full((1, D), 1e300, dtype=torch.float64)
    mean, variance, kl, _ = rbf_marginals(*given, far, NUGGET)
    assert mean.tolist() == [0.0]
    torch.testing.assert_close(variance[0], given.log_scale.exp(), rtol=1e-15, atol=0)
    assert all(bool(g.isfinite().all()) for g in gradients((mean, variance, kl), given, range(3)))


def test_a_far_inducing_input_costs_the_others_no_digits() -> None:
    near = inputs(dtype=torch.float32)
    with torch.no_grad():
        near.Z[0] = 1e6
    X = points().float()
    wide = Inputs(*(x.detach().double() for x in near))
    ours, theirs = rbf_marginals(*near, X, 1e-5), rbf_marginals(*wide, X.double(), 1e-5)
    torch.testing.assert_close(ours.mean.double(), theirs.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.variance.double(), theirs.variance, rtol=0, atol=1e-5)


def test_what_needs_jitter_says_so_and_keeps_its_gradient() -> None:
    """Two inducing inputs at one place, and no nugget: K_uu is singular."""
    given = inputs()
    with torch.no_grad():
        given.Z[1] = given.Z[0]
    found = rbf_marginals(*given, points(), 0.0)
    jitter = float(found.jitter)
    assert 0 < jitter < 1e-7
    again = inputs()
    with torch.no_grad():
        again.Z[1] = again.Z[0]
    plain = taped(again, points(), 0.0, jitter)
    for one, other in zip(found[:2], plain[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    unchecked = rbf_marginals(*given, points(), -1.0, checked=False)
    assert bool(unchecked.mean.isnan().any()), "without the check there is NaN, and no error"


def test_a_workspace_changes_nothing_but_where_numbers_lie() -> None:
    workspace, X = Workspace(), points()
    for step in range(3):
        first, second = inputs(), inputs()
        with torch.no_grad():
            first.Z.add_(step)
            second.Z.add_(step)
        kept, fresh = rbf_marginals(*first, X, NUGGET, workspace=workspace), None
        ours = gradients(kept[:3], first, range(3))
        fresh = rbf_marginals(*second, X, NUGGET)
        theirs = gradients(fresh[:3], second, range(3))
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(kept, fresh, strict=True))


@pytest.mark.parametrize("n", [N, N - 3])
def test_what_was_overwritten_is_refused(n: int) -> None:
    """Also by a call for another number of rows, which has arrays of other shapes for some."""
    workspace, given = Workspace(), inputs()
    first = rbf_marginals(*given, points(), NUGGET, workspace=workspace)
    rbf_marginals(*given, points(n), NUGGET, workspace=workspace)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.mean.sum().backward()


def test_a_second_derivative_is_refused() -> None:
    given = inputs()
    loss = rbf_marginals(*given, points(), NUGGET).variance.sum()
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        torch.autograd.grad(loss, given.Z, create_graph=True)
