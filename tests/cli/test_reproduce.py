"""`directgp reproduce`: cells, verdicts and report."""

import json
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

from directgp.errors import NumericalError
from directgp.experiments.fit import CellData
from directgp.experiments.paper import run as experiments_run
from directgp.experiments.paper.cells import FitCell, PaperCell, PaperRecord
from directgp.experiments.paper.run import run_paper_cell
from directgp.experiments.paper.sweep import SCALES, CurveSizes
from directgp.training.run import Monitor
from tests.cli.running import Answer, run, write_parquet

pytestmark = pytest.mark.usefixtures("here", "tiny")

SMOKE = SCALES["smoke"]
TINY = replace(
    SMOKE,
    repeats=2,
    sizes=(40, 80),
    other_sizes=(40,),
    max_inducing=5,
    betas=(10.0, 1.0),
    max_steps=3,
    curves=CurveSizes(rows=40, steps=4, evaluations=2, repeats=2),
    airline=replace(SMOKE.airline, rows=100, num_test=50, num_inducing=5, batch_size=50),
    draws=5,
    study_rows=40,
    sampler_steps=(0, 2),
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than smoke, of everything."""
    monkeypatch.setitem(SCALES, "smoke", TINY)


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


@pytest.mark.usefixtures("without_shape_checks", "without_drawing")
def test_everything_runs_and_the_report_is_complete(papers: Path) -> None:
    answer = reproduce(papers)
    assert answer.code == 0, answer.err
    assert "Left out: The data set 'cadata' must be in the data folder." in answer.err
    lines = answer.out.splitlines()
    told = [line.split()[0] for line in lines if line[:1] == "C"]
    assert told == [f"C{number}" for number in range(1, 15)]
    assert lines[-1] == "Report:    reproduction/index.html"
    document = json.loads(Path("reproduction/verdicts.json").read_text())
    assert [each["id"] for each in document["claims"]] == told
    page = Path("reproduction/index.html").read_text()
    for number in range(1, 15):
        assert f"C{number}" in page
    results = pyarrow.parquet.read_table("reproduction/results.parquet")
    kinds = set(results.column("kind").to_pylist())
    assert kinds == {"fit", "curve", "gradients", "samplers"}
    assert set(results.column("status").to_pylist()).isdisjoint({"failed", "not run"})


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


def test_the_list_names_every_claim_figure_and_scale() -> None:
    answer = run("reproduce", "--list", "--json")
    document = json.loads(answer.out)
    assert [each["claim"] for each in document["claims"]] == [f"C{n}" for n in range(1, 15)]
    assert {"1a", "1i", "16"} <= {each["figure"] for each in document["figures"]}
    assert [each["scale"] for each in document["scales"]] == ["smoke", "small", "full"]


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
        (("--jobs", "0"), "--jobs must be at least 1. Got 0."),
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
