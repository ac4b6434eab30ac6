import io
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from directgp.experiments.paper.cells import CurveCell, FitCell
from directgp.reports import html
from directgp.reports.paper import cells_parquet, write_reproduction
from tests.unit.reports.paper.conftest import with_failures
from tests.unit.reports.paper.made import SMALL, Recipe, reproduction, results


def test_all_files_are_there(folder: Path) -> None:
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    names = ("1a", "1b", "2", "3", "s1")
    pictures = {f"figures/figure-{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert found == pictures | {"index.html", "results.parquet", "verdicts.json"}
    assert (folder / "figures" / "figure-1a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_drawing")
def test_the_page_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(html, "replace_file", lambda path, data: names.append(path.name))
    index = write_reproduction(reproduction(results(SMALL)), tmp_path)
    assert index == tmp_path / "index.html"
    assert names[-3:] == ["results.parquet", "verdicts.json", "index.html"]


@pytest.mark.usefixtures("without_drawing")
def test_figures_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("figure-9.png", "figure-9.svg", "figure-1a.png", "mine.png"):
        (figures / name).write_text("old")
    write_reproduction(reproduction(results(Recipe(samplers=("abalone",)))), tmp_path)
    assert sorted(path.name for path in figures.iterdir()) == [
        "figure-s1.png",
        "figure-s1.svg",
        "mine.png",
    ]


def test_verdicts_are_strict_json(folder: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = (folder / "verdicts.json").read_text(encoding="utf-8")
    document = json.loads(text, parse_constant=refuse)
    assert document["verdicts"] == {"held": 2, "not held": 1, "not decided": 1}
    assert [claim["id"] for claim in document["claims"]] == ["C1", "C4", "C8", "C13"]
    assert document["claims"][0]["parts"][0]["effect"] == -0.4512
    assert document["claims"][0]["parts"][1]["effect"] is None
    assert document["cells"] == {"finished": 28, "failed": 1, "missing": 1}
    assert document["failed"][0]["attempts"] == 3
    assert document["data"][0]["paper_rows"] == 48933
    (about,) = document["circumstances"]
    assert about["cells"] == 28 and about["versions"]["torch"] == "2.13.0" and about["machine"]


def test_every_cell_is_a_row(folder: Path) -> None:
    rows = pq.read_table(folder / "results.parquet").to_pylist()
    found = with_failures(results(SMALL))
    assert len(rows) == 30 == len({row["key"] for row in rows})
    by_key = {row["key"]: row for row in rows}
    for cell, outcome in ((r.cell, r.outcome) for r in found.of(FitCell)):
        row = by_key[cell.key]
        assert (row["method"], row["size"], row["repeat"]) == (cell.method, cell.size, cell.repeat)
        assert (row["nll"], row["beta"]) == (outcome.scores["nll"], outcome.beta)
        assert row["status"] == "converged" and json.loads(row["versions"])["torch"] == "2.13.0"
    statuses = [row["status"] for row in rows]
    assert (statuses.count("failed"), statuses.count("not run")) == (1, 1)
    assert by_key[found.missing[0].key]["nll"] is None


def test_a_curve_is_told_by_its_end() -> None:
    found = results(Recipe(airline=True, repeats=1, points=3))
    rows = pq.read_table(io.BytesIO(cells_parquet(found))).to_pylist()
    ends = {r.cell.key: r.outcome.points[-1].scores["nll"] for r in found.of(CurveCell)}
    assert {row["key"]: row["nll"] for row in rows} == ends
    assert {row["method"] for row in rows} == {"elbo", "beta-elbo", "log-joint", "log-fixed"}
    assert {row["rule"] for row in rows} >= {"exact", "bMC-10", "uPS-1"}
    assert all(row["mre"] is None and math.isfinite(row["error"]) for row in rows)
