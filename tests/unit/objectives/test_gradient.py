"""`PointLoss.gradient` against autograd of the definition of each loss."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from directgp import Marginals
from directgp.interop.gpytorch.translation import GivenGaussian, GivenStudentT
from directgp.likelihoods import (
    Derivatives,
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.objectives import AbsoluteLoss, GibbsLoss, LogLoss, PointLoss, SquareLoss
from directgp.objectives.base import LossGradient
from tests.properties.checks import seeded

FLOAT64 = torch.float64
N, BATCH = 7, 3
EXPOSURE = torch.linspace(0.5, 2.0, N, dtype=FLOAT64)

Make = Callable[[Tensor], Likelihood]
MAKE: dict[str, Make] = {
    "gaussian": lambda by: Gaussian(0.25 * by),
    "student_t": lambda by: StudentT(4.0 * by, 0.6 * by),
    "probit": lambda by: Probit(),
    "logistic": lambda by: Logistic(),
    "poisson_exp": lambda by: Poisson().with_exposure(EXPOSURE),
    "poisson_softplus": lambda by: Poisson(link="softplus").with_exposure(EXPOSURE),
    "negative_binomial": lambda by: NegativeBinomial(2.5 * by).with_exposure(EXPOSURE),
}
LOSSES: dict[str, PointLoss] = {
    "elbo": GibbsLoss(),
    "log_loss": LogLoss(),
    "quadrature": LogLoss("quadrature"),
    "square_loss": SquareLoss(),
}
WITH_MEAN = {"gaussian", "probit", "poisson_exp", "negative_binomial"}
CASES = [(k, loss) for k in MAKE for loss in LOSSES if loss != "square_loss" or k in WITH_MEAN]


def data(kind: str, *batch: int, dtype: torch.dtype = FLOAT64) -> tuple[Tensor, Marginals]:
    """Targets and marginals, of float32 numbers; among the counts is a nearly certain 0."""
    mean, spread = torch.randn(2, *batch, N, generator=seeded(1)).double()
    y = torch.randn(N, generator=seeded(2)).double()
    if kind in {"probit", "logistic"}:
        y = (y > 0).double()
    elif kind not in {"gaussian", "student_t"}:
        y = (3 * y.abs()).floor()
        y[0], mean[..., 0], spread[..., 0] = 0, -7, -2
    variance = (0.5 * spread).exp().float()
    return y, Marginals(mean.to(dtype), variance.to(dtype))


def weights_of(kind: str) -> Tensor | float:
    return 0.125 if kind == "none" else torch.rand(N, generator=seeded(3), dtype=FLOAT64)


def by_definition(
    loss: PointLoss, likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """The loss by a fine trapezoid sum over q, in operations that autograd follows."""
    if isinstance(loss, SquareLoss):
        return loss(likelihood, y, Marginals(mean, variance))
    z = torch.linspace(-14, 14, 3001, dtype=FLOAT64).reshape(-1, *[1] * mean.dim())
    log_weight = torch.log_softmax(-0.5 * z * z, 0)
    log_prob = likelihood.log_prob(y.expand(mean.shape), mean + variance.sqrt() * z)
    if isinstance(loss, GibbsLoss):
        return -(log_weight.exp() * log_prob).sum(0)
    return -torch.logsumexp(log_weight + log_prob, 0)


def reference(
    loss: PointLoss, likelihood: Likelihood, y: Tensor, q: Marginals, weights: Tensor | float
) -> LossGradient:
    mean, variance = (each.double().requires_grad_() for each in (q.mean, q.variance))
    losses = by_definition(loss, likelihood, y, mean, variance)
    wanted = mean, variance, *likelihood.learned()
    total = (weights * losses).sum()
    slopes = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
    return LossGradient(losses.detach(), slopes[0], slopes[1], slopes[2:])


def assert_same(got: LossGradient, want: LossGradient, dtype: torch.dtype = FLOAT64) -> None:
    tolerance = 1e-9 if dtype == FLOAT64 else 1e-5
    assert len(got.parameters) == len(want.parameters)
    own = [(dtype, *pair) for pair in zip(got[:3], want[:3], strict=True)]
    pairs = zip(got.parameters, want.parameters, strict=True)
    for kind, one, other in (*own, *((FLOAT64, *pair) for pair in pairs)):
        assert isinstance(one, Tensor) and isinstance(other, Tensor)
        assert one.dtype == kind and not one.requires_grad and one.is_contiguous()
        size = max(float(other.abs().max()), 1e-9)
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("weights", ["none", "random"])
@pytest.mark.parametrize("dtype", [FLOAT64, torch.float32], ids=str)
@pytest.mark.parametrize(("kind", "loss"), CASES)
def test_gradient(kind: str, loss: str, dtype: torch.dtype, weights: str) -> None:
    likelihood = MAKE[kind](torch.ones((), dtype=FLOAT64))
    y, q = data(kind, dtype=dtype)
    got = LOSSES[loss].gradient(likelihood, y, q, weights_of(weights))
    assert_same(got, reference(LOSSES[loss], likelihood, y, q, weights_of(weights)), dtype)


@pytest.mark.parametrize(("kind", "loss"), CASES)
def test_batch_of_models(kind: str, loss: str) -> None:
    factor = torch.linspace(0.7, 1.6, BATCH, dtype=FLOAT64)[:, None]
    likelihood = MAKE[kind](factor)
    y, q = data(kind, BATCH)
    got = LOSSES[loss].gradient(likelihood, y, q, weights_of("random"))
    assert_same(got, reference(LOSSES[loss], likelihood, y, q, weights_of("random")))


@pytest.mark.parametrize(("kind", "loss"), CASES)
def test_frozen_likelihood(kind: str, loss: str) -> None:
    likelihood = MAKE[kind](torch.ones((), dtype=FLOAT64)).frozen()
    y, q = data(kind)
    assert LOSSES[loss].gradient(likelihood, y, q, 1.0).parameters == ()


@pytest.mark.parametrize("loss", [AbsoluteLoss(), LogLoss("bmc"), LogLoss("ups")], ids=repr)
def test_losses_that_need_a_graph(loss: PointLoss) -> None:
    likelihood = Gaussian(0.25)
    y, q = data("gaussian")
    got = loss.gradient(likelihood, y, q, 0.5, generator=seeded())
    mean, variance = q.mean.requires_grad_(), q.variance.requires_grad_()
    losses = loss(likelihood, y, Marginals(mean, variance), generator=seeded())
    wanted = mean, variance, *likelihood.learned()
    total = 0.5 * losses.sum()
    slopes = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
    assert_same(got, LossGradient(losses.detach(), slopes[0], slopes[1], slopes[2:]))


@pytest.mark.parametrize(("kind", "loss"), CASES)
def test_built_in_likelihoods_need_no_graph(
    kind: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_graph(*args: object, **options: object) -> None:
        raise AssertionError("autograd was called")

    monkeypatch.setattr("torch.autograd.grad", no_graph)
    likelihood = MAKE[kind](torch.ones((), dtype=FLOAT64))
    y, q = data(kind)
    got = LOSSES[loss].gradient(likelihood, y, q, weights_of("random"))
    assert len(got.parameters) == len(likelihood.learned())


@pytest.mark.parametrize("loss", ["elbo", "log_loss"])
@pytest.mark.parametrize("fixed", ["raw_df", "raw_scale"])
def test_one_of_two_parameters(fixed: str, loss: str) -> None:
    likelihood = StudentT(4.0, 0.6)
    likelihood.get_parameter(fixed).requires_grad_(False)
    y, q = data("student_t")
    got = LOSSES[loss].gradient(likelihood, y, q, 0.5)
    assert_same(got, reference(LOSSES[loss], likelihood, y, q, 0.5))


@pytest.mark.parametrize("loss", ["elbo", "log_loss", "quadrature"])
@pytest.mark.parametrize("kind", ["gaussian", "student_t", "exposure"])
def test_constants_with_a_graph(kind: str, loss: str) -> None:
    given = torch.linspace(0.5, 1.5, N, dtype=FLOAT64).requires_grad_()
    make: dict[str, Callable[[], Likelihood]] = {
        "gaussian": lambda: GivenGaussian(2 * given),
        "student_t": lambda: GivenStudentT(3 * given, 0.5 * given),
        "exposure": lambda: NegativeBinomial(2.5).with_exposure(given),
    }
    likelihood = make[kind]()
    y, q = data("negative_binomial" if kind == "exposure" else kind)
    got = LOSSES[loss].gradient(likelihood, y, q, weights_of("random"))
    assert_same(got, reference(LOSSES[loss], likelihood, y, q, weights_of("random")))


class Curved(Likelihood):
    """y = sin-like curve of f plus noise: parameters of any shape, and no slopes in them."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = torch.nn.Parameter(torch.tensor([0.7, -0.2], dtype=FLOAT64))
        self.unused = torch.nn.Parameter(torch.ones(3, dtype=FLOAT64))

    @override
    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return -((y - self.shape[0] * f - self.shape[1] * torch.tanh(f)) ** 2)

    @override
    def derivatives(self, y: Tensor, f: Tensor) -> Derivatives:
        raise NotImplementedError

    @override
    def value_and_slope(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        tanh = torch.tanh(f)
        residual = y - self.shape[0] * f - self.shape[1] * tanh
        return -(residual**2), 2 * residual * (self.shape[0] + self.shape[1] * (1 - tanh**2))

    @override
    def conditional_mean(self, f: Tensor) -> Tensor:
        return self.shape[0] * f + self.shape[1] * torch.tanh(f)

    @override
    def conditional_variance(self, f: Tensor) -> Tensor:
        return torch.full_like(f, 0.5)

    @override
    def check_targets(self, y: Tensor) -> None:
        """Any number."""


@pytest.mark.parametrize("loss", ["elbo", "log_loss"])
def test_likelihood_without_slopes_in_its_parameters(loss: str) -> None:
    likelihood = Curved()
    y, q = data("gaussian", BATCH)
    got = LOSSES[loss].gradient(likelihood, y, q, weights_of("random"))
    assert_same(got, reference(LOSSES[loss], likelihood, y, q, weights_of("random")))
