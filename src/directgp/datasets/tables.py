"""Read tables from CSV, TSV, Excel, Parquet and Arrow files."""

import codecs
import datetime
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, final
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.csv
from typing_extensions import override

from directgp.datasets.columnar import ArrowTable, ParquetTable
from directgp.datasets.columns import MISSING, parse_text
from directgp.datasets.dialect import (
    Dialect,
    Reading,
    guess_dialect,
    guess_encoding,
    unique_names,
)
from directgp.datasets.readers import ReadableTable, open_file, require_memory
from directgp.errors import (
    InvalidInputError,
    InvalidTableError,
    TableProblem,
    refuse,
    require_extra,
)
from directgp.text import did_you_mean, listed, one_line

_HEAD_BYTES = 1 << 20
"""Bytes in which the first row of a text file has to end."""

_BYTE_ORDER_MARK = "\ufeff"
"""Character at the start of a file that tells its encoding, and is no part of its text."""

_BLOCK_BYTES = 1 << 23
"""Bytes of a text file parsed at once; a row has to fit."""

_OBJECT_BYTES = 4
"""Bytes of memory for each byte of a workbook, whose values are objects of Python."""

_ROWS_CHECKED = 1000
"""Rows of a sheet after which the memory is looked at."""

_MAX_SHEET_ROWS = 2**20
"""Rows of a sheet that Excel allows; a damaged one may have a row of any number."""


def refuse_absent(who: str, allowed: str, path: Path) -> NoReturn:
    """Raise `InvalidInputError` for a path that does not exist, with similar names there."""
    names = (file.name for file in tables_in(path.parent))
    remedy = did_you_mean(path.name, names) or "Check the path."
    refuse(who, allowed, repr(str(path)), remedy)


@final
class TextTable(ReadableTable):
    """A text file with one row on each line and names in the first."""

    @override
    def _names(self) -> Sequence[str]:
        self.notes = self._dialect.notes
        self.decimal = self._dialect.decimal
        return self._dialect.names

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        width = len(self._dialect.names)
        require_memory(self.shown, self._bytes, self._lines, width, len(columns) / width)
        table = self._parse(columns, null_values=MISSING, strings_can_be_null=True)
        arrays = dict(zip(columns, table.columns, strict=True))
        for name, column in arrays.items():
            if pa.types.is_string(column.type):
                arrays[name] = parse_text(column)
        verbatim = [name for name in columns if name in as_text]
        if verbatim:
            text = self._parse(verbatim, as_text=True, strings_can_be_null=False)
            arrays.update(zip(verbatim, text.columns, strict=True))
        return pa.table(arrays)

    @cached_property
    def _dialect(self) -> Dialect:
        tabs = self.shown.lower().endswith((".tsv", ".tsv.gz"))
        with self._stream() as stream:
            head = stream.read(_HEAD_BYTES)
        if len(head) == _HEAD_BYTES and not {b"\n"[0], b"\r"[0]} & set(head):
            allowed = f"text whose first line ends within {_HEAD_BYTES:,} bytes"
            refuse("The data file", allowed, f"a longer one in {self.shown!r}")
        with self._stream() as stream:
            blocks = self._measured(iter(lambda: stream.read(_BLOCK_BYTES), b""))
            encoding = self.reading.encoding or guess_encoding(blocks, self.shown)
            for _ in blocks:
                pass  # The rest is measured.
        try:
            # Unless the head is the whole file, it may end within a character.
            decoder = codecs.getincrementaldecoder(encoding)()
            text = decoder.decode(head, len(head) < _HEAD_BYTES).removeprefix(_BYTE_ORDER_MARK)
        except (UnicodeError, LookupError) as error:
            got = f"{encoding!r}, with the error: {error}"
            refuse("--encoding", f"that of {self.shown!r}", got, "Leave it out to guess it.")
        return guess_dialect(text, encoding, self.shown, self.reading, tabs)

    def _stream(self) -> Any:
        compression = "gzip" if self.shown.lower().endswith(".gz") else None
        return pa.input_stream(open_file(self.shown), compression=compression)

    def _measured(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Count bytes and lines; raise `InvalidInputError` if they are more than the memory."""
        self._bytes = 0
        self._lines = 0
        for block in blocks:
            self._bytes += len(block)
            self._lines += block.count(b"\n")
            require_memory(self.shown, self._bytes)
            yield block

    def _parse(self, columns: list[str], *, as_text: bool = False, **options: Any) -> pa.Table:
        dialect = self._dialect
        irregular = list[tuple[int, int]]()

        def skip(row: Any) -> str:
            irregular.append(((row.number or 0) - dialect.lines, row.actual_columns))
            return "skip"

        types = dict.fromkeys(columns, pa.string()) if as_text else None
        mark = dialect.decimal or "."
        convert = pyarrow.csv.ConvertOptions(
            include_columns=columns, column_types=types, decimal_point=mark, **options
        )
        parse = pyarrow.csv.ParseOptions(
            delimiter=dialect.delimiter, newlines_in_values=True, invalid_row_handler=skip
        )
        # Arrow numbers the rows only when it reads them in one thread.
        for threads in (True, False):
            irregular.clear()
            read = pyarrow.csv.ReadOptions(
                block_size=_BLOCK_BYTES,
                use_threads=threads,
                encoding=dialect.encoding,
                column_names=dialect.names,
                skip_rows=dialect.lines,
            )
            with self._stream() as stream:
                table = pyarrow.csv.read_csv(stream, read, parse, convert)
            if not irregular:
                break
        self.irregular = tuple(irregular)
        return table


@final
class ExcelTable(ReadableTable):
    """A sheet of a workbook; rows with one value above the names are titles."""

    @override
    def _names(self) -> Sequence[str]:
        first = self._rows[0]
        if not self.reading.header:
            return [f"x{j + 1}" for j in range(len(first))]
        names, self.notes = unique_names(["" if c is None else str(c).strip() for c in first])
        return names

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        rows = self._rows[1:] if self.reading.header else self._rows
        place = {name: j for j, name in enumerate(self.names)}
        return pa.table(
            {name: _excel_column([row[place[name]] for row in rows]) for name in columns}
        )

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        """The rows that are not empty, from the row of names on, all of the same length."""
        require_extra("A table in .xlsx", "excel", "openpyxl")
        from openpyxl import load_workbook

        try:
            with open_file(self.shown) as source:
                with ZipFile(source) as parts:
                    unpacked = sum(part.file_size for part in parts.infolist())
                require_memory(self.shown, _OBJECT_BYTES * unpacked)
                with closing(load_workbook(source, read_only=True, data_only=True)) as book:
                    rows = self._filled_rows(book)
        except (InvalidInputError, OSError):
            raise
        except Exception as error:
            # openpyxl has no error of its own for files that are damaged or no workbooks.
            cause = one_line(str(error), 200) or type(error).__name__
            refuse("The data file", "a workbook", f"{self.shown!r}, with the error: {cause}")
        width = max(map(len, rows), default=0)
        # Titles have one value.
        filled = (sum(cell is not None for cell in row) for row in rows)
        start = next((i for i, cells in enumerate(filled) if cells > (width > 1)), None)
        if start is None:
            refuse("The sheet", "a table with a first row of names", f"none in {self.shown!r}")
        require_memory(self.shown, 0, len(rows), width)
        padding = (None,) * width
        return [(*row, *padding)[:width] for row in rows[start:]]

    def _filled_rows(self, book: Any) -> list[tuple[Any, ...]]:
        """Return the rows of the sheet that have values, each to its last value."""
        wanted = self.reading.sheet
        names = book.sheetnames
        if wanted not in (names if wanted or len(names) > 1 else [None]):
            got = f"{len(names)} sheets in {self.shown!r}" if wanted is None else repr(wanted)
            problem = f"--sheet must name a sheet. Got {got}. The sheets are {listed(names)}."
            raise InvalidTableError([TableProblem(problem, {"--sheet": names[:1]})])
        sheet = book[wanted or names[0]]
        rows = list[tuple[Any, ...]]()
        cells = 0
        # The dimensions that a sheet states may be wrong, and far too large.
        sheet.reset_dimensions()
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            if number > _MAX_SHEET_ROWS:
                allowed = f"at most {_MAX_SHEET_ROWS:,} rows"
                got = f"more in {self.shown!r}"
                refuse("The sheet", allowed, got, "Write it again.")
            last = next((j for j in reversed(range(len(row))) if row[j] is not None), -1)
            if last >= 0:
                rows.append(row[: last + 1])
                cells += last + 1
            if number % _ROWS_CHECKED == 0:
                require_memory(self.shown, 0, cells, 1)
        return rows


def _excel_column(cells: Sequence[Any]) -> pa.ChunkedArray:
    """Return a column of numbers, of times, or of text if it has both."""
    filled = [cell for cell in cells if cell is not None]
    for kinds in (bool, (int, float), (datetime.datetime, datetime.date)):
        # In Python, True is an int.
        if all(isinstance(c, kinds) and (kinds is bool or not isinstance(c, bool)) for c in filled):
            return pa.chunked_array([pa.array(cells)])
    return parse_text(pa.chunked_array([[None if c is None else str(c) for c in cells]]))


_READERS: dict[str, type[ReadableTable]] = {
    ".xlsx": ExcelTable,
    **dict.fromkeys((".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"), TextTable),
    **dict.fromkeys((".parquet", ".pq"), ParquetTable),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ArrowTable),
}


SUFFIXES = tuple(_READERS)
"""Suffixes of the files that can be read."""

_FORMATS = (
    "CSV (.csv, .tsv or .txt, also with .gz), Excel (.xlsx), Parquet (.parquet, .pq)"
    " or Feather (.feather, .arrow, .ipc)"
)


def read_table(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table in a file, or some of its columns.

    The file is CSV (``.csv``, ``.tsv``, ``.txt``, each also with ``.gz``), Excel (``.xlsx``),
    Parquet (``.parquet``, ``.pq``) or Feather (``.feather``, ``.arrow``, ``.ipc``).
    """
    opened = open_table(path)
    table = opened.read(columns)
    if opened.irregular:
        raise InvalidTableError([opened.irregular_rows()])
    return table


def open_table(path: str | os.PathLike[str], reading: Reading | None = None) -> ReadableTable:
    """Return a reader for the file; raise `InvalidInputError` for an unknown suffix."""
    table_path = Path(path)
    who = "The data file"
    if os.path.isdir(table_path):
        names = [file.name for file in tables_in(table_path)]
        remedy = f"Name one of the files in it, such as {names[0]!r}." if names else ""
        refuse(who, "a file", f"the folder {str(table_path)!r}", remedy)
    # Unlike `Path.exists`, this is false for a name that is too long.
    if not os.path.exists(table_path):
        refuse_absent(who, "a file that exists", table_path)
    suffix = suffix_of(table_path)
    if suffix is None:
        sheet = table_path.suffix.lower() in (".xls", ".ods")
        hint = "Rename it if it is one of these, or write it again as CSV."
        refuse(who, _FORMATS, repr(str(table_path)), "Save the sheet as .xlsx." if sheet else hint)
    return _READERS[suffix](str(table_path), table_path, reading)


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
