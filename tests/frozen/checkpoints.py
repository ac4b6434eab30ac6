"""Runs that are stopped halfway and resumed from their checkpoint."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

import directgp
from directgp.likelihoods import Gaussian, Poisson
from directgp.posteriors import Prior, SparsePosterior
from directgp.training import Checkpoints, Monitor, Progress, Status, Stop, TrainingResult
from tests.frozen.golden import FOLDER

CHECKPOINTS = FOLDER / "checkpoints"

_EVERY = 20
"""Steps between two writes."""

RUNS: dict[str, dict[str, Any]] = {
    "lbfgs": {"beta": 8.0},
    "adam": {
        "beta": 0.25,
        "rule": "bmc",
        "optimizer": "adam",
        "batch_size": 16,
        "learning_rate": 0.0625,
        "max_steps": 40,
        "start": "scratch",
    },
}
"""L-BFGS on real values, after an ELBO stage; Adam on counts, with samples and batches."""

STOPPED_AT = {"lbfgs": ("log_loss", 65), "adam": ("log_loss", 23)}
"""Stage and step at which the writer stopped each run."""

KEPT_AT = {"lbfgs": 60, "adam": 20}
"""Step of that stage which the checkpoint holds."""


@dataclass
class Watch(Monitor):
    """Counts the steps that are run in each stage, and stops at one of them."""

    stage: str = ""
    step: int = 0
    steps_run: Counter[str] = field(default_factory=Counter)

    def __call__(self, progress: Progress) -> Stop | None:
        # A resumed run shows the steps of the checkpoint once more, without any evaluation.
        self.steps_run[progress.stage] += progress.evaluations > 0
        if (progress.stage, progress.step) == (self.stage, self.step):
            return Stop(Status.CANCELLED, "The test stops it here.")
        return None

    def reset(self) -> None:
        pass


def run(name: str, path: Path | None, watch: Watch) -> TrainingResult:
    """Train from the start, or from the checkpoint at the path."""
    X, y = _data(counts=name == "adam")
    likelihood = Poisson() if name == "adam" else Gaussian(0.25)
    posterior = SparsePosterior(Prior(RBFKernel()), X[::6].clone())
    for model in (posterior, likelihood):
        _round(model)
    return directgp.train(
        posterior,
        likelihood,
        X,
        y,
        monitors=[watch],
        checkpoints=None if path is None else Checkpoints(path, every=_EVERY),
        generator=torch.Generator().manual_seed(5),
        **RUNS[name],
    )


def _data(counts: bool) -> tuple[Tensor, Tensor]:
    """Return 48 rows of two features and a target, all multiples of 1/64.

    A checkpoint belongs to the exact bits of its data, and these are the same on every machine.
    """
    index = torch.arange(48, dtype=torch.float64)
    X = torch.stack([index * 37 % 192 - 96, index * 61 % 128 - 64], -1) / 64
    noise = (index * 29 % 23 - 11) / 64
    y = X[:, 0] * (2.25 - X[:, 0] ** 2) + noise
    return X, (y + 1.5).clamp_min(0).round() if counts else (y * 64).round() / 64


def _round(model: torch.nn.Module) -> None:
    """Round the parameters to multiples of 1/64, for the same reason."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 64).round() / 64)


def described(result: TrainingResult) -> dict[str, Any]:
    """Return how a run ended, as a JSON document."""
    return {
        "loss": result.loss,
        "steps": [each.steps for each in result.stages],
        "status": str(result.status),
        "objective": result.objective,
        "beta": result.beta,
        "hyperparameters": result.hyperparameters,
        "stages": [[each.stage, str(each.status)] for each in result.stages],
        "mean": result.posterior.marginals(_data(False)[0][:4]).mean.tolist(),
    }
