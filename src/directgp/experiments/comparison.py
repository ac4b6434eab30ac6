"""Compare methods on one data set: run the cells of a plan, each trained and scored."""

import os
import time
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from directgp.datasets.problem import Problem
from directgp.experiments.cell import ELBO, Circumstances, Record, method_named
from directgp.experiments.engine import RunCallback, Runner
from directgp.experiments.fit import (
    CellData,
    ScaledRows,
    clock,
    load_bytes,
    race_method,
    starting_model,
)
from directgp.experiments.plan import (
    BetaLoss,
    CompareCell,
    ComparedFit,
    CompareOutcome,
    Comparison,
    Plan,
    Predictions,
    split,
)
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers
from directgp.io import machine, versions
from directgp.metrics import judge
from directgp.shapes import Marginals
from directgp.training.beta_path import beta_grid
from directgp.training.callbacks import TimeBudget
from directgp.training.data import Model
from directgp.training.result import BetaPath
from directgp.training.run import Monitor


def compare(
    problem: Problem,
    plan: Plan,
    store: str | os.PathLike[str],
    *,
    workers: int = 0,
    callback: RunCallback | None = None,
    command: str = "",
) -> Comparison:
    """Run the cells of a plan that the store does not have, and return all results.

    Parameters
    ----------
    problem : Problem
        The data of the plan.
    plan : Plan
        The cells.
    store : path
        The file of finished fits, created if missing. Several programs may share it.
    workers : int
        Number of processes, each on one core; 0 runs everything in this process.
    callback : RunCallback
        Receives the progress.
    command : str
        The command that repeats the comparison, for the report.
    """
    since, began = time.perf_counter(), datetime.now(UTC)
    cells = plan.cells()
    with Store(Path(store)) as opened:
        runner = Runner(
            opened, lambda cell: problem, compare_rows, run_compare_cell, callback or RunCallback()
        )
        runner.run(cells, LocalWorkers(workers) if workers else InProcess())
        records, failed = opened.records(cells), opened.failures(cells)
    return Comparison(
        plan=plan,
        runs=tuple(ComparedFit(r.cell, r.outcome, Predictions(**r.arrays)) for r in records),
        failed=tuple(failed),
        versions=versions(),
        machine=_machine(plan.settings.device, workers),
        command=command,
        began=began.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - since,
    )


def _machine(device: str, workers: int) -> str:
    """Describe the machine and the number of workers."""
    fits = "one fit at a time" if workers <= 1 else f"{workers} fits at once"
    where = f"{machine()}, {fits}"
    if device == "cpu":
        return f"{where}, one core each" if workers > 1 else where
    return f"{where} on {torch.cuda.get_device_name()}"


def compare_rows(cell: CompareCell, problem: Problem) -> CellData:
    """Return the rows of a cell of a comparison."""
    return CellData.of(problem, *split(problem, cell.repeat, cell.size, cell.seed))


_ROWS_KEPT = 2000
"""Test rows whose predictions are stored, for figures."""


def run_compare_cell(
    cell: CompareCell, data: CellData, start: bytes = b"", monitors: Sequence[Monitor] = ()
) -> Record[CompareCell, CompareOutcome]:
    """Train from the model of `cell.start`, choose β by validation, and score the test rows."""
    settings, method = cell.settings, method_named(cell.method)
    rows = ScaledRows.of(data, cell.task, settings.dtype, settings.device)
    model = untrained_model(cell, *rows.train)
    if cell.start is not None:
        load_bytes(model, start)
    since = clock(settings.device)
    betas, max_steps = settings.betas or coarse_grid(cell.size), settings.max_steps
    if settings.time_budget is not None:
        monitors = (*monitors, TimeBudget(settings.time_budget))
    trained = race_method(method, model, rows, betas, cell.seed, max_steps, monitors)
    seconds = clock(settings.device) - since
    X, y = rows.test
    q = trained.best.posterior.predict(X)
    judged = judge(
        cell.task,
        trained.best.likelihood.to("cpu", torch.float64),
        y.double().cpu(),
        Marginals(q.mean.double().cpu(), q.variance.double().cpu()),
        rows.offset,
        rows.scale,
    )
    outcome = CompareOutcome(
        **trained.facts(),
        scores={name: float(values.mean()) for name, values in judged.scores.items()},
        num_test=len(y),
        path=_losses(trained.path, rows.scale),
        validation_loss=_LOSS_NAMES.get(method.objective, method.objective.replace("_", " ")),
        curve=trained.curve(),
        seconds=seconds,
    )
    kept = trained.to_bytes() if method == ELBO else b""
    arrays = {f.name: getattr(judged, f.name)[:_ROWS_KEPT].numpy() for f in fields(Predictions)}
    return Record(cell, outcome, Circumstances.here(settings.device), arrays, kept)


def untrained_model(cell: CompareCell, X: Tensor, y: Tensor) -> Model:
    """Return the untrained model of a cell, the same for every method of a split."""
    settings = cell.settings
    mean = "zero" if cell.task == "regression" else "constant"
    prior = {"kernel": settings.kernel, "ard": settings.ard, "mean": mean}
    seed, likelihood = (cell.seed, cell.repeat), settings.likelihood
    return starting_model(cell.task, X, y, likelihood, settings.num_inducing, seed, **prior)


def coarse_grid(num_data: int) -> list[float]:
    """Return every second β of the paper's grid, its last, and 1."""
    grid = beta_grid(num_data)
    return sorted({*grid[::2], grid[-1], 1.0}, reverse=True)


_LOSS_NAMES = {"elbo": "NLL", "fitc": "NLL", "log_loss": "NLL", "square_loss": "MSE"}


def _losses(path: BetaPath | None, scale: float) -> tuple[BetaLoss, ...]:
    """Return the losses of a path in the units of y, the squared error without its ½."""
    if path is None:
        return ()
    factor = 2.0 if path.loss == "square_loss" else 1.0
    return tuple(
        BetaLoss(
            beta=point.beta,
            loss=factor * point.validation_loss,
            error=factor * point.validation_error,
        )
        for point in path.in_units(scale).points
    )
