"""Compare methods on one data set: run the cells of a plan that have no result yet."""

import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from directgp.datasets.problem import Problem
from directgp.environment import machine, versions
from directgp.errors import require
from directgp.estimators.settings import device_of
from directgp.experiments.compare_cell import ComparedFit
from directgp.experiments.engine import RunCallback, Runner
from directgp.experiments.fit import compare_rows, run_compare_cell
from directgp.experiments.plan import Comparison, Plan
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers
from directgp.registry import LIKELIHOODS, OwnLikelihoodRow


def compare(
    problem: Problem,
    plan: Plan,
    store: str | os.PathLike[str],
    *,
    workers: int = 0,
    callback: RunCallback | None = None,
    command: str = "",
    time_budget: float | None = None,
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
    time_budget : float
        Seconds after which no fit goes on; the repeats that are complete by then are returned. The
        next call with this store continues.
    """
    allowed = time_budget is None or time_budget > 0
    require(allowed, "time_budget", "positive", time_budget)
    device_of(plan.settings.device, "compare")
    noise = plan.settings.likelihood
    only_here = workers > 0 and isinstance(LIKELIHOODS.get(noise), OwnLikelihoodRow)
    got = f"{workers} with the likelihood {noise!r}, registered in this process only"
    require(not only_here, "workers", "0", got, "Run the comparison in this process.")
    since = time.perf_counter()
    began = datetime.now(UTC)
    cells = plan.cells()
    with Store(Path(store)) as opened:
        runner = Runner(
            opened, lambda cell: problem, compare_rows, run_compare_cell, callback or RunCallback()
        )
        pool = LocalWorkers(workers) if workers else InProcess()
        complete = runner.run(cells, pool, time_budget)
        asked = plan.repeats
        if not complete:
            view = opened.view()
            ended = view.finished | view.failed.keys()
            # Cells that failed in an earlier run count as ended, whether tried again or not.
            left = min((cell.repeat for cell in cells if cell.key not in ended), default=asked)
            # Of a single repeat, what was finished is better than nothing.
            plan = replace(plan, repeats=max(left, 1))
            cells = plan.cells()
        records = opened.records(cells)
        failed = opened.failures(cells)
    return Comparison(
        plan=plan,
        runs=tuple(map(ComparedFit.of, records)),
        failed=tuple(failed),
        versions=versions(),
        machine=_machine(plan.settings.device, workers),
        command=command,
        began=began.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - since,
        repeats_asked=None if complete else asked,
        damaged=len(opened.damaged),
    )


def _machine(device: str, workers: int) -> str:
    """Describe the machine and the number of workers."""
    fits = "one fit at a time" if workers <= 1 else f"{workers} fits at once"
    where = f"{machine()}, {fits}"
    if device == "cpu":
        return f"{where}, one core each" if workers > 1 else where
    return f"{where} on {torch.cuda.get_device_name()}"
