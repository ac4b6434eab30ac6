"""The runner: each cell once, its failures kept, lost workers replaced."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from directgp.datasets.problem import Problem
from directgp.errors import InvalidInputError, StoreError
from directgp.experiments.cell import Cell, Record
from directgp.experiments.engine import Runner
from directgp.experiments.store import Store
from directgp.experiments.workers import Call, FailedJob, InProcess, OpenPool, Pool, WorkerStatus
from directgp.training.result import Progress
from directgp.training.run import Monitor
from tests.unit.experiments.cells import (
    CELLS,
    PROBLEM,
    SmallCell,
    SmallRecord,
    contents,
    failing,
    finished,
    measured,
    run_cells,
    small_cell,
    targets_of,
)
from tests.unit.experiments.small import Recorder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


def sweep(
    store: Store,
    cells: Sequence[SmallCell] = CELLS,
    function: Callable[..., SmallRecord] = measured,
) -> Recorder:
    seen = Recorder()
    run_cells(cells, store, callback=seen, function=function)
    return seen


def test_each_cell_has_its_rows_and_its_start(store: Store) -> None:
    seen = sweep(store)
    assert [cell for cell, _ in seen.results] == seen.begun == CELLS and seen.known == 0
    for record in store.records(CELLS):
        start = record.cell.start
        model = b"" if start is None else start.key.encode()
        total = targets_of(record.cell, PROBLEM).sum() + sum(model)
        assert record.outcome.model_dump()["scores"] == {"nll": total}


def test_finished_cells_are_not_run_again(store: Store) -> None:
    sweep(store, CELLS[:3])
    before = contents(store, CELLS)
    seen = sweep(store, CELLS)
    assert seen.begun == CELLS[3:] and seen.known == 3
    after = contents(store, CELLS)
    assert len(after) == len(CELLS) and all(after[key] == each for key, each in before.items())
    assert sweep(store, CELLS, failing).begun == []


def test_a_sweep_runs_the_cells_that_others_start_from(store: Store) -> None:
    seen = sweep(store, [small_cell("log-fixed")])
    assert seen.begun == [small_cell(), small_cell("log-fixed")]


def test_failures_are_kept_and_tried_again(store: Store) -> None:
    cells = [small_cell("log-fixed"), small_cell("fitc")]
    seen = sweep(store, cells, failing)
    expected = {
        small_cell(): "No way down.",
        cells[0]: "The run that it starts from failed: No way down.",
        cells[1]: "No way down.",
    }
    assert {cell: result for cell, result in seen.results} == {
        cell: FailedJob(reason) for cell, reason in expected.items()
    }
    assert {each.cell: each.reason for each in store.failures(list(expected))} == expected
    sweep(store, cells, failing)
    assert {each.attempts for each in store.failures(list(expected))} == {2}
    assert len(sweep(store, cells).results) == 3
    assert store.failures(list(expected)) == []
    assert len(store.records(list(expected))) == 3


def test_a_data_set_that_cannot_be_loaded_fails_its_cells_alone(store: Store) -> None:
    def problem_of(cell: SmallCell) -> Problem:
        if cell.dataset == "gone":
            raise InvalidInputError("It cannot be fetched.")
        return PROBLEM

    cells = [
        small_cell("fitc", dataset="gone"),
        small_cell(dataset="gone"),
        small_cell("fitc"),
        small_cell(),
    ]
    run_cells(cells, store, problem_of=problem_of)
    assert {each.reason for each in store.failures(cells)} == {"It cannot be fetched."}
    assert [each.cell for each in store.records(cells)] == cells[2:]


def test_a_broken_store_ends_the_run(store: Store) -> None:
    def problem_of(cell: SmallCell) -> Problem:
        raise StoreError("Damaged.")

    with pytest.raises(StoreError):
        run_cells(CELLS, store, problem_of=problem_of)


def test_rows_that_do_not_exist_fail_their_cell_alone(store: Store) -> None:
    cells = [small_cell(size=1000), small_cell("fitc")]
    sweep(store, cells)
    assert [each.cell for each in store.failures(cells)] == cells[:1]


class Interrupted(Recorder):
    """Ctrl-C after the first cell."""

    def finished(self, cell: Cell, result: Record[Any, Any] | FailedJob) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_sweep_keeps_what_is_done_and_nothing_else(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_cells(CELLS, store, callback=Interrupted())
    assert [each.cell for each in store.records(CELLS)] == CELLS[:1]
    with Store(tmp_path / "store") as other:
        assert other.view().leased == set() and not other.failures(CELLS)


class Elsewhere(Recorder):
    """Does as another program the first time that this one has nothing to do."""

    def __init__(self, other: Store, result: SmallRecord | FailedJob) -> None:
        super().__init__()
        self.other, self.result = other, result

    def update(self, statuses: Sequence[WorkerStatus]) -> None:
        if self.other.view().failed or small_cell() in self.other:
            return
        if isinstance(self.result, FailedJob):
            self.other.fail(small_cell(), self.result.reason)
        else:
            self.other.put(self.result)


@pytest.mark.parametrize(
    "result", [finished(small_cell(), model=b"other"), FailedJob("Not there either.")]
)
def test_cells_that_another_program_runs_are_waited_for(
    store: Store, tmp_path: Path, result: SmallRecord | FailedJob
) -> None:
    with Store(tmp_path / "store") as other:
        assert other.lease(small_cell())
        seen = Elsewhere(other, result)
        cells = [small_cell("log-fixed")]
        run_cells(cells, store, callback=seen)
    assert (
        seen.begun == [cell for cell, _ in seen.results] == [small_cell(), small_cell("log-fixed")]
    )
    told = seen.results[0][1]
    if isinstance(result, FailedJob):
        assert told == result
        assert seen.results[1][1] == FailedJob(
            f"The run that it starts from failed: {result.reason}"
        )
    else:
        assert isinstance(told, Record) and told.outcome.model_dump()["scores"] == {"nll": 0.5}
        assert isinstance(seen.results[1][1], Record)


@dataclass
class Breaking(Pool, OpenPool):
    """Workers that are lost with one of the jobs, when it is submitted or when it runs."""

    bad: int
    at_submit: bool
    opened: list[int]
    size: int = 2
    broken: bool = False

    @contextmanager
    def open(self, deadline: float = math.inf) -> Iterator[OpenPool]:
        self.opened.append(self.size)
        self.broken = False
        yield self

    def after_loss(self) -> Pool:
        return Breaking(self.bad, self.at_submit, self.opened, 1)

    def capacity(self) -> int:
        return self.size

    def statuses(self) -> list[WorkerStatus]:
        return []

    def submit(self, number: int, call: Call) -> Future[Any]:
        future: Future[Any] = Future()
        self.broken = self.broken or number == self.bad
        if number == self.bad and self.at_submit:
            raise BrokenProcessPool
        if self.broken:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(finished(call.cell))
        return future


@pytest.mark.parametrize("at_submit", [False, True])
def test_a_job_that_kills_its_worker_is_tried_twice(store: Store, at_submit: bool) -> None:
    opened: list[int] = []
    cells = [small_cell(repeat=repeat) for repeat in range(4)]
    seen = Recorder()
    run_cells(cells, store, pool=Breaking(1, at_submit, opened), callback=seen)
    assert len(seen.results) == len(cells) == len(dict(seen.results))
    (failed,) = store.failures(cells)
    assert failed.cell == cells[1] and failed.attempts == 1
    assert failed.reason == "The system ended its process twice, perhaps for lack of memory."
    # The interrupted jobs are retried one at a time; then there are two workers again.
    assert opened[0] == opened[-1] == 2 and set(opened[1:-1]) == {1}


def training(
    cell: SmallCell, targets: Any, start: bytes, monitors: Sequence[Monitor]
) -> SmallRecord:
    """Train for a minute, and check at every step whether to stop."""
    for step in range(1, 601):
        monitors[0](Progress("elbo", step, 600, step, 0.0, 0.0, 0.0))
        time.sleep(0.1)
    return finished(cell)


def test_a_time_budget_stops_a_job_in_this_process(store: Store) -> None:
    runner = Runner(store, lambda cell: PROBLEM, targets_of, training)
    began = time.monotonic()
    assert not runner.run(CELLS, InProcess(), time_budget=0.3)
    assert time.monotonic() - began < 30
    assert store.records(CELLS) == [] and store.failures(CELLS) == []
    # The next run continues.
    assert len(sweep(store).results) == len(CELLS)


def test_waiting_does_not_spin(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with Store(tmp_path / "store") as other:
        assert other.lease(small_cell())
        seen = Elsewhere(other, finished(small_cell()))
        run_cells([small_cell()], store, callback=seen)
    assert len(slept) >= 1
