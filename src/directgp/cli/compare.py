"""Define the command `directgp compare` and check its options."""

from pathlib import Path
from typing import Annotated

import typer

from directgp.cli.options import (
    LIKELIHOOD_NAMES,
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
    MaxIter,
    Positive,
    Quiet,
    Seed,
    Target,
    Task,
    at_least_one,
    check_columns,
    check_name,
    check_task,
    weight,
    whole_number,
)
from directgp.cli.terminal import Terminal, WrongUsageError
from directgp.registry import LIKELIHOODS

RUN = "Comparison"


def compare(
    data: DataArgument,
    *,
    target: Target = None,
    task: Task = None,
    drop: Drop = None,
    drop_missing: DropMissing = False,
    positive: Positive = None,
    data_dir: DataDir = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="NAME,…",
            help="Of elbo, beta-elbo, fitc, log-joint, log-fixed, square-joint, square-fixed; "
            "all that suit the task unless given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", metavar="NUMBER", help="Random splits of the table.", rich_help_panel=RUN
        ),
    ] = 5,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="NUMBER,…",
            help="Rows to train on, for a learning curve; 'all' is every one there is. "
            "All unless given, but no more than 20000.",
            rich_help_panel=RUN,
        ),
    ] = None,
    betas: Annotated[
        str | None,
        typer.Option(
            "--betas",
            metavar="NUMBER,…",
            help="Weights of the KL term to choose from; every second of n, n/2, n/4, …, 0.01 "
            "unless given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="NUMBER",
            help="Fits at once, on one core each; as many as there are cores unless given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    likelihood: Annotated[
        str | None,
        typer.Option(
            "--likelihood",
            metavar="NAME",
            help=f"{LIKELIHOOD_NAMES}; the first of its task unless given.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    kernel: Kernel = "rbf",
    ard: Annotated[
        bool,
        typer.Option(
            "--ard/--no-ard",
            metavar="",
            help="A length scale for each feature, or one for all.",
            rich_help_panel=MODEL,
        ),
    ] = True,
    inducing: Inducing = "auto",
    max_iter: MaxIter = None,
    seed: Seed = 0,
    device: Device = "auto",
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="Where the report goes.", rich_help_panel=OUTPUT
        ),
    ] = Path("report"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar="",
            help="Go on with the fits that are in the folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find out which training objective predicts best, and write a report.

    Every method is trained on repeated random splits, with its β chosen on validation rows, and
    judged on test rows.
    """
    if resume and force:
        raise WrongUsageError("--resume and --force cannot be given together. Leave one out.")
    check_name("--likelihood", likelihood, LIKELIHOODS.names())
    check_task(task, positive)
    check_columns({"--target": [target], "--drop": drop})
    options = {
        "methods": None if methods is None else _names(methods),
        "repeats": at_least_one("--repeats", repeats),
        "sizes": None if sizes is None else tuple(_size(text) for text in _names(sizes)),
        "betas": None
        if betas is None
        else tuple(weight("--betas", text, "numbers") for text in _names(betas)),
        "likelihood": likelihood,
        "kernel": kernel,
        "ard": ard,
        "num_inducing": None if inducing == "auto" else whole_number("--inducing", inducing),
        "max_steps": None if max_iter is None else at_least_one("--max-iter", max_iter),
        "seed": seed,
    }
    jobs = None if jobs is None else at_least_one("--jobs", jobs)
    from directgp.cli.compare_run import STORE, check_options, compare_and_report
    from directgp.cli.data import Request
    from directgp.cli.experiment import check_run_folder

    check_options(options, task)
    check_run_folder(out, STORE, resume, force)
    request = Request(
        data=data,
        target=target,
        task=task,
        drop=tuple(drop or ()),
        drop_missing=drop_missing,
        positive=positive,
        data_dir=data_dir,
    )
    compare_and_report(
        request,
        options,
        jobs=jobs,
        device=device,
        out=out,
        force=force,
        terminal=Terminal(quiet, json),
    )


def _names(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _size(text: str) -> int | None:
    """Return a number of rows; None for all."""
    return None if text == "all" else whole_number("--sizes", text, "'all' or whole numbers")
