"""Predict the rows of a table in blocks, write and score them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from directgp.cli.data import named_columns, numbers_in
from directgp.cli.model_folder import ModelCard, load_folder
from directgp.cli.output_paths import check_output_file, writing
from directgp.cli.terminal import Terminal
from directgp.datasets.columns import drop_incomplete_rows, missing_counts
from directgp.datasets.sources import open_source
from directgp.datasets.tables import refuse_column
from directgp.datasets.targets import encode_classes
from directgp.errors import InvalidInputError, refuse
from directgp.likelihoods.counts import exposed
from directgp.predictive import predictive_variance
from directgp.shapes import Marginals
from directgp.text import number, plural, suggestion

Column = NDArray[np.float64]
Columns = dict[str, pa.Array]

_BLOCK = 2**16
"""Rows that are predicted and written at once, which bounds the memory."""

_NUMBERS = ("mean", "sd", "lower", "upper")
_LABEL = "predicted"
_SCORE_NAMES = {"nll": "NLL", "mse": "MSE", "error": "error", "mre": "MRE"}


@final
@dataclass(frozen=True)
class PredictionRequest:
    """The arguments of the command."""

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


def predict_and_write(request: PredictionRequest, terminal: Terminal) -> None:
    """Predict the rows of the data, write them to a file and print the scores."""
    check_output_file(request.out, request.force, inputs=(Path(request.data),))
    model, card = load_folder(request.model, request.device)
    rows = read_rows(request, card)
    if rows.file is not None:
        check_output_file(request.out, request.force, inputs=(rows.file,))
    for note in rows.notes:
        terminal.note(note)
    scores = _write(request, model, card, rows)
    found = scores.means() if scores.rows else None
    terminal.answer(
        {
            "source": rows.source,
            "rows": len(rows.X),
            "out": str(request.out),
            "coverage": request.coverage,
            "scores": found,
            "scored_rows": scores.rows,
            "notes": list(rows.notes),
        }
    )
    terminal.show(f"Wrote predictions of {plural(len(rows.X), 'row')} to {request.out}.")
    if found is not None:
        names = _SCORE_NAMES | {"coverage": f"coverage of {100 * request.coverage:g} % intervals"}
        parts = ", ".join(f"{names[name]} {number(value, 4)}" for name, value in found.items())
        terminal.show(f"Compared with {card.target!r} in {plural(scores.rows, 'row')}: {parts}.")


def _write(
    request: PredictionRequest, model: Any, card: ModelCard, rows: "PredictionRows"
) -> "Scores":
    schema = pa.schema([*rows.ids.schema, *schema_of(card)])
    scores = Scores(card)
    with writing(request.out, schema) as write:
        for start in range(0, len(rows.X), _BLOCK):
            block = slice(start, start + _BLOCK)
            X = named_columns(rows.X[block], card.encoding.feature_names)
            exposure = None if rows.exposure is None else rows.exposure[block]
            found = predicted_columns(model, card, X, exposure, request.coverage)
            if rows.y is not None:
                scores.add(model, X, rows.y[block], exposure, found)
            ids = rows.ids.slice(start, len(X))
            write(pa.table([*ids.columns, *found.values()], schema=schema))
    return scores


# Reading.


@final
@dataclass(frozen=True)
class PredictionRows:
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


def read_rows(request: PredictionRequest, card: ModelCard) -> PredictionRows:
    """Read and check the columns that the model needs."""
    source = open_source(request.data, request.data_dir)
    names = set(source.table.names)
    exposure = request.exposure or card.exposure
    if request.exposure is not None and card.task != "count":
        got = f"it for a model of the task {card.task}"
        refuse("--exposure", "given for counts alone", got, "Leave it out.")
    used = [*card.encoding.column_names, *([exposure] if exposure else [])]
    for name in used:
        if name not in names:
            remedy = suggestion(name, source.table.names, "Its columns")
            refuse("DATA", "a table with all columns that the model uses", f"no {name!r}", remedy)
    predicted = set(schema_of(card).names)
    for name in request.id_columns:
        if name not in names:
            refuse_column("--id", name, source.table.names)
        if name in predicted:
            got = f"{name!r}, which is one of the predictions"
            refuse("--id", "a column of another name", got, "Rename it in the data.")
    also = [*request.id_columns, *([card.target] if request.score else [])]
    wanted = [name for name in dict.fromkeys([*used, *also]) if name in names]
    # An id such as 007 stays text, unless the model uses it as a number.
    table = source.table.read(wanted, as_text=set(request.id_columns) - {*used, card.target})
    complete, _, notes = drop_incomplete_rows(table, used, allowed=request.drop_missing)
    if not complete.num_rows:
        got = f"none of {table.num_rows:,} without missing values" if notes else "none"
        raise InvalidInputError(f"DATA must have rows to predict. Got {got}.")
    return PredictionRows(
        source=source.shown,
        file=source.table.path,
        X=card.encoding.apply(complete),
        ids=_plain_ids(complete.select(request.id_columns)),
        exposure=None if exposure is None else numbers_in(complete, exposure, "The exposure"),
        y=_targets(complete, card) if request.score else None,
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


def _targets(table: pa.Table, card: ModelCard) -> Column | None:
    """Return the targets with NaN for missing ones, or None if there are none."""
    name = card.target
    if name not in table.column_names or missing_counts(table, [name]).get(name) == table.num_rows:
        return None
    if card.classes is None:
        return numbers_in(table, name, f"The target {name!r}")
    remedy = "Correct or remove these rows, or ignore the target with --no-score."
    return encode_classes(table.column(name), name, card.classes, remedy)


# Predicting.


def schema_of(card: ModelCard) -> pa.Schema:
    """Return names and types of the columns that `predicted_columns` returns."""
    names = _NUMBERS if card.classes is None else [f"p_{each}" for each in card.classes]
    fields = [pa.field(name, pa.float64()) for name in names]
    return pa.schema(fields if card.classes is None else [*fields, (_LABEL, pa.string())])


def predicted_columns(
    model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float
) -> Columns:
    """Return mean, deviation and interval of y, or probabilities of the classes and the label."""
    if card.classes is not None:
        label = np.array(card.classes, dtype=object)[(model.decision_function(X) > 0).astype(int)]
        columns = [*model.predict_proba(X).T, label]
    elif card.task == "count":
        interval = model.predict_interval(X, coverage, exposure)
        columns = [model.predict(X, exposure), _count_deviation(model, X, exposure), *interval]
    else:
        columns = [*model.predict(X, return_std=True), *model.predict_interval(X, coverage)]
    return dict(zip(schema_of(card).names, map(pa.array, columns), strict=True))


def _count_deviation(model: Any, X: Any, exposure: Column | None) -> Column:
    """Return the standard deviation of counts, from the marginals of f."""
    device = model.posterior_.Z.device
    mean, sd = (torch.as_tensor(each, device=device) for each in model.predict_latent(X))
    over = None if exposure is None else torch.as_tensor(exposure, device=device)
    with torch.no_grad():
        variance = predictive_variance(exposed(model.likelihood_, over), Marginals(mean, sd**2))
    found: Column = variance.sqrt().cpu().numpy()
    return found


@final
class Scores:
    """Mean scores over all rows whose target is known."""

    def __init__(self, card: ModelCard) -> None:
        self._classes, self._task = card.classes, card.task
        self._sums: dict[str, float] = {}
        self.rows = 0

    def add(
        self, model: Any, X: Any, y: Column, exposure: Column | None, predicted: Columns
    ) -> None:
        """Add a block of rows; rows whose target is NaN do not count."""
        known = np.isfinite(y)
        if not known.any():
            return
        given = {}
        if self._task == "count":
            given["exposure"] = None if exposure is None else exposure[known]
        losses = {name: values[known] for name, values in self._losses(y, predicted).items()}
        nll = -model.log_density(X.filter(known), y[known], **given)
        self.rows += len(nll)
        for name, values in {"nll": nll, **losses}.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())

    def means(self) -> dict[str, float]:
        """Return the mean of each score."""
        return {name: total / self.rows for name, total in self._sums.items()}

    def _losses(self, y: Column, predicted: Columns) -> dict[str, NDArray[Any]]:
        if self._classes is not None:
            labels = np.asarray(predicted[_LABEL].to_pylist(), dtype=object)
            return {"error": (labels == self._classes[1]) != (y > 0.5)}
        mean, lower, upper = (predicted[name].to_numpy() for name in ("mean", "lower", "upper"))
        covered = (lower <= y) & (y <= upper)
        if self._task == "count":
            return {"mre": np.abs(mean - y) / np.maximum(1, y), "coverage": covered}
        return {"mse": (mean - y) ** 2, "coverage": covered}
