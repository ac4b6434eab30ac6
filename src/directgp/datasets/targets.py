"""Guess the task of a target column and code it as numbers."""

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.columns import kind_of, level_counts, look_of
from directgp.datasets.problem import Task
from directgp.datasets.wording import counted, listed, several, suggestion
from directgp.errors import InvalidInputError, refuse

_YES = {"true", "t", "yes", "y", "positive", "pos"}


def labels(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The class of each row as text: ``0`` and ``1`` for numbers, whatever their type."""
    if kind_of(column.type) not in ("number", "category"):
        got = f"values of type {column.type}"
        refuse(f"The target {name!r}", "classes", got, "Name another target.")
    if pa.types.is_floating(column.type):
        # −0 is no class beside 0.
        column = pc.add(pc.cast(column, pa.float64()), 0.0)
    return pc.cast(column, pa.string())


def two_classes(
    counts: Mapping[str, int], name: str, positive: str | None, *, numbers: bool
) -> tuple[str, str]:
    """Names of class 0 and of class 1, given how often each label occurs.

    Class 1 is what is positive, where that is given. Else it is the label that means yes, the
    larger number, or the last in the order of the alphabet.
    """
    if len(counts) < 2:
        got = f"{listed(counts)} in every row"
        refuse(f"The target {name!r}", "of two classes", got, "Name another target.")
    if positive is not None:
        return _against_the_rest(list(counts), positive)
    if len(counts) > 2:
        raise InvalidInputError(
            f"The target {name!r} must be of two classes. Got {len(counts):,}:"
            f" {listed(sorted(counts))}. Give --positive LABEL to predict one class against the"
            " rest."
        )
    zero, one = sorted(counts, key=lambda label: (_means_yes(label), _size(label, numbers), label))
    return zero, one


def _against_the_rest(found: list[str], positive: str) -> tuple[str, str]:
    if positive not in found:
        remedy = suggestion(positive, sorted(found), "The classes")
        refuse("The positive class", "a class of the target", repr(positive), remedy)
    others = [label for label in found if label != positive]
    return others[0] if len(others) == 1 else f"not {positive}", positive


def refuse_other_labels(text: pa.ChunkedArray, name: str, classes: tuple[str, str]) -> None:
    """Refuse labels that were not seen in training, unless all others are class 0."""
    if classes[0] == f"not {classes[1]}":
        return
    known = pc.is_in(text, value_set=pa.array(classes))
    others = level_counts(text.filter(pc.invert(known)))
    if others:
        got = f"other labels with their counts: {counted(others)}"
        remedy = "Correct or remove these rows."
        refuse(f"The target {name!r}", f"of the classes {listed(classes)}", got, remedy)


def _means_yes(label: str) -> bool:
    return label.strip().casefold() in _YES


def _size(label: str, numbers: bool) -> float:
    return float(label) if numbers and label not in ("true", "false") else 0.0


_ALWAYS_FEW = 15
"""As many different counts are few in any number of rows."""

_ROWS_A_VALUE = 10
"""More different counts need this many rows each."""

_DENSE = 0.8
"""Part of the rows that have a count beside which another one occurs."""

_DISPERSION = 0.5
"""Least ratio of variance to mean. It is 1 or more for any mixture of Poisson counts, and small for
numbers that are far from 0, such as years, or bounded on both sides, such as grades."""


def guess_task(column: pa.ChunkedArray, name: str = "y") -> tuple[Task, str]:
    """The task that a target column suggests, and the reason in words.

    Two different values are classes. Whole numbers from 0 on are counts if few of them are
    different, most stand side by side, and they scatter as counts do. Other numbers are a
    regression target.
    """
    kind = kind_of(column.type)
    if kind == "category":
        return _guess_text(column, name)
    if kind != "number":
        got = f"values of type {column.type}"
        refuse(f"The target {name!r}", "numbers or classes", got, "Name another target.")
    numbers = pc.cast(column.drop_null(), pa.float64(), safe=False).to_numpy()
    return _guess_numbers(numbers[~np.isnan(numbers)])


def _guess_text(column: pa.ChunkedArray, name: str) -> tuple[Task, str]:
    values = list(level_counts(column))
    if len(values) > 2:
        refuse_text(name, values)
    return "classification", f"it has {several(len(values), 'different value')}"


def _guess_numbers(numbers: NDArray[np.float64]) -> tuple[Task, str]:
    if len(np.unique(numbers)) == 2:
        return "classification", "it has 2 different values"
    reason = _no_count(numbers)
    if reason:
        return "regression", reason
    ends = f"{numbers.min():.0f} to {numbers.max():.0f}"
    return "count", f"it has whole numbers from {ends} that scatter as counts do"


def _no_count(numbers: NDArray[np.float64]) -> str | None:
    """Why the numbers are no counts, or None if they seem to be."""
    if not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        return "it has numbers with fractions"
    if (numbers < 0).any():
        return "it has negative numbers"
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) < 2:
        return "it has no different values"
    if len(values) > max(_ALWAYS_FEW, len(numbers) / _ROWS_A_VALUE):
        return f"it has {len(values):,} different numbers"
    beside = np.diff(values) == 1
    if counts[np.append(beside, False) | np.append(False, beside)].sum() < _DENSE * len(numbers):
        return "its whole numbers are too far apart for counts"
    if numbers.var() < _DISPERSION * numbers.mean():
        return "its whole numbers scatter less than counts do"
    return None


def refuse_text(name: str, values: list[str]) -> NoReturn:
    """Refuse a target of text that is neither numbers nor two classes."""
    look = look_of(values)
    who = f"The target {name!r}"
    if look:
        got = f"text that looks like {look.name}, such as {values[0]!r}"
        refuse(who, "numbers or two classes", got, look.remedy)
    raise InvalidInputError(
        f"{who} must be numbers or two classes. Got {len(values):,} classes:"
        f" {listed(sorted(values))}. Give --positive LABEL to predict one class against the rest."
    )


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
