"""Plan a comparison of methods: its cells, and what their results make up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

from directgp.datasets.problem import Problem
from directgp.errors import refuse, require
from directgp.estimators.kernel_expressions import is_text
from directgp.experiments.cell import ELBO, FailedRecord, Frozen, Method, methods_to_compare
from directgp.experiments.compare_cell import CompareCell, ComparedFit, Settings
from directgp.experiments.splits import Parts, parts_of
from directgp.registry import LIKELIHOODS, KernelName, Task, chosen_likelihood, likelihoods_of


@final
class DataFacts(Frozen):
    """The description of a problem, without its numbers."""

    name: str
    """Name of the data set."""

    source: str
    """The table as the user named it."""

    task: Task
    """Kind of the targets."""

    target: str
    """Name of the target."""

    classes: tuple[str, ...] | None
    """Names of classes; None for numbers."""

    num_rows: int
    """Rows of the table."""

    feature_names: tuple[str, ...]
    """Names of the features."""

    fingerprint: str
    """Hash of the numbers."""

    notes: tuple[str, ...]
    """What was done with the table."""

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
    """The problem."""

    methods: tuple[Method, ...]
    """The methods, in table order."""

    repeats: int
    """Number of splits."""

    sizes: tuple[int, ...]
    """Numbers of training rows, rising."""

    seed: int
    """Seed of splits and starting points."""

    settings: Settings
    """What all methods share."""

    parts: Parts
    """Numbers of rows of the parts of a split."""

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
    """The finished cells."""

    failed: tuple[FailedRecord[CompareCell], ...]
    """The cells that failed."""

    versions: dict[str, str]
    """Versions of directgp, Python and the libraries that affect the numbers."""

    machine: str
    """Processor, number of workers and device."""

    command: str
    """The command that repeats the comparison."""

    began: str
    """Date and time, UTC, when this run began."""

    seconds: float
    """Wall time of this run, without the cells that were finished before."""

    repeats_asked: int | None = None
    """Number of repeats asked for, where the time budget ended the comparison before them."""

    damaged: int = 0
    """Stored results that did not match their checksums, and were run again."""


_MAX_ROWS = 20_000
"""Default bound of the training rows: more take hours."""

_MIN_ROWS = 10
"""Smallest number of training rows."""


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
        A name of the estimators; by default chosen by the validation rows of each split.
    kernel, ard
        The same; "auto" and None are chosen. A kernel may be the text of an expression.
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
    require(seed >= 0, "seed", "at least 0", seed)
    require(dtype in ("float64", "float32"), "dtype", "'float64' or 'float32'", repr(dtype))
    require(device in ("cpu", "cuda"), "device", "'cpu' or 'cuda'", repr(device))
    for name, number in (("num_inducing", num_inducing), ("max_steps", max_steps)):
        require(number is None or number >= 1, name, "at least 1", number)
    for option, values in (("sizes", sizes), ("betas", betas)):
        require(values is None or len(values) > 0, option, "of at least one value", "none")
    for beta in betas or ():
        require(0 <= beta < math.inf, "betas", "finite numbers of at least 0", beta)
    kernels = ("auto", *get_args(KernelName))
    expression = is_text(kernel)
    require(kernel in kernels or expression, "kernel", f"one of {', '.join(kernels)}", repr(kernel))
    candidates = likelihoods_of(task, True, problem.num_classes)
    several = likelihood is None and len(candidates) > 1
    noise = "auto" if several else chosen_likelihood(task, likelihood, problem.num_classes)
    if noise != "auto" and LIKELIHOODS[noise].load().rows.required:
        argument = LIKELIHOODS[noise].load().rows.argument
        got = f"{noise!r}, which needs {argument}"
        refuse("likelihood", "one without a constant of each row", got, "Use directgp fit.")
    require(not expression or ard is None, "ard", "left out with an expression", ard)
    one_feature = problem.X.shape[1] == 1 and not expression
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
