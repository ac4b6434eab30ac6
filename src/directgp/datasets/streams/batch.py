"""Some rows as arrays."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

DType = Literal["float32", "float64"]


class Batch(NamedTuple):
    """Rows as arrays of one type, each with its rows side by side in memory."""

    X: NDArray[Any]
    """The features, of shape (n, d)."""

    y: NDArray[Any]
    """The target, of shape (n,)."""

    weights: NDArray[Any] | None = None
    """Of shape (n,), where a column of weights was named."""

    def rows(self, start: int, stop: int) -> "Batch":
        """The rows from `start` on and before `stop`; no copy is made."""
        weights = None if self.weights is None else self.weights[start:stop]
        return Batch(self.X[start:stop], self.y[start:stop], weights)

    def take(self, index: NDArray[np.int64]) -> "Batch":
        """The rows at these places, copied."""
        weights = None if self.weights is None else self.weights.take(index)
        return Batch(self.X.take(index, axis=0), self.y.take(index), weights)


def empty_batch(rows: int, features: int, weighted: bool, dtype: DType) -> Batch:
    """Arrays that are still to be filled."""
    weights = np.empty(rows, dtype) if weighted else None
    return Batch(np.empty((rows, features), dtype), np.empty(rows, dtype), weights)


def joined(parts: Sequence[Batch]) -> Batch:
    """The rows of all the parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    X = np.concatenate([part.X for part in parts])
    y = np.concatenate([part.y for part in parts])
    return Batch(X, y, np.concatenate(weights) if weights else None)
