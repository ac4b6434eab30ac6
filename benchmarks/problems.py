"""Synthetic problems that are hard for one likelihood: heavy tails, noise, overdispersion."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Kind = Literal["regression", "classification", "counts"]

PROBLEMS: dict[str, Kind] = {
    "heavy tails": "regression",
    "changing noise": "regression",
    "overdispersed": "counts",
}

TEST_ROWS = 5000


class Table(NamedTuple):
    """Training rows and test rows."""

    kind: Kind
    X: Array
    y: Array
    X_test: Array
    y_test: Array


def problem(name: str, rows: int, seed: int) -> Table:
    """Return a problem with three features, two of them relevant."""
    random = np.random.default_rng(seed)
    n = rows + TEST_ROWS
    X = random.uniform(-2, 2, (n, 3))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    if name == "heavy tails":
        y = f + 0.2 * random.standard_t(2, n)
    elif name == "changing noise":
        y = f + 0.2 * (2.1 + X[:, 0]) * random.standard_normal(n)
    else:
        mean = np.exp(1.5 + 0.8 * f)
        # Variance = mean + mean²/r is ten times the mean for r = mean/9.
        y = random.poisson(random.gamma(mean / 9, 9.0)).astype(np.float64)
    return Table(PROBLEMS[name], X[:rows], y[:rows], X[rows:], y[rows:])
