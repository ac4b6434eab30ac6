"""Wrong usage gives one line on standard error and an exit code."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from directgp.cli.model_folder import load_folder
from directgp.errors import ModelFileError
from tests.cli.running import (
    QUICK,
    as_two_files,
    count_table,
    forge_model,
    regression_table,
    run,
    write_csv,
)

USAGE = [
    # What was typed cannot be meant.
    ("fit", "Missing argument 'DATA'. See 'directgp fit --help'."),
    ("fit reg.csv --target y", "Missing option '--out'. See 'directgp fit --help'."),
    (
        "fit reg.csv more.csv --out m",
        "Got unexpected extra argument(s) (more.csv). See 'directgp fit --help'.",
    ),
    ("fitt reg.csv", "No such command 'fitt'. Did you mean 'fit'? See 'directgp --help'."),
    (
        "fit reg.csv --targe y --out m",
        "No such option: --targe. Did you mean '--target'? See 'directgp fit --help'.",
    ),
    (
        "fit reg.csv --target y --out m --task regresion",
        "Invalid value for '--task': 'regresion' is not one of 'regression', 'classification',"
        " 'count'. See 'directgp fit --help'.",
    ),
    (
        "fit reg.csv --target y --out m --device gpu",
        "Invalid value for '--device': 'gpu' is not one of 'auto', 'cpu', 'cuda'."
        " See 'directgp fit --help'.",
    ),
    (
        "fit reg.csv --target y --out m --kernel linear",
        "--kernel must be auto, rbf, matern12, matern32 or matern52, or an expression such as"
        " 'RBF(\"x\") + Group(\"shop\")'. Got 'linear'.",
    ),
    (
        "fit reg.csv --target y --out m --time-budget 0",
        "--time-budget must be positive and finite. Got 0.",
    ),
    (
        "fit reg.csv --target y --out m --time-budget inf",
        "--time-budget must be positive and finite. Got inf.",
    ),
    (
        "fit reg.csv --target y --out m --missing impute --drop-missing",
        "--missing impute and --drop-missing cannot be given together. Leave one out.",
    ),
    (
        "fit reg.csv --target y --drop code --likelihood gaussian_known_noise --out m",
        "--noise must be given with --likelihood gaussian_known_noise. Got none."
        " Give --noise COLUMN.",
    ),
    (
        "fit reg.csv --target y --drop code --upper x --likelihood gaussian_known_noise --out m",
        "--noise must be given with --likelihood gaussian_known_noise. Got --upper."
        " Give --noise COLUMN.",
    ),
    (
        "predict reg reg.csv --out p.csv --quantiles 0.1,0.10000001",
        "--interval and --quantiles must be numbers that name different columns. Got two for"
        " 'q0.1'. Give them with fewer digits, or leave one out.",
    ),
    (
        "fit reg.csv --target y --out m --beta=-1",
        "--beta must be 'auto' or a number of at least 0. Got '-1'.",
    ),
    (
        "fit reg.csv --target y --out m --beta nan",
        "--beta must be 'auto' or a number of at least 0. Got 'nan'.",
    ),
    (
        "fit reg.csv --target y --out m --inducing 0",
        "--inducing must be 'auto' or a whole number from 1 to 1,000,000,000. Got '0'.",
    ),
    (
        "fit reg.csv --target y --out m --max-iter 0",
        "--max-iter must be from 1 to 1,000,000,000. Got 0.",
    ),
    (
        f"fit reg.csv --target y --out m --max-iter {10**12}",
        "--max-iter must be from 1 to 1,000,000,000. Got 1000000000000.",
    ),
    (
        f"fit reg.csv --target y --out m --jobs {10**30}",
        "--jobs must be from 1 to 1,000. Got 1e+30.",
    ),
    (
        f"fit reg.csv --target y --out m --inducing {'9' * 5000}",
        "--inducing must be 'auto' or a whole number from 1 to 1,000,000,000. Got '"
        + "9" * 5000
        + "'.",
    ),
    (
        f"reproduce --repeats {10**12}",
        "--repeats must be from 1 to 1,000. Got 1000000000000.",
    ),
    ("fit reg.csv --target y --out m --seed=-1", "--seed must be from 0 to 2³² − 1. Got -1."),
    (
        "fit reg.csv --target y --out m --task count --positive b",
        "--positive must be given with --task classification only. Got --task count."
        " Leave one out.",
    ),
    (
        "fit reg.csv --target y --out m --task regression --exposure x",
        "--exposure must be given with --task count only. Got --task regression. Leave one out.",
    ),
    (
        "fit reg.csv --out m",
        "--target must be given for a file. Got none. The columns of 'reg.csv' are 'code', 'x',"
        " 'kind' and 'y'.",
    ),
    ("predict reg", "Missing argument 'DATA'. See 'directgp predict --help'."),
    (
        "predict reg reg.csv --out p.xlsx",
        "--out must be a file that ends in .parquet, .csv, .tsv, .feather, .csv.gz or .tsv.gz."
        " Got 'p.xlsx'.",
    ),
    (
        "predict reg reg.csv --out p.csv --coverage 90",
        "--interval must be numbers between 0 and 1. Got '90'.",
    ),
    ("inspect", "Missing argument 'MODEL|DATA'. See 'directgp inspect --help'."),
    ("datasets --folder x", "No such option: --folder. See 'directgp datasets --help'."),
    ("compare reg.csv --bogus x", "No such option: --bogus. See 'directgp compare --help'."),
    (
        "compare reg.csv --repeat 3",
        "No such option: --repeat. Did you mean '--repeats'? See 'directgp compare --help'.",
    ),
]

FAILURES = [
    (
        "fit reg.csv --target y --out m --drop y",
        "A column to drop must be another one than the target. Got 'y'.",
    ),
    # The data, the files or the model are not as they have to be.
    (
        "fit rag.csv --target y --out m",
        "DATA must be a file that exists or the name of a data set. Got 'rag.csv'."
        " Did you mean 'reg.csv'?",
    ),
    (
        "fit reg.csv --target Y --out m",
        "The target must be a column of the table. Got 'Y'. Did you mean 'y'?",
    ),
    (
        "fit reg.csv --target y --drop coda --out m",
        "A column to drop must be a column of the table. Got 'coda'. Did you mean 'code'?",
    ),
    (
        "fit reg.csv --target y --weights wait --out m",
        "--weights must be a column of the table. Got 'wait'."
        " Its columns: 'code', 'x', 'kind' and 'y'.",
    ),
    (
        "fit reg.csv --target y --drop code --weights kind --out m",
        "Column 'kind' must be of numbers. Got 'c' in row 1. Name another.",
    ),
    (
        "fit reg.csv --target y --drop code --out notes.txt",
        "--out must be a new folder. Got 'notes.txt', which is a file. Name another.",
    ),
    (
        "fit reg.csv --target y --drop code --out other --force",
        "--out must be a new folder or that of a model. Got 'other', which holds other"
        " files. Name another.",
    ),
    (
        "fit reg.csv --target y --drop code --out notes.txt/m",
        "--out must be in a folder that can be written to. Got 'notes.txt/m'. Name another.",
    ),
    (
        "predict reg reg.csv --out notes.txt/p.csv",
        "--out must be in a folder that can be written to. Got 'notes.txt/p.csv'. Name another.",
    ),
    (
        "fit reg.csv --target y --drop code --data-dir nowhere --out m",
        "--data-dir must be a folder that exists. Got 'nowhere'. Correct it or leave it out.",
    ),
    (
        "predict nothing reg.csv --out p.csv",
        "MODEL must be a folder that directgp fit wrote. Got 'nothing', in which there is no"
        " model.safetensors. Check the path.",
    ),
    (
        "predict reg reg.csv --out reg.csv --force",
        "--out must be a new file. Got 'reg.csv', which is an input. Name another.",
    ),
    (
        "predict reg reg.csv --out notes.txt.csv",
        "--out must be a new file. Got 'notes.txt.csv', which exists. Name another, or replace it"
        " with --force.",
    ),
    (
        "predict reg reg.csv --out folder.csv --force",
        "--out must be a new file. Got 'folder.csv', which is a folder. Name a file in it.",
    ),
    (
        "predict reg reg.csv --id coda --out p.csv",
        "--id must be a column of the table. Got 'coda'. Did you mean 'code'?",
    ),
    (
        "predict reg means.parquet --id mean --out p.csv",
        "--id must be a column of another name. Got 'mean', which is one of the predictions."
        " Rename it in the data.",
    ),
    (
        "predict reg reg.csv --exposure x --out p.csv",
        "--exposure must be given for a likelihood that uses it. Got it for a model of the task"
        " regression with Gaussian. Leave it out.",
    ),
    (
        "predict reg without.parquet --out p.csv",
        "DATA must be a table with all columns that the model uses. Got no 'x'."
        " Its columns: 'code', 'kind' and 'y'.",
    ),
    ("predict reg empty.parquet --out p.csv", "DATA must have rows to predict. Got none."),
    (
        "predict cls labels.parquet --out p.csv",
        "The target 'label' must be of the classes 'sick' and 'well'. Got other labels with their"
        " counts: 'dead' (1). Correct or remove these rows, or ignore the target with --no-score.",
    ),
    (
        "inspect other",
        "MODEL must be a folder that directgp fit wrote. Got 'other', in which there is no"
        " model.safetensors. Check the path.",
    ),
    (
        "inspect python",
        "MODEL must be a folder that directgp fit wrote. Got 'python', whose model.safetensors does"
        " not say how the columns of a table become features. Use it with directgp.load, or fit it"
        " with directgp fit.",
    ),
    (
        "inspect mixed",
        "mixed/table.json and model.safetensors do not belong together."
        " Take another copy of the folder, or fit the model again.",
    ),
    (
        "inspect broken",
        "broken/table.json cannot be read as the description of a model: format: Input should be 1"
        " or 2. Take another copy of the folder, or fit the model again.",
    ),
    (
        "datasets --data-dir nowhere",
        "--data-dir must be a folder that exists. Got 'nowhere'. Correct it or leave it out.",
    ),
]


@pytest.fixture(scope="module")
def working_folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the wrong usages name."""
    here = tmp_path_factory.mktemp("working_folder")
    table = regression_table()
    write_csv(table, here / "reg.csv")
    more = {
        "means": table.append_column("mean", table.column("y")),
        "new": table.set_column(2, "kind", [["d"] * 40]),
        "without": table.drop_columns(["x"]),
        "empty": table.slice(0, 0),
        "labels": pa.table({"x": [1.0, 2.0], "z": [0.0, 1.0], "label": ["sick", "dead"]}),
    }
    for name, each in more.items():
        pyarrow.parquet.write_table(each, here / f"{name}.parquet")
    for name in ("notes.txt", "notes.txt.csv"):
        (here / name).write_text("mine")
    for name in ("other", "folder.csv"):
        (here / name).mkdir()
        (here / name / "mine.txt").write_text("mine")
    for name in ("reg", "cls"):
        shutil.copytree(trained / name, here / name)
    shutil.copytree(trained / "reg", here / "mixed")
    as_two_files(here / "mixed", model_sha256="0" * 64)
    shutil.copytree(trained / "reg", here / "broken")
    as_two_files(here / "broken", format=3)
    shutil.copytree(trained / "reg", here / "python")
    forge_model(here / "python" / "model.safetensors", lambda m, _: m.pop("table"))
    return here


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(file), file.stat().st_mtime_ns) for file in folder.rglob("*"))


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [(typed, 2, words) for typed, words in USAGE]
    + [(typed, 1, words) for typed, words in FAILURES],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else "",
)
def test_answers(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, words: str
) -> None:
    monkeypatch.chdir(working_folder)
    monkeypatch.delenv("DIRECTGP_DATA", raising=False)
    before = listing(working_folder)
    answer = run(*typed.split())
    assert (answer.code, answer.out, answer.err) == (code, "", f"Error: {words}\n")
    assert listing(working_folder) == before


def test_with_json_the_error_is_a_document_as_well(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(working_folder)
    for typed, words in (USAGE[8], FAILURES[8]):
        answer = run(*typed.split(), "--json")
        assert json.loads(answer.out) == {"error": words}
        assert answer.err == f"Error: {words}\n"


def test_debug_shows_where(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(working_folder)
    answer = run("inspect", "other", "--debug")
    assert answer.err.startswith("Traceback (most recent call last):")
    assert "load_folder" in answer.err
    assert answer.err.splitlines()[-1].startswith("Error: MODEL must be a folder")


def test_a_wrong_variable_is_blamed_where_it_is_needed_only(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(working_folder)
    monkeypatch.setenv("DIRECTGP_DATA", "nowhere")
    blamed = "Error: DIRECTGP_DATA must be a folder that exists. Got 'nowhere'. Correct it"
    assert run("fit", "reg", "--target", "y", "--out", "m").err.startswith(blamed)
    assert run("datasets").err.startswith(blamed)
    read = run("fit", "reg.csv", "--target", "Y", "--out", "m")
    assert read.err.startswith("Error: The target must be a column of the table. Got 'Y'.")


def test_gaps_in_exposures_are_refused_with_their_number(here: Path) -> None:
    table = count_table()
    hours = pa.array([None, None, *table.column("hours").to_pylist()[2:]])
    write_csv(table.set_column(1, "hours", hours), here / "gaps.csv")
    answer = run("fit", "gaps.csv", "--target", "k", "--exposure", "hours", *QUICK, "--out", "m")
    assert answer.err == (
        "Error: Values are missing in 'hours' (2), of 40 rows: use --missing drop.\nThis works:\n"
        "directgp fit gaps.csv --target k --exposure hours --beta 1 \\\n"
        "  --hyperparameters joint --max-iter 3 --inducing 5 --kernel rbf --ard --out m \\\n"
        "  --missing drop\n"
    )


def test_nothing_typed_is_answered_by_the_help() -> None:
    answer = run()
    assert answer.code == 2
    assert "Usage: directgp" in answer.out + answer.err
    assert "Error" not in answer.err


CARDS: dict[str, tuple[dict[str, Any], str]] = {
    "another task": ({"task": "count"}, "its task is count"),
    "classes of numbers": ({"classes": ["a", "b"]}, "it names other classes"),
    "a task with classes": (
        {"task": "classification", "classes": ["a", "b"]},
        "its task is classification",
    ),
    "other features": ({"encoding": {"columns": []}}, "it names other features"),
    "a row constant": ({"noise": "x"}, "it has other row constants than Gaussian"),
    "two row constants": ({"noise": "x", "upper": "x"}, "more than one column of row constants"),
    "no rows": ({"rows": 0}, "rows: Input should be greater than or equal to 1"),
    "rows without end": ({"rows": 10**400}, "rows: Input should be less than"),
    "a name of a megabyte": ({"name": "x" * 10**6}, "name: String should have at most"),
    "a target of nothing": ({"target": None}, "target: Input should be a valid string"),
}


@pytest.mark.parametrize("earlier", [False, True], ids=["one file", "two files"])
@pytest.mark.parametrize("name", CARDS)
def test_a_description_that_is_not_that_of_the_model_is_refused(
    trained: Path, tmp_path: Path, name: str, earlier: bool
) -> None:
    changes, said = CARDS[name]
    folder = Path(shutil.copytree(trained / "reg", tmp_path / "m"))
    if earlier:
        as_two_files(folder, **changes)
    else:
        forge_model(folder / "model.safetensors", lambda m, _: m["table"].update(changes))
    with pytest.raises(ModelFileError) as caught:
        load_folder(folder, "cpu")
    assert said in str(caught.value) and len(str(caught.value)) < 1000


COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "dates": ({"dates": "%Y%Y"}, "a format of dates is unknown"),
    "long dates": ({"dates": "%Y" * 100}, "a format of dates is unknown"),
    "levels": ({"base": "a"}, "levels of a column are not different"),
    "long level": ({"base": "x" * 20_000}, "has more than 10,000 characters"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_cannot_be_read_are_refused(trained: Path, tmp_path: Path, name: str) -> None:
    changes, said = COLUMNS[name]
    folder = Path(shutil.copytree(trained / "reg", tmp_path / "m"))

    def change(manifest: dict[str, Any], _: object) -> None:
        number, category = manifest["table"]["encoding"]["columns"]
        (number if "dates" in changes else category).update(changes)

    forge_model(folder / "model.safetensors", change)
    with pytest.raises(ModelFileError, match=said):
        load_folder(folder, "cpu")


def test_what_is_no_file_is_no_description(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained / "reg", tmp_path / "m"))
    as_two_files(folder)
    with open(folder / "table.json", "a") as file:
        file.write(" " * 2**24)
    with pytest.raises(ModelFileError, match="it has more than 16,777,216 bytes"):
        load_folder(folder, "cpu")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"in which there is no model\.safetensors"):
        load_folder(folder, "cpu")
