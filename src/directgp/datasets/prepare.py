"""Prepare a table as a regression, classification or count problem."""

import re
from collections.abc import Sequence

import pyarrow as pa

from directgp.datasets.columns import drop_incomplete_rows, refuse_empty
from directgp.datasets.encoding import CategoryColumn, Encoding
from directgp.datasets.problem import Problem, Task
from directgp.datasets.tables import refuse_column
from directgp.datasets.targets import encode_target, guess_task
from directgp.errors import InvalidInputError, refuse
from directgp.text import listed, plural

_MIN_ROWS = 20

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""Names of columns without a name of their own, such as the index of a pandas frame."""


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
    index = [each for each in names if _INDEX.fullmatch(each)]
    if index:
        names = [each for each in names if not _INDEX.fullmatch(each)]
        all_notes.append(f"Left out because they have no name: {listed(index)}.")
    table = table.select([*names, target])
    refuse_empty(table, target)
    remedy = "Leave out these rows with --drop-missing, or these columns with --drop."
    table, rows, dropped = drop_incomplete_rows(
        table, table.column_names, allowed=drop_missing, remedy=remedy
    )
    if len(rows) < _MIN_ROWS:
        what = "rows without missing values" if dropped else "rows"
        raise InvalidInputError(
            f"The table must have at least {_MIN_ROWS} {what}. Got {len(rows)}."
        )
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
    all_notes += [*target_notes, *_encoding_notes(encoding, names)]
    if not encoding.columns:
        got = f"no column that varies besides {target!r}"
        refuse("The table", "of a target and features", got, "Add columns to predict it from.")
    problem = Problem(
        name=name,
        task=task,
        target=target,
        feature_names=encoding.feature_names,
        X=encoding.apply(table),
        y=y,
        classes=classes,
        source=source,
        notes=tuple(all_notes),
        rows=rows,
    )
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
    if target in dropped:
        refuse("A column to drop", "another one than the target", repr(target))
    return [name for name in names if name != target and name not in dropped]


def _encoding_notes(encoding: Encoding, names: Sequence[str]) -> list[str]:
    """Return a note for each column that is constant or a category."""
    used = set(encoding.column_names)
    constant = [name for name in names if name not in used]
    return [f"Left out because it has one value only: {name!r}." for name in constant] + [
        f"Column {column.name!r} is encoded as {plural(len(column.levels), 'column')} of 0 and 1;"
        f" its base level is {column.base!r}."
        for column in encoding.columns
        if isinstance(column, CategoryColumn)
    ]
