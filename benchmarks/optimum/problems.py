"""Problems of the benchmark, and the training settings of each library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.datasets import TASKS, Part, Split, load, split
from benchmarks.models import starting_model
from benchmarks.optimum.jobs import Given, Settings

ROWS = {"abalone": None, "banana": None, "pol": 3000}
"""Rows to train on; None is all that the paper trains on."""

LIBRARIES = ("directgp", "gpytorch", "gpflow", "gpjax")


@dataclass(frozen=True)
class Problem:
    """A data set, an objective and β."""

    data: str
    objective: Literal["elbo", "log_loss"]
    beta: float = 1.0

    @property
    def name(self) -> str:
        """Return the name for tables."""
        return "ELBO" if self.objective == "elbo" else f"log loss, β = {self.beta:g}"


PROBLEMS = tuple(
    problem
    for data in ROWS
    for problem in (
        Problem(data, "log_loss", 1.0),
        Problem(data, "log_loss", 0.1),
        Problem(data, "elbo"),
    )
)


def parts_of(folder: Path, data: str, seed: int, rows: int | None = None) -> Split:
    """Return the parts of a data set."""
    return split(data, *load(folder, data), seed, rows or ROWS[data])


def given_of(problem: Problem, training: Part, seed: int) -> Given:
    """Return the common start: Z and hyperparameters from our defaults."""
    task = TASKS[problem.data]
    posterior, likelihood = starting_model(task, training, seed)
    prior = posterior.prior
    constant = getattr(prior.mean_function, "constant", None)
    noise = getattr(likelihood, "noise", None)
    return Given(
        kind=task.kind,
        objective=problem.objective,
        beta=problem.beta,
        X=training.X.numpy(),
        y=training.y.numpy(),
        Z=posterior.Z.detach().numpy(),
        lengthscale=prior.kernel.lengthscale.item(),
        output_scale=prior.scale.item(),
        mean=None if constant is None else constant.item(),
        noise=0.0 if noise is None else noise.item(),
    )


def settings_of(library: str, problem: Problem, seconds: float, seed: int) -> list[Settings]:
    """Return the settings from the library's documentation; none if it lacks the objective."""
    if library == "directgp":
        return [Settings(seconds, seed=seed)]
    rates = (0.1, 0.01)
    if library == "gpytorch":
        return [
            Settings(seconds, rate=rate, batch_size=size, dtype=dtype, seed=seed)
            for rate in rates
            for size in (None, 1024)
            for dtype in ("float32", "float64")
        ]
    if library == "gpjax":
        elbo = problem.objective == "elbo"
        return [Settings(seconds, rate=rate, seed=seed) for rate in rates if elbo]
    ways = (False, True) if problem.objective == "elbo" else (False,)
    return [
        Settings(seconds, rate=rate, natural=natural, seed=seed)
        for rate in rates
        for natural in ways
    ]
