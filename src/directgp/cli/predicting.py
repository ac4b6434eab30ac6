"""What `directgp predict` does: load, open, predict block by block, tell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from directgp.cli.model_card import ModelCard
from directgp.cli.model_folder import load_folder
from directgp.cli.named_columns import named_columns
from directgp.cli.places import check_file_place
from directgp.cli.prediction_columns import predicted_columns, schema_of
from directgp.cli.prediction_rows import PredictionRequest, Rows, rows_to_predict
from directgp.cli.scoring import LABELS, Scores
from directgp.cli.table_writing import writing
from directgp.cli.terminal import Terminal
from directgp.datasets.wording import several
from directgp.estimators.reports.plain_text import figure

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
