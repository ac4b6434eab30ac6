"""CSV and TSV, gzip'd or not."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from directgp.datasets.csv_dialect import DELIMITERS, Dialect, dialect_of, refuse_encoding
from directgp.datasets.table_file import TableFile
from directgp.datasets.wording import several
from directgp.errors import refuse

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
