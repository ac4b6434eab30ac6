"""Describe one cell of a comparison and its result."""

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from directgp.datasets.problem import Task

_LIBRARIES = ("directgp", "torch", "gpytorch", "numpy", "scipy", "scikit-learn")


def _version_of(library: str) -> str:
    """Of a library; a source tree that is not installed has none."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


@cache
def versions() -> dict[str, str]:
    """Of Python and the libraries."""
    return {"python": platform.python_version(), **{n: _version_of(n) for n in _LIBRARIES}}


class Frozen(BaseModel):
    """Plain facts, checked when they are read, never changed."""

    # Losses may be infinite, and come back so.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


@final
class Settings(Frozen):
    """How every method is trained."""

    likelihood: str
    kernel: str
    ard: bool = True
    num_inducing: int | None = None
    """None: a quarter of the training rows, from 50 to 100."""

    betas: tuple[float, ...] | None = None
    """None: every second of n, n/2, n/4, …, 0.01, and 1."""

    max_steps: int | None = None
    """Steps of one run; None leaves it to the optimiser."""

    dtype: Literal["float64", "float32"] = "float64"
    device: str = "cpu"


@final
class Cell(Frozen):
    """One method, trained and judged on one split."""

    data: str
    """Fingerprint of the problem."""

    task: Task
    method: str
    repeat: int
    size: int
    """Rows that are trained on."""

    seed: int
    settings: Settings

    @property
    def key(self) -> str:
        """The same for cells that must have the same result; other versions may have another."""
        text = f"{versions()} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()


@final
class BetaPoint(Frozen):
    """One candidate of the grid of β."""

    beta: float
    loss: float
    """Mean validation loss, of the kind that is optimised, in the units of the target."""

    error: float
    """Its standard error."""


@final
class Outcome(Frozen):
    """The result of a cell, but for its predictions."""

    scores: dict[str, float]
    """Means over the test rows, by the names of `directgp.metrics.Score`."""

    num_test: int
    beta: float
    path: tuple[BetaPoint, ...]
    """In falling order of β; empty where β is not chosen."""

    validation_loss: str
    """Name of the loss in the path."""

    curve: tuple[tuple[int, float], ...]
    """(step, objective) of the chosen run, thinned."""

    status: str
    reason: str
    """Why the chosen run stopped."""

    evaluations: int
    seconds: float
    """Of one core; without the ELBO run that it started from."""

    failed: tuple[str, ...] = ()
    """Candidates that could not be trained, and why."""


@final
@dataclass(frozen=True)
class Predictions:
    """Some test rows, for pictures; each array of shape (k,)."""

    actual: NDArray[np.float64]
    mean: NDArray[np.float64]
    """Mean of y; for labels the probability of class 1."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    """Ends of the central 90 % interval."""

    below: NDArray[np.float64]
    up_to: NDArray[np.float64]
    """P(Y < y) and P(Y ≤ y), the same for real numbers."""


@final
@dataclass(frozen=True)
class Finished:
    """What a cell leaves behind."""

    outcome: Outcome
    predictions: Predictions
    model: bytes
    """The ELBO solution, from which others start; empty for them."""


@final
@dataclass(frozen=True)
class Run:
    """A cell that has been run."""

    cell: Cell
    outcome: Outcome
    predictions: Predictions


def seed_of(*numbers: int) -> int:
    """A seed; other numbers give another, independent one."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def generator_of(*numbers: int) -> torch.Generator:
    """A generator of the CPU, so seeded."""
    return torch.Generator().manual_seed(seed_of(*numbers))
