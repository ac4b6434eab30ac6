"""The committed runs of `make bench-all` have one form, and the pages are made from them."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from benchmarks.all import HISTORY, Document, Measurement, checked, draw, file_name, history, table
from benchmarks.cost import all_tables
from benchmarks.models import write
from benchmarks.peers.process import ROOT
from directgp.errors import InvalidInputError
from tests.docs.pages import DOCS

matplotlib.use("Agg")


def document(date: str = "2026-01-02T00:00:00+00:00", value: float = 2.0) -> Document:
    """A run with one measurement."""
    machine = {"cpu": "Some CPU", "cores": 2, "memory_gb": 8.0, "matmul_gflops": 20.0, "gpu": None}
    one = {"group": "step", "name": "S1", "value": value, "unit": "ratio", "better": "higher"}
    about = {"schema": 1, "date": date, "commit": "abc", "source": "def", "machine": machine}
    return {**about, "versions": {"python": "3.12"}, "measurements": [one]}


def test_committed_files_have_the_form() -> None:
    assert list(HISTORY.glob("*.json")), "at least one run is committed"
    for run in history():
        assert run["machine"]["matmul_gflops"] > 0 and "torch" in run["versions"]
        names = [(each["group"], each["name"]) for each in run["measurements"]]
        assert len(set(names)) == len(names) >= 20
        assert all(each["value"] == each["value"] for each in run["measurements"]), "not NaN"


def test_the_page_has_the_last_run_and_names_every_group() -> None:
    runs, page = history(), (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert (DOCS / "tables/benchmarks.md").read_text(encoding="utf-8") == table(runs)
    for group in {each["group"] for each in runs[-1]["measurements"]}:
        assert group in page


def test_runs_are_sorted_compared_and_drawn(tmp_path: Path) -> None:
    for each in (document(value=2.5), document("2025-01-02T00:00:00+00:00")):
        write(tmp_path / file_name(each), each)
    runs = history(tmp_path)
    assert [run["date"][:4] for run in runs] == ["2025", "2026"]
    assert "| step; S1 | 2.5 | ratio | higher | +0.5 |" in table(runs)
    figure = draw(runs)
    (axes,) = figure.axes
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [2.0, 2.5]


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"extra": 1}, {"commit": "other"}, {"measurements": [{"group": "a"}]}]
)
def test_other_forms_are_refused(change: Document, tmp_path: Path) -> None:
    run = document()
    path = tmp_path / file_name(run)
    path.write_text(json.dumps(run | change), encoding="utf-8")
    with pytest.raises((InvalidInputError, TypeError)):
        checked(path)


def test_a_measurement_says_which_direction_is_better() -> None:
    with pytest.raises(InvalidInputError, match="better"):
        Measurement("step", "S1", 1.0, "ratio", "up")


def test_the_tables_of_cost_are_those_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks/results/cost.json").read_text(encoding="utf-8"))
    page = (DOCS / "cost.md").read_text(encoding="utf-8")
    for name, text in all_tables(results["cells"]).items():
        assert (DOCS / f"tables/cost_{name}.md").read_text(encoding="utf-8") == text
        assert f"tables/cost_{name}.md" in page
    assert results["machine"]["cpu"] in page
