"""Prepare a table as a problem: features, targets and what they mean."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.datasets.columns import (
    ISO,
    Mark,
    NumberFormat,
    complete_rows,
    currencies,
    drop_options,
    guess_dates,
    guess_format,
    is_missing,
    kind_of,
    missing_counts,
    number_format,
    other_order,
    read_numbers,
    shown_value,
    trim,
)
from directgp.datasets.dialect import DECIMALS
from directgp.datasets.encoding import (
    LEVEL_KINDS,
    CategoryColumn,
    Encoding,
    LevelColumn,
    collected,
)
from directgp.datasets.levels import level_values
from directgp.datasets.readers import refuse_column
from directgp.datasets.targets import encode_target
from directgp.errors import InvalidTableError, TableProblem, refuse, require
from directgp.registry import ColumnKind, Dates, Missing, Task
from directgp.text import NUMBER, counted, listed, number, plural, shell_word

TASKS: tuple[Task, ...] = ("regression", "classification", "count")
"""Kinds of prediction."""

KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)
"""Kinds of columns."""

MIN_ROWS = 20
"""Smallest number of rows of a comparison."""

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""Names of columns without a name of their own, such as the index of a pandas frame."""


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A table prepared for training."""

    name: str
    """Stem of the file, or name of the data set."""

    task: Task
    """Kind of prediction."""

    target: str
    """Name of the column to predict."""

    feature_names: tuple[str, ...]
    """One for each column of X; a category has several."""

    X: NDArray[np.float64]
    """Features, of shape (n, d), NaN for gaps."""

    y: NDArray[np.float64]
    """Targets, of shape (n,); 0, 1, … for labels."""

    classes: tuple[str, ...] | None
    """Names of class 0, class 1, … in classification, else None."""

    source: str
    """The table as the user named it."""

    notes: tuple[str, ...]
    """Notes for the user: how the task was guessed, how columns were encoded, what was left out."""

    rows: NDArray[np.int64]
    """Index of each row in the file, or in the table that was prepared; some are left out."""

    needed: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Columns besides the features, such as weights, each of shape (n,)."""

    one_against_rest: bool = False
    """Whether class 0 is every label but that of class 1."""

    encoding: Encoding | None = None
    """Encoding of features with kinds, such as levels; None if all are plain numbers."""

    @property
    def num_classes(self) -> int:
        """Number of classes; 2 for targets that are no labels."""
        return len(self.classes or (0, 1))

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Kind of each feature, the latitude of a place first; empty if all are plain numbers."""
        return {} if self.encoding is None else self.encoding.kinds

    def fingerprint(self) -> str:
        """Return the sha256 of names, task, shape and numbers, in hex."""
        heading: list[object] = [self.task, self.target, self.feature_names, self.classes]
        heading.append(self.X.shape)
        if self.kinds:
            heading.append([*self.kinds.items()])
        digest = hashlib.sha256(json.dumps(heading).encode())
        for numbers in (self.X, self.y):
            digest.update(np.ascontiguousarray(numbers, dtype="<f8").data)
        return digest.hexdigest()


@final
@dataclass
class _Columns:
    """The columns of a table as numbers and text, with notes and problems."""

    table: pa.Table
    """The table as read."""

    target: str
    """Name of the column to predict."""

    missing: Missing
    """What to do with missing values."""

    dates: Dates
    """How to read dates."""

    categories: frozenset[str]
    """Columns of numbers to use as categories."""

    decimals: Sequence[Mark]
    """Decimal marks to try, the likely one first."""

    row_numbers: NDArray[np.int64]
    """The number of each row in its file, from 1."""

    kinds: Mapping[str, ColumnKind]
    """Kinds of columns that the user gave."""

    arrays: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    """Columns that were read, by name."""

    formats: dict[str, NumberFormat] = field(default_factory=dict)
    """Formats of text columns that are numbers, by name."""

    notes: list[str] = field(default_factory=list)
    """Notes for the user."""

    problems: list[TableProblem] = field(default_factory=list)
    """Problems of the table."""

    reported: set[str] = field(default_factory=set)
    """Columns with unparsable texts, which are missing in the arrays."""

    def read(self, name: str) -> None:
        """Add a column to the arrays, or a problem."""
        column = self.table.column(name)
        kind = kind_of(column.type)
        use = self.kinds.get(name)
        if column.null_count == len(column) or (kind != "other" and is_missing(column).all()):
            self.refuse_column(name, "has no values")
        elif kind == "other":
            self.refuse_column(name, f"has values of type {column.type}, no numbers or text")
        elif name in self.categories:
            self.arrays[name] = trim(column)
        elif use in LEVEL_KINDS:
            self.arrays[name] = level_values(column)
        elif use == "time":
            self._read_times(name, column)
        elif use in ("number", "place"):
            self._read_only_numbers(name, column)
        elif kind == "time":
            self._read_numbers(name, column, NumberFormat(dates=ISO))
        elif kind == "category" and (form := guess_format(column, self.decimals)) is not None:
            self._read_numbers(name, column, form)
        else:
            self.arrays[name] = column

    def refuse(self, sentence: str, options: Mapping[str, tuple[str, ...]], *remedies: str) -> None:
        """Add a problem with the options that solve it."""
        self.problems.append(TableProblem(f"{sentence}: use {' or '.join(remedies)}.", options))

    def refuse_column(self, name: str, why: str) -> None:
        """Add the problem of a column that cannot be used."""
        options = {} if name == self.target else {"--drop": (name,)}
        remedy = drop_options([name]) if options else "another --target"
        self.refuse(f"Column {name!r} {why}", options, remedy)

    def refuse_rows(self, least: int, got: int) -> NoReturn:
        """Raise `InvalidTableError` for too few rows, with the other problems."""
        gaps = "" if got == self.table.num_rows else " without gaps"
        sentence = f"The table must have at least {plural(least, 'row')}{gaps}. Got {got}."
        raise InvalidTableError([*self.problems, TableProblem(sentence)])

    def _read_times(self, name: str, column: pa.ChunkedArray) -> None:
        """Read dates without --dates unless day and month may be exchanged; numbers stay."""
        kind = kind_of(column.type)
        if kind == "number":
            self.arrays[name] = column
            return
        dates = ISO if kind == "time" else guess_dates(column)
        if not dates:
            self._read_only_numbers(name, column, "dates or numbers")
            return
        form = NumberFormat(dates=dates)
        if self.dates == "error" and other_order(column, form) is not None:
            first = shown_value(column.drop_null()[0])
            why = f"Column {name!r} has dates such as {first!r}, whose day or month may be first"
            remedies = "--dates dmy", "--dates mdy", "--dates days to guess"
            self.refuse(why, {"--dates": ("days",)}, *remedies)
            return
        self._read_numbers(name, column, form)

    def _read_only_numbers(
        self, name: str, column: pa.ChunkedArray, allowed: str = "numbers"
    ) -> None:
        """Read a column that has to be of numbers."""
        kind = kind_of(column.type)
        if kind == "number":
            self.arrays[name] = column
            return
        form = None if kind == "time" else number_format(column, self.decimals)
        if form is None:
            first = shown_value(column.drop_null()[0])
            why = f"Column {name!r} of --columns has no {allowed}, but values such as {first!r}"
            self.refuse(why, {}, "another kind in --columns", drop_options([name]))
            return
        self._read_numbers(name, column, form)

    def _read_numbers(self, name: str, column: pa.ChunkedArray, form: NumberFormat) -> None:
        first = shown_value(column.drop_null()[0])
        if form.dates:
            if self.dates == "error" and self.kinds.get(name) != "time":
                remedy = "another --target" if name == self.target else drop_options([name])
                why = f"Column {name!r} has dates or times, such as {first!r}"
                self.refuse(why, {"--dates": ("days",)}, "--dates days", remedy)
                return
            swapped = other_order(column, form)
            if swapped is not None and swapped.dates[:2] == {"dmy": "%d", "mdy": "%m"}.get(
                self.dates
            ):
                form = swapped
            order = {"%d": ", the day first", "%m": ", the month first"}.get(form.dates[:2], "")
            order += (
                "; --dates dmy or mdy sets the order" if swapped and self.dates == "days" else ""
            )
            self.notes.append(
                f"Column {name!r} has dates such as {first!r}, used as days since 1970{order}."
            )
        read = read_numbers(column, form)
        signs = currencies(column) if read.unusual and not form.dates else []
        if len(signs) > 1:
            self.refuse_column(name, f"has several currencies, {listed(signs)}")
            return
        if read.unusual and not form.dates:
            value = read_numbers(pa.chunked_array([[read.unusual]]), form).values[0]
            shown = f"{read.unusual!r}, read as {number(value, 15)}"
            self.notes.append(f"Column {name!r} has numbers such as {shown}.")
        if len(read.bad):
            total = int((~is_missing(column)).sum())
            row = int(read.bad[0])
            noun = "dates" if form.dates else "numbers"
            more = len(read.bad) - 1
            have = "have" if more > 1 else "has"
            others = f" and {plural(more, 'other row')} {have} text, too" if more else ""
            sentence = (
                f"{total - len(read.bad):,} of {total:,} values of {name!r} are {noun}; row "
                f"{self.row_numbers[row]} has {column[row].as_py()!r}{others}"
            )
            if self.missing == "error":
                other = f"--categories {shell_word(name)}"
                other = drop_options([name]) if name in self.kinds else other
                self.refuse(sentence, {"--missing": ("impute",)}, "--missing impute", other)
                self.reported.add(name)
            else:
                self.notes.append(f"{sentence}: taken as missing.")
        self.arrays[name] = pa.chunked_array([pa.array(read.values, from_pandas=True)])
        self.formats[name] = form


def prepare(
    table: pa.Table,
    target: str,
    *,
    task: Task | None = None,
    name: str,
    source: str,
    drop: Sequence[str] = (),
    missing: Missing = "error",
    dates: Dates = "error",
    categories: Sequence[str] = (),
    kinds: Mapping[str, ColumnKind] | None = None,
    positive: str | None = None,
    needed: Sequence[str] = (),
    decimals: Sequence[Mark] = DECIMALS,
    min_rows: int = MIN_ROWS,
    notes: Sequence[str] = (),
    problems: Sequence[TableProblem] = (),
    row_numbers: NDArray[np.int64] | None = None,
) -> tuple[Problem, Encoding]:
    """Return the problem of a table, and the encoding that prepares new tables in the same way.

    All problems of the table are in one `InvalidTableError`.

    Parameters
    ----------
    table : pyarrow.Table
        One row for each example.
    target : str
        The column to predict.
    task : {"regression", "classification", "count"}, optional
        Guessed from the target by default.
    name, source : str
        The name of the table, and where it comes from, for reports.
    drop : sequence of str
        Columns to leave out.
    missing : {"error", "drop", "level", "impute"}
        What to do with missing values: raise an error, leave out their rows, make them a level of
        categories and leave out rows with missing numbers, or keep all rows, with NaN for missing
        numbers. With any value but "error", rows without a target are left out.
    dates : {"error", "days", "dmy", "mdy"}
        What to do with dates: raise an error, or use days since 1970. If day and month may be
        exchanged in most dates of a column, "dmy" and "mdy" tell which is first; with "days" it is
        the month of 1/2/2020 and the day of 1.2.2020 and 1-2-2020.
    categories : sequence of str
        Columns of categories, whatever they look like.
    kinds : mapping from names to kinds, optional
        Kinds of columns, as of the parameter `columns` of the estimators. A "category" or a "group"
        is one feature, of codes of levels; categories without a kind are several of 0 and 1.
    positive : str, optional
        The label of the target that is class 1; the other one, or all others, are class 0.
    needed : sequence of str
        Columns that are no features, but must have a number in every row.
    decimals : sequence of str
        Decimal marks of numbers in text, the likelier one first.
    min_rows : int
        Least number of rows.
    notes, problems : sequences
        What is known of the table already.
    row_numbers : array of shape (n,), optional
        The number of each row in its file, from 1, if the table lacks some rows of the file.
    """
    names = _feature_columns(table, target, drop, needed, categories)
    unnamed = [column_name for column_name in names if _INDEX.fullmatch(column_name)]
    left_out = set(unnamed)
    names = [column_name for column_name in names if column_name not in left_out]
    if row_numbers is None:
        row_numbers = np.arange(1, table.num_rows + 1)
    kinds = _checked_kinds(kinds or {}, table, names, drop, categories)
    read = _Columns(
        table, target, missing, dates, frozenset(categories), decimals, row_numbers, kinds
    )
    read.notes += notes
    read.problems += problems
    if unnamed:
        read.notes.append(f"Left out because they have no name: {listed(unnamed)}.")
    if not table.num_rows:
        read.refuse_rows(min_rows, 0)
    for column_name in (*names, target, *needed):
        read.read(column_name)
    names = [column_name for column_name in names if column_name in read.arrays]
    if target not in read.arrays:
        raise InvalidTableError(read.problems)
    used = pa.table(read.arrays)
    rows = _rows_to_use(read, used, names, [target, *(n for n in needed if n in read.arrays)])
    used = used.take(pa.array(rows))
    if len(rows) < min_rows:
        read.refuse_rows(min_rows, len(rows))
    with collected(read.problems):
        features = used.select(names)
        encoding = Encoding.learn(features, read.formats, missing, row_numbers[rows], kinds)
    with collected(read.problems):
        labels = used.column(target)
        encoded = encode_target(labels, target, task, positive, row_numbers[rows])
    numbers = {}
    for column_name in (name for name in needed if name in read.arrays):
        column = used.column(column_name)
        numbers[column_name], bad, *_ = read_numbers(column, NumberFormat(decimals[0]))
        if len(bad):
            got = f"{column[int(bad[0])].as_py()!r} in row {row_numbers[rows[bad[0]]]:,}"
            sentence = f"Column {column_name!r} must be of numbers. Got {got}. Name another."
            read.problems.append(TableProblem(sentence))
    if read.problems:
        raise InvalidTableError(read.problems)
    if not encoding.columns:
        got = f"no column that varies besides {target!r}"
        refuse("The table", "of a target and features", got, "Add columns to predict it from.")
    varying = set(encoding.column_names)
    constant = [column_name for column_name in names if column_name not in varying]
    flat = next(
        (column_name for column_name in constant if kinds.get(column_name) == "place"), None
    )
    if flat is not None:
        got = f"{flat!r}, which has one value only"
        refuse("--columns", "of a place whose columns vary", got, "Leave the place out.")
    all_notes = [
        *read.notes,
        *encoded.notes,
        *(f"Left out because it has one value only: {column_name!r}." for column_name in constant),
        *_encoding_notes(encoding),
    ]
    used = table.select(list(encoding.column_names)).take(pa.array(rows))
    X = encoding.encode(used).X
    problem = Problem(
        name=name,
        task=encoded.task,
        target=target,
        feature_names=encoding.feature_names,
        X=X,
        y=encoded.y,
        classes=encoded.classes,
        source=source,
        notes=tuple(all_notes),
        rows=row_numbers[rows] - 1,
        needed=numbers,
        one_against_rest=encoded.one_against_rest,
        encoding=None if encoding.plain else encoding,
    )
    return problem, encoding


def _rows_to_use(
    read: _Columns, table: pa.Table, features: Sequence[str], required: Sequence[str]
) -> NDArray[np.int64]:
    """Return the indices of the rows to use, and add notes on missing values."""
    counts = missing_counts(table, [*features, *required])
    if not counts:
        return np.arange(table.num_rows, dtype=np.int64)
    if read.missing == "error":
        only_required = set(counts) <= set(required)
        best = "drop" if only_required else "impute"
        counts = {name: count for name, count in counts.items() if name not in read.reported}
        if counts:
            read.refuse(
                f"Values are missing in {counted(counts)}, of {table.num_rows:,} rows",
                {"--missing": (best,)},
                *(["--missing impute"] if not only_required else []),
                "--missing drop",
            )
        return np.flatnonzero(complete_rows(table, required))
    imputable = {
        name
        for name in (features if read.missing != "drop" else ())
        if read.missing == "impute"
        or kind_of(table.column(name).type) == "category"
        or read.kinds.get(name) in LEVEL_KINDS
    }
    dropping = {name: count for name, count in counts.items() if name not in imputable}
    rows = np.flatnonzero(complete_rows(table, dropping))
    if dropping:
        left = plural(table.num_rows - len(rows), "row")
        read.notes.append(f"Left out {left} with missing values: {counted(dropping)}.")
    filled = {name: count for name, count in counts.items() if name in imputable}
    if filled:
        read.notes.append(
            f"Missing values are kept: {counted(filled)}. A number gets the median of its column"
            " and a column of 0 and 1 says where; a category gets a level."
        )
    return rows


def _encoding_notes(encoding: Encoding) -> Iterator[str]:
    for column in encoding.columns:
        if isinstance(column, CategoryColumn):
            yield (
                f"Column {column.name!r} is encoded as {plural(len(column.levels), 'column')} of 0"
                f" and 1; its base level is {column.base!r}."
            )
        elif isinstance(column, LevelColumn):
            number_of_levels = plural(len(column.levels), "level")
            yield f"Column {column.name!r} is a {column.use} of {number_of_levels}."


def _checked_kinds(
    kinds: Mapping[str, ColumnKind],
    table: pa.Table,
    features: Sequence[str],
    drop: Sequence[str],
    categories: Sequence[str],
) -> dict[str, ColumnKind]:
    """Return the kinds of features; raise `InvalidInputError` for kinds of other columns."""
    who = "A column of --columns"
    for name, kind in kinds.items():
        if name not in table.column_names:
            refuse_column(who, name, table.column_names)
        if name in categories:
            allowed = "left out of --categories, which makes columns of 0 and 1"
            refuse(who, allowed, repr(name), "Leave out one of them.")
        if name not in features and name not in drop:
            refuse(who, "a column to predict from, with a name", repr(name))
        require(kind in KINDS, f"The kind of {name!r}", f"one of {', '.join(KINDS)}", repr(kind))
    used = {name: kind for name, kind in kinds.items() if name in features}
    places = [name for name, kind in used.items() if kind == "place"]
    allowed = "of two columns that are a place, the latitude and the longitude, or of none"
    require(len(places) in (0, 2), "--columns", allowed, f"{len(places)}")
    return used


def _feature_columns(
    table: pa.Table,
    target: str,
    drop: Sequence[str],
    needed: Sequence[str],
    categories: Sequence[str],
) -> list[str]:
    """Return the columns of features; all columns that are named must be in the table."""
    names = table.column_names
    available = set(names)
    others = {target, *drop, *needed}
    if target not in available:
        if names and all(map(NUMBER.fullmatch, names)):
            sentence = (
                f"The target must be a column of the table. Got {target!r}. The first row has"
                " numbers instead of names: add a row of names above, or use --no-header and"
                " columns x1, x2, …"
            )
            options = {"--no-header": (), "--target": (f"x{len(names)}",)}
            raise InvalidTableError([TableProblem(sentence, options)])
        refuse_column("The target", target, names)
    owners = {"drop": drop, "use as exposure or weight": needed, "use as categories": categories}
    for use, columns in owners.items():
        who = f"A column to {use}"
        for column in columns:
            if column not in available:
                refuse_column(who, column, names)
        is_other = target not in columns or columns is categories
        require(is_other, who, "another one than the target", repr(target))
    return [name for name in names if name not in others]
