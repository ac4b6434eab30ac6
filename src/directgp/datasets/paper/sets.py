"""Describe the data sets of the paper; the facts are in ``sets.toml``."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

import pyarrow as pa

from directgp.datasets.embedded import ringnorm, twonorm
from directgp.datasets.paper.parse import PARSERS
from directgp.datasets.problem import Task


@final
@dataclass(frozen=True)
class Download:
    """A public file."""

    url: str

    sha256: str | None = None
    """Of the file, if it is known."""


@final
@dataclass(frozen=True)
class Home:
    """The public files of a data set, and the function that reads them."""

    files: tuple[Download, ...]

    read: Callable[[Sequence[Path]], pa.Table]
    """Reads the files, in the order above, into a table with the target `y`."""

    fingerprint: str | None = None
    """Of the numbers in the files, if it is known."""


@final
@dataclass(frozen=True)
class PaperDataset:
    """A row of the paper's table of data sets, and where to get the numbers."""

    name: str

    task: Task

    rows: int
    """In the paper's table."""

    features: int
    """In the paper's table."""

    num_inducing: int
    """Inducing inputs, the paper's M."""

    target: str
    """A description of the target."""

    licence: str
    """As stated by the source."""

    source: str
    """A description of where the numbers come from."""

    url: str
    """Address of the source."""

    home: Home | None
    """Public files; None if there are none."""

    copies: tuple[str, ...] = ()
    """Fingerprints of the known copies, by which a copy is recognised in a file of any format."""

    differences: str = ""
    """How the known copies differ from the paper's table; empty if they do not."""

    not_fetched: str = ""
    """Why there is no home, if there is none."""

    generator: Callable[[], pa.Table] | None = None
    """Draws rows from the same distribution, if that has a formula."""

    stands_for: tuple[str, ...] = ()
    """Sets of the paper's table one of which this is; empty for a row of the table itself."""

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


_GENERATORS = {"twonorm": partial(twonorm, rows=7400), "ringnorm": partial(ringnorm, rows=7400)}


def _dataset(name: str, facts: dict[str, Any]) -> PaperDataset:
    urls, fingerprint = facts.pop("files", ()), facts.pop("fingerprint", None)
    sums = facts.pop("sha256", [None] * len(urls))
    downloads = tuple(Download(url, sha256) for url, sha256 in zip(urls, sums, strict=True))
    home = Home(downloads, PARSERS[name], fingerprint) if downloads else None
    facts |= {key: tuple(facts.get(key, ())) for key in ("copies", "stands_for")}
    return PaperDataset(name=name, home=home, generator=_GENERATORS.get(name), **facts)


PAPER: dict[str, PaperDataset] = {
    name: _dataset(name, facts)
    for name, facts in tomllib.loads(
        files("directgp.datasets.paper").joinpath("sets.toml").read_text(encoding="utf-8")
    ).items()
}
"""The 13 sets of the paper's table, and ``peds1``, which stands for one of them."""
