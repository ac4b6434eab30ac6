"""Options that several commands share, with their words of help."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from directgp.cli.errors import WrongUsageError

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
