"""Data sets are found by path, by name, or in the data folder."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from directgp.datasets import (
    DatasetInfo,
    data_folder,
    embedded,
    in_folder,
    load_embedded,
    open_problem,
    open_source,
)
from directgp.errors import InvalidInputError
from directgp.registry import Task
from tests.unit.datasets.small_tables import repeated, small


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, without a data folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIRECTGP_DATA", raising=False)


@pytest.fixture
def folder() -> Path:
    """A data folder with a table in each of two formats, two files of no use, and one broken."""
    folder = Path("data")
    folder.mkdir()
    pyarrow.parquet.write_table(small(), folder / "house.parquet")
    pyarrow.csv.write_csv(small(y=repeated(0, 1)), folder / "twonorm.csv")
    pyarrow.csv.write_csv(pa.table({"x": [1, 2, 3], "colour": ["r", "g", "b"]}), folder / "z.csv")
    (folder / "broken.parquet").write_bytes(b"PAR1")
    (folder / "notes.md").write_text("no table")
    return folder


def refusal(data: str, folder: Path | None = None) -> str:
    with pytest.raises(InvalidInputError) as raised:
        open_problem(data, data_dir=folder)
    return str(raised.value)


@pytest.mark.parametrize("info", embedded(), ids=lambda info: info.name)
def test_embedded_sets_match_their_description(info: DatasetInfo) -> None:
    problem = load_embedded(info.name)
    assert (problem.name, problem.task, problem.target) == (info.name, info.task, info.target)
    assert problem.X.shape == (info.rows, info.features)
    assert problem.source == f"embedded: {info.name}"
    assert info.where == "embedded"
    assert info.about.endswith(".") and info.about.count(".") == 1


def test_embedded_sets_of_every_task_have_different_names() -> None:
    assert {info.task for info in embedded()} == {"regression", "classification", "count"}
    assert len({info.name for info in embedded()}) == len(embedded())


def test_classes_of_breast_cancer() -> None:
    problem = load_embedded("breast_cancer")
    assert problem.classes == ("benign", "malignant")
    assert problem.y.sum() == 212


def test_another_target_or_task_of_an_embedded_set() -> None:
    problem, _ = open_problem("diabetes", target="sex")
    assert problem.task == "classification"
    assert "progression" in problem.feature_names
    assert open_problem("counts", task="regression")[0].task == "regression"
    assert open_problem("twonorm", positive="0")[0].classes == ("1", "0")


def test_files_of_a_folder_are_listed_with_their_facts(folder: Path) -> None:
    broken, house, twonorm, z = in_folder(folder)
    assert (broken.name, broken.rows, broken.task, broken.target) == ("broken", None, None, None)
    assert broken.about.startswith("The data file must be readable. Got 'data/broken.parquet'")
    assert house == DatasetInfo(
        "house",
        "regression",
        30,
        2,
        "y",
        "house.parquet; the task is a guess: it has numbers with fractions.",
        "data",
    )
    assert (twonorm.name, twonorm.task, twonorm.rows) == ("twonorm", "classification", 30)
    assert (z.task, z.rows, z.features, z.target) == (None, 3, 1, "colour")
    assert "classes of at least 2 rows each. Got one row in 3 classes" in z.about


@pytest.mark.parametrize("data", ["house", "house.parquet", "data/house.parquet"])
def test_names_in_the_folder(data: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, encoding = open_problem(data, target="y", data_dir=folder)
    assert (problem.name, problem.source) == ("house", data)
    assert problem.feature_names == encoding.feature_names == ("a", "b")
    monkeypatch.setenv("DIRECTGP_DATA", str(folder))
    again, _ = open_problem(data, target="y")
    assert again.fingerprint() == problem.fingerprint()


def test_an_embedded_set_comes_before_one_of_the_folder(folder: Path) -> None:
    source = open_source("twonorm", folder)
    assert source.shown == "embedded: twonorm"
    assert source.notes == ("The data folder has another 'twonorm': 'twonorm.csv'.",)
    assert open_problem("twonorm", data_dir=folder)[0].notes[0] == source.notes[0]
    assert len(open_problem("twonorm.csv", target="y", data_dir=folder)[0].y) == 30


def test_a_folder_named_as_an_embedded_set_does_not_hide_it() -> None:
    Path("diabetes").mkdir()
    assert open_problem("diabetes")[0].task == "regression"


def test_unknown_data_raises(folder: Path) -> None:
    start = "DATA must be a file that exists or the name of a data set. Got "
    listed = "Names of data sets are listed by 'directgp datasets'."
    assert refusal("diabets") == f"{start}'diabets'. Did you mean 'diabetes'?"
    assert refusal("hause", folder) == f"{start}'hause'. Did you mean 'house'?"
    assert refusal("hause.parquet", folder) == (
        f"{start}'hause.parquet'. Did you mean 'house.parquet' or 'broken.parquet'?"
    )
    assert refusal("hause") == f"{start}'hause'. {listed}"
    assert refusal("data/hous.parquet").startswith(
        "The data file must be a file that exists. Got 'data/hous.parquet'. Did you mean"
    )
    assert refusal("data").startswith("The data file must be a file. Got the folder 'data'.")
    with pytest.raises(InvalidInputError) as raised:
        load_embedded("twnorm")
    assert str(raised.value).startswith(
        "The name must be that of an embedded data set. Got 'twnorm'. Did you mean 'twonorm'"
    )


def test_a_file_needs_a_target(folder: Path) -> None:
    assert refusal("house", folder) == (
        "target must be given for a file. Got none. The columns of 'house' are 'a', 'b' and 'y'."
    )


def test_the_folder_has_to_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder(None) is None
    words = "must be a folder that exists. Got 'nowhere'. Correct it or leave it out."
    with pytest.raises(InvalidInputError) as raised:
        data_folder(Path("nowhere"))
    assert str(raised.value) == f"--data-dir {words}"
    monkeypatch.setenv("DIRECTGP_DATA", "nowhere")
    with pytest.raises(InvalidInputError) as raised:
        data_folder(None)
    assert str(raised.value) == f"DIRECTGP_DATA {words}"
    assert data_folder(Path(".")) == Path(".")


def test_existing_file_needs_no_data_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRECTGP_DATA", "nowhere")
    assert open_source("data/house.parquet").name == "house"
    assert refusal("house").startswith("DIRECTGP_DATA must be a folder that exists.")
    # What was typed is wrong all the same.
    assert refusal("data/house.parquet", Path("void")).startswith("--data-dir must be a folder")


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ((None, None, None), ("progression", "regression")),
        ((None, "count", None), ("progression", "count")),
        ((None, None, "151"), ("progression", None)),
        (("sex", None, None), ("sex", None)),
        (("sex", "regression", None), ("sex", "regression")),
    ],
)
def test_embedded_set_has_target_and_task(
    given: tuple[str | None, Task | None, str | None], chosen: tuple[str, Task | None]
) -> None:
    assert open_source("diabetes").choose(*given) == chosen


def test_datasets_import_neither_torch_nor_pandas() -> None:
    # Arrow imports pandas where it is; a file of that name in the folder stands for its absence.
    for frames in ("pandas", "polars"):
        Path(f"{frames}.py").write_text("raise ImportError")
    code = (
        "import sys; from directgp.datasets import open_problem; open_problem('counts');"
        "print({'torch', 'sklearn', 'pandas', 'polars'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
