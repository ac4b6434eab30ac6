"""Encode the columns of a table as numeric features."""

from collections.abc import Collection
from typing import Annotated, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from directgp.datasets.columns import (
    PLAIN_NUMBERS,
    drop_incomplete_rows,
    drop_options,
    kind_of,
    level_counts,
    require_unique,
    text_format,
    to_numbers,
)
from directgp.errors import InvalidInputError, refuse
from directgp.text import counted, listed, plural, suggestion

_MAX_LEVELS_ALWAYS = 50
"""A column of text may have this many levels in any number of rows."""

_ROWS_PER_LEVEL = 20
"""A column with more levels needs this many rows for each of them."""

_MAX_LEVELS = 500


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


@final
class NumberColumn(_Record):
    """A column of numbers, used unchanged."""

    kind: Literal["number"] = "number"
    name: str

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of the column."""
        return (self.name,)

    def fill(self, column: pa.ChunkedArray, features: NDArray[np.float64]) -> None:
        """Write the values to the features, of shape (n, 1)."""
        who = f"Column {self.name!r}"
        if kind_of(column.type) != "number":
            got, remedy = f"values of type {column.type}", ""
            if kind_of(column.type) == "category":
                texts = [str(value) for value in column.unique().to_pylist()]
                is_number, found = PLAIN_NUMBERS.pattern.fullmatch, text_format(texts)
                first = next((text for text in texts if not is_number(text)), texts[0])
                got = f"text, such as {first!r}"
                remedy = f"These look like {found.name}. {found.remedy}" if found else ""
            refuse(who, "numbers, as in training", got, remedy)
        values = to_numbers(column)
        infinite = np.flatnonzero(~np.isfinite(values))
        if len(infinite):
            got = f"{values[infinite[0]]:g} in {plural(len(infinite), 'row')}"
            refuse(who, "finite", got, "Correct or remove these rows.")
        features[:, 0] = values


@final
class CategoryColumn(_Record):
    """A column of L categories, encoded as L − 1 columns of 0 and 1."""

    kind: Literal["category"] = "category"
    name: str
    base: str
    """The level whose columns are all 0: the most frequent one."""

    levels: tuple[str, ...]
    """The other levels, each with a column that is 1 where it occurs."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names such as ``sex=M``, one for each level but the base."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    def fill(self, column: pa.ChunkedArray, features: NDArray[np.float64]) -> None:
        """Write the 0/1 columns to the features, which are 0 before."""
        if kind_of(column.type) not in ("number", "category"):
            got = f"values of type {column.type}"
            refuse(f"Column {self.name!r}", "categories, as in training", got)
        text = pc.cast(column, pa.string())
        known = pa.array([self.base, *self.levels], pa.string())
        level = pc.index_in(text, value_set=known)
        if level.null_count:
            counts = level_counts(text.filter(pc.is_null(level)))
            first, others = next(iter(counts)), len(counts) - 1
            got = f"{first!r} in {plural(counts[first], 'row')}"
            got += f", and {plural(others, 'other new level')}" if others else ""
            levels = listed(sorted(known.to_pylist()), limit=12)
            allowed = f"of the levels seen in training, {levels}"
            remedy = "Correct or remove these rows, or train again with such rows."
            refuse(f"Column {self.name!r}", allowed, got, remedy)
        level = level.to_numpy()
        rows = np.flatnonzero(level)
        features[rows, level[rows] - 1] = 1.0


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]


@final
class Encoding(_Record):
    """Turns the columns of a table into features.

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

    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, table: pa.Table, exclude: Collection[str]) -> "Encoding":
        """Return the encoding of all columns but those excluded; no value may be missing.

        A column that has only one value is left out.
        """
        excluded = set(exclude)
        names = [name for name in table.column_names if name not in excluded]
        kinds = {name: kind_of(table.column(name).type) for name in names}
        unusable = {
            name: str(table.column(name).type) for name in names if kinds[name] in ("time", "other")
        }
        if unusable:
            times = "Give dates and times as numbers, such as days since a date. "
            remedy = f"Leave columns out with {drop_options(unusable)}."
            remedy = times + remedy if "time" in kinds.values() else remedy
            refuse("Columns", "numbers or categories", counted(unusable), remedy)
        columns = [_learn_column(name, table.column(name)) for name in names]
        encoding = cls(columns=tuple(column for column in columns if column is not None))
        allowed, remedy = (
            "different after categories are encoded",
            "Rename the column of that name.",
        )
        require_unique(encoding.feature_names, "Names of features", allowed, remedy)
        return encoding

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, one for each column of X."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def apply(self, table: pa.Table) -> NDArray[np.float64]:
        """Return the features of a table, of shape (n, d).

        Columns are found by name, in any order; other columns are ignored.
        """
        known = dict.fromkeys(table.column_names)
        absent = next((name for name in self.column_names if name not in known), None)
        if absent is not None:
            raise InvalidInputError(
                f"The table must have all columns used in training. Got no {absent!r}."
                f" {suggestion(absent, known, 'Its columns')}"
            )
        drop_incomplete_rows(table, self.column_names, allowed=False)
        features, start = np.zeros((table.num_rows, len(self.feature_names))), 0
        for column in self.columns:
            stop = start + len(column.feature_names)
            column.fill(table.column(column.name), features[:, start:stop])
            start = stop
        return features


def _learn_column(name: str, column: pa.ChunkedArray) -> NumberColumn | CategoryColumn | None:
    """Return how a column of numbers or categories is encoded; None if it has only one value."""
    if kind_of(column.type) == "number":
        # Arrow has no minimum of 16-bit floats.
        ends = pc.min_max(pc.cast(column, pa.float64(), safe=False)).as_py()
        return NumberColumn(name=name) if ends["min"] != ends["max"] else None
    counts, rows = level_counts(column), len(column)
    too_many = len(counts) == rows > 2 or (
        len(counts) > _MAX_LEVELS_ALWAYS and len(counts) > min(rows / _ROWS_PER_LEVEL, _MAX_LEVELS)
    )
    found = text_format(counts)
    if found and (too_many or not found.may_be_category):
        got = f"text that looks like {found.name}, such as {next(iter(counts))!r}"
        remedy = f"{found.remedy} Or leave it out with {drop_options([name])}."
        refuse(f"Column {name!r}", "numbers or categories", got, remedy)
    if too_many:
        got = f"{len(counts):,} different texts in {rows:,} rows, such as {next(iter(counts))!r}"
        remedy = f"Leave out identifiers and free text with {drop_options([name])}."
        refuse(f"Column {name!r}", "of categories that recur", got, remedy)
    if len(counts) < 2:
        return None
    base = min(counts, key=lambda level: (-counts[level], level))
    levels = tuple(sorted(level for level in counts if level != base))
    return CategoryColumn(name=name, base=base, levels=levels)
