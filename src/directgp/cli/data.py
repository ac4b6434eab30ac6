"""Load the data named on the command line, for training and for prediction."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.cli.options import DataOptions, split_names, usage_errors
from directgp.datasets.columns import (
    guess_format,
    kind_of,
    missing_counts,
    read_numbers,
    to_numbers,
)
from directgp.datasets.dialect import DECIMALS
from directgp.datasets.encoding import Encoding, NumberColumn
from directgp.datasets.problem import MIN_ROWS, Problem
from directgp.datasets.sources import Source, open_source, prepare_source
from directgp.datasets.tables import ReadableTable, refuse_column
from directgp.datasets.targets import encode_classes
from directgp.errors import DirectGPError, InvalidInputError, InvalidTableError, refuse
from directgp.text import suggestion

if TYPE_CHECKING:
    from directgp.cli.model_folder import ModelCard

Column = NDArray[np.float64]


class Opened(NamedTuple):
    """A problem, with the exposures and weights of its rows."""

    problem: Problem
    encoding: Encoding
    positive: str | None
    """The label of class 1, if it was given."""

    header: bool
    """Whether the first row of the file has names."""

    columns: dict[str, str]
    values: dict[str, Column]
    """Names and values of the columns "exposure" and "weights", if given."""


_FIT_ROWS = 5
"""Rows that `directgp fit` needs, at least."""


def open_data(given: DataOptions, command: str = "fit", **columns: str | None) -> Opened:
    """Read the data and prepare them for a command; `columns` are "exposure" and "weights".

    An `InvalidTableError` has all problems, and the options with which the command works.
    """
    extra = {role: name for role, name in columns.items() if name is not None}
    min_rows = _FIT_ROWS if command == "fit" else MIN_ROWS
    try:
        return _open(given, extra, min_rows)
    except InvalidTableError as error:
        error.options = _options_that_work(given, extra, min_rows, error)
        if error.options is None and command != "fit":
            fitting = _options_that_work(given, extra, _FIT_ROWS, error)
            if fitting is not None:
                task = [] if given.task is None else ["--task", given.task]
                words = given.with_options(fitting).words()
                error.instead = ["fit", *words, *task, "--out", "model"]
        raise


def _options_that_work(
    given: DataOptions, extra: Mapping[str, str], min_rows: int, error: InvalidTableError
) -> dict[str, tuple[str, ...]] | None:
    """Return options with which the data can be used; None if there are none."""
    found: dict[str, tuple[str, ...]] = {}
    problems = error.problems
    for _ in range(_MAX_ROUNDS):
        for option, values in (each for p in problems for each in p.options.items()):
            if option in ("--drop", "--categories"):
                found[option] = tuple(dict.fromkeys((*found.get(option, ()), *values)))
            elif found.get(option) != ("impute",):
                found[option] = tuple(values)
        try:
            _open(given.with_options(found), extra, min_rows)
        except InvalidTableError as again:
            problems = again.problems
        except DirectGPError:
            return None
        else:
            return found
    return None


_MAX_ROUNDS = 4
"""Times that options are added for problems that appear when others are solved."""


def _open(given: DataOptions, extra: Mapping[str, str], min_rows: int) -> Opened:
    source = open_source(given.data, given.data_dir, given.reading)
    for role, name in extra.items():
        if name not in source.table.names:
            refuse_column(f"--{role}", name, source.table.names)
    with usage_errors():
        source.choose(given.target, given.task, given.positive)
    names = source.table.names
    problem, encoding = prepare_source(
        source,
        target=given.target,
        task=given.task,
        positive=given.positive,
        drop=split_names(given.drop, names),
        categories=split_names(given.categories, names),
        missing=given.policy,
        dates=given.dates,
        needed=tuple(extra.values()),
        min_rows=min_rows,
    )
    kept = pa.array(problem.rows)
    values = {
        role: numbers_in(source.table.read([name]).take(kept), name, f"--{role}")
        for role, name in extra.items()
    }
    header = given.header is not False
    return Opened(problem, encoding, given.positive, header, dict(extra), values)


def named_columns(X: Column, names: Sequence[str]) -> pa.Table:
    """Return the columns of X as a table, so that a model stores and checks their names."""
    return pa.table([pa.array(column) for column in X.T], names=list(names))


def numbers_in(table: pa.Table, name: str, who: str) -> Column:
    """Return a column as numbers, with NaN for missing values."""
    column = table.column(name)
    if kind_of(column.type) != "number":
        refuse(who, "a column of numbers", f"{name!r}, of type {column.type}", "Name another.")
    return to_numbers(column)


class PredictionRows(NamedTuple):
    """The features of n rows, with their ids, exposures and targets."""

    source: str
    file: Path | None
    """The file they come from, if they come from a file."""

    X: Column
    """Features, with NaN where they are missing."""

    usable: NDArray[np.bool_]
    reasons: dict[int, str]
    """Whether each row can be predicted, and what is wrong with some, by row."""

    ids: pa.Table
    """The columns to copy, or the numbers of the rows."""

    exposure: Column | None
    y: Column | None
    """Targets as in training, with NaN for missing ones; None if the table has no targets."""

    def take(self, kept: NDArray[np.bool_]) -> "PredictionRows":
        """Return some of the rows."""
        rows = np.flatnonzero(kept)
        number = {int(row): place for place, row in enumerate(rows)}
        return self._replace(
            X=self.X[rows],
            usable=self.usable[rows],
            reasons={number[row]: text for row, text in self.reasons.items() if row in number},
            ids=self.ids.take(pa.array(rows)),
            exposure=None if self.exposure is None else self.exposure[rows],
            y=None if self.y is None else self.y[rows],
        )


ROW_NUMBER = "row"
"""Column with the number of each row, from 1, if no other column identifies it."""


def open_rows(
    card: "ModelCard",
    source: Source,
    exposure: str | None,
    id_columns: Sequence[str],
    written: Collection[str],
    score: bool,
) -> PredictionRows:
    """Read and check the columns that a model needs for predictions.

    `written` are the columns of the output, whose names ids cannot have.
    """
    if exposure is not None and card.task != "count":
        got = f"it for a model of the task {card.task}"
        refuse("--exposure", "given for counts alone", got, "Leave it out.")
    names, exposure = source.table.names, exposure or card.exposure
    encoding = _encoding(card, source.table)
    used = [*encoding.column_names, *([exposure] if exposure else [])]
    for name in used:
        if name not in names:
            remedy = suggestion(name, names, "Its columns")
            refuse("DATA", "a table with all columns that the model uses", f"no {name!r}", remedy)
    for name in id_columns:
        if name not in names:
            refuse_column("--id", name, names)
        if name in written:
            got = f"{name!r}, which is one of the predictions"
            refuse("--id", "a column of another name", got, "Rename it in the data.")
    also = [*id_columns, *([card.target] if score else [])]
    wanted = [name for name in dict.fromkeys([*used, *also]) if name in names]
    # An id such as 007 stays text, unless the model uses it as a number.
    as_text = {*encoding.verbatim, *(set(id_columns) - {*used, card.target})}
    table = source.table.read(wanted, as_text=as_text)
    source.table.require_regular()
    if not table.num_rows:
        raise InvalidInputError("DATA must have rows to predict. Got none.")
    encoded = encoding.encode(table)
    exposures = None if exposure is None else numbers_in(table, exposure, "The exposure")
    usable, reasons = encoded.usable, encoded.reasons
    if exposures is not None:
        bad = ~(np.isfinite(exposures) & (exposures > 0))
        usable &= ~bad
        for row in np.flatnonzero(bad).tolist():
            before = f"{reasons[row]}; " if row in reasons else ""
            reasons[row] = f"{before}{exposure} is {exposures[row]:g}, no positive number"
    numbers = pa.table({ROW_NUMBER: np.arange(1, table.num_rows + 1)})
    return PredictionRows(
        source=source.shown,
        file=source.table.path,
        X=encoded.X,
        usable=usable,
        reasons=reasons,
        ids=_plain_ids(table.select(list(id_columns))) if id_columns else numbers,
        exposure=exposures,
        y=_targets(table, card) if score else None,
    )


def _encoding(card: "ModelCard", table: ReadableTable) -> Encoding:
    """Return the encoding of the model, with the decimal mark of the new file if it is given."""
    marks, columns = table.reading.decimals(table.decimal), card.encoding.columns
    if len(marks) > 1:
        return card.encoding
    new = {"decimal": marks[0]}
    return Encoding(
        columns=tuple(
            column.model_copy(update=new) if isinstance(column, NumberColumn) else column
            for column in columns
        )
    )


def _plain_ids(ids: pa.Table) -> pa.Table:
    """Return the ids in types that every output format has."""
    columns = []
    for name, column in zip(ids.column_names, ids.columns, strict=True):
        if pa.types.is_nested(column.type):
            refuse("--id", "a column of single values", f"{name!r}, of type {column.type}")
        is_dictionary = pa.types.is_dictionary(column.type)
        columns.append(column.cast(column.type.value_type) if is_dictionary else column)
    return pa.table(columns, names=ids.column_names)


def _targets(table: pa.Table, card: "ModelCard") -> Column | None:
    """Return the targets with NaN for missing ones, or None if there are none."""
    name = card.target
    if name not in table.column_names or missing_counts(table, [name]).get(name) == table.num_rows:
        return None
    column = table.column(name)
    if card.classes is not None:
        remedy = "Correct or remove these rows, or ignore the target with --no-score."
        return encode_classes(column, name, card.classes, remedy)
    form = guess_format(column, DECIMALS) if kind_of(column.type) == "category" else None
    if form is not None:
        column = pa.chunked_array([pa.array(read_numbers(column, form).values, from_pandas=True)])
    return numbers_in(pa.table({name: column}), name, f"The target {name!r}")
