"""The numbers of one cell: its rows, scaled by those that are trained on."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.problem import Problem
from directgp.experiments.cells import Cell
from directgp.experiments.splits import split

Array = NDArray[np.float64]


@final
@dataclass(frozen=True)
class CellData:
    """Rows of the three parts, as they are in the table."""

    X_train: Array
    y_train: Array
    X_validation: Array
    y_validation: Array
    X_test: Array
    y_test: Array

    @classmethod
    def of(cls, problem: Problem, cell: Cell) -> "CellData":
        """The rows that a cell is about."""
        rows = split(problem, cell.repeat, cell.size, cell.seed)
        X, y = problem.X, problem.y
        parts = (rows.training, rows.validation, rows.test)
        return cls(*(values[part] for part in parts for values in (X, y)))
