"""The target column as numbers, for each task."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.classes import labels, refuse_other_labels, two_classes
from directgp.datasets.kinds import kind_of
from directgp.datasets.levels import level_counts
from directgp.datasets.problem import Task
from directgp.datasets.tasks import refuse_text
from directgp.datasets.wording import several
from directgp.errors import refuse


class Target(NamedTuple):
    """The target as numbers."""

    y: NDArray[np.float64]

    classes: tuple[str, str] | None
    """Names of class 0 and class 1."""

    notes: tuple[str, ...]


def target_values(
    column: pa.ChunkedArray,
    name: str,
    task: Task,
    positive: str | None,
    rows: NDArray[np.int64],
) -> Target:
    """The target for a task, from a column without missing values.

    `rows` are the places of the values in the table as read, to name them in a refusal.
    """
    if task == "classification":
        return _classes(column, name, positive, rows)
    if positive is not None:
        got = f"it with the task {task}"
        refuse("--positive", "given for classification alone", got, "Leave one of them out.")
    y = _numbers(column, name, rows)
    _check_counts(y, rows, name, task)
    if (y == y[0]).all():
        got = f"{y[0]:g} in every row"
        refuse(f"The target {name!r}", "different in some rows", got, "Name another target.")
    return Target(y, None, ())


def _classes(
    column: pa.ChunkedArray, name: str, positive: str | None, rows: NDArray[np.int64]
) -> Target:
    if kind_of(column.type) == "number":
        _numbers(column, name, rows)
    text = labels(column, name)
    counts = level_counts(text)
    classes = two_classes(counts, name, positive, numbers=kind_of(column.type) == "number")
    y = _indicator(text, classes[1])
    ones = counts[classes[1]]
    sizes = [several(len(y) - ones, "row"), several(ones, "row")]
    note = f"Class 1 is {classes[1]!r} ({sizes[1]}), class 0 is {classes[0]!r} ({sizes[0]})"
    hint = "" if positive else f"; --positive {classes[0]} would turn that round"
    return Target(y, classes, (f"{note}{hint}.",))


def coded(
    column: pa.ChunkedArray, name: str, task: Task, classes: tuple[str, str] | None
) -> NDArray[np.float64]:
    """The target of new data, without missing values, as in training."""
    rows = np.arange(len(column), dtype=np.int64)
    if classes is None:
        y = _numbers(column, name, rows)
        _check_counts(y, rows, name, task)
        return y
    text = labels(column, name)
    refuse_other_labels(text, name, classes)
    return _indicator(text, classes[1])


def _indicator(text: pa.ChunkedArray, label: str) -> NDArray[np.float64]:
    return np.array(pc.cast(pc.equal(text, label), pa.float64()).to_numpy(), dtype=np.float64)


def _numbers(column: pa.ChunkedArray, name: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    kind = kind_of(column.type)
    if kind == "category":
        refuse_text(name, list(level_counts(column)))
    if kind != "number":
        got = f"values of type {column.type}"
        refuse(f"The target {name!r}", "numbers", got, "Name another target.")
    y = np.array(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    _require(np.isfinite(y), y, rows, name, "finite", "Correct or remove such rows.")
    return y


def _check_counts(y: NDArray[np.float64], rows: NDArray[np.int64], name: str, task: Task) -> None:
    if task == "count":
        allowed, remedy = (
            "whole numbers from 0 on, as counts are",
            "Use --task regression if it is no count.",
        )
        _require((y >= 0) & (y == np.floor(y)), y, rows, name, allowed, remedy)


def _require(
    good: NDArray[np.bool_],
    y: NDArray[np.float64],
    rows: NDArray[np.int64],
    name: str,
    allowed: str,
    remedy: str,
) -> None:
    bad = np.flatnonzero(~good)
    if len(bad):
        got = f"{y[bad[0]]:g} in row {rows[bad[0]] + 1}"
        got += f" and others in {several(len(bad) - 1, 'row')}" if len(bad) > 1 else ""
        refuse(f"The target {name!r}", allowed, got, remedy)
