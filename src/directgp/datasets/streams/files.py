"""Find Parquet files, check their columns and divide their rows into pieces."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

import pyarrow as pa
import pyarrow.compute as pc

from directgp.datasets.columns import kind_of, level_counts, plain_values, require_unique
from directgp.datasets.readers import readable, refuse_column
from directgp.datasets.tables import refuse_absent
from directgp.errors import refuse, require
from directgp.text import plural, suggestion

FilePath = str | os.PathLike[str]
"""A path."""

_MAX_CLASSES = 100
"""Largest number of other classes that are collected for the error message."""


def parquet_files(path: FilePath | Sequence[FilePath]) -> tuple[Path, ...]:
    """Return the named files, and all files in the named folders, sorted by folder."""
    named = [path] if isinstance(path, str | os.PathLike) else list(path)
    require(len(named) > 0, "The data", "at least one Parquet file or folder", "an empty list")
    files: list[Path] = []
    for source in map(Path, named):
        if not source.exists():
            refuse_absent("The data", "a file or a folder that exists", source)
        data_files = [file for file in source.rglob("*") if _is_data(file, source)]
        got = f"none whose name ends with .parquet in {str(source)!r}"
        remedy = "Name the folder that has them, or the files."
        require(bool(data_files) or source.is_file(), "The data", "Parquet files", got, remedy)
        files += sorted(data_files) or [source]
    remedy = "Name each file once, and no folder together with a file in it."
    resolved = (str(file.resolve()) for file in files)
    require_unique(resolved, "The data", "files that are named once", remedy)
    return tuple(files)


def _is_data(file: Path, folder: Path) -> bool:
    # Skip names that begin with a dot or an underscore: writers use them for metadata.
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return file.suffix.lower() in (".parquet", ".pq") and not hidden and file.is_file()


class Columns(NamedTuple):
    """The columns to read."""

    features: tuple[str, ...]
    """Names of the features."""

    target: str
    """Name of the column to predict."""

    weights: str | None
    """Name of the column of weights, if any."""

    positive: Any
    """The value of the target that is class 1; None for a target of numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """Features, target and weights."""
        weights = () if self.weights is None else (self.weights,)
        return (*self.features, self.target, *weights)

    def check(self, schema: pa.Schema, path: str) -> None:
        """Raise `InvalidInputError` if a file lacks a column, or has it in another type."""
        for name in self.names:
            fields = schema.get_all_field_indices(name)
            if not fields:
                refuse_column(f"A column asked of {path!r}", name, schema.names)
            if len(fields) > 1:
                got = f"{len(fields)} of the name {name!r} in {path!r}"
                refuse("Columns that are used", "of different names", got, "Rename or remove them.")
            data_type = schema.field(fields[0]).type
            kind = kind_of(data_type)
            got = f"values of type {data_type} in {path!r}"
            if name != self.target:
                remedy = "Leave it out of features, or write it to the files as numbers."
                require(kind == "number", f"Column {name!r}", "numbers", got, remedy)
            elif self.positive is None:
                remedy = "Give positive=, the value that is class 1."
                require(kind == "number", f"The target {name!r}", "numbers", got, remedy)
            else:
                is_class = kind in ("number", "category")
                remedy = "Name another target."
                require(is_class, f"The target {name!r}", "classes", got, remedy)
                self.positive_scalar(data_type)
        got = f"none besides the target {self.target!r} in {path!r}"
        allowed = "at least one column of numbers"
        remedy = "Add columns of numbers."
        require(len(self.features) > 0, "Features", allowed, got, remedy)
        remedy = "Name each column once, as a feature, the target or the weights."
        require_unique(self.names, "Columns", "used once", remedy)

    def positive_scalar(self, data_type: pa.DataType) -> pa.Scalar:
        """Return the value that is class 1, in the type of the target."""
        plain = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        try:
            scalar = pa.scalar(self.positive, plain)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            scalar = None
        if scalar is None or (pa.types.is_integer(plain) and scalar.as_py() != self.positive):
            allowed = f"a value of the target {self.target!r}, of type {plain}"
            refuse("positive", allowed, f"{self.positive!r} of type {type(self.positive).__name__}")
        return scalar


@final
@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a file, from `start` to before `stop`."""

    path: str
    """Path of the file."""

    size: int
    """Bytes of the file; a file of another size later is not the same file."""

    ends: tuple[int, ...]
    """Index of the row after each row group of the file."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def groups(self) -> range:
        """The row groups with these rows."""
        return range(bisect_right(self.ends, self.start), bisect_left(self.ends, self.stop) + 1)

    def cut(self, start: int, stop: int) -> "Piece":
        """Return some rows, counted from the first row of this piece."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def place(self, row: int) -> str:
        """Return row, file and row group of a row of this piece, counted from 1, for messages."""
        at = self.start + row
        return f"row {at + 1} of {self.path!r} (row group {bisect_right(self.ends, at) + 1})"


def divide(file: Piece, min_rows: int) -> list[Piece]:
    """Divide a file into pieces of whole row groups, small ones joined to `min_rows` rows."""
    pieces = []
    start = 0
    for end in file.ends:
        if end - start >= min_rows or start < end == file.stop:
            pieces.append(file.cut(start, end))
            start = end
    return pieces


def share_of(pieces: Sequence[Piece], rank: int, size: int) -> tuple[Piece, ...]:
    """Return part `rank` of `size` parts of consecutive rows, whose sizes differ by one at most."""
    total = sum(piece.rows for piece in pieces)
    start = total * rank // size
    stop = total * (rank + 1) // size
    before = 0
    share = []
    for piece in pieces:
        first = max(start - before, 0)
        last = min(stop - before, piece.rows)
        if first < last:
            share.append(piece.cut(first, last))
        before += piece.rows
    return tuple(share)


def open_files(
    path: FilePath | Sequence[FilePath],
    target: str,
    features: Sequence[str] | None,
    weights: str | None,
    positive: object,
    min_rows: int,
) -> tuple[Columns, tuple[Piece, ...]]:
    """Return the columns to read, and the pieces of all files, from their metadata."""
    from pyarrow.parquet import ParquetFile

    remedy = "Put a single name in a list."
    require(not isinstance(features, str), "features", "a list of names", features, remedy)
    files = [str(file) for file in parquet_files(path)]
    columns = None
    pieces = []
    for name in files:
        with readable(name), ParquetFile(name) as file:
            size = os.path.getsize(name)
            schema = file.schema_arrow
            metadata = file.metadata
        if columns is None:
            others = [field for field in schema if field.name not in (target, weights)]
            numbers = [field.name for field in others if kind_of(field.type) == "number"]
            chosen = tuple(numbers if features is None else features)
            columns = Columns(chosen, target, weights, positive)
        columns.check(schema, name)
        whole = Piece(name, size, group_ends(metadata), 0, metadata.num_rows)
        pieces += divide(whole, min_rows)
    if columns is None or not pieces:
        got = f"none in {plural(len(files), 'file')}, such as {files[0]!r}"
        refuse("The data", "at least one row", got, "Check how the files were written.")
    if positive is not None:
        _require_positive(pieces, columns)
    return columns, tuple(pieces)


def group_ends(metadata: Any) -> tuple[int, ...]:
    """Return the index of the row after each row group of a Parquet file."""
    groups = range(metadata.num_row_groups)
    return tuple(accumulate(metadata.row_group(group).num_rows for group in groups))


def _require_positive(pieces: Sequence[Piece], columns: Columns) -> None:
    """Raise `InvalidInputError` if no row has the positive class; stop reading at the first."""
    from pyarrow.parquet import ParquetFile

    others: dict[str, int] = {}
    for path in dict.fromkeys(piece.path for piece in pieces):
        with readable(path), ParquetFile(path, pre_buffer=False) as file:
            for table in file.iter_batches(columns=[columns.target], use_threads=False):
                values = plain_values(table.column(0))
                if pc.any(pc.equal(values, columns.positive_scalar(values.type))).as_py():
                    return
                if len(others) < _MAX_CLASSES:
                    others |= level_counts(pa.chunked_array([values]))
    remedy = suggestion(str(columns.positive), sorted(others), "Its values")
    refuse("positive", f"a value of the target {columns.target!r}", repr(columns.positive), remedy)


def refuse_value(name: str, allowed: str, got: str) -> NoReturn:
    """Raise `InvalidInputError` for a value of a column."""
    remedy = "Fill in or leave out such rows when you write the file."
    refuse(f"Column {name!r}", allowed, got, remedy)
