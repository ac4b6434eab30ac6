"""Define the command `directgp compare` and check its options."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from directgp.cli import options
from directgp.cli.terminal import Terminal, WrongUsageError
from directgp.registry import LIKELIHOODS

run_option = partial(typer.Option, rich_help_panel="Comparison")


def compare(
    data: options.DataArgument,
    *,
    target: options.Target = None,
    task: options.Task = None,
    drop: options.Drop = None,
    drop_missing: options.DropMissing = False,
    positive: options.Positive = None,
    data_dir: options.DataDir = None,
    methods: Annotated[
        str | None,
        run_option(
            "--methods",
            metavar="NAME,…",
            help="Some of elbo, beta-elbo, fitc, log-joint, log-fixed, square-joint, square-fixed; "
            "by default all that suit the task.",
        ),
    ] = None,
    repeats: Annotated[
        int, run_option("--repeats", metavar="NUMBER", help="Number of random splits.")
    ] = 5,
    sizes: Annotated[
        str | None,
        run_option(
            "--sizes",
            metavar="NUMBER,…",
            help="Numbers of training rows, for a learning curve; 'all' is every row. By default "
            "all, up to 20000.",
        ),
    ] = None,
    betas: Annotated[
        str | None,
        run_option(
            "--betas",
            metavar="NUMBER,…",
            help="Candidates for the weight of the KL term; by default every second of n, n/2, "
            "n/4, …, 0.01.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        run_option(
            "--jobs",
            "-j",
            metavar="NUMBER",
            help="Number of parallel fits, on one core each; by default the number of cores.",
        ),
    ] = None,
    likelihood: Annotated[
        str | None,
        options.model_option(
            "--likelihood",
            metavar="NAME",
            help=f"{options.LIKELIHOOD_NAMES}; by default the first of the task.",
        ),
    ] = None,
    kernel: options.Kernel = "rbf",
    ard: Annotated[
        bool,
        options.model_option(
            "--ard/--no-ard", metavar="", help="One lengthscale per feature, or one for all."
        ),
    ] = True,
    inducing: options.Inducing = "auto",
    max_iter: options.MaxIter = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: Annotated[
        Path, options.output_option("--out", metavar="FOLDER", help="Folder of the report.")
    ] = Path("report"),
    resume: Annotated[
        bool,
        options.output_option(
            "--resume", metavar="", help="Continue with the fits that are in the folder."
        ),
    ] = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Find out which training objective predicts best, and write a report.

    Every method is trained on repeated random splits, with its β chosen on validation rows, and
    scored on test rows.
    """
    if resume and force:
        raise WrongUsageError("--resume and --force cannot be given together. Leave one out.")
    options.check_name("--likelihood", likelihood, tuple(LIKELIHOODS))
    options.check_task(task, positive)
    options.check_columns({"--target": [target], "--drop": drop})
    settings = {
        "methods": _names(methods),
        "repeats": options.at_least_one("--repeats", repeats),
        "sizes": None if sizes is None else tuple(map(_size, _names(sizes) or ())),
        "betas": None if betas is None else tuple(map(_beta, _names(betas) or ())),
        "likelihood": likelihood,
        "kernel": kernel,
        "ard": ard,
        "num_inducing": None
        if inducing == "auto"
        else options.whole_number("--inducing", inducing),
        "max_steps": None if max_iter is None else options.at_least_one("--max-iter", max_iter),
        "seed": seed,
    }
    jobs = None if jobs is None else options.at_least_one("--jobs", jobs)
    from directgp.cli.compare_run import STORE, check_settings, compare_and_report
    from directgp.cli.data import Request
    from directgp.cli.experiment import check_run_folder

    check_settings(settings, task)
    check_run_folder(out, STORE, resume, force)
    compare_and_report(
        Request(
            data=data,
            target=target,
            task=task,
            drop=tuple(drop or ()),
            drop_missing=drop_missing,
            positive=positive,
            data_dir=data_dir,
        ),
        settings,
        jobs=jobs,
        device=device,
        out=out,
        force=force,
        terminal=Terminal(quiet, json),
    )


def _names(text: str | None) -> tuple[str, ...] | None:
    """Split a list at its commas."""
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _size(text: str) -> int | None:
    """Return a number of rows; None for all."""
    if text == "all":
        return None
    return options.whole_number("--sizes", text, "'all' or whole numbers")


def _beta(text: str) -> float:
    return options.weight("--betas", text, "numbers")
