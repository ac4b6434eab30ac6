"""Tables of the comparison and their splits.

The splits of uci and classic tables are the public ones. Other data sets are permuted, with the
number of the split as seed, and a made-up problem draws new rows.
"""

from pathlib import Path

import numpy as np

from benchmarks.datasets import AIRLINE_SAMPLE, TASKS, UCI, load, load_test_mask
from benchmarks.problems import PROBLEMS, Kind, Table, problem

KINDS: dict[str, Kind] = {
    **dict.fromkeys(UCI, "regression"),
    **{name: task.kind for name, task in TASKS.items()},
    "airline": "classification",
    **PROBLEMS,
}
"""Task of each table of the comparison."""

CLASSIC = {
    "boston": 20,
    "concrete": 20,
    "energy": 20,
    "kin8nm": 20,
    "naval": 20,
    "power": 20,
    "protein": 5,
    "wine_quality": 20,
    "yacht": 20,
}
"""Number of published splits of the tables of the folder classic, named "classic/" and this."""

MAX_TEST_ROWS = 5000
_TRAIN_SHARE = 0.75
_PROBLEM_ROWS = 5000


def table(folder: Path, name: str, split: int, rows: int | None) -> Table:
    """Return the training and test rows of a split.

    Parameters
    ----------
    folder : Path
        The data sets, as Parquet or as .npz (see `benchmarks.datasets`).
    name : str
        One of `KINDS`, or "classic/" and one of `CLASSIC`.
    split : int
        Number of the split, from 0; a uci table has ten.
    rows : int or None
        Maximum number of training rows; None is all, or 5000 of a made-up problem.
    """
    if name in PROBLEMS:
        return problem(name, rows or _PROBLEM_ROWS, split)
    path = f"uci/{name}" if name in UCI else AIRLINE_SAMPLE if name == "airline" else name
    X, y = load(folder, path)
    order = np.random.default_rng(split).permutation(len(y))
    if path.startswith(("uci/", "classic/")):
        is_test = load_test_mask(folder, path, split)[order]
        train, test = order[~is_test][:rows], order[is_test]
    else:
        size = min(rows or len(y), int(_TRAIN_SHARE * len(y)))
        train, test = order[:size], order[size:]
    # The last rows, so that test rows of a large `rows` are also test rows of a small one.
    test = test[-MAX_TEST_ROWS:]
    return Table(kind_of(name), X[train], y[train], X[test], y[test])


def kind_of(name: str) -> Kind:
    """Return the task of a table."""
    return KINDS.get(name, "regression")
