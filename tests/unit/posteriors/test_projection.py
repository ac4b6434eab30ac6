"""The closed-form gradient from q(u) to marginals equals that of the plain formula."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.posteriors.projection import Projected, project, project_whitened, whiten

M, N = 4, 7

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]

NAMES = ("L", "Kuf", "k_diag", "u_mean", "u_chol")

BATCHES = {
    "none": ((), ()),
    "shared prior": ((), (3,)),
    "shared q": ((3,), ()),
    "own prior": ((3,), (3,)),
    "two axes": ((2, 1), (1, 3)),
}
"""Leading axes of what comes from the prior, and of q(u)."""

each_batch = pytest.mark.parametrize(("prior", "q"), BATCHES.values(), ids=list(BATCHES))


def inputs(
    prior: tuple[int, ...] = (), q: tuple[int, ...] = (), dtype: torch.dtype = torch.float64
) -> Inputs:
    """Every argument filled at random; every residual is above 0.1."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    L = 0.3 * random(*prior, M, M).tril(-1) + torch.diag_embed(1 + random(*prior, M) ** 2)
    Kuf = random(*prior, M, N)
    k_diag = whiten(L, Kuf).square().sum(-2) + 0.1 + random(*prior, N) ** 2
    values = L, Kuf, k_diag, random(*q, M), random(*q, M, M)
    L, Kuf, k_diag, u_mean, u_chol = (v.detach().to(dtype).requires_grad_() for v in values)
    return L, Kuf, k_diag, u_mean, u_chol


def taped(L: Tensor, Kuf: Tensor, k_diag: Tensor, u_mean: Tensor, u_chol: Tensor) -> Projected:
    """The formula, step by step, for autograd to differentiate."""
    A = torch.linalg.solve_triangular(L.tril(), Kuf, upper=False)
    mean = (A.mT @ u_mean.unsqueeze(-1)).squeeze(-1)
    residual = k_diag - A.square().sum(-2)
    explained = (u_chol.tril().mT @ A).square().sum(-2)
    variance = residual + explained
    return Projected(mean, variance, residual.expand(variance.shape))


@each_batch
def test_values_are_those_of_the_formula(prior: tuple[int, ...], q: tuple[int, ...]) -> None:
    arguments = inputs(prior, q)
    for ours, theirs in zip(project(*arguments), taped(*arguments), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


OUTPUTS = [chosen for size in (1, 2, 3) for chosen in itertools.combinations(range(3), size)]


@each_batch
@pytest.mark.parametrize("chosen", OUTPUTS, ids=str)
def test_gradients_are_those_of_the_tape(
    prior: tuple[int, ...], q: tuple[int, ...], chosen: tuple[int, ...]
) -> None:
    """For a loss of any of the three outputs: those left out hand no gradient back."""
    ours = gradients(project, inputs(prior, q), chosen)
    theirs = gradients(taped, inputs(prior, q), chosen)
    for name, one, other in zip(NAMES, ours, theirs, strict=True):
        # The two orders of summation differ by rounding alone.
        tolerance = 1e-10 * max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=1e-10, atol=tolerance, msg=name)


def gradients(
    function: Callable[..., Projected], arguments: Inputs, chosen: tuple[int, ...]
) -> list[Tensor]:
    """Of a loss that weighs every entry differently; 0 where an argument does not enter."""
    outputs = function(*arguments)
    loss = torch.zeros((), dtype=torch.float64)
    for i in chosen:
        weights = torch.linspace(-1, 1 + i, outputs[i].numel(), dtype=torch.float64)
        loss = loss + (weights.reshape(outputs[i].shape) * outputs[i].sin()).sum()
    slopes = torch.autograd.grad(loss, arguments, allow_unused=True)
    return [
        torch.zeros_like(value) if slope is None else slope
        for value, slope in zip(arguments, slopes, strict=True)
    ]


@each_batch
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.slow_for("two axes", "shared q")
def test_gradcheck(prior: tuple[int, ...], q: tuple[int, ...], with_residual: bool) -> None:
    def outputs(*arguments: Tensor) -> tuple[Tensor, ...]:
        # The lower triangle of L is read, and its upper part must not be disturbed.
        L, Kuf, k_diag, u_mean, u_chol = arguments
        projected = project(L.tril(), Kuf, k_diag, u_mean, u_chol)
        return tuple(projected) if with_residual else tuple(projected[:2])

    assert torch.autograd.gradcheck(outputs, inputs(prior, q), rtol=1e-6, atol=1e-6)


def test_gradient_to_q_alone_is_the_same() -> None:
    """The shortcut for a held prior, and for a held q(u)."""
    arguments = inputs((), (3,))
    everything = gradients(project, arguments, (0, 1, 2))
    held_prior = [value.detach() for value in arguments[:3]]
    projected = project(held_prior[0], held_prior[1], held_prior[2], *arguments[3:])
    weights = [torch.linspace(-1, 1 + i, 3 * N).double().reshape(3, N) for i in range(3)]
    loss = sum((w * p.sin()).sum() for w, p in zip(weights, projected, strict=True))
    assert isinstance(loss, Tensor)
    for one, other in zip(torch.autograd.grad(loss, arguments[3:]), everything[3:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_second_derivatives_are_refused() -> None:
    arguments = inputs()
    for loss in (project(*arguments).mean.sum(), project(*arguments).variance.square().sum()):
        with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, arguments[4], create_graph=True)


@each_batch
def test_a_given_A_changes_nothing(prior: tuple[int, ...], q: tuple[int, ...]) -> None:
    arguments = inputs(prior, q)
    A = whiten(arguments[0], arguments[1]).detach()

    def given(L: Tensor, Kuf: Tensor, k_diag: Tensor, u_mean: Tensor, u_chol: Tensor) -> Projected:
        return project(L, Kuf, k_diag, u_mean, u_chol, A)

    for one, other in zip(given(*arguments), project(*arguments), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(
        gradients(given, arguments, (0, 1, 2)),
        gradients(project, arguments, (0, 1, 2)),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_upper_triangle_of_u_chol_is_not_read() -> None:
    L, Kuf, k_diag, u_mean, u_chol = inputs()
    other = (u_chol.detach() + torch.ones(M, M).double().triu(1)).requires_grad_()
    one, two = project(L, Kuf, k_diag, u_mean, u_chol), project(L, Kuf, k_diag, u_mean, other)
    assert torch.equal(one.variance, two.variance)
    (slope,) = torch.autograd.grad(two.variance.sum(), other)
    assert torch.equal(slope, slope.tril())


@each_batch
def test_whitened_form_agrees(prior: tuple[int, ...], q: tuple[int, ...]) -> None:
    L, Kuf, k_diag, u_mean, u_chol = inputs(prior, q)
    full = project(L, Kuf, k_diag, u_mean, u_chol)
    A = whiten(L, Kuf).detach()
    residual = k_diag.detach() - A.square().sum(-2)
    short = project_whitened(A, residual, u_mean, u_chol)
    torch.testing.assert_close(short.mean, full.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(short.variance, full.variance, rtol=1e-12, atol=1e-12)
    assert short.residual is residual
    for name in ("mean", "variance"):
        weights = torch.linspace(-1, 1, full.mean.numel()).double().reshape(full.mean.shape)
        ours = torch.autograd.grad(
            (weights * getattr(short, name)).sum(), [u_mean, u_chol], allow_unused=True
        )
        theirs = torch.autograd.grad(
            (weights * getattr(full, name)).sum(), [u_mean, u_chol], retain_graph=True
        )
        for one, other in zip(ours, theirs, strict=True):
            expected = torch.zeros_like(other) if one is None else one
            torch.testing.assert_close(expected, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("nugget", [1e-14, 1e-8, 1e-5])
def test_residual_is_never_negative(dtype: torch.dtype, nugget: float) -> None:
    """Inducing inputs at the examples, some of them twice: the exact residual is 0 or nearly so."""
    x = torch.linspace(0, 1, 12, dtype=torch.float64).repeat(2)
    K = 3 * torch.exp(-((x[:, None] - x) ** 2))
    L = torch.linalg.cholesky(K + (3 * nugget + 1e-13) * torch.eye(24).double()).to(dtype)
    residual = project(
        L, K.to(dtype), K.diagonal().to(dtype), L.new_zeros(24), torch.zeros_like(L)
    ).residual
    assert bool((residual > 0).all())
    # It is nothing but the nugget, and rounding.
    assert float(residual.max()) < 3 * nugget + 3000 * torch.finfo(dtype).eps


def test_a_residual_lost_to_rounding_still_has_the_gradient_of_the_formula() -> None:
    """A floor that stops the gradient would stop training where an example meets Z."""
    L = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    Kuf = torch.full((1, 1), 1 + 1e-15, dtype=torch.float64, requires_grad=True)
    k_diag = torch.ones(1, dtype=torch.float64, requires_grad=True)
    q = torch.zeros(1).double(), torch.zeros(1, 1).double()
    residual = project(L, Kuf, k_diag, *q).residual
    assert residual.item() == torch.finfo(torch.float64).eps
    slopes = torch.autograd.grad(residual.sum(), [L, Kuf, k_diag])
    expected = [torch.tensor([[2.0]]), torch.tensor([[-2.0]]), torch.tensor([1.0])]
    for slope, value in zip(slopes, expected, strict=True):
        torch.testing.assert_close(slope, value.double(), rtol=1e-12, atol=0)


def test_float32_is_float64_to_its_digits() -> None:
    wide, narrow = project(*inputs()), project(*inputs(dtype=torch.float32))
    for one, other in zip(narrow, wide, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)
