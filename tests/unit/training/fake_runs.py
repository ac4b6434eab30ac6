"""Fake runs of a search with known objectives and validation losses."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from directgp.training.search import Search
from gpytorch.kernels import RBFKernel
from torch import Tensor

from directgp.errors import NumericalError
from directgp.likelihoods import Gaussian, Likelihood, StudentT
from directgp.objectives.base import PointLoss
from directgp.posteriors import SparsePosterior
from directgp.posteriors.prior import Prior
from directgp.registry import KernelName
from directgp.training import race, search
from directgp.training.data import Data, Model
from directgp.training.result import Phase, Progress, StageResult, Status, TrainingResult
from directgp.training.run import Recipe
from directgp.training.trainer import Trainer
from directgp.training.validation import Split, Validation
from tests.unit.training.models import regression, seeded

BETAS = [64.0, 16.0, 4.0, 1.0, 0.25, 0.0625]
KERNELS: list[tuple[str, KernelName, bool]] = [
    ("rbf", "rbf", False),
    ("rbf ARD", "rbf", True),
    ("matern", "matern32", False),
    ("matern ARD", "matern32", True),
]


def model(
    likelihood: Likelihood, X: Tensor, name: str = "", kernel: KernelName = "rbf", ard: bool = False
) -> Model:
    """A model with six inducing inputs."""
    prior = Prior.from_data(X, None, kernel=kernel, ard=ard, mean="zero")
    return Model(SparsePosterior(prior, X[:6].clone()), likelihood, name)


def models(X: Tensor, number: int = 4) -> list[list[Model]]:
    """Kernels, each with a Gaussian and a Student-t likelihood."""
    return [
        [
            model(kind(), X, f"{name}, {kind.__name__.lower()}", kernel, ard)
            for kind in (Gaussian, StudentT)
        ]
        for name, kernel, ard in KERNELS[:number]
    ]


@dataclass(frozen=True)
class State:
    """A trained model, whose validation loss is asked for."""

    model: str
    """Kernel and likelihood, as in "rbf ARD, gaussian"."""

    mode: str
    beta: float
    steps: int
    """Steps of its mode, from the first one."""

    num_inducing: int


@dataclass(frozen=True)
class Call:
    """What a run was asked for."""

    mode: str
    beta: float
    model: str
    data: Data
    posterior: SparsePosterior
    likelihood: Likelihood
    recipe: Recipe
    phase: Phase

    @property
    def num_inducing(self) -> int:
        return len(self.posterior.Z)


def name_of(posterior: SparsePosterior, likelihood: Likelihood) -> str:
    kernel = posterior.prior.kernel
    name = "rbf" if isinstance(kernel, RBFKernel) else "matern"
    ard = " ARD" if kernel.lengthscale.numel() > 1 else ""
    return f"{name}{ard}, {type(likelihood).__name__.lower()}"


@dataclass
class FakeRuns:
    """Stands in for the three runs; those of the ELBO copy the posterior, the others keep it.

    Each run calls the monitors once, and takes all its steps unless one of them stops it.
    """

    loss: Callable[[State], float | Tensor] = lambda state: 0.0
    objective: Callable[[Call], float] = lambda call: 0.0
    failing: Callable[[Call], bool] = lambda call: False
    converged: Callable[[Call], bool] = lambda call: False
    spread: Mapping[str, float] = field(default_factory=dict)
    """Half of the range of the validation losses of a mode."""

    rmse: Callable[[State], float] = lambda state: 1.0

    calls: list[Call] = field(default_factory=list)
    judged: list[Split] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeRuns":
        for module in (race, search):
            monkeypatch.setattr(module, "elbo_run", self._elbo)
            monkeypatch.setattr(module, "fixed_run", self._fixed)
            monkeypatch.setattr(module, "joint_run", self._joint)
        monkeypatch.setattr(Split, "judged", lambda split, *how: self._judged(split, *how))
        return self

    def of(self, mode: str) -> list[Call]:
        """Calls of a mode, in the order of time."""
        return [call for call in self.calls if call.mode == mode]

    def steps(self, mode: str, beta: float = 1.0) -> list[int | None]:
        """The steps that runs of a mode and a β were allowed."""
        return [call.recipe.max_steps for call in self.of(mode) if call.beta == beta]

    def betas(self, mode: str) -> list[float]:
        """The values of β of a mode, in the order in which they were first trained."""
        return list(dict.fromkeys(call.beta for call in self.of(mode)))

    def _elbo(
        self, trainer: Trainer, recipe: Recipe, model: Model, near: bool = False
    ) -> TrainingResult:
        posterior = copy.deepcopy(model.posterior)
        # A mean that explains the targets; the search does not go on from one that does not.
        with torch.no_grad():
            posterior.u_mean.copy_(torch.linspace(-9, 9, len(posterior.Z)))
        return self._ran("elbo", trainer, recipe, model._replace(posterior=posterior), 1.0)

    def _fixed(
        self, trainer: Trainer, recipe: Recipe, base: Any, beta: float, near: Any = None
    ) -> TrainingResult:
        posterior = base.posterior if near is None else near.posterior
        model = Model(posterior, base.likelihood)
        return self._ran("fixed", trainer, recipe, model, beta, base.stages)

    def _joint(self, trainer: Trainer, recipe: Recipe, model: Model, beta: float) -> TrainingResult:
        return self._ran("joint", trainer, recipe, model, beta)

    def _ran(
        self,
        mode: str,
        trainer: Trainer,
        recipe: Recipe,
        model: Model,
        beta: float,
        before: tuple[StageResult, ...] = (),
    ) -> TrainingResult:
        posterior, likelihood, _ = model
        name = name_of(posterior, likelihood)
        call = Call(mode, beta, name, trainer.data, posterior, likelihood, recipe, trainer.phase)
        self.calls.append(call)
        if self.failing(call):
            raise NumericalError(f"{mode} at {beta:g} cannot be trained.")
        loss, steps = self.objective(call), recipe.max_steps or 500
        progress = Progress(mode, steps, steps, steps, loss, 0.0, 0.0, trainer.phase)
        stops = [stop for monitor in recipe.monitors if (stop := monitor(progress)) is not None]
        status = Status.CONVERGED if self.converged(call) else Status.BUDGET
        reason = "So it is."
        if stops:
            status, reason, steps = stops[0].status, stops[0].reason, 1
        ends = bool(stops)
        stage = StageResult(mode, status, reason, steps, steps, loss, (loss,), 0.0, (), ends)
        return TrainingResult(posterior, likelihood, mode, beta, mode, (*before, stage), 0.0)

    def _judged(
        self, split: Split, result: TrainingResult, loss: PointLoss
    ) -> tuple[Tensor, Tensor]:
        self.judged.append(split)
        mode, posterior = result.hyperparameters, result.posterior
        steps = sum(stage.steps for stage in result.stages if stage.stage == mode)
        name = name_of(posterior, result.likelihood)
        state = State(name, mode, result.beta, steps, len(posterior.Z))
        noise = torch.linspace(-1, 1, len(split.validation), dtype=torch.float64)
        losses = self.loss(state) + self.spread.get(mode, 0.0) * noise
        return losses, torch.full_like(losses, self.rmse(state) ** 2)


def searched(validation: Validation, fake: FakeRuns | None = None, **how: Any) -> Search:
    """Search with real runs, or with fake ones."""
    X, y = regression()
    given, data = how.pop("models", [[model(Gaussian(0.1), X)]]), how.pop("data", Data(X, y))
    betas, modes = how.pop("betas", BETAS), how.pop("modes", ["elbo", "joint"])
    own = {name: how.pop(name) for name in ("effort", "grows") if name in how}
    made = Search(Recipe(**how), data, validation, seeded(5), **own)
    with pytest.MonkeyPatch.context() as patch:
        if fake is not None:
            fake.install(patch)
        return made.run(given, betas, modes)
