"""Encode the columns of a table as numeric features."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from directgp.datasets.columns import (
    MAX_LEVELS_ALWAYS,
    NumberFormat,
    drop_options,
    kind_of,
    level_counts,
    read_numbers,
    require_unique,
    to_numbers,
    trim,
)
from directgp.errors import InvalidInputError, InvalidTableError, TableProblem, refuse
from directgp.registry import Missing
from directgp.text import number, plural, suggestion

_ROWS_PER_LEVEL = 20
"""A column with more levels than usual needs this many rows for each of them."""

_MAX_LEVELS = 500

MISSING_LEVEL = "(missing)"
"""Name of the level of missing values."""


class Fault(NamedTuple):
    """What is wrong with a column of new data in some rows."""

    rows: NDArray[np.int64]
    reason: str
    """Sentence on one of these rows, without a full stop."""

    usable: bool
    """Whether the features are filled nevertheless."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


@final
class NumberColumn(_Record):
    """A column of numbers, used unchanged; dates are days since 1970."""

    kind: Literal["number"] = "number"
    name: str
    decimal: Literal[".", ","] = "."
    dates: str = ""
    """How text is read, as in `NumberFormat`."""

    imputed: bool = False
    """Whether missing values are NaN in the features; otherwise their rows cannot be used."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of the column."""
        return (self.name,)

    @property
    def verbatim(self) -> bool:
        """Whether a text file has to be read as text, not as numbers with a decimal point."""
        return self.decimal != "." or bool(self.dates)

    def fill(self, column: pa.ChunkedArray, features: NDArray[np.float64]) -> Iterator[Fault]:
        """Write the values to the features, of shape (n, 1), and yield what is wrong."""
        allowed = "dates" if self.dates else "numbers"
        try:
            read = read_numbers(column, NumberFormat(self.decimal, self.dates))
        except TypeError as error:
            refuse(f"Column {self.name!r}", f"{allowed}, as in training", str(error))
        texts = column.take(pa.array(read.bad)).to_pylist()
        taken = " (predicted as missing)" if self.imputed else ""
        for row, text in zip(read.bad, texts, strict=True):
            reason = f"{self.name} is {text!r}, no {allowed.removesuffix('s')}{taken}"
            yield Fault(np.array([row]), reason, self.imputed)
        infinite, missing = np.isinf(read.values), np.isnan(read.values)
        missing[read.bad] = False
        if infinite.any():
            yield Fault(np.flatnonzero(infinite), f"{self.name} is infinite", False)
        if missing.any() and not self.imputed:
            yield Fault(np.flatnonzero(missing), f"{self.name} is missing", False)
        features[:, 0] = np.where(infinite, np.nan, read.values)


@final
class CategoryColumn(_Record):
    """A column of L categories, encoded as L − 1 columns of 0 and 1."""

    kind: Literal["category"] = "category"
    name: str
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

    def fill(self, column: pa.ChunkedArray, features: NDArray[np.float64]) -> Iterator[Fault]:
        """Write the 0/1 columns to the features, which are 0 before, and yield what is wrong."""
        if kind_of(column.type) not in ("number", "category", "empty"):
            got = f"values of type {column.type}"
            refuse(f"Column {self.name!r}", "categories, as in training", got)
        text, known = trim(column), [self.base, *self.levels]
        missing = np.asarray(text.is_null())
        level = pc.index_in(text, value_set=pa.array(known, pa.string())).fill_null(-1).to_numpy()
        if MISSING_LEVEL in known:
            level = np.where(missing, known.index(MISSING_LEVEL), level)
        elif missing.any():
            used = f" (predicted as {self.base!r})" if self.imputed else ""
            yield Fault(np.flatnonzero(missing), f"{self.name} is missing{used}", self.imputed)
        for new in level_counts(text.filter(pa.array((level < 0) & ~missing))):
            rows = np.flatnonzero(pc.fill_null(pc.equal(text, new), False))
            yield Fault(
                rows,
                f"{self.name} is {new!r}, not seen in training (predicted as {self.base!r})",
                True,
            )
        rows = np.flatnonzero(level > 0)
        features[rows, level[rows] - 1] = 1.0


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]


class EncodedRows(NamedTuple):
    """The features of the rows of a table, and what is wrong with some of them."""

    X: NDArray[np.float64]
    """Of shape (n, d), with NaN where a number is missing."""

    usable: NDArray[np.bool_]
    """Whether each row can be used."""

    reasons: dict[int, str]
    """What is wrong, by row."""


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
    def learn(
        cls,
        table: pa.Table,
        exclude: Collection[str],
        formats: Mapping[str, NumberFormat] | None = None,
        missing: Missing = "error",
    ) -> "Encoding":
        """Return the encoding of columns of numbers and categories, but those excluded.

        A column that has only one value is left out. `formats` says how the text of columns was
        read as numbers.
        """
        names = [name for name in table.column_names if name not in set(exclude)]
        columns, problems = list[Column](), list[TableProblem]()
        for name in names:
            try:
                form = (formats or {}).get(name, NumberFormat())
                column = _learn_column(name, table.column(name), form, missing)
                columns += [] if column is None else [column]
            except InvalidTableError as error:
                problems += error.problems
        if problems:
            raise InvalidTableError(problems)
        encoding = cls(columns=tuple(columns))
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

    @property
    def verbatim(self) -> tuple[str, ...]:
        """The columns that are read from a text file as text."""
        return tuple(column.name for column in self.columns if column.verbatim)

    def with_decimal(self, mark: Literal[".", ","]) -> "Encoding":
        """Return an encoding that reads the text of numbers with another decimal mark."""
        new = {"decimal": mark}
        each = (c.model_copy(update=new) if c.kind == "number" else c for c in self.columns)
        return Encoding(columns=tuple(each))

    def encode(self, table: pa.Table) -> EncodedRows:
        """Return the features of a table, which rows can be used, and what is wrong with others.

        Columns are found by name, in any order; other columns are ignored.
        """
        known = dict.fromkeys(table.column_names)
        absent = next((name for name in self.column_names if name not in known), None)
        if absent is not None:
            raise InvalidInputError(
                f"The table must have all columns used in training. Got no {absent!r}."
                f" {suggestion(absent, known, 'Its columns')}"
            )
        features, start = np.zeros((table.num_rows, len(self.feature_names))), 0
        usable, reasons = np.ones(table.num_rows, np.bool_), dict[int, str]()
        for column in self.columns:
            stop = start + len(column.feature_names)
            for fault in column.fill(table.column(column.name), features[:, start:stop]):
                if not fault.usable:
                    usable[fault.rows] = False
                for row in fault.rows.tolist():
                    before = f"{reasons[row]}; " if row in reasons else ""
                    reasons[row] = before + fault.reason
            start = stop
        return EncodedRows(features, usable, reasons)

    def apply(self, table: pa.Table) -> NDArray[np.float64]:
        """Return the features of a table, of shape (n, d); raise for rows that cannot be used."""
        encoded = self.encode(table)
        if encoded.reasons:
            first, others = min(encoded.reasons), len(encoded.reasons) - 1
            got = f"row {first + 1}, where {encoded.reasons[first]}"
            got += f", and {plural(others, 'other row')}" if others else ""
            refuse("Rows", "as in training", got, "Correct or remove such rows.")
        return encoded.X


def _learn_column(
    name: str, column: pa.ChunkedArray, form: NumberFormat, missing: Missing
) -> NumberColumn | CategoryColumn | None:
    """Return how a column of numbers or categories is encoded; None if it has only one value."""
    if kind_of(column.type) == "number":
        values = to_numbers(column)
        infinite, known = np.isinf(values), values[~np.isnan(values)]
        if infinite.any():
            row = int(infinite.argmax())
            got = f"{number(values[row])} in row {row + 1}"
            sentence = f"Column {name!r} must be finite. Got {got}. Correct it, or drop the column."
            raise InvalidTableError([TableProblem(sentence, {"--drop": (name,)})])
        constant = len(known) == len(values) and (known == known[:1]).all()
        if constant:
            return None
        imputed, decimal = missing == "impute", form.decimal
        return NumberColumn(name=name, decimal=decimal, dates=form.dates, imputed=imputed)
    text = trim(column)
    counts, rows = level_counts(text), len(text) - text.null_count
    if len(counts) == rows > 2 or (
        len(counts) > MAX_LEVELS_ALWAYS and len(counts) > min(rows / _ROWS_PER_LEVEL, _MAX_LEVELS)
    ):
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
