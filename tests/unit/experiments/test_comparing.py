"""Run a plan, interrupt it, and resume it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from directgp.errors import NumericalError
from directgp.experiments import engine
from directgp.experiments.cell import Cell, Record
from directgp.experiments.fit import CellData, run_compare_cell
from directgp.experiments.plan import CompareCell, CompareOutcome, Comparison, Plan
from directgp.experiments.stats import ranking
from directgp.experiments.workers import FailedJob
from directgp.training.run import Monitor
from tests.unit.experiments.small import Recorder, plan, problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")

GIVEN = problem()


def compare(whole: Plan, path: Path, record: Recorder | None = None) -> Comparison:
    return engine.compare(GIVEN, whole, path, callback=record)


def results(comparison: Comparison) -> dict[str, str]:
    """By key, without times."""
    return {
        run.cell.key: run.outcome.model_copy(update={"seconds": 0.0}).model_dump_json()
        for run in comparison.runs
    }


def test_every_cell_is_run_once(tmp_path: Path) -> None:
    whole = plan(GIVEN, ["elbo", "log-fixed"], repeats=2, sizes=(20, 30))
    record = Recorder()
    comparison = compare(whole, tmp_path / "store", record)
    assert [run.cell for run in comparison.runs] == list(whole.cells())
    assert len(record.begun) == len(record.results) == 8 and not comparison.failed
    again = Recorder()
    assert results(compare(whole, tmp_path / "store", again)) == results(comparison)
    assert again.begun == [] and again.known == 8


def test_what_others_start_from_is_run_though_nobody_asked(tmp_path: Path) -> None:
    record = Recorder()
    comparison = compare(plan(GIVEN, ["log-fixed"]), tmp_path / "store", record)
    assert [cell.model_dump()["method"] for cell in record.begun] == ["elbo", "log-fixed"]
    assert [run.cell.method for run in comparison.runs] == ["log-fixed"]


class Broken(Recorder):
    """Breaks off when so many fits are done."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def finished(self, cell: Cell, result: Record[Any, Any] | FailedJob) -> None:
        super().finished(cell, result)
        if len(self.results) == self.after:
            raise KeyboardInterrupt


def test_a_broken_run_goes_on_and_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    whole = plan(GIVEN, ["elbo", "fitc", "log-fixed", "square-fixed"], repeats=2)
    unbroken = results(compare(whole, tmp_path / "unbroken"))
    begun = []
    for after in (1, 2, 3):
        record = Broken(after)
        with pytest.raises(KeyboardInterrupt):
            compare(whole, tmp_path / "broken", record)
        begun.append(len(record.begun))
    assert begun == [8, 7, 5]
    assert results(compare(whole, tmp_path / "broken")) == unbroken


def test_a_failure_is_told_and_takes_along_what_starts_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(
        cell: CompareCell, data: CellData, elbo: bytes = b"", monitors: Sequence[Monitor] = ()
    ) -> Record[CompareCell, CompareOutcome]:
        if cell.method == "elbo" and cell.repeat == 1:
            raise NumericalError("No way down.")
        return run_compare_cell(cell, data, elbo, monitors)

    monkeypatch.setattr(engine, "run_compare_cell", failing)
    whole = plan(GIVEN, ["elbo", "fitc", "log-fixed"], repeats=2)
    comparison = compare(whole, tmp_path / "store")
    told = [(f.cell.method, f.cell.repeat, f.reason) for f in comparison.failed]
    assert told == [
        ("elbo", 1, "No way down."),
        ("log-fixed", 1, "The run that it starts from failed: No way down."),
    ]
    # The repeat that not all have finished does not count.
    assert [len(s.betas) for s in ranking(comparison, 30)] == [1, 1, 1]
    monkeypatch.undo()
    record = Recorder()
    assert not compare(whole, tmp_path / "store", record).failed
    assert len(record.begun) == 2


def test_an_unexpected_error_fails_its_fit_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(
        cell: CompareCell, data: CellData, elbo: bytes = b"", monitors: Sequence[Monitor] = ()
    ) -> Record[CompareCell, CompareOutcome]:
        if cell.method == "fitc":
            raise MemoryError("no room")
        return run_compare_cell(cell, data, elbo, monitors)

    monkeypatch.setattr(engine, "run_compare_cell", failing)
    comparison = compare(plan(GIVEN, ["elbo", "fitc"]), tmp_path / "store")
    assert [f.reason for f in comparison.failed] == ["MemoryError: no room"]
    assert len(comparison.runs) == 1


def test_a_start_that_nobody_asked_for_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(cell: Cell, *_: object, **__: object) -> None:
        raise NumericalError("No way down.")

    monkeypatch.setattr(engine, "run_compare_cell", failing)
    comparison = compare(plan(GIVEN, ["log-fixed"]), tmp_path / "store")
    assert [f.cell.method for f in comparison.failed] == ["log-fixed"]


def test_a_method_that_mostly_fails_is_left_out(tmp_path: Path) -> None:
    whole = plan(GIVEN, ["elbo", "fitc"], repeats=3)
    comparison = compare(whole, tmp_path / "store")
    runs = [r for r in comparison.runs if r.cell.method == "elbo" or r.cell.repeat == 1]
    found = ranking(replace(comparison, runs=tuple(runs)), 30)
    assert [(s.method.name, len(s.betas)) for s in found] == [("elbo", 3)]
