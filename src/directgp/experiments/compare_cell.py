"""Define the cells of a comparison: what is asked for, and the results of a finished cell."""

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from directgp.environment import versions
from directgp.experiments.cell import (
    BASIC,
    DEFAULT,
    ELBO,
    Cell,
    Frozen,
    Record,
    TrainingOutcome,
    method_named,
)
from directgp.metrics import one_against_rest
from directgp.registry import Task


@final
class Settings(Frozen):
    """Settings that all methods of a comparison share."""

    likelihood: str
    """Name; "auto" is chosen by the validation rows of each split."""

    kernel: str
    """Name, or text of an expression; "auto" is chosen by the validation rows of each split."""

    ard: bool | Literal["auto"] = True
    """Lengthscale for each feature; "auto" is chosen by the validation rows."""

    num_inducing: int | None = None
    """Inducing inputs; None for a quarter of the training rows, from 50 to 100, or as many as
    `directgp fit` chooses."""

    betas: tuple[float, ...] | None = None
    """Candidates of β; None for every second of n, n/2, n/4, …, 0.01, and 1."""

    max_steps: int | None = None
    """Steps of a run; None for as many as lower the objective."""

    dtype: Literal["float64", "float32"] = "float64"
    """Precision of training."""

    device: str = "cpu"
    """Device of training."""


@final
class ModelFacts(Frozen):
    """The model of a Gaussian process."""

    likelihood: str
    """Name."""

    kernel: str
    """Name, or text of an expression, with positions of columns if they have no names."""

    ard: bool | Literal["auto"]
    """Whether each feature has a lengthscale of its own; "auto" for an expression."""

    def __str__(self) -> str:
        kind = f"{self.kernel} ARD" if self.ard is True else self.kernel
        return f"{self.likelihood}, {kind}"


@final
class StoredMember(Frozen):
    """A Gaussian process of a mixture."""

    label: str
    """Kernel, likelihood, mode and β in words."""

    weight: float
    """Weight in the mixture."""

    stacked: bool
    """Whether predictions of boosted trees are among its features."""


@final
class BetaLoss(Frozen):
    """The validation loss of one β."""

    beta: float
    """Weight of the KL term."""

    loss: float
    """Mean validation loss, of the kind that is optimised, in the units of the target."""

    error: float
    """Standard error of the loss."""


@final
class CompareOutcome(TrainingOutcome):
    """The numbers of a `CompareCell`; its predictions are stored as arrays."""

    path: tuple[BetaLoss, ...]
    """Losses by falling β; empty where β is not chosen."""

    validation_loss: str
    """Name of the validation loss."""

    curve: tuple[tuple[int, float], ...]
    """(step, objective) of the chosen run, thinned."""

    model: ModelFacts | None = None
    """None for methods without a single Gaussian process."""

    members: tuple[StoredMember, ...] = ()
    """The mixture of `directgp fit`, the heaviest first; empty for other methods."""


_RUNS_OF_FIT = 5.0
"""Ratio of the time of `directgp fit` to the time of one objective."""


@final
class CompareCell(Cell):
    """One method, trained and scored on one split."""

    outcome_type = CompareOutcome

    data: str
    """Fingerprint of the problem."""

    task: Task
    """Kind of the targets."""

    method: str
    """Name of the method."""

    repeat: int
    """Number of the split, from 0."""

    size: int
    """Training rows."""

    seed: int
    """Seed of the splits and of training."""

    settings: Settings
    """What all methods share."""

    @property
    @override
    def key(self) -> str:
        """The sha256 of all fields and of the versions of the libraries."""
        text = f"{versions()} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    @override
    def start(self) -> "CompareCell | None":
        """The ELBO of the same split, for methods that take its solution or its model."""
        method = method_named(self.method)
        settings = self.settings
        if method in (ELBO, DEFAULT) or method.kind == "baseline":
            return None
        if method.gaussian_only and settings.likelihood == "auto":
            return self.replace(method=BASIC.name)
        chosen = "auto" in (settings.likelihood, settings.kernel, settings.ard)
        return self.replace(method=ELBO.name) if chosen or method.chooses_beta else None

    @property
    @override
    def expected_seconds(self) -> float:
        """Seconds of one core, from times of tables of 100 to 10,000 rows with 10 features."""
        method = method_named(self.method)
        if self.settings.device != "cpu":
            return math.nan
        runs = 0.1 if method.kind == "baseline" else _RUNS_OF_FIT if method is DEFAULT else 1.0
        return runs * (1.0 + 1.2 * self.size / 1000)

    @property
    @override
    def title(self) -> str:
        return f"{self.group}, {self.size:,} rows, repeat {self.repeat + 1}"

    @property
    @override
    def group(self) -> str:
        return method_named(self.method).label


@final
@dataclass(frozen=True)
class Predictions:
    """Predictions of some test rows, for figures; each array of shape (k,)."""

    actual: NDArray[np.float64]
    """Targets."""

    mean: NDArray[np.float64]
    """Mean of y; for labels the probability of class 1, or the mean of the class number."""

    lower: NDArray[np.float64]
    """Lower end of the central 90 % interval."""

    upper: NDArray[np.float64]
    """Upper end of the central 90 % interval."""

    below: NDArray[np.float64]
    """P(Y < y)."""

    up_to: NDArray[np.float64]
    """P(Y ≤ y), for real numbers the same as P(Y < y)."""

    chances: NDArray[np.float64] | None = None
    """Probabilities of three or more classes, shape (k, number of classes)."""

    def one_against_rest(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return 1 or 0 and its probability for each class; of two classes for the second."""
        if self.chances is None:
            return self.actual, self.mean
        return one_against_rest(self.actual, self.chances)


@final
@dataclass(frozen=True)
class Explanation:
    """How a model uses its d features."""

    importance: NDArray[np.float64]
    """Increase of the mean NLL of test rows when a feature is shuffled, shape (d,)."""

    relevance: NDArray[np.float64]
    """`feature_importances_`, shape (d,); empty without ARD."""

    features: NDArray[np.int64]
    """The most important features, shape (k,)."""

    curves: NDArray[np.float64]
    """Partial dependence on the most important features, shape (k, 4, points): grid, mean, and
    ends of the interval, filled up with NaN; none but in the first repeat. Three or more classes
    have mean and ends of each, shape (k, 1 + 3·number of classes, points)."""


@final
@dataclass(frozen=True)
class ComparedFit:
    """A finished cell of a comparison."""

    cell: CompareCell
    """What was asked for."""

    outcome: CompareOutcome
    """Numbers of the fit."""

    predictions: Predictions
    """Predictions of test rows."""

    explanation: Explanation | None = None
    """None without a Gaussian process."""

    @classmethod
    def of(cls, record: Record[CompareCell, CompareOutcome]) -> "ComparedFit":
        """Return the fit of a record of the store; early ones have no explanation."""
        arrays = record.arrays
        columns = [f.name for f in fields(Predictions) if f.name in arrays]
        parts = [f.name for f in fields(Explanation) if f.name in arrays]
        return cls(
            cell=record.cell,
            outcome=record.outcome,
            predictions=Predictions(**{name: arrays[name] for name in columns}),
            explanation=Explanation(**{name: arrays[name] for name in parts}) if parts else None,
        )
