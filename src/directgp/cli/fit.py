"""`directgp fit`: what may be typed, and what is refused before any work is done."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from directgp.cli.errors import WrongUsageError
from directgp.cli.options import (
    DATA,
    MODEL,
    OUTPUT,
    DataArgument,
    DataDir,
    Debug,
    Device,
    Drop,
    DropMissing,
    Force,
    Json,
    Positive,
    Quiet,
    Seed,
    Target,
    Task,
    listed,
)
from directgp.cli.terminal import Terminal

ObjectiveName = Literal[
    "log_loss",
    "square_loss",
    "elbo",
    "vfe",
    "fitc",
    "crps",
    "absolute_loss",
    "pinball_loss",
    "zero_one_cost",
]
ModeName = Literal["auto", "joint", "fixed"]
KernelName = Literal["rbf", "matern12", "matern32", "matern52"]


def fit(
    data: DataArgument,
    *,
    target: Target = None,
    task: Task = None,
    drop: Drop = None,
    drop_missing: DropMissing = False,
    positive: Positive = None,
    exposure: Annotated[
        str | None,
        typer.Option(
            "--exposure",
            metavar="COLUMN",
            help="What counts were counted over: time, area, people.",
            rich_help_panel=DATA,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="COLUMN",
            help="How often each row counts.",
            rich_help_panel=DATA,
        ),
    ] = None,
    data_dir: DataDir = None,
    objective: Annotated[
        ObjectiveName,
        typer.Option(
            "--objective",
            metavar="NAME",
            help=f"What to train for: {listed(ObjectiveName)}.",
            rich_help_panel=MODEL,
        ),
    ] = "log_loss",
    beta: Annotated[
        str,
        typer.Option(
            "--beta",
            metavar="auto|NUMBER",
            help="Weight of the KL term, or chosen by validation.",
            rich_help_panel=MODEL,
        ),
    ] = "auto",
    hyperparameters: Annotated[
        ModeName,
        typer.Option(
            "--hyperparameters",
            metavar="NAME",
            help="joint (trained with the rest), fixed (kept from the ELBO), or auto.",
            rich_help_panel=MODEL,
        ),
    ] = "auto",
    kernel: Annotated[
        KernelName,
        typer.Option(
            "--kernel", metavar="NAME", help=f"{listed(KernelName)}.", rich_help_panel=MODEL
        ),
    ] = "rbf",
    inducing: Annotated[
        str,
        typer.Option(
            "--inducing",
            metavar="auto|NUMBER",
            help="Number of inducing inputs.",
            rich_help_panel=MODEL,
        ),
    ] = "auto",
    max_iter: Annotated[
        int | None,
        typer.Option(
            "--max-iter",
            metavar="NUMBER",
            help="Steps of one run, at most.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="Where the model goes.", rich_help_panel=OUTPUT
        ),
    ],
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model on a table and keep it in a folder."""
    settings = {
        "objective": objective,
        "beta": beta if beta == "auto" else _number(beta),
        "hyperparameters": hyperparameters,
        "kernel": kernel,
        "num_inducing": inducing if inducing == "auto" else _whole(inducing),
        "max_iter": max_iter if max_iter is None else _steps(max_iter),
        "random_state": seed,
        "device": device,
    }
    _check_task(task, positive, exposure)
    _check_columns(
        {"--target": [target], "--exposure": [exposure], "--weights": [weights], "--drop": drop}
    )

    from directgp.cli.opening import Request
    from directgp.cli.training import train_and_keep

    request = Request(
        data=data,
        target=target,
        # Only counts have an exposure.
        task=task if exposure is None else "count",
        drop=tuple(drop or ()),
        drop_missing=drop_missing,
        positive=positive,
        exposure=exposure,
        weights=weights,
        data_dir=data_dir,
    )
    train_and_keep(request, settings, out, force, Terminal(quiet, json))


def _number(text: str) -> float:
    """β as a number ≥ 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise WrongUsageError(f"--beta must be 'auto' or a number of at least 0. Got {text!r}.")
    return value


def _whole(text: str) -> int:
    """A number of inducing inputs."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise WrongUsageError(
            f"--inducing must be 'auto' or a whole number of at least 1. Got {text!r}."
        )
    return int(text)


def _steps(number: int) -> int:
    if number < 1:
        raise WrongUsageError(f"--max-iter must be at least 1. Got {number}.")
    return number


def _check_task(task: str | None, positive: str | None, exposure: str | None) -> None:
    """Options that belong to one task."""
    for option, value, own in (
        ("--positive", positive, "classification"),
        ("--exposure", exposure, "count"),
    ):
        if value is not None and task not in (None, own):
            raise WrongUsageError(
                f"{option} must be given with --task {own} only. Got --task {task}. Leave one out."
            )


def _check_columns(roles: dict[str, list[str] | list[str | None] | None]) -> None:
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
