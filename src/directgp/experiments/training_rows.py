"""The numbers of one cell: its rows, scaled by those that are trained on."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.problem import Problem
from directgp.experiments.cells import Cell
from directgp.experiments.splits import Rows, split

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
    num_training: int = 0
    """Rows of the training part, of which X_train may be a few; 0 where that is not needed."""

    @classmethod
    def of(cls, problem: Problem, cell: Cell) -> "CellData":
        """The rows that a cell is about."""
        rows = split(problem, cell.repeat, cell.size, cell.seed)
        return cls.of_rows(problem, rows.training, rows.validation, rows.test)

    @classmethod
    def of_rows(
        cls, problem: Problem, training: Rows, validation: Rows, test: Rows, num_training: int = 0
    ) -> "CellData":
        """These rows of a problem."""
        X, y = problem.X, problem.y
        return cls(
            X[training], y[training], X[validation], y[validation], X[test], y[test], num_training
        )
