"""Random splits into rows to train on, to choose β by, and to judge by."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.problem import Problem
from directgp.errors import require

Rows = NDArray[np.int64]

VALIDATION, TEST = 0.08, 0.25
"""Shares of the table, as in the paper; the rest may be trained on."""

_LEAST_VALIDATION, _MOST_OF_TABLE = 100, 0.2
"""β is chosen by so many rows at least, unless that is more than this share of the table."""

_MOST_VALIDATION, _MOST_TEST = 5_000, 20_000


@final
@dataclass(frozen=True)
class Parts:
    """How many rows go where."""

    training: int
    """At most."""

    validation: int
    test: int


@final
@dataclass(frozen=True)
class Split:
    """The rows of each part."""

    training: Rows
    validation: Rows
    test: Rows


def parts_of(num_rows: int) -> Parts:
    """67/8/25 %, with enough rows to choose by and no more than are needed to judge by."""
    wanted = max(VALIDATION * num_rows, min(_MOST_OF_TABLE * num_rows, _LEAST_VALIDATION))
    validation = min(round(wanted), _MOST_VALIDATION)
    test = min(round(TEST * num_rows), _MOST_TEST)
    return Parts(num_rows - validation - test, validation, test)


def split(problem: Problem, repeat: int, size: int, seed: int) -> Split:
    """One split; those of other sizes have the same test rows, and smaller ones fewer to train on.

    Labels are spread evenly, so that every part has its share of each.
    """
    parts = parts_of(len(problem.y))
    require(1 <= size <= parts.training, "size", f"from 1 to {parts.training}", size)
    generator = np.random.default_rng([seed, repeat])
    strata = problem.y if problem.task == "classification" else np.zeros(len(problem.y))
    order = _spread(strata, generator)
    ends = np.cumsum([parts.test, parts.validation])
    test, validation, rest = np.split(order, ends)
    return Split(rest[:size], validation, test)


def _spread(strata: NDArray[np.float64], generator: np.random.Generator) -> Rows:
    """A random order in which each stratum is spread evenly: its i-th row near i/n of the way."""
    place = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        n = len(members)
        place[members] = (generator.permutation(n) + generator.uniform(size=n)) / n
    return np.argsort(place, kind="stable")
