"""From what is asked to a plan."""

from collections.abc import Sequence
from typing import Literal

from directgp.datasets.problem import Problem, Task
from directgp.errors import refuse, require
from directgp.experiments.cells import Settings
from directgp.experiments.comparison import DataFacts, Plan
from directgp.experiments.methods import line_up
from directgp.experiments.splits import parts_of

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
