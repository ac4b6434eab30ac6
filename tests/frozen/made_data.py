"""Small made-up tables that the frozen files were made from; written once as CSV."""

from pathlib import Path

import numpy as np
import pandas as pd

_ROWS = 60


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
        write_table(folder / f"{name}.csv", columns)


def write_table(path: Path, columns: dict[str, object]) -> None:
    """Write a table as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False, lineterminator="\n")
