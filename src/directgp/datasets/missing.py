"""Values that are not there: null, or NaN in a column of numbers."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.wording import counted, drop_options, listed
from directgp.errors import InvalidInputError


def missing_counts(table: pa.Table, columns: Iterable[str]) -> dict[str, int]:
    """How many values are missing in each of the columns that lacks some."""
    counts = {name: _count(table.column(name)) for name in columns}
    return {name: count for name, count in counts.items() if count}


def complete_rows(table: pa.Table, columns: Iterable[str]) -> NDArray[np.bool_]:
    """Whether a row has a value in every one of the columns."""
    complete = np.ones(table.num_rows, dtype=np.bool_)
    for name in missing_counts(table, columns):
        missing = pc.is_null(_plain(table.column(name)), nan_is_null=True)
        complete &= ~missing.to_numpy()
    return complete


def refuse_missing(table: pa.Table, columns: Iterable[str], remedy: str) -> None:
    """Refuse a table with missing values, with their columns and counts."""
    counts = missing_counts(table, columns)
    if counts:
        raise InvalidInputError(
            "Columns that are used must have a value in every row."
            f" Missing values: {counted(counts)}, of {table.num_rows:,} rows."
            f" {remedy}"
        )


def refuse_empty(table: pa.Table, target: str) -> None:
    """Refuse columns without any value, which leave no row complete."""
    counts = missing_counts(table, table.column_names)
    empty = [name for name, count in counts.items() if count == table.num_rows]
    if empty:
        drop = drop_options(empty)
        remedy = "Name another target." if target in empty else f"Leave them out with {drop}."
        raise InvalidInputError(
            f"Columns that are used must have values. Got none at all in {listed(empty)}. {remedy}"
        )


def _count(column: pa.ChunkedArray) -> int:
    values = _plain(column)
    if not pa.types.is_floating(values.type):
        return int(values.null_count)
    return int(pc.sum(pc.is_null(values, nan_is_null=True)).as_py() or 0)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values themselves: a dictionary may have an entry that stands for a missing value."""
    if pa.types.is_dictionary(column.type):
        return pc.cast(column, column.type.value_type)
    return column
