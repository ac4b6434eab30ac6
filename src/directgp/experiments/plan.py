"""Plan a comparison of methods: its cells, its splits, and its results."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from directgp.datasets.problem import Problem
from directgp.errors import refuse, require
from directgp.experiments.cell import (
    BASIC,
    DEFAULT,
    ELBO,
    Cell,
    FailedRecord,
    Frozen,
    Method,
    Record,
    TrainingOutcome,
    method_named,
    methods_to_compare,
)
from directgp.io import versions
from directgp.metrics import one_against_rest
from directgp.registry import LIKELIHOODS, Task, chosen_likelihood, likelihoods_of


@final
class Settings(Frozen):
    """The settings that all methods share."""

    likelihood: str
    kernel: str
    ard: bool | Literal["auto"] = True
    """Of the model; "auto" is chosen by evidence on the training rows of each split."""

    num_inducing: int | None = None
    betas: tuple[float, ...] | None = None
    max_steps: int | None = None
    """None: a quarter of the training rows, from 50 to 100; every second of n, n/2, n/4, …, 0.01,
    and 1; as many as lower the objective."""

    dtype: Literal["float64", "float32"] = "float64"
    device: str = "cpu"


@final
class ModelFacts(Frozen):
    """The model of a Gaussian process."""

    likelihood: str
    kernel: str
    ard: bool

    def __str__(self) -> str:
        kind = f"{self.kernel} ARD" if self.ard else self.kernel
        return f"{self.likelihood}, {kind}"


@final
class BetaLoss(Frozen):
    """The validation loss of one β."""

    beta: float
    loss: float
    error: float
    """Mean validation loss, of the kind that is optimised, in the units of the target, and its
    standard error."""


@final
class CompareOutcome(TrainingOutcome):
    """The numbers of a `CompareCell`; its predictions are stored as arrays."""

    path: tuple[BetaLoss, ...]
    validation_loss: str
    """Losses by falling β, empty where β is not chosen, and the name of the loss."""

    curve: tuple[tuple[int, float], ...]
    """(step, objective) of the chosen run, thinned."""

    model: ModelFacts | None = None
    """None for methods without a Gaussian process."""


_RUNS_OF_FIT = 5.0
"""The time of `directgp fit`, relative to that of one objective."""


@final
class CompareCell(Cell):
    """One method, trained and scored on one split."""

    outcome_type = CompareOutcome

    data: str
    """Fingerprint of the problem."""

    task: Task
    method: str
    repeat: int
    size: int
    seed: int
    settings: Settings

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
        method, given = method_named(self.method), self.settings
        if method in (ELBO, DEFAULT) or method.kind == "baseline":
            return None
        if method.gaussian_only and given.likelihood == "auto":
            return self.replace(method=BASIC.name)
        chosen = "auto" in (given.likelihood, given.kernel, given.ard)
        return self.replace(method=ELBO.name) if chosen or method.chooses_beta else None

    @property
    @override
    def expected_seconds(self) -> float:
        """Of a core; measured on tables of 100 to 10,000 rows with about 10 features."""
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
    mean: NDArray[np.float64]
    """Mean of y; for labels the probability of class 1, or the mean of the class number."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    """Ends of the central 90 % interval."""

    below: NDArray[np.float64]
    up_to: NDArray[np.float64]
    """P(Y < y) and P(Y ≤ y), the same for real numbers."""

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
    curves: NDArray[np.float64]
    """Partial dependence on the most important features, shape (k, 4, points): grid, mean, and
    ends of the interval, filled up with NaN; none but in the first repeat. Three or more classes
    have mean and ends of each, shape (k, 1 + 3·number of classes, points)."""


@final
@dataclass(frozen=True)
class ComparedFit:
    """A finished cell of a comparison."""

    cell: CompareCell
    outcome: CompareOutcome
    predictions: Predictions
    explanation: Explanation | None = None
    """None without a Gaussian process."""

    @classmethod
    def of(cls, record: Record[CompareCell, CompareOutcome]) -> "ComparedFit":
        """Return the fit of a record of the store; early ones have no explanation."""
        arrays, own = record.arrays, [f.name for f in fields(Explanation)]
        found = {name: arrays[name] for name in own if name in arrays}
        names = [f.name for f in fields(Predictions) if f.name in arrays]
        predictions = Predictions(**{name: arrays[name] for name in names})
        explanation = Explanation(**found) if found else None
        return cls(record.cell, record.outcome, predictions, explanation)


Rows = NDArray[np.int64]

VALIDATION, TEST = 0.08, 0.25
"""Shares of the table, as in the paper; the rest is for training."""

_MIN_VALIDATION = 100
"""Rows needed to choose β."""

_MAX_VALIDATION_SHARE = 0.2
"""Upper bound of the validation share in small tables; it precedes `_MIN_VALIDATION`."""

_MAX_VALIDATION, _MAX_TEST = 5_000, 20_000
"""Rows in large tables; more would not change a score by much."""


@final
@dataclass(frozen=True)
class Parts:
    """Numbers of rows of each part of a split."""

    training: int
    """Upper bound of the training rows."""

    validation: int
    test: int


def parts_of(num_rows: int) -> Parts:
    """Return 67/8/25 % of the rows, adjusted for small and for large tables."""
    wanted = max(VALIDATION * num_rows, min(_MAX_VALIDATION_SHARE * num_rows, _MIN_VALIDATION))
    validation = min(round(wanted), _MAX_VALIDATION)
    test = min(round(TEST * num_rows), _MAX_TEST)
    return Parts(num_rows - validation - test, validation, test)


def split(problem: Problem, repeat: int, size: int, seed: int) -> tuple[Rows, Rows, Rows]:
    """Return training, validation and test rows of a random split, stratified by class.

    All sizes of a repeat have the same test and validation rows, and the training rows of a
    smaller size are among those of a larger one.
    """
    parts = parts_of(len(problem.y))
    require(1 <= size <= parts.training, "size", f"from 1 to {parts.training}", size)
    generator = np.random.default_rng([seed, repeat])
    strata = problem.y if problem.task == "classification" else np.zeros(len(problem.y))
    order = _stratified_order(strata, generator)
    test, validation, rest = np.split(order, np.cumsum([parts.test, parts.validation]))
    return rest[:size], validation, test


def _stratified_order(strata: NDArray[np.float64], generator: np.random.Generator) -> Rows:
    """Return a random order in which the i-th row of a stratum of n is near i/n of the way."""
    place = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        n = len(members)
        place[members] = (generator.permutation(n) + generator.uniform(size=n)) / n
    return np.argsort(place, kind="stable")


@final
class DataFacts(Frozen):
    """The description of a problem, without its numbers."""

    name: str
    source: str
    task: Task
    target: str
    classes: tuple[str, ...] | None
    num_rows: int
    feature_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    """Words of the command line that name the data."""

    @classmethod
    def of(cls, problem: Problem, arguments: Sequence[str] = ()) -> "DataFacts":
        """Return the description of a problem."""
        same = ("name", "source", "task", "target", "classes", "feature_names", "notes")
        return cls(
            **{name: getattr(problem, name) for name in same},
            num_rows=len(problem.y),
            fingerprint=problem.fingerprint(),
            arguments=tuple(arguments),
        )


@final
@dataclass(frozen=True)
class Plan:
    """The cells of a comparison."""

    data: DataFacts
    methods: tuple[Method, ...]
    repeats: int
    sizes: tuple[int, ...]
    """Numbers of training rows, rising."""

    seed: int
    settings: Settings
    parts: Parts

    def cells(self) -> tuple[CompareCell, ...]:
        """Return all cells in the order to run them: by repeat, ELBO before the others."""
        return tuple(
            self.cell(method, repeat, size)
            for repeat in range(self.repeats)
            for size in self.sizes
            for method in sorted(self.methods, key=lambda method: method != ELBO)
        )

    def cell(self, method: Method, repeat: int, size: int) -> CompareCell:
        """Return one cell."""
        return CompareCell(
            data=self.data.fingerprint,
            task=self.data.task,
            method=method.name,
            repeat=repeat,
            size=size,
            seed=self.seed,
            settings=self.settings,
        )


@final
@dataclass(frozen=True)
class Comparison:
    """The results of a plan."""

    plan: Plan
    """With the repeats that are complete, or one, if the time was spent."""

    runs: tuple[ComparedFit, ...]
    failed: tuple[FailedRecord[CompareCell], ...]
    versions: dict[str, str]
    """Versions of directgp, Python and the libraries that affect the numbers."""

    machine: str
    command: str
    """Processor, number of workers and device; the command that repeats the comparison."""

    began: str
    seconds: float
    """Date and time, UTC, and wall time of this run, without the cells that were finished
    before."""

    repeats_asked: int | None = None
    """Number of repeats asked for, where the time budget ended the comparison before them."""

    damaged: int = 0
    """Stored results that did not match their checksums, and were run again."""


_MAX_ROWS = 20_000
"""Default bound of the training rows: more take hours."""

_MIN_ROWS = 10


def make_plan(
    problem: Problem,
    *,
    methods: Sequence[str] | None = None,
    repeats: int = 5,
    sizes: Sequence[int | None] | None = None,
    betas: Sequence[float] | None = None,
    likelihood: str | None = None,
    kernel: str = "auto",
    ard: bool | None = None,
    num_inducing: int | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    dtype: Literal["float64", "float32"] = "float64",
    device: str = "cpu",
    arguments: Sequence[str] = (),
) -> Plan:
    """Plan a comparison of methods on a problem.

    Parameters
    ----------
    problem : Problem
        The data.
    methods : sequence of str
        Of "elbo", "beta-elbo", "fitc", "log-joint", "log-fixed", "square-joint", "square-fixed",
        "elbo-basic", "auto", "mean", "linear" and "boosting"; by default all that suit task and
        likelihood. Other point losses have methods too, such as "crps-joint" and "crps-fixed".
    repeats : int
        Number of random splits.
    sizes : sequence of int or None
        Numbers of training rows, None for all; by default all, up to 20,000.
    betas : sequence of float
        Candidates of β; by default every second of n, n/2, n/4, …, 0.01, and 1.
    likelihood : str
        A name of the estimators; by default chosen by evidence on each split.
    kernel, ard
        The same; "auto" and None are chosen.
    num_inducing, max_steps
        As `num_inducing` and `max_iter` of the estimators.
    seed : int
        Seed of splits and starting points.
    dtype : {"float64", "float32"}
        Precision of training; predictions are scored in float64.
    device : str
        "cpu" or "cuda".
    arguments : sequence of str
        Words of the command line that name the data.
    """
    task = problem.task
    require(repeats >= 1, "repeats", "at least 1", repeats)
    for name, given in (("num_inducing", num_inducing), ("max_steps", max_steps)):
        require(given is None or given >= 1, name, "at least 1", given)
    for option, given_list in (("sizes", sizes), ("betas", betas)):
        require(given_list is None or len(given_list) > 0, option, "of at least one value", "none")
    candidates = likelihoods_of(task, True, problem.num_classes)
    several = likelihood is None and len(candidates) > 1
    noise = "auto" if several else chosen_likelihood(task, likelihood, problem.num_classes)
    if noise != "auto" and LIKELIHOODS[noise].load().rows.required:
        argument = LIKELIHOODS[noise].load().rows.argument
        got = f"{noise!r}, which needs {argument}"
        refuse("likelihood", "one without a constant of each row", got, "Use directgp fit.")
    one_feature = problem.X.shape[1] == 1
    parts = parts_of(len(problem.y))
    return Plan(
        data=DataFacts.of(problem, arguments),
        methods=methods_to_compare(task, methods, noise),
        repeats=repeats,
        sizes=_sizes(sizes, parts.training),
        seed=seed,
        settings=Settings(
            likelihood=noise,
            kernel=kernel,
            ard=False if one_feature else "auto" if ard is None else ard,
            num_inducing=num_inducing,
            betas=None if betas is None else tuple(betas),
            max_steps=max_steps,
            dtype=dtype,
            device=device,
        ),
        parts=parts,
    )


def _sizes(sizes: Sequence[int | None] | None, available: int) -> tuple[int, ...]:
    if sizes is None:
        return (min(available, _MAX_ROWS),)
    for size in sizes:
        require(
            size is None or _MIN_ROWS <= size <= available,
            "sizes",
            f"'all' or from {_MIN_ROWS} to {available}, the rows of this table to train on",
            size,
        )
    return tuple(sorted({available if size is None else size for size in sizes}))
