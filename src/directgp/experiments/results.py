"""What is known when a cell has been run."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.experiments.cells import Cell, Frozen


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
