"""Read the catalogues of data sets that other packages provide by an entry point."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, final

from directgp.errors import InvalidInputError, cause_of

GROUP = "directgp.datasets"
"""Group of the entry points, each of which leads to a `Catalogue`."""

PAPER_SETS = (
    *("pol", "cadata", "sarcos", "song", "banana", "thyroid", "twonorm", "ringnorm", "airline"),
    *("abalone", "peds1_dir0", "peds1_dir1", "peds1_dir2", "peds1"),
)
"""Names in the catalogue of the package directgp-paper."""


@final
@dataclass(frozen=True)
class CatalogueEntry:
    """A data set that is known by name, and whose rows the user provides."""

    name: str
    """Name of the data set."""

    cells: Mapping[str, str]
    """Further cells of its row in `directgp datasets`, by the head of the column."""

    where: str
    """Where the rows come from if they are not in the data folder."""

    remedy: str
    """Sentences that say how the user can provide the rows, and where they are published."""

    facts: Mapping[str, Any]
    """Further entries of `directgp datasets --json`."""


@final
@dataclass(frozen=True)
class Catalogue:
    """The data sets of a package; an entry point in the group ``directgp.datasets`` names it."""

    name: str
    """Key in `directgp datasets --json`."""

    title: str
    """Title of its table."""

    described: str
    """Names one of its data sets in a sentence, such as "one of the paper's data sets"."""

    entries: tuple[CatalogueEntry, ...]
    """The data sets, in the order of the table."""

    numeric: tuple[str, ...] = ()
    """Columns of the table that are aligned right."""


def catalogues() -> tuple[Catalogue, ...]:
    """Return the catalogues of all installed packages."""
    return tuple(map(_load, entry_points(group=GROUP)))


def _load(point: EntryPoint) -> Catalogue:
    try:
        catalogue: Catalogue = point.load()
    except Exception as error:
        raise InvalidInputError(
            f"The data sets {point.name!r} cannot be imported from {point.value}:"
            f" {cause_of(error)}. Install their package again."
        ) from error
    return catalogue
