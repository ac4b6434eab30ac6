"""Load the data sets; split those of the paper as the paper does.

``python benchmarks/datasets.py --data FOLDER --out FOLDER`` writes NAME.npz for each NAME.parquet,
also for those of the folder uci and for a sample of the airline data, for machines without pyarrow.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """Task of a data set and the paper's number M of inducing inputs."""

    kind: Literal["regression", "classification", "counts"]
    num_inducing: int


TASKS = {
    "pol": Task("regression", 100),
    "cadata": Task("regression", 206),
    "sarcos": Task("regression", 100),
    "song": Task("regression", 100),
    "banana": Task("classification", 53),
    "thyroid": Task("classification", 37),
    "twonorm": Task("classification", 74),
    "ringnorm": Task("classification", 74),
    "abalone": Task("counts", 41),
    "peds1": Task("counts", 40),
}

UCI = (
    "concrete",
    "wine",
    "yacht",
    "housing",
    "autompg",
    "stock",
    "sml",
    "parkinsons",
    "pumadyn32nm",
    "bike",
    "elevators",
    "protein",
)
"""Tables of the folder uci, with public splits in the column test."""

AIRLINE_SAMPLE = "airline_sample"
_SAMPLED_ROWS = 20_000


class Part(NamedTuple):
    """Examples for one purpose."""

    X: Tensor
    y: Tensor

    def to(self, device: str, dtype: torch.dtype) -> "Part":
        """Return the examples on another device or with another dtype."""
        return Part(self.X.to(device, dtype), self.y.to(device, dtype))


class Split(NamedTuple):
    """A data set in its three parts."""

    training: Part
    validation: Part
    test: Part

    def to(self, device: str, dtype: torch.dtype) -> "Split":
        """Return the parts on another device or with another dtype."""
        return Split(*(part.to(device, dtype) for part in self))


def load(folder: Path, name: str) -> tuple[Array, Array]:
    """X and y of NAME.npz, or of NAME.parquet with its column y."""
    arrays = _arrays(folder, name)
    return arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)


def load_test_mask(folder: Path, name: str, split: int) -> NDArray[np.bool_]:
    """Whether each row of NAME is a test row of a public split: bit `split` of column test."""
    bits = _arrays(folder, name)["test"].astype(np.int64)
    mask: NDArray[np.bool_] = (bits >> split) & 1 == 1
    return mask


def _arrays(folder: Path, name: str) -> dict[str, NDArray[Any]]:
    """X and y of a table, and its column test if it has one."""
    archive, path = folder / f"{name}.npz", folder / f"{name}.parquet"
    if archive.exists():
        with np.load(archive) as arrays:
            return dict(arrays)
    sample = name == AIRLINE_SAMPLE
    path = folder / "airline.parquet" if sample else path
    if not path.exists():
        raise FileNotFoundError(f"{folder} must have {archive.name} or {path.name}. It has none.")
    # Imported here because pyarrow is optional and only Parquet files need it.
    import pyarrow.parquet as parquet

    # A row group of the airline data is a random part of the rows.
    table = parquet.ParquetFile(path).read_row_group(0) if sample else parquet.read_table(path)
    columns = {column: table[column].to_numpy() for column in table.column_names}
    rest = {column: columns.pop(column) for column in ("y", "test") if column in columns}
    found = {"X": np.column_stack(list(columns.values())), **rest}
    if sample:
        rows = np.random.default_rng(0).permutation(len(table))[:_SAMPLED_ROWS]
        found = {key: values[rows] for key, values in found.items()}
    return found


def split(name: str, X: Array, y: Array, seed: int, train_rows: int | None = None) -> Split:
    """Permute the rows, split them as the paper does, and normalise by the training rows.

    Parameters
    ----------
    name : str
        One of `TASKS`.
    X, y : array of shape (n, d), (n,)
        The whole data set.
    seed : int
        Seed of the permutation.
    train_rows : int
        Maximum number of training rows; validation and test rows do not change.
    """
    kind = TASKS[name].kind
    training, validation, test = _rows(kind, len(y), np.random.default_rng(seed))
    training = training[:train_rows]
    X = _normalised(X, X[training])
    if kind == "regression":
        y = _normalised(y, y[training])
    parts = (Part(torch.tensor(X[i]), torch.tensor(y[i])) for i in (training, validation, test))
    return Split(*parts)


def _rows(kind: str, n: int, random: np.random.Generator) -> list[NDArray[np.int64]]:
    """Rows of each part: 67/8/25 %, or up to 2000, a tenth of all, and up to 1000 of the rest."""
    if kind == "regression":
        sizes = [round(0.67 * n), round(0.08 * n), n]
    else:
        sizes = [2000, round(0.1 * n), 1000]
    ends = np.cumsum(sizes)
    if n <= ends[1]:
        raise ValueError(f"A data set must have more than {ends[1]} rows to be split. Got {n}.")
    return np.split(random.permutation(n)[: ends[2]], ends[:2])


def _normalised(values: Array, training: Array) -> Array:
    """Mean 0 and deviation 1 on the training part; a constant column is only centred."""
    constant = training.max(0) == training.min(0)
    scaled: Array = (values - training.mean(0)) / np.where(constant, 1.0, training.std(0))
    return scaled


def main() -> None:
    """Write the data sets as .npz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    names = [*TASKS, AIRLINE_SAMPLE, *(f"uci/{name}" for name in UCI)]
    parser.add_argument("--names", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    for name in arguments.names:
        path = arguments.out / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = _arrays(arguments.data, name)
        np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main()
