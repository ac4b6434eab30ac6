"""Parse the files in which the data sets of the paper are published."""

from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Matrix = NDArray[np.generic]
"""Numbers of any type."""


def paper_table(X: Matrix, y: Matrix, names: Sequence[str] | None = None) -> pa.Table:
    """Features ``x0``, ``x1`` and so on, unless named, and the target ``y``.

    Single precision, as in the known copies, so that numbers from their home have the fingerprint
    of the copy.
    """
    columns = names or [f"x{j}" for j in range(X.shape[1])]
    features = {
        name: X[:, j].astype(np.float32) for j, name in zip(range(X.shape[1]), columns, strict=True)
    }
    return pa.table(features | {"y": np.ravel(y).astype(np.float32)})


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


_BLOCK_GROUP = (
    "median_income",
    "housing_median_age",
    "total_rooms",
    "total_bedrooms",
    "population",
    "households",
    "latitude",
    "longitude",
)
_ABALONE = (
    "sex_I",
    "sex_M",
    "length",
    "diameter",
    "height",
    "whole_weight",
    "shucked_weight",
    "viscera_weight",
    "shell_weight",
)
_TIMBRE = [*(f"avg{j + 1}" for j in range(12)), *(f"cov{j + 1}" for j in range(78))]


def read_pol(files: Sequence[Path]) -> pa.Table:
    """Features and labels for training, then for testing."""
    train, train_labels, test, test_labels = map(np.loadtxt, files)
    return paper_table(np.vstack([train, test]), np.concatenate([train_labels, test_labels]))


def read_cadata(files: Sequence[Path]) -> pa.Table:
    """LIBSVM's format."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(files[0]), n_features=len(_BLOCK_GROUP))
    return paper_table(X.toarray(), y, _BLOCK_GROUP)


def read_song(files: Sequence[Path]) -> pa.Table:
    """The year, then averages and covariances of timbre."""
    from pyarrow import csv

    names = ["y", *_TIMBRE]
    types = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float32()))
    header = csv.ReadOptions(column_names=names)
    with ZipFile(files[0]) as archive, archive.open("YearPredictionMSD.txt") as text:
        table = csv.read_csv(text, read_options=header, convert_options=types)
    return table.select([*_TIMBRE, "y"])


def read_abalone(files: Sequence[Path]) -> pa.Table:
    """Sex, seven measurements, rings; of the sexes, F is the base."""
    with ZipFile(files[0]) as archive, archive.open("abalone.data") as text:
        rows = np.loadtxt(TextIOWrapper(text, "ascii"), delimiter=",", dtype=str)
    sex, numbers = rows[:, :1], rows[:, 1:].astype(np.float64)
    _check_sexes(set(sex.ravel().tolist()))
    return paper_table(
        np.hstack([sex == "I", sex == "M", numbers[:, :-1]]), numbers[:, -1], _ABALONE
    )


def _check_sexes(found: set[str]) -> None:
    if found - {"F", "I", "M"}:
        raise ValueError(f"the sexes {sorted(found)}")


def read_banana(files: Sequence[Path]) -> pa.Table:
    """Of KEEL's classes −1 and 1, the former is class 0."""
    rows = _keel(files[0], "banana")
    return paper_table(rows[:, :-1], rows[:, -1] == 1)


def read_twonorm(files: Sequence[Path]) -> pa.Table:
    """Classes 0 and 1."""
    rows = _keel(files[0], "twonorm")
    return paper_table(rows[:, :-1], rows[:, -1])


def _keel(file: Path, name: str) -> NDArray[np.float64]:
    """The table in an archive of KEEL's, whose header has lines that begin with @."""
    with ZipFile(file) as archive, archive.open(f"{name}.dat") as text:
        return np.loadtxt(TextIOWrapper(text, "ascii"), delimiter=",", comments="@")


def read_thyroid(files: Sequence[Path]) -> pa.Table:
    """Arrays X and y; what would have to be unpickled is refused."""
    with np.load(files[0], allow_pickle=False) as arrays:
        return paper_table(arrays["X"], arrays["y"])
