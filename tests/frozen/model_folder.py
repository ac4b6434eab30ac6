"""Folders of models that `directgp fit` wrote, and the commands that read them."""

import csv
import shutil
from pathlib import Path
from typing import Any

from tests.frozen.golden import FOLDER
from tests.frozen.program import run

MODEL_FOLDERS = {"2": FOLDER / "model_folder", "3": FOLDER / "model_folder_3"}
"""By the format of the model: each holds the folder `model`, and what the commands said of it.
Folders before format 3 have the description of the table in a file of its own."""

_TABLE = FOLDER / "data" / "regression.csv"
_FIT = (
    *("fit", "regression.csv", "--target", "y", "--beta", "1", "--hyperparameters", "joint"),
    *("--inducing", "6", "--max-iter", "10", "--device", "cpu", "--out", "model"),
)


def fit_folder(here: Path) -> Path:
    """Run `directgp fit` in a folder, and return the folder of the model."""
    shutil.copy(_TABLE, here)
    answer = run(*_FIT)
    assert answer.code == 0, answer.err
    return here / "model"


def copy_folder(name: str, here: Path) -> None:
    """Copy the model and its table."""
    shutil.copytree(MODEL_FOLDERS[name] / "model", here / "model")
    shutil.copy(_TABLE, here)


def inspected() -> str:
    """Return what `directgp inspect` prints of a model in the working folder."""
    answer = run("inspect", "model")
    assert answer.code == 0, answer.err
    return answer.out


def predicted(here: Path) -> dict[str, Any]:
    """Return the rows that `directgp predict` writes, and what it prints."""
    answer = run(
        *("predict", "model", "regression.csv", "--id", "kind", "--coverage", "0.8"),
        *("--device", "cpu", "--out", "predictions.csv"),
    )
    assert answer.code == 0, answer.err
    with open(here / "predictions.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {
        "columns": header,
        "rows": [[_value(text) for text in row] for row in rows],
        "printed": answer.out.splitlines(),
    }


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
