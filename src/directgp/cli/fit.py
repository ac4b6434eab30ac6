"""`directgp fit`: what may be typed, and what is refused before any work is done."""

from pathlib import Path
from typing import Annotated, Literal

import typer

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
    Inducing,
    Json,
    Kernel,
    LikelihoodName,
    MaxIter,
    Positive,
    Quiet,
    Seed,
    Target,
    Task,
    at_least_one,
    check_columns,
    check_likelihood,
    check_task,
    listed,
    weight,
    whole_number,
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
    likelihood: Annotated[
        LikelihoodName | None,
        typer.Option(
            "--likelihood",
            metavar="NAME",
            help="gaussian or student_t, probit or logistic, poisson, poisson_softplus or "
            "negative_binomial; the one with the larger evidence unless given.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    kernel: Kernel = "rbf",
    ard: Annotated[
        bool | None,
        typer.Option(
            "--ard/--no-ard",
            metavar="",
            help="A length scale for each feature, or one for all; by evidence unless given.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    inducing: Inducing = "auto",
    max_iter: MaxIter = None,
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
        "beta": beta if beta == "auto" else weight("--beta", beta),
        "hyperparameters": hyperparameters,
        "likelihood": likelihood or "auto",
        "kernel": kernel,
        "ard": "auto" if ard is None else ard,
        "num_inducing": inducing if inducing == "auto" else whole_number("--inducing", inducing),
        "max_iter": None if max_iter is None else at_least_one("--max-iter", max_iter),
        "random_state": seed,
        "device": device,
    }
    check_task(task, positive, exposure)
    if task is not None:
        check_likelihood(task, likelihood)
    check_columns(
        {"--target": [target], "--exposure": [exposure], "--weights": [weights], "--drop": drop}
    )

    from directgp.cli.load_data import Request, open_request
    from directgp.cli.model_folder import check_place

    check_place(out, force)
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
    opened = open_request(request)
    check_likelihood(opened.problem.task, likelihood)

    # torch comes when the data have been opened, so that refusals come at once.
    from directgp.cli.fit_run import train_and_keep

    train_and_keep(opened, settings, out, force, Terminal(quiet, json))
