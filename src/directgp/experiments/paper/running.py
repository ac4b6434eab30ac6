"""One cell of the paper's experiments, whatever its kind."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime

from directgp.experiments.paper.cells import (
    CurveCell,
    FitCell,
    GradientCell,
    PaperCell,
    SamplerCell,
)
from directgp.experiments.paper.curves import run_curve
from directgp.experiments.paper.fitting import run_fit
from directgp.experiments.paper.gradients import run_gradients
from directgp.experiments.paper.results import Circumstances, Finished
from directgp.experiments.paper.samplers import run_samplers
from directgp.experiments.training_rows import CellData
from directgp.experiments.versions import versions
from directgp.training.monitors import Monitor


def run_paper_cell(
    cell: PaperCell,
    data: CellData,
    start: bytes = b"",
    device: str = "cpu",
    monitors: Sequence[Monitor] = (),
) -> Finished:
    """Run it.

    Parameters
    ----------
    cell : PaperCell
        What to run.
    data : CellData
        Its rows.
    start : bytes
        The model that `cell.start` has left behind.
    device : str
        "cpu" or "cuda"; studies of gradients and samplers are always run on the CPU.
    monitors : sequence of Monitor
        See every step.
    """
    match cell:
        case FitCell():
            fit, model = run_fit(cell, data, start, device, monitors)
            return Finished(fit, circumstances(device), model)
        case CurveCell():
            curve, model, losses = run_curve(cell, data, start, device, monitors)
            return Finished(curve, circumstances(device), model, {"losses": losses})
        case GradientCell():
            gradients, draws = run_gradients(cell, data, monitors)
            return Finished(gradients, circumstances("cpu"), arrays=draws)
        case SamplerCell():
            return Finished(run_samplers(cell, data, monitors), circumstances("cpu"))


def circumstances(device: str) -> Circumstances:
    """Where this process runs, and by what."""
    return Circumstances(
        versions=versions(),
        machine=f"{platform.system()} {platform.machine()}",
        device="CPU" if device == "cpu" else _name_of(device),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _name_of(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device)
