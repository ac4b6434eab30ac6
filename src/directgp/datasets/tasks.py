"""Which task a target column suggests, and why."""

from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.kinds import kind_of
from directgp.datasets.levels import level_counts
from directgp.datasets.problem import Task
from directgp.datasets.text_advice import look_of
from directgp.datasets.wording import listed, several
from directgp.errors import InvalidInputError, refuse

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
