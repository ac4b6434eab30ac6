"""Split the rows of a data set as the paper does, and scale them."""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from directgp.datasets import Problem, Task
from directgp.errors import require
from directgp.estimators import ColumnScaling
from directgp_paper.experiments.cells import AIRLINE, CurveCell, PaperCell

Array = NDArray[np.float64]

VALIDATION_SHARE = 0.08
"""Share of the rows for validation, in regression."""

TEST_SHARE = 0.25
"""Share of the rows for the test, in regression."""


@final
@dataclass(frozen=True)
class PartSizes:
    """Numbers of rows of each part of a split."""

    training: int
    """Upper bound of the training rows."""

    validation: int
    """Rows that choose β."""

    test: int
    """Rows that are scored."""


def paper_parts(dataset: str, task: Task, num_rows: int) -> PartSizes:
    """Return the numbers of rows of each part of a split.

    Regression: 67/8/25 %, at most 10,000 test rows of song. Classification and count: a tenth of
    all rows for validation, up to 1000 of the rest for the test. Airline: 100,000 for the test.
    """
    if dataset == AIRLINE:
        test = min(100_000, num_rows // 4)
        return PartSizes(num_rows - test, 0, test)
    if task == "regression":
        validation = round(VALIDATION_SHARE * num_rows)
        training = num_rows - validation - round(TEST_SHARE * num_rows)
        test = min(num_rows - validation - training, 10_000 if dataset == "song" else num_rows)
        return PartSizes(training, validation, test)
    validation = round(0.1 * num_rows)
    test = min(1_000, (num_rows - validation) // 2)
    return PartSizes(num_rows - validation - test, validation, test)


class PaperRows(NamedTuple):
    """X and y of the three parts of a split, unscaled."""

    train: tuple[Array, Array]
    """Rows to train on."""

    validation: tuple[Array, Array]
    """Rows that choose β."""

    test: tuple[Array, Array]
    """Rows that are scored."""

    num_training: int = 0
    """Rows of the training part, of which `train` may be a subset; 0 if not recorded."""


def paper_rows(cell: PaperCell, problem: Problem) -> PaperRows:
    """Return the rows of a cell; sizes of a repeat differ in the training rows only."""
    X = problem.X
    y = problem.y
    parts = paper_parts(cell.dataset, cell.task, len(y))
    require(1 <= cell.size <= parts.training, "size", f"from 1 to {parts.training}", cell.size)
    order = np.random.default_rng([cell.seed, cell.repeat]).permutation(len(y))
    test, validation, rest = np.split(order, np.cumsum([parts.test, parts.validation]))
    if isinstance(cell, CurveCell):
        test = test[: cell.num_test]
    train = rest[: cell.size]
    return PaperRows(
        train=(X[train], y[train]),
        validation=(X[validation], y[validation]),
        test=(X[test], y[test]),
        num_training=parts.training,
    )


class ScaledRows(NamedTuple):
    """Scaled tensors of X and y of the three parts."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, rows: PaperRows, task: Task, device: str = "cpu") -> "ScaledRows":
        """Scale inputs and real-valued targets to mean 0, deviation 1 on the training rows."""
        X, y = rows.train
        inputs = ColumnScaling.from_data(X)
        targets = ColumnScaling.identity(1)
        if task == "regression":
            targets = ColumnScaling.from_data(y[:, None])

        def tensors(X: Array, y: Array) -> tuple[Tensor, Tensor]:
            scaled = torch.as_tensor(targets.exact(y[:, None]))[:, 0]
            return torch.as_tensor(inputs.forward(X)).to(device), scaled.to(device)

        return cls(tensors(*rows.train), tensors(*rows.validation), tensors(*rows.test))
