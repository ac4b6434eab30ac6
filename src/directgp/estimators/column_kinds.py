"""Learn the kinds of the columns of a table, and encode its dates and levels as numbers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal, final, get_args

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from directgp.errors import InvalidInputError, refuse, require
from directgp.estimators.table_columns import MICROSECONDS, TableColumn
from directgp.estimators.validation import is_missing
from directgp.registry import ColumnKind
from directgp.text import did_you_mean, number

Values = Float64[np.ndarray, " n"]

Level = bool | int | float | str | None
"""A value of a category or a group; None is a missing value that training had, too."""

Unit = Literal["", "days", "degrees north", "degrees east"]
"""Unit of a column: days since 1970 of dates, degrees of a latitude or a longitude."""

CODED: tuple[ColumnKind, ...] = ("category", "group")
"""Kinds whose values are codes of levels."""

UNSEEN = -1.0
"""Code of a level that training did not have."""

_KINDS: tuple[str, ...] = get_args(ColumnKind)

_DAY = timedelta(days=1)

_MICROSECONDS_OF_DAY = 86_400_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Day 0."""

_LATITUDES = ("lat", "latitude")
"""Names of columns that are taken for latitudes."""

_LONGITUDES = ("lon", "lng", "longitude")
"""Names of columns that are taken for longitudes."""

_LARGEST_ANGLES: dict[Unit, float] = {"degrees north": 90.0, "degrees east": 360.0}
"""Largest magnitude of a latitude and of a longitude."""

_MIN_LEVELS = 50
"""Number of levels above which a column of text may identify rows."""

_MIN_SHARE = 0.5
"""Share of distinct values above which it does."""


@final
@dataclass(frozen=True)
class EncodedColumn:
    """A column of the training table, and how its values become numbers."""

    name: str
    """Name of the column; "column 0" and so on for an array."""

    kind: ColumnKind = "number"
    """What the values are."""

    unit: Unit = ""
    """Unit of the numbers; empty for the unit of the user."""

    levels: tuple[Level, ...] = ()
    """Levels of a category or a group, in the order of their codes 0, 1, 2, …"""

    @cached_property
    def _codes(self) -> dict[Level, float]:
        # 1, 1.0 and True are the same level, as they are the same key.
        return {level: float(code) for code, level in enumerate(self.levels)}

    @property
    def coded(self) -> bool:
        """Whether the values are codes of levels."""
        return self.kind in CODED

    @property
    def has_dates(self) -> bool:
        """Whether all levels are dates or times of ISO 8601."""
        texts = [level for level in self.levels if isinstance(level, str)]
        present = [level for level in self.levels if level is not None]
        return bool(texts) and len(texts) == len(present) and all(map(_moment_of_text, texts))

    def encoded(self, column: TableColumn, who: str, gaps: bool) -> Values:
        """Return the numbers of a column of new rows; NaN for gaps.

        With `gaps`, a missing level has a code, too.
        """
        if self.coded:
            return self._codes_of(column.values, gaps)
        if self.kind == "time" and self.unit == "days":
            return _days(column, who)
        values = _numbers(column, self.kind, who)
        if self.kind == "place":
            self._check_angles(values, column.name, who)
        return values

    def _codes_of(self, values: NDArray[Any], gaps: bool) -> Values:
        missing = self._codes.get(None, UNSEEN) if gaps else np.nan

        def code(level: Level) -> float:
            if level is None:
                return missing
            if isinstance(level, float) and np.isinf(level):
                # It is an error, which the checks of numbers raise.
                return level
            return self._codes.get(level, UNSEEN)

        levels, places = _distinct(values)
        codes = np.array([code(level) for level in levels], dtype=np.float64)
        return codes[places]

    def _check_angles(self, values: Values, name: Any, who: str) -> None:
        """Raise `InvalidInputError` for a latitude beyond ±90, or a longitude beyond ±360."""
        largest = _LARGEST_ANGLES[self.unit]
        bad = np.flatnonzero(np.isfinite(values) & (np.abs(values) > largest))
        if len(bad):
            what = "latitudes" if self.unit == "degrees north" else "longitudes"
            got = f"{values[bad[0]].item()!r} in row {bad[0]}"
            got += f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            remedy = f"Correct it, or fit with columns={{{name!r}: 'number', …}}."
            allowed = f"{what} from {-largest:g} to {largest:g} degrees"
            refuse(f"column {name!r} of X of {who}", allowed, got, remedy)

    def shown(self, value: float) -> str:
        """Return a number of the column as text: the level, the date, or the number."""
        if self.coded:
            code = round(value)
            if not 0 <= code < len(self.levels):
                return "an unseen level"
            level = self.levels[code]
            return "missing" if level is None else str(level)
        if self.unit == "days":
            try:
                moment = _EPOCH + value * _DAY
            except OverflowError:
                return number(value, 4)
            return moment.strftime("%Y-%m-%d" if moment.time() == time() else "%Y-%m-%d %H:%M")
        return number(value, 4)


@final
@dataclass(frozen=True)
class ColumnKinds:
    """The columns of the training table, of which at least one is more than a plain number."""

    columns: tuple[EncodedColumn, ...]
    """The columns, in order."""

    @classmethod
    def learned(
        cls, table: Sequence[TableColumn], given: Any, who: str, *, named: bool, gaps: bool
    ) -> "ColumnKinds | None":
        """Return the kinds of the columns of a table; None if all are plain numbers.

        Kinds that are not given follow from the types of the columns. The columns of an array
        (`named` is False) are numbers unless a kind is given.
        """
        declared: Mapping[Any, ColumnKind] = {} if isinstance(given, str) else given
        places = [column.name for column in table]
        _check_names(declared, places, who, named)
        kinds: list[ColumnKind] = [
            declared.get(column.name, _kind_of_type(column) if named else "number")
            for column in table
        ]
        names = [str(place) if named else f"column {place}" for place in places]
        angles: dict[int, Unit] = {}
        if "place" in kinds:
            # The order of the mapping is the order of the user.
            order = [places.index(name) for name, kind in declared.items() if kind == "place"]
            angles = _units_of_place(order, names)
        elif named:
            free = [places[j] not in declared and kinds[j] == "number" for j in range(len(table))]
            angles = _guessed_place(table, free)
        if set(kinds) <= {"number"} and not angles:
            return None
        require_different(names, who)
        return cls(
            tuple(
                EncodedColumn(names[j], "place", angles[j])
                if j in angles
                else _learned(column, names[j], kinds[j], gaps)
                for j, column in enumerate(table)
            )
        )

    @classmethod
    def joined(cls, parts: Iterable["ColumnKinds | None"]) -> "ColumnKinds | None":
        """Return the kinds of the first of several outputs, with the levels of all of them."""
        tables = [part for part in parts if part is not None]
        if not tables:
            return None
        columns = [
            replace(first, levels=_sorted(level for column in columns for level in column.levels))
            for first, *columns in (
                (same[0], *same) for same in zip(*(table.columns for table in tables), strict=True)
            )
        ]
        return cls(tuple(columns))

    def encoded(
        self, table: Sequence[TableColumn], who: str, gaps: bool
    ) -> Float64[np.ndarray, "n d"]:
        """Return a table of the same columns as numbers; NaN for gaps.

        With `gaps`, a missing level has a code, too.
        """
        return np.column_stack(
            [
                column.encoded(values, who, gaps)
                for column, values in zip(self.columns, table, strict=True)
            ]
        )

    @property
    def coded(self) -> tuple[int, ...]:
        """Numbers of the columns of codes."""
        return tuple(j for j, column in enumerate(self.columns) if column.coded)

    @property
    def has_dates(self) -> bool:
        """Whether a column has dates or times, which are days since 1970."""
        return any(column.unit == "days" for column in self.columns)

    @property
    def place(self) -> tuple[int, int] | None:
        """Numbers of the columns of latitudes and longitudes; None without a place."""
        units = [column.unit for column in self.columns]
        if "degrees north" not in units:
            return None
        return units.index("degrees north"), units.index("degrees east")

    def identifiers(self, num_rows: int) -> list[int]:
        """Return the numbers of the categories with nearly as many levels as rows."""
        least = max(_MIN_LEVELS, _MIN_SHARE * num_rows)
        return [
            j
            for j, column in enumerate(self.columns)
            if column.kind == "category" and len(column.levels) > least and not column.has_dates
        ]

    @property
    def dates_as_text(self) -> list[int]:
        """Numbers of the categories whose levels are dates."""
        columns = enumerate(self.columns)
        return [j for j, column in columns if column.kind == "category" and column.has_dates]

    def in_words(self) -> list[tuple[str, str]]:
        """Return pairs of a kind and the names of its columns, without plain numbers."""
        pairs = []
        for kind in _KINDS[1:]:
            words = [
                f"{column.name} ({len(column.levels):,} levels)" if column.coded else column.name
                for column in self.columns
                if column.kind == kind
            ]
            if words:
                pairs.append((kind, ", ".join(words)))
        return pairs


def check_kinds(given: Any, who: str) -> None:
    """Raise `InvalidInputError` unless the parameter `columns` is "auto" or maps to kinds."""
    if isinstance(given, str):
        return
    allowed = f"one of {', '.join(map(repr, _KINDS))}"
    for name, kind in given.items():
        if not isinstance(kind, str) or kind not in _KINDS:
            remedy = did_you_mean(str(kind), _KINDS)
            refuse(f"columns[{name!r}] of {who}", allowed, repr(kind), remedy)
    number_of_places = sum(kind == "place" for kind in given.values())
    got = f"{number_of_places}"
    allowed = "two, the latitude and the longitude"
    require(number_of_places in (0, 2), f"columns of kind 'place' of {who}", allowed, got)


def require_different(names: Collection[str], who: str) -> None:
    """Raise `InvalidInputError` if two columns have the same name."""
    for name in names:
        count = sum(name == another for another in names)
        if count > 1:
            raise InvalidInputError(
                f"X of {who} must be of columns with different names. Got {count} of name "
                f"{name!r}. Rename or drop them."
            )


def _check_names(given: Mapping[Any, Any], names: Sequence[Any], who: str, named: bool) -> None:
    """Raise `InvalidInputError` for a name that no column has."""
    for name in given:
        if name not in names:
            shown = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
            allowed = f"names of columns: {shown}"
            if not named:
                allowed = f"numbers of columns, from 0 to {len(names) - 1}, for an array"
            remedy = did_you_mean(str(name), list(map(str, names)))
            refuse(f"columns of {who}", allowed, repr(name), remedy)


def _kind_of_type(column: TableColumn) -> ColumnKind:
    """Return the kind by the type of the values; other types are an error of the checks."""
    kind = column.type_kind
    return "number" if kind == "other" else kind


def _units_of_place(order: Sequence[int], names: Sequence[str]) -> dict[int, Unit]:
    """Return which of two columns is the latitude: by its name, else the first."""
    first, second = order
    swapped = names[first].lower().startswith(("lon", "lng")) or (
        names[second].lower().startswith("lat") and not names[first].lower().startswith("lat")
    )
    latitude, longitude = (second, first) if swapped else (first, second)
    return {latitude: "degrees north", longitude: "degrees east"}


def _guessed_place(table: Sequence[TableColumn], free: Sequence[bool]) -> dict[int, Unit]:
    """Return the columns with names and values of one latitude and one longitude, if any."""
    words: tuple[tuple[Unit, tuple[str, ...]], ...] = (
        ("degrees north", _LATITUDES),
        ("degrees east", _LONGITUDES),
    )
    angles: dict[int, Unit] = {}
    for unit, names in words:
        matches = [j for j, c in enumerate(table) if free[j] and str(c.name).lower() in names]
        if len(matches) != 1:
            return {}
        values = table[matches[0]].values
        try:
            angle = values.astype(np.float64)
        except (TypeError, ValueError):
            return {}
        angle = angle[~np.isnan(angle)]
        if not len(angle) or np.abs(angle).max() > _LARGEST_ANGLES[unit]:
            return {}
        angles[matches[0]] = unit
    return angles


def _learned(column: TableColumn, name: str, kind: ColumnKind, gaps: bool) -> EncodedColumn:
    """Return a column with its levels or its unit."""
    if kind == "time":
        return EncodedColumn(name, kind, "" if column.type_kind == "number" else "days")
    if kind not in CODED:
        return EncodedColumn(name, kind)
    distinct, _ = _distinct(column.values)
    finite = [x for x in distinct if not (isinstance(x, float) and np.isinf(x))]
    return EncodedColumn(name, kind, levels=_sorted(x for x in finite if gaps or x is not None))


def _distinct(values: NDArray[Any]) -> tuple[list[Level], NDArray[np.int64]]:
    """Return levels, and the place of the level of each value."""
    if values.dtype.kind in "biufM":
        unique, places = np.unique(values, return_inverse=True)
        return [_level(value) for value in unique], places.astype(np.int64)
    place: dict[Level, int] = {}
    places = np.array([place.setdefault(_level(v), len(place)) for v in values.tolist()], np.int64)
    return list(place), places


def _level(value: Any) -> Level:
    """Return a value as it is stored: a whole number is an int, a date is text."""
    if isinstance(value, str):
        return str(value)
    if is_missing(value) or (isinstance(value, np.generic) and bool(value != value)):
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        as_float = float(value)
        return int(as_float) if as_float.is_integer() else as_float
    if isinstance(value, np.datetime64):
        value = value.astype(MICROSECONDS).item()
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    return value.isoformat() if isinstance(value, date) else str(value)


def _sorted(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Return different levels, numbers before text before a missing value."""
    different = set(levels)
    numbers = [level for level in different if isinstance(level, bool | int | float)]
    if not all(isinstance(level, bool) for level in numbers):
        # Of True and 1, which are equal, the set has the first of the table.
        numbers = [int(level) if isinstance(level, bool) else level for level in numbers]
    words = [level for level in different if isinstance(level, str)]
    missing = [None] if None in different else []
    return (*sorted(numbers), *sorted(words), *missing)


def _numbers(column: TableColumn, kind: ColumnKind, who: str) -> Values:
    """Return a column as float64, NaN for gaps; raise `InvalidInputError` for other values."""
    values = column.values
    if values.dtype.kind in "mM" or column.type_kind == "time":
        remedy = f"Fit with columns={{{column.name!r}: 'time'}}, or convert them to numbers."
        allowed = "numbers, as in fit" if kind == "time" else "numbers"
        refuse(f"column {column.name!r} of X of {who}", allowed, f"times ({values.dtype})", remedy)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    numbers = []
    for value in values.tolist():
        try:
            numbers.append(np.nan if is_missing(value) else float(value))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"X of {who} must be numbers: {error}. Got {value!r} in column {column.name!r}. "
                f"Fit with columns={{{column.name!r}: 'category'}}, or encode it first "
                "(sklearn.compose.ColumnTransformer, OneHotEncoder)."
            ) from error
    return np.array(numbers, dtype=np.float64)


def _days(column: TableColumn, who: str) -> Values:
    """Return dates and times as days since 1970, NaN for gaps."""
    values = column.values
    if values.dtype.kind == "M":
        since = values.astype(MICROSECONDS)
        days = since.astype(np.int64) / _MICROSECONDS_OF_DAY
        return np.where(np.isnat(since), np.nan, days)
    objects = values.tolist()
    return np.array([_days_of(value, row, column.name, who) for row, value in enumerate(objects)])


def _moment_of_text(text: str) -> datetime | None:
    """Return the date or time of a text of ISO 8601 with a separator; None for another text."""
    try:
        return datetime.fromisoformat(text.strip()) if "-" in text else None
    except ValueError:
        return None


def _days_of(value: Any, row: int, name: Any, who: str) -> float:
    """Return the days of a date, a time, or a text of ISO 8601."""
    if is_missing(value):
        return float("nan")
    moment = _moment_of_text(value) if isinstance(value, str) else value
    if isinstance(moment, np.datetime64):
        moment = moment.astype(MICROSECONDS).item()
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    if not isinstance(moment, datetime):
        remedy = "Convert them first, such as with pandas.to_datetime."
        allowed = "dates or times, as in fit"
        refuse(f"column {name!r} of X of {who}", allowed, f"{value!r} in row {row}", remedy)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) / _DAY
