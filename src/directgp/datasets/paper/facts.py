"""What is known of a data set of the paper before it is opened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

import pyarrow as pa

from directgp.datasets.problem import Task


@final
@dataclass(frozen=True)
class Download:
    """A file at its public home."""

    url: str

    sha256: str | None = None
    """Of the file, where it is known."""


@final
@dataclass(frozen=True)
class Home:
    """Where a data set can be fetched, and how its files are read."""

    files: tuple[Download, ...]

    read: Callable[[Sequence[Path]], pa.Table]
    """From the files, in the order above, to a table with the target `y`."""

    fingerprint: str | None = None
    """Of the numbers there, where they are known."""


@final
@dataclass(frozen=True)
class PaperDataset:
    """A row of the paper's table of data sets, and where the numbers are to be had."""

    name: str

    task: Task

    rows: int
    """In the paper's table."""

    features: int
    """In the paper's table."""

    num_inducing: int
    """Inducing inputs, the paper's M."""

    target: str
    """What is to be predicted, in words."""

    licence: str
    """As stated where the numbers are from."""

    source: str
    """Where they are from, in words."""

    url: str
    """Where that is."""

    home: Home | None
    """Where they can be fetched; None where they cannot."""

    copies: tuple[str, ...] = ()
    """Fingerprints of the known copies, by which one is recognised in whatever file."""

    differences: str = ""
    """What the known copies have otherwise than the paper's table; empty if nothing."""

    not_fetched: str = ""
    """Why there is no home, if there is none."""

    generator: Callable[[], pa.Table] | None = None
    """Draws from the very distribution, where that has a formula."""

    stands_for: tuple[str, ...] = ()
    """Sets of the paper's table one of which this is; empty for a row of the table itself."""

    @property
    def size(self) -> str:
        """``15,000 × 26``."""
        return size(self.rows, self.features)

    @property
    def where_from(self) -> str:
        """Where the numbers come from if no folder has them."""
        if self.home is None:
            return f"not to be had: {self.not_fetched}"
        fetched = f"fetched from {urlsplit(self.home.files[0].url).hostname}"
        return f"{fetched}, else drawn anew" if self.generator else fetched

    @property
    def remedy(self) -> str:
        """What a user who has the numbers can do."""
        return f"Give --data-dir with {self.name}.parquet (column y)."


def size(rows: int, features: int) -> str:
    """Rows and features as the paper's table has them."""
    return f"{rows:,} × {features}"
