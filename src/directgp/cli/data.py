"""Load the data named on the command line, for training and for prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.cli.options import DataOptions, usage_errors
from directgp.datasets.columns import drop_incomplete_rows, kind_of, missing_counts, to_numbers
from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import Problem, prepare
from directgp.datasets.sources import open_source
from directgp.datasets.tables import refuse_column
from directgp.datasets.targets import encode_classes
from directgp.errors import InvalidInputError, refuse
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

    columns: dict[str, str]
    values: dict[str, Column]
    """Names and values of the columns "exposure" and "weights", if given."""


def open_data(given: DataOptions, **columns: str | None) -> Opened:
    """Read the data and prepare them for training; `columns` are "exposure" and "weights"."""
    source = open_source(given.data, given.data_dir)
    extra = {role: name for role, name in columns.items() if name is not None}
    for role, name in extra.items():
        if name not in source.table.names:
            refuse_column(f"--{role}", name, source.table.names)
    with usage_errors():
        target, task = source.choose(given.target, given.task, given.positive)
    table, _, notes = drop_incomplete_rows(
        source.table.read(), extra.values(), allowed=given.drop_missing
    )
    problem, encoding = prepare(
        table,
        target,
        task=task,
        name=source.name,
        source=source.shown,
        drop=[*(given.drop or ()), *extra.values()],
        drop_missing=given.drop_missing,
        positive=given.positive,
        notes=(*source.notes, *notes),
    )
    kept = pa.array(problem.rows)
    values = {
        role: numbers_in(table.select([name]).take(kept), name, f"--{role}")
        for role, name in extra.items()
    }
    return Opened(problem, encoding, given.positive, extra, values)


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
    ids: pa.Table
    exposure: Column | None
    y: Column | None
    """Targets as in training, with NaN for missing ones; None if the table has no targets."""

    notes: tuple[str, ...]


def open_rows(
    card: "ModelCard",
    data: str,
    data_dir: Path | None,
    exposure: str | None,
    id_columns: tuple[str, ...],
    drop_missing: bool,
    score: bool,
) -> PredictionRows:
    """Read and check the columns that a model needs for predictions."""
    if exposure is not None and card.task != "count":
        got = f"it for a model of the task {card.task}"
        refuse("--exposure", "given for counts alone", got, "Leave it out.")
    source = open_source(data, data_dir)
    names, exposure = source.table.names, exposure or card.exposure
    used = [*card.encoding.column_names, *([exposure] if exposure else [])]
    for name in used:
        if name not in names:
            remedy = suggestion(name, names, "Its columns")
            refuse("DATA", "a table with all columns that the model uses", f"no {name!r}", remedy)
    for name in id_columns:
        if name not in names:
            refuse_column("--id", name, names)
        if name in card.predicted_names:
            got = f"{name!r}, which is one of the predictions"
            refuse("--id", "a column of another name", got, "Rename it in the data.")
    also = [*id_columns, *([card.target] if score else [])]
    wanted = [name for name in dict.fromkeys([*used, *also]) if name in names]
    # An id such as 007 stays text, unless the model uses it as a number.
    table = source.table.read(wanted, as_text=set(id_columns) - {*used, card.target})
    complete, _, notes = drop_incomplete_rows(table, used, allowed=drop_missing)
    if not complete.num_rows:
        got = f"none of {table.num_rows:,} without missing values" if notes else "none"
        raise InvalidInputError(f"DATA must have rows to predict. Got {got}.")
    return PredictionRows(
        source=source.shown,
        file=source.table.path,
        X=card.encoding.apply(complete),
        ids=_plain_ids(complete.select(id_columns)),
        exposure=None if exposure is None else numbers_in(complete, exposure, "The exposure"),
        y=_targets(complete, card) if score else None,
        notes=notes,
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
    if card.classes is None:
        return numbers_in(table, name, f"The target {name!r}")
    remedy = "Correct or remove these rows, or ignore the target with --no-score."
    return encode_classes(table.column(name), name, card.classes, remedy)
