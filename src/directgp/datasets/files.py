"""From a file to a table, by the suffix of its name."""

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from directgp.datasets.columnar_files import ArrowTable, ParquetTable
from directgp.datasets.csv_files import TextTable
from directgp.datasets.table_file import TableFile
from directgp.datasets.wording import nearest
from directgp.errors import refuse

_KINDS: dict[str, type[TableFile]] = {
    ".csv": TextTable,
    ".tsv": TextTable,
    ".txt": TextTable,
    ".csv.gz": TextTable,
    ".tsv.gz": TextTable,
    ".txt.gz": TextTable,
    ".parquet": ParquetTable,
    ".pq": ParquetTable,
    ".feather": ArrowTable,
    ".arrow": ArrowTable,
    ".ipc": ArrowTable,
}

SUFFIXES = tuple(_KINDS)
"""How names of files with tables end."""

_FORMATS = (
    "CSV (.csv, .tsv or .txt, also with .gz), Parquet (.parquet, .pq)"
    " or Feather (.feather, .arrow, .ipc)"
)


def read_table(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a file, or some of its columns.

    Parameters
    ----------
    path : path
        CSV (``.csv``, ``.tsv``, ``.txt``, each also with ``.gz``), Parquet (``.parquet``, ``.pq``)
        or Feather (``.feather``, ``.arrow``, ``.ipc``).
    columns : sequence of str, optional
        Names of the columns to read; all of them unless given.
    """
    return open_table(path).read(columns)


def open_table(path: str | os.PathLike[str]) -> TableFile:
    """The file, known to exist and to have a suffix that says how to read it."""
    given = Path(path)
    _check_exists(given)
    suffix = suffix_of(given)
    if suffix is None:
        refuse("The data file", _FORMATS, repr(str(given)), _advice(given))
    return _KINDS[suffix](given)


def suffix_of(path: str | os.PathLike[str]) -> str | None:
    """The suffix that says how to read the file, or None."""
    name = Path(path).name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def stem_of(path: str | os.PathLike[str]) -> str:
    """Name of the file without its suffix."""
    name = Path(path).name
    return name[: len(name) - len(suffix_of(path) or "")]


def tables_in(folder: Path) -> list[Path]:
    """Files of the folder that have the suffix of a table, by name."""
    try:
        files = [file for file in folder.iterdir() if suffix_of(file) and file.is_file()]
    except OSError:
        return []
    return sorted(files)


def _check_exists(path: Path) -> None:
    if path.is_dir():
        names = [file.name for file in tables_in(path)]
        remedy = f"Name one of the files in it, such as {names[0]!r}." if names else ""
        refuse("The data file", "a file", f"the folder {str(path)!r}", remedy)
    if not path.exists():
        close = nearest(path.name, [file.name for file in tables_in(path.parent)])
        remedy = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Check the path."
        refuse("The data file", "a file that exists", repr(str(path)), remedy)


def _advice(path: Path) -> str:
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        return "Save the sheet as CSV."
    return "Rename it where it is one of these, or write it again as CSV."
