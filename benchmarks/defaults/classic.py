"""Compare results on the classic tables with published figures, in units of y.

``python -m benchmarks.defaults.classic --data FOLDER`` prints NLL and RMSE of the default
estimator, means over the published splits with their standard errors, beside the lowest published
NLL of a method without a foundation model (README of the data).
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.defaults.report import Results
from benchmarks.defaults.scores import unit
from benchmarks.defaults.store import DEFAULT_PATH, Store
from benchmarks.defaults.tables import CLASSIC, table
from benchmarks.peers.tables import markdown

PUBLISHED = {
    "boston": 2.35,
    "concrete": 2.83,
    "energy": 0.53,
    "kin8nm": -1.28,
    "naval": -9.35,
    "power": 2.58,
    "protein": 1.93,
    "wine_quality": 0.91,
    "yacht": 0.16,
}
"""Lowest published NLL without a foundation model."""


def classic_table(results: Results, folder: Path, method: str) -> str:
    """Return one line per table."""
    lines = []
    for name in CLASSIC:
        found = {
            cell.split: record
            for cell, record in results.items()
            if (cell.table, cell.method) == (f"classic/{name}", method) and "nll" in record
        }
        if not found:
            continue
        units = {split: unit(table(folder, f"classic/{name}", split, None)) for split in found}
        nll = np.array([each["nll"] + np.log(units[k]) for k, each in found.items()])
        rmse = np.array([each["error"] * units[k] for k, each in found.items()])
        seconds = np.median([each["cpu_seconds"] for each in found.values()])
        rows = next(iter(found.values()))["num_train"]
        cells = [f"{name}, {rows}", str(len(found)), _with_error(nll), f"{PUBLISHED[name]:.2f}"]
        lines.append([*cells, _with_error(rmse), f"{seconds:.1f}"])
    heads = ["table, training rows", "splits", "NLL", "published", "RMSE", "seconds, median"]
    return markdown(heads, lines)


def _with_error(values: np.ndarray) -> str:
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{values.mean():.3f} ± {error:.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--results", type=Path, default=DEFAULT_PATH)
    parser.add_argument("--method", default="directgp")
    arguments = parser.parse_args()
    print(classic_table(Store(arguments.results).read(), arguments.data, arguments.method))


if __name__ == "__main__":
    main()
