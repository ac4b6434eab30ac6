"""The report of a small comparison of each task, written once: files, page and pictures."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from directgp.plots.style import DARK
from directgp.reports import folder
from directgp.reports.compare import write_report
from tests.unit.reports.html import Page
from tests.unit.reports.made import SMALL, comparison

each_task = pytest.mark.parametrize("task", list(SMALL))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the report of a task."""
    folders: dict[str, Path] = {}

    def folder_of(task: str) -> Path:
        if task not in folders:
            folders[task] = tmp_path_factory.mktemp(task) / "new" / "report"
            write_report(comparison(SMALL[task]), folders[task])
        return folders[task]

    return folder_of


def written(report: Callable[[str], Path], task: str) -> Page:
    return Page.of((report(task) / "index.html").read_text(encoding="utf-8"))


@each_task
def test_the_page_stands_alone(report: Callable[[str], Path], task: str) -> None:
    found = written(report, task)
    for element in found.elements:
        for name in ("src", "srcset", "href"):
            address = element.attributes.get(name, "#")
            assert address.startswith(("#", "data:")), (element.tag, name, address[:80])
    assert not re.search(r"url\(|@import", found.all("style")[0].text)


@each_task
def test_anchors_lead_somewhere(report: Callable[[str], Path], task: str) -> None:
    found = written(report, task)
    names = [e.attributes["id"] for e in found.elements if "id" in e.attributes]
    assert len(names) == len(set(names))
    assert {a.attributes["href"][1:] for a in found.all("a")} <= set(names)
    labelled = {e.attributes.get("aria-labelledby") for e in found.elements} - {None}
    assert labelled <= set(names)


@each_task
def test_readers_without_eyes_are_served(report: Callable[[str], Path], task: str) -> None:
    found = written(report, task)
    assert found.all("html")[0].attributes["lang"] == "en"
    assert found.all("title")[0].text.strip()
    assert len(found.all("h1")) == len(found.all("main")) == len(found.all("nav")) == 1
    for image in found.all("img"):
        assert re.search(r"\d", image.attributes["alt"]), image.attributes["alt"]
    assert len(found.all("table")) == len(found.all("caption")) == len(SMALL[task].sizes)
    headers = [th for th in found.all("th") if "thead" in th.inside]
    assert all(th.attributes["aria-sort"] == "none" for th in headers)
    assert all(th.attributes["scope"] == "col" for th in headers)


@each_task
def test_only_the_script_of_the_page_is_allowed(report: Callable[[str], Path], task: str) -> None:
    found = written(report, task)
    (script,) = found.all("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    (policy,) = [m for m in found.all("meta") if "http-equiv" in m.attributes]
    assert f"script-src 'sha256-{digest}'" in policy.attributes["content"]
    assert "default-src 'none'" in policy.attributes["content"]


def test_other_sizes_are_folded(report: Callable[[str], Path]) -> None:
    found = written(report, "regression")
    captions = [caption.text for caption in found.all("caption")]
    assert captions[0].startswith("5,000 training rows, mean ± standard error of 3 repeats")
    assert captions[1].startswith("500 training rows")
    assert ["details" in table.inside for table in found.all("table")] == [False, True]


def test_all_files_are_there(report: Callable[[str], Path]) -> None:
    names = ("scores", "learning", "calibration", "predicted", "importance", "dependence", "beta")
    found = {
        path.relative_to(report("regression")).as_posix(): path.stat().st_size
        for path in report("regression").rglob("*")
        if path.is_file()
    }
    expected = {f"figures/{name}.{kind}" for name in names for kind in ("png", "svg")}
    others = {"index.html", "report.json", "results.parquet", folder.MANIFEST}
    assert set(found) == expected | others
    assert min(found.values()) > 500
    assert found["index.html"] < 2_000_000


@each_task
def test_files_are_beside_the_page(report: Callable[[str], Path], task: str) -> None:
    written_folder = report(task)
    cells = len(comparison(SMALL[task]).runs)
    assert pq.read_table(written_folder / "results.parquet").num_rows == cells
    document = json.loads((written_folder / "report.json").read_text(encoding="utf-8"))
    assert document["data"]["task"] == SMALL[task].task


@each_task
def test_no_ink_of_light_paper_is_left_on_dark_paper(
    report: Callable[[str], Path], task: str
) -> None:
    page = written(report, task)
    sources = page.all("source")
    assert len(sources) == 3 * len(page.all("img")) > 0
    for source in sources:
        svg = base64.b64decode(source.attributes["srcset"].partition(",")[2]).decode()
        inks = set(re.findall(r"#[0-9a-f]{6}\b", svg))
        assert len(inks) > 2
        assert inks <= set(DARK.values() if "dark" in source.attributes["media"] else DARK)
