"""Define options that several commands share, and validate their values."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from directgp.cli.terminal import WrongUsageError
from directgp.errors import InvalidInputError
from directgp.registry import likelihoods_of
from directgp.text import joined

DATA, MODEL, OUTPUT = "Data", "Model", "Output"
"""Panels of the help."""

data_option = partial(typer.Option, rich_help_panel=DATA)
model_option = partial(typer.Option, rich_help_panel=MODEL)
output_option = partial(typer.Option, rich_help_panel=OUTPUT)

TaskName = Literal["regression", "classification", "count"]
DeviceName = Literal["auto", "cpu", "cuda"]
KernelName = Literal["rbf", "matern12", "matern32", "matern52"]


def check_seed(seed: int) -> int:
    """Return the seed; raise `WrongUsageError` if numpy does not accept it."""
    if not 0 <= seed < 2**32:
        raise WrongUsageError(f"--seed must be from 0 to 2³² − 1. Got {seed}.")
    return seed


DataArgument = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A file, or the name of a data set.", show_default=False),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="The folder of a model.", show_default=False),
]
Quiet = Annotated[
    bool, output_option("--quiet", "-q", metavar="", help="Print nothing but errors.")
]
Json = Annotated[
    bool, output_option("--json", metavar="", help="Print one JSON document, for programs.")
]
Debug = Annotated[
    bool, output_option("--debug", metavar="", help="Show the traceback of an error.")
]
Force = Annotated[
    bool, output_option("--force", metavar="", help="Replace the output if it exists.")
]
Seed = Annotated[
    int,
    model_option("--seed", metavar="NUMBER", callback=check_seed, help="Random seed."),
]
Device = Annotated[
    DeviceName,
    model_option("--device", metavar="NAME", help=f"{joined(get_args(DeviceName), 'or')}."),
]
Kernel = Annotated[
    KernelName,
    model_option("--kernel", metavar="NAME", help=f"{joined(get_args(KernelName), 'or')}."),
]
Inducing = Annotated[
    str, model_option("--inducing", metavar="auto|NUMBER", help="Number of inducing inputs.")
]
MaxIter = Annotated[
    int | None, model_option("--max-iter", metavar="NUMBER", help="Maximum steps of one run.")
]
Target = Annotated[
    str | None,
    data_option("--target", metavar="COLUMN", help="The column to predict; required for files."),
]
Task = Annotated[
    TaskName | None,
    data_option(
        "--task",
        metavar="TASK",
        help=f"{joined(get_args(TaskName), 'or')}; guessed from the target by default.",
    ),
]
Drop = Annotated[
    list[str] | None,
    data_option("--drop", metavar="COLUMN", help="Leave out this column; may be repeated."),
]
DropMissing = Annotated[
    bool,
    data_option("--drop-missing", metavar="", help="Leave out rows with missing values."),
]
Positive = Annotated[
    str | None,
    data_option("--positive", metavar="LABEL", help="The label of class 1; others are class 0."),
]
DataDir = Annotated[
    Path | None,
    data_option(
        "--data-dir",
        metavar="FOLDER",
        help="A folder of data sets, named without path and suffix; by default that of the variable"
        " DIRECTGP_DATA.",
    ),
]


LIKELIHOOD_NAMES = ", ".join(" or ".join(likelihoods_of(task)) for task in get_args(TaskName))


def check_name(option: str, name: str | None, names: Sequence[str]) -> None:
    """Raise `WrongUsageError` if the name is none of the names."""
    if name is not None and name not in names:
        raise WrongUsageError(f"{option} must be one of {', '.join(names)}. Got {name!r}.")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn `InvalidInputError` on an argument into `WrongUsageError` on the option of its name."""
    try:
        yield
    except InvalidInputError as error:
        raise WrongUsageError(f"--{error}") from error


def at_least_one(option: str, number: int) -> int:
    """Return the number; raise `WrongUsageError` if it is less than 1."""
    if number < 1:
        raise WrongUsageError(f"{option} must be at least 1. Got {number}.")
    return number


def whole_number(option: str, text: str, allowed: str = "'auto' or a whole number") -> int:
    """Return a whole number of at least 1; raise `WrongUsageError` for other text."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise WrongUsageError(f"{option} must be {allowed} of at least 1. Got {text!r}.")
    return int(text)


def weight(option: str, text: str, allowed: str = "'auto' or a number") -> float:
    """Return a finite β of at least 0; raise `WrongUsageError` for other text."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise WrongUsageError(f"{option} must be {allowed} of at least 0. Got {text!r}.")
    return value


def check_task(task: str | None, positive: str | None, exposure: str | None = None) -> None:
    """Raise `WrongUsageError` if an option belongs to another task."""
    for option, value, own in (
        ("--positive", positive, "classification"),
        ("--exposure", exposure, "count"),
    ):
        if value is not None and task not in (None, own):
            raise WrongUsageError(
                f"{option} must be given with --task {own} only. Got --task {task}. Leave one out."
            )


def check_columns(roles: Mapping[str, Sequence[str | None] | None]) -> None:
    """Raise `WrongUsageError` if two options name the same column."""
    taken: dict[str, str] = {}
    for option, columns in roles.items():
        for column in dict.fromkeys(each for each in columns or () if each is not None):
            if column in taken:
                raise WrongUsageError(
                    f"{taken[column]} and {option} must name different columns."
                    f" Got {column!r} for both."
                )
            taken[column] = option
