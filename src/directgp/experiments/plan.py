"""Plan a comparison: methods, splits, cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.problem import Problem, Task
from directgp.errors import refuse, require
from directgp.experiments.cell import Cell, Frozen, Run, Settings


@final
@dataclass(frozen=True)
class Method:
    """An objective, what is trained with it, and whether β is chosen."""

    name: str
    """What users type."""

    label: str
    """What tables and pictures call it."""

    objective: str
    """As in `directgp.train`."""

    hyperparameters: Literal["joint", "fixed"]
    chooses_beta: bool
    """By validation; else β = 1."""

    about: str
    """What it does, in one sentence."""

    gaussian_only: bool = False
    """Whether it needs a real-valued target with Gaussian noise."""


_ALL = (
    Method(
        "elbo",
        "ELBO",
        "elbo",
        "joint",
        False,
        "The evidence lower bound, β = 1: the usual way to train a sparse Gaussian process.",
    ),
    Method(
        "beta-elbo",
        "β-ELBO",
        "elbo",
        "joint",
        True,
        "The evidence lower bound with its KL term weighted by β.",
    ),
    Method(
        "fitc",
        "FITC",
        "fitc",
        "joint",
        False,
        "The fully independent training conditional, by its own marginal likelihood.",
        gaussian_only=True,
    ),
    Method(
        "log-joint",
        "log-loss DLM, joint",
        "log_loss",
        "joint",
        True,
        "The log loss of predictions plus β·KL, over everything that can be trained.",
    ),
    Method(
        "log-fixed",
        "log-loss DLM, fixed",
        "log_loss",
        "fixed",
        True,
        "The log loss plus β·KL over q(u) alone; kernel, noise and inducing inputs are the ELBO's.",
    ),
    Method(
        "square-joint",
        "square-loss DLM, joint",
        "square_loss",
        "joint",
        True,
        "The squared error of predictions plus β·KL, over everything that can be trained.",
        gaussian_only=True,
    ),
    Method(
        "square-fixed",
        "square-loss DLM, fixed",
        "square_loss",
        "fixed",
        True,
        "The squared error plus β·KL over q(u) alone; the rest is the ELBO's.",
        gaussian_only=True,
    ),
)

METHODS = {method.name: method for method in _ALL}

ELBO = METHODS["elbo"]
"""Every other method starts from its solution."""


def line_up(
    task: Task, names: Sequence[str] | None = None, likelihood: str = "gaussian"
) -> tuple[Method, ...]:
    """The methods of these names, all that suit task and likelihood unless given, in order."""
    gaussian = task == "regression" and likelihood == "gaussian"
    suited = [method.name for method in _ALL if gaussian or not method.gaussian_only]
    wanted = suited if names is None else list(names)
    require(bool(wanted), "methods", f"at least one of {', '.join(suited)}", "none")
    for name in wanted:
        require(name in suited, "methods", f"of {', '.join(suited)} here", repr(name), _why(name))
    return tuple(METHODS[name] for name in suited if name in wanted)


def _why(name: str) -> str:
    known = name in METHODS
    return f"{METHODS[name].label} needs a real-valued target with Gaussian noise." if known else ""


Rows = NDArray[np.int64]

VALIDATION, TEST = 0.08, 0.25
"""Shares of the table, as in the paper; the rest may be trained on."""

_LEAST_VALIDATION, _MOST_OF_TABLE = 100, 0.2
"""β is chosen by so many rows at least, unless that is more than this share of the table."""

_MOST_VALIDATION, _MOST_TEST = 5_000, 20_000


@final
@dataclass(frozen=True)
class Parts:
    """How many rows go where."""

    training: int
    """At most."""

    validation: int
    test: int


@final
@dataclass(frozen=True)
class Split:
    """The rows of each part."""

    training: Rows
    validation: Rows
    test: Rows


def parts_of(num_rows: int) -> Parts:
    """67/8/25 %, with enough rows to choose by and no more than are needed to judge by."""
    wanted = max(VALIDATION * num_rows, min(_MOST_OF_TABLE * num_rows, _LEAST_VALIDATION))
    validation = min(round(wanted), _MOST_VALIDATION)
    test = min(round(TEST * num_rows), _MOST_TEST)
    return Parts(num_rows - validation - test, validation, test)


def split(problem: Problem, repeat: int, size: int, seed: int) -> Split:
    """One split; those of other sizes have the same test rows, and smaller ones fewer to train on.

    Labels are spread evenly, so that every part has its share of each.
    """
    parts = parts_of(len(problem.y))
    require(1 <= size <= parts.training, "size", f"from 1 to {parts.training}", size)
    generator = np.random.default_rng([seed, repeat])
    strata = problem.y if problem.task == "classification" else np.zeros(len(problem.y))
    order = _spread(strata, generator)
    ends = np.cumsum([parts.test, parts.validation])
    test, validation, rest = np.split(order, ends)
    return Split(rest[:size], validation, test)


def _spread(strata: NDArray[np.float64], generator: np.random.Generator) -> Rows:
    """A random order in which each stratum is spread evenly: its i-th row near i/n of the way."""
    place = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        n = len(members)
        place[members] = (generator.permutation(n) + generator.uniform(size=n)) / n
    return np.argsort(place, kind="stable")


@final
class DataFacts(Frozen):
    """A problem without its numbers."""

    name: str
    source: str
    task: Task
    target: str
    classes: tuple[str, str] | None
    num_rows: int
    feature_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    """What names the data on the command line."""

    @classmethod
    def of(cls, problem: Problem, arguments: Sequence[str] = ()) -> "DataFacts":
        """What there is to say of a problem."""
        return cls(
            name=problem.name,
            source=problem.source,
            task=problem.task,
            target=problem.target,
            classes=problem.classes,
            num_rows=len(problem.y),
            feature_names=problem.feature_names,
            fingerprint=problem.fingerprint(),
            notes=problem.notes,
            arguments=tuple(arguments),
        )


@final
@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    data: DataFacts
    methods: tuple[Method, ...]
    repeats: int
    sizes: tuple[int, ...]
    """Rising."""

    seed: int
    settings: Settings
    parts: Parts

    def cells(self) -> tuple[Cell, ...]:
        """Every cell, in the order in which they are best run: small sizes and the ELBO first."""
        return tuple(
            self.cell(method, repeat, size)
            for size in self.sizes
            for repeat in range(self.repeats)
            for method in sorted(self.methods, key=lambda method: method != ELBO)
        )

    def cell(self, method: Method, repeat: int, size: int) -> Cell:
        """One of the cells."""
        return Cell(
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
class FailedCell:
    """A cell that could not be run."""

    cell: Cell
    reason: str


@final
@dataclass(frozen=True)
class Comparison:
    """All that a report tells."""

    plan: Plan
    runs: tuple[Run, ...]
    failed: tuple[FailedCell, ...]
    versions: dict[str, str]
    """Of directgp, Python and the libraries that decide the numbers."""

    machine: str
    """Processor, number of cores and device, in words."""

    command: str
    """What repeats it."""

    began: str
    """Date and time, UTC."""

    seconds: float
    """Wall time of this run; what was finished in earlier ones is not in it."""


MOST_ROWS = 20_000
"""Trained on unless sizes are named: more take hours."""

FEWEST_ROWS = 10

LIKELIHOODS: dict[Task, tuple[str, ...]] = {
    "regression": ("gaussian", "student_t"),
    "classification": ("probit", "logistic"),
    "count": ("poisson", "poisson_softplus", "negative_binomial"),
}
"""The first is the usual one."""


def make_plan(
    problem: Problem,
    *,
    methods: Sequence[str] | None = None,
    repeats: int = 5,
    sizes: Sequence[int | None] | None = None,
    betas: Sequence[float] | None = None,
    likelihood: str | None = None,
    kernel: str = "rbf",
    ard: bool = True,
    num_inducing: int | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    dtype: Literal["float64", "float32"] = "float64",
    device: str = "cpu",
    arguments: Sequence[str] = (),
) -> Plan:
    """What is to be run to compare methods on a problem.

    Parameters
    ----------
    problem : Problem
        The data.
    methods : sequence of str
        Of "elbo", "beta-elbo", "fitc", "log-joint", "log-fixed", "square-joint", "square-fixed";
        all that suit task and likelihood unless given.
    repeats : int
        Random splits.
    sizes : sequence of int or None
        Numbers of rows to train on, None for all; all up to 20,000 unless given.
    betas : sequence of float
        To choose from; every second of n, n/2, n/4, …, 0.01, and 1 unless given.
    likelihood : str
        By the names of the estimators; Gaussian, probit or Poisson unless given.
    kernel, ard, num_inducing, max_steps
        As `kernel`, `ard`, `num_inducing` and `max_iter` of the estimators.
    seed : int
        Of splits and starting points.
    dtype : {"float64", "float32"}
        Precision of training; predictions are judged in float64.
    device : str
        "cpu" or "cuda".
    arguments : sequence of str
        What names the data on the command line.
    """
    task = problem.task
    require(repeats >= 1, "repeats", "at least 1", repeats)
    for name, given in (("num_inducing", num_inducing), ("max_steps", max_steps)):
        require(given is None or given >= 1, name, "at least 1", given)
    for option, several in (("sizes", sizes), ("betas", betas)):
        require(several is None or len(several) > 0, option, "of at least one value", "none")
    noise = chosen_likelihood(task, likelihood)
    parts = parts_of(len(problem.y))
    return Plan(
        data=DataFacts.of(problem, arguments),
        methods=line_up(task, methods, noise),
        repeats=repeats,
        sizes=_sizes(sizes, parts.training),
        seed=seed,
        settings=Settings(
            likelihood=noise,
            kernel=kernel,
            ard=ard and problem.X.shape[1] > 1,
            num_inducing=num_inducing,
            betas=None if betas is None else tuple(betas),
            max_steps=max_steps,
            dtype=dtype,
            device=device,
        ),
        parts=parts,
    )


def chosen_likelihood(task: Task, name: str | None) -> str:
    """The one that is named, or the usual one of the task."""
    allowed = LIKELIHOODS[task]
    if name is not None and name not in allowed:
        refuse("likelihood", f"{' or '.join(allowed)} for {task}", repr(name))
    return name or allowed[0]


def _sizes(sizes: Sequence[int | None] | None, most: int) -> tuple[int, ...]:
    if sizes is None:
        return (min(most, MOST_ROWS),)
    for size in sizes:
        require(
            size is None or FEWEST_ROWS <= size <= most,
            "sizes",
            f"'all' or from {FEWEST_ROWS} to {most}, the rows of this table to train on",
            size,
        )
    return tuple(sorted({most if size is None else size for size in sizes}))
