"""Decide what a column of a table holds, parse its text and find its missing values."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from shlex import quote
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from directgp.errors import InvalidInputError, refuse
from directgp.text import counted, listed, plural

Kind = Literal["number", "category", "time", "empty", "other"]


def kind_of(data_type: pa.DataType) -> Kind:
    """Return the kind of a column of this Arrow type."""
    types = pa.types
    if types.is_null(data_type):
        return "empty"
    numbers = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    if any(matches(data_type) for matches in numbers):
        return "number"
    if types.is_dictionary(data_type):
        return "category" if kind_of(data_type.value_type) in ("number", "category") else "other"
    text = (types.is_string, types.is_large_string, types.is_string_view)
    if any(matches(data_type) for matches in text):
        return "category"
    return "time" if types.is_temporal(data_type) else "other"


class TextFormat(NamedTuple):
    """A format of numbers or dates that can be recognised in a column of text."""

    pattern: re.Pattern[str]
    name: str
    remedy: str
    may_be_category: bool = False
    """Whether a few such values can also be category names."""


PLAIN_NUMBERS = TextFormat(
    re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?"),
    "numbers stored as text",
    "Store them as numbers.",
    may_be_category=True,
)

_TEXT_FORMATS = (
    PLAIN_NUMBERS,
    # Plain numbers match above, so at least one value has a separator in the formats below.
    TextFormat(
        re.compile(r"[-+]?\d{1,3}([,' ’]\d{3})*(\.\d+)?|[-+]?\d{1,3}(\.\d{3})*"),
        "numbers with thousands separators",
        "Write them without, as in 1234.5.",
    ),
    TextFormat(
        re.compile(r"[-+]?\d+(,\d+)?|[-+]?\d{1,3}([.' ’]\d{3})*,\d+"),
        "numbers with decimal commas",
        "Write them with a point, as in 1234.5.",
    ),
    TextFormat(
        re.compile(r"[€$£]\s*[-+]?\d[\d.,' ]*|[-+]?\d[\d.,' ]*\s*[€$£%]"),
        "numbers with units",
        "Write the numbers alone.",
        may_be_category=True,
    ),
    TextFormat(
        re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?"),
        "dates",
        "Give numbers instead, such as year, month or days since a date.",
    ),
)


def text_format(values: Collection[str]) -> TextFormat | None:
    """Return the first format that all the values have, or None.

    Examples
    --------
    >>> text_format(["1,5", "2"]).name, text_format(["1,500", "20"]).name, text_format(["red", "2"])
    ('numbers with decimal commas', 'numbers with thousands separators', None)
    """
    for known in _TEXT_FORMATS:
        if values and all(known.pattern.fullmatch(value.strip()) for value in values):
            return known
    return None


MISSING = (*pyarrow.csv.ConvertOptions().null_values, "?")
"""Texts that stand for a missing value: the empty text, NA, N/A, NaN, null, ? and the like."""


def parse_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Trim a column of text; convert it to numbers if that uncovers missing values among them."""
    trimmed = pc.utf8_trim_whitespace(column)
    missing = pc.is_in(trimmed, value_set=pa.array(MISSING))
    trimmed = pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
    if trimmed.null_count == column.null_count:
        return trimmed
    try:
        return pc.cast(trimmed, pa.float64())
    except pa.ArrowInvalid:
        return trimmed


def require_unique(
    names: Iterable[str], who: str, allowed: str, remedy: str, where: str = ""
) -> None:
    """Raise `InvalidInputError` if a name occurs more than once."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        refuse(who, allowed, f"{listed(repeated)} more than once{where}", remedy)


def to_numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of kind "number" as float64, with NaN for missing values."""
    # safe=False: integers beyond 2⁵³ are rounded without an error.
    return np.array(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def level_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each value occurs, as text, without missing values."""
    found = pc.value_counts(pc.cast(column, pa.string()).drop_null())
    return dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))


def missing_counts(table: pa.Table, columns: Iterable[str]) -> dict[str, int]:
    """Return the number of missing values of each column that has any."""
    counts = {name: int(_is_missing(table, name).sum()) for name in columns}
    return {name: count for name, count in counts.items() if count}


def complete_rows(table: pa.Table, columns: Iterable[str]) -> NDArray[np.bool_]:
    """Return for each row whether it has a value in every one of the columns."""
    complete = np.ones(table.num_rows, dtype=np.bool_)
    for name in columns:
        complete &= ~_is_missing(table, name)
    return complete


def _is_missing(table: pa.Table, name: str) -> NDArray[np.bool_]:
    return np.asarray(pc.is_null(plain_values(table.column(name)), nan_is_null=True))


def drop_incomplete_rows(
    table: pa.Table,
    columns: Iterable[str],
    *,
    allowed: bool,
    remedy: str = "Leave out these rows with --drop-missing.",
) -> tuple[pa.Table, NDArray[np.int64], tuple[str, ...]]:
    """Return the rows without missing values, their indices, and notes; raise if not allowed."""
    counts = missing_counts(table, columns)
    if not counts:
        return table, np.arange(table.num_rows, dtype=np.int64), ()
    if not allowed:
        raise InvalidInputError(
            "Columns that are used must have a value in every row."
            f" Missing values: {counted(counts)}, of {table.num_rows:,} rows. {remedy}"
        )
    rows = np.flatnonzero(complete_rows(table, counts))
    dropped = plural(table.num_rows - len(rows), "row")
    note = f"Left out {dropped} with missing values: {counted(counts)}."
    return table.take(pa.array(rows)), rows, (note,)


def plain_values(column: Any) -> Any:
    """Return an array with its values instead of a dictionary of them, which may have nulls."""
    is_dictionary = pa.types.is_dictionary(column.type)
    return pc.cast(column, column.type.value_type) if is_dictionary else column


def drop_options(names: Iterable[str]) -> str:
    """Format ``--drop a --drop b``, quoted for a shell where needed."""
    return " ".join(f"--drop {quote(name)}" for name in names)
