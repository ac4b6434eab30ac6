"""Options that say what model is trained, shared by `fit` and `compare`, and how they are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from directgp.cli.errors import WrongUsageError
from directgp.cli.options import MODEL, TaskName, listed
from directgp.errors import InvalidInputError

KernelName = Literal["rbf", "matern12", "matern32", "matern52"]
LikelihoodName = Literal[
    "gaussian",
    "student_t",
    "probit",
    "logistic",
    "poisson",
    "poisson_softplus",
    "negative_binomial",
]

Kernel = Annotated[
    KernelName,
    typer.Option("--kernel", metavar="NAME", help=f"{listed(KernelName)}.", rich_help_panel=MODEL),
]
Inducing = Annotated[
    str,
    typer.Option(
        "--inducing",
        metavar="auto|NUMBER",
        help="Number of inducing inputs.",
        rich_help_panel=MODEL,
    ),
]
MaxIter = Annotated[
    int | None,
    typer.Option(
        "--max-iter", metavar="NUMBER", help="Steps of one run, at most.", rich_help_panel=MODEL
    ),
]


def check_likelihood(task: TaskName, likelihood: str | None) -> None:
    """Refuse one that is for other targets."""
    from directgp.experiments.planning import chosen_likelihood

    with naming_options():
        chosen_likelihood(task, likelihood)


@contextmanager
def naming_options() -> Iterator[None]:
    """What cannot be planned was typed wrongly: arguments have the names of the options."""
    try:
        yield
    except InvalidInputError as error:
        raise WrongUsageError(f"--{error}") from error


def at_least_one(option: str, number: int) -> int:
    """Refuse less."""
    if number < 1:
        raise WrongUsageError(f"{option} must be at least 1. Got {number}.")
    return number


def whole_number(option: str, text: str, allowed: str = "'auto' or a whole number") -> int:
    """Refuse anything else, and 0."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise WrongUsageError(f"{option} must be {allowed} of at least 1. Got {text!r}.")
    return int(text)


def weight(option: str, text: str, allowed: str = "'auto' or a number") -> float:
    """A β: refuse what is not a finite number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise WrongUsageError(f"{option} must be {allowed} of at least 0. Got {text!r}.")
    return value
