"""Load the data named on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.cli.options import naming_options
from directgp.datasets.columns import (
    Encoding,
    complete_rows,
    kind_of,
    missing_counts,
    refuse_missing,
)
from directgp.datasets.prepare import prepare
from directgp.datasets.problem import Problem, Task
from directgp.datasets.sources import open_source
from directgp.datasets.wording import counted, refuse_name, several
from directgp.errors import refuse


def named_columns(X: NDArray[np.float64], names: Sequence[str]) -> pa.Table:
    """A table of the columns of X, so that a model keeps and checks their names."""
    return pa.table([pa.array(column) for column in X.T], names=list(names))


_EXPOSURE, _WEIGHTS = "--exposure", "--weights"


@final
@dataclass(frozen=True)
class Request:
    """What was typed of the data."""

    data: str
    target: str | None = None
    task: Task | None = None
    drop: tuple[str, ...] = ()
    drop_missing: bool = False
    positive: str | None = None
    exposure: str | None = None
    weights: str | None = None
    data_dir: Path | None = None

    def words(self) -> list[str]:
        """What was typed, but for the task, exposure and weights."""
        given = {"--target": self.target, "--positive": self.positive, "--data-dir": self.data_dir}
        words = [self.data]
        for option, value in given.items():
            words += [] if value is None else [option, str(value)]
        for column in self.drop:
            words += ["--drop", column]
        return [*words, "--drop-missing"] if self.drop_missing else words


@final
@dataclass(frozen=True)
class Opened:
    """A problem and all that belongs to its rows."""

    request: Request
    problem: Problem
    encoding: Encoding
    exposure: NDArray[np.float64] | None
    weights: NDArray[np.float64] | None


def open_request(request: Request) -> Opened:
    """Read the data and make them ready for training."""
    source = open_source(request.data, request.data_dir)
    beside = _beside(request, source.table.names)
    with naming_options():
        target, task = source.choose(request.target, request.task, request.positive)
    table, notes = _complete(source.table.read(), beside, request.drop_missing)
    problem, encoding = prepare(
        table,
        target,
        task=task,
        name=source.name,
        source=source.shown,
        drop=[*request.drop, *beside.values()],
        drop_missing=request.drop_missing,
        positive=request.positive,
        notes=(*source.notes, *notes),
    )
    rows = table.select(list(beside.values())).take(pa.array(problem.rows))
    columns = {option: numbers_in(rows, name, option) for option, name in beside.items()}
    return Opened(request, problem, encoding, columns.get(_EXPOSURE), columns.get(_WEIGHTS))


def _beside(request: Request, names: Sequence[str]) -> dict[str, str]:
    """Columns that are no features, by their options."""
    given = {_EXPOSURE: request.exposure, _WEIGHTS: request.weights}
    beside = {option: name for option, name in given.items() if name is not None}
    for option, name in beside.items():
        if name not in names:
            refuse_name(option, name, names)
    return beside


def _complete(
    table: pa.Table, beside: dict[str, str], drop_missing: bool
) -> tuple[pa.Table, list[str]]:
    """Rows that have an exposure and a weight, where these are asked for."""
    counts = missing_counts(table, beside.values())
    if not counts:
        return table, []
    if not drop_missing:
        refuse_missing(table, counts, "Leave out these rows with --drop-missing.")
    left = table.filter(pa.array(complete_rows(table, counts)))
    lost = several(table.num_rows - left.num_rows, "row")
    return left, [f"Left out {lost} with missing values: {counted(counts)}."]


def numbers_in(table: pa.Table, name: str, who: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where some are missing."""
    column = table.column(name)
    if kind_of(column.type) != "number":
        refuse(who, "a column of numbers", f"{name!r}, of type {column.type}", "Name another.")
    return np.array(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
