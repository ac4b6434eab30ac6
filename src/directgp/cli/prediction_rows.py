"""The rows that are to be predicted, as a model takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.cli.known_targets import known_targets
from directgp.cli.model_card import ModelCard
from directgp.cli.opening import numbers_in
from directgp.cli.prediction_columns import schema_of
from directgp.datasets.missing import complete_rows, missing_counts, refuse_missing
from directgp.datasets.sources import open_source
from directgp.datasets.table_file import TableFile
from directgp.datasets.wording import counted, refuse_name, several, suggestion
from directgp.errors import InvalidInputError, refuse


@final
@dataclass(frozen=True)
class PredictionRequest:
    """What was typed."""

    model: Path
    data: str
    out: Path
    id_columns: tuple[str, ...]
    drop_missing: bool
    exposure: str | None
    data_dir: Path | None
    coverage: float
    score: bool
    device: str
    force: bool


@final
@dataclass(frozen=True)
class Rows:
    """Features of n rows, and what else is known of them."""

    source: str
    file: Path | None
    """Where they were read from, if that is a file."""

    X: NDArray[np.float64]
    ids: pa.Table
    exposure: NDArray[np.float64] | None
    y: NDArray[np.float64] | None
    """Targets as in training, NaN where they are missing; None where the table has none."""

    notes: tuple[str, ...]


def rows_to_predict(request: PredictionRequest, card: ModelCard) -> Rows:
    """Read what the model needs of the data, and check it."""
    source = open_source(request.data, request.data_dir)
    names = source.table.names
    exposure = _exposure(request, card)
    used = [*card.encoding.column_names, *([exposure] if exposure else [])]
    _check_used(used, names)
    _check_ids(request.id_columns, names, card)
    also = [*request.id_columns, *([card.target] if request.score else [])]
    wanted = [name for name in dict.fromkeys([*used, *also]) if name in names]
    # A code such as 007 is kept as it is written, unless the model uses it as a number.
    table = source.table.read(wanted, as_text=set(request.id_columns) - {*used, card.target})
    table, notes = _complete(table, used, request)
    return Rows(
        source=source.shown,
        file=source.table.path if isinstance(source.table, TableFile) else None,
        X=card.encoding.apply(table),
        ids=_plain(table.select(request.id_columns)),
        exposure=None if exposure is None else numbers_in(table, exposure, "The exposure"),
        y=known_targets(table, card) if request.score else None,
        notes=notes,
    )


def _exposure(request: PredictionRequest, card: ModelCard) -> str | None:
    if request.exposure is not None and card.task != "count":
        got = f"it for a model of the task {card.task}"
        refuse("--exposure", "given for counts alone", got, "Leave it out.")
    return request.exposure or card.exposure


def _check_used(used: Sequence[str], names: Sequence[str]) -> None:
    for name in used:
        if name not in names:
            remedy = suggestion(name, names, "Its columns")
            refuse("DATA", "a table with all columns that the model uses", f"no {name!r}", remedy)


def _check_ids(ids: Sequence[str], names: Sequence[str], card: ModelCard) -> None:
    """Refuse columns to keep that are not there, or that are written anyway."""
    for name in ids:
        if name not in names:
            refuse_name("--id", name, names)
        if name in schema_of(card).names:
            got = f"{name!r}, which is one of the predictions"
            refuse("--id", "a column of another name", got, "Rename it in the data.")


def _complete(
    table: pa.Table, used: Sequence[str], request: PredictionRequest
) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows that can be predicted, and what to say of the others."""
    counts = missing_counts(table, used)
    if not request.drop_missing:
        refuse_missing(table, counts, "Leave out these rows with --drop-missing.")
    left = table.filter(pa.array(complete_rows(table, used))) if counts else table
    if not left.num_rows:
        got = f"none of {table.num_rows:,} without gaps" if counts else "none"
        raise InvalidInputError(f"DATA must have rows to predict. Got {got}.")
    lost = several(table.num_rows - left.num_rows, "row")
    return left, (f"Left out {lost} with missing values: {counted(counts)}.",) if counts else ()


def _plain(ids: pa.Table) -> pa.Table:
    """Columns that any format can hold."""
    for index, field in enumerate(ids.schema):
        if pa.types.is_nested(field.type):
            refuse("--id", "a column of single values", f"{field.name!r}, of type {field.type}")
        if pa.types.is_dictionary(field.type):
            plain = ids.column(index).cast(field.type.value_type)
            ids = ids.set_column(index, field.name, plain)
    return ids
