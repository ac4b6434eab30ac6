"""Targets of new rows, coded as they were in training."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.cli.model_card import ModelCard
from directgp.cli.opening import numbers_in
from directgp.datasets.classes import labels
from directgp.errors import refuse


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
