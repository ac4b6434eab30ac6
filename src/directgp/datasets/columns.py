"""Decide what a column of a table holds, read its text as numbers or dates, find its gaps."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from directgp.errors import refuse
from directgp.text import NUMBER, listed, shell_word

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
    # An interval of months and days has no fixed length.
    is_time = types.is_temporal(data_type) and not types.is_interval(data_type)
    return "time" if is_time else "other"


MISSING = (*pyarrow.csv.ConvertOptions().null_values, "?")
"""Texts that stand for a missing value: the empty text, NA, N/A, NaN, null, ? and the like."""


def parse_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Trim a column of text; convert it to numbers if that uncovers missing values among them."""
    trimmed = trim(column)
    if trimmed.null_count == column.null_count:
        return trimmed
    try:
        return pc.cast(trimmed, pa.float64())
    except pa.ArrowInvalid:
        return trimmed


def trim(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as text without spaces around it; texts of `MISSING` become missing."""
    trimmed = pc.utf8_trim_whitespace(pc.cast(plain_values(column), pa.string()))
    missing = pc.is_in(trimmed, value_set=pa.array(MISSING))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)


Mark = Literal[".", ","]
"""A mark of decimals or of thousands."""

ISO = "%Y-%m-%d"
"""Format of dates and times of ISO 8601, such as 2020-12-31 and 2020-12-31T10:30:00Z."""


class NumberFormat(NamedTuple):
    """How the text of a column is read as numbers."""

    decimal: Mark = "."
    """Decimal mark."""

    dates: str = ""
    """`ISO` or a format of `strptime` for dates, read as days since 1970; empty for numbers."""

    boolean: bool = False
    """Whether true and false are 1 and 0."""


class ReadNumbers(NamedTuple):
    """The numbers of a column, of shape (n,)."""

    values: NDArray[np.float64]
    """The numbers; NaN where a text is missing or unparsable."""

    bad: NDArray[np.int64]
    """Rows with unparsable text."""

    unusual: str = ""
    """The first text with a separator or a sign of currency; empty without one."""

    distinct: int = 0
    """Number of different texts that are numbers."""


_MOSTLY = 0.8
"""A column is read as numbers if at least this share of its texts are numbers."""

_MOSTLY_CODES = 0.98
"""The share for few different numbers, which may be names of categories."""

_FEW_CODES = 10
"""Up to this many different numbers may be names of categories."""

MAX_LEVELS_ALWAYS = 50
"""A column of text may have this many levels in any number of rows."""


def guess_format(column: pa.ChunkedArray, decimals: Sequence[Mark]) -> NumberFormat | None:
    """Return how a column of text is read as numbers or dates; None if it has categories.

    If both decimal marks read equally many texts as numbers, take the first. Plain numbers that are
    stored as text are categories, unless there are many.

    Examples
    --------
    >>> guess_format(pa.chunked_array([["1,5", "2"]]), [".", ","])
    NumberFormat(decimal=',', dates='', boolean=False)
    >>> guess_format(pa.chunked_array([["31.12.2020", "1.2.2021"]]), ["."])
    NumberFormat(decimal='.', dates='%d.%m.%Y', boolean=False)
    >>> guess_format(pa.chunked_array([["red", "2"]]), ["."])
    """
    if pa.types.is_dictionary(column.type):
        return None
    formats = [NumberFormat(mark) for mark in decimals]
    read = {form: read_numbers(column, form) for form in formats}
    best = min(read, key=lambda form: len(read[form].bad))
    numbers = read[best]
    good = int(np.isfinite(numbers.values).sum())
    least = _MOSTLY if numbers.distinct > _FEW_CODES else _MOSTLY_CODES
    if good and good >= least * (good + len(numbers.bad)):
        # A text file would have been read as numbers.
        plain = best.decimal == decimals[0] and not numbers.unusual and not len(numbers.bad)
        return None if plain and numbers.distinct <= MAX_LEVELS_ALWAYS else best
    dates = guess_dates(column)
    return NumberFormat(dates=dates) if dates else None


def number_format(column: pa.ChunkedArray, decimals: Sequence[Mark]) -> NumberFormat | None:
    """Return how most texts of a column are read as numbers; None if none is a number."""
    read = {form: read_numbers(column, form) for form in map(NumberFormat, decimals)}
    best = min(read, key=lambda form: len(read[form].bad))
    return best if read[best].distinct else None


def read_numbers(column: pa.ChunkedArray, form: NumberFormat) -> ReadNumbers:
    """Return a column of numbers, times, text or no values as numbers; else raise `TypeError`."""
    kind = kind_of(column.type)
    if kind == "empty" or (kind == "number" and not form.dates):
        return ReadNumbers(to_numbers(column), np.empty(0, np.int64))
    if kind == "time" and form.dates:
        return ReadNumbers(_days(column), np.empty(0, np.int64))
    if kind != "category":
        raise TypeError(f"values of type {column.type}")
    coded = trim(column).combine_chunks().dictionary_encode()
    texts = coded.dictionary.to_pylist()
    one = _days_of_text if form.dates else number_of_text
    read = [one(text, form) for text in texts]
    # The last entry stands for missing text.
    values = np.array([np.nan if number is None else number[0] for number in read] + [np.nan])
    is_bad = np.array([number is None for number in read] + [False])
    codes = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    unusual = (text for text, number in zip(texts, read, strict=True) if number and number[1])
    distinct = sum(number is not None for number in read)
    return ReadNumbers(values[codes], np.flatnonzero(is_bad[codes]), next(unusual, ""), distinct)


_CURRENCY = r"(?:[$€£¥₹]|USD|EUR|GBP|CHF)"

_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}


@cache
def _number_pattern(decimal: str) -> re.Pattern[str]:
    """Return the pattern of a number with this decimal mark, and signs and separators."""
    marks = "".join(re.escape(mark) for mark in ".,'’ \u00a0\u202f" if mark != decimal)
    # A group of thousands does not begin with 0: 0.637 has a decimal point.
    whole = rf"[1-9]\d{{0,2}}(?P<mark>[{marks}])\d{{3}}(?:(?P=mark)\d{{3}})*|\d+"
    return re.compile(
        rf"(?P<bracket>\()?(?P<sign>[-+−]?\s*{_CURRENCY}?|{_CURRENCY}\s*[-+−])\s*(?P<whole>{whole})?"
        rf"(?P<rest>(?:{re.escape(decimal)}\d*)?(?:[eE][-+]?\d+)?)\s*(?:{_CURRENCY}|%)?(?(bracket)\))"
    )


def currencies(column: pa.ChunkedArray) -> list[str]:
    """Return the signs of currency in a column of text; USD is the same as $."""
    texts = trim(column).drop_null().unique().to_pylist()
    signs = {sign for text in texts for sign in re.findall(_CURRENCY, text)}
    return sorted({_SIGNS.get(sign, sign) for sign in signs})


def number_of_text(text: str, form: NumberFormat) -> tuple[float, bool] | None:
    """Return the number, and whether the text is unusual; None if it is no number."""
    if form.boolean and text.lower() in ("true", "false"):
        return float(text.lower() == "true"), False
    match = _number_pattern(form.decimal).fullmatch(text)
    if match is None:
        return None
    whole = re.sub(r"\D", "", match["whole"] or "")
    try:
        value = float(f"{whole}{match['rest'].replace(form.decimal, '.')}")
    except ValueError:
        return None
    minus = match["bracket"] or any(mark in match["sign"] for mark in "-−")
    unusual = "," in text or match["mark"] is not None or not NUMBER.fullmatch(text)
    return -value if minus else value, unusual


_DATES = (
    *(ISO, "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y", "%m.%d.%Y"),
    *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y"),
)
"""Formats of dates; of two that read as many, the first is taken."""

_TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S", "T%H:%M")
"""Formats of a time after a date."""

_DATES_TRIED = 200
"""Different texts from which the format of dates is guessed."""

_MAYBE_DATE = re.compile(r"\d.{4,}|\D+\s+\d.*", re.DOTALL)
"""Texts that a format may match; the check avoids slow failures of `strptime`."""


def guess_dates(column: pa.ChunkedArray) -> str:
    """Return the format of most texts; empty if they are not dates."""
    texts = trim(column).drop_null().unique().to_pylist()[:_DATES_TRIED]
    if sum(map(bool, map(_MAYBE_DATE.fullmatch, texts))) < _MOSTLY * len(texts):
        return ""
    formats = [NumberFormat(dates=date + time) for date in _DATES for time in _TIMES]
    counts = {form: sum(_days_of_text(t, form) is not None for t in texts) for form in formats}
    best = max(counts, key=lambda form: counts[form])
    return best.dates if texts and counts[best] >= _MOSTLY * len(texts) else ""


def other_order(column: pa.ChunkedArray, form: NumberFormat) -> NumberFormat | None:
    """Return the format with day and month swapped if it also reads most dates, else None."""
    dates = re.sub(r"^(%[dm])([-/.])(%[dm])", r"\3\2\1", form.dates)
    if dates == form.dates:
        return None
    read = read_numbers(column, swapped := NumberFormat(dates=dates))
    good = int(np.isfinite(read.values).sum())
    return swapped if good >= _MOSTLY * (good + len(read.bad)) else None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Day 0."""

_DAY = 86_400.0
"""Seconds of a day."""


def _days_of_text(text: str, form: NumberFormat) -> tuple[float, bool] | None:
    """Return the days since 1970; None if the text is no date of the format."""
    date = None
    if form.dates == ISO:
        with suppress(ValueError):
            date = datetime.fromisoformat(text)
    try:
        # Unlike ISO 8601, `strptime` allows 2020-1-1.
        date = date or datetime.strptime(text, form.dates)
    except ValueError:
        return None
    return (date.replace(tzinfo=date.tzinfo or UTC) - _EPOCH).total_seconds() / _DAY, True


def _days(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return the days since 1970 of dates, or the days of times and durations."""
    kind = column.type
    if pa.types.is_date(kind):
        column = pc.cast(column, pa.timestamp("s"))
    elif pa.types.is_time(kind):
        column = pc.cast(pc.cast(column, pa.time64("ns")), pa.int64())
        return to_numbers(column) / (1e9 * _DAY)
    per_second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[column.type.unit]
    return to_numbers(pc.cast(column, pa.int64())) / (per_second * _DAY)


def shown_value(value: pa.Scalar) -> str:
    """Return a value as text; Python has no time before the year 1 or after 9999."""
    try:
        return str(value.as_py())
    except (ArithmeticError, ValueError, LookupError, pa.ArrowException):
        return f"a value of type {value.type}"


def require_unique(
    names: Iterable[str], who: str, allowed: str, remedy: str, where: str = ""
) -> None:
    """Raise `InvalidInputError` if a name occurs more than once."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        refuse(who, allowed, f"{listed(repeated)} more than once{where}", remedy)


def to_numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of kind "number" or "empty" as float64, with NaN for missing values."""
    # safe=False: integers beyond 2⁵³ are rounded without an error.
    return np.array(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def level_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each value occurs, as text, without missing values."""
    counts = pc.value_counts(pc.cast(column, pa.string()).drop_null())
    return dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))


def missing_counts(table: pa.Table, columns: Iterable[str]) -> dict[str, int]:
    """Return the number of missing values of each column that has any."""
    counts = {name: int(is_missing(table.column(name)).sum()) for name in columns}
    return {name: count for name, count in counts.items() if count}


def complete_rows(table: pa.Table, columns: Iterable[str]) -> NDArray[np.bool_]:
    """Return for each row whether it has a value in every one of the columns."""
    complete = np.ones(table.num_rows, dtype=np.bool_)
    for name in columns:
        complete &= ~is_missing(table.column(name))
    return complete


def is_missing(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for each row whether it has no value, or NaN."""
    return np.asarray(pc.is_null(plain_values(column), nan_is_null=True))


def plain_values(column: Any) -> Any:
    """Return an array with its values instead of a dictionary of them, which may have nulls."""
    is_dictionary = pa.types.is_dictionary(column.type)
    return pc.cast(column, column.type.value_type) if is_dictionary else column


def drop_options(names: Collection[str]) -> str:
    """Format ``--drop a --drop b``, quoted for a shell where needed."""
    return " ".join(f"--drop {shell_word(name)}" for name in names)
