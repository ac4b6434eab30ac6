"""Friedman's first regression problem."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_NOISE = 1.0


def friedman1(rows: int = 1000, seed: int = 1) -> pa.Table:
    """y = 10 sin(π x1 x2) + 20 (x3 − ½)² + 10 x4 + 5 x5 + ε, with ε standard normal.

    Ten features are uniform on [0, 1], and five of them do not matter (Friedman, "Multivariate
    adaptive regression splines", 1991).
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, 10))
    y = friedman1_mean(X) + _NOISE * rng.standard_normal(rows)
    return pa.table({f"x{j + 1}": X[:, j] for j in range(10)} | {"y": y})


def friedman1_mean(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """The target without noise, of shape (n,), for features of shape (n, 10)."""
    waves = 10 * np.sin(np.pi * X[:, 0] * X[:, 1])
    return np.asarray(waves + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4])
