"""Find Parquet files, check their columns and divide their rows into pieces."""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn, final

import pyarrow as pa

from directgp.datasets.columns import kind_of
from directgp.datasets.tables import readable, refuse_absent, refuse_column
from directgp.errors import refuse, require
from directgp.text import listed, plural

FilePath = str | os.PathLike[str]

_SUFFIXES = (".parquet", ".pq")


def parquet_files(path: FilePath | Sequence[FilePath]) -> tuple[Path, ...]:
    """Return the files named, and those in the folders named, sorted within each folder.

    In a folder these are the files that end with ``.parquet`` or ``.pq``, at any depth. Files and
    folders whose name begins with ``.`` or ``_`` are left out, because writers use such names for
    other things than data.
    """
    named = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not named:
        refuse("The data", "at least one Parquet file or folder", "an empty list")
    files = [file for each in named for file in _files_at(Path(each))]
    counts = Counter(file.resolve() for file in files)
    repeated = [str(file) for file, count in counts.items() if count > 1]
    if repeated:
        remedy = "Name each file once, and no folder together with a file in it."
        got = f"{listed(repeated)} more than once"
        refuse("The data", "files that are named once", got, remedy)
    return tuple(files)


def _files_at(path: Path) -> list[Path]:
    if not path.exists():
        beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        refuse_absent("The data", "a file or a folder that exists", path, beside)
    if not path.is_dir():
        return [path]
    found = [file for file in path.rglob("*") if _is_data(file.relative_to(path))]
    files = sorted(file for file in found if file.is_file())
    if not files:
        remedy = "Name the folder that has them, or the files."
        got = f"none whose name ends with .parquet in {str(path)!r}"
        refuse("The data", "Parquet files", got, remedy)
    return files


def _is_data(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return path.suffix.lower() in _SUFFIXES and not hidden


@final
@dataclass(frozen=True)
class Columns:
    """The columns to read."""

    features: tuple[str, ...]
    target: str
    weights: str | None
    positive: Any
    """The value of the target that is class 1; None for a target of numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """Features, target and weights."""
        weights = () if self.weights is None else (self.weights,)
        return (*self.features, self.target, *weights)

    def check(self, schema: pa.Schema, path: str) -> None:
        """Raise `InvalidInputError` if a file lacks a column, or has it in another type."""
        counts = Counter(schema.names)
        for name in self.names:
            if not counts[name]:
                refuse_column(f"A column asked of {path!r}", name, schema.names)
            if counts[name] > 1:
                got = f"{counts[name]} of the name {name!r} in {path!r}"
                refuse("Columns that are used", "of different names", got, "Rename or remove them.")
        remedy = "Leave it out of features, or write it to the files as numbers."
        for name in self.names:
            if name != self.target:
                _check_number(f"Column {name!r}", schema.field(name).type, path, remedy)
        who, target_type = f"The target {self.target!r}", schema.field(self.target).type
        if self.positive is None:
            remedy = "Give positive=, the value that is class 1."
            _check_number(who, target_type, path, remedy)
        elif kind_of(target_type) not in ("number", "category"):
            got = f"values of type {target_type} in {path!r}"
            refuse(who, "classes", got, "Name another target.")
        else:
            positive_scalar(self.positive, target_type, self.target)


def choose_columns(
    schema: pa.Schema,
    path: str,
    target: str,
    features: Sequence[str] | None,
    weights: str | None,
    positive: object,
) -> Columns:
    """Return the columns to read; by default the features are all other columns of numbers."""
    if features is None:
        others = [field for field in schema if field.name not in (target, weights)]
        chosen = tuple(field.name for field in others if kind_of(field.type) == "number")
    else:
        remedy = "Put a single name in a list."
        require(not isinstance(features, str), "features", "a list of names", features, remedy)
        chosen = tuple(features)
    columns = Columns(chosen, target, weights, positive)
    columns.check(schema, path)
    if not chosen:
        got = f"none besides the target {target!r} in {path!r}"
        refuse("Features", "at least one column of numbers", got, "Add columns of numbers.")
    repeated = sorted(name for name, count in Counter(columns.names).items() if count > 1)
    if repeated:
        remedy = "Name each column once, as a feature, the target or the weights."
        refuse("Columns", "used once", f"{listed(repeated)} more than once", remedy)
    return columns


def positive_scalar(positive: object, data_type: pa.DataType, target: str) -> pa.Scalar:
    """Return the value that is class 1, in the type of the target."""
    plain = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    try:
        scalar = pa.scalar(positive, plain)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        scalar = None
    if scalar is None or (pa.types.is_integer(plain) and scalar.as_py() != positive):
        allowed = f"a value of the target {target!r}, of type {plain}"
        refuse("positive", allowed, f"{positive!r} of type {type(positive).__name__}")
    return scalar


def _check_number(who: str, data_type: pa.DataType, path: str, remedy: str) -> None:
    if kind_of(data_type) != "number":
        refuse(who, "numbers", f"values of type {data_type} in {path!r}", remedy)


@final
@dataclass(frozen=True)
class FileGroups:
    """A file, and the number of rows in each of its row groups."""

    path: str
    size: int
    """Bytes; a file of another size later is not the same file."""

    group_rows: tuple[int, ...]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Index of the row after each row group."""
        return tuple(accumulate(self.group_rows))

    def group_of(self, row: int) -> int:
        """Return the row group of a row."""
        return bisect_right(self.ends, row)


@final
@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file, from `start` to before `stop`."""

    file: FileGroups
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def groups(self) -> range:
        """The row groups with these rows."""
        return range(self.file.group_of(self.start), self.file.group_of(self.stop - 1) + 1)

    def cut(self, start: int, stop: int) -> "Piece":
        """Return some rows, counted from the first row of this piece."""
        return Piece(self.file, self.start + start, self.start + stop)

    def place(self, row: int) -> str:
        """Return file, row group and row of a row of this piece, for error messages."""
        at = self.start + row
        return f"row {at + 1} (in row group {self.file.group_of(at)}) of {self.file.path!r}"


def pieces_of(files: Sequence[FileGroups], min_rows: int) -> tuple[Piece, ...]:
    """Divide all rows into pieces of whole row groups, small ones joined to `min_rows` rows."""
    pieces = []
    for file in files:
        start = 0
        for end in file.ends:
            if end - start >= min_rows or start < end == file.ends[-1]:
                pieces.append(Piece(file, start, end))
                start = end
    return tuple(pieces)


def share_of(pieces: Sequence[Piece], rank: int, size: int) -> tuple[Piece, ...]:
    """Return part `rank` of `size` parts, whose numbers of rows differ by at most one.

    A part has consecutive rows. So each process reads its own row groups, and at most two that it
    shares with a neighbour.
    """
    total = sum(piece.rows for piece in pieces)
    start, stop, before = total * rank // size, total * (rank + 1) // size, 0
    share = []
    for piece in pieces:
        first, last = max(start - before, 0), min(stop - before, piece.rows)
        if first < last:
            share.append(piece.cut(first, last))
        before += piece.rows
    return tuple(share)


def survey(
    files: Sequence[Path],
    target: str,
    features: Sequence[str] | None,
    weights: str | None,
    positive: object,
) -> tuple[Columns, tuple[FileGroups, ...]]:
    """Return the columns to read and the row groups of all files, from their metadata."""
    path = str(files[0])
    columns = choose_columns(_metadata(path)[0], path, target, features, weights, positive)
    groups = tuple(_groups(str(file), columns) for file in files)
    if not any(sum(file.group_rows) for file in groups):
        got = f"none in {plural(len(groups), 'file')}, such as {path!r}"
        refuse("The data", "at least one row", got, "Check how the files were written.")
    return columns, groups


def _groups(path: str, columns: Columns) -> FileGroups:
    with readable(path):
        size = os.path.getsize(path)
    schema, metadata = _metadata(path)
    columns.check(schema, path)
    rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    _refuse_missing(metadata, columns.names, path)
    return FileGroups(path, size, rows)


def _metadata(path: str) -> tuple[pa.Schema, Any]:
    from pyarrow.parquet import ParquetFile

    with readable(path), ParquetFile(path) as file:
        return file.schema_arrow, file.metadata


def _refuse_missing(metadata: Any, names: Sequence[str], path: str) -> None:
    """Raise `InvalidInputError` if the statistics of the file report missing values."""
    leaves = {metadata.schema.column(leaf).path: leaf for leaf in range(metadata.num_columns)}
    wanted = [(name, leaves[name]) for name in names if name in leaves]
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for name, leaf in wanted:
            statistics = row_group.column(leaf).statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                got = f"{plural(statistics.null_count, 'missing value')} in row group {group}"
                refuse_value(name, "without missing values", f"{got} of {path!r}")


def refuse_value(name: str, allowed: str, got: str) -> NoReturn:
    """Raise `InvalidInputError` for a value of a column."""
    remedy = "Fill in or leave out such rows when you write the file."
    refuse(f"Column {name!r}", allowed, got, remedy)
