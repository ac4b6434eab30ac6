"""Guess the task of a target column and encode it as numbers."""

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.columns import kind_of, level_counts, to_numbers
from directgp.errors import InvalidTableError, TableProblem, refuse
from directgp.registry import Task
from directgp.text import counted, listed, plural, shell_word, suggestion

_YES = {"true", "t", "yes", "y", "positive", "pos"}
"""Labels that are class 1 by default, in any case."""

_MAX_COUNTS_ALWAYS = 15
"""Counts may have this many different values in any number of rows."""

_ROWS_PER_COUNT = 10
"""More different values need this many rows for each of them."""

_MIN_DENSE = 0.8
"""Least part of the rows whose count is next to another count that occurs."""

_MAX_CLASSES = 100
"""More classes, each with a latent function of its own, take too long to train."""

_ROWS_PER_CLASS = 2
"""Least number of rows of each of three or more classes: one to train on and one to test."""

_MIN_DISPERSION = 0.5
"""Least ratio of variance to mean. It is 1 or more for any mixture of Poisson counts, and small for
numbers that are far from 0, such as years, or bounded on both sides, such as grades."""


def guess_task(column: pa.ChunkedArray, name: str = "y") -> tuple[Task, str]:
    """Return the task that the values of a target suggest, and the reason.

    Text and two different numbers are classes. Whole numbers of at least 0 are counts if few of
    them are different, most are next to each other, and their variance is large enough for counts.
    Other numbers are a regression target.
    """
    kind = kind_of(column.type)
    if kind == "category":
        values = level_counts(column)
        _check_classes(name, values)
        return "classification", f"it has {plural(len(values), 'different value')}"
    if kind != "number":
        _refuse_type(column, name, "numbers or classes")
    numbers = to_numbers(column)
    numbers = numbers[~np.isnan(numbers)]
    if len(np.unique(numbers)) == 2:
        return "classification", "it has 2 different values"
    reason = _why_not_counts(numbers)
    if reason:
        return "regression", reason
    ends = f"{numbers.min():.0f} to {numbers.max():.0f}"
    return "count", f"it has whole numbers from {ends} that scatter as counts do"


def _why_not_counts(numbers: NDArray[np.float64]) -> str | None:
    """Return why the numbers are not counts, or None if they may be."""
    if not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        return "it has numbers with fractions"
    if (numbers < 0).any():
        return "it has negative numbers"
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) < 2:
        return "it has no different values"
    if len(values) > max(_MAX_COUNTS_ALWAYS, len(numbers) / _ROWS_PER_COUNT):
        return f"it has {len(values):,} different numbers"
    next_to = np.diff(values) == 1
    dense = counts[np.append(next_to, False) | np.append(False, next_to)].sum()
    if dense < _MIN_DENSE * len(numbers):
        return "its whole numbers are too far apart for counts"
    if numbers.var() < _MIN_DISPERSION * numbers.mean():
        return "its whole numbers scatter less than counts do"
    return None


class EncodedTarget(NamedTuple):
    """The target of a table as numbers."""

    task: Task
    """Kind of the target."""

    y: NDArray[np.float64]
    """The numbers, of shape (n,)."""

    classes: tuple[str, ...] | None
    """Names of the classes; None for numbers."""

    one_against_rest: bool
    """Whether class 0 is every label but that of class 1."""

    notes: list[str]
    """Notes for the user."""


def encode_target(
    column: pa.ChunkedArray,
    name: str,
    task: Task | None,
    positive: str | None,
    row_numbers: NDArray[np.int64],
) -> EncodedTarget:
    """Encode a target, with the task as given or guessed; errors have the number of a row."""
    notes = []
    if task is None and positive is not None:
        task = "classification"
    if task is None:
        task, reason = guess_task(column, name)
        hint = "Choose another task with --task."
        notes.append(f"The target {name!r} suggests the task {task}: {reason}. {hint}")
    if task != "classification":
        if positive is not None:
            got = f"it with the task {task}"
            refuse("--positive", "given for classification alone", got, "Leave one of them out.")
        y = _numbers(column, name, task, row_numbers)
        if (y == y[0]).all():
            got = f"{y[0]:g} in every row"
            refuse(f"The target {name!r}", "different in some rows", got, "Name another target.")
        return EncodedTarget(task, y, None, False, notes)
    is_number = kind_of(column.type) == "number"
    if is_number:
        _numbers(column, name, task, row_numbers)
    counts = level_counts(_labels(column, name))
    classes = _ordered_classes(counts, name, positive, is_number)
    if len(classes) > 2:
        rows_of = counted({label: counts[label] for label in classes})
        notes.append(f"The {len(classes)} classes in order, with their numbers of rows: {rows_of}.")
        y = encode_classes(column, name, classes)
        return EncodedTarget(task, y, classes, False, notes)
    ones = counts[classes[1]]
    sizes = [plural(len(column) - ones, "row"), plural(ones, "row")]
    note = f"Class 1 is {classes[1]!r} ({sizes[1]}), class 0 is {classes[0]!r} ({sizes[0]})"
    hint = "" if positive else f"; --positive {shell_word(classes[0])} exchanges them"
    one_against_rest = positive is not None and len(counts) > 2
    y = encode_classes(column, name, classes, one_against_rest)
    return EncodedTarget(task, y, classes, one_against_rest, [*notes, f"{note}{hint}."])


def coded(
    column: pa.ChunkedArray,
    name: str,
    task: Task,
    classes: tuple[str, ...] | None,
    one_against_rest: bool = False,
) -> NDArray[np.float64]:
    """Encode the target of new data, without missing values, as in training.

    With `one_against_rest` every label but the second class is class 0.
    """
    if classes is None:
        return _numbers(column, name, task, np.arange(1, len(column) + 1))
    return encode_classes(column, name, classes, one_against_rest)


def encode_classes(
    column: pa.ChunkedArray,
    name: str,
    classes: tuple[str, ...],
    one_against_rest: bool = False,
    remedy: str = "Correct or remove these rows.",
) -> NDArray[np.float64]:
    """Return the place of each label among the classes, NaN if missing; raise for other labels.

    With `one_against_rest` there are no other labels: all but the second class are class 0.
    """
    text = _labels(column, name)
    if one_against_rest:
        return to_numbers(pc.equal(text, classes[1]))
    is_class = pc.is_in(text, value_set=pa.array([*classes, None], pa.string()))
    others = level_counts(text.filter(pc.invert(is_class)))
    if others:
        got = f"other labels with their counts: {counted(others)}"
        refuse(f"The target {name!r}", f"of the classes {listed(classes)}", got, remedy)
    return to_numbers(pc.index_in(text, value_set=pa.array(classes, pa.string())))


def _labels(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the class of each row as text; numbers of any type are ``0`` and ``1``."""
    if kind_of(column.type) not in ("number", "category"):
        _refuse_type(column, name, "classes")
    if pa.types.is_floating(column.type):
        # Adding 0 turns −0 into 0; NaN is a missing label.
        column = pc.add(pc.cast(column, pa.float64()), 0.0)
        column = pc.if_else(pc.is_nan(column), None, column)
    return pc.cast(column, pa.string())


def _ordered_classes(
    counts: dict[str, int], name: str, positive: str | None, is_number: bool
) -> tuple[str, ...]:
    """Return the classes by size or alphabet; of two, the positive label or yes is the last."""
    if len(counts) < 2:
        got = f"{listed(counts)} in every row"
        refuse(f"The target {name!r}", "of two or more classes", got, "Name another target.")
    if positive is not None:
        if positive not in counts:
            remedy = suggestion(positive, sorted(counts), "The classes")
            refuse("The positive class", "a class of the target", repr(positive), remedy)
        others = [label for label in counts if label != positive]
        return others[0] if len(others) == 1 else f"not {positive}", positive
    _check_classes(name, counts)

    def rank(label: str) -> tuple[bool, float, str]:
        size = float(label) if is_number and label not in ("true", "false") else 0.0
        return len(counts) == 2 and label.strip().casefold() in _YES, size, label

    return tuple(sorted(counts, key=rank))


def _numbers(
    column: pa.ChunkedArray, name: str, task: Task, row_numbers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return a target of finite numbers; for counts, of whole numbers of at least 0."""
    kind = kind_of(column.type)
    if kind == "category":
        got = _described(level_counts(column))
        remedy = "Use --task classification."
        refuse(f"The target {name!r}", f"numbers for the task {task}", got, remedy)
    if kind != "number":
        _refuse_type(column, name, "numbers")
    y = to_numbers(column)
    good = np.isfinite(y)
    allowed = "finite"
    remedy = "Correct or remove such rows."
    if task == "count" and good.all():
        good = (y >= 0) & (y == np.floor(y))
        allowed = "whole numbers of at least 0, as counts are"
        remedy = "Use --task regression if it is not a count."
    bad = np.flatnonzero(~good)
    if len(bad):
        got = f"{y[bad[0]]:g} in row {row_numbers[bad[0]]:,}"
        got += f" and others in {plural(len(bad) - 1, 'row')}" if len(bad) > 1 else ""
        refuse(f"The target {name!r}", allowed, got, remedy)
    return y


def _refuse_type(column: pa.ChunkedArray, name: str, allowed: str) -> NoReturn:
    got = f"values of type {column.type}"
    refuse(f"The target {name!r}", allowed, got, "Name another target.")


def _described(counts: Mapping[str, int]) -> str:
    return f"{plural(len(counts), 'class', 'classes')}: {listed(sorted(counts))}"


def _check_classes(name: str, counts: Mapping[str, int]) -> None:
    """Raise `InvalidTableError` for too many classes, and for a rare one of three or more."""
    rare = {label: rows for label, rows in counts.items() if rows < _ROWS_PER_CLASS}
    if len(counts) > _MAX_CLASSES:
        allowed = f"at most {_MAX_CLASSES} classes"
        got = _described(counts)
    elif rare and len(counts) > 2:
        allowed = f"classes of at least {_ROWS_PER_CLASS} rows each"
        got = f"one row in {_described(rare)}"
    else:
        return
    most = max(counts, key=lambda label: (counts[label], label))
    sentence = (
        f"The target {name!r} must be numbers or {allowed}. Got {got}. Correct these rows, or give"
        " --positive LABEL to predict one class against the rest."
    )
    raise InvalidTableError([TableProblem(sentence, {"--positive": (most,)})])
