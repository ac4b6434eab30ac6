"""The situations of GPyTorch's own examples, trained by its objective and by ours.

Models, data and loop are the same for both; what is compared is the mean loss −log p(y) of examples
that neither has seen, by the same exact formula.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import VariationalELBO
from torch import Tensor, nn

from directgp.interop.gpytorch import DirectLogLoss, GPyTorchLikelihood
from directgp.interop.gpytorch.translation import translated
from directgp.likelihoods import StudentT
from directgp.predictive import predictive_log_density
from directgp.shapes import Marginals
from tests.unit.interop.gpytorch_models import (
    Model,
    batched,
    decoupled,
    independent,
    mean_field,
    unwhitened,
    whitened,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor"),
]

NUM, STEPS, RATE = 120, 50, 0.08


class Data(NamedTuple):
    """Inputs and targets; the last third is held back."""

    x: Tensor
    y: Tensor

    def split(self) -> tuple["Data", "Data"]:
        cut = 2 * NUM // 3
        return Data(self.x[:cut], self.y[..., :cut]), Data(self.x[cut:], self.y[..., cut:])


def waves(seed: int = 0) -> Data:
    """A wave whose noise grows with x, as one Gaussian noise level cannot have it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(NUM, 1, generator=generator)
    noise = 0.05 + 0.5 * x[:, 0] ** 2
    return Data(x, torch.sin(6 * x[:, 0]) + noise * torch.randn(NUM, generator=generator))


def labels() -> Data:
    x, y = waves()
    return Data(x, (y > 0).float())


def two_waves() -> Data:
    x, y = waves()
    return Data(x, torch.stack([y, -y + x[:, 0]]))


class DeepKernel(Model):
    """An RBF kernel on what a small network makes of the inputs."""

    def __init__(self, Z: Tensor) -> None:
        super().__init__(Z, whitened)
        self.network = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 2))

    def forward(self, x: Tensor) -> MultivariateNormal:
        return super().forward(self.network(x))


class Situation(NamedTuple):
    """A model and likelihood, made anew for each objective, and their data."""

    model: Callable[[Tensor], Model]
    likelihood: Callable[[], Any]
    data: Data
    tasks: bool = False


def gaussian() -> Any:
    return gpytorch.likelihoods.GaussianLikelihood()


def two_gaussians() -> Any:
    return gpytorch.likelihoods.GaussianLikelihood(batch_shape=torch.Size([2]))


SITUATIONS = {
    "regression": Situation(lambda Z: Model(Z, whitened), gaussian, waves()),
    "classification": Situation(
        lambda Z: Model(Z, whitened), gpytorch.likelihoods.BernoulliLikelihood, labels()
    ),
    "unwhitened": Situation(lambda Z: Model(Z, unwhitened), gaussian, waves()),
    "decoupled": Situation(lambda Z: Model(Z, decoupled), gaussian, waves()),
    "mean field": Situation(lambda Z: Model(Z, mean_field), gaussian, waves()),
    "deep kernel": Situation(DeepKernel, gaussian, waves()),
    "batch of models": Situation(lambda Z: Model(Z, batched(2), (2,)), two_gaussians, two_waves()),
    "independent tasks": Situation(
        lambda Z: Model(Z, independent(2), (2,)),
        lambda: gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2),
        two_waves(),
        tasks=True,
    ),
}


def trained(situation: Situation, objective: Callable[..., Any]) -> tuple[Model, Any]:
    """A model after a plain loop, as GPyTorch's examples have it."""
    (x, y), _ = situation.data.split()
    torch.manual_seed(0)
    model, likelihood = situation.model(x[::8].clone()), situation.likelihood()
    mll = objective(likelihood, model, num_data=len(x))
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = -mll(model(x), y.mT if situation.tasks else y).sum()
        loss.backward()
        optimiser.step()
    return model.eval(), likelihood.eval()


@torch.no_grad()
def losses(situation: Situation, model: Model, likelihood: Any) -> Tensor:
    """−log p(y) of each example that was held back."""
    _, (x, y) = situation.data.split()
    q = model(x)
    own = translated(likelihood, q.mean.shape, (), {})
    target = (y.mT if situation.tasks else y).expand(q.mean.shape)
    return -predictive_log_density(own, target, Marginals(q.mean, q.variance)).flatten()


def blind(y: Tensor) -> float:
    """The loss of the distribution of all y, which knows nothing of x."""
    if set(y.tolist() if y.dim() == 1 else []) == {0.0, 1.0}:
        return float(torch.distributions.Bernoulli(y.mean()).entropy())
    return float(torch.distributions.Normal(y.mean(), y.std()).entropy())


def both(situation: Situation) -> tuple[Tensor, Tensor]:
    """The losses after training by GPyTorch's ELBO and by ours."""
    with torch.random.fork_rng():
        theirs = losses(situation, *trained(situation, VariationalELBO))
        ours = losses(situation, *trained(situation, DirectLogLoss))
    print(f"{theirs.mean():.3f} by VariationalELBO, {ours.mean():.3f} by DirectLogLoss")
    return theirs, ours


@pytest.mark.parametrize("name", [name for name in SITUATIONS if name != "classification"])
@pytest.mark.slow_for("decoupled", "independent", "batch", "unwhitened", "mean field")
def test_predicts_better_where_the_noise_is_wrong(name: str) -> None:
    situation = SITUATIONS[name]
    theirs, ours = both(situation)
    assert ours.mean() < theirs.mean()
    assert ours.mean() < blind(situation.data.y) - 0.2


def test_classifies_as_well() -> None:
    """Nothing is wrong in the model of the labels: neither objective has an advantage."""
    situation = SITUATIONS["classification"]
    theirs, ours = both(situation)
    difference = ours - theirs
    assert difference.mean() < 2 * difference.std() / len(difference) ** 0.5
    assert ours.mean() < blind(situation.data.y) - 0.2


def test_our_likelihood_in_their_loop() -> None:
    situation = SITUATIONS["regression"]._replace(
        likelihood=lambda: GPyTorchLikelihood(StudentT(df=4.0, scale=0.3))
    )
    theirs, ours = both(situation)
    assert ours.mean() < theirs.mean()
