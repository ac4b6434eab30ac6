"""What the files say of themselves: their columns, row groups and missing values."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from directgp.datasets.streams.columns import Columns, chosen_columns
from directgp.datasets.streams.pieces import FileGroups
from directgp.datasets.wording import several
from directgp.errors import refuse


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
        got = f"none in {several(len(groups), 'file')}, such as {path!r}"
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
                got = f"{several(statistics.null_count, 'missing value')} in row group {group}"
                refuse_value(name, "without missing values", f"{got} of {path!r}")


def refuse_value(name: str, allowed: str, got: str) -> None:
    """Refuse a value of a column."""
    refuse(
        f"Column {name!r}", allowed, got, "Fill in or leave out such rows as you write the file."
    )
