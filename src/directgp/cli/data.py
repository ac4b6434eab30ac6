"""Load the data named on the command line, for training."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from directgp.cli.column_options import (
    check_kernel_columns,
    check_kernel_names,
    kinds_in_kernel,
    kinds_of,
)
from directgp.cli.options import DataOptions, split_names, usage_errors
from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import MIN_ROWS, Problem
from directgp.datasets.readers import refuse_column
from directgp.datasets.sources import open_source, prepare_source
from directgp.errors import DirectGPError, InvalidTableError, refuse
from directgp.registry import LARGEST, ROW_CONSTANTS
from directgp.text import plural

Column = NDArray[np.float64]


class Opened(NamedTuple):
    """A problem, with the options that describe its data."""

    problem: Problem
    """The table, prepared for training."""

    encoding: Encoding
    """How features are made from columns."""

    options: DataOptions
    """Options of the command line that describe the data."""

    columns: Mapping[str, str]
    """Names of the columns of row constants ("exposure", …) and "weights", if given."""

    def values(self, role: str) -> Column | None:
        """Return the values of one of the columns, or None."""
        return self.problem.needed[self.columns[role]] if role in self.columns else None


_FIT_ROWS = 5
"""Rows that `directgp fit` needs, at least."""


def open_data(
    options: DataOptions, command: str, kernel: str = "auto", **columns: str | None
) -> Opened:
    """Read the data and prepare them for a command; `columns` are row constants and weights.

    The columns that the kernel names have to suit it.
    An `InvalidTableError` has all problems, and the options with which the command works.
    """
    extra = {role: name for role, name in columns.items() if name is not None}
    min_rows = _FIT_ROWS if command == "fit" else MIN_ROWS
    try:
        return _open(options, extra, min_rows, kernel)
    except InvalidTableError as error:
        error.options = _options_that_work(options, extra, min_rows, kernel, error)
        if error.options is None and command != "fit":
            fitting = _options_that_work(options, extra, _FIT_ROWS, kernel, error)
            if fitting is not None:
                task = [] if options.task is None else ["--task", options.task]
                words = options.with_options(fitting).words()
                error.instead = ["fit", *words, *task, "--out", "model"]
        raise


def _options_that_work(
    options: DataOptions,
    extra: Mapping[str, str],
    min_rows: int,
    kernel: str,
    error: InvalidTableError,
) -> dict[str, tuple[str, ...]] | None:
    """Return options with which the data can be used, or None."""
    working: dict[str, tuple[str, ...]] = {}
    problems = error.problems
    for _ in range(_MAX_ROUNDS):
        for option, values in (item for p in problems for item in p.options.items()):
            if option in ("--drop", "--categories"):
                working[option] = tuple(dict.fromkeys((*working.get(option, ()), *values)))
            elif working.get(option) != ("impute",):
                working[option] = tuple(values)
        if max(map(len, working.values()), default=0) > _MAX_VALUES:
            return None
        try:
            _open(options.with_options(working), extra, min_rows, kernel)
        except InvalidTableError as again:
            problems = again.problems
        except DirectGPError:
            return None
        else:
            return working
    return None


_MAX_ROUNDS = 4
"""Times that options are added for problems that appear when others are solved."""

_MAX_VALUES = 100
"""Largest number of columns of an option in a suggested command."""


def _open(options: DataOptions, extra: Mapping[str, str], min_rows: int, kernel: str) -> Opened:
    source = open_source(options.data, options.data_dir, options.reading)
    for role, name in extra.items():
        if name not in source.table.names:
            refuse_column(f"--{role}", name, source.table.names)
    with usage_errors():
        target, _ = source.choose(options.target, options.task, options.positive)
    names = set(source.table.names)
    dropped = split_names(options.drop, names)
    categories = split_names(options.categories, names)
    kinds = kinds_of(options.columns, source.table.names)
    no_features = {target, *dropped, *extra.values()}
    check_kernel_names(kernel, [n for n in source.table.names if n not in no_features])
    implied = {n: k for n, k in kinds_in_kernel(kernel).items() if n in names - {*categories}}
    problem, encoding = prepare_source(
        source,
        target=options.target,
        task=options.task,
        positive=options.positive,
        drop=dropped,
        categories=categories,
        kinds={**implied, **kinds},
        missing=options.policy,
        dates=options.dates,
        needed=tuple(dict.fromkeys(extra.values())),
        min_rows=min_rows,
    )
    check_kernel_columns(kernel, encoding, options.policy == "impute")
    for role, name in extra.items():
        _check_values(role, name, problem)
    return Opened(problem, encoding, options, extra)


def _check_values(role: str, name: str, problem: Problem) -> None:
    """Raise `InvalidInputError` with the row of the first row constant or weight not allowed."""
    values = problem.needed[name]
    if role in ROW_CONSTANTS:
        allowed = ROW_CONSTANTS[role].allowed
        valid = ROW_CONSTANTS[role].valid(values)
    else:
        allowed = f"from 0 to {LARGEST:g}"
        valid = (0 <= values) & (values <= LARGEST)
    bad = np.flatnonzero(~valid)
    if len(bad):
        got = f"{values[bad[0]]:g} in row {problem.rows[bad[0]] + 1:,}"
        got += f" and others in {plural(len(bad) - 1, 'row')}" if len(bad) > 1 else ""
        refuse(f"Column {name!r} of --{role}", allowed, got, "Correct or remove such rows.")
