from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from directgp.plots.rendering import RenderedPicture, render
from directgp.reports import compare, html
from directgp.reports.compare import write_report
from directgp.reports.figures import make_pictures
from directgp.reports.verdict import Findings
from tests.unit.reports.made import Recipe, comparison

PLAIN = Recipe(methods=("elbo",), repeats=1, failed=[("elbo", 0, 5000, "why")])
"""Without pictures, hence quick."""


def test_all_files_are_there(report: Callable[[str], Path]) -> None:
    names = ("scores", "learning", "beta", "calibration", "predicted", "training")
    found = {
        path.relative_to(report("regression")).as_posix(): path.stat().st_size
        for path in report("regression").rglob("*")
        if path.is_file()
    }
    expected = {f"figures/{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert set(found) == expected | {"index.html", "report.json", "results.parquet"}
    assert min(found.values()) > 1000
    assert found["index.html"] < 2_000_000


def test_the_same_picture_is_the_same_file() -> None:
    first, second = (
        make_pictures(Findings(comparison(Recipe(repeats=2, methods=("elbo",)))))[0]
        for _ in range(2)
    )
    assert render(first).wide == render(second).wide


def test_the_page_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(html, "replace_file", lambda path, data: written.append(path.name))
    assert write_report(comparison(PLAIN), tmp_path) == tmp_path / "index.html"
    assert written == ["results.parquet", "report.json", "index.html"]


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


def test_pictures_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("learning.png", "learning.svg", "scores.png", "mine.png", "learning.txt"):
        (figures / name).write_text("old")
    write_report(comparison(PLAIN), tmp_path)
    assert sorted(path.name for path in figures.iterdir()) == ["learning.txt", "mine.png"]


def test_without_sizes_the_learning_curves_go_and_the_rest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Recipe(methods=("elbo",), repeats=1, num_test=20)
    empty = '<svg viewBox="0 0 1 1"/>'
    monkeypatch.setattr(compare, "render", lambda p: RenderedPicture(p, b"x", *[empty] * 4))
    figures = tmp_path / "figures"
    write_report(comparison(replace(one, sizes=(500, 5000))), tmp_path)
    before = {path.name for path in figures.iterdir()}
    write_report(comparison(one), tmp_path)
    gone = before - {path.name for path in figures.iterdir()}
    assert gone == {"learning.png", "learning.svg"}
    assert {"scores.png", "calibration.svg"} <= before
