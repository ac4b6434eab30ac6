"""Training runs that the checkpoint tests kill."""

import time
from pathlib import Path
from typing import Any

import torch

import directgp
from directgp.likelihoods import Gaussian
from directgp.training import Checkpoints, Monitor, Progress, TrainingResult
from directgp.training.run import LossRange
from tests.unit.training.models import regression, seeded, start

EVERY, STEPS = 10, 50
KINDS: dict[str, dict[str, Any]] = {
    "lbfgs": {},
    "fixed": {"hyperparameters": "fixed"},
    "frozen": {"rule": "bmc", "optimizer": "lbfgs", "start": "scratch"},
    "adam": {"optimizer": "adam", "batch_size": 16, "start": "scratch"},
    "bmc": {"rule": "bmc", "optimizer": "adam", "start": "scratch"},
}


class Rest(Monitor):
    """Sleeps at a step of the last stage, so that the run is not over before it is killed."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, progress: Progress) -> None:
        if progress.stage == "log_loss" and progress.step == self.step:
            time.sleep(300)

    def reset(self) -> None:
        pass


def fit(kind: str, path: Path, **settings: Any) -> TrainingResult:
    """Runs to its last step, whatever the losses."""
    X, y = regression()
    given: dict[str, Any] = {
        "beta": 0.3,
        "max_steps": STEPS,
        "stopping": LossRange(window=10**6, tolerance=0.0),
        "generator": seeded(5),
        "checkpoints": Checkpoints(path, every=EVERY),
    }
    return directgp.train(start(X, y), Gaussian(0.1), X, y, **given | KINDS[kind] | settings)


def fit_alone(kind: str, path: Path, rest: int) -> None:
    """`fit` in a process of its own, on one thread: sums of more are added in another order."""
    torch.set_num_threads(1)
    fit(kind, path, monitors=[Rest(rest)])
