"""`directgp inspect` and `directgp datasets`: their output."""

import json
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest

from directgp import load
from directgp.datasets.sources import embedded
from directgp.estimators.summary import facts_of, summary_text
from tests.cli.running import NUMBERS, class_table, run, write_csv


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


def test_the_columns_of_a_table_with_other_kinds(here: Path) -> None:
    rows = 60
    columns = {
        "day": [f"2020-{1 + k % 12:02d}-{1 + k % 28:02d}" for k in range(rows)],
        "when": [f"{1 + k % 9}/{1 + k % 7}/2020" for k in range(rows)],
        "patient": [f"P{k % 12}" for k in range(rows)],
        "shop_id": [k % 9 for k in range(rows)],
        "city, land": [f"{k % 20} a" for k in range(rows)],
        "kind": [f"K{k % 2}" for k in range(rows)],
        "Latitude": [k / 2 for k in range(rows)],
        "lon": [k / 3 for k in range(rows)],
        "note": [f"text {k}" for k in range(rows)],
        "same": ["a"] * rows,
        "y": [k / 7 for k in range(rows)],
    }
    write_csv(pa.table(columns), here / "t.csv")
    lines = run("inspect", "t.csv").out.replace("\n    ", " ").splitlines()
    assert lines[0] == "t.csv: 60 rows"
    told = dict(line.removeprefix("  - ").split(": ", 1) for line in lines if "  - " in line)
    assert told["day"] == (
        "dates such as '2020-01-01', used with --dates days (--columns day=time: days since 1970)"
    )
    assert "--dates dmy or mdy sets the order" in told["when"]
    assert told["patient"].endswith("(--columns patient=group: 12 levels in 60 rows)")
    assert told["shop_id"] == "numbers (--columns shop_id=group: 9 levels in 60 rows)"
    assert told["kind"] == "a category, 1 column of 0 and 1: 'K0' and 'K1'"
    assert told["lon"].endswith("(--columns lon=place: latitude and longitude in degrees)")
    assert told["note"].startswith("text that does not recur, such as 'text 0'")
    assert told["same"] == "one value, which is left out"
    assert told["y"] == "numbers"
    document = json.loads(run("inspect", "t.csv", "--json").out)
    hints = {column["name"]: column["hint"] for column in document["columns"] if column["hint"]}
    assert hints == {
        **{"day": "time", "when": "time", "patient": "group", "shop_id": "group"},
        **{"city, land": "group", "Latitude": "place", "lon": "place"},
    }
    # The hints are a command that works, but for what fit asks itself.
    words = [word for word in lines if "--columns" in word and "directgp" not in word]
    assert any("'city, land=group'" in word for word in words)
    fit = ("fit", "t.csv", "--target", "y", "--drop", "note", "--dates", "dmy", *NUMBERS)
    given = "day=time,when=time,patient=group,shop_id=group,Latitude=place,lon=place"
    options = ("--columns", given, "--columns", "city, land=group", "--quiet", "--out", "m")
    assert run(*fit, *options).code == 0


def test_embedded_sets_and_other_paths(here: Path) -> None:
    assert run("inspect", "diabetes").out.startswith("embedded: diabetes: 442 rows\n  - age: num")
    assert "in which there is no model.safetensors" in run("inspect", "nowhere").err
