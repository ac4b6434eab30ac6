"""Folders of reproductions, and where cells are run."""

import hashlib
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from directgp.cli.experiment import check_run_folder, open_run_folder
from directgp.errors import InvalidInputError
from directgp.experiments.ray import RayCluster
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers
from directgp.reports.folder import MANIFEST, ReportFolder
from directgp_paper.reproduce import DOCUMENT, STORE, Engine
from paper.tests.experiments import sweeps
from tests.cli.running import run

CELL = sweeps.fit()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a store that has nothing."""
    Store(tmp_path / STORE).close()
    return tmp_path


def test_a_run_that_was_refused_leaves_a_folder_that_can_be_taken(folder: Path) -> None:
    check_run_folder(folder, STORE, DOCUMENT, resume=False, force=False)


@pytest.mark.parametrize("what", ["result", "failure", "lease"])
def test_what_a_run_left_is_not_run_over(folder: Path, what: str) -> None:
    with Store(folder / STORE) as store:
        if what == "result":
            store.put(sweeps.finished(CELL))
        elif what == "failure":
            store.fail(CELL, "No way down.")
        else:
            store.lease(CELL)
        with pytest.raises(InvalidInputError, match="Continue with --resume"):
            check_run_folder(folder, STORE, DOCUMENT, resume=False, force=False)
        check_run_folder(folder, STORE, DOCUMENT, resume=True, force=False)
        check_run_folder(folder, STORE, DOCUMENT, resume=False, force=True)


JUNK = b"not a database, but perhaps all that is left of one" * 50


def test_a_store_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    open_run_folder(tmp_path, STORE, force=False)
    (tmp_path / STORE).write_bytes(JUNK)
    with pytest.raises(InvalidInputError, match="Continue with --resume"):
        check_run_folder(tmp_path, STORE, DOCUMENT, resume=False, force=False)
    check_run_folder(tmp_path, STORE, DOCUMENT, resume=False, force=True)
    open_run_folder(tmp_path, STORE, force=True)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def made(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.executescript(script)


@pytest.mark.parametrize("ways", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("what", ["junk", "database", "schema 1", "link", "folder"])
def test_a_folder_with_a_file_of_this_name_is_not_ours(
    tmp_path: Path, what: str, ways: tuple[bool, bool]
) -> None:
    store = tmp_path / "out" / STORE
    store.parent.mkdir()
    if what == "junk":
        store.write_bytes(JUNK)
    elif what == "link":
        Store(tmp_path / "elsewhere").close()
        store.symlink_to(tmp_path / "elsewhere")
    elif what == "folder":
        store.mkdir()
    else:
        version = "pragma user_version = 1;" if what == "schema 1" else ""
        made(store, f"{version} create table mine (x)")
    before = store.read_bytes() if store.is_file() else b""
    with pytest.raises(InvalidInputError, match=r"holds other files\. Name another"):
        check_run_folder(tmp_path / "out", STORE, DOCUMENT, *ways)
    assert (store.read_bytes() if store.is_file() else b"") == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == [STORE]


def test_force_deletes_what_an_earlier_version_wrote_and_no_others(folder: Path) -> None:
    ours = ("index.html", "verdicts.json", "results.parquet", "figures/figure-1a.svg")
    mine = ("notes.txt", "figures/mine.svg", "figures/index.html", ".index.html.tmp")
    (folder / "figures").mkdir()
    (folder / "mine").mkdir()
    for name in ours + mine:
        (folder / name).write_text(name)
    check_run_folder(folder, STORE, DOCUMENT, resume=False, force=True)
    open_run_folder(folder, STORE, force=True)
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert left == {*mine, "mine", "figures", MANIFEST}


def test_force_deletes_listed_files_and_their_drafts_alone(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path)
    folder.write({"figures/figure-1a.svg": b"1", "index.html": b"2"})
    draft = f".index.html.{'0' * 16}.tmp"
    mine = ("report.json", "figures/scores.svg", f".mine.html.{'0' * 16}.tmp")
    for name in (draft, *mine):
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "figures" / "scores.svg").rename(tmp_path / "figures" / "my-scores.svg")
    open_run_folder(tmp_path, STORE, force=True)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"report.json", "figures", "figures/my-scores.svg", mine[2], MANIFEST}


@pytest.mark.parametrize("name", ["index.html", DOCUMENT, "figures/figure-2.png", "figures"])
def test_a_file_that_is_not_listed_is_not_overwritten(tmp_path: Path, name: str) -> None:
    open_run_folder(tmp_path, STORE, force=False)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    for resume, force in ((False, False), (True, False), (False, True)):
        with pytest.raises(InvalidInputError, match=f"{name} must be free for a file of directgp"):
            check_run_folder(tmp_path, STORE, DOCUMENT, resume, force)
    assert (tmp_path / name).read_text() == "mine"


def test_links_are_not_followed(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder = ReportFolder(out)
    folder.write({"figures/figure-1a.svg": b"1", "index.html": b"2"})
    (out / "figures").rename(elsewhere)
    (out / "figures").symlink_to(elsewhere)
    with pytest.raises(InvalidInputError, match="figures must be free"):
        open_run_folder(out, STORE, force=True)
    (out / "figures").unlink()
    (out / "index.html").rename(elsewhere / "mine.html")
    (out / "index.html").symlink_to(elsewhere / "mine.html")
    with pytest.raises(InvalidInputError, match=r"index\.html must be free"):
        open_run_folder(out, STORE, force=True)
    assert {path.name for path in elsewhere.iterdir()} == {"figure-1a.svg", "mine.html"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"files": ["../mine"], "sha256": "0"}', '{"files": 3}', '{"files": [[]]}'],
)
def test_a_list_that_directgp_has_not_written_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(InvalidInputError, match="is damaged or was not written by directgp"):
        check_run_folder(tmp_path, STORE, DOCUMENT, resume=False, force=True)


@pytest.mark.timeout(20)
def test_a_list_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(InvalidInputError, match="is damaged or was not written by directgp"):
        ReportFolder(tmp_path)


def test_a_list_names_no_files_elsewhere(tmp_path: Path) -> None:
    names = ["../mine"]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    (tmp_path / MANIFEST).write_text(json.dumps({"files": names, "sha256": digest}))
    with pytest.raises(InvalidInputError, match="is damaged or was not written by directgp"):
        ReportFolder(tmp_path)


def test_a_run_that_was_killed_before_its_store_was_made_is_taken_up(tmp_path: Path) -> None:
    open_run_folder(tmp_path, STORE, force=False)
    check_run_folder(tmp_path, STORE, DOCUMENT, resume=False, force=False)


def test_force_does_not_delete_what_another_program_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reproduction").mkdir()
    words = ("reproduce", "--claim", "C5", "--dataset", "twonorm", "--no-download", "--force")
    with Store(tmp_path / "reproduction" / STORE) as store:
        store.lease(CELL)
        answer = run(*words)
    assert answer.code == 1
    assert f"reproduction/{STORE} is in use by another program." in answer.err


def test_a_folder_is_not_merged_with_itself(folder: Path) -> None:
    with Store(folder / STORE) as store:
        store.put(sweeps.finished(CELL))
    answer = run("reproduce", "--out", folder, "--merge", folder, "--force")
    assert answer.code == 2 and "--merge must be another folder than --out" in answer.err
    with Store(folder / STORE) as store:
        assert CELL in store


def test_engines() -> None:
    assert Engine("local", jobs=3).pool([CELL]) == (LocalWorkers(3), "cpu")
    assert Engine("inline").pool([CELL]) == (InProcess(), "cpu")


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("auto", 0.5, "cuda"), ("cuda", 1.0, "cuda"), ("cpu", 1.0, "cpu"), ("auto", 0.0, "cpu")],
)
def test_on_ray_a_cell_has_a_gpu_where_it_is_given_one(
    device: Any, gpus: float, expected: str
) -> None:
    """Whatever this machine has."""
    found = Engine("ray", jobs=3, device=device, gpus=gpus).pool([CELL])
    assert found == (RayCluster(workers=3, gpus=gpus), expected)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cpus", "2"), "--cpus is for --engine ray."),
        (("--gpus", "1"), "--gpus is for --engine ray."),
        (("--engine", "ray", "--cpus", "0"), "--cpus must be more than 0 and finite. Got 0."),
        (("--engine", "ray", "--cpus", "nan"), "--cpus must be more than 0 and finite."),
        (("--engine", "ray", "--device", "cuda"), "--device cuda needs --gpus"),
        (("--engine", "inline", "--jobs", "2"), "and --engine inline has one. Leave it out."),
        (
            ("--engine", "ray", "--address", "auto", "--jobs", "2"),
            "and the cluster has its own. Leave it out.",
        ),
        (
            ("--claim", "C7", "--dataset", "pol", "--dataset", "song"),
            "There is no experiment of claim C7 on pol and song at scale smoke.",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_left_behind(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = run("reproduce", *words)
    assert answer.code == 2 and sentence in answer.err
    assert list(tmp_path.iterdir()) == []
