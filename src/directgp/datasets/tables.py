"""Read tables from CSV, TSV, Parquet and Arrow files."""

import codecs
import csv
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, final

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
from typing_extensions import override

from directgp.datasets.columns import MISSING, parse_text, require_unique
from directgp.errors import refuse, require
from directgp.text import did_you_mean, plural, suggestion

_HEAD_BYTES = 1 << 20
"""Bytes in which the first row of a text file has to end."""

_BLOCK_BYTES = 1 << 23
"""Bytes of a text file parsed at once; a row has to fit."""

_BUFFER_BYTES = 1 << 20
"""Bytes of a Parquet file held at once while its columns are decoded."""

_DELIMITERS = (",", ";", "\t")

_RAGGED = re.compile(r"^CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
"""Arrow's error for a row that is too short or too long; the row of names is number 1."""

_ARROW_FILE = b"ARROW1"
"""First bytes of an Arrow file; an Arrow stream has others."""


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raise `InvalidInputError` with the path if Arrow or the system cannot read a file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "Write it again, or give it the suffix of its format."
        got = f"{path!r}, with the error: {cause.rstrip('.')}"
        refuse("The data file", "readable", got, remedy)


def refuse_absent(who: str, allowed: str, path: Path) -> NoReturn:
    """Raise `InvalidInputError` for a path that does not exist, with similar names there."""
    names = (file.name for file in tables_in(path.parent))
    remedy = did_you_mean(path.name, names) or "Check the path."
    refuse(who, allowed, repr(str(path)), remedy)


def refuse_column(who: str, name: str, names: Iterable[str]) -> NoReturn:
    """Raise `InvalidInputError` for the name of a column that the table does not have."""
    refuse(who, "a column of the table", repr(name), suggestion(name, names, "Its columns"))


class ReadableTable(ABC):
    """A table, in a file if it has a path, of which all columns or some can be read."""

    def __init__(self, shown: str, path: Path | None = None) -> None:
        self.shown, self.path = shown, path

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, all different; no values are read."""
        with readable(self.shown):
            names = tuple(self._names())
        got = f"no column in {self.shown!r}"
        require(len(names) > 0, "The table", "of columns with names", got)
        who, where = "Names of columns", f" in {self.shown!r}"
        require_unique(names, who, "different from each other", "Rename or remove them.", where)
        return names

    def read(self, columns: Sequence[str] | None = None, as_text: Collection[str] = ()) -> pa.Table:
        """Return the table, or some columns; those of `as_text` stay as a text file has them."""
        chosen, known = list(self.names if columns is None else columns), set(self.names)
        for name in chosen:
            if name not in known:
                refuse_column(f"A column of {self.shown!r}", name, self.names)
        with readable(self.shown):
            return self._read(chosen, set(as_text))

    @abstractmethod
    def _names(self) -> Sequence[str]: ...

    @abstractmethod
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table: ...


@final
class TextTable(ReadableTable):
    """A text file with one row on each line and names in the first."""

    @override
    def _names(self) -> Sequence[str]:
        return [name.strip() for name in self._header[1]]

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        table = self._parse(columns, null_values=MISSING, strings_can_be_null=True)
        arrays = dict(zip(columns, table.columns, strict=True))
        for name, column in arrays.items():
            if pa.types.is_binary(column.type):
                self._refuse_encoding(f", column {name!r}")
            if pa.types.is_string(column.type):
                arrays[name] = parse_text(column)
        verbatim = [name for name in columns if name in as_text]
        if verbatim:
            text = self._parse(verbatim, as_text=True, strings_can_be_null=False)
            arrays.update(zip(verbatim, text.columns, strict=True))
        return pa.table(arrays)

    @cached_property
    def _header(self) -> tuple[str, list[str]]:
        """The delimiter, and the names of the columns with the spaces around them."""
        with self._stream() as stream:
            head = stream.read(_HEAD_BYTES)
        try:
            # Unless the head is the whole file, it may end within a character.
            decoder = codecs.getincrementaldecoder("utf-8-sig")()
            text = decoder.decode(head, final=len(head) < _HEAD_BYTES)
        except UnicodeDecodeError:
            self._refuse_encoding()
        if "\0" in text:
            self._refuse_encoding()
        lines = text.splitlines(keepends=True)
        tabs = self.shown.lower().endswith((".tsv", ".tsv.gz"))
        rows = {mark: _first_row(lines, mark) for mark in (("\t",) if tabs else _DELIMITERS)}
        delimiter = max(rows, key=lambda mark: len(rows[mark]))
        if not rows[delimiter]:
            got = f"an empty file, {self.shown!r}"
            refuse("The data file", "a table with a first row of names", got)
        return delimiter, rows[delimiter]

    def _stream(self) -> Any:
        compression = "gzip" if self.shown.lower().endswith(".gz") else None
        return pa.input_stream(self.shown, compression=compression)

    def _parse(self, columns: list[str], *, as_text: bool = False, **options: Any) -> pa.Table:
        delimiter, header = self._header
        written = dict(zip(self.names, header, strict=True))
        included = [written[name] for name in columns]
        types = dict.fromkeys(included, pa.string()) if as_text else None
        convert = pyarrow.csv.ConvertOptions(
            include_columns=included, column_types=types, **options
        )
        parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        # Arrow numbers the rows only when it reads them in one thread.
        for threads in (True, False):
            read = pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=threads)
            with self._stream() as stream:
                try:
                    table = pyarrow.csv.read_csv(stream, read, parse, convert)
                    return table.rename_columns(columns)
                except pa.ArrowInvalid as error:
                    ragged = _RAGGED.search(str(error))
                    if ragged is None:
                        raise
                    row, expected, actual = ragged.groups()
        got = f"{plural(int(actual), 'value')} in row {int(row) - 1 if row else '?'}"
        allowed = f"of {plural(int(expected), 'value')}, as many as there are names"
        where = f"after the names in {self.shown!r}"
        refuse("Rows of the data file", allowed, f"{got} {where}", "Correct that row.")

    def _refuse_encoding(self, where: str = "") -> NoReturn:
        remedy = "Save it again as CSV in UTF-8."
        refuse("The data file", "text in UTF-8", f"other bytes in {self.shown!r}{where}", remedy)


def _first_row(lines: list[str], delimiter: str) -> list[str]:
    try:
        return next((row for row in csv.reader(lines, delimiter=delimiter) if row), [])
    except csv.Error:
        return []


@final
class ParquetTable(ReadableTable):
    """A Parquet file."""

    @override
    def _names(self) -> Sequence[str]:
        from pyarrow.parquet import read_schema

        return list(read_schema(self.shown).names)

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        from pyarrow.parquet import ParquetFile

        with ParquetFile(self.shown, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            return file.read(columns=columns).select(columns)


@final
class ArrowTable(ReadableTable):
    """An Arrow file or stream."""

    @override
    def _names(self) -> Sequence[str]:
        with pa.OSFile(self.shown) as source:
            return list(_arrow_reader(source).schema.names)

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        fields = sorted(self.names.index(name) for name in set(columns))
        with pa.OSFile(self.shown) as source:
            return _arrow_reader(source, included_fields=fields).read_all().select(columns)


def _arrow_reader(source: Any, **options: Any) -> Any:
    start = source.read(len(_ARROW_FILE))
    source.seek(0)
    open_arrow = pa.ipc.open_file if start == _ARROW_FILE else pa.ipc.open_stream
    return open_arrow(source, options=pa.ipc.IpcReadOptions(**options))


_READERS: dict[str, type[ReadableTable]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"), TextTable),
    **dict.fromkeys((".parquet", ".pq"), ParquetTable),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ArrowTable),
}

SUFFIXES = tuple(_READERS)
"""Suffixes of the files that can be read."""

_FORMATS = (
    "CSV (.csv, .tsv or .txt, also with .gz), Parquet (.parquet, .pq)"
    " or Feather (.feather, .arrow, .ipc)"
)


def read_table(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table in a file, or some of its columns.

    The file is CSV (``.csv``, ``.tsv``, ``.txt``, each also with ``.gz``), Parquet (``.parquet``,
    ``.pq``) or Feather (``.feather``, ``.arrow``, ``.ipc``).
    """
    return open_table(path).read(columns)


def open_table(path: str | os.PathLike[str]) -> ReadableTable:
    """Return a reader for the file; raise `InvalidInputError` if there is none for its suffix."""
    given, who = Path(path), "The data file"
    if given.is_dir():
        names = [file.name for file in tables_in(given)]
        remedy = f"Name one of the files in it, such as {names[0]!r}." if names else ""
        refuse(who, "a file", f"the folder {str(given)!r}", remedy)
    if not given.exists():
        refuse_absent(who, "a file that exists", given)
    suffix = suffix_of(given)
    if suffix is None:
        sheet = given.suffix.lower() in (".xlsx", ".xls", ".ods")
        other = "Rename it if it is one of these, or write it again as CSV."
        refuse(who, _FORMATS, repr(str(given)), "Save the sheet as CSV." if sheet else other)
    return _READERS[suffix](str(given), given)


def suffix_of(path: str | os.PathLike[str]) -> str | None:
    """Return the suffix of the format of a file, or None."""
    name = Path(path).name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def stem_of(path: str | os.PathLike[str]) -> str:
    """Return the name of the file without its suffix."""
    name = Path(path).name
    return name[: len(name) - len(suffix_of(path) or "")]


def tables_in(folder: Path) -> list[Path]:
    """Return the files of the folder that have the suffix of a table, sorted by name."""
    try:
        files = [file for file in folder.iterdir() if suffix_of(file) and file.is_file()]
    except OSError:
        return []
    return sorted(files)
