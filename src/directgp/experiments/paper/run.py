"""Run the experiments of the paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from directgp.datasets.problem import Problem
from directgp.experiments.engine import RunCallback, Runner
from directgp.experiments.fit import CellData
from directgp.experiments.paper.cells import (
    CurveCell,
    FitCell,
    GradientCell,
    PaperCell,
    PaperRecord,
    ProtocolName,
    Results,
    SamplerCell,
)
from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.fits import paper_rows, run_curve, run_fit
from directgp.experiments.paper.studies import run_gradients, run_samplers
from directgp.experiments.store import Store
from directgp.experiments.workers import Pool
from directgp.registry import Task
from directgp.training.run import Monitor


def run_paper_cell(
    cell: PaperCell,
    data: CellData,
    start: bytes = b"",
    monitors: Sequence[Monitor] = (),
    *,
    device: str = "cpu",
) -> PaperRecord:
    """Run one cell on its rows; `start` is the model of `cell.start`.

    The device is "cpu" or "cuda"; studies of gradients and samplers always run on the CPU.
    """
    match cell:
        case FitCell():
            return run_fit(cell, data, start, device, monitors)
        case CurveCell():
            return run_curve(cell, data, start, device, monitors)
        case GradientCell():
            return run_gradients(cell, data, monitors)
        case SamplerCell():
            return run_samplers(cell, data, monitors)


def run_sweep(
    cells: Sequence[PaperCell],
    problem_of: Callable[[str], Problem],
    store: Store,
    pool: Pool,
    *,
    callback: RunCallback | None = None,
    device: str = "cpu",
    function: Callable[..., PaperRecord] = run_paper_cell,
) -> None:
    """Run cells, and those they start from, until each has a result or a failure in the store.

    Finished cells are not run again. Cells that another program has leased are waited for, and
    taken over if that program dies. `problem_of` returns the data set of a name. The pool is
    `InProcess()`, `LocalWorkers(4)` or `RayCluster()`, the device "cpu" or "cuda". `function` has
    the signature of `run_paper_cell`, and is defined at the top level of a module.
    """
    runner: Runner[PaperCell] = Runner(
        store,
        lambda cell: problem_of(cell.dataset),
        paper_rows,
        partial(function, device=device),
        callback or RunCallback(),
    )
    runner.run(cells, pool)


@final
@dataclass(frozen=True)
class DataRow:
    """One data set, as used here and as in the paper's table."""

    name: str
    task: Task
    rows: int
    features: int
    paper_rows: int
    paper_features: int
    num_inducing: int
    origin: str
    licence: str
    source: str
    differences: str
    """Where the rows come from; licence and public source; differences from the paper's data, if
    any."""


@final
@dataclass(frozen=True, eq=False)
class Reproduction:
    """Results, the finding of each claim, and how they were produced."""

    results: Results
    findings: tuple[tuple[Claim, Finding], ...]
    data: tuple[DataRow, ...]
    scale: str
    scale_words: str
    """Name of the scale, and its description in one sentence."""

    protocol: ProtocolName
    command: str
    began: str
    seconds: float
    machine: str
    """Date and time, UTC, wall time and machine of this run; other cells may have been run
    elsewhere."""
