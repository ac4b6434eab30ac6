"""Which rows of a data set a cell trains on, chooses β by and is judged by."""

import numpy as np

from directgp.datasets.problem import Problem, Task
from directgp.errors import require
from directgp.experiments.paper.cells import CurveCell, PaperCell
from directgp.experiments.splits import TEST, VALIDATION, Parts
from directgp.experiments.training_rows import CellData

LARGE = "airline"
"""Without validation rows: β is not chosen there."""

_LARGE_TEST = 100_000
_MOST_TEST = {"song": 10_000}
_OTHER_TEST, _OTHER_VALIDATION = 1_000, 0.1


def parts_of(dataset: str, task: Task, num_rows: int) -> Parts:
    """How many rows go where.

    Regression: 67/8/25 %, at most 10,000 test rows of song. Classification and count: a tenth of
    all to validate, up to 1000 of the rest to judge by. Airline: 100,000 to judge by.
    """
    if dataset == LARGE:
        test = min(_LARGE_TEST, num_rows // 4)
        return Parts(num_rows - test, 0, test)
    if task == "regression":
        validation = round(VALIDATION * num_rows)
        training = num_rows - validation - round(TEST * num_rows)
        test = min(num_rows - validation - training, _MOST_TEST.get(dataset, num_rows))
        return Parts(training, validation, test)
    validation = round(_OTHER_VALIDATION * num_rows)
    test = min(_OTHER_TEST, (num_rows - validation) // 2)
    return Parts(num_rows - validation - test, validation, test)


def rows_of(problem: Problem, cell: PaperCell) -> CellData:
    """The rows of a cell; smaller sizes of a repeat have fewer rows to train on, else the same."""
    parts = parts_of(cell.dataset, cell.task, len(problem.y))
    require(1 <= cell.size <= parts.training, "size", f"from 1 to {parts.training}", cell.size)
    order = np.random.default_rng([cell.seed, cell.repeat]).permutation(len(problem.y))
    test, validation, rest = np.split(order, np.cumsum([parts.test, parts.validation]))
    if isinstance(cell, CurveCell):
        test = test[: cell.num_test]
    return CellData.of_rows(problem, rest[: cell.size], validation, test, parts.training)
