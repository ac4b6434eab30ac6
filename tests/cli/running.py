"""Commands run in this process, and small tables for them."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from typer.testing import CliRunner

from directgp.cli.main import app
from directgp.io import read_file, write_file
from directgp.persistence import MODEL

QUICK = (
    *("--beta", "1", "--hyperparameters", "joint", "--max-iter", "3", "--inducing", "5"),
    *("--kernel", "rbf", "--ard"),
)
"""Options of a short fit; with a likelihood there is one candidate."""

NUMBERS = (*QUICK, "--likelihood", "gaussian")
"""Options of a fit with one candidate."""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def run(*words: object) -> Answer:
    """Type a command; results are what is printed."""
    found = CliRunner().invoke(app, list(map(str, words)), prog_name="directgp")
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return Answer(found.exit_code, found.stdout, found.stderr)


def forge_model(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change manifest and tensors of a model file, with a right checksum."""
    tensors, manifest = read_file(MODEL, path)
    change(manifest, tensors)
    write_file(MODEL, path, tensors, manifest)


def as_two_files(folder: Path, **changes: Any) -> None:
    """Make the folder of a model one of an earlier version; fields that are `...` are left out."""
    file = folder / "model.safetensors"
    card = read_file(MODEL, file).manifest["table"]
    forge_model(file, lambda m, _: m.pop("table"))
    forge_model(file, lambda m, _: m.update(format=1))
    card |= {"model_sha256": hashlib.sha256(file.read_bytes()).hexdigest(), **changes}
    kept = {name: value for name, value in card.items() if value is not ...}
    (folder / "table.json").write_text(json.dumps(kept))


def regression_table() -> pa.Table:
    """Codes with leading zeros, a number, a category and a real-valued target."""
    random = np.random.default_rng(0)
    x, kind = random.uniform(-2, 2, 40), random.choice(["a", "b", "c"], 40)
    y = np.sin(x) + 0.3 * (kind == "b") + random.normal(scale=0.1, size=40)
    codes = [f"{number:04d}" for number in range(40)]
    return pa.table({"code": codes, "x": x, "kind": kind, "y": y})


def class_table() -> pa.Table:
    random = np.random.default_rng(1)
    x = random.normal(size=40)
    label = np.where(x + random.normal(scale=0.5, size=40) > 0, "sick", "well")
    return pa.table({"x": x, "z": random.normal(size=40), "label": label})


def count_table() -> pa.Table:
    random = np.random.default_rng(2)
    x, hours = random.uniform(-1, 1, 40), random.uniform(1, 5, 40)
    times = random.integers(1, 3, 40)
    return pa.table({"x": x, "hours": hours, "k": random.poisson(hours * np.exp(x)), "w": times})


def write_csv(table: pa.Table, path: Path) -> Path:
    pyarrow.csv.write_csv(table, path)
    return path


def write_parquet(table: pa.Table, path: Path) -> Path:
    pyarrow.parquet.write_table(table, path)
    return path


def matrix(table: pa.Table, *names: str) -> Any:
    return np.column_stack([table.column(name).to_numpy() for name in names])
