"""The files of a report: written whole, equal to what was computed, or not at all."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from directgp.errors import InvalidInputError
from directgp.experiments.stats import ranking
from directgp.plots.rendering import render
from directgp.reports import folder, html
from directgp.reports.compare import report_document, results_parquet, write_report
from directgp.reports.figures import make_pictures
from directgp.reports.findings import Findings
from directgp.reports.verdict import verdict
from directgp.text import strict_json
from tests.unit.reports.made import NLL, SMALL, Recipe, comparison

PLAIN = Recipe(methods=("elbo",), repeats=1, failed=[("elbo", 0, 5000, "why")])
"""Without pictures, hence quick."""


def test_the_same_picture_is_the_same_file() -> None:
    first, second = (
        make_pictures(Findings(comparison(Recipe(repeats=2, methods=("elbo",)))), None)[0]
        for _ in range(2)
    )
    assert render(first).wide == render(second).wide


def test_the_page_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(folder, "replace_file", lambda path, data: written.append(path.name))
    assert write_report(comparison(PLAIN), tmp_path) == tmp_path / "index.html"
    # The list of the files comes before them, and is shortened after that.
    names = ["results.parquet", "report.json", "index.html"]
    assert written == [folder.MANIFEST, *names, folder.MANIFEST]


def test_a_failure_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = write_report(comparison(PLAIN), tmp_path)
    before = index.read_bytes()

    def full(*_: object) -> bytes:
        raise OSError("No space left on device")

    monkeypatch.setattr(html, "strict_json", full)
    with pytest.raises(OSError, match="No space"):
        write_report(comparison(PLAIN), tmp_path)
    assert index.read_bytes() == before
    assert not list(tmp_path.rglob("*.tmp"))


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_report(comparison(PLAIN), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_link_in_place_of_the_list_is_refused(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.mkdir()
    (report / folder.MANIFEST).symlink_to(tmp_path / "outside.json")
    with pytest.raises(InvalidInputError, match="was not written by directgp"):
        write_report(comparison(PLAIN), report)
    assert not (tmp_path / "outside.json").exists()


def test_pictures_that_directgp_has_not_written_are_left_alone(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("mine.png", "learning.txt"):
        (figures / name).write_text("mine")
    write_report(comparison(PLAIN), tmp_path)
    assert sorted(path.name for path in figures.iterdir()) == ["learning.txt", "mine.png"]
    (figures / "scores.png").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"scores.png must be free for a file of directgp"):
        write_report(comparison(PLAIN), tmp_path)
    assert (figures / "scores.png").read_text() == "mine"


@pytest.mark.usefixtures("without_drawing")
def test_without_sizes_the_learning_curves_go_and_the_rest_stays(tmp_path: Path) -> None:
    one = Recipe(methods=("elbo",), repeats=1, num_test=20)
    figures = tmp_path / "figures"
    write_report(comparison(replace(one, sizes=(500, 5000))), tmp_path)
    before = {path.name for path in figures.iterdir()}
    write_report(comparison(one), tmp_path)
    gone = before - {path.name for path in figures.iterdir()}
    assert gone == {"learning.png", "learning.svg"}
    assert {"scores.png", "calibration.svg"} <= before


def document(recipe: Recipe) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    findings = Findings(comparison(recipe))
    text = strict_json(report_document(findings, verdict(findings)))
    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_every_cell_is_a_row() -> None:
    made = comparison(Recipe(repeats=2, failed=[("fitc", 1, 5000, "no <luck>")]))
    rows = pq.read_table(io.BytesIO(results_parquet(made))).to_pylist()
    assert len(rows) == 14
    for run in made.runs:
        (row,) = [
            r for r in rows if (r["method"], r["repeat"]) == (run.cell.method, run.cell.repeat)
        ]
        assert {name: row[name] for name in run.outcome.scores} == run.outcome.scores
        for name in ("beta", "seconds", "evaluations", "status", "reason", "num_test"):
            assert row[name] == getattr(run.outcome, name)
        assert (row["size"], row["seed"]) == (run.cell.size, run.cell.seed)
    (lost,) = [row for row in rows if row["status"] == "failed"]
    assert (lost["method"], lost["label"], lost["repeat"]) == ("fitc", "FITC", 1)
    assert (lost["reason"], lost["nll"], lost["seconds"]) == ("no <luck>", None, None)


def test_rows_are_in_a_fixed_order() -> None:
    made = comparison(Recipe(repeats=2, sizes=(100, 200)))
    rows = pq.read_table(io.BytesIO(results_parquet(made))).to_pylist()
    assert [row["method"] for row in rows[:7]] == list(NLL)[:7]
    assert [row["size"] for row in rows] == [100] * 14 + [200] * 14


def test_the_document_has_what_the_page_says() -> None:
    made = comparison(SMALL["regression"])
    found = document(SMALL["regression"])
    assert found["schema"] == 2
    assert found["verdict"]["method"] == "log-joint"
    assert found["verdict"]["choice"].startswith("Use log-loss DLM (joint)")
    assert [each["size"] for each in found["standings"]] == [5000] * 2 + [500] * 2
    for told, known in zip(found["standings"], ranking(made, 5000), strict=False):
        assert told["method"] == known.method.name
        assert told["scores"]["nll"]["mean"] == known.scores["nll"].mean
        assert told["scores"]["mse"]["values"] == list(known.scores["mse"].values)
    for name in ("data", "settings", "versions", "machine", "command", "seed", "failed"):
        assert name in found
    assert found["data"]["fingerprint"] == made.plan.data.fingerprint
    assert [each["feature"] for each in found["features"]] == ["c", "b", "a"]


def test_what_is_not_finite_is_null() -> None:
    found = document(Recipe(repeats=1, nll={**NLL, "fitc": math.inf}))
    (fitc,) = [each for each in found["standings"] if each["method"] == "fitc"]
    assert fitc["scores"]["nll"]["mean"] is None
    assert fitc["scores"]["nll"]["values"] == [None]
    assert fitc["scores"]["mse"]["error"] is None


def test_a_comparison_without_results_has_a_document() -> None:
    found = document(Recipe(methods=("elbo",), repeats=1, failed=[("elbo", 0, 5000, "why")]))
    assert found["standings"] == []
    assert found["verdict"]["method"] is None
    assert found["failed"] == [{"method": "elbo", "repeat": 0, "size": 5000, "reason": "why"}]
