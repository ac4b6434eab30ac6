"""Predict block by block for `directgp predict`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from directgp.cli.load_data import named_columns, numbers_in
from directgp.cli.model_folder import ModelCard, load_folder
from directgp.cli.output_paths import check_file_place, writing
from directgp.cli.terminal import Terminal
from directgp.datasets.columns import complete_rows, missing_counts, refuse_missing
from directgp.datasets.sources import open_source
from directgp.datasets.tables import TableFile
from directgp.datasets.targets import labels
from directgp.datasets.wording import counted, refuse_name, several, suggestion
from directgp.errors import InvalidInputError, refuse
from directgp.estimators.summary import figure
from directgp.likelihoods.counts import exposed
from directgp.predictive import predictive_variance
from directgp.shapes import Marginals


def known_targets(table: pa.Table, card: ModelCard) -> NDArray[np.float64] | None:
    """The target, NaN where it is missing; None where the table does not have it."""
    if card.target not in table.column_names:
        return None
    column = table.column(card.target)
    column = pc.if_else(pc.is_null(column, nan_is_null=True), None, column)
    if column.null_count == len(column):
        return None
    who = f"The target {card.target!r}"
    if card.classes is None:
        return numbers_in(table, card.target, who)
    text = labels(column, card.target)
    _check_labels(text, card.classes, card.positive, who)
    found = pc.cast(pc.equal(text, card.classes[1]), pa.float64())
    return np.array(pc.fill_null(found, float("nan")).to_numpy())


def _check_labels(
    text: pa.ChunkedArray, classes: tuple[str, str], positive: str | None, who: str
) -> None:
    """Refuse classes that were not there in training, unless class 0 is all the rest."""
    if positive is not None and classes[0] == f"not {positive}":
        return
    new = sorted(set(text.drop_null().unique().to_pylist()) - set(classes))
    if new:
        allowed = f"{classes[0]!r} or {classes[1]!r}, as in training"
        refuse(who, allowed, repr(new[0]), "Leave it unread with --no-score.")


Column = NDArray[np.float64]
Columns = dict[str, pa.Array]
NUMBERS = ("mean", "sd", "lower", "upper")
PREDICTED = "predicted"


def schema_of(card: ModelCard) -> pa.Schema:
    """Names and types of the columns that `predicted_columns` makes."""
    names = NUMBERS if card.classes is None else _probabilities(card.classes)
    fields = [pa.field(name, pa.float64()) for name in names]
    return pa.schema(fields if card.classes is None else [*fields, (PREDICTED, pa.string())])


def predicted_columns(
    model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float
) -> Columns:
    """Mean, deviation and interval of y, or probabilities of the classes and the predicted one."""
    return _BY_TASK[card.task](model, card, X, exposure, coverage)


def _real(model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float) -> Columns:
    mean, sd = model.predict(X, return_std=True)
    return _numbers(mean, sd, *model.predict_interval(X, coverage))


def _count(
    model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float
) -> Columns:
    mean = model.predict(X, exposure)
    return _numbers(
        mean, _deviation(model, X, exposure), *model.predict_interval(X, coverage, exposure)
    )


def _labels(
    model: Any, card: ModelCard, X: Any, exposure: Column | None, coverage: float
) -> Columns:
    classes = card.classes or ("0", "1")
    probabilities = model.predict_proba(X)
    columns = dict(zip(_probabilities(classes), map(pa.array, probabilities.T), strict=True))
    predicted = model.decision_function(X) > 0
    return {**columns, PREDICTED: pa.array(np.array(classes, dtype=object)[predicted.astype(int)])}


_BY_TASK: dict[str, Callable[..., Columns]] = {
    "regression": _real,
    "classification": _labels,
    "count": _count,
}


def _numbers(*columns: Column) -> Columns:
    return dict(zip(NUMBERS, map(pa.array, columns), strict=True))


def _probabilities(classes: tuple[str, str]) -> list[str]:
    return [f"p_{name}" for name in classes]


def _deviation(model: Any, X: Any, exposure: Column | None) -> Column:
    """Standard deviation of counts, from the marginals of f."""
    device = model.posterior_.Z.device
    mean, sd = (torch.as_tensor(each, device=device) for each in model.predict_latent(X))
    over = None if exposure is None else torch.as_tensor(exposure, device=device)
    with torch.no_grad():
        variance = predictive_variance(exposed(model.likelihood_, over), Marginals(mean, sd**2))
    found: Column = variance.sqrt().cpu().numpy()
    return found


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
    table, notes = _complete_rows(table, used, request)
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


def _complete_rows(
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


LABELS = {
    "nll": "NLL",
    "mse": "MSE",
    "error": "error",
    "mre": "MRE",
    "coverage": "coverage",
}


@final
class Scores:
    """Means over all rows whose target is known."""

    def __init__(self, classes: tuple[str, str] | None, task: str) -> None:
        self._classes, self._task = classes, task
        self._sums: dict[str, float] = {}
        self.rows = 0

    def add(
        self, model: Any, X: Any, y: Column, exposure: Column | None, predicted: Columns
    ) -> None:
        """Take a block of rows, some of whose targets may be NaN, into account."""
        known = np.isfinite(y)
        if not known.any():
            return
        given = {} if self._task != "count" else {"exposure": _some(exposure, known)}
        nll = -model.log_density(X.filter(known), y[known], **given)
        others = {name: values[known] for name, values in self._losses(y, predicted).items()}
        self.rows += len(nll)
        for name, values in {"nll": nll, **others}.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())

    def means(self) -> dict[str, float]:
        """The scores by name."""
        return {name: total / self.rows for name, total in self._sums.items()}

    def _losses(self, y: Column, predicted: Columns) -> dict[str, NDArray[Any]]:
        if self._classes is not None:
            labels = np.asarray(predicted[PREDICTED].to_pylist(), dtype=object)
            return {"error": (labels == self._classes[1]) != (y > 0.5)}
        mean, lower, upper = (predicted[name].to_numpy() for name in ("mean", "lower", "upper"))
        covered = (lower <= y) & (y <= upper)
        if self._task == "count":
            return {"mre": np.abs(mean - y) / np.maximum(1, y), "coverage": covered}
        return {"mse": (mean - y) ** 2, "coverage": covered}


def _some(values: Column | None, known: NDArray[np.bool_]) -> Column | None:
    return None if values is None else values[known]


_BLOCK = 2**16
"""Rows that are predicted and written at once."""


def predict_and_write(request: PredictionRequest, terminal: Terminal) -> None:
    """Predict the rows of the data and write them to a file."""
    check_file_place(request.out, request.force, inputs=(Path(request.data),))
    model, card = load_folder(request.model, request.device)
    rows = rows_to_predict(request, card)
    if rows.file is not None:
        check_file_place(request.out, request.force, inputs=(rows.file,))
    for note in rows.notes:
        terminal.say(note)
    scores = _write(request, model, card, rows)
    found = scores.means() if scores.rows else None
    terminal.answer(_facts(request, rows, scores, found))
    terminal.show(f"Wrote predictions of {several(len(rows.X), 'row')} to {request.out}.")
    if found is not None:
        terminal.show(_score_words(card, scores, found, request.coverage))


def _write(request: PredictionRequest, model: Any, card: ModelCard, rows: Rows) -> Scores:
    """Predict and write, a block of rows at a time."""
    schema = pa.schema([*rows.ids.schema, *schema_of(card)])
    scores = Scores(card.classes, card.task)
    with writing(request.out, schema) as write:
        for block in _blocks(len(rows.X)):
            X = named_columns(rows.X[block], card.encoding.feature_names)
            exposure = None if rows.exposure is None else rows.exposure[block]
            found = predicted_columns(model, card, X, exposure, request.coverage)
            if rows.y is not None:
                scores.add(model, X, rows.y[block], exposure, found)
            ids = rows.ids.slice(block.start, len(X))
            write(pa.table([*ids.columns, *found.values()], schema=schema))
    return scores


def _blocks(number: int) -> Iterator[slice]:
    for start in range(0, number, _BLOCK):
        yield slice(start, min(number, start + _BLOCK))


def _facts(
    request: PredictionRequest, rows: Rows, scores: Scores, found: dict[str, float] | None
) -> dict[str, Any]:
    return {
        "source": rows.source,
        "rows": len(rows.X),
        "out": str(request.out),
        "coverage": request.coverage,
        "scores": found,
        "scored_rows": scores.rows,
        "notes": list(rows.notes),
    }


def _score_words(card: ModelCard, scores: Scores, found: dict[str, float], coverage: float) -> str:
    """How good the predictions are, in one line."""
    labels = {**LABELS, "coverage": f"coverage of {100 * coverage:g} % intervals"}
    parts = ", ".join(f"{labels[name]} {figure(value)}" for name, value in found.items())
    return f"Compared with {card.target!r} in {several(scores.rows, 'row')}: {parts}."
