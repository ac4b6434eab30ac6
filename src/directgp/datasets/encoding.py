"""Encode the columns of a table as numeric features."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal, NamedTuple, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from typing_extensions import override

from directgp.datasets.columns import (
    ISO,
    MAX_LEVELS_ALWAYS,
    Mark,
    NumberFormat,
    drop_options,
    is_missing,
    kind_of,
    level_counts,
    read_numbers,
    require_unique,
    to_numbers,
    trim,
)
from directgp.datasets.levels import (
    UNSEEN,
    code_levels,
    learn_levels,
    level_values,
    levels_of_codes,
)
from directgp.errors import InvalidInputError, InvalidTableError, TableProblem, refuse
from directgp.registry import ColumnKind, Missing
from directgp.text import number, plural, suggestion, visible

_ROWS_PER_LEVEL = 20
"""A column with more levels than usual needs this many rows for each of them."""

_MAX_LEVELS = 500
"""Largest number of levels of a category."""

_MAX_REASONS = 8
"""Largest number of reasons that are stored for a row; more are counted."""

MISSING_LEVEL = "(missing)"
"""Name of the level of missing values."""


LEVEL_KINDS: tuple[ColumnKind, ...] = ("category", "group")
"""Kinds of columns whose values are levels."""

_MAX_DAYS = 2_932_896.0
"""Days from 1970 to the year 9999; Python has no later dates."""

_MIN_DAYS = -719_162.0
"""Days from 1970 to the year 1."""

_MICROSECONDS_OF_DAY = 86_400_000_000
"""Microseconds of a day."""


class Fault(NamedTuple):
    """A fault of a column of new data, and the rows that have it."""

    rows: NDArray[np.int64]
    """Rows with the fault."""

    reason: str
    """Sentence on one of these rows, without a full stop."""

    usable: bool
    """Whether the features are filled nevertheless."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class _Numbers(_Record):
    """A column of numbers, used unchanged; dates are days since 1970."""

    name: str
    """Name of the column."""

    decimal: Literal[".", ","] = "."
    """Decimal mark of text in training, as in `NumberFormat`."""

    dates: str = ""
    """Format of dates in training, as in `NumberFormat`."""

    boolean: bool = False
    """Whether the column is true and false, as 1 and 0."""

    imputed: bool = False
    """Whether missing values are NaN in the features; otherwise their rows cannot be used."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of the column."""
        return (self.name,)

    @property
    def verbatim(self) -> bool:
        """Whether a text file has to be read as text, not as numbers with a decimal point."""
        return self.decimal != "." or self.dates not in ("", ISO)

    def fill(
        self, column: pa.ChunkedArray, features: NDArray[np.float64], decimal: Mark | None
    ) -> Iterator[Fault]:
        """Write the values to the features, of shape (n, 1), and yield the faults.

        Text is read with this decimal mark or the mark of training, if that reads more numbers.
        """
        allowed = "dates" if self.dates else "numbers"
        marks = dict.fromkeys((decimal or self.decimal, self.decimal))
        try:
            forms = [NumberFormat(mark, self.dates, self.boolean) for mark in marks]
            read = min((read_numbers(column, form) for form in forms), key=lambda r: len(r.bad))
        except TypeError as error:
            refuse(f"Column {self.name!r}", f"{allowed}, as in training", str(error))
        texts = column.take(pa.array(read.bad)).to_pylist()
        taken = " (predicted as missing)" if self.imputed else ""
        for row, text in zip(read.bad, texts, strict=True):
            reason = f"{self.name} is {text!r}, which is not a {allowed.removesuffix('s')}{taken}"
            yield Fault(np.array([row]), reason, self.imputed)
        infinite = np.isinf(read.values)
        missing = np.isnan(read.values)
        missing[read.bad] = False
        if infinite.any():
            yield Fault(np.flatnonzero(infinite), f"{self.name} is infinite", False)
        if missing.any() and not self.imputed:
            yield Fault(np.flatnonzero(missing), f"{self.name} is missing", False)
        features[:, 0] = np.where(infinite, np.nan, read.values)

    def arrays(self, features: NDArray[np.float64]) -> list[pa.Array]:
        """Return the features for an estimator."""
        return [pa.array(features[:, 0])]


@final
class NumberColumn(_Numbers):
    """A column of numbers, used unchanged; dates are days since 1970."""

    kind: Literal["number"] = "number"
    """Tag in a file."""

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kind of the feature."""
        return {self.name: "number"}


@final
class TimeColumn(_Numbers):
    """A column of times: dates, which estimators get as dates, or numbers."""

    kind: Literal["time"] = "time"
    """Tag in a file."""

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kind of the feature."""
        return {self.name: "time"}

    @override
    def fill(
        self, column: pa.ChunkedArray, features: NDArray[np.float64], decimal: Mark | None
    ) -> Iterator[Fault]:
        """Write the values to the features, of shape (n, 1), and yield the faults."""
        yield from super().fill(column, features, decimal)
        if self.dates:
            days = features[:, 0]
            late = (days < _MIN_DAYS) | (days > _MAX_DAYS)
            features[late, 0] = np.nan
            if late.any():
                reason = f"{self.name} is not between the years 1 and 9999"
                yield Fault(np.flatnonzero(late), reason, False)

    @override
    def arrays(self, features: NDArray[np.float64]) -> list[pa.Array]:
        """Return dates and times, or numbers, for an estimator."""
        if not self.dates:
            return super().arrays(features)
        days = features[:, 0]
        missing = np.isnan(days)
        since = np.rint(np.where(missing, 0.0, days) * _MICROSECONDS_OF_DAY).astype(np.int64)
        return [pa.array(since, pa.timestamp("us"), mask=missing)]


@final
class PlaceColumn(_Numbers):
    """A column of latitudes or longitudes in degrees."""

    kind: Literal["place"] = "place"
    """Tag in a file."""

    largest: Literal[90, 360]
    """Largest magnitude: 90 of a latitude, 360 of a longitude."""

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kind of the feature."""
        return {self.name: "place"}

    @property
    def angles(self) -> str:
        """What the values are, in words."""
        return "latitude" if self.largest == 90 else "longitude"

    @override
    def fill(
        self, column: pa.ChunkedArray, features: NDArray[np.float64], decimal: Mark | None
    ) -> Iterator[Fault]:
        """Write the values to the features, of shape (n, 1), and yield the faults."""
        yield from super().fill(column, features, decimal)
        for row in np.flatnonzero(np.abs(features[:, 0]) > self.largest).tolist():
            got = f"{self.name} is {number(features[row, 0])}"
            reason = f"{got}, not a {self.angles} from −{self.largest} to {self.largest} degrees"
            features[row, 0] = np.nan
            yield Fault(np.array([row]), reason, False)


@final
class CategoryColumn(_Record):
    """A column of L categories, encoded as L − 1 columns of 0 and 1."""

    kind: Literal["category"] = "category"
    """Tag in a file."""

    name: str
    """Name of the column."""

    base: str
    """The level whose columns are all 0: the most frequent one."""

    levels: tuple[str, ...]
    """The other levels, each with a column that is 1 where it occurs."""

    imputed: bool = False
    """Whether missing values are a level, or the base level if there were none in training."""

    @property
    def verbatim(self) -> bool:
        """Whether a text file has to be read as text: the level 007 is no number."""
        return True

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names such as ``sex=M``, one for each level but the base."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kinds of the features."""
        return dict.fromkeys(self.feature_names, "number")

    def fill(
        self, column: pa.ChunkedArray, features: NDArray[np.float64], _decimal: Mark | None
    ) -> Iterator[Fault]:
        """Write the 0/1 columns to the features, which start at 0, and yield the faults."""
        _check_has_levels(self.name, column)
        levels = [self.base, *self.levels]
        coded = code_levels(column, levels)
        missing = np.isnan(coded.codes)
        level = np.where(missing, UNSEEN, coded.codes).astype(np.int64)
        if MISSING_LEVEL in levels:
            level = np.where(missing, levels.index(MISSING_LEVEL), level)
        elif missing.any():
            used = f" (predicted as {self.base!r})" if self.imputed else ""
            yield Fault(np.flatnonzero(missing), f"{self.name} is missing{used}", self.imputed)
        for value, rows in coded.unseen:
            why = f"{self.name} is {value!r}, not seen in training (predicted as {self.base!r})"
            yield Fault(rows, why, True)
        rows = np.flatnonzero(level > 0)
        features[rows, level[rows] - 1] = 1.0

    def arrays(self, features: NDArray[np.float64]) -> list[pa.Array]:
        """Return the features for an estimator."""
        return [pa.array(feature) for feature in features.T]


@final
class LevelColumn(_Record):
    """A column of levels of a category or a group, encoded as one column of codes."""

    kind: Literal["level"] = "level"
    """Tag in a file."""

    name: str
    """Name of the column."""

    use: Literal["category", "group"]
    """What the levels are for an estimator."""

    levels: tuple[int | FiniteFloat | str, ...]
    """The levels in order, all text or all numbers; their codes are 0, 1, …"""

    decimal: Literal[".", ","] = "."
    """Decimal mark of numbers in text."""

    imputed: bool = False
    """Whether missing values are a level, or an unseen one if there were none in training."""

    gaps: bool = False
    """Whether values were missing in training."""

    @model_validator(mode="after")
    def _of_one_type(self) -> "LevelColumn":
        if len({isinstance(level, str) for level in self.levels}) != 1:
            raise ValueError("levels of a column are not all text or all numbers")
        return self

    @property
    def verbatim(self) -> bool:
        """Whether a text file has to be read as text: the level 007 is no number."""
        return isinstance(self.levels[0], str)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of the column."""
        return (self.name,)

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kind of the feature."""
        return {self.name: self.use}

    def fill(
        self, column: pa.ChunkedArray, features: NDArray[np.float64], decimal: Mark | None
    ) -> Iterator[Fault]:
        """Write the codes to the features, of shape (n, 1), and yield the faults.

        A level that training did not have is `UNSEEN`; a missing one is NaN if training had some.
        """
        _check_has_levels(self.name, column)
        coded = code_levels(column, self.levels, decimal or self.decimal)
        for value, rows in coded.unseen:
            reason = f"{self.name} is {value!r}, not seen in training (predicted as a new level)"
            yield Fault(rows, reason, True)
        missing = np.isnan(coded.codes)
        features[:, 0] = coded.codes
        if missing.any() and not self.gaps:
            taken = " (predicted as a new level)" if self.imputed else ""
            yield Fault(np.flatnonzero(missing), f"{self.name} is missing{taken}", self.imputed)
            features[missing, 0] = UNSEEN

    def arrays(self, features: NDArray[np.float64]) -> list[pa.Array]:
        """Return the levels for an estimator, null where they are missing."""
        return [levels_of_codes(features[:, 0], self.levels)]


def _check_has_levels(name: str, column: pa.ChunkedArray) -> None:
    """Raise `InvalidInputError` for lists and the like."""
    if kind_of(column.type) == "other":
        got = f"values of type {column.type}"
        refuse(f"Column {name!r}", "categories, as in training", got)


@contextmanager
def collected(problems: list[TableProblem]) -> Iterator[None]:
    """Add the problems of an `InvalidInputError` to a list instead of raising it."""
    try:
        yield
    except InvalidTableError as error:
        problems += error.problems
    except InvalidInputError as error:
        problems.append(TableProblem(str(error)))


AnyColumn = NumberColumn | TimeColumn | PlaceColumn | CategoryColumn | LevelColumn

Column = Annotated[AnyColumn, Field(discriminator="kind")]


@final
class RowReasons(Mapping[int, str]):
    """Faults by row; a row of a wide table may have thousands."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._more: Counter[int] = Counter()

    def add(self, rows: Iterable[int], reason: str) -> None:
        """Add a reason to rows."""
        reason = visible(reason)
        for row in rows:
            reasons = self._texts.setdefault(row, [])
            if len(reasons) < _MAX_REASONS:
                reasons.append(reason)
            else:
                self._more[row] += 1

    @override
    def __getitem__(self, row: int) -> str:
        more = self._more[row]
        return "; ".join([*self._texts[row], *([f"and {more:,} more"] if more else [])])

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    @override
    def __len__(self) -> int:
        return len(self._texts)


class EncodedRows(NamedTuple):
    """The features of the rows of a table, and the faults of rows."""

    X: NDArray[np.float64]
    """Of shape (n, d), with NaN where a number is missing."""

    usable: NDArray[np.bool_]
    """Whether each row can be used."""

    reasons: RowReasons


@final
class Encoding(_Record):
    """Turns the columns of a table into features.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"size": [3.0, 1.0, 2.0], "sex": ["F", "M", "F"]})
    >>> encoding = Encoding.learn(table)
    >>> encoding.feature_names
    ('size', 'sex=M')
    >>> encoding.apply(table).tolist()
    [[3.0, 0.0], [1.0, 1.0], [2.0, 0.0]]
    """

    columns: tuple[Column, ...]

    @classmethod
    def learn(
        cls,
        table: pa.Table,
        formats: Mapping[str, NumberFormat] | None = None,
        missing: Missing = "error",
        row_numbers: NDArray[np.int64] | None = None,
        kinds: Mapping[str, ColumnKind] | None = None,
    ) -> "Encoding":
        """Return the encoding of columns of numbers and categories.

        A column that has only one value is left out. `formats` says how the text of columns was
        read as numbers. `row_numbers` are those of the rows in their file, for errors; 1, 2, … by
        default. `kinds` are those of some columns; text without a kind has 0/1 columns.
        """
        if row_numbers is None:
            row_numbers = np.arange(1, table.num_rows + 1)
        columns = list[AnyColumn]()
        problems = list[TableProblem]()
        place = [name for name, kind in (kinds or {}).items() if kind == "place"]
        latitude = latitude_of(place) if place else None
        for name in table.column_names:
            with collected(problems):
                form = (formats or {}).get(name, NumberFormat())
                values = table.column(name)
                use = (kinds or {}).get(name, "number")
                column = _learn_column(name, values, use, form, missing, row_numbers)
                if isinstance(column, NumberColumn) and use == "place":
                    column = _as_place(column, values, row_numbers, name == latitude)
                columns += [] if column is None else [column]
        if problems:
            raise InvalidTableError(problems)
        encoding = cls(columns=tuple(columns))
        who = "Names of features"
        allowed = "different after categories are encoded"
        require_unique(encoding.feature_names, who, allowed, "Rename the column of that name.")
        return encoding

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, one for each column of X."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kind of each feature; of a place the latitude is first."""
        latitudes = [c for c in self.columns if isinstance(c, PlaceColumn) and c.largest == 90]
        columns = (*latitudes, *self.columns)
        return {name: kind for column in columns for name, kind in column.kinds.items()}

    @property
    def plain(self) -> bool:
        """Whether every feature is a number."""
        return {*self.kinds.values()} <= {"number"}

    @property
    def verbatim(self) -> tuple[str, ...]:
        """The columns that are read from a text file as text."""
        return tuple(column.name for column in self.columns if column.verbatim)

    def encode(self, table: pa.Table, decimal: Mark | None = None) -> EncodedRows:
        """Return the features of a table, which rows can be used, and the faults of the others.

        Columns are found by name, in any order; other columns are ignored. `decimal` is the decimal
        mark of numbers in text, by default the mark of training.
        """
        columns_of_table = dict.fromkeys(table.column_names)
        absent = next((name for name in self.column_names if name not in columns_of_table), None)
        if absent is not None:
            raise InvalidInputError(
                f"The table must have all columns used in training. Got no {absent!r}."
                f" {suggestion(absent, columns_of_table, 'Its columns')}"
            )
        features = np.zeros((table.num_rows, len(self.feature_names)))
        start = 0
        usable = np.ones(table.num_rows, np.bool_)
        reasons = RowReasons()
        for column in self.columns:
            stop = start + len(column.feature_names)
            part = features[:, start:stop]
            for fault in column.fill(table.column(column.name), part, decimal):
                if not fault.usable:
                    usable[fault.rows] = False
                reasons.add(fault.rows.tolist(), fault.reason)
            start = stop
        return EncodedRows(features, usable, reasons)

    def table(self, features: NDArray[np.float64]) -> pa.Table:
        """Return features, of shape (n, d), as a table for an estimator: with levels and dates."""
        arrays = []
        start = 0
        for column in self.columns:
            stop = start + len(column.feature_names)
            arrays += column.arrays(features[:, start:stop])
            start = stop
        return pa.table(arrays, names=list(self.feature_names))

    def apply(self, table: pa.Table) -> NDArray[np.float64]:
        """Return the features of a table, of shape (n, d); raise for rows that cannot be used."""
        encoded = self.encode(table)
        if encoded.reasons:
            first = min(encoded.reasons)
            others = len(encoded.reasons) - 1
            got = f"row {first + 1}, where {encoded.reasons[first]}"
            got += f", and {plural(others, 'other row')}" if others else ""
            refuse("Rows", "as in training", got, "Correct or remove such rows.")
        return encoded.X


def _learn_column(
    name: str,
    column: pa.ChunkedArray,
    use: ColumnKind,
    form: NumberFormat,
    missing: Missing,
    row_numbers: NDArray[np.int64],
) -> AnyColumn | None:
    """Return how a column is encoded, a place as numbers; None if it has only one value."""
    if use == "category" or use == "group":
        return _learn_levels(name, column, use, form, missing, row_numbers)
    learned = _learn_plain(name, column, form, missing, row_numbers)
    if use == "time" and isinstance(learned, NumberColumn):
        return _as_time(learned, column, row_numbers)
    return learned


def _learn_plain(
    name: str,
    column: pa.ChunkedArray,
    form: NumberFormat,
    missing: Missing,
    row_numbers: NDArray[np.int64],
) -> NumberColumn | CategoryColumn | None:
    """Return how a column of numbers or categories is encoded; None if it has only one value."""
    if kind_of(column.type) == "number":
        values = to_numbers(column)
        _check_finite(name, values, row_numbers)
        present = values[~np.isnan(values)]
        constant = len(present) == len(values) and (present == present[:1]).all()
        if constant:
            return None
        return NumberColumn(
            name=name,
            decimal=form.decimal,
            dates=form.dates,
            boolean=pa.types.is_boolean(column.type),
            imputed=missing == "impute",
        )
    text = trim(column)
    counts = level_counts(text)
    rows = len(text) - text.null_count
    if not recurs(len(counts), rows):
        sentence = (
            f"Column {name!r} must be of categories that recur. Got {len(counts):,} different texts"
            f" in {rows:,} rows, such as {next(iter(counts))!r}. Leave out identifiers and free"
            f" text with {drop_options([name])}."
        )
        raise InvalidTableError([TableProblem(sentence, {"--drop": (name,)})])
    imputed = missing in ("level", "impute")
    if text.null_count and imputed:
        counts[MISSING_LEVEL] = text.null_count
    if len(counts) < 2:
        return None
    base = min(counts, key=lambda level: (-counts[level], level))
    levels = tuple(sorted(level for level in counts if level != base))
    return CategoryColumn(name=name, base=base, levels=levels, imputed=imputed)


def recurs(num_levels: int, rows: int) -> bool:
    """Return whether the levels of a column of text are few, and do not differ in every row."""
    few = num_levels <= MAX_LEVELS_ALWAYS or num_levels <= min(rows / _ROWS_PER_LEVEL, _MAX_LEVELS)
    return few and not num_levels == rows > 2


def _check_finite(name: str, values: NDArray[np.float64], row_numbers: NDArray[np.int64]) -> None:
    """Raise `InvalidTableError` with the first row that is infinite."""
    infinite = np.isinf(values)
    if infinite.any():
        row = int(infinite.argmax())
        got = f"{number(values[row])} in row {row_numbers[row]:,}"
        sentence = f"Column {name!r} must be finite. Got {got}. Correct it, or drop the column."
        raise InvalidTableError([TableProblem(sentence, {"--drop": (name,)})])


def _learn_levels(
    name: str,
    column: pa.ChunkedArray,
    use: Literal["category", "group"],
    form: NumberFormat,
    missing: Missing,
    row_numbers: NDArray[np.int64],
) -> LevelColumn | None:
    """Return the levels of a category or a group; None if it has only one value."""
    values = level_values(column)
    if kind_of(values.type) == "number":
        _check_finite(name, to_numbers(values), row_numbers)
    levels = learn_levels(values)
    imputed = missing in ("level", "impute")
    gaps = imputed and bool(is_missing(values).any())
    if len(levels) + gaps < 2:
        return None
    return LevelColumn(
        name=name, use=use, levels=levels, decimal=form.decimal, imputed=imputed, gaps=gaps
    )


def _as_time(
    column: NumberColumn, values: pa.ChunkedArray, row_numbers: NDArray[np.int64]
) -> TimeColumn:
    """Return a column of times; raise `InvalidTableError` for dates that Python does not have."""
    days = to_numbers(values)
    wrong = np.flatnonzero((days < _MIN_DAYS) | (days > _MAX_DAYS))
    if column.dates and len(wrong):
        sentence = (
            f"Column {column.name!r} must be of dates from the year 1 to 9999. Got another in row"
            f" {row_numbers[wrong[0]]:,}. Correct it, or drop the column."
        )
        raise InvalidTableError([TableProblem(sentence, {"--drop": (column.name,)})])
    return TimeColumn(**column.model_dump(exclude={"kind"}))


def latitude_of(names: Sequence[str]) -> str:
    """Return which column of a place is the latitude: by its name, else the first.

    The rule is that of the estimators.
    """
    first, second = names
    longitude_first = first.lower().startswith(("lon", "lng"))
    latitude_second = second.lower().startswith("lat") and not first.lower().startswith("lat")
    return second if longitude_first or latitude_second else first


def _as_place(
    column: NumberColumn, values: pa.ChunkedArray, row_numbers: NDArray[np.int64], latitude: bool
) -> PlaceColumn:
    """Return a column of angles; raise `InvalidTableError` for one that is too large."""
    place = PlaceColumn(**column.model_dump(exclude={"kind"}), largest=90 if latitude else 360)
    degrees = to_numbers(values)
    wrong = np.flatnonzero(np.abs(degrees) > place.largest)
    if len(wrong):
        sentence = (
            f"Column {column.name!r} of --columns must be {place.angles}s from −{place.largest} to"
            f" {place.largest} degrees. Got {number(degrees[wrong[0]])} in row"
            f" {row_numbers[wrong[0]]:,}. Correct it, or use --columns without a place."
        )
        raise InvalidTableError([TableProblem(sentence)])
    return place
