"""PPGPR and DSPP: our objective and GPyTorch's train a model alike, step by step.

Two copies of a model are trained apart, one by each objective. Where GPyTorch's log E_q[p] is exact
or has enough nodes, value and gradients agree at every step. With its 20 nodes they do not, and the
difference is the error of its quadrature.
"""

import copy
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch import likelihoods
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import DeepPredictiveLogLikelihood, PredictiveLogLikelihood
from gpytorch.models.deep_gps.dspp import DSPP, DSPPLayer
from gpytorch.variational import MeanFieldVariationalDistribution, VariationalStrategy
from sklearn.datasets import load_diabetes
from torch import Tensor

from directgp.errors import InvalidInputError
from directgp.interop.gpytorch import BetaELBO, DirectLogLoss, GPyTorchLikelihood
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from tests.unit.interop.gpytorch_models import Model, whitened

ROWS, BATCH, STEPS, SITES = 120, 40, 24, 5
TOLERANCE = 1e-10
"""Of a value, and of a gradient relative to its largest entry."""


@pytest.fixture(autouse=True)
def float64() -> Any:
    """GPyTorch keeps its quadrature nodes in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(before)


def diabetes() -> tuple[Tensor, Tensor]:
    """Return four features of patients and the progress of their disease, standardised."""
    X, y = load_diabetes(return_X_y=True)
    table = torch.as_tensor(np.column_stack([X[:, [2, 3, 8, 9]], y]))
    table = (table - table.mean(0)) / table.std(0)
    return table[:ROWS, :-1], table[:ROWS, -1]


class Layer(DSPPLayer):
    """A layer as in GPyTorch's example: linear means inside, a constant mean at the end."""

    def __init__(self, Z: Tensor, outputs: int | None, last: bool) -> None:
        batch, d = torch.Size([] if outputs is None else [outputs]), Z.shape[-1]
        Z = Z.expand(*batch, *Z.shape).clone()
        q = MeanFieldVariationalDistribution(Z.shape[-2], batch_shape=batch)
        super().__init__(VariationalStrategy(self, Z, q), d, outputs, SITES)
        means = gpytorch.means
        self.mean_module = (
            means.ConstantMean(batch_shape=batch) if last else means.LinearMean(d, batch)
        )
        kernel = gpytorch.kernels.MaternKernel(batch_shape=batch, ard_num_dims=d)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class TwoLayers(DSPP):
    """A DSPP with two hidden functions, and tasks if there are several outputs."""

    def __init__(self, Z: Tensor, outputs: int | None = None) -> None:
        super().__init__(SITES)
        self.hidden = Layer(Z, 2, last=False)
        self.last = Layer(torch.randn(len(Z), 2), outputs, last=True)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.hidden(x))


class Copy:
    """A copy of a model and its likelihood, which one objective trains."""

    def __init__(self, objective: Callable[..., Any], likelihood: Any, model: Any) -> None:
        self.model, likelihood = copy.deepcopy(model), copy.deepcopy(likelihood)
        self.objective = objective(likelihood, self.model, num_data=ROWS, beta=0.3)
        self.parameters = dict(self.objective.named_parameters())
        self.adam = torch.optim.Adam(self.parameters.values(), lr=0.02)

    def step(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Take a step; return the value before it, and the gradient in every parameter."""
        self.adam.zero_grad()
        value = self.objective(self.model(x), y)
        (-value).backward()
        self.adam.step()
        zero = torch.zeros(())
        slopes = {key: zero if p.grad is None else p.grad for key, p in self.parameters.items()}
        return {"value": value.detach(), **{key: slope.clone() for key, slope in slopes.items()}}


def differences(
    theirs: Any, likelihood: Any, model: Any, y: Tensor, own: Any = None
) -> list[float]:
    """Return the largest relative difference at each step from training by `DirectLogLoss`."""
    x, _ = diabetes()
    # The first call of a model draws the start of q(u).
    with torch.no_grad():
        model(x)
    copies = (
        Copy(theirs, likelihood, model),
        Copy(DirectLogLoss, likelihood if own is None else own, model),
    )
    found = []
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % ROWS
        known, new = (each.step(x[rows], y[rows]) for each in copies)
        assert known.keys() == new.keys()
        # The sigma points of a first layer, whose inputs are no distribution, have no gradient.
        idle = [key for key, value in known.items() if not value.any()]
        assert idle in ([], ["model.hidden.quad_sites"])
        pairs = ((known[key], new[key]) for key in known)
        found.append(max(float((a - b).abs().max() / (a.abs().max() + 1e-9)) for a, b in pairs))
    print(f"{found[0]:.1e} at the first step, {max(found):.1e} at the worst")
    return found


def labels(y: Tensor) -> Tensor:
    return (y > 0.3).double()


def counts(y: Tensor) -> Tensor:
    return torch.exp(1 + 0.5 * y).round()


@pytest.mark.parametrize(
    ("likelihood", "target"),
    [
        (likelihoods.GaussianLikelihood, Tensor.clone),
        # Its log E_q[p] is a formula, on probabilities that are clamped at 1e-16.
        (likelihoods.BernoulliLikelihood, labels),
    ],
)
def test_ppgpr(likelihood: Callable[[], Any], target: Callable[[Tensor], Tensor]) -> None:
    x, y = diabetes()
    model = Model(x[::10].clone(), whitened)
    found = differences(PredictiveLogLikelihood, likelihood(), model, target(y))
    assert max(found) < TOLERANCE


@pytest.mark.parametrize(
    ("likelihood", "target", "outputs"),
    [
        (likelihoods.GaussianLikelihood, Tensor.clone, None),
        (likelihoods.BernoulliLikelihood, labels, None),
        (
            lambda: likelihoods.MultitaskGaussianLikelihood(num_tasks=2),
            lambda y: torch.stack([y, y.abs()], -1),
            2,
        ),
    ],
)
@pytest.mark.slow_for("Bernoulli", "<lambda>")
def test_dspp(
    likelihood: Callable[[], Any], target: Callable[[Tensor], Tensor], outputs: int | None
) -> None:
    x, y = diabetes()
    model = TwoLayers(x[::10], outputs)
    found = differences(DeepPredictiveLogLikelihood, likelihood(), model, target(y))
    assert max(found) < TOLERANCE


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.slow
def test_their_quadrature_error_is_the_only_difference(deep: bool) -> None:
    x, y = diabetes()
    theirs = DeepPredictiveLogLikelihood if deep else PredictiveLogLikelihood
    model = TwoLayers(x[::10]) if deep else Model(x[::10].clone(), whitened)
    found = {}
    for nodes in (20, 300):
        with gpytorch.settings.num_gauss_hermite_locs(nodes):
            found[nodes] = differences(theirs, likelihoods.StudentTLikelihood(), model, y)
    assert found[20][0] > 1e-6 and max(found[300]) < 1e-9


@pytest.mark.parametrize(
    ("own", "target"),
    [
        (Gaussian(0.3), Tensor.clone),
        (StudentT(4.0, 0.5), Tensor.clone),
        (Probit(), labels),
        (Logistic(), labels),
        (Poisson(), counts),
        (NegativeBinomial(0.5), counts),
    ],
)
@pytest.mark.slow_for("own1", "own3", "own4", "own5")
def test_a_dspp_with_our_likelihoods(own: Likelihood, target: Callable[[Tensor], Tensor]) -> None:
    """The mixture over sigma points is theirs, log E_q[p] ours in both."""
    x, y = diabetes()
    theirs, model = GPyTorchLikelihood(own), TwoLayers(x[::10])
    found = differences(DeepPredictiveLogLikelihood, theirs, model, target(y), own)
    assert max(found) < TOLERANCE


def test_a_dspp_with_exposures_and_with_missing_targets() -> None:
    x, y = diabetes()
    model, exposure = TwoLayers(x[::10]), torch.linspace(1, 4, ROWS)
    objective = DirectLogLoss(Poisson(), model, num_data=ROWS, beta=0.0)
    q, target = model(x), counts(y)
    each = GPyTorchLikelihood(Poisson()).log_marginal(target, q, exposure=exposure)
    mixed = (model.quad_weights[:, None] + each).logsumexp(0)
    torch.testing.assert_close(objective(q, target, exposure=exposure), mixed.mean())
    target[::2] = torch.nan
    with gpytorch.settings.observation_nan_policy("mask"):
        found = objective(q, target, exposure=exposure)
    torch.testing.assert_close(found, mixed[1::2].sum() / ROWS)


@pytest.mark.parametrize("objective", [DirectLogLoss, BetaELBO])
def test_the_first_axis_must_be_that_of_the_sigma_points(objective: Any) -> None:
    x, y = diabetes()
    model = TwoLayers(x[::10])
    loss = objective(likelihoods.GaussianLikelihood(), model, num_data=ROWS)
    q = MultivariateNormal(torch.zeros(ROWS), torch.eye(ROWS))
    message = r"of shape \(5, ..., n\), for the sigma points of TwoLayers. Got \((3, 120|120,)\)"
    for wrong in (q, q.expand(torch.Size([3]))):
        with pytest.raises(InvalidInputError, match=message):
            loss(wrong, y)
    plain = objective(likelihoods.GaussianLikelihood(), gpytorch.models.deep_gps.DeepGP(), ROWS)
    with pytest.raises(InvalidInputError, match=r"of shape \(S, ..., n\), for the samples of Deep"):
        plain(q, y)
