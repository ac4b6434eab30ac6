"""Folders of reproductions, and where cells are run."""

from pathlib import Path
from typing import Any

import pytest

from directgp.cli.experiment import check_run_folder, clear_run_folder
from directgp.cli.reproduce import DOCUMENT, STORE, Engine
from directgp.errors import InvalidInputError
from directgp.experiments.ray import RayCluster
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers
from tests.cli.running import run
from tests.unit.experiments.paper import sweeps

CELL = sweeps.fit()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a store that has nothing."""
    Store(tmp_path / STORE).close()
    return tmp_path


def test_a_run_that_was_refused_leaves_a_folder_that_can_be_taken(folder: Path) -> None:
    check_run_folder(folder, STORE, resume=False, force=False)


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
            check_run_folder(folder, STORE, resume=False, force=False)
        check_run_folder(folder, STORE, resume=True, force=False)
        check_run_folder(folder, STORE, resume=False, force=True)


def test_a_store_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / STORE).write_bytes(b"not a database, but perhaps all that is left of one" * 50)
    with pytest.raises(InvalidInputError, match="Continue with --resume"):
        check_run_folder(tmp_path, STORE, resume=False, force=False)


def test_force_forgets_our_files_and_no_others(folder: Path) -> None:
    (folder / "figures").mkdir()
    (folder / "figures" / "1a.svg").touch()
    for name in ("index.html", "verdicts.json", "results.parquet", "notes.txt"):
        (folder / name).touch()
    (folder / "mine").mkdir()
    clear_run_folder(folder, STORE, DOCUMENT)
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "mine"}


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
