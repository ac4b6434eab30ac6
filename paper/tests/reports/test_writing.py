import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from directgp.reports import folder as report_folder
from directgp_paper.experiments.cells import CurveCell, FitCell, Results
from directgp_paper.experiments.claims import CLAIMS as JUDGED
from directgp_paper.experiments.run import to_parquet
from directgp_paper.experiments.sweep import SCALES
from directgp_paper.reports.figures import FIGURES
from directgp_paper.reports.page import ERRATA, write_reproduction
from paper.tests.reports.conftest import with_failures
from paper.tests.reports.made import (
    CLAIMS,
    FINDINGS,
    SMALL,
    Recipe,
    odd,
    reproduction,
    results,
)


def test_all_files_are_there(folder: Path) -> None:
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    names = ("1a", "1b", "2", "3", "s1")
    pictures = {f"figures/figure-{name}.{kind}" for name in names for kind in ("png", "svg")}
    others = {"index.html", "results.parquet", "verdicts.json", report_folder.MANIFEST}
    assert found == pictures | others
    assert (folder / "figures" / "figure-1a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_drawing")
def test_the_page_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(report_folder, "replace_file", lambda path, data: names.append(path.name))
    index = write_reproduction(reproduction(results(SMALL)), tmp_path)
    assert index == tmp_path / "index.html"
    assert names[-4:-1] == ["results.parquet", "verdicts.json", "index.html"]


@pytest.mark.usefixtures("without_drawing")
def test_figures_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    write_reproduction(reproduction(results(SMALL)), tmp_path)
    assert all(map(report_folder.is_figure, os.listdir(figures)))
    (figures / "mine.png").write_text("mine")
    write_reproduction(reproduction(results(Recipe(samplers=("abalone",)))), tmp_path)
    assert sorted(path.name for path in figures.iterdir()) == [
        "figure-s1.png",
        "figure-s1.svg",
        "mine.png",
    ]


def test_names_of_figures_are_known_before_a_run() -> None:
    assert all(report_folder.is_figure(f"{each.file}.png") for each in FIGURES.values())


def read_strictly(path: Path) -> Any:
    """Without NaN and Infinity, which are not JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_verdicts_are_strict_json(folder: Path) -> None:
    document = read_strictly(folder / "verdicts.json")
    assert document["schema"] == 2 and document["judged"] is True
    assert document["verdicts"] == {
        **{"held": 1, "no difference": 1},
        **{"not held": 1, "not decided": 1},
    }
    assert [claim["id"] for claim in document["claims"]] == ["C1", "C4", "C8", "C13"]
    assert document["cells"] == {"finished": 32, "failed": 1, "missing": 1}
    assert document["failed"][0]["attempts"] == 3
    assert document["data"][0]["paper_rows"] == 48933
    assert document["data"][0]["fingerprint"] == "8f3a" * 16
    assert document["scale"] == "small" and document["errata"] == ERRATA
    (about,) = document["circumstances"]
    assert about["cells"] == 32 and about["versions"]["torch"] == "2.13.0" and about["machine"]


def test_every_reading_is_in_the_document(folder: Path) -> None:
    claims = read_strictly(folder / "verdicts.json")["claims"]
    for claim, made in zip(claims, CLAIMS, strict=True):
        assert (claim["quote"], claim["statement"]) == (made.quote, made.statement)
        assert claim["figures"] == list(made.figures)
        told = [
            [each[name] for name in ("name", "of", "criterion", "why")]
            for each in claim["readings"]
        ]
        assert told == [[each.name, each.of, each.criterion, each.why] for each in made.readings]
        found = [FINDINGS[each.name] for each in made.readings]
        assert [each["verdict"] for each in claim["readings"]] == [each.verdict for each in found]
        # The first reading decides.
        assert (claim["verdict"], claim["sentence"]) == (found[0].verdict, found[0].sentence)
    parts = claims[0]["readings"][0]["parts"]
    assert (parts[0]["effect"], parts[0]["decides"], parts[0]["remedy"]) == (-0.4512, True, "")
    assert parts[1]["effect"] is None and parts[2]["decides"] is False
    assert claims[3]["readings"][0]["parts"][0]["remedy"].endswith("--repeats 14.")
    assert [claim["runs"] for claim in claims] == [30, 30, 0, 2]
    assert (claims[0]["converged"], claims[0]["seconds"]) == (30, 375.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.usefixtures("without_drawing")
def test_results_that_are_not_finite_are_judged_and_written(value: float, tmp_path: Path) -> None:
    recipe = Recipe(
        fits=("sarcos",),
        sizes=(346,),
        airline=True,
        counts=("abalone",),
        regression=("pol",),
        gradients=True,
        repeats=2,
        points=11,
    )
    found = Results(tuple(odd(each, value) for each in results(recipe).records))
    told = reproduction(found, claims=tuple(each.assess(found) for each in JUDGED.values()))
    write_reproduction(told, tmp_path)
    claims = {each["id"]: each for each in read_strictly(tmp_path / "verdicts.json")["claims"]}
    assert {each["verdict"] for each in claims.values()} == {"not decided"}
    # The fits stopped where nothing was finite.
    assert claims["C3"]["converged"] == 0
    assert "β-ELBO equal to the ELBO in NLL (undecided, not converged)" in claims["C3"]["sentence"]


@pytest.mark.usefixtures("without_drawing")
def test_the_document_says_that_a_small_scale_does_not_judge(tmp_path: Path) -> None:
    write_reproduction(reproduction(results(SMALL), scale=SCALES["smoke"]), tmp_path)
    document = read_strictly(tmp_path / "verdicts.json")
    assert document["judged"] is False and "too small to judge" in document["summary"]


def test_every_cell_is_a_row(folder: Path) -> None:
    rows = pq.read_table(folder / "results.parquet").to_pylist()
    found = with_failures(results(SMALL))
    assert len(rows) == 34 == len({row["key"] for row in rows})
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
    rows = pq.read_table(io.BytesIO(to_parquet(found, (), "small", "best"))).to_pylist()
    ends = {r.cell.key: r.outcome.points[-1].scores["nll"] for r in found.of(CurveCell)}
    assert {row["key"]: row["nll"] for row in rows} == ends
    assert {row["method"] for row in rows} == {"elbo", "beta-elbo", "log-joint", "log-fixed"}
    assert {row["rule"] for row in rows} >= {"exact", "bMC-10", "uPS-1"}
    assert all(row["mre"] is None and math.isfinite(row["error"]) for row in rows)
