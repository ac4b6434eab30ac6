"""Prepare a table as a regression, classification or count problem."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.datasets.columns import (
    CategoryColumn,
    Encoding,
    complete_rows,
    missing_counts,
    refuse_empty,
    refuse_missing,
)
from directgp.datasets.problem import Problem, Task
from directgp.datasets.targets import guess_task, target_values
from directgp.datasets.wording import counted, listed, refuse_name, several
from directgp.errors import InvalidInputError, refuse

_FEWEST_ROWS = 20

_IF_MISSING = "Leave out these rows with --drop-missing, or these columns with --drop."

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""Names of columns without one, such as the index of a frame that pandas stored."""


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
    """A table made ready for training, and what will make new tables ready in the same way.

    Parameters
    ----------
    table : pyarrow.Table
        One row an example.
    target : str
        The column to be predicted.
    task : {"regression", "classification", "count"}, optional
        Guessed from the target unless given.
    name, source : str
        What the table is called, and where it is from, in the user's words.
    drop : sequence of str
        Columns to leave out.
    drop_missing : bool
        Whether to leave out rows with missing values; without it they are refused.
    positive : str, optional
        The class of the target that is class 1; the other one, or the rest, is class 0.
    notes : sequence of str
        What the user should hear of the table already.
    """
    names, said = _chosen(table, target, drop)
    said = [*notes, *said]
    table, rows = _complete(table.select([*names, target]), target, drop_missing, said)
    task = _task(table, target, task, positive, said)
    values = target_values(table.column(target), target, task, positive, rows)
    encoding = Encoding.learn(table, exclude=[target])
    said += [*values.notes, *_coding_notes(encoding, names)]
    if not encoding.columns:
        got = f"no column that varies beside {target!r}"
        refuse("The table", "of a target and features", got, "Add columns to predict it from.")
    problem = Problem(
        name=name,
        task=task,
        target=target,
        feature_names=encoding.feature_names,
        X=encoding.apply(table),
        y=values.y,
        classes=values.classes,
        source=source,
        notes=tuple(said),
        rows=rows,
    )
    return problem, encoding


def _chosen(table: pa.Table, target: str, drop: Sequence[str]) -> tuple[list[str], list[str]]:
    """The columns to predict from, and what to say of those left out."""
    _check_target(table, target)
    for column in drop:
        if column not in table.column_names:
            refuse_name("A column to drop", column, table.column_names)
    if target in drop:
        refuse("A column to drop", "another one than the target", repr(target))
    kept = [one for one in table.column_names if one != target and one not in drop]
    index = [one for one in kept if _INDEX.fullmatch(one)]
    notes = [f"Left out, for want of a name of their own: {listed(index)}."] if index else []
    return [one for one in kept if one not in index], notes


def _check_target(table: pa.Table, target: str) -> None:
    names = table.column_names
    if target in names:
        return
    if names and all(re.fullmatch(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?", name) for name in names):
        remedy = "Its first row has numbers for names: add a row of names above."
        refuse("The target", "a column of the table", repr(target), remedy)
    refuse_name("The target", target, names)


def _complete(
    table: pa.Table, target: str, drop_missing: bool, notes: list[str]
) -> tuple[pa.Table, NDArray[np.int64]]:
    """The rows without missing values, and where they stand."""
    refuse_empty(table, target)
    counts = missing_counts(table, table.column_names)
    if not drop_missing:
        refuse_missing(table, counts, _IF_MISSING)
    rows = np.arange(table.num_rows, dtype=np.int64)
    if counts:
        rows = np.flatnonzero(complete_rows(table, counts))
        lost = several(table.num_rows - len(rows), "row")
        notes.append(f"Left out {lost} with missing values: {counted(counts)}.")
        table = table.take(pa.array(rows))
    if len(rows) < _FEWEST_ROWS:
        what = "rows without missing values" if counts else "rows"
        raise InvalidInputError(
            f"The table must have at least {_FEWEST_ROWS} {what}. Got {len(rows)}."
        )
    return table, rows


def _task(
    table: pa.Table, target: str, task: Task | None, positive: str | None, notes: list[str]
) -> Task:
    if task is not None:
        return task
    if positive is not None:
        return "classification"
    guessed, reason = guess_task(table.column(target), target)
    notes.append(
        f"The target {target!r} is taken for {_ARTICLES[guessed]} because {reason};"
        " --task overrules that."
    )
    return guessed


_ARTICLES = {
    "regression": "a regression target",
    "classification": "a classification target",
    "count": "a count",
}


def _coding_notes(encoding: Encoding, names: list[str]) -> list[str]:
    constant = [name for name in names if name not in encoding.column_names]
    notes = [f"Left out because it has one value only: {name!r}." for name in constant]
    return notes + [
        f"Column {column.name!r} is coded by {several(len(column.levels), 'column')} of 0 and 1;"
        f" its base level is {column.base!r}."
        for column in encoding.columns
        if isinstance(column, CategoryColumn)
    ]
