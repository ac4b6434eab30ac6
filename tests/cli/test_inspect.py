"""`directgp inspect` and `directgp datasets`: their output."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from directgp import load
from directgp.datasets.sources import embedded
from directgp.estimators.summary import facts_of, summary_text
from tests.cli.running import class_table, run, write_csv


def test_a_model_is_told_with_its_columns(trained: Path) -> None:
    answer = run("inspect", trained / "reg")
    model = load(trained / "reg" / "model.safetensors")
    assert answer.code == 0 and answer.err == ""
    assert answer.out.startswith(summary_text(facts_of(model)))
    assert "  target        y, regression\n" in answer.out
    assert f"  directgp      {version('directgp')}\n" in answer.out
    assert answer.out.endswith("Columns\n  - x: a number\n  - kind: a category, c (base), a, b\n")


def test_classes_exposure_and_weights_are_told(trained: Path) -> None:
    assert "label, classification: 'well' against 'sick'" in run("inspect", trained / "cls").out
    counts = run("inspect", trained / "cnt").out
    assert "  exposure      hours\n  weights       w\n" in counts


def test_a_model_in_json(trained: Path) -> None:
    found = json.loads(run("inspect", trained / "reg", "--json").out)
    assert found["features"] == ["x", "kind=a", "kind=b"]
    assert (found["fit"]["num_rows"], found["fit"]["beta"], found["task"]) == (
        40,
        1.0,
        "regression",
    )
    assert len(found["fingerprint"]) == len(found["model_sha256"]) == 64


def test_data_sets_are_listed(here: Path) -> None:
    answer = run("datasets")
    assert answer.code == 0
    for info in embedded():
        assert any(
            line.startswith(info.name) and info.target in line
            for line in answer.out.splitlines()
            if info.target
        )
    assert "DIRECTGP_DATA" in answer.err


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_folder_is_listed(here: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    (here / "sets").mkdir()
    write_csv(class_table().rename_columns(["x", "z", "y"]), here / "sets" / "ill.csv")
    (here / "sets" / "bad.parquet").write_text("no parquet")
    monkeypatch.setenv("DIRECTGP_DATA", "sets" if by == "variable" else "")
    words = ("datasets", *(("--data-dir", "sets") if by == "option" else ()))
    answer = run(*words)
    assert "In sets" in answer.out and answer.err == ""
    found = {each["name"]: each for each in json.loads(run(*words, "--json").out)["datasets"]}
    assert (found["ill"]["rows"], found["ill"]["task"], found["ill"]["where"]) == (
        40,
        "classification",
        "sets",
    )
    assert found["bad"]["rows"] is None
    assert len(found) == len(embedded()) + 2


def test_an_empty_folder_is_said_to_be_so(here: Path) -> None:
    (here / "sets").mkdir()
    assert run("datasets", "--data-dir", "sets").err == "There are no tables in sets.\n"
