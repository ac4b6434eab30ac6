import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from directgp.experiments.stats import ranking
from directgp.reports.compare import report_document, results_parquet
from directgp.reports.verdict import Findings, verdict
from directgp.text import strict_json
from tests.unit.reports.conftest import SMALL
from tests.unit.reports.made import NLL, Recipe, comparison


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
    assert [row["method"] for row in rows[:7]] == list(NLL)
    assert [row["size"] for row in rows] == [100] * 14 + [200] * 14


def test_the_document_has_what_the_page_says() -> None:
    made = comparison(SMALL["regression"])
    found = document(SMALL["regression"])
    assert found["schema"] == 1
    assert found["verdict"]["method"] == "log-joint"
    assert len(found["verdict"]["sentences"]) == 2
    assert [each["size"] for each in found["standings"]] == [5000] * 2 + [500] * 2
    for told, known in zip(found["standings"], ranking(made, 5000), strict=False):
        assert told["method"] == known.method.name
        assert told["scores"]["nll"]["mean"] == known.scores["nll"].mean
        assert told["scores"]["mse"]["values"] == list(known.scores["mse"].values)
    for name in ("data", "settings", "versions", "machine", "command", "seed", "failed"):
        assert name in found
    assert found["data"]["fingerprint"] == made.plan.data.fingerprint


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


@pytest.mark.parametrize("task", list(SMALL))
def test_files_are_beside_the_page(report: Callable[[str], Path], task: str) -> None:
    folder = report(task)
    cells = len(comparison(SMALL[task]).runs)
    assert pq.read_table(folder / "results.parquet").num_rows == cells
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["data"]["task"] == task
