"""Load the data named on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.cli.options import usage_errors
from directgp.datasets.columns import drop_incomplete_rows, kind_of, to_numbers
from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import Problem, Task, prepare
from directgp.datasets.sources import open_source
from directgp.datasets.tables import refuse_column
from directgp.errors import refuse

_EXPOSURE, _WEIGHTS = "--exposure", "--weights"


@final
@dataclass(frozen=True)
class Request:
    """The options of a command that describe its data."""

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
        """Return the command-line words of the options, without task, exposure and weights."""
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
    """A problem, with the exposures and weights of its rows."""

    request: Request
    problem: Problem
    encoding: Encoding
    exposure: NDArray[np.float64] | None
    weights: NDArray[np.float64] | None


def open_request(request: Request) -> Opened:
    """Read the data and prepare them for training."""
    source = open_source(request.data, request.data_dir)
    given = {_EXPOSURE: request.exposure, _WEIGHTS: request.weights}
    extra = {option: name for option, name in given.items() if name is not None}
    for option, name in extra.items():
        if name not in source.table.names:
            refuse_column(option, name, source.table.names)
    with usage_errors():
        target, task = source.choose(request.target, request.task, request.positive)
    table, _, notes = drop_incomplete_rows(
        source.table.read(), extra.values(), allowed=request.drop_missing
    )
    problem, encoding = prepare(
        table,
        target,
        task=task,
        name=source.name,
        source=source.shown,
        drop=[*request.drop, *extra.values()],
        drop_missing=request.drop_missing,
        positive=request.positive,
        notes=(*source.notes, *notes),
    )
    rows = table.select(list(extra.values())).take(pa.array(problem.rows))
    columns = {option: numbers_in(rows, name, option) for option, name in extra.items()}
    return Opened(request, problem, encoding, columns.get(_EXPOSURE), columns.get(_WEIGHTS))


def named_columns(X: NDArray[np.float64], names: Sequence[str]) -> pa.Table:
    """Return the columns of X as a table, so that a model stores and checks their names."""
    return pa.table([pa.array(column) for column in X.T], names=list(names))


def numbers_in(table: pa.Table, name: str, who: str) -> NDArray[np.float64]:
    """Return a column as numbers, with NaN for missing values."""
    column = table.column(name)
    if kind_of(column.type) != "number":
        refuse(who, "a column of numbers", f"{name!r}, of type {column.type}", "Name another.")
    return to_numbers(column)
