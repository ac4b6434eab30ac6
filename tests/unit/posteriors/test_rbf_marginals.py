"""The fused training step equals the plain formula in values and gradients."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.numerics.linalg import Workspace
from directgp.posteriors.rbf import rbf_marginals

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


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


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
