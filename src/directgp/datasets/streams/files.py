"""Find Parquet files, check their columns and cut them into pieces."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn, final

import pyarrow as pa

from directgp.datasets.columns import kind_of
from directgp.datasets.tables import refuse_column
from directgp.errors import refuse, require
from directgp.text import did_you_mean, listed, plural

Named = str | os.PathLike[str]

_SUFFIXES = (".parquet", ".pq")
_WHO = "The data"


def parquet_files(path: Named | Sequence[Named]) -> tuple[Path, ...]:
    """The files named, and those in the folders named, folders in the order of the alphabet.

    Of a folder these are the files whose name ends with ``.parquet`` or ``.pq``, at any depth. What
    begins with ``.`` or ``_`` is left out, file or folder: so writers mark what is not data.
    """
    named = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not named:
        refuse(_WHO, "at least one Parquet file or folder", "an empty list")
    files = [file for one in named for file in _files_at(Path(one))]
    _refuse_twice(files)
    return tuple(files)


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return _files_in(path)
    if not path.exists():
        _refuse_absent(path)
    return [path]


def _files_in(folder: Path) -> list[Path]:
    found = [file for file in folder.rglob("*") if _is_data(file.relative_to(folder))]
    files = sorted(file for file in found if file.is_file())
    if not files:
        remedy = "Name the folder that has them, or the files."
        got = f"none whose name ends with .parquet in {str(folder)!r}"
        refuse(_WHO, "Parquet files", got, remedy)
    return files


def _is_data(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return path.suffix.lower() in _SUFFIXES and not hidden


def _refuse_absent(path: Path) -> None:
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    remedy = did_you_mean(path.name, beside) or "Check the path."
    refuse(_WHO, "a file or a folder that exists", repr(str(path)), remedy)


def _refuse_twice(files: list[Path]) -> None:
    places = Counter(file.resolve() for file in files)
    twice = [str(place) for place, number in places.items() if number > 1]
    if twice:
        remedy = "Name each file once, and no folder together with a file in it."
        refuse(_WHO, "files that are named once", f"{listed(twice)} more than once", remedy)


@final
@dataclass(frozen=True)
class Columns:
    """The columns that are read."""

    features: tuple[str, ...]
    target: str
    weights: str | None
    positive: Any
    """The value of the target that is class 1; None for a target of numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        weights = () if self.weights is None else (self.weights,)
        return (*self.features, self.target, *weights)

    def check(self, schema: pa.Schema, path: str) -> None:
        """Refuse a file that lacks one of the columns, or has it as something else."""
        for name in self.names:
            _check_name(name, schema, path)
        for name in self.names:
            if name != self.target:
                _check_number(f"Column {name!r}", schema.field(name).type, path, _CODE)
        self._check_target(schema.field(self.target).type, path)

    def _check_target(self, kind: pa.DataType, path: str) -> None:
        who = f"The target {self.target!r}"
        if self.positive is None:
            _check_number(who, kind, path, "Give positive=, the value that is class 1.")
        elif kind_of(kind) not in ("number", "category"):
            refuse(who, "classes", f"values of type {kind} in {path!r}", "Name another target.")
        else:
            positive_scalar(self.positive, kind, self.target)


def chosen_columns(
    schema: pa.Schema,
    path: str,
    target: str,
    features: Sequence[str] | None,
    weights: str | None,
    positive: object,
) -> Columns:
    """The columns that the user means: as features, where none are named, all other numbers."""
    if features is None:
        others = [field for field in schema if field.name not in (target, weights)]
        chosen = tuple(field.name for field in others if kind_of(field.type) == "number")
    else:
        remedy = "Put a single name in a list."
        require(not isinstance(features, str), "features", "a list of names", features, remedy)
        chosen = tuple(features)
    columns = Columns(chosen, target, weights, positive)
    columns.check(schema, path)
    _check_features(columns, path)
    return columns


def positive_scalar(positive: object, kind: pa.DataType, target: str) -> pa.Scalar:
    """The value that is class 1, in the type of the target."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        scalar = pa.scalar(positive, plain)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        _refuse_positive(positive, plain, target)
    if pa.types.is_integer(plain) and scalar.as_py() != positive:
        _refuse_positive(positive, plain, target)
    return scalar


_CODE = "Leave it out of features, or write it to the files as numbers."


def _check_name(name: str, schema: pa.Schema, path: str) -> None:
    number = schema.names.count(name)
    if not number:
        refuse_column(f"A column asked of {path!r}", name, schema.names)
    if number > 1:
        got = f"{number} of the name {name!r} in {path!r}"
        refuse("Columns that are used", "of different names", got, "Rename or remove them.")


def _check_number(who: str, kind: pa.DataType, path: str, remedy: str) -> None:
    if kind_of(kind) != "number":
        refuse(who, "numbers", f"values of type {kind} in {path!r}", remedy)


def _check_features(columns: Columns, path: str) -> None:
    if not columns.features:
        got = f"none beside the target {columns.target!r} in {path!r}"
        refuse("Features", "at least one column of numbers", got, "Add columns of numbers.")
    twice = sorted({name for name in columns.names if columns.names.count(name) > 1})
    if twice:
        remedy = "Name each column once, as a feature, the target or the weights."
        refuse("Columns", "used once", f"{listed(twice)} more than once", remedy)


def _refuse_positive(positive: object, kind: pa.DataType, target: str) -> NoReturn:
    allowed = f"a value of the target {target!r}, of type {kind}"
    refuse("positive", allowed, f"{positive!r} of type {type(positive).__name__}")


@final
@dataclass(frozen=True)
class FileGroups:
    """A file, and how many rows each of its row groups has."""

    path: str
    size: int
    """Bytes; a file that has another size later on is no longer the same."""

    group_rows: tuple[int, ...]


@final
@dataclass(frozen=True)
class Piece:
    """Neighbouring rows of one file, in neighbouring row groups."""

    file: FileGroups
    groups: range
    start: int
    """First row, counted from the beginning of the first of the groups."""

    stop: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start

    def cut(self, start: int, stop: int) -> "Piece":
        """Rows of this piece, counted from its own first row, in no more groups than needed."""
        first, last = self.start + start, self.start + stop
        ends = list(accumulate(self.file.group_rows[group] for group in self.groups))
        before = sum(end <= first for end in ends)
        until = sum(end < last for end in ends) + 1
        shift = ends[before - 1] if before else 0
        return Piece(self.file, self.groups[before:until], first - shift, last - shift)

    def place(self, row: int) -> str:
        """Where a row of this piece is found, in words."""
        left = self.start + row
        above = sum(self.file.group_rows[: self.groups.start])
        for group in self.groups:
            if left < self.file.group_rows[group]:
                break
            left -= self.file.group_rows[group]
            above += self.file.group_rows[group]
        return f"row {above + left + 1} (in row group {group}) of {self.file.path!r}"


def pieces_of(files: Sequence[FileGroups], least: int) -> tuple[Piece, ...]:
    """All rows in the order of the files, small row groups put together to about `least` rows."""
    return tuple(piece for file in files for piece in _pieces_of_file(file, least))


def share_of(pieces: Sequence[Piece], rank: int, size: int) -> tuple[Piece, ...]:
    """Part `rank` of `size` parts, whose numbers of rows differ by one at most.

    Parts are neighbouring rows, so that each process reads its own row groups, and at most two that
    are shared with a neighbour.
    """
    total = sum(piece.rows for piece in pieces)
    return tuple(_between(pieces, total * rank // size, total * (rank + 1) // size))


def _pieces_of_file(file: FileGroups, least: int) -> Iterator[Piece]:
    first, rows = 0, 0
    for group, more in enumerate(file.group_rows):
        rows += more
        if rows >= least:
            yield Piece(file, range(first, group + 1), 0, rows)
            first, rows = group + 1, 0
    if rows:
        yield Piece(file, range(first, len(file.group_rows)), 0, rows)


def _between(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    before = 0
    for piece in pieces:
        first, last = max(start - before, 0), min(stop - before, piece.rows)
        if first < last:
            yield piece.cut(first, last)
        before += piece.rows


def survey(
    files: Sequence[Path],
    target: str,
    features: Sequence[str] | None,
    weights: str | None,
    positive: object,
) -> tuple[Columns, tuple[FileGroups, ...]]:
    """The columns meant, and the row groups of all files; no values are read."""
    path = str(files[0])
    schema, _ = _described(path)
    columns = chosen_columns(schema, path, target, features, weights, positive)
    groups = tuple(_groups(str(file), columns) for file in files)
    if not any(sum(file.group_rows) for file in groups):
        got = f"none in {plural(len(groups), 'file')}, such as {path!r}"
        refuse("The data", "at least one row", got, "Check how the files were written.")
    return columns, groups


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Say of a file that cannot be read which it is."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        got = f"{path!r}, of which the reader says: {cause.rstrip('.')}"
        refuse("The data file", "a readable Parquet file", got, "Write it again or leave it out.")


def _groups(path: str, columns: Columns) -> FileGroups:
    with readable(path):
        size = os.path.getsize(path)
    schema, metadata = _described(path)
    columns.check(schema, path)
    rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    _refuse_missing(metadata, columns.names, path)
    return FileGroups(path, size, rows)


def _described(path: str) -> tuple[pa.Schema, Any]:
    """What the end of a file says: its columns and its row groups."""
    from pyarrow.parquet import ParquetFile

    with readable(path), ParquetFile(path) as file:
        return file.schema_arrow, file.metadata


def _refuse_missing(metadata: Any, names: Sequence[str], path: str) -> None:
    """Refuse missing values that the statistics of the file tell of."""
    leaves = {metadata.schema.column(leaf).path: leaf for leaf in range(metadata.num_columns)}
    wanted = [(name, leaves[name]) for name in names if name in leaves]
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for name, leaf in wanted:
            statistics = row_group.column(leaf).statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                got = f"{plural(statistics.null_count, 'missing value')} in row group {group}"
                refuse_value(name, "without missing values", f"{got} of {path!r}")


def refuse_value(name: str, allowed: str, got: str) -> None:
    """Refuse a value of a column."""
    refuse(
        f"Column {name!r}", allowed, got, "Fill in or leave out such rows as you write the file."
    )
