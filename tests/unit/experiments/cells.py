"""Cells of a small problem, and functions in place of one that trains."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from directgp.datasets.problem import Problem
from directgp.errors import NumericalError, require
from directgp.experiments.cell import METHODS, Cell, Circumstances, Record, TrainingOutcome
from directgp.experiments.engine import RunCallback, Runner
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, Pool
from directgp.training.run import Monitor
from tests.unit.experiments.small import problem

PROBLEM = problem()


class SmallOutcome(TrainingOutcome):
    """The numbers of a `SmallCell`, with those that JSON does not have."""

    history: tuple[float, ...]


class SmallCell(Cell):
    """A method on some rows of the small problem."""

    outcome_type = SmallOutcome

    dataset: str = "small"
    method: str
    size: int = 30
    repeat: int = 0

    @property
    @override
    def start(self) -> "SmallCell | None":
        return self.replace(method="elbo") if self.method == "log-fixed" else None

    @property
    @override
    def title(self) -> str:
        return f"{self.dataset}, {self.size:,} rows, {self.method}, repeat {self.repeat + 1}"

    @property
    @override
    def group(self) -> str:
        return METHODS[self.method].label


SmallRecord = Record[SmallCell, SmallOutcome]


def small_cell(method: str = "elbo", repeat: int = 0, **fields: Any) -> SmallCell:
    return SmallCell(method=method, repeat=repeat, **fields)


CELLS = [small_cell(method, repeat) for repeat in range(6) for method in ("elbo", "log-fixed")]


def outcome(nll: float = 0.5, seconds: float = 1.0) -> SmallOutcome:
    return SmallOutcome(
        scores={"nll": nll},
        num_test=15,
        beta=1.0,
        history=(float("nan"), float("inf")),
        status="converged",
        reason="It did.",
        evaluations=3,
        seconds=seconds,
    )


CIRCUMSTANCES = Circumstances(
    versions={"directgp": "1"}, machine="small", device="CPU", finished="2026-01-01T00:00:00+00:00"
)


def finished(
    cell: SmallCell, nll: float = 0.5, seconds: float = 1.0, model: bytes = b""
) -> SmallRecord:
    losses = np.arange(6, dtype=np.float32).reshape(2, 3)
    return Record(cell, outcome(nll, seconds), CIRCUMSTANCES, {"losses": losses}, model)


def targets_of(cell: SmallCell, data: Problem) -> NDArray[np.float64]:
    """Return the targets of the cell's rows, others for each repeat."""
    require(cell.size <= len(data.y), "size", f"at most {len(data.y)}", cell.size)
    order = np.random.default_rng(cell.repeat).permutation(len(data.y))
    return data.y[order[: cell.size]]


def measured(
    cell: SmallCell, targets: NDArray[np.float64], start: bytes, monitors: Sequence[Monitor]
) -> SmallRecord:
    """Return a number that depends on the rows and the start."""
    return finished(cell, float(targets.sum() + sum(start)), model=cell.key.encode())


def failing(cell: SmallCell, *_: Any, **__: Any) -> SmallRecord:
    raise NumericalError("No way down.")


def run_cells(
    cells: Sequence[SmallCell],
    store: Store,
    *,
    pool: Pool | None = None,
    callback: RunCallback | None = None,
    function: Callable[..., SmallRecord] = measured,
    problem_of: Callable[[SmallCell], Problem] = lambda cell: PROBLEM,
) -> None:
    """Run cells with the library's runner, in this process by default."""
    runner = Runner(store, problem_of, targets_of, function, callback or RunCallback())
    runner.run(cells, pool or InProcess())


def contents(store: Store, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the results of cells without times."""
    return {
        record.cell.key: (
            without_seconds(json.loads(record.outcome.model_dump_json())),
            {name: values.tobytes() for name, values in record.arrays.items()},
            store.model(record.cell),
        )
        for record in store.records(cells)
    }


def without_seconds(facts: dict[str, Any]) -> str:
    points = [{**point, "seconds": 0} for point in facts.get("points", [])]
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


def measured_by_two(cell: SmallCell, *arguments: Any, **settings: Any) -> SmallRecord:
    """Wait for a second program; then do as `measured`."""
    note(f"{os.getpid()} {cell.key}")
    wait_for(2)
    return measured(cell, *arguments, **settings)


def endless(cell: Cell, *_: Any, **__: Any) -> Any:
    """Run until the process is killed."""
    note(str(os.getpid()))
    time.sleep(120)
    raise AssertionError("nobody killed it")


def run_alone(store: Path, log: Path, function: Callable[..., SmallRecord]) -> None:
    """Run the cells in a process of their own, with a file for its notes."""
    os.environ[LOG] = str(log)
    with Store(store) as opened:
        run_cells(CELLS, opened, function=function)
