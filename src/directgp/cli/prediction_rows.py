"""Read the rows that a model predicts, with their ids, row constants and targets."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.cli.model_folder import ModelCard
from directgp.datasets.columns import (
    Mark,
    NumberFormat,
    guess_format,
    is_missing,
    kind_of,
    plain_values,
    read_numbers,
    shown_value,
)
from directgp.datasets.encoding import RowReasons
from directgp.datasets.readers import refuse_column
from directgp.datasets.sources import Source
from directgp.datasets.targets import encode_classes
from directgp.errors import InvalidInputError, InvalidTableError, refuse
from directgp.registry import ROW_CONSTANTS, RowConstant
from directgp.text import suggestion

Column = NDArray[np.float64]


class PredictionRows(NamedTuple):
    """The features of n rows, with their ids, row constants and targets."""

    X: Column
    """Features, with NaN where they are missing."""

    usable: NDArray[np.bool_]
    """Whether each row can be predicted."""

    reasons: RowReasons
    """What is wrong with some rows, by row."""

    ids: pa.Table
    """The columns to copy, or the numbers of the rows."""

    numbers: NDArray[np.int64]
    """The number of each row in the file, from 1."""

    row_values: tuple[str, Column] | None
    """The constant of each row, by the name of its argument; NaN where the row is not used."""

    y: Column | None
    """Targets as in training, with NaN for missing ones; None if the table has no targets."""

    notes: list[str]
    """What the user should know of the targets."""


ROW_NUMBER = "row"
"""Column with the number of each row, from 1, if no other column identifies it."""


def open_rows(
    card: ModelCard,
    source: Source,
    row_column: tuple[str, str] | None,
    id_columns: Sequence[str],
    written: Collection[str],
    score: bool,
    density: bool,
    drop_missing: bool,
) -> PredictionRows:
    """Read and check the columns that a model needs for predictions.

    `written` are the columns of the output, whose names ids cannot have. `score` and `density` need
    targets; without their upper ends only `density` is an error. `drop_missing` accepts that rows
    with more or fewer values than names are left out.
    """
    names = source.table.names
    # The upper end of a target is needed where targets are scored, and nowhere else.
    is_scored = (score or density) and card.target in names
    notes = list[str]()
    if row_column is None and card.row_column is not None:
        constant_of_fit, column_of_fit = card.row_column
        if not ROW_CONSTANTS[constant_of_fit].of_target:
            row_column = card.row_column
        elif is_scored and (density or column_of_fit in names):
            # With `density`, a missing column is an error.
            row_column = card.row_column
        elif is_scored:
            is_scored = False
            notes.append(
                f"{card.target!r} has no upper ends, as DATA has no column {column_of_fit!r}:"
                " predictions are not scored."
            )
    argument, row_name = row_column or (None, None)
    decimals = source.table.reading.decimals(source.table.decimal)
    encoding = card.encoding
    used = [*encoding.column_names, *([row_name] if row_name else [])]
    columns_of_table = set(names)
    for name in used:
        if name not in columns_of_table:
            remedy = suggestion(name, names, "Its columns")
            refuse("DATA", "a table with all columns that the model uses", f"no {name!r}", remedy)
    for name in id_columns:
        if name not in columns_of_table:
            refuse_column("--id", name, names)
        if name in written:
            got = f"{name!r}, which is one of the predictions"
            refuse("--id", "a column of another name", got, "Rename it in the data.")
    wanted = list(dict.fromkeys([*used, *id_columns, *([card.target] if is_scored else [])]))
    # An id such as 007 stays text, unless the model uses it as a number.
    as_text = {*encoding.verbatim, *(set(id_columns) - {*used, card.target})}
    table = source.table.read(wanted, as_text=as_text)
    if source.table.irregular and not drop_missing:
        raise InvalidTableError([source.table.irregular_rows("--drop-missing")])
    if not table.num_rows:
        raise InvalidInputError("DATA must have rows to predict. Got none.")
    decimal = decimals[0] if len(decimals) == 1 else source.table.decimal
    encoded = encoding.encode(table, decimal)
    row_values = None
    y = None
    usable = encoded.usable
    reasons = encoded.reasons

    def explain(faults: Mapping[int, str], then: str = "") -> None:
        for row, fault in faults.items():
            reasons.add([row], fault + then)

    target = table.column(card.target) if is_scored else None
    if target is not None and not is_missing(target).all():
        y, faults = _targets(target, card, decimals)
        explain(faults, " (not scored)")
        if y is None:
            notes.append(f"{card.target!r} has no numbers: predictions are not scored.")
    if argument is not None and row_name is not None:
        constant = ROW_CONSTANTS[argument]
        column = table.column(row_name)
        values, faults = _row_values(column, row_name, constant, decimals)
        row_values = argument, values
        if not constant.of_target:
            usable[list(faults)] = False
            explain(faults)
        elif y is not None:
            faults = {row: fault for row, fault in faults.items() if not np.isnan(y[row])}
            y[list(faults)] = np.nan
            explain(faults, " (not scored)")
    ids = _plain_ids(table.select(list(id_columns)))
    numbers = source.table.row_numbers(table.num_rows)
    if not id_columns:
        ids = pa.table({ROW_NUMBER: numbers})
    return PredictionRows(encoded.X, usable, reasons, ids, numbers, row_values, y, notes)


def check_targets(model: Any, card: ModelCard, rows: PredictionRows, density: bool) -> None:
    """Raise `InvalidInputError` with the row of the first target that the model cannot score."""
    from directgp.estimators.validation import RowValues  # imports torch

    y = rows.y
    # Labels that are no class are refused where they are encoded.
    if y is None or card.classes is not None:
        return
    scored = np.flatnonzero(rows.usable & ~np.isnan(y))
    constants = RowValues(*rows.row_values) if rows.row_values is not None else None

    def broken_rule(number: int) -> str:
        """Return the rule that one of the first rows breaks; an empty string if none does."""
        chosen = scored[:number]
        own = constants.take(chosen) if constants is not None else None
        try:
            model._check_targets(y[chosen], own, "directgp predict")
        except InvalidInputError as error:
            return error.rule or str(error)
        return ""

    if not len(scored) or not broken_rule(len(scored)):
        return
    first = bisect_left(range(len(scored)), True, key=lambda place: bool(broken_rule(place + 1)))
    row = scored[first]
    got = f"{y[row]:g}"
    if constants is not None:
        got += f" with {constants.argument} {constants.values[row]:g}"
    without = ", without --density" if density else ""
    raise InvalidInputError(
        f"The target {card.target!r} cannot be scored: {broken_rule(first + 1)}"
        f" Got {got} in row {rows.numbers[row]:,}. Correct or remove such rows, or ignore the"
        f" target with --no-score{without}."
    )


def _plain_ids(ids: pa.Table) -> pa.Table:
    """Return the ids in types that every output format has."""
    for field in ids.schema:
        if pa.types.is_nested(field.type):
            refuse("--id", "a column of single values", f"{field.name!r}, of type {field.type}")
    return pa.table([plain_values(column) for column in ids.columns], names=ids.column_names)


def _row_values(
    column: pa.ChunkedArray, name: str, constant: RowConstant, decimals: Sequence[Mark]
) -> tuple[Column, dict[int, str]]:
    """Return the constant of each row, and what is wrong with those that are not allowed."""
    values, faults = _numbers(column, name, decimals)
    for row in np.flatnonzero(~constant.valid(values)).tolist():
        value = values[row]
        what = "missing" if np.isnan(value) else f"{value:g}, which is not {constant.allowed}"
        faults.setdefault(row, f"{name} is {what}")
    return values, faults


def _targets(
    column: pa.ChunkedArray, card: ModelCard, decimals: Sequence[Mark]
) -> tuple[Column | None, dict[int, str]]:
    """Return the targets, None if none is a number, and what is wrong with others, by row."""
    if card.classes is not None:
        remedy = "Correct or remove these rows, or ignore the target with --no-score."
        rest = card.has_one_against_rest
        return encode_classes(column, card.target, card.classes, rest, remedy), {}
    values, faults = _numbers(column, card.target, decimals)
    return (None, {}) if np.isnan(values).all() else (values, faults)


def _numbers(
    column: pa.ChunkedArray, name: str, decimals: Sequence[Mark]
) -> tuple[Column, dict[int, str]]:
    """Return a column as numbers, NaN where there is none, and unparsable texts, by row."""
    form = guess_format(column, decimals) if kind_of(column.type) == "category" else None
    try:
        values, bad, *_ = read_numbers(column, form or NumberFormat(decimals[0]))
    except TypeError:
        # Times, lists and the like.
        values = np.full(len(column), np.nan)
        bad = np.flatnonzero(~is_missing(column))
    texts = {row: shown_value(column[row]) for row in bad.tolist()}
    return values, {
        row: f"{name} is {text!r}, which is not a number" for row, text in texts.items()
    }
