"""The facts of the paper's data sets, and the parsers of their public files."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pytest
from scipy.io import savemat

from directgp.datasets.catalogues import PAPER_SETS
from directgp_paper.datasets import PAPER, PaperDataset, open_paper
from directgp_paper.datasets.sets import (
    read_abalone,
    read_cadata,
    read_keel,
    read_peds1,
    read_pol,
    read_ringnorm,
    read_sarcos,
    read_song,
    read_thyroid,
)

# Name, type, size, dim and M, as printed in the paper's table of data sets.
TABLE = """
pol regression 15000 26 100
cadata regression 20640 8 206
sarcos regression 48933 21 100
song regression 515345 90 100
banana classification 5300 2 53
thyroid classification 3772 6 37
twonorm classification 7400 20 74
ringnorm classification 7400 20 74
airline classification 2055733 8 200
abalone count 4177 9 41
Peds1_dir0 count 4000 30 40
Peds1_dir1 count 4000 30 40
Peds1_dir2 count 4000 30 40
"""

KNOWN_SIZES = {
    "sarcos": (7432, 21),
    "song": (4679, 54),
    "airline": (1969507, 8),
}
"""Of the known copies, where they are smaller than the paper's."""

FOLDER = os.environ.get("DIRECTGP_DATA", "")

every_set = pytest.mark.parametrize("facts", PAPER.values(), ids=lambda facts: facts.name)


def printed(facts: PaperDataset) -> str:
    numbers = (facts.rows, facts.features, facts.num_inducing)
    return " ".join(map(str, (facts.name, facts.task, *numbers)))


def test_the_papers_table() -> None:
    rows = [printed(facts) for facts in PAPER.values() if not facts.stands_for]
    assert rows == TABLE.lower().split("\n")[1:-1]


def test_names_are_those_of_the_sets() -> None:
    assert all(name == facts.name for name, facts in PAPER.items())


def test_one_set_stands_for_three() -> None:
    assert list(PAPER)[-1] == "peds1"
    peds1 = PAPER["peds1"]
    assert peds1.stands_for == ("peds1_dir0", "peds1_dir1", "peds1_dir2")
    for name in peds1.stands_for:
        assert PAPER[name].size == peds1.size and PAPER[name].home is None
        assert PAPER[name].where_from.startswith("not available: ")


@every_set
def test_facts_are_complete(facts: PaperDataset) -> None:
    assert facts.target and facts.licence and facts.source
    assert not facts.differences or facts.differences.endswith(".")
    assert (facts.home is None) == bool(facts.not_fetched)
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in facts.copies)
    assert urlsplit(facts.url).hostname


@every_set
def test_download_addresses_are_fixed_and_safe(facts: PaperDataset) -> None:
    if facts.home is None:
        return
    home = facts.home
    assert all(each.url.startswith("https://") for each in home.files)
    # A branch may move; a commit does not.
    for each in home.files:
        if "githubusercontent" in each.url:
            assert re.search("/[0-9a-f]{40}/", each.url)
    assert home.fingerprint is None or home.fingerprint in facts.copies
    assert "pickle" not in home.read.__module__


def test_downloads_have_different_names_in_the_cache() -> None:
    urls = {each.url for facts in PAPER.values() if facts.home for each in facts.home.files}
    assert len({url.rsplit("/", 1)[-1] for url in urls}) == len(urls)


@every_set
def test_docs_data_page_lists_the_same_facts(facts: PaperDataset) -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    cells = (f"`{facts.name}`", facts.task, facts.size, facts.num_inducing, facts.licence)
    other = facts.differences or ("none" if facts.copies else "no copy is known")
    row = " | ".join(map(str, (*cells, f"[{facts.source}]({facts.url})", other)))
    assert f"| {row} |\n" in page


@pytest.mark.parametrize("name", ["twonorm", "ringnorm"])
def test_generated_sets_have_the_papers_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIRECTGP_DATA", raising=False)
    data = open_paper(name, tmp_path, download=False)
    assert data.origin == "generated" and "not the rows of DELVE" in data.differences
    assert data.problem.X.shape == (7400, 20) and data.problem.target == "y"
    # The mean of class 1 is −a in twonorm and a in ringnorm, a = 2/√20, in every dimension.
    inner = data.problem.X[data.problem.y == 1]
    mean = 2 / np.sqrt(20) * (-1 if name == "twonorm" else 1)
    assert abs(inner.mean(axis=0) - mean).max() < 5 / np.sqrt(len(inner))


@pytest.mark.skipif(not FOLDER, reason="DIRECTGP_DATA names no folder with the known copies")
@pytest.mark.parametrize("name", [name for name in PAPER if not name.startswith("peds1_")])
def test_known_copies_are_recognised(name: str) -> None:
    facts = PAPER[name]
    data = open_paper(name, Path(FOLDER), download=False)
    assert data.origin == "folder" and data.problem.fingerprint() in facts.copies
    assert data.problem.X.shape == KNOWN_SIZES.get(name, (facts.rows, facts.features))
    assert data.differences == facts.differences
    assert bool(data.differences) == (name in (*KNOWN_SIZES, "peds1"))


def numbers(table: pa.Table) -> Any:
    """The table as a matrix, the target last."""
    assert table.column_names[-1] == "y"
    return np.column_stack([table[name].to_numpy() for name in table.column_names])


def single(values: Any) -> Any:
    return np.array(values, dtype=np.float32)


def zipped(path: Path, member: str, text: str) -> Path:
    with ZipFile(path, "w") as archive:
        archive.writestr("Index", "other things")
        archive.writestr(member, text)
    return path


def test_pol(tmp_path: Path) -> None:
    texts = {
        "train_data": "   5.6000000e+01   1.0400000e+02\n   8.9000000e+01   7.7000000e+01\n",
        "train_labels": "   0.0000000e+00\n   2.0000000e+01\n",
        "test_data": "   1.0000000e+00   2.0000000e+00\n   3.0000000e+00   4.0000000e+00\n",
        "test_labels": "   1.0000000e+02\n   7.0000000e+01\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    table = read_pol([tmp_path / name for name in texts])
    assert table.column_names == ["x0", "x1", "y"]
    assert numbers(table).tolist() == [[56, 104, 0], [89, 77, 20], [1, 2, 100], [3, 4, 70]]


@pytest.mark.parametrize("end", ["", " "])
def test_cadata(end: str, tmp_path: Path) -> None:
    row = "1:8.3252 2:41 3:880 4:129 5:322 6:126 7:37.88 8:-122.23"
    # A value of 0 may be left out in this format.
    (tmp_path / "cadata").write_text(f"452600 {row}{end}\n3.585e+05 1:8.3014 8:-122{end}\n")
    table = read_cadata([tmp_path / "cadata"])
    first = single([8.3252, 41, 880, 129, 322, 126, 37.88, -122.23, 452600])
    assert numbers(table)[0].tolist() == first.tolist()
    assert table["median_income"][0].as_py() == first[0]
    assert table["longitude"][0].as_py() == first[7]
    assert table["y"].to_pylist() == [452600, 358500]
    assert table["households"].to_pylist() == [126, 0]


def test_song(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 91)).round(5)
    rows[:, 0] = [2001, 1997, 1922]
    text = "\n".join(",".join(map(str, row)) for row in rows.tolist())
    table = read_song([zipped(tmp_path / "song.zip", "YearPredictionMSD.txt", text)])
    assert table.column_names == [
        *(f"avg{j}" for j in range(1, 13)),
        *(f"cov{j}" for j in range(1, 79)),
        "y",
    ]
    assert numbers(table)[:, :-1] == pytest.approx(rows[:, 1:], rel=1e-6)
    assert table["y"].to_pylist() == [2001, 1997, 1922]


def test_abalone(tmp_path: Path) -> None:
    text = "M,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15\nF,0.53,0.42,0.135,0.677,1,2,3,9\nI"
    text += ",0.33,0.255,0.08,0.205,0.0895,0.0395,0.055,7\n"
    table = read_abalone([zipped(tmp_path / "abalone.zip", "abalone.data", text)])
    assert table["sex_I"].to_pylist() == [0, 0, 1] and table["sex_M"].to_pylist() == [1, 0, 0]
    assert table.column_names[2:] == [
        "length",
        "diameter",
        "height",
        "whole_weight",
        "shucked_weight",
        "viscera_weight",
        "shell_weight",
        "y",
    ]
    measured = [0.455, 0.365, 0.095, 0.514, 0.2245, 0.101, 0.15, 15]
    assert numbers(table)[0, 2:].tolist() == single(measured).tolist()


def test_unknown_sex_raises(tmp_path: Path) -> None:
    text = "X,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15\n" * 2
    with pytest.raises(ValueError, match="X"):
        read_abalone([zipped(tmp_path / "abalone.zip", "abalone.data", text)])


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("banana", "1.14,-0.5,-1.0\n-1.5,0.25,1.0\n", [[1.14, -0.5, 0], [-1.5, 0.25, 1]]),
        ("twonorm", "-1.5, 2.6240, 1\n 0.5, 0, 0\n", [[-1.5, 2.624, 1], [0.5, 0, 0]]),
    ],
)
def test_keel(name: str, text: str, rows: list[list[float]], tmp_path: Path) -> None:
    header = f"@relation {name}\n@attribute At1 real [-3.09, 2.81]\n@data\n"
    file = zipped(tmp_path / "keel.zip", f"{name}.dat", header + text)
    table = read_keel([file], member=f"{name}.dat")
    assert table.column_names == ["x0", "x1", "y"]
    assert numbers(table).tolist() == single(rows).tolist()


def test_thyroid(tmp_path: Path) -> None:
    X = np.linspace(0, 1, 18).reshape(3, 6)
    np.savez(tmp_path / "thyroid.npz", X=X, y=np.array([0, 1, 0]))
    table = read_thyroid([tmp_path / "thyroid.npz"])
    assert numbers(table)[:, :-1].tolist() == X.astype(np.float32).tolist()
    assert table["y"].to_pylist() == [0, 1, 0]


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([{"code": "any"}], dtype=object)
    np.savez(tmp_path / "thyroid.npz", X=objects, y=objects)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_thyroid([tmp_path / "thyroid.npz"])


def test_sarcos(tmp_path: Path) -> None:
    train, test = np.arange(56.0).reshape(2, 28), np.arange(28.0)[None] + 0.1
    files = [tmp_path / "sarcos_inv.mat", tmp_path / "sarcos_inv_test.mat"]
    savemat(files[0], {"sarcos_inv": train})
    savemat(files[1], {"sarcos_inv_test": np.vstack([test, test])})
    table = read_sarcos(files)
    assert table.column_names[:21:10] == ["pos1", "vel4", "acc7"]
    assert table["y"].to_pylist() == single([21, 49, 21.1, 21.1]).tolist()
    assert numbers(table)[:2, :-1].tolist() == train[:, :21].tolist()


@pytest.mark.parametrize("labels", [(-1, 1), (1, -1), (0, 1), (2, 1)])
def test_the_class_inside_is_class_1(labels: tuple[int, int], tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    inner = random.integers(2, size=200) == 1
    X = random.normal(size=(200, 20)) * np.where(inner, 1.0, 2.0)[:, None]
    y = np.where(inner, labels[0], labels[1])
    savemat(tmp_path / "ringnorm.mat", {"X": X, "y": y[:, None]})
    table = read_ringnorm([tmp_path / "ringnorm.mat"])
    assert table["y"].to_pylist() == inner.astype(float).tolist()
    assert numbers(table)[:, :-1].tolist() == X.astype(np.float32).tolist()


@pytest.mark.parametrize("nested", [False, True])
def test_peds1(nested: bool, tmp_path: Path) -> None:
    X, y = np.random.default_rng(2).normal(size=(50, 30)), np.arange(50)
    data = {"xt": X, "yt": y[:, None]}
    whole = {"model": {"D": 30.0, "logl_int": "poisson"}, "data": data} if nested else data
    savemat(tmp_path / "peds.mat", whole)
    table = read_peds1([tmp_path / "peds.mat"])
    assert numbers(table)[:, :-1].tolist() == X.astype(np.float32).tolist()
    assert table["y"].to_pylist() == y.tolist()


def test_the_library_knows_the_names() -> None:
    assert PAPER_SETS == tuple(PAPER)


def test_sets_are_opened_without_torch() -> None:
    code = (
        "import sys; from directgp_paper.datasets import open_paper;"
        "open_paper('ringnorm', download=False); print({'torch', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
