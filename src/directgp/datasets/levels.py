"""Read the levels of categories and groups by value: text, or numbers."""

from collections.abc import Sequence
from decimal import Decimal
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.columns import (
    Mark,
    NumberFormat,
    is_missing,
    kind_of,
    number_of_text,
    plain_values,
    trim,
)

Level = int | float | str
"""A value of a category or a group."""

UNSEEN = -1.0
"""Code of a level that training did not have."""


_MAX_WHOLE = 2.0**63
"""Whole numbers of this size stay floats, as Arrow has no such integers."""


class CodedLevels(NamedTuple):
    """The codes of a column of n rows."""

    codes: NDArray[np.float64]
    """Of shape (n,): 0, 1, … for levels, `UNSEEN` for other values, NaN for missing ones."""

    unseen: list[tuple[Level, NDArray[np.int64]]]
    """Values that are no levels, and the rows that have them."""


def level_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return numbers unchanged, true and false as 1 and 0, and other values as trimmed text."""
    values = plain_values(column)
    if kind_of(values.type) != "number":
        return trim(values)
    return pc.cast(values, pa.int64()) if pa.types.is_boolean(values.type) else values


def learn_levels(column: pa.ChunkedArray) -> tuple[Level, ...]:
    """Return the different values of a column in order, without missing values.

    Examples
    --------
    >>> learn_levels(pa.chunked_array([[" b", "a", "NA", "b"]]))
    ('a', 'b')
    >>> learn_levels(pa.chunked_array([[7.0, None, 2.5]]))
    (2.5, 7)
    """
    values = level_values(column)
    present = values.filter(pa.array(~is_missing(values)))
    return tuple(sorted(map(_plain, present.unique().to_pylist())))


def code_levels(
    column: pa.ChunkedArray, levels: Sequence[Level], decimal: Mark = "."
) -> CodedLevels:
    """Return the code of the level of each row: its position in `levels`.

    If the levels are numbers, text is read as numbers with this decimal mark.
    """
    is_text = any(isinstance(level, str) for level in levels)
    values = trim(column) if is_text else level_values(column)
    coded = values.combine_chunks().dictionary_encode()
    distinct = [_plain(value) for value in coded.dictionary.to_pylist()]
    if not is_text:
        distinct = [_value_of_text(v, decimal) if isinstance(v, str) else v for v in distinct]
    code_of = {level: float(code) for code, level in enumerate(levels)}
    # The last code is that of missing values; NaN is a value for Arrow.
    codes_of_values = [np.nan if v != v else code_of.get(v, UNSEEN) for v in distinct]
    places = coded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    codes = np.array([*codes_of_values, np.nan])[places]
    rows = np.flatnonzero(codes == UNSEEN)
    order = np.argsort(places[rows], kind="stable")
    starts = np.flatnonzero(np.diff(places[rows][order])) + 1
    groups = [group for group in np.split(rows[order], starts) if len(group)]
    return CodedLevels(codes, [(distinct[places[group[0]]], group) for group in groups])


def levels_of_codes(codes: NDArray[np.float64], levels: Sequence[Level]) -> pa.Array:
    """Return the levels of codes: null for NaN, and another value than all levels for `UNSEEN`."""
    missing = np.isnan(codes)
    places = np.where(missing | (codes < 0), len(levels), codes).astype(np.int64)
    used = {*levels}
    if any(isinstance(level, str) for level in levels):
        other: Level = next(f"(new {k})" for k in count(1) if f"(new {k})" not in used)
    else:
        other = next(k for k in count() if k not in used)
    return pa.array([*levels, other]).take(pa.array(places, mask=missing))


def _plain(value: Any) -> Any:
    """Return a whole number as an int, another number as a float, and text unchanged."""
    if isinstance(value, float | Decimal):
        number = float(value)
        return int(value) if number.is_integer() and abs(number) < _MAX_WHOLE else number
    return value


def _value_of_text(text: str, decimal: Mark) -> Level:
    """Return the number that a text is; another text unchanged."""
    if text.isascii() and text.isdigit():
        # Identifiers may have more digits than a float.
        return int(text)
    number = number_of_text(text, NumberFormat(decimal, boolean=True))
    value: Level = text if number is None else _plain(number[0])
    return value
