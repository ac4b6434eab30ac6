"""Prepare a table as a problem: features, targets and what they mean."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.datasets.columns import drop_incomplete_rows, drop_options, missing_counts
from directgp.datasets.encoding import CategoryColumn, Encoding
from directgp.datasets.tables import refuse_column
from directgp.datasets.targets import encode_target, guess_task
from directgp.errors import InvalidInputError, refuse, require
from directgp.registry import Task
from directgp.text import listed, plural

TASKS: tuple[Task, ...] = ("regression", "classification", "count")

_MIN_ROWS = 20
"""Rows that a problem needs, at least."""

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""Names of columns without a name of their own, such as the index of a pandas frame."""


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A table prepared for training."""

    name: str
    """Stem of the file, or name of the data set."""

    task: Task
    target: str
    """Name of the column to predict."""

    feature_names: tuple[str, ...]
    """One for each column of X; a category has several."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    """Features, finite, of shape (n, d), and targets, of shape (n,); 0 and 1 in classification."""

    classes: tuple[str, str] | None
    """Names of class 0 and class 1 in classification, else None."""

    source: str
    """The table as the user named it."""

    notes: tuple[str, ...]
    """Notes for the user: how the task was guessed, how columns were encoded, what was left out."""

    rows: NDArray[np.int64]
    """Index of each row in the table as read; rows with missing values may be left out."""

    def fingerprint(self) -> str:
        """Return the sha256 of names, task, shape and numbers, in hex."""
        heading = [self.task, self.target, self.feature_names, self.classes, self.X.shape]
        digest = hashlib.sha256(json.dumps(heading).encode())
        for numbers in (self.X, self.y):
            digest.update(np.ascontiguousarray(numbers, dtype="<f8").data)
        return digest.hexdigest()


def prepare(
    table: pa.Table,
    target: str,
    *,
    task: Task | None = None,
    name: str,
    source: str,
    drop: Sequence[str] = (),
    drop_missing: bool = False,
    positive: str | None = None,
    notes: Sequence[str] = (),
) -> tuple[Problem, Encoding]:
    """Return the problem of a table, and the encoding that prepares new tables in the same way.

    Parameters
    ----------
    table : pyarrow.Table
        One row for each example.
    target : str
        The column to predict.
    task : {"regression", "classification", "count"}, optional
        Guessed from the target by default.
    name, source : str
        The name of the table, and where it comes from, for reports.
    drop : sequence of str
        Columns to leave out.
    drop_missing : bool
        Whether to leave out rows with missing values; otherwise they raise an error.
    positive : str, optional
        The label of the target that is class 1; the other one, or all others, are class 0.
    notes : sequence of str
        Notes on the table that come before those of the preparation.
    """
    names, all_notes = _feature_columns(table, target, drop), list(notes)
    unnamed = [each for each in names if _INDEX.fullmatch(each)]
    if unnamed:
        names = [each for each in names if each not in unnamed]
        all_notes.append(f"Left out because they have no name: {listed(unnamed)}.")
    table = table.select([*names, target])
    counts = missing_counts(table, table.column_names)
    empty = [each for each, count in counts.items() if count == table.num_rows]
    if empty:
        drop_them = f"Leave them out with {drop_options(empty)}."
        raise InvalidInputError(
            f"Columns that are used must have values. Got none at all in {listed(empty)}."
            f" {'Name another target.' if target in empty else drop_them}"
        )
    remedy = "Leave out these rows with --drop-missing, or these columns with --drop."
    table, rows, dropped = drop_incomplete_rows(
        table, table.column_names, allowed=drop_missing, remedy=remedy
    )
    if len(rows) < _MIN_ROWS:
        least = f"{_MIN_ROWS} {'rows without missing values' if dropped else 'rows'}"
        raise InvalidInputError(f"The table must have at least {least}. Got {len(rows)}.")
    all_notes += dropped
    column = table.column(target)
    if task is None and positive is not None:
        task = "classification"
    if task is None:
        task, reason = guess_task(column, target)
        all_notes.append(
            f"The target {target!r} suggests the task {task}: {reason}."
            " Choose another task with --task."
        )
    y, classes, target_notes = encode_target(column, target, task, positive, rows)
    encoding = Encoding.learn(table, exclude=[target])
    if not encoding.columns:
        got = f"no column that varies besides {target!r}"
        refuse("The table", "of a target and features", got, "Add columns to predict it from.")
    constant = [each for each in names if each not in encoding.column_names]
    all_notes += target_notes
    all_notes += [f"Left out because it has one value only: {each!r}." for each in constant]
    all_notes += [
        f"Column {column.name!r} is encoded as {plural(len(column.levels), 'column')} of 0 and 1;"
        f" its base level is {column.base!r}."
        for column in encoding.columns
        if isinstance(column, CategoryColumn)
    ]
    X, features = encoding.apply(table), encoding.feature_names
    problem = Problem(name, task, target, features, X, y, classes, source, tuple(all_notes), rows)
    return problem, encoding


def _feature_columns(table: pa.Table, target: str, drop: Sequence[str]) -> list[str]:
    """Return all columns but the target and those to drop, which must be in the table."""
    names = table.column_names
    known, dropped = set(names), set(drop)
    if target not in known:
        if names and all(re.fullmatch(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?", name) for name in names):
            remedy = "The first row has numbers instead of names: add a row of names above."
            refuse("The target", "a column of the table", repr(target), remedy)
        refuse_column("The target", target, names)
    for column in drop:
        if column not in known:
            refuse_column("A column to drop", column, names)
    require(target not in dropped, "A column to drop", "another one than the target", repr(target))
    return [name for name in names if name != target and name not in dropped]
