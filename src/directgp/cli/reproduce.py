"""Define the command `directgp reproduce` and check its options."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from directgp.cli import options
from directgp.cli.terminal import Terminal, WrongUsageError

what_option = partial(typer.Option, rich_help_panel="What")
run_option = partial(typer.Option, rich_help_panel="How it is run")


def reproduce(
    *,
    listed: Annotated[
        bool, what_option("--list", metavar="", help="List claims, figures and scales, and exit.")
    ] = False,
    claims: Annotated[
        list[str] | None,
        what_option(
            "--claim",
            metavar="NAME",
            help="Run what this claim needs, C1 to C14; may be repeated.",
        ),
    ] = None,
    figures: Annotated[
        list[str] | None,
        what_option(
            "--figure",
            metavar="NAME",
            help="Run what this figure needs, 1a to 1i, 2 to 16, S1; may be repeated.",
        ),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        what_option("--dataset", metavar="NAME", help="Run only this data set; may be repeated."),
    ] = None,
    scale: Annotated[
        Literal["smoke", "small", "full"],
        what_option(
            "--scale",
            metavar="NAME",
            help="smoke, small or full: minutes, hours, or as in the paper.",
        ),
    ] = "smoke",
    protocol: Annotated[
        Literal["paper", "best"] | None,
        what_option(
            "--protocol",
            metavar="NAME",
            help="paper or best: the paper's optimiser and grid, or ours; by default paper for "
            "full, otherwise best.",
        ),
    ] = None,
    data_dir: options.DataDir = None,
    download: Annotated[
        bool,
        what_option(
            "--download/--no-download",
            metavar="",
            help="Download data sets that are missing in the folder.",
        ),
    ] = True,
    engine: Annotated[
        Literal["local", "inline", "ray"],
        run_option(
            "--engine",
            metavar="NAME",
            help="local, inline or ray: processes of this machine, this process, or a cluster.",
        ),
    ] = "local",
    jobs: Annotated[
        int | None,
        run_option(
            "--jobs",
            "-j",
            metavar="NUMBER",
            help="Number of parallel cells on this machine, on one core each; by default the "
            "number of cores.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        run_option(
            "--address",
            metavar="ADDRESS",
            help="Address of a Ray cluster; by default one is started on this machine.",
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        run_option("--cpus", metavar="NUMBER", help="Cores per cell on Ray; by default 1."),
    ] = None,
    gpus: Annotated[
        float | None,
        run_option(
            "--gpus", metavar="NUMBER", help="GPUs per cell on Ray, such as 0.25; by default none."
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    out: Annotated[
        Path,
        options.output_option("--out", metavar="FOLDER", help="Folder of results and report."),
    ] = Path("reproduction"),
    resume: Annotated[
        bool,
        options.output_option(
            "--resume",
            metavar="",
            help="Continue with the results in the folder; other programs may do so too.",
        ),
    ] = False,
    force: options.Force = False,
    report_only: Annotated[
        bool,
        options.output_option(
            "--report-only", metavar="", help="Run nothing; report the results in the folder."
        ),
    ] = False,
    merge: Annotated[
        list[Path] | None,
        options.output_option(
            "--merge",
            metavar="FOLDER",
            help="Add the results of another folder or machine first; may be repeated.",
        ),
    ] = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Run the experiments of the paper, and report which of its claims hold.

    By default all experiments of the scale; claims, figures and data sets select some.
    """
    terminal = Terminal(quiet, json)
    if listed:
        from directgp.cli.reproduce_run import list_experiments

        list_experiments(terminal)
        return
    ways = {"--resume": resume, "--force": force, "--report-only": report_only}
    given = [name for name, value in ways.items() if value]
    if force and len(given) > 1:
        raise WrongUsageError(f"{' and '.join(given)} cannot be given together. Leave one out.")
    check_engine(engine, jobs, address, cpus, gpus, device)
    from directgp.cli.experiment import check_run_folder
    from directgp.cli.reproduce_run import STORE, ReproduceRequest, run_and_report

    check_run_folder(out, STORE, resume or report_only, force)
    request = ReproduceRequest(
        claims=tuple(name.upper() for name in claims or ()),
        figures=tuple(figures or ()),
        datasets=tuple(datasets or ()),
        scale=scale,
        protocol=protocol,
        data_dir=data_dir,
        download=download,
        engine=engine,
        jobs=None if jobs is None else options.at_least_one("--jobs", jobs),
        address=address,
        cpus=1.0 if cpus is None else cpus,
        gpus=gpus or 0.0,
        seed=seed,
        device=device,
        out=out,
        force=force,
        report_only=report_only,
        merge=tuple(merge or ()),
    )
    request.check()
    run_and_report(request, terminal)


def check_engine(
    engine: str,
    jobs: int | None,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
    device: str,
) -> None:
    """Raise `WrongUsageError` for options that do not belong to the engine."""
    if cpus is not None and not 0 < cpus < float("inf"):
        raise WrongUsageError(f"--cpus must be more than 0 and finite. Got {cpus:g}.")
    if gpus is not None and not 0 <= gpus < float("inf"):
        raise WrongUsageError(f"--gpus must be at least 0 and finite. Got {gpus:g}.")
    for name, value in (("--address", address), ("--cpus", cpus), ("--gpus", gpus)):
        if value is not None and engine != "ray":
            raise WrongUsageError(f"{name} is for --engine ray. Give it, or leave {name} out.")
    if jobs is not None and (engine == "inline" or address is not None):
        why = "--engine inline has one" if engine == "inline" else "the cluster has its own"
        raise WrongUsageError(f"--jobs is for workers that are started, and {why}. Leave it out.")
    if engine == "ray" and device == "cuda" and not gpus:
        raise WrongUsageError(
            "--device cuda needs --gpus with --engine ray. Give the GPUs of a cell, such as 0.25."
        )
