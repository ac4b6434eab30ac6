"""The engine, with a client that only takes notes and workers that are killed."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import pytest

from directgp.experiments import engine
from directgp.experiments.board import Activity, Board
from directgp.experiments.cells import Cell
from directgp.experiments.engine import Engine
from directgp.experiments.results import Finished
from directgp.experiments.training_rows import CellData
from directgp.experiments.worker import Refused
from tests.unit.experiments.small import plan, problem

GIVEN = problem()
CELLS = plan(GIVEN, ["elbo", "fitc"], repeats=2).cells()


class Notes:
    """A client whose cells are all ready."""

    def __init__(self) -> None:
        self.results: list[tuple[Cell, Finished | Refused]] = []

    def ready(self, cell: Cell) -> bool:
        return True

    def obstacle(self, cell: Cell) -> str | None:
        return None

    def inputs(self, cell: Cell) -> tuple[CellData, bytes]:
        return CellData.of(GIVEN, cell), b""

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        self.results.append((cell, result))

    def looking(self, active: Sequence[Activity]) -> None:
        pass


class Breaking(Executor):
    """A pool that is broken by some of the cells, as they begin or as they are submitted."""

    def __init__(self, bad: Cell, at_submit: bool) -> None:
        self.bad, self.at_submit, self.broken = bad, at_submit, False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if args[0] == self.bad:
            self.broken = True
            if self.at_submit:
                raise BrokenProcessPool
        if self.broken:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(Refused("ran"))
        return future


@pytest.mark.parametrize("at_submit", [False, True])
def test_a_cell_that_kills_its_worker_is_tried_twice(
    at_submit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[int] = []

    @contextmanager
    def pool(workers: int) -> Iterator[engine._Pool]:
        pools.append(workers)
        yield engine._Pool(Breaking(CELLS[1], at_submit), Board(1), lambda *_: Refused("ran"))

    monkeypatch.setattr(engine, "_pool", pool)
    notes = Notes()
    Engine(notes, workers=2).run(CELLS)
    told = {cell.key: result for cell, result in notes.results}
    assert len(notes.results) == len(CELLS) == len(told)
    killed = Refused("Its process was ended by the system twice, perhaps for lack of memory.")
    assert told[CELLS[1].key] == killed
    assert all(told[cell.key] == Refused("ran") for cell in CELLS if cell != CELLS[1])
    # After the first loss one at a time.
    assert pools[0] == 2 and set(pools[1:]) == {1}


def test_workers_do_not_hear_ctrl_c_from_their_first_moment() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    command = [sys.executable, "-c", code]
    with engine._deaf_to_ctrl_c():
        within = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (within, after) == ("True\n", "False\n")
