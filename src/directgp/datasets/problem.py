"""Define a learning problem: features, targets and what they mean."""

import hashlib
import json
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.registry import Task as Task

TASKS: tuple[Task, ...] = ("regression", "classification", "count")

_ROWS_AT_ONCE = 65536
"""Rows copied at once for the fingerprint, which bounds its memory."""


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A table prepared for training."""

    name: str
    """Stem of the file, or name of the data set."""

    task: Task

    target: str
    """Name of the column to predict."""

    feature_names: tuple[str, ...]
    """One for each column of X; a category has several."""

    X: NDArray[np.float64]
    """Features, finite, of shape (n, d)."""

    y: NDArray[np.float64]
    """Targets, of shape (n,); 0 and 1 in classification."""

    classes: tuple[str, str] | None
    """Names of class 0 and class 1 in classification, else None."""

    source: str
    """The table as the user named it."""

    notes: tuple[str, ...]
    """Notes for the user: how the task was guessed, how columns were encoded, what was left out."""

    rows: NDArray[np.int64]
    """Index of each row in the table as read; rows with missing values may be left out."""

    def fingerprint(self) -> str:
        """Return the sha256 of names, task, shape and numbers, in hex."""
        heading = [self.task, self.target, self.feature_names, self.classes, self.X.shape]
        digest = hashlib.sha256(json.dumps(heading).encode())
        for start in range(0, len(self.X), _ROWS_AT_ONCE):
            rows = self.X[start : start + _ROWS_AT_ONCE]
            digest.update(np.ascontiguousarray(rows, dtype="<f8").data)
        digest.update(np.ascontiguousarray(self.y, dtype="<f8").data)
        return digest.hexdigest()
