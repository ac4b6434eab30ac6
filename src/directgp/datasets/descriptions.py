"""Describe what the columns of a table would be for training, and suggest other kinds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa

from directgp.datasets.columns import (
    ISO,
    Mark,
    NumberFormat,
    guess_format,
    is_missing,
    kind_of,
    level_counts,
    other_order,
    read_numbers,
    shown_value,
    trim,
)
from directgp.datasets.dialect import DECIMALS
from directgp.datasets.encoding import recurs
from directgp.datasets.levels import learn_levels
from directgp.registry import ColumnKind
from directgp.text import listed, plural

_IDENTIFIER = re.compile(
    r"(?i:id|(?:.*[\W_])?(?:id|code|key|nr|no)|id[\W_]?(?:code|no|nr|number)|subject|patient|person"
    r"|participant|student|school|shop|store|site|machine|batch|customer|user)"
    r"|.*[a-z](?:Id|ID|Code|Key|Nr|No)"
)
"""Names of columns that identify something, whose numbers may be groups."""

_ROWS_PER_LEVEL = 2
"""Mean number of rows of a group, at least."""

_FEW_LEVELS = 10
"""Up to this many levels of text are described as a category, not as a possible group."""

_LATITUDES = ("lat", "latitude")

_LONGITUDES = ("lon", "lng", "longitude")


@final
@dataclass(frozen=True)
class ColumnDescription:
    """What a column would be for training."""

    name: str
    """Name of the column."""

    use: str
    """What it would be without options, in words."""

    hint: ColumnKind | None = None
    """Another kind that it may have, for --columns."""

    why: str = ""
    """Reason of the hint, in words."""


def describe_columns(
    table: pa.Table, decimals: Sequence[Mark] = DECIMALS
) -> list[ColumnDescription]:
    """Return what each column of a table would be; numbers in text have these decimal marks.

    Examples
    --------
    >>> table = pa.table({"day": ["2020-01-01", "2020-01-02"], "x": [0.5, 1.5]})
    >>> [(column.name, column.use, column.hint) for column in describe_columns(table)]
    [('day', "dates such as '2020-01-01', used with --dates days", 'time'), ('x', 'numbers', None)]
    """
    columns = [_described(name, table.column(name), decimals) for name in table.column_names]
    names = {column.name.lower(): column.name for column in columns if column.use == "numbers"}
    place = [
        next((names[word] for word in words if word in names), None)
        for words in (_LATITUDES, _LONGITUDES)
    ]
    if None in place:
        return columns
    why = "latitude and longitude in degrees"
    return [
        ColumnDescription(column.name, column.use, "place", why) if column.name in place else column
        for column in columns
    ]


def _described(name: str, column: pa.ChunkedArray, decimals: Sequence[Mark]) -> ColumnDescription:
    kind = kind_of(column.type)
    if kind == "other":
        return ColumnDescription(name, f"values of type {column.type}, to leave out with --drop")
    if column.null_count == len(column) or is_missing(column).all():
        return ColumnDescription(name, "no values, to leave out with --drop")
    form = NumberFormat(dates=ISO) if kind == "time" else None
    if kind == "category":
        form = guess_format(column, decimals)
    if form is not None and form.dates:
        first = shown_value(column.drop_null()[0])
        order = "; --dates dmy or mdy sets the order" if other_order(column, form) else ""
        use = f"dates such as {first!r}, used with --dates days{order}"
        return ColumnDescription(name, use, "time", "days since 1970")
    if form is not None or kind == "number":
        return _described_numbers(name, column, form or NumberFormat())
    counts = level_counts(trim(column))
    rows = sum(counts.values())
    repeated = len(counts) * _ROWS_PER_LEVEL <= rows
    group = repeated and len(counts) > _FEW_LEVELS
    why = f"{plural(len(counts), 'level')} in {plural(rows, 'row')}"
    if len(counts) == 1:
        return ColumnDescription(name, "one value, which is left out")
    if not recurs(len(counts), rows):
        use = f"text that does not recur, such as {next(iter(counts))!r}, to leave out with --drop"
        return ColumnDescription(name, use, "group" if repeated else None, why if repeated else "")
    use = f"a category, {plural(len(counts) - 1, 'column')} of 0 and 1: {listed(sorted(counts))}"
    return ColumnDescription(name, use, "group" if group else None, why if group else "")


def _described_numbers(name: str, column: pa.ChunkedArray, form: NumberFormat) -> ColumnDescription:
    values = read_numbers(column, form).values
    values = values[~np.isnan(values)]
    if (values == values[0]).all():
        return ColumnDescription(name, "one value, which is left out")
    whole = bool((values == np.rint(values)).all())
    if whole and _IDENTIFIER.fullmatch(name) and kind_of(column.type) == "number":
        levels = len(learn_levels(column))
        if 2 < levels and levels * _ROWS_PER_LEVEL <= len(values):
            why = f"{plural(levels, 'level')} in {plural(len(values), 'row')}"
            return ColumnDescription(name, "numbers", "group", why)
    return ColumnDescription(name, "numbers")
