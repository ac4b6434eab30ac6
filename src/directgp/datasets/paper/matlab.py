"""Homes that keep their numbers in files of Matlab's."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.datasets.paper.tables import paper_table

_JOINTS = 7
_SARCOS = ("sarcos_inv", "sarcos_inv_test")
_STATE = [f"{what}{joint + 1}" for what in ("pos", "vel", "acc") for joint in range(_JOINTS)]


def read_sarcos(files: Sequence[Path]) -> pa.Table:
    """Positions, velocities, accelerations, and torques of which the first is the target."""
    parts = [_load(file)[name] for file, name in zip(files, _SARCOS, strict=True)]
    rows = np.vstack(parts)
    return paper_table(rows[:, : len(_STATE)], rows[:, len(_STATE)], _STATE)


def read_ringnorm(files: Sequence[Path]) -> pa.Table:
    """Class 1 is the one inside, whatever number the file gives it."""
    found = _load(files[0])
    X, label = found["X"], np.ravel(found["y"])
    inner = min(np.unique(label), key=lambda each: X[label == each].std())
    return paper_table(X, label == inner)


def read_peds1(files: Sequence[Path]) -> pa.Table:
    """The matrix of features and the vector of counts, wherever in the file they are."""
    arrays = list(_arrays(_load(files[0])))
    X = next(each for each in arrays if each.ndim == 2 and each.shape[1] == 30)
    y = next(each for each in arrays if each.size == len(X))
    return paper_table(X, y)


def _load(file: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    return dict(loadmat(str(file), simplify_cells=True))


def _arrays(value: Any) -> Iterator[NDArray[np.generic]]:
    """Arrays of numbers in what was loaded, also in fields of its structures."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _arrays(each)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        yield value
