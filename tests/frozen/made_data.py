"""Small made-up tables that the frozen files were made from; written once as CSV."""

from pathlib import Path

import numpy as np
import pandas as pd

_ROWS = 60
_PAPER_ROWS = 200


def write_tables(folder: Path) -> None:
    """Write a table for each task."""
    random = np.random.default_rng(0)
    x, z = random.uniform(-2, 2, _ROWS), random.normal(size=_ROWS)
    kind = random.choice(["a", "b", "c"], _ROWS)
    f = np.sin(2 * x) + 0.3 * (kind == "b")
    y = f + 0.2 * random.standard_t(4, _ROWS)
    label = np.where(f + random.normal(scale=0.4, size=_ROWS) > 0, "sick", "well")
    hours = random.uniform(1, 5, _ROWS)
    k = random.negative_binomial(4, 4 / (4 + hours * np.exp(f)))
    inputs = {"x": x.round(4), "z": z.round(4)}
    tables = {
        "regression": {**inputs, "kind": kind, "y": y.round(4)},
        "classification": {**inputs, "label": label},
        "count": {"x": inputs["x"], "hours": hours.round(2), "k": k},
    }
    for name, columns in tables.items():
        _write(folder / f"{name}.csv", columns)


def write_paper_tables(folder: Path) -> None:
    """Write tables with the names of data sets of the paper, and other rows."""
    random = np.random.default_rng(1)
    X = random.normal(size=(_PAPER_ROWS, 2)).round(4)
    f = np.sin(2 * X[:, 0])
    targets = {
        "pol": (f + 0.1 * random.normal(size=_PAPER_ROWS)).round(4),
        "banana": (f + 0.3 * random.normal(size=_PAPER_ROWS) > 0).astype(int),
        "airline": (f + random.normal(size=_PAPER_ROWS) > 0).astype(int),
        "abalone": random.poisson(np.exp(1 + f)),
    }
    for name, y in targets.items():
        _write(folder / f"{name}.csv", {"a": X[:, 0], "b": X[:, 1], "y": y})


def _write(path: Path, columns: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False, lineterminator="\n")
