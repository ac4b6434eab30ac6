"""Many programs that write the same file, folder, store or report: no write is lost."""

import json
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from directgp import files
from directgp.cli.model_folder import load_folder, write_folder
from directgp.experiments.store import Store
from directgp.io import read_file, write_file
from directgp.reports.folder import MANIFEST, ReportFolder
from directgp.training.checkpoint import CHECKPOINT
from tests.cli.running import QUICK, regression_table, run, write_csv
from tests.unit.experiments.cells import finished, small_cell
from tests.unit.forked import FORKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRAMS = 8
YOUNG = [files._YOUNG, 0.0]
"""Seconds for which drafts are left alone; with 0 only the locks protect them."""

Outcome = Counter[str]
"""By error, how often it occurred; "written" for what went well."""


class Seen:
    """The last number that each program is known to have written: no older one may follow."""

    def __init__(self, program: int) -> None:
        self.program = program
        self.last = [-1] * PROGRAMS

    def wrote(self, number: int) -> None:
        self.last[self.program] = number

    def check(self, program: int, number: int) -> None:
        newest = self.last[program]
        if program == self.program and number != newest:
            raise AssertionError("an own write came back that had been replaced")
        if number < newest:
            raise AssertionError("an older file replaced a newer one")
        self.last[program] = number


def write_files(path: Path, program: int, writes: int, outcome: Outcome) -> None:
    seen = Seen(program)
    for number in range(writes):
        value = 10_000 * program + number
        try:
            write_file(CHECKPOINT, path, {"x": torch.full((100,), value)}, {"value": value})
            seen.wrote(number)
            tensors, manifest = read_file(CHECKPOINT, path)
            seen.check(*divmod(manifest["value"], 10_000))
            assert bool((tensors["x"] == manifest["value"]).all()), "a file of two writes"
            outcome["written"] += 1
        except Exception as error:
            outcome[f"{type(error).__name__}: {_cause(error)}"] += 1


def write_models(path: Path, program: int, writes: int, outcome: Outcome) -> None:
    model, card = load_folder(path, "cpu")
    seen = Seen(program)
    for number in range(writes):
        rows = 10_000 * program + number + 1
        try:
            write_folder(path, True, model, card.model_copy(update={"rows": rows}))
            seen.wrote(number)
            seen.check(*divmod(load_folder(path, "cpu")[1].rows - 1, 10_000))
            outcome["written"] += 1
        except Exception as error:
            outcome[f"{type(error).__name__}: {_cause(error)}"] += 1


def write_results(path: Path, program: int, writes: int, outcome: Outcome) -> None:
    for number in range(writes):
        # Every cell is wanted by two programs.
        cell = small_cell(repeat=writes * (program // 2) + number)
        try:
            with Store(path) as store:
                if store.lease(cell):
                    store.put(finished(cell, 0.1, model=b"model" * 1000))
                    assert store.model(cell) == b"model" * 1000, "another model"
                    outcome["written"] += 1
                else:
                    outcome["left to another"] += 1
        except Exception as error:
            outcome[f"{type(error).__name__}: {_cause(error)}"] += 1


def write_reports(path: Path, program: int, writes: int, outcome: Outcome) -> None:
    for number in range(writes):
        name = f"store-{program}-{number}"
        page = json.dumps([program, number] * 1000).encode()
        try:
            ReportFolder(path).add([name])
            ReportFolder(path).write({"index.html": page, f"figures/scores-{program}.svg": page})
            assert name in ReportFolder(path).names, "a name is no longer listed"
            document = json.loads((path / "index.html").read_bytes())
            assert document == document[:2] * 1000, "a page of two reports"
            outcome["written"] += 1
        except Exception as error:
            outcome[f"{type(error).__name__}: {_cause(error)}"] += 1


def _cause(error: BaseException) -> str:
    return type(error.__cause__).__name__ if error.__cause__ else str(error)[:60]


Writer = Callable[[Path, int, int, Outcome], None]


def program(
    writer: Writer, path: Path, number: int, writes: int, young: float, ends: Connection
) -> None:
    torch.set_num_threads(1)
    files._YOUNG = young
    outcome = Outcome()
    writer(path, number, writes, outcome)
    ends.send(outcome)


def outcome_of(writer: Writer, path: Path, writes: int, young: float) -> Outcome:
    """Return what became of the writes of all programs."""
    total = Outcome()
    pipes = [FORKS.Pipe(duplex=False) for _ in range(PROGRAMS)]
    programs = [
        FORKS.Process(target=program, args=(writer, path, number, writes, young, send))
        for number, (_, send) in enumerate(pipes)
    ]
    for process in programs:
        process.start()
    for process, (receive, send) in zip(programs, pipes, strict=True):
        send.close()
        total += receive.recv()
        process.join()
    return total


def drafts_in(folder: Path) -> list[Any]:
    return [path for path in folder.rglob("*") if files.target_of_draft(path.name)]


@pytest.mark.parametrize("young", YOUNG)
def test_a_file(tmp_path: Path, young: float) -> None:
    outcome = outcome_of(write_files, tmp_path / "file", 2000, young)
    assert outcome == {"written": PROGRAMS * 2000}
    assert drafts_in(tmp_path) == []


@pytest.mark.parametrize("young", YOUNG)
def test_the_folder_of_a_model(tmp_path: Path, young: float) -> None:
    table = write_csv(regression_table(), tmp_path / "table.csv")
    out = tmp_path / "model"
    assert run("fit", table, "--target", "y", "--drop", "code", *QUICK, "--out", out).code == 0
    outcome = outcome_of(write_models, out, 50, young)
    assert outcome == {"written": PROGRAMS * 50}
    assert drafts_in(tmp_path) == []


@pytest.mark.parametrize("young", YOUNG)
def test_a_store(tmp_path: Path, young: float) -> None:
    outcome = outcome_of(write_results, tmp_path / "store", 100, young)
    assert outcome.keys() <= {"written", "left to another"}
    cells = [small_cell(repeat=number) for number in range(PROGRAMS // 2 * 100)]
    with Store(tmp_path / "store") as store:
        assert len(store.records(cells)) == len(cells)
        assert store.view().leased == set() and store.damaged == set()
    assert outcome == {"written": len(cells), "left to another": len(cells)}
    assert drafts_in(tmp_path) == []


@pytest.mark.parametrize("young", YOUNG)
def test_the_folder_of_a_report(tmp_path: Path, young: float) -> None:
    outcome = outcome_of(write_reports, tmp_path, 100, young)
    assert outcome == {"written": PROGRAMS * 100}
    names = {f"store-{number}-{write}" for number in range(PROGRAMS) for write in range(100)}
    listed = json.loads((tmp_path / MANIFEST).read_bytes())["files"]
    assert names < set(listed)
    assert drafts_in(tmp_path) == []
