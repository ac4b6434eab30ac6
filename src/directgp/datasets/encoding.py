"""Encode the columns of a table as numeric features."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Literal, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from directgp.datasets.columns import (
    ISO,
    MAX_LEVELS_ALWAYS,
    Mark,
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
from directgp.text import number, plural, suggestion, visible

_ROWS_PER_LEVEL = 20
"""A column with more levels than usual needs this many rows for each of them."""

_MAX_LEVELS = 500
"""Largest number of levels of a category."""

_MAX_REASONS = 8
"""Largest number of reasons that are stored for a row; more are counted."""

MISSING_LEVEL = "(missing)"
"""Name of the level of missing values."""


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


@final
class NumberColumn(_Record):
    """A column of numbers, used unchanged; dates are days since 1970."""

    kind: Literal["number"] = "number"
    """Tag in a file."""

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

    def fill(
        self, column: pa.ChunkedArray, features: NDArray[np.float64], _decimal: Mark | None
    ) -> Iterator[Fault]:
        """Write the 0/1 columns to the features, which start at 0, and yield the faults."""
        if kind_of(column.type) == "other":
            got = f"values of type {column.type}"
            refuse(f"Column {self.name!r}", "categories, as in training", got)
        text = trim(column)
        levels = [self.base, *self.levels]
        missing = np.asarray(text.is_null())
        level = pc.index_in(text, value_set=pa.array(levels, pa.string())).fill_null(-1).to_numpy()
        if MISSING_LEVEL in levels:
            level = np.where(missing, levels.index(MISSING_LEVEL), level)
        elif missing.any():
            used = f" (predicted as {self.base!r})" if self.imputed else ""
            yield Fault(np.flatnonzero(missing), f"{self.name} is missing{used}", self.imputed)
        unseen = np.flatnonzero((level < 0) & ~missing)
        new = text.take(pa.array(unseen)).combine_chunks().dictionary_encode()
        codes = new.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        groups = np.split(unseen[order], np.flatnonzero(np.diff(codes[order])) + 1)
        for name, rows in zip(new.dictionary.to_pylist(), groups, strict=False):
            why = f"{self.name} is {name!r}, not seen in training (predicted as {self.base!r})"
            yield Fault(rows, why, True)
        rows = np.flatnonzero(level > 0)
        features[rows, level[rows] - 1] = 1.0


@contextmanager
def collected(problems: list[TableProblem]) -> Iterator[None]:
    """Add the problems of an `InvalidInputError` to a list instead of raising it."""
    try:
        yield
    except InvalidTableError as error:
        problems += error.problems
    except InvalidInputError as error:
        problems.append(TableProblem(str(error)))


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]


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
    ) -> "Encoding":
        """Return the encoding of columns of numbers and categories.

        A column that has only one value is left out. `formats` says how the text of columns was
        read as numbers. `row_numbers` are those of the rows in their file, for errors; 1, 2, … by
        default.
        """
        if row_numbers is None:
            row_numbers = np.arange(1, table.num_rows + 1)
        columns = list[Column]()
        problems = list[TableProblem]()
        for name in table.column_names:
            with collected(problems):
                form = (formats or {}).get(name, NumberFormat())
                column = _learn_column(name, table.column(name), form, missing, row_numbers)
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
    form: NumberFormat,
    missing: Missing,
    row_numbers: NDArray[np.int64],
) -> NumberColumn | CategoryColumn | None:
    """Return how a column of numbers or categories is encoded; None if it has only one value."""
    if kind_of(column.type) == "number":
        values = to_numbers(column)
        infinite = np.isinf(values)
        present = values[~np.isnan(values)]
        if infinite.any():
            row = int(infinite.argmax())
            got = f"{number(values[row])} in row {row_numbers[row]:,}"
            sentence = f"Column {name!r} must be finite. Got {got}. Correct it, or drop the column."
            raise InvalidTableError([TableProblem(sentence, {"--drop": (name,)})])
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
