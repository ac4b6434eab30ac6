"""Define the command `directgp reproduce` and check its options."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from directgp.cli.options import (
    OUTPUT,
    DataDir,
    Debug,
    Device,
    Force,
    Json,
    Quiet,
    Seed,
    at_least_one,
)
from directgp.cli.terminal import Terminal, WrongUsageError

WHAT, RUN = "What", "How it is run"


def reproduce(
    *,
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            metavar="",
            help="List claims, figures and scales, and exit.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    claims: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="NAME",
            help="Run what this claim needs, C1 to C14; may be repeated.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    figures: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME",
            help="Run what this figure needs, 1a to 1i, 2 to 16, S1; may be repeated.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option(
            "--dataset",
            metavar="NAME",
            help="Run this data set alone; may be repeated.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    scale: Annotated[
        Literal["smoke", "small", "full"],
        typer.Option(
            "--scale",
            metavar="NAME",
            help="smoke, small or full: minutes, hours, or as in the paper.",
            rich_help_panel=WHAT,
        ),
    ] = "smoke",
    protocol: Annotated[
        Literal["paper", "best"] | None,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help="paper or best: the paper's optimiser and grid to the letter, or ours; paper for "
            "full, else best, unless given.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    data_dir: DataDir = None,
    download: Annotated[
        bool,
        typer.Option(
            "--download/--no-download",
            metavar="",
            help="Fetch data sets that the folder does not have.",
            rich_help_panel=WHAT,
        ),
    ] = True,
    engine: Annotated[
        Literal["local", "inline", "ray"],
        typer.Option(
            "--engine",
            metavar="NAME",
            help="local, inline or ray: processes of this machine, this process alone, or a "
            "cluster.",
            rich_help_panel=RUN,
        ),
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="NUMBER",
            help="Cells at once on this machine, on one core each; as many as there are cores "
            "unless given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Of a Ray cluster; one is started on this machine unless given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(
            "--cpus",
            metavar="NUMBER",
            help="Cores that Ray gives a cell; 1 unless given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            "--gpus",
            metavar="NUMBER",
            help="GPUs that Ray gives a cell, such as 0.25; none unless given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where results and report go.",
            rich_help_panel=OUTPUT,
        ),
    ] = Path("reproduction"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar="",
            help="Go on with the results that are in the folder, beside other programs that do.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    force: Force = False,
    report_only: Annotated[
        bool,
        typer.Option(
            "--report-only",
            metavar="",
            help="Run nothing; report what is in the folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            "--merge",
            metavar="FOLDER",
            help="Take in the results of another folder or machine first; may be repeated.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the experiments of the paper, and say which of its claims hold.

    Everything at the scale, unless claims, figures or data sets are named.
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
        jobs=None if jobs is None else at_least_one("--jobs", jobs),
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
