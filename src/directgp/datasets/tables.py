"""Read tables from CSV, TSV, Parquet and Arrow files."""

import codecs
import csv
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc

from directgp.datasets.wording import listed, nearest, refuse_name, several
from directgp.errors import refuse


class ReadableTable(ABC):
    """A table that has been found and can be read, in whole or in part."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        """What the user named."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, all different; no values are read."""
        names = self._names()
        if not names:
            refuse("The table", "of columns with names", f"no column in {self.shown!r}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            got = f"{listed(twice)} more than once in {self.shown!r}"
            refuse("Names of columns", "different from each other", got, "Rename or remove them.")
        return names

    def read(self, columns: Sequence[str] | None = None, as_text: Collection[str] = ()) -> pa.Table:
        """The table, or some of its columns, some of them as they are written.

        What is as written in a file of text, such as 007 or NA, stays so; other formats know the
        types of their columns.
        """
        chosen = list(self.names if columns is None else columns)
        for name in chosen:
            if name not in self.names:
                refuse_name(f"A column of {self.shown!r}", name, self.names)
        table = self._read(chosen)
        written = [name for name in chosen if name in as_text]
        text = self._read_text(written) if written else table
        for name in written:
            table = table.set_column(chosen.index(name), name, text.column(name))
        return table

    @abstractmethod
    def _names(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _read(self, columns: Sequence[str]) -> pa.Table: ...

    def _read_text(self, columns: Sequence[str]) -> pa.Table:
        return self._read(columns)


class TableFile(ReadableTable, ABC):
    """A file with a table in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def refuse_damaged(self, error: Exception) -> NoReturn:
        """Say that the file is not what its name promises."""
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "Write it again, or give it the suffix of its format."
        got = f"{self.shown!r}, of which the reader says: {cause.rstrip('.')}"
        refuse("The data file", "readable", got, remedy)


DELIMITERS = (",", ";", "\t")


@final
@dataclass(frozen=True)
class Dialect:
    """What the first row says of a text file."""

    delimiter: str

    written: tuple[str, ...]
    """Names of the columns as the file has them, with the spaces around them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(name.strip() for name in self.written)

    def as_written(self, name: str) -> str:
        """How the file writes the name of a column."""
        return self.written[self.names.index(name)]


def dialect_of(head: bytes, whole: bool, shown: str, delimiters: tuple[str, ...]) -> Dialect:
    """The dialect, from the first bytes of a file, or all, and what may separate its columns."""
    lines = _decoded(head, whole, shown).splitlines(keepends=True)
    first_rows = {mark: _first_row(lines, mark) for mark in delimiters}
    delimiter = max(delimiters, key=lambda mark: len(first_rows[mark]))
    if not first_rows[delimiter]:
        refuse("The data file", "a table with a first row of names", f"an empty file, {shown!r}")
    return Dialect(delimiter, tuple(first_rows[delimiter]))


def _decoded(head: bytes, whole: bool, shown: str) -> str:
    # Bytes that are not all may end within a character.
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        text = decoder.decode(head, final=whole)
    except UnicodeDecodeError:
        refuse_encoding(shown)
    if "\0" in text:
        refuse_encoding(shown)
    return text


def refuse_encoding(shown: str, where: str = "") -> NoReturn:
    """Refuse a file with bytes that are no UTF-8."""
    remedy = "Save it again as CSV in UTF-8."
    refuse("The data file", "text in UTF-8", f"other bytes in {shown!r}{where}", remedy)


def _first_row(lines: list[str], delimiter: str) -> list[str]:
    try:
        return next((row for row in csv.reader(lines, delimiter=delimiter) if row), [])
    except csv.Error:
        return []


MISSING = (*pyarrow.csv.ConvertOptions().null_values, "?")
"""What stands for a missing value: nothing, NA, N/A, NaN, null, ? and the like."""

_HEAD = 1 << 20
"""Bytes in which the first row has to end."""

_RAGGED = re.compile(r"^CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
"""What Arrow says of a row that is too short or too long; the row of names is number 1."""

_BLOCK = 1 << 23
"""Bytes parsed at once; a row has to fit."""


@final
class TextTable(TableFile):
    """A file of text with one row a line and names in the first."""

    def _names(self) -> tuple[str, ...]:
        return self._dialect.names

    def _read(self, columns: Sequence[str]) -> pa.Table:
        convert = pyarrow.csv.ConvertOptions(
            null_values=MISSING,
            strings_can_be_null=True,
            include_columns=[self._dialect.as_written(name) for name in columns],
        )
        table = self._parsed(convert).rename_columns(list(columns))
        for index, field in enumerate(table.schema):
            if pa.types.is_binary(field.type):
                refuse_encoding(self.shown, f", column {field.name!r}")
            if pa.types.is_string(field.type):
                table = table.set_column(index, field.name, _trimmed(table.column(index)))
        return table

    def _read_text(self, columns: Sequence[str]) -> pa.Table:
        written = [self._dialect.as_written(name) for name in columns]
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(written, pa.string()),
            strings_can_be_null=False,
            include_columns=written,
        )
        return self._parsed(convert).rename_columns(list(columns))

    @cached_property
    def _dialect(self) -> Dialect:
        tabs = self.path.name.lower().endswith((".tsv", ".tsv.gz"))
        try:
            with self._stream() as stream:
                head = stream.read(_HEAD)
        except OSError as error:
            self.refuse_damaged(error)
        whole = len(head) < _HEAD
        return dialect_of(head, whole, self.shown, ("\t",) if tabs else DELIMITERS)

    def _stream(self) -> Any:
        compression = "gzip" if self.path.name.lower().endswith(".gz") else None
        return pa.input_stream(self.shown, compression=compression)

    def _parsed(self, convert: Any) -> pa.Table:
        try:
            return self._parse(convert)
        except (pa.ArrowInvalid, OSError) as error:
            if _RAGGED.search(str(error)):
                self._refuse_ragged(convert)
            self.refuse_damaged(error)

    def _parse(self, convert: Any, *, use_threads: bool = True) -> pa.Table:
        read = pyarrow.csv.ReadOptions(block_size=_BLOCK, use_threads=use_threads)
        parse = pyarrow.csv.ParseOptions(delimiter=self._dialect.delimiter, newlines_in_values=True)
        with self._stream() as stream:
            return pyarrow.csv.read_csv(stream, read, parse, convert)

    def _refuse_ragged(self, convert: Any) -> None:
        """Refuse the first row that is too short or too long."""
        try:
            # Rows have numbers only when they are read one after the other.
            self._parse(convert, use_threads=False)
        except pa.ArrowInvalid as error:
            for row, expected, actual in _RAGGED.findall(str(error)):
                number = int(row) - 1 if row else "?"
                got = f"{several(int(actual), 'value')} in row {number} after the names of"
                allowed = f"of {several(int(expected), 'value')}, as many as there are names"
                remedy = "Correct that row."
                refuse("Rows of the data file", allowed, f"{got} {self.shown!r}", remedy)


def _trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without spaces around; numbers where these had hidden that a value is missing."""
    trimmed = pc.utf8_trim_whitespace(column)
    missing = pc.is_in(trimmed, value_set=pa.array(MISSING))
    trimmed = pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
    if trimmed.null_count == column.null_count:
        return trimmed
    try:
        return pc.cast(trimmed, pa.float64())
    except pa.ArrowInvalid:
        return trimmed


_BUFFER = 1 << 20
"""Bytes of a Parquet file held at once while its columns are decoded."""

_ARROW_FILE = b"ARROW1"
"""How a file of Arrow's begins; a stream does not."""


@final
class ParquetTable(TableFile):
    """A Parquet file."""

    def _names(self) -> tuple[str, ...]:
        from pyarrow.parquet import read_schema

        try:
            return tuple(read_schema(self.path).names)
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)

    def _read(self, columns: Sequence[str]) -> pa.Table:
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(self.path, pre_buffer=False, buffer_size=_BUFFER) as file:
                return file.read(columns=list(columns)).select(list(columns))
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)


@final
class ArrowTable(TableFile):
    """A file or a stream of Arrow's."""

    def _names(self) -> tuple[str, ...]:
        try:
            with pa.OSFile(self.shown) as source:
                return tuple(_reader(source).schema.names)
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)

    def _read(self, columns: Sequence[str]) -> pa.Table:
        fields = sorted(self.names.index(name) for name in columns)
        try:
            with pa.OSFile(self.shown) as source:
                return _reader(source, included_fields=fields).read_all().select(list(columns))
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)


def _reader(source: Any, **options: Any) -> Any:
    start = source.read(len(_ARROW_FILE))
    source.seek(0)
    kind = pa.ipc.open_file if start == _ARROW_FILE else pa.ipc.open_stream
    return kind(source, options=pa.ipc.IpcReadOptions(**options))


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
