"""A small problem and a short plan for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from directgp.datasets.problem import Problem
from directgp.experiments.cell import Cell, Record, methods_to_compare, suited_methods
from directgp.experiments.compare_cell import Settings
from directgp.experiments.engine import RunCallback
from directgp.experiments.plan import DataFacts, Plan
from directgp.experiments.splits import parts_of
from directgp.experiments.workers import FailedJob, WorkerStatus
from directgp.registry import Task

LIKELIHOOD = {"regression": "gaussian", "classification": "probit", "count": "poisson"}


def problem(task: Task = "regression", n: int = 60) -> Problem:
    """A smooth function of the first of two features."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n, 2))
    f = np.sin(2 * X[:, 0])
    y = {
        "regression": 50 + 10 * (f + 0.2 * random.normal(size=n)),
        "classification": (f + 0.5 * random.normal(size=n) > 0.3).astype(np.float64),
        "count": random.poisson(np.exp(1 + f)).astype(np.float64),
    }[task]
    return Problem(
        name="small",
        task=task,
        target="y",
        feature_names=("a", "b"),
        X=X,
        y=y,
        classes=("no", "yes") if task == "classification" else None,
        source="small.csv",
        notes=(),
        rows=np.arange(n),
    )


def plan(
    given: Problem,
    methods: Sequence[str] | None = None,
    repeats: int = 1,
    sizes: tuple[int, ...] = (30,),
    max_steps: int | None = 3,
    likelihood: str | None = None,
) -> Plan:
    """Few steps, few inducing inputs and three β."""
    noise = likelihood or (LIKELIHOOD[given.task] if given.num_classes == 2 else "softmax")
    return Plan(
        data=DataFacts.of(given),
        methods=suited_methods(given.task)
        if methods is None
        else methods_to_compare(given.task, methods, noise),
        repeats=repeats,
        sizes=sizes,
        seed=0,
        settings=Settings(
            likelihood=noise,
            kernel="rbf",
            ard=True,
            num_inducing=5,
            betas=(4.0, 1.0, 0.25),
            max_steps=max_steps,
        ),
        parts=parts_of(len(given.y)),
    )


@dataclass
class Recorder(RunCallback):
    """A callback that keeps what it receives."""

    begun: list[Cell] = field(default_factory=list)
    known: int = -1
    results: list[tuple[Cell, Record[Any, Any] | FailedJob]] = field(default_factory=list)
    updates: int = 0

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        self.begun, self.known = list(cells), known

    def finished(self, cell: Cell, result: Record[Any, Any] | FailedJob) -> None:
        self.results.append((cell, result))

    def update(self, statuses: Sequence[WorkerStatus]) -> None:
        self.updates += 1
