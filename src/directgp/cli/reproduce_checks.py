"""Options of `directgp reproduce` that contradict each other, refused before any work is done."""

from directgp.cli.errors import WrongUsageError


def check_ways(resume: bool, force: bool, report_only: bool) -> None:
    """Refuse to begin anew and to go on."""
    ways = {"--resume": resume, "--force": force, "--report-only": report_only}
    given = [name for name, value in ways.items() if value]
    if force and len(given) > 1:
        raise WrongUsageError(f"{' and '.join(given)} cannot be given together. Leave one out.")


def check_engine(
    engine: str,
    jobs: int | None,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
    device: str,
) -> None:
    """Refuse options that another engine than the chosen one has, or that cannot be meant."""
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
