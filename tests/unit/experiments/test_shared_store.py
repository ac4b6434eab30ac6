"""Programs with one store: two share the work, and one takes over from one that was killed."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from directgp.experiments.store import Store
from directgp.experiments.workers import WorkerStatus
from tests.unit.experiments.cells import (
    CELLS,
    LOG,
    SmallRecord,
    contents,
    endless,
    measured_by_two,
    notes,
    run_alone,
    run_cells,
    wait_for,
)
from tests.unit.experiments.small import Recorder
from tests.unit.forked import FORKS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


def begun(folder: Path, function: Callable[..., SmallRecord]) -> BaseProcess:
    """Another program, with the same cells and the same store."""
    other = FORKS.Process(target=run_alone, args=(folder / "store", folder / "log", function))
    other.start()
    return other


def test_two_programs_share_the_work(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    other = begun(tmp_path, measured_by_two)
    run_cells(CELLS, store, function=measured_by_two)
    other.join()
    assert other.exitcode == 0
    lines = [line.split() for line in notes()]
    assert Counter(key for _, key in lines) == {cell.key: 1 for cell in CELLS}
    assert {int(pid) for pid, _ in lines} == {os.getpid(), other.pid}
    with Store(tmp_path / "alone") as alone:
        run_cells(CELLS, alone)
        assert contents(alone, CELLS) == contents(store, CELLS)


class Killer(Recorder):
    """Kills another program as soon as this one waits for it."""

    def __init__(self, process: BaseProcess) -> None:
        super().__init__()
        self.process = process

    def update(self, statuses: Sequence[WorkerStatus]) -> None:
        if self.process.is_alive() and len(self.results) == len(CELLS) - 2:
            self.process.kill()
            self.process.join()


def test_the_cell_of_a_killed_program_is_taken_over(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    process = begun(tmp_path, endless)
    wait_for(1)
    assert store.view().leased == {CELLS[0].key} and not store.lease(CELLS[0])
    seen = Killer(process)
    run_cells(CELLS, store, callback=seen)
    assert process.exitcode == -signal.SIGKILL
    # All but the cell of the other and the one that starts from it could be run before.
    assert [cell for cell, _ in seen.results] == [*CELLS[2:], *CELLS[:2]]
    assert len(store.records(CELLS)) == len(CELLS)
