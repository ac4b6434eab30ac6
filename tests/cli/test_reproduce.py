"""`directgp reproduce`: cells, verdicts and report."""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from directgp.cli.reproduce import Selection
from directgp.errors import NumericalError
from directgp.experiments.cell import FailedRecord
from directgp.experiments.paper import run as experiments_run
from directgp.experiments.paper.cells import CurveCell, FitCell, PaperCell, PaperRecord, Results
from directgp.experiments.paper.run import run_paper_cell, to_parquet
from directgp.experiments.paper.sweep import SCALES, CurveSizes, SweepData
from directgp.experiments.splits import CellData
from directgp.experiments.store import Store
from directgp.training.run import Monitor
from tests.cli.running import Answer, run, write_parquet
from tests.unit.reports.paper.made import DATA, Recipe, record

pytestmark = pytest.mark.usefixtures("here", "tiny")

SMOKE = SCALES["smoke"]
TINY = replace(
    SMOKE,
    judged=True,
    repeats=2,
    sizes=(40, 80),
    other_sizes=(40,),
    max_inducing=5,
    betas=(10.0, 1.0),
    max_steps=3,
    curves=CurveSizes(rows=40, steps=4, count_steps=6, evaluations=2, repeats=2),
    airline=replace(SMOKE.airline, rows=100, num_test=50, num_inducing=5, batch_size=50),
    draws=5,
    study_rows=40,
    sampler_steps=(0, 2),
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than smoke of everything, but judged."""
    monkeypatch.setitem(SCALES, "smoke", TINY)
    # So that a few steps change losses by more than half precision rounds.
    monkeypatch.setattr("directgp.experiments.paper.sweep._AIRLINE_RATE", 0.1)


@pytest.fixture
def papers(here: Path) -> Path:
    """A folder with made-up rows of four of the paper's data sets."""
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 2))
    f = np.sin(2 * X[:, 0])
    targets = {
        "pol": f + 0.1 * random.normal(size=200),
        "banana": (f > 0).astype(float),
        "airline": (f + random.normal(size=200) > 0).astype(float),
        "abalone": random.poisson(np.exp(1 + f)).astype(float),
    }
    (here / "papers").mkdir()
    for name, y in targets.items():
        table = pa.table({"a": X[:, 0], "b": X[:, 1], "y": y})
        write_parquet(table, here / "papers" / f"{name}.parquet")
    return here / "papers"


def reproduce(papers: Path, *words: object, engine: str = "inline") -> Answer:
    usual = ("--data-dir", papers.name, "--no-download", "--engine", engine)
    return run("reproduce", *usual, *words)


def outcomes(folder: str) -> dict[str, str]:
    """Of every cell in a folder, but for what depends on the clock."""
    path = Path(folder) / "cells.sqlite"
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(
            "select key, outcome from results where cell like '%\"fit\"%'"
        ).fetchall()
    return {key: json.dumps({**json.loads(outcome), "seconds": 0}) for key, outcome in rows}


_FINISHED: list[tuple[Answer, Path]] = []


@pytest.fixture
def finished(
    papers: Path,
    without_shape_checks: None,
    without_drawing: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Answer:
    """The answer of a run of everything, which wrote the folder `reproduction`; run once."""
    if not _FINISHED:
        answer = reproduce(papers)
        assert answer.code == 0, answer.err
        kept = tmp_path_factory.mktemp("finished") / "reproduction"
        shutil.move("reproduction", kept)
        _FINISHED.append((answer, kept))
    ((answer, kept),) = _FINISHED
    shutil.copytree(kept, "reproduction")
    return answer


def document(folder: str = "reproduction") -> Any:
    return json.loads((Path(folder) / "verdicts.json").read_text(encoding="utf-8"))


def test_everything_runs_and_the_report_is_complete(finished: Answer) -> None:
    assert "Left out: The data set 'cadata' must be in the data folder." in finished.err
    lines = finished.out.splitlines()
    told = [line.split()[0] for line in lines if line[:1] == "C"]
    assert told == [f"C{number}" for number in range(1, 15)]
    assert lines[-1] == "Report:    reproduction/index.html"
    assert [each["id"] for each in document()["claims"]] == told
    page = Path("reproduction/index.html").read_text()
    for number in range(1, 15):
        assert f"C{number}" in page
    results = pyarrow.parquet.read_table("reproduction/results.parquet")
    kinds = set(results.column("kind").to_pylist())
    assert kinds == {"fit", "curve", "gradients", "samplers"}
    assert set(results.column("status").to_pylist()).isdisjoint({"failed", "not run"})


@pytest.mark.usefixtures("finished")
def test_a_scale_that_is_not_judged_shows_no_verdicts(
    papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCALES, "smoke", replace(TINY, judged=False))
    answer = reproduce(papers, "--report-only")
    cells = document()["cells"]["finished"]
    assert answer.out.splitlines()[-2:] == [
        f"{cells} cells ran. Scale smoke is too small to judge a claim.",
        "Report:    reproduction/index.html",
    ]
    assert not [line for line in answer.out.splitlines() if line.startswith("C")]
    page = Path("reproduction/index.html").read_text()
    assert "not judged" in page and '<span class="badge' not in page
    assert document()["judged"] is False


@pytest.mark.usefixtures("finished")
def test_a_file_of_results_gives_the_verdicts_of_its_run_without_data(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = document()
    (here / "empty").mkdir()
    shutil.copy("reproduction/results.parquet", "empty/mine.parquet")
    monkeypatch.chdir(here / "empty")
    words = ["reproduce", "--report-only", "--merge", "mine.parquet", "--no-download"]
    monkeypatch.setattr("sys.argv", ["directgp", *words])
    answer = run(*words)
    assert answer.code == 0, answer.err
    assert answer.err == ""
    after = document()
    assert [each["id"] for each in after["claims"]] == [f"C{n}" for n in range(1, 15)]
    # Losses of rows are rounded in the file; these compare them.
    rounded = ("C7", "C9", "C11")
    for one, other in zip(after["claims"], before["claims"], strict=True):
        if other["id"] not in rounded:
            assert one == other
            continue
        same = ("verdict", "runs", "converged", "seconds")
        assert [one[name] for name in same] == [other[name] for name in same]
        for reading, original in zip(one["readings"], other["readings"], strict=True):
            assert reading["verdict"] == original["verdict"]
            for part, first in zip(reading["parts"], original["parts"], strict=True):
                same = ("what", "verdict", "unit", "decides")
                assert [part[name] for name in same] == [first[name] for name in same]
                if first["effect"] is None:
                    assert part["effect"] is None
                else:
                    assert part["effect"] == pytest.approx(first["effect"], abs=2e-4)
    for name in ("cells", "data", "circumstances", "verdicts", "summary"):
        assert after[name] == before[name]
    assert after["command"] == "directgp reproduce --report-only --merge mine.parquet --no-download"
    # The new file says what the first one said.
    again = [
        pyarrow.parquet.read_table(path)
        for path in ("mine.parquet", "reproduction/results.parquet")
    ]
    assert again[0].drop_columns(["arrays"]).equals(again[1].drop_columns(["arrays"]))


SETS = (
    SweepData("pol", "regression", 200, "a", 50),
    SweepData("cadata", "regression", 2000, "b", 50),
    SweepData("banana", "classification", 200, "c", 50),
    SweepData("airline", "classification", 400, "d", 50),
    SweepData("abalone", "count", 200, "e", 50),
)


@pytest.fixture
def sizes_of_c4(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near its 691 rows."""
    monkeypatch.setitem(SCALES, "smoke", replace(TINY, sizes=(600, 700)))


def write_made(path: str, failed: int = 0, missing: int = 0) -> list[PaperCell]:
    """Write made-up results of C4, the last of them failed or not run, and return their cells."""
    cells = list(Selection(claims=["C4"]).cells(SETS))
    count = len(cells) - missing
    done, lost = cells[: count - failed], cells[count - failed : count]
    found = Results(
        tuple(record(cell, Recipe()) for cell in done),
        tuple(FailedRecord(cell, "No way down.", 2) for cell in lost),
        tuple(cells[count:]),
    )
    rows = tuple(
        DATA[0].model_copy(
            update={
                **{"name": each.name, "task": each.task, "rows": each.num_rows},
                **{"fingerprint": each.fingerprint, "num_inducing": each.num_inducing},
            }
        )
        for each in SETS
    )
    Path(path).write_bytes(to_parquet(found, rows, "smoke", "best"))
    return cells


@pytest.mark.usefixtures("without_drawing", "sizes_of_c4")
def test_equal_results_of_two_files_are_counted_once() -> None:
    cells = write_made("one.parquet")
    write_made("other.parquet")
    words = ("--merge", "one.parquet", "--merge", "other.parquet", "--claim", "c4")
    answer = run("reproduce", "--report-only", *words)
    assert answer.code == 0, answer.err
    found = document()
    # The file has the ELBO, too, from which the three methods that choose β start.
    assert found["cells"] == {"finished": 3 * 2 * 2, "failed": 0, "missing": 0}
    assert len(cells) == 4 * 2 * 2
    (claim,) = found["claims"]
    assert claim["runs"] == 3 * 2 * 2
    assert [row["name"] for row in found["data"]] == ["cadata"]


@pytest.mark.usefixtures("without_drawing", "sizes_of_c4")
def test_failures_in_a_file_of_results_are_told_unless_another_file_has_a_result() -> None:
    cells = write_made("lost.parquet", failed=1)
    words = ("reproduce", "--report-only", "--claim", "C4", "--merge", "lost.parquet")
    answer = run(*words)
    assert answer.code == 0, answer.err
    assert f"{cells[-1].title}, failed: No way down." in answer.err
    found = document()
    assert found["cells"] == {"finished": 11, "failed": 1, "missing": 0}
    assert found["failed"] == [{"cell": cells[-1].title, "reason": "No way down.", "attempts": 2}]
    write_made("whole.parquet")
    answer = run(*words, "--merge", "whole.parquet")
    assert document()["cells"] == {"finished": 12, "failed": 0, "missing": 0}
    assert "failed" not in answer.err


@pytest.mark.usefixtures("without_drawing", "sizes_of_c4")
def test_what_was_not_run_is_what_the_file_says() -> None:
    write_made("part.parquet", missing=2)
    answer = run("reproduce", "--report-only", "--merge", "part.parquet")
    assert answer.code == 0, answer.err
    assert document()["cells"] == {"finished": 14, "failed": 0, "missing": 2}
    assert "2 cells of this scale not run yet." in answer.err
    write_made("whole.parquet")
    run("reproduce", "--report-only", "--merge", "part.parquet", "--merge", "whole.parquet")
    assert document()["cells"] == {"finished": 16, "failed": 0, "missing": 0}


@pytest.mark.usefixtures("finished")
def test_results_of_the_folder_come_before_those_of_a_file(here: Path) -> None:
    shutil.copy("reproduction/results.parquet", "mine.parquet")
    before = document()["cells"]["finished"]
    with closing(sqlite3.connect("reproduction/cells.sqlite")) as file, file:
        file.execute("delete from results where key in (select key from results limit 3)")
    with Store(Path("reproduction/cells.sqlite")) as store:
        for row in list(store._intact_rows("results")):
            slower = row[2].replace('"seconds":', '"seconds":7')
            store._file.write("results", (*row[:2], slower, *row[3:]))
    answer = run("reproduce", "--report-only", "--merge", "mine.parquet")
    assert answer.code == 0, answer.err
    after = document()
    assert after["cells"] == {"finished": before, "failed": 0, "missing": 0}
    seconds = pyarrow.parquet.read_table("reproduction/results.parquet")["seconds"].to_pylist()
    assert len([each for each in seconds if each >= 7]) == before - 3


def test_a_file_of_results_cannot_be_continued(papers: Path) -> None:
    Path("results.parquet").touch()
    answer = reproduce(papers, "--merge", "results.parquet")
    assert answer.code == 2
    assert "--merge with results.parquet needs --report-only" in answer.err
    assert "the file has no trained models" in answer.err
    assert not Path("reproduction").exists()


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" * 100])
def test_a_file_that_has_no_results_is_refused(content: bytes) -> None:
    Path("results.parquet").write_bytes(content)
    answer = run("reproduce", "--report-only", "--merge", "results.parquet")
    assert answer.code == 1
    assert "results.parquet is no results.parquet of this version of directgp" in answer.err
    assert "Traceback" not in answer.err and not Path("reproduction").exists()


@pytest.mark.usefixtures("without_drawing", "sizes_of_c4")
def test_a_file_of_results_is_not_overwritten_by_its_own_report() -> None:
    write_made("one.parquet")
    words = ("reproduce", "--report-only", "--out", "kept", "--merge")
    assert run(*words, "one.parquet").code == 0
    before = Path("kept/results.parquet").read_bytes()
    answer = run(*words, "kept/results.parquet", "--claim", "C4")
    assert answer.code == 2 and "which would be overwritten" in answer.err
    assert Path("kept/results.parquet").read_bytes() == before


@pytest.mark.usefixtures("without_drawing", "sizes_of_c4")
@pytest.mark.parametrize(
    "option", ["--scale full", "--protocol best", "--repeats 2", "--max-steps 9", "--largest-only"]
)
def test_a_file_of_results_is_what_was_run(option: str) -> None:
    write_made("one.parquet")
    answer = run("reproduce", "--report-only", "--merge", "one.parquet", *option.split())
    assert answer.code == 2 and f"{option.split()[0]} selects what is run" in answer.err


@pytest.mark.usefixtures("without_drawing", "sizes_of_c4")
def test_a_data_set_has_the_claims_that_use_it() -> None:
    write_made("one.parquet")
    words = ("--merge", "one.parquet", "--dataset", "cadata")
    assert run("reproduce", "--report-only", *words).code == 0
    assert {claim["id"] for claim in document()["claims"]} == {"C1", "C2", "C3", "C4"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("notes.md", "such a file, or a results.parquet"), ("none.parquet", "a file that exists")],
)
def test_what_cannot_be_merged_is_refused_before_any_work(name: str, words: str) -> None:
    Path("notes.md").write_text("Not a store.", encoding="utf-8")
    answer = run("reproduce", "--report-only", "--merge", name)
    assert answer.code == 2 and words in answer.err and answer.err.count("\n") == 1
    assert not Path("reproduction").exists()


@pytest.mark.usefixtures("without_shape_checks", "without_drawing")
def test_what_is_there_is_not_run_again(papers: Path) -> None:
    words = ("--claim", "C5", "--dataset", "banana")
    assert reproduce(papers, *words).code == 0
    before = outcomes("reproduction")
    refused = reproduce(papers, *words)
    assert refused.code == 1 and "Continue with --resume" in refused.err
    again = reproduce(papers, *words, "--resume")
    assert "0 cells to run. 8 cells finished already." in again.err
    more = reproduce(papers, "--claim", "C3", "--dataset", "pol", "--resume")
    assert "8 cells to run." in more.err
    assert before.items() <= outcomes("reproduction").items()
    anew = reproduce(papers, *words, "--force")
    assert "8 cells to run." in anew.err
    assert outcomes("reproduction") == before


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_checks", "without_drawing")
def test_processes_find_what_this_process_finds(papers: Path) -> None:
    words = ("--figure", "1d", "--dataset", "banana", "--claim", "C5")
    assert reproduce(papers, *words, "--out", "here").code == 0
    other = reproduce(papers, *words, "--out", "there", "--jobs", "2", engine="local")
    assert other.code == 0, other.err
    assert outcomes("here") == outcomes("there") != {}


@pytest.mark.usefixtures("without_shape_checks", "without_drawing")
def test_results_of_another_folder_are_taken_in(papers: Path) -> None:
    reproduce(papers, "--claim", "C5", "--dataset", "banana", "--out", "first")
    words = ("--claim", "C5", "--dataset", "banana", "--out", "second", "--merge", "first")
    answer = reproduce(papers, *words, "--report-only")
    assert answer.code == 0, answer.err
    assert "first: 8 results added, 0 known already" in answer.err
    assert "to run" not in answer.err
    assert outcomes("second") == outcomes("first")


@pytest.mark.usefixtures("without_shape_checks", "without_drawing")
def test_a_cell_that_fails_is_told_and_tried_again(
    papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(
        cell: PaperCell,
        data: CellData,
        start: bytes = b"",
        monitors: Sequence[Monitor] = (),
        *,
        device: str = "cpu",
    ) -> PaperRecord:
        if isinstance(cell, FitCell) and cell.method == "log-joint":
            raise NumericalError("The objective was not finite.")
        return run_paper_cell(cell, data, start, monitors, device=device)

    sweep: Any = experiments_run.run_sweep
    monkeypatch.setattr(
        "directgp.experiments.paper.run.run_sweep",
        lambda *given, **settings: sweep(*given, **settings, function=failing),
    )
    words = ("--claim", "C5", "--dataset", "banana", "--json")
    answer = reproduce(papers, *words)
    assert answer.code == 0
    # Only the means to judge it is missing, not the verdict itself.
    failed = json.loads(answer.out)["failed"]
    assert {each["reason"] for each in failed} == {"The objective was not finite."}
    assert len(failed) == 2
    monkeypatch.undo()
    monkeypatch.chdir(papers.parent)
    monkeypatch.setitem(SCALES, "smoke", TINY)
    again = reproduce(papers, "--claim", "C5", "--dataset", "banana", "--resume")
    assert "2 cells to run. 6 cells finished already." in again.err


def sizes_of_fits(cells: Sequence[PaperCell]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for cell in cells:
        if isinstance(cell, FitCell):
            found.setdefault(cell.dataset, set()).add(cell.size)
    return found


def test_the_largest_size_alone_keeps_that_of_c4(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = replace(TINY, sizes=(40, 500, 800, 1000), other_sizes=(20, 40))
    monkeypatch.setitem(SCALES, "smoke", sizes)
    every, largest = Selection().cells(SETS), Selection(largest_only=True).cells(SETS)
    # Two thirds of 200 rows are for training.
    assert sizes_of_fits(every) == {
        **{"pol": {40, 134}, "cadata": {40, 500, 800, 1000}},
        **{"banana": {20, 40}, "abalone": {20, 40}},
    }
    # 800 is nearer to the 691 rows of C4 than 500 is, by ratio.
    assert sizes_of_fits(largest) == {
        **{"pol": {134}, "cadata": {800, 1000}, "banana": {40}, "abalone": {40}}
    }
    fits = {cell for cell in every if not isinstance(cell, FitCell)}
    assert fits == {cell for cell in largest if not isinstance(cell, FitCell)} != set()
    assert set(largest) < set(every)


def test_repeats_and_steps_are_those_given() -> None:
    cells = Selection(repeats=3, max_steps=11).cells(SETS)
    for kind in (FitCell, CurveCell):
        for name in {cell.dataset for cell in cells if isinstance(cell, kind)}:
            own = {cell.repeat for cell in cells if isinstance(cell, kind) and cell.dataset == name}
            assert own == {0, 1, 2}, name
    assert {cell.max_steps for cell in cells if isinstance(cell, FitCell)} == {11}
    curves = [cell for cell in cells if isinstance(cell, CurveCell)]
    assert {cell.steps for cell in curves if cell.dataset != "airline"} == {11}
    # 100 rows in batches of 50, twice.
    assert {cell.steps for cell in curves if cell.dataset == "airline"} == {4}


def test_the_list_names_every_claim_figure_and_scale() -> None:
    answer = run("reproduce", "--list", "--json")
    listed = json.loads(answer.out)
    assert [each["claim"] for each in listed["claims"]] == [f"C{n}" for n in range(1, 15)]
    assert {"1a", "1i", "16", "S3"} <= {each["figure"] for each in listed["figures"]}
    assert [each["scale"] for each in listed["scales"]] == ["smoke", "small", "full"]


def test_the_list_shows_claims_and_figures_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("reproduce", "--list").out.splitlines()
    assert lines[1].split(maxsplit=2) == ["claim", "figures", "what the paper says"]
    assert [line.split()[0] for line in lines if line.startswith("C1")] == [
        "C1",
        *(f"C{n}" for n in range(10, 15)),
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--claim", "C99"), "--claim must be one of C1, C2, C3, C4, C5"),
        (("--figure", "1z"), "1e, 1f, 1g, 1h, 1i, 2"),
        (("--dataset", "pool"), "--dataset must be one of pol, "),
        (("--scale", "huge"), "'huge' is not one of 'smoke', 'small', 'full'"),
        (("--protocol", "ours"), "'ours' is not one of 'paper', 'best'"),
        (("--engine", "slurm"), "'slurm' is not one of 'local', 'inline', 'ray'"),
        (("--address", "host:1"), "--address is for --engine ray."),
        (("--jobs", "0"), "--jobs must be from 1 to 1,000. Got 0."),
        (("--repeats", "0"), "--repeats must be from 1 to 1,000. Got 0."),
        (("--repeats", "-3"), "--repeats must be from 1 to 1,000. Got -3."),
        (("--max-steps", "0"), "--max-steps must be from 1 to 1,000,000,000. Got 0."),
        (("--gpus", "-1"), "--gpus must be at least 0"),
        (("--merge", "nowhere"), "--merge must be a folder with cells.sqlite"),
        (("--force", "--resume"), "--resume and --force cannot be given together."),
        (("--force", "--report-only"), "--force and --report-only cannot be given together."),
    ],
)
def test_wrong_usage_is_refused_before_any_work(words: tuple[str, ...], sentence: str) -> None:
    answer = run("reproduce", *words)
    assert answer.code == 2
    assert sentence in answer.err
    assert not Path("reproduction").exists()


def test_without_data_there_is_nothing_to_do(here: Path) -> None:
    (here / "papers").mkdir()
    answer = reproduce(here / "papers", "--dataset", "pol")
    assert answer.code == 1
    assert "The data set 'pol' must be in the data folder" in answer.err
    assert not Path("reproduction").exists()


@pytest.mark.usefixtures("without_shape_checks")
def test_a_folder_without_results_has_nothing_to_report(papers: Path) -> None:
    answer = reproduce(papers, "--report-only")
    assert answer.code == 1
    assert "The folder must have results of this scale and seed. Got none." in answer.err
