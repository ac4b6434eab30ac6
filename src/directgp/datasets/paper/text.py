"""Homes that keep their numbers as text, some of it in archives."""

from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.datasets.paper.tables import paper_table

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
