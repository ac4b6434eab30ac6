"""Cells of a small problem, and functions in place of the one that trains."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from directgp.datasets.problem import Problem
from directgp.errors import NumericalError
from directgp.experiments.cell import Circumstances, Record
from directgp.experiments.paper.cells import (
    CurveCell,
    FitCell,
    FitOutcome,
    PaperCell,
    PaperRecord,
    RuleFacts,
)
from directgp.experiments.paper.run import run_paper_cell, run_sweep
from directgp.experiments.splits import CellData
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess
from directgp.training.run import Monitor
from tests.unit.experiments.small import problem

GIVEN = problem()


def given(name: str) -> Problem:
    return GIVEN


def fit(method: str = "elbo", repeat: int = 0, **others: Any) -> FitCell:
    facts: dict[str, Any] = {
        "dataset": "small",
        "data": "fingerprint",
        "task": "regression",
        "size": 30,
        "num_inducing": 5,
        "repeat": repeat,
        "seed": 0,
        "method": method,
        "betas": (1.0,) if method in ("elbo", "fitc") else (4.0, 1.0, 0.25),
        "protocol": "best",
        "max_steps": 20,
    }
    return FitCell(**{**facts, **others})


def curve() -> CurveCell:
    return CurveCell(
        **fit().model_dump(include={"dataset", "data", "task", "size", "num_inducing", "seed"}),
        repeat=0,
        objective="log_loss",
        hyperparameters="fixed",
        beta=0.1,
        rule=RuleFacts(name="ups", samples=3),
        learning_rate=0.01,
        batch_size=8,
        steps=20,
        every=5,
        num_test=10,
    )


def outcome(nll: float = 0.5, seconds: float = 1.0) -> FitOutcome:
    return FitOutcome(
        scores={"nll": nll},
        num_test=15,
        num_training=40,
        beta=1.0,
        path=(),
        history=((1, float("nan")), (2, float("inf"))),
        status="converged",
        reason="It did.",
        evaluations=3,
        seconds=seconds,
    )


CIRCUMSTANCES = Circumstances(
    versions={"directgp": "1"}, machine="small", device="CPU", finished="2026-01-01T00:00:00+00:00"
)


def finished(
    cell: PaperCell, nll: float = 0.5, seconds: float = 1.0, model: bytes = b""
) -> PaperRecord:
    losses = np.arange(6, dtype=np.float32).reshape(2, 3)
    return Record(cell, outcome(nll, seconds), CIRCUMSTANCES, {"losses": losses}, model)


def measured(
    cell: PaperCell, data: CellData, start: bytes, monitors: Sequence[Monitor], device: str
) -> PaperRecord:
    """Return a number that depends on the rows and the start."""
    return finished(cell, float(data.train[1].sum() + sum(start)), model=cell.key.encode())


def failing(cell: PaperCell, *_: Any, **__: Any) -> PaperRecord:
    raise NumericalError("No way down.")


def contents(store: Store, cells: Sequence[PaperCell]) -> dict[str, Any]:
    """Return the results of cells without times."""
    return {
        record.cell.key: (
            without_seconds(json.loads(record.outcome.model_dump_json())),
            {name: values.tobytes() for name, values in record.arrays.items()},
            store.model(record.cell),
        )
        for record in store.records(cells)
    }


def without_seconds(facts: Any) -> str:
    points = [{**each, "seconds": 0} for each in facts.get("points", [])]
    return json.dumps({**facts, "seconds": 0, "points": points})


LOG = "DIRECTGP_TEST_LOG"
"""Names a file in which programs and workers leave notes."""


def notes() -> list[str]:
    log = Path(os.environ[LOG])
    return log.read_text().splitlines() if log.exists() else []


def note(text: str) -> None:
    with Path(os.environ[LOG]).open("a") as log:
        log.write(f"{text}\n")


def wait_for(notes_wanted: int) -> None:
    until = time.monotonic() + 60
    while len(set(notes())) < notes_wanted:
        assert time.monotonic() < until, "the others did not come"
        time.sleep(0.02)


def noted(cell: PaperCell, *others: Any, **settings: Any) -> PaperRecord:
    """Waits for a second program; then as `measured`."""
    note(f"{os.getpid()} {cell.key}")
    wait_for(2)
    return measured(cell, *others, **settings)


def endless(cell: PaperCell, *_: Any, **__: Any) -> PaperRecord:
    """Until it is killed."""
    note(str(os.getpid()))
    time.sleep(120)
    raise AssertionError("nobody killed it")


def killed_once(cell: PaperCell, data: CellData, *others: Any, **settings: Any) -> PaperRecord:
    """The first worker that comes waits to be killed."""
    if isinstance(cell, FitCell) and cell.method == "fitc" and not notes():
        endless(cell)
    return run_paper_cell(cell, data, *others, **settings)


def deadly(cell: PaperCell, *_: Any, **__: Any) -> PaperRecord:
    """Takes its process along, as the system does when there is no memory left."""
    note(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


CELLS = [fit(method, repeat) for repeat in range(6) for method in ("elbo", "log-fixed")]


def sweep_alone(store: Path, log: Path, function: Callable[..., PaperRecord]) -> None:
    """A sweep in a process of its own, with a file for its notes."""
    os.environ[LOG] = str(log)
    with Store(store) as opened:
        run_sweep(CELLS, given, opened, InProcess(), function=function)
