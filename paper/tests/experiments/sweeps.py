"""Cells of the paper on a small problem, and functions in place of the one that trains."""

import os
import signal
from typing import Any

import numpy as np

from directgp.datasets.problem import Problem
from directgp.errors import NumericalError
from directgp.experiments.cell import Record
from directgp_paper.experiments.cells import (
    CurveCell,
    FitCell,
    FitOutcome,
    PaperCell,
    PaperRecord,
    RuleFacts,
)
from directgp_paper.experiments.rows import PaperRows
from directgp_paper.experiments.run import run_paper_cell
from tests.unit.experiments.cells import CIRCUMSTANCES, PROBLEM, endless, note, notes


def given(name: str) -> Problem:
    return PROBLEM


def fit(method: str = "elbo", repeat: int = 0) -> FitCell:
    return FitCell(
        dataset="small",
        data="fingerprint",
        task="regression",
        size=30,
        num_inducing=5,
        repeat=repeat,
        seed=0,
        method=method,
        betas=(1.0,) if method in ("elbo", "fitc") else (4.0, 1.0, 0.25),
        protocol="best",
        max_steps=20,
    )


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


def finished(cell: PaperCell) -> PaperRecord:
    outcome = FitOutcome(
        scores={"nll": 0.5},
        num_test=15,
        num_training=40,
        beta=1.0,
        path=(),
        history=((1, float("nan")), (2, float("inf"))),
        status="converged",
        reason="It did.",
        evaluations=3,
        seconds=1.0,
    )
    losses = np.arange(6, dtype=np.float32).reshape(2, 3)
    return Record(cell, outcome, CIRCUMSTANCES, {"losses": losses})


def failing(cell: PaperCell, *_: Any, **__: Any) -> PaperRecord:
    raise NumericalError("No way down.")


def killed_once(cell: PaperCell, data: PaperRows, *others: Any, **settings: Any) -> PaperRecord:
    """The first worker that comes waits to be killed."""
    if isinstance(cell, FitCell) and cell.method == "fitc" and not notes():
        endless(cell)
    return run_paper_cell(cell, data, *others, **settings)


def deadly(cell: PaperCell, *_: Any, **__: Any) -> PaperRecord:
    """Takes its process along, as the system does when there is no memory left."""
    note(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
