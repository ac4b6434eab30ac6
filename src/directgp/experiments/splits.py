"""Split the rows of a problem into training, validation and test rows."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import Problem
from directgp.errors import require
from directgp.estimators.preprocessing import Scalings
from directgp.registry import Task

Array = NDArray[np.float64]

Rows = NDArray[np.int64]
"""Numbers of rows."""

VALIDATION = 0.08
"""Share of the table for validation, as in the paper."""

TEST = 0.25
"""Share of the table for the test, as in the paper; the rest is for training."""

_MIN_VALIDATION = 100
"""Rows needed to choose β."""

_MAX_VALIDATION_SHARE = 0.2
"""Upper bound of the validation share in small tables; it precedes `_MIN_VALIDATION`."""

_MAX_VALIDATION = 5_000
"""Validation rows of large tables; more would not change the choice of β by much."""

_MAX_TEST = 20_000
"""Test rows of large tables; more would not change a score by much."""


@final
@dataclass(frozen=True)
class Parts:
    """Numbers of rows of each part of a split."""

    training: int
    """Upper bound of the training rows."""

    validation: int
    """Validation rows."""

    test: int
    """Test rows."""


def parts_of(num_rows: int) -> Parts:
    """Return 67/8/25 % of the rows, adjusted for small and for large tables."""
    wanted = max(VALIDATION * num_rows, min(_MAX_VALIDATION_SHARE * num_rows, _MIN_VALIDATION))
    validation = min(round(wanted), _MAX_VALIDATION)
    test = min(round(TEST * num_rows), _MAX_TEST)
    return Parts(num_rows - validation - test, validation, test)


def split(problem: Problem, repeat: int, size: int, seed: int) -> tuple[Rows, Rows, Rows]:
    """Return training, validation and test rows of a random split, stratified by class.

    All sizes of a repeat have the same test and validation rows, and a larger size has all
    training rows of a smaller size.
    """
    parts = parts_of(len(problem.y))
    require(1 <= size <= parts.training, "size", f"from 1 to {parts.training}", size)
    generator = np.random.default_rng([seed, repeat])
    strata = problem.y if problem.task == "classification" else np.zeros(len(problem.y))
    order = _stratified_order(strata, generator)
    test, validation, rest = np.split(order, np.cumsum([parts.test, parts.validation]))
    return rest[:size], validation, test


def _stratified_order(strata: NDArray[np.float64], generator: np.random.Generator) -> Rows:
    """Return a random order: the i-th of n rows of a stratum is near the share i/n of it."""
    place = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        n = len(members)
        place[members] = (generator.permutation(n) + generator.uniform(size=n)) / n
    return np.argsort(place, kind="stable")


class CellData(NamedTuple):
    """The rows of the three parts of a split, unscaled."""

    train: tuple[Array, Array]
    """X and y of the rows to train on."""

    validation: tuple[Array, Array]
    """X and y of the rows that choose β."""

    test: tuple[Array, Array]
    """X and y of the rows that are predicted."""

    num_training: int
    """Rows of the training part, of which `train` may be a subset."""

    num_classes: int = 2
    """Classes of the table, of which a part may lack some."""

    encoding: Encoding | None = None
    """Encoding of features with kinds, such as levels; None if all are plain numbers."""

    def inputs(self, X: Array) -> Any:
        """Return features for an estimator: an array, or a table with levels and dates."""
        return X if self.encoding is None else self.encoding.table(X)

    @property
    def has_gaps(self) -> bool:
        """Whether a feature is missing in some row."""
        return any(bool(np.isnan(X).any()) for X, _ in (self.train, self.validation, self.test))


class ScaledParts(NamedTuple):
    """The three parts of a split, scaled."""

    train: tuple[Array, Array]
    """X and y of the rows to train on."""

    validation: tuple[Array, Array]
    """X and y of the validation rows."""

    test: tuple[Array, Array]
    """X and y of the test rows."""

    scalings: Scalings
    """Scaling of inputs and targets."""

    num_classes: int = 2
    """Classes of the table."""

    @classmethod
    def of(cls, data: CellData, task: Task) -> "ScaledParts":
        """Scale inputs and real-valued targets to mean 0, deviation 1 on the training rows.

        If inputs have gaps, they are imputed first, by the training rows.
        """
        scalings = Scalings.from_data(
            *data.train, None, inputs=True, targets=task == "regression", impute=data.has_gaps
        )
        train, validation, test = (
            (scalings.scaled_inputs(X), scalings.exact_targets(y))
            for X, y in (data.train, data.validation, data.test)
        )
        return cls(train, validation, test, scalings, data.num_classes)
