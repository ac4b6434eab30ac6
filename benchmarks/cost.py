"""Measure time and memory of fits and predictions by rows, features, M and likelihood.

``python -m benchmarks.cost`` fits each cell in a process of its own, on one thread, and writes
docs/tables/cost*.md. Seconds are processor time; memory is the peak of the process above what it
has after imports and data. The targets are drawn from a smooth f. All cells but those of the
defaults are one run of the ELBO of 100 steps, so that their times can be compared.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.all import machine
from benchmarks.models import write
from benchmarks.peers.libraries.memory import peak_bytes, reset_peak, resident_bytes
from benchmarks.peers.process import ROOT
from benchmarks.peers.tables import markdown, write_tables
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.environment import versions

Row = dict[str, Any]

PREDICTED_ROWS = 100_000
STEPS = 100


@dataclass(frozen=True)
class Cell:
    """A fit: its sizes, its likelihood, and what is given to the estimator."""

    rows: int = 2000
    features: int = 10
    likelihood: str = "gaussian"
    inducing: int | None = 100
    """Number of inducing inputs; None leaves the choice, and all others, to the estimator."""

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the estimator: none for its defaults, or one run of the ELBO."""
        if self.inducing is None:
            return {}
        model = {"kernel": "matern52", "ard": True, "num_inducing": self.inducing}
        run = {"objective": "elbo", "beta": 1.0, "max_iter": STEPS}
        return {**model, **run, "likelihood": self.likelihood}


BASE = Cell()
BY_ROWS = [replace(BASE, rows=n) for n in (500, 1000, 2000, 5000, 10_000, 20_000)]
BY_FEATURES = [replace(BASE, features=d) for d in (2, 10, 50, 200)]
BY_INDUCING = [replace(BASE, inducing=m) for m in (50, 100, 200, 400)]
BY_LIKELIHOOD = [
    replace(BASE, likelihood=name)
    for name in (
        "gaussian",
        "student_t",
        "heteroscedastic",
        "probit",
        "poisson",
        "negative_binomial",
        "softmax",
    )
]
BY_DEFAULT = [
    Cell(rows=n, likelihood=name, inducing=None)
    for name, sizes in {
        "gaussian": (500, 2000, 10_000),
        "probit": (500, 2000, 10_000),
        "poisson": (500, 2000, 10_000),
    }.items()
    for n in sizes
]
TABLES = {
    "rows": BY_ROWS,
    "features": BY_FEATURES,
    "inducing": BY_INDUCING,
    "likelihoods": BY_LIKELIHOOD,
    "defaults": BY_DEFAULT,
}

COLUMNS: dict[str, Callable[[Row], str]] = {
    "fit, s": lambda row: f"{row['fit_seconds']:.2g}",
    "evaluations": lambda row: str(row["evaluations"]),
    "fit, MB": lambda row: f"{row['fit_bytes'] / 1e6:.0f}",
    "predict 10⁵ rows, s": lambda row: f"{row['predict_seconds']:.2g}",
    "M": lambda row: str(row["chosen_inducing"]),
}
"""Columns of the tables. The evaluations of a default fit are those of its last run only."""

COUNTS = ("poisson", "negative_binomial")
CLASSES = {"probit": 2, "softmax": 3}


def estimator(cell: Cell) -> Any:
    """Return the estimator of a cell, not yet fitted."""
    kinds: dict[str, Any] = {
        **dict.fromkeys(COUNTS, SparseGPCountRegressor),
        **dict.fromkeys(CLASSES, SparseGPClassifier),
    }
    kind = kinds.get(cell.likelihood, SparseGPRegressor)
    return kind(random_state=0, device="cpu", **cell.settings())


def table(cell: Cell) -> tuple[Any, Any]:
    """Return features and targets; two of the features matter."""
    random = np.random.default_rng(0)
    X = random.standard_normal((cell.rows, cell.features))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    if cell.likelihood in COUNTS:
        return X, random.poisson(np.exp(f))
    y = f + 0.3 * random.standard_normal(cell.rows)
    classes = CLASSES.get(cell.likelihood)
    if classes is None:
        return X, y
    return X, np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))


def measure(cell: Cell) -> Row:
    """Return seconds and peak memory of the fit, and of predictions of many rows."""
    model, (X, y) = estimator(cell), table(cell)
    # The first fit imports and warms up.
    estimator(replace(cell, inducing=10)).fit(X[:100], y[:100])
    random = np.random.default_rng(1)
    new = random.standard_normal((PREDICTED_ROWS, cell.features))
    fit, fit_memory = _measured(lambda: model.fit(X, y))
    predict, predict_memory = _measured(lambda: model.predict(new))
    result = model.training_result_
    return {
        **asdict(cell),
        "fit_seconds": fit,
        "fit_bytes": fit_memory,
        "predict_seconds": predict,
        "predict_bytes": predict_memory,
        "evaluations": sum(stage.evaluations for stage in result.stages),
        "chosen_inducing": int(model.posterior_.Z.shape[-2]),
    }


def _measured(task: Callable[[], object]) -> tuple[float, int]:
    """Return the processor seconds of a task and its peak memory above what was there."""
    gc.collect()
    reset_peak()
    before, since = resident_bytes(), time.process_time()
    task()
    return time.process_time() - since, peak_bytes() - before


def in_process(cell: Cell) -> Row:
    """Measure a cell in a process of its own, so that no memory of another is reused."""
    command = [sys.executable, "-m", "benchmarks.cost", "--cell", json.dumps(asdict(cell))]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def all_tables(rows: Iterable[Row]) -> dict[str, str]:
    """Return a Markdown table for each group of cells."""
    by_cell = {Cell(**{key: row[key] for key in asdict(BASE)}): row for row in rows}
    labels: dict[str, Callable[[Cell], str]] = {
        "rows": lambda cell: f"{cell.rows:,} rows",
        "features": lambda cell: f"{cell.features} features",
        "inducing": lambda cell: f"M = {cell.inducing}",
        "likelihoods": lambda cell: cell.likelihood,
        "defaults": lambda cell: f"{cell.rows:,} rows; {_task(cell)}",
    }
    tables = {}
    for name, cells in TABLES.items():
        columns = [head for head in COLUMNS if not (name == "defaults" and head == "evaluations")]
        lines = (
            [labels[name](cell), *(COLUMNS[head](by_cell[cell]) for head in columns)]
            for cell in cells
        )
        tables[name] = markdown(["", *columns], lines)
    return tables


def _task(cell: Cell) -> str:
    return {"probit": "two classes", "poisson": "counts"}.get(cell.likelihood, "regression")


def main() -> None:
    """Measure every cell, write the results and the tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.cost", description=__doc__)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/cost.json")
    parser.add_argument("--tables", type=Path, default=ROOT / "docs/tables")
    typed = parser.parse_args()
    if typed.cell is not None:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(Cell(**json.loads(typed.cell)))))
        return
    cells = list(dict.fromkeys(cell for group in TABLES.values() for cell in group))
    rows = []
    for number, cell in enumerate(cells, 1):
        rows.append(in_process(cell))
        print(f"{number}/{len(cells)} {rows[-1]}", flush=True)
    write(typed.out, {"machine": machine(), "versions": versions(), "cells": rows})
    write_tables(typed.tables, "cost", all_tables(rows))


if __name__ == "__main__":
    main()
