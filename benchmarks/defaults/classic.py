"""Compare results on the classic tables with published figures, in units of y."""

import numpy as np

from benchmarks.defaults.store import Results
from benchmarks.defaults.tables import CLASSIC
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


def classic_table(results: Results, method: str = "directgp") -> str:
    """Return NLL and RMSE over the published splits, with standard errors: one line per table."""
    lines = []
    for name in CLASSIC:
        found = [
            record
            for cell, record in results.items()
            if (cell.table, cell.method) == (f"classic/{name}", method) and "nll" in record
        ]
        if not found:
            continue
        units = np.array([each["unit"] for each in found])
        nll = np.array([each["nll"] for each in found]) + np.log(units)
        rmse = np.array([each["error"] for each in found]) * units
        seconds = np.median([each["cpu_seconds"] for each in found])
        cells = [f"{name}, {found[0]['num_train']}", str(len(found)), _with_error(nll)]
        lines.append(
            [
                *cells,
                f"{PUBLISHED[name]:.2f}".replace("-", "−"),
                _with_error(rmse),
                f"{seconds:.1f}",
            ]
        )
    heads = ["table, training rows", "splits", "NLL", "published", "RMSE", "seconds, median"]
    return markdown(heads, lines)


def _with_error(values: np.ndarray) -> str:
    if len(values) == 1:
        return f"{values[0]:.3g}".replace("-", "−")
    error = values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():.3g} ± {error:.2g}".replace("-", "−")
