"""Encode columns of a table as numeric features."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from directgp.datasets.wording import counted, drop_options, listed, several, suggestion
from directgp.errors import InvalidInputError, refuse

Kind = Literal["number", "category", "time", "nothing", "other"]


def kind_of(kind: pa.DataType) -> Kind:
    """What a column of this type holds."""
    types = pa.types
    if types.is_null(kind):
        return "nothing"
    if types.is_boolean(kind) or _is_number(kind):
        return "number"
    if types.is_dictionary(kind):
        return "category" if kind_of(kind.value_type) in ("number", "category") else "other"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "category"
    return "time" if types.is_temporal(kind) else "other"


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def level_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each value occurs, as text; missing ones aside."""
    found = pc.value_counts(pc.cast(column, pa.string()).drop_null())
    return dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))


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


@final
@dataclass(frozen=True)
class Look:
    """What all values of a column look like."""

    pattern: re.Pattern[str]

    name: str
    """What the values are."""

    remedy: str

    may_be_category: bool
    """Whether a few such values can be meant as categories."""


_LOOKS = (
    Look(
        re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?"),
        "numbers stored as text",
        "Store them as numbers.",
        may_be_category=True,
    ),
    # Plain numbers are above, so at least one value has a mark in what follows.
    Look(
        re.compile(r"[-+]?\d{1,3}([,' ’]\d{3})*(\.\d+)?|[-+]?\d{1,3}(\.\d{3})*"),
        "numbers with thousands separators",
        "Write them without, as in 1234.5.",
        may_be_category=False,
    ),
    Look(
        re.compile(r"[-+]?\d+(,\d+)?|[-+]?\d{1,3}([.' ’]\d{3})*,\d+"),
        "numbers with decimal commas",
        "Write them with a point, as in 1234.5.",
        may_be_category=False,
    ),
    Look(
        re.compile(r"[€$£]\s*[-+]?\d[\d.,' ]*|[-+]?\d[\d.,' ]*\s*[€$£%]"),
        "numbers with units",
        "Write the numbers alone.",
        may_be_category=True,
    ),
    Look(
        re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?"),
        "dates",
        "Give numbers instead, such as year, month or days since a date.",
        may_be_category=False,
    ),
)


def look_of(values: Collection[str]) -> Look | None:
    """What all the values look like, if it is something.

    Examples
    --------
    >>> look_of(["1,5", "2"]).name, look_of(["1,500", "20"]).name, look_of(["red", "2"])
    ('numbers with decimal commas', 'numbers with thousands separators', None)
    """
    for look in _LOOKS:
        if values and all(look.pattern.fullmatch(value.strip()) for value in values):
            return look
    return None


Features = NDArray[np.float64]
"""Part of the features, of shape (n, width), all 0 before it is filled."""


@final
class NumberColumn(BaseModel):
    """A column of numbers, used as it is."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: Literal["number"] = "number"
    name: str

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of the column."""
        return (self.name,)

    def fill(self, column: pa.ChunkedArray, features: Features) -> None:
        """Write the values to the features."""
        if kind_of(column.type) != "number":
            self._refuse(column)
        for start, chunk in _pieces(column):
            # Not checked for precision: whole numbers beyond 2⁵³ are rounded.
            values = pc.cast(chunk, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            features[start : start + len(chunk), 0] = values
        self._check_finite(features[:, 0])

    def _check_finite(self, values: NDArray[np.float64]) -> None:
        infinite = np.flatnonzero(~np.isfinite(values))
        if len(infinite):
            got = f"{values[infinite[0]]:g} in {several(len(infinite), 'row')}"
            refuse(f"Column {self.name!r}", "finite", got, "Correct or remove these rows.")

    def _refuse(self, column: pa.ChunkedArray) -> None:
        if kind_of(column.type) != "category":
            refuse(
                f"Column {self.name!r}", "numbers, as in training", f"values of type {column.type}"
            )
        values = [str(value) for value in column.unique().to_pylist()]
        look = look_of(values)
        remedy = f"These look like {look.name}. {look.remedy}" if look else ""
        got = f"text, such as {_stranger(values)!r}"
        refuse(f"Column {self.name!r}", "numbers, as in training", got, remedy)


@final
class CategoryColumn(BaseModel):
    """A column of L categories, coded by L − 1 columns of 0 and 1."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: Literal["category"] = "category"
    name: str

    base: str
    """The level whose columns are all 0: the most frequent one."""

    levels: tuple[str, ...]
    """The other levels, each with a column that is 1 where it occurs."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Such as ``sex=M``."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    def fill(self, column: pa.ChunkedArray, features: Features) -> None:
        """Write the dummies to the features, where they are still 0."""
        if kind_of(column.type) not in ("number", "category"):
            got = f"values of type {column.type}"
            refuse(f"Column {self.name!r}", "categories, as in training", got)
        known = pa.array([self.base, *self.levels], pa.string())
        for start, chunk in _pieces(column):
            level = pc.index_in(pc.cast(chunk, pa.string()), value_set=known)
            if level.null_count:
                self._refuse_unknown(column, known)
            level = level.to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(level)
            features[start + rows, level[rows] - 1] = 1.0

    def _refuse_unknown(self, column: pa.ChunkedArray, known: pa.Array) -> None:
        text = pc.cast(column, pa.string())
        unknown = text.filter(pc.invert(pc.is_in(text, value_set=known)))
        first = unknown[0].as_py()
        others = len(unknown.unique()) - 1
        got = f"{first!r} in {several(int(pc.sum(pc.equal(unknown, first)).as_py()), 'row')}"
        got += f", and {several(others, 'other new level')}" if others else ""
        allowed = f"of the levels seen in training, {listed(sorted(known.to_pylist()), most=12)}"
        remedy = "Correct or remove these rows, or train again with such rows."
        refuse(f"Column {self.name!r}", allowed, got, remedy)


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]


def _pieces(column: pa.ChunkedArray) -> Any:
    """The chunks of the column, each with the number of rows before it."""
    start = 0
    for chunk in column.chunks:
        yield start, chunk
        start += len(chunk)


def _stranger(values: list[str]) -> str:
    """The first value that is no number."""
    for value in values:
        try:
            float(value)
        except ValueError:
            return value
    return values[0]


_FEW_LEVELS = 50
"""As many levels are never too many."""

_ROWS_A_LEVEL = 20
"""More levels need this many rows each."""

_MOST_LEVELS = 500


def learned(table: pa.Table, names: Sequence[str]) -> tuple[NumberColumn | CategoryColumn, ...]:
    """How each column that has more than one value will be coded."""
    _refuse_unusable(table, names)
    columns = [_learn(name, table.column(name)) for name in names]
    kept = tuple(column for column in columns if column is not None)
    counts = Counter(feature for column in kept for feature in column.feature_names)
    twice = [feature for feature, count in counts.items() if count > 1]
    if twice:
        got = f"{listed(twice)} more than once"
        remedy = "Rename the column of that name."
        refuse("Names of features", "different once categories are coded", got, remedy)
    return kept


def _learn(name: str, column: pa.ChunkedArray) -> NumberColumn | CategoryColumn | None:
    if kind_of(column.type) == "number":
        return NumberColumn(name=name) if _varies(column) else None
    counts = level_counts(column)
    _refuse_no_categories(name, counts, len(column))
    if len(counts) < 2:
        return None
    base = min(counts, key=lambda level: (-counts[level], level))
    levels = tuple(sorted(level for level in counts if level != base))
    return CategoryColumn(name=name, base=base, levels=levels)


def _varies(column: pa.ChunkedArray) -> bool:
    # Numbers of 16 bits have no minimum.
    ends = pc.min_max(pc.cast(column, pa.float64(), safe=False)).as_py()
    return bool(ends["min"] != ends["max"])


def _refuse_unusable(table: pa.Table, names: Sequence[str]) -> None:
    kinds = {name: kind_of(table.column(name).type) for name in names}
    times = [name for name in names if kinds[name] == "time"]
    if times:
        raise InvalidInputError(
            f"Columns of dates and times cannot be used as they are: {listed(times)}."
            " Give numbers instead, such as year, month or days since a date,"
            f" or leave {'it' if len(times) == 1 else 'them'} out with {drop_options(times)}."
        )
    others = {name: table.column(name).type for name in names if kinds[name] == "other"}
    for name, kind in others.items():
        allowed, got = "numbers or categories", f"values of type {kind}"
        refuse(f"Column {name!r}", allowed, got, f"Leave it out with {drop_options([name])}.")


def _refuse_no_categories(name: str, counts: dict[str, int], rows: int) -> None:
    look = look_of(counts)
    many = _too_many(len(counts), rows)
    if look and (many or not look.may_be_category):
        got = f"text that looks like {look.name}, such as {next(iter(counts))!r}"
        remedy = f"{look.remedy} Or leave it out with {drop_options([name])}."
        refuse(f"Column {name!r}", "numbers or categories", got, remedy)
    if many:
        raise InvalidInputError(
            f"Column {name!r} must be of categories that recur. Got {len(counts):,} different texts"
            f" in {rows:,} rows, such as {next(iter(counts))!r}, which looks like an identifier or"
            f" free text. Leave it out with {drop_options([name])}."
        )


def _too_many(levels: int, rows: int) -> bool:
    if levels == rows > 2:
        return True
    return levels > _FEW_LEVELS and levels > min(rows / _ROWS_A_LEVEL, _MOST_LEVELS)


@final
class Encoding(BaseModel):
    """What turns the columns of a table into features.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"size": [3.0, 1.0, 2.0], "sex": ["F", "M", "F"]})
    >>> encoding = Encoding.learn(table, exclude=[])
    >>> encoding.feature_names
    ('size', 'sex=M')
    >>> encoding.apply(table).tolist()
    [[3.0, 0.0], [1.0, 1.0], [2.0, 0.0]]
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, table: pa.Table, exclude: Collection[str]) -> "Encoding":
        """From a table without missing values, with all its columns but those excluded.

        A column that has one value only is left out.
        """
        names = [name for name in table.column_names if name not in exclude]
        return cls(columns=learned(table, names))

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that a table has to have."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One a column of the features."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def apply(self, table: pa.Table) -> NDArray[np.float64]:
        """The features of a table, of shape (n, d).

        Columns are found by name, wherever they stand; others are not looked at.
        """
        for name in self.column_names:
            if name not in table.column_names:
                raise InvalidInputError(
                    f"The table must have all columns used in training. Got no {name!r}."
                    f" {suggestion(name, table.column_names, 'Its columns')}"
                )
        refuse_missing(table, self.column_names, "Leave out these rows with --drop-missing.")
        features = np.zeros((table.num_rows, len(self.feature_names)))
        start = 0
        for column in self.columns:
            width = len(column.feature_names)
            column.fill(table.column(column.name), features[:, start : start + width])
            start += width
        return features
