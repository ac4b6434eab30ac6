"""Fake runs of a search with known validation losses."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from directgp.errors import NumericalError
from directgp.likelihoods import Likelihood
from directgp.objectives.base import PointLoss
from directgp.training import search
from directgp.training.data import Data, Model
from directgp.training.result import StageResult, Status, TrainingResult
from directgp.training.run import Recipe
from directgp.training.trainer import Trainer
from directgp.training.validation import Split

Loss = Callable[[str, float], float]


@dataclass(frozen=True)
class Call:
    """What a run was asked for."""

    mode: str
    beta: float
    data: Data
    likelihood: Likelihood
    recipe: Recipe
    start: object
    """Where its posterior comes from: the parameters of the mean of q(u)."""


@dataclass
class FakeRuns:
    """Stands in for the three runs; a run leaves the posterior as it was given."""

    loss: Loss = lambda mode, beta: 0.0
    failing: Collection[tuple[str, float]] = ()
    ending: Collection[tuple[str, float]] = ()
    calls: list[Call] = field(default_factory=list)
    judged: list[Split] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeRuns":
        monkeypatch.setattr(search, "elbo_run", self._elbo)
        monkeypatch.setattr(search, "fixed_run", self._fixed)
        monkeypatch.setattr(search, "joint_run", self._joint)
        monkeypatch.setattr(Split, "losses", lambda split, *how: self._losses(split, *how))
        return self

    def asked(self, mode: str) -> list[float]:
        """The values of β that runs of a mode had, in the order of time."""
        return [call.beta for call in self.calls if call.mode == mode]

    def _elbo(self, trainer: Trainer, recipe: Recipe, model: Model, near: bool = False) -> Any:
        return self._ran("elbo", trainer, recipe, model, 1.0)

    def _fixed(
        self, trainer: Trainer, recipe: Recipe, base: Any, beta: float, near: Any = None
    ) -> Any:
        posterior = base.posterior if near is None else near.posterior
        return self._ran("fixed", trainer, recipe, Model(posterior, base.likelihood), beta)

    def _joint(self, trainer: Trainer, recipe: Recipe, model: Model, beta: float) -> Any:
        return self._ran("joint", trainer, recipe, model, beta)

    def _ran(
        self, mode: str, trainer: Trainer, recipe: Recipe, model: Model, beta: float
    ) -> TrainingResult:
        posterior, likelihood, _ = model
        self.calls.append(Call(mode, beta, trainer.data, likelihood, recipe, posterior))
        if (mode, beta) in self.failing:
            raise NumericalError(f"{mode} at {beta:g} cannot be trained.")
        ends = (mode, beta) in self.ending
        status = Status.CANCELLED if ends else Status.CONVERGED
        loss = self.loss(mode, beta)
        stage = StageResult(mode, status, "So it is.", 1, 1, loss, (loss,), 0.0, (), ends)
        return TrainingResult(posterior, likelihood, "log_loss", beta, mode, (stage,), 0.0)

    def _losses(self, split: Split, result: TrainingResult, loss: PointLoss) -> Tensor:
        self.judged.append(split)
        return torch.full((len(split.validation),), self.loss(result.hyperparameters, result.beta))
