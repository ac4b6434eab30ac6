"""Describe the data sets of the paper, as in ``sets.toml``, and parse their public files."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from io import TextIOWrapper
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.datasets import Task, ringnorm, twonorm

Matrix = NDArray[np.generic]
"""Numbers of any type."""

_SARCOS = [f"{what}{joint + 1}" for what in ("pos", "vel", "acc") for joint in range(7)]
_SONG = [*(f"avg{j + 1}" for j in range(12)), *(f"cov{j + 1}" for j in range(78))]
_CADATA = (
    "median_income housing_median_age total_rooms total_bedrooms population households"
    " latitude longitude"
).split()
_ABALONE = (
    "sex_I sex_M length diameter height whole_weight shucked_weight viscera_weight shell_weight"
).split()


@final
@dataclass(frozen=True)
class Download:
    """A public file."""

    url: str
    """Address of the file."""

    sha256: str | None = None
    """Checksum of the file, if it is known."""


@final
@dataclass(frozen=True)
class Home:
    """The public files of a data set, and the function that reads them."""

    files: tuple[Download, ...]
    """The public files."""

    read: Callable[[Sequence[Path]], pa.Table]
    """Reads the files, in their order in `files`, into a table with the target `y`."""

    fingerprint: str | None = None
    """Fingerprint of the numbers in the files, if it is known."""


@final
@dataclass(frozen=True)
class PaperDataset:
    """A row of the paper's table of data sets, and where to get the data."""

    name: str
    """Name of the data set."""

    task: Task
    """Kind of prediction."""

    rows: int
    """Rows in the paper's table."""

    features: int
    """Features in the paper's table."""

    num_inducing: int
    """The paper's number M of inducing inputs."""

    target: str
    """Description of the target."""

    licence: str
    """Description of the licence."""

    source: str
    """Description of the source."""

    url: str
    """Page of the source."""

    home: Home | None
    """The public files, if there are any."""

    copies: tuple[str, ...] = ()
    """Fingerprints of the known copies, by which a copy is recognised in a file of any format."""

    differences: str = ""
    """How the known copies differ from the paper's table; empty if they do not."""

    not_fetched: str = ""
    """Why there are no public files; empty if there are."""

    generator: Callable[[], pa.Table] | None = None
    """Draws rows from the same distribution, if that has a formula."""

    stands_for: tuple[str, ...] = ()
    """Rows of the paper's table that this set may be; empty for a row of the table itself."""

    @property
    def size(self) -> str:
        """Rows and features, as in ``15,000 × 26``."""
        return format_size(self.rows, self.features)

    @property
    def where_from(self) -> str:
        """Where the numbers come from if they are not in the data folder."""
        if self.home is None:
            return f"not available: {self.not_fetched}"
        fetched = f"downloaded from {urlsplit(self.home.files[0].url).hostname}"
        return f"{fetched}, else generated" if self.generator else fetched

    @property
    def remedy(self) -> str:
        """How a user who has the numbers can provide them."""
        return f"Give --data-dir with {self.name}.parquet (column y)."


def format_size(rows: int, features: int) -> str:
    """Return rows and features as in the paper's table."""
    return f"{rows:,} × {features}"


def paper_table(X: Matrix, y: Matrix, names: Sequence[str] | None = None) -> pa.Table:
    """Return a table of features, ``x0``, ``x1``, … unless named, and the target ``y``.

    Numbers are in single precision, as in the known copies, so that the fingerprints agree.
    """
    columns = names or [f"x{j}" for j in range(X.shape[1])]
    features = dict(zip(columns, X.T.astype(np.float32), strict=True))
    return pa.table(features | {"y": np.ravel(y).astype(np.float32)})


def read_sarcos(files: Sequence[Path]) -> pa.Table:
    """Read positions, velocities, accelerations and torques; the first torque is the target."""
    names = ("sarcos_inv", "sarcos_inv_test")
    rows = np.vstack([_load_mat(file)[name] for file, name in zip(files, names, strict=True)])
    return paper_table(rows[:, : len(_SARCOS)], rows[:, len(_SARCOS)], _SARCOS)


def read_ringnorm(files: Sequence[Path]) -> pa.Table:
    """Read X and y; class 1 is the class of smaller variance, for any labels."""
    arrays = _load_mat(files[0])
    X = arrays["X"]
    label = np.ravel(arrays["y"])
    inner = min(np.unique(label), key=lambda candidate: X[label == candidate].std())
    return paper_table(X, label == inner)


def read_peds1(files: Sequence[Path]) -> pa.Table:
    """Read the matrix of 30 features and the vector of counts, at any place in the file."""
    arrays = list(_arrays(_load_mat(files[0])))
    X = next(array for array in arrays if array.ndim == 2 and array.shape[1] == 30)
    y = next(array for array in arrays if array.size == len(X))
    return paper_table(X, y)


def read_pol(files: Sequence[Path]) -> pa.Table:
    """Read features and labels for training, then for testing."""
    train, train_labels, test, test_labels = map(np.loadtxt, files)
    return paper_table(np.vstack([train, test]), np.concatenate([train_labels, test_labels]))


def read_cadata(files: Sequence[Path]) -> pa.Table:
    """Read a file in LIBSVM's format, in which values of 0 may be left out."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(files[0]), n_features=len(_CADATA))
    return paper_table(X.toarray(), y, _CADATA)


def read_song(files: Sequence[Path]) -> pa.Table:
    """Read the year, then averages and covariances of timbre."""
    from pyarrow import csv

    names = ["y", *_SONG]
    types = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float32()))
    header = csv.ReadOptions(column_names=names)
    with ZipFile(files[0]) as archive, archive.open("YearPredictionMSD.txt") as text:
        table = csv.read_csv(text, read_options=header, convert_options=types)
    return table.select([*_SONG, "y"])


def read_abalone(files: Sequence[Path]) -> pa.Table:
    """Read sex, seven measurements and rings; the base level of sex is F."""
    rows = _load_text(files[0], "abalone.data", dtype=str)
    sex = rows[:, :1]
    numbers = rows[:, 1:].astype(np.float64)
    if not np.isin(sex, ["F", "I", "M"]).all():
        raise ValueError(f"the sexes {sorted(set(sex.ravel().tolist()))}")
    X = np.hstack([sex == "I", sex == "M", numbers[:, :-1]])
    return paper_table(X, numbers[:, -1], _ABALONE)


def read_keel(files: Sequence[Path], member: str) -> pa.Table:
    """Read a file of KEEL, whose last column is the class: 1, or 0 or −1 for class 0."""
    rows = _load_text(files[0], member, comments="@")
    return paper_table(rows[:, :-1], rows[:, -1] == 1)


def read_thyroid(files: Sequence[Path]) -> pa.Table:
    """Read the arrays X and y; pickled objects raise an error."""
    with np.load(files[0], allow_pickle=False) as arrays:
        return paper_table(arrays["X"], arrays["y"])


def _load_text(file: Path, member: str, **options: Any) -> NDArray[Any]:
    """Return the comma-separated values of a file in a zip archive."""
    with ZipFile(file) as archive, archive.open(member) as text:
        return np.loadtxt(TextIOWrapper(text, "ascii"), delimiter=",", **options)


def _load_mat(file: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    return dict(loadmat(str(file), simplify_cells=True))


def _arrays(value: Any) -> Iterator[Matrix]:
    """Yield the numeric arrays of a loaded file, also from nested structures."""
    if isinstance(value, dict):
        for member in value.values():
            yield from _arrays(member)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        yield value


_PARSERS: dict[str, Callable[[Sequence[Path]], pa.Table]] = {
    "abalone": read_abalone,
    "banana": partial(read_keel, member="banana.dat"),
    "cadata": read_cadata,
    "peds1": read_peds1,
    "pol": read_pol,
    "ringnorm": read_ringnorm,
    "sarcos": read_sarcos,
    "song": read_song,
    "thyroid": read_thyroid,
    "twonorm": partial(read_keel, member="twonorm.dat"),
}

_GENERATORS = {"twonorm": partial(twonorm, rows=7400), "ringnorm": partial(ringnorm, rows=7400)}


def _dataset(name: str, facts: dict[str, Any]) -> PaperDataset:
    urls = facts.pop("files", ())
    fingerprint = facts.pop("fingerprint", None)
    sums = facts.pop("sha256", [None] * len(urls))
    downloads = tuple(Download(url, sha256) for url, sha256 in zip(urls, sums, strict=True))
    home = Home(downloads, _PARSERS[name], fingerprint) if downloads else None
    facts |= {key: tuple(facts.get(key, ())) for key in ("copies", "stands_for")}
    return PaperDataset(name=name, home=home, generator=_GENERATORS.get(name), **facts)


PAPER: dict[str, PaperDataset] = {
    name: _dataset(name, facts)
    for name, facts in tomllib.loads(
        files("directgp_paper.datasets").joinpath("sets.toml").read_text(encoding="utf-8")
    ).items()
}
"""The 13 sets of the paper's table, and ``peds1``, which stands for one of them."""
