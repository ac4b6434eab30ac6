"""Load the paper's data sets and split them as the paper does.

``python benchmarks/datasets.py --data FOLDER --out FOLDER`` writes NAME.npz for each NAME.parquet,
for machines without pyarrow.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

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
    archive, path = folder / f"{name}.npz", folder / f"{name}.parquet"
    if archive.exists():
        with np.load(archive) as arrays:
            return arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    if not path.exists():
        raise FileNotFoundError(f"{folder} must have {archive.name} or {path.name}. It has none.")
    # Imported here because pyarrow is optional and only Parquet files need it.
    import pyarrow.parquet as parquet

    table = parquet.read_table(path)
    columns = [table[column].to_numpy() for column in table.column_names if column != "y"]
    y: Array = table["y"].to_numpy().astype(np.float64)
    return np.column_stack(columns).astype(np.float64), y


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
    parser.add_argument("--names", nargs="+", choices=TASKS, default=list(TASKS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        X, y = load(arguments.data, name)
        np.savez_compressed(arguments.out / f"{name}.npz", X=X, y=y)


if __name__ == "__main__":
    main()
