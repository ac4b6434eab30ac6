"""Sweeps: alone, beside another program, and after one that was killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from directgp.datasets.problem import Problem
from directgp.errors import InvalidInputError
from directgp.experiments.paper.cells import Finished, PaperCell
from directgp.experiments.paper.fits import rows_of
from directgp.experiments.paper.run import Problems, run_sweep
from directgp.experiments.paper.store import SharedStore
from directgp.experiments.workers import Activity, InProcess, Refused
from tests.unit.experiments.paper import sweeps
from tests.unit.experiments.paper.sweeps import (
    CELLS,
    GIVEN,
    LOG,
    Seen,
    contents,
    fit,
    given,
    measured,
    refused,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SharedStore]:
    with SharedStore(tmp_path / "store") as opened:
        yield opened


def sweep(
    store: SharedStore,
    cells: Sequence[PaperCell] = CELLS,
    function: Callable[..., Finished] = measured,
) -> Seen:
    seen = Seen()
    run_sweep(cells, given, store, InProcess(), watcher=seen, function=function)
    return seen


def test_each_cell_has_its_rows_and_its_start(store: SharedStore) -> None:
    seen = sweep(store)
    assert [cell for cell, _ in seen.results] == seen.begun == CELLS and seen.known == 0
    for record in store.records():
        start = record.cell.start
        model = b"" if start is None else start.key.encode()
        total = rows_of(GIVEN, record.cell).y_train.sum() + sum(model)
        assert record.outcome.model_dump()["scores"] == {"nll": total}


def test_what_is_there_is_not_run_again(store: SharedStore) -> None:
    sweep(store, CELLS[:3])
    before = contents(store)
    seen = sweep(store, CELLS)
    assert seen.begun == CELLS[3:] and seen.known == 3
    after = contents(store)
    assert len(after) == len(CELLS) and all(after[key] == each for key, each in before.items())
    assert sweep(store, CELLS, refused).begun == []


def test_what_others_start_from_is_run_though_nobody_asked(store: SharedStore) -> None:
    seen = sweep(store, [fit("log-fixed")])
    assert seen.begun == [fit(), fit("log-fixed")]


def test_failures_are_kept_and_tried_again(store: SharedStore) -> None:
    cells = [fit("log-fixed"), fit("fitc")]
    seen = sweep(store, cells, refused)
    expected = {
        fit(): "No way down.",
        cells[0]: "The run that it starts from failed: No way down.",
        cells[1]: "No way down.",
    }
    assert {cell: result for cell, result in seen.results} == {
        cell: Refused(reason) for cell, reason in expected.items()
    }
    assert {each.cell: each.reason for each in store.failures()} == expected
    sweep(store, cells, refused)
    assert {each.attempts for each in store.failures()} == {2}
    assert len(sweep(store, cells).results) == 3
    assert store.failures() == [] and len(store.records()) == 3


def test_failures_may_be_left_alone(store: SharedStore) -> None:
    store.fail(fit("fitc"), "Before.")
    store.fail(fit(), "Before.")
    seen = Seen()
    cells = [fit("log-fixed"), fit("fitc"), fit("fitc", repeat=1)]
    run_sweep(cells, given, store, InProcess(), watcher=seen, again=False, function=measured)
    assert seen.begun == [fit("log-fixed"), fit("fitc", repeat=1)]
    assert [each.cell for each in store.records()] == [fit("fitc", repeat=1)]
    reasons = {each.cell: each.reason for each in store.failures()}
    assert reasons[fit("log-fixed")] == "The run that it starts from failed: Before."


def test_data_that_cannot_be_had_are_asked_for_once(store: SharedStore) -> None:
    asked: list[str] = []

    def problem_of(name: str) -> Problem:
        asked.append(name)
        if name == "gone":
            raise InvalidInputError("It cannot be fetched.")
        return GIVEN

    cells = [fit("fitc", dataset="gone"), fit(dataset="gone"), fit("fitc"), fit()]
    run_sweep(cells, problem_of, store, InProcess(), function=measured)
    assert asked == ["gone", "small"]
    assert {each.reason for each in store.failures()} == {"It cannot be fetched."}
    assert {each.cell.dataset for each in store.records()} == {"small"}


def test_the_last_few_data_sets_are_kept() -> None:
    asked: list[str] = []

    def problem_of(name: str) -> Problem:
        asked.append(name)
        return GIVEN

    problems = Problems(problem_of)
    for name in "abcabcda":
        problems.get(name)
    assert "".join(asked) == "abcda"


class Interrupted(Seen):
    """Ctrl-C after the first cell."""

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_sweep_keeps_what_is_done_and_nothing_else(
    store: SharedStore, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_sweep(CELLS, given, store, InProcess(), watcher=Interrupted(), function=measured)
    assert [each.cell for each in store.records()] == CELLS[:1]
    with SharedStore(tmp_path / "store") as other:
        assert other.view().taken == set() and not other.failures()


class Elsewhere(Seen):
    """Does as another program the first time that this one has nothing to do."""

    def __init__(self, other: SharedStore, result: Finished | Refused) -> None:
        super().__init__()
        self.other, self.result = other, result

    def looking(self, active: Sequence[Activity]) -> None:
        if self.other.view().failing or fit() in self.other:
            return
        if isinstance(self.result, Refused):
            self.other.fail(fit(), self.result.reason)
        else:
            self.other.put(fit(), self.result)


@pytest.mark.parametrize("result", [sweeps.finished(model=b"other"), Refused("Not there either.")])
def test_what_another_program_has_under_way_is_waited_for(
    store: SharedStore, tmp_path: Path, result: Finished | Refused
) -> None:
    with SharedStore(tmp_path / "store") as other:
        assert other.claim(fit())
        seen = Elsewhere(other, result)
        cells = [fit("log-fixed")]
        run_sweep(cells, given, store, InProcess(), watcher=seen, function=measured)
    assert seen.begun == [cell for cell, _ in seen.results] == [fit(), fit("log-fixed")]
    told = seen.results[0][1]
    if isinstance(result, Refused):
        assert told == result
        assert seen.results[1][1] == Refused(f"The run that it starts from failed: {result.reason}")
    else:
        assert isinstance(told, Finished) and told.outcome.model_dump()["scores"] == {"nll": 0.5}
        assert isinstance(seen.results[1][1], Finished)


def program(store: Path, function: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.unit.experiments.paper.sweeps", str(store), function]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_two_programs_share_the_work(
    store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    other = program(tmp_path / "store", "noted")
    sweep(store, CELLS, sweeps.noted)
    assert other.wait() == 0
    lines = [line.split() for line in sweeps.notes()]
    assert Counter(key for _, key in lines) == {cell.key: 1 for cell in CELLS}
    assert {int(pid) for pid, _ in lines} == {os.getpid(), other.pid}
    with SharedStore(tmp_path / "alone") as alone:
        sweep(alone)
        assert contents(alone) == contents(store)


class Killer(Seen):
    """Kills another program as soon as this one waits for it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.process = process

    def looking(self, active: Sequence[Activity]) -> None:
        if self.process.poll() is None and len(self.results) == len(CELLS) - 2:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def test_what_a_killed_program_had_under_way_is_taken_over(
    store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    process = program(tmp_path / "store", "endless")
    sweeps.wait_for(1)
    assert store.view().taken == {CELLS[0].key} and not store.claim(CELLS[0])
    seen = Killer(process)
    run_sweep(CELLS, given, store, InProcess(), watcher=seen, function=measured)
    assert process.returncode == -signal.SIGKILL
    # All but the cell of the other and the one that starts from it could be run before.
    assert [cell for cell, _ in seen.results] == [*CELLS[2:], *CELLS[:2]]
    assert len(store.records()) == len(CELLS)
