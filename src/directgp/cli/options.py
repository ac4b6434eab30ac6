"""Define options that several commands share, and check them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from directgp.cli.terminal import WrongUsageError
from directgp.errors import InvalidInputError

DATA, MODEL, OUTPUT = "Data", "Model", "Output"
"""Panels of the help."""

TaskName = Literal["regression", "classification", "count"]
DeviceName = Literal["auto", "cpu", "cuda"]


def listed(choices: Any) -> str:
    """The values of a `Literal` in words."""
    *first, last = get_args(choices)
    return f"{', '.join(first)} or {last}"


def check_seed(seed: int) -> int:
    """Refuse what numpy does not take for a seed."""
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
    bool,
    typer.Option(
        "--quiet", "-q", metavar="", help="Print nothing but errors.", rich_help_panel=OUTPUT
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", metavar="", help="Print one JSON document, for machines.", rich_help_panel=OUTPUT
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", metavar="", help="Show the traceback of an error.", rich_help_panel=OUTPUT
    ),
]
Force = Annotated[
    bool, typer.Option("--force", metavar="", help="Replace what is there.", rich_help_panel=OUTPUT)
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="NUMBER",
        callback=check_seed,
        help="Of everything random.",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    DeviceName,
    typer.Option("--device", metavar="NAME", help="auto, cpu or cuda.", rich_help_panel=MODEL),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="COLUMN",
        help="What is to be predicted; needed for files.",
        rich_help_panel=DATA,
    ),
]
Task = Annotated[
    TaskName | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="regression, classification or count; guessed from the target unless given.",
        rich_help_panel=DATA,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="COLUMN",
        help="Leave this column out; may be repeated.",
        rich_help_panel=DATA,
    ),
]
DropMissing = Annotated[
    bool,
    typer.Option(
        "--drop-missing", metavar="", help="Leave rows with gaps out.", rich_help_panel=DATA
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(
        "--positive",
        metavar="LABEL",
        help="The class whose probability is meant; the others are the rest.",
        rich_help_panel=DATA,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="A folder of data sets, to be named without path and suffix; that of the variable "
        "DIRECTGP_DATA unless given.",
        rich_help_panel=DATA,
    ),
]


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
    from directgp.experiments.plan import chosen_likelihood

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


def check_task(task: str | None, positive: str | None, exposure: str | None = None) -> None:
    """Refuse options that belong to another task."""
    for option, value, own in (
        ("--positive", positive, "classification"),
        ("--exposure", exposure, "count"),
    ):
        if value is not None and task not in (None, own):
            raise WrongUsageError(
                f"{option} must be given with --task {own} only. Got --task {task}. Leave one out."
            )


def check_columns(roles: Mapping[str, Sequence[str | None] | None]) -> None:
    """Refuse a column that is to be two things at once."""
    taken: dict[str, str] = {}
    for option, columns in roles.items():
        for column in dict.fromkeys(each for each in columns or () if each is not None):
            if column in taken:
                raise WrongUsageError(
                    f"{taken[column]} and {option} must name different columns."
                    f" Got {column!r} for both."
                )
            taken[column] = option
