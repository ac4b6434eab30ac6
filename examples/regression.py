"""One regression, trained for four objectives and judged on held-back rows.

The data come with scikit-learn: 442 patients, ten measurements, and how far their diabetes had
progressed a year later. The table is printed as it comes out, whichever objective wins. Matrices
this small are not worth a second thread: run it with OMP_NUM_THREADS=1, as `make demo` does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from torch import Tensor

import directgp
from directgp.likelihoods import Gaussian
from directgp.posteriors import SparsePosterior
from directgp.predictive import predictive_interval, predictive_log_density
from directgp.training import TrainingResult

SEED = 0
NUM_TEST = 142
NUM_INDUCING = 15
BETAS = [100.0, 10.0, 1.0, 0.1]
MAX_STEPS = 200


@dataclass(frozen=True)
class Rows:
    """Inputs and targets, both in standard deviations of the training rows."""

    X: Tensor
    y: Tensor


def load() -> tuple[Rows, Rows]:
    """Training and test rows."""
    X, y = (torch.as_tensor(array) for array in load_diabetes(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED))
    test, training = order[:NUM_TEST], order[NUM_TEST:]
    X = (X - X[training].mean(0)) / X[training].std(0)
    y = (y - y[training].mean()) / y[training].std()
    return Rows(X[training], y[training]), Rows(X[test], y[test])


def with_beta_1(objective: str, training: Rows) -> TrainingResult:
    """Train once, with β = 1."""
    posterior, generator = start(training)
    return directgp.train(
        posterior,
        Gaussian(0.5),
        training.X,
        training.y,
        objective=objective,
        max_steps=MAX_STEPS,
        generator=generator,
    )


def with_best_beta(objective: str, training: Rows) -> TrainingResult:
    """Train for each β and choose one; rows as few as these are validated in five folds."""
    posterior, generator = start(training)
    return directgp.beta_path(
        posterior,
        Gaussian(0.5),
        training.X,
        training.y,
        betas=BETAS,
        objective=objective,
        max_steps=MAX_STEPS,
        generator=generator,
    ).best


def start(training: Rows) -> tuple[SparsePosterior, torch.Generator]:
    """The same start for every objective."""
    generator = torch.Generator().manual_seed(SEED)
    posterior = SparsePosterior.from_data(
        training.X, training.y, num_inducing=NUM_INDUCING, generator=generator
    )
    return posterior, generator


METHODS: list[tuple[str, str, Callable[[str, Rows], TrainingResult]]] = [
    ("ELBO", "elbo", with_beta_1),
    ("β-ELBO", "elbo", with_best_beta),
    ("log-loss DLM", "log_loss", with_best_beta),
    ("square-loss DLM", "square_loss", with_best_beta),
]


@dataclass(frozen=True)
class Scores:
    """The losses of each test row, and the share of targets inside their 90 % interval."""

    log_losses: Tensor
    squares: Tensor
    coverage: float


def judge(result: TrainingResult, test: Rows) -> Scores:
    """Predict rows that training has not seen."""
    q = result.posterior.predict(test.X)
    low, high = predictive_interval(result.likelihood, q, 0.9)
    inside = (low <= test.y) & (test.y <= high)
    with torch.no_grad():
        log_losses = -predictive_log_density(result.likelihood, test.y, q)
    return Scores(log_losses, (test.y - q.mean).square(), float(inside.double().mean()))


def empty_table(training: Rows, test: Rows) -> Table:
    """The head of what is printed."""
    title = f"diabetes: {len(training.y)} rows to train on, {len(test.y)} to judge by"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("trained for", no_wrap=True)
    for head in ("NLL", "MSE", "in 90 %", "β", "s"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("stopped because")
    return table


def standard_error(values: Tensor) -> float:
    """Of the mean of these values."""
    return float(values.std() / len(values) ** 0.5)


def main() -> None:
    """Train by each method and print a line for it."""
    console = Console()
    training, test = load()
    table = empty_table(training, test)
    losses: dict[str, Tensor] = {}
    for name, objective, fit in METHODS:
        since = time.perf_counter()
        with console.status(f"{name} …"):
            result = fit(objective, training)
        seconds = time.perf_counter() - since
        scores = judge(result, test)
        losses[name] = scores.log_losses
        table.add_row(
            name,
            f"{float(scores.log_losses.mean()):.3f}",
            f"{float(scores.squares.mean()):.3f}",
            f"{scores.coverage:.0%}",
            f"{result.beta:g}",
            f"{seconds:.1f}",
            result.reason,
        )
    console.print(table)
    console.print("NLL less that of the ELBO, row by row, with its standard error:")
    for name, values in losses.items():
        if name != "ELBO":
            gap = values - losses["ELBO"]
            console.print(f"  {name}: {float(gap.mean()):+.3f} ± {standard_error(gap):.3f}")


if __name__ == "__main__":
    main()
