"""A table made ready for training."""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

Task = Literal["regression", "classification", "count"]

TASKS: tuple[Task, ...] = ("regression", "classification", "count")

_ROWS_AT_ONCE = 65536


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A table made ready for training."""

    name: str
    """Stem of the file, or name of the data set."""

    task: Task

    target: str
    """Name of the column that is to be predicted."""

    feature_names: tuple[str, ...]
    """One a column of X; a category has several."""

    X: NDArray[np.float64]
    """Features, finite, of shape (n, d)."""

    y: NDArray[np.float64]
    """Targets, of shape (n,); 0 and 1 in classification."""

    classes: tuple[str, str] | None
    """Names of class 0 and of class 1; None unless classes are to be predicted."""

    source: str
    """The table as the user named it."""

    notes: tuple[str, ...]
    """What the user should hear: how the task was guessed, how columns were coded, what was left
    out."""

    rows: NDArray[np.int64]
    """Where each row stands in the table as read, from 0; some are missing where rows with missing
    values were left out."""

    def fingerprint(self) -> str:
        """sha256 of names, task, shape and numbers, in hex: equal for equal problems only."""
        digest = hashlib.sha256(self._heading().encode())
        for start in range(0, len(self.X), _ROWS_AT_ONCE):
            rows = self.X[start : start + _ROWS_AT_ONCE]
            digest.update(np.ascontiguousarray(rows, dtype="<f8").data)
        digest.update(np.ascontiguousarray(self.y, dtype="<f8").data)
        return digest.hexdigest()

    def _heading(self) -> str:
        names = [self.task, self.target, self.feature_names, self.classes, self.X.shape]
        return json.dumps(names)
