"""Train and score one fit of the paper."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from directgp.datasets.problem import Problem, Task
from directgp.errors import require
from directgp.experiments.cell import generator_of
from directgp.experiments.fit import (
    CellData,
    Model,
    ScaledRows,
    Trained,
    clock,
    starting_model,
    thinned,
    train_method,
)
from directgp.experiments.paper.cells import CurveCell, FitCell, FitOutcome, PaperCell, PathPoint
from directgp.experiments.paper.scales import train_as_paper
from directgp.experiments.plan import ELBO, METHODS, TEST, VALIDATION, Parts
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive import predictive_log_density, predictive_mean
from directgp.shapes import Marginals
from directgp.training.callbacks import Monitor
from directgp.training.result import BetaPath, Progress, TrainingResult

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


SECOND: dict[Task, str] = {"regression": "mse", "classification": "error", "count": "mre"}
"""By the names of `directgp.metrics`."""


@torch.no_grad()
def row_scores(
    task: Task,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
) -> dict[str, Float[Tensor, " n"]]:
    """NLL and the second score of each row, on the CPU, in float64."""
    q = posterior.predict(X)
    wide = Marginals(q.mean.double(), q.variance.double())
    targets = y.double()
    mean = predictive_mean(likelihood, wide)
    second = {
        "regression": (mean - targets).square(),
        "classification": ((mean > 0.5) != (targets > 0.5)).to(mean),
        "count": (mean - targets).abs() / targets.clamp(min=1),
    }[task]
    nll = -predictive_log_density(likelihood, targets, wide)
    return {"nll": nll.cpu(), SECOND[task]: second.cpu()}


def mean_scores(rows: dict[str, Float[Tensor, " n"]]) -> dict[str, float]:
    """Means over the rows."""
    return {name: float(values.mean()) for name, values in rows.items()}


_LIKELIHOODS: dict[Task, str] = {
    "regression": "gaussian",
    "classification": "probit",
    "count": "poisson",
}


def scaled(data: CellData, task: Task, device: str = "cpu") -> ScaledRows:
    """Inputs, and real-valued targets, normalised by the training rows, in float64."""
    return ScaledRows.of(data, task, device=device)


def start_of(cell: PaperCell, X: Tensor, y: Tensor) -> Model:
    """The paper's kernel, mean and likelihood, q(u) at the prior; the same for cells of a split."""
    return starting_model(
        cell.task,
        X,
        y,
        likelihood=_LIKELIHOODS[cell.task],
        kernel="rbf",
        ard=isinstance(cell, CurveCell) and cell.ard,
        mean="constant" if cell.task == "classification" else "zero",
        num_inducing=cell.num_inducing,
        generator=generator_of(cell.seed, cell.repeat),
    )


def run_fit(
    cell: FitCell, data: CellData, start: bytes, device: str, monitors: Sequence[Monitor]
) -> tuple[FitOutcome, bytes]:
    """What came of it, and the ELBO solution for those that start there."""
    rows = scaled(data, cell.task, device)
    model = start_of(cell, *rows.train)
    if cell.start is not None:
        model.load(start)
    since = clock(device)
    trained = _trained(cell, model, rows, monitors)
    seconds = clock(device) - since
    outcome = FitOutcome(
        scores=_scores(cell, trained.best, rows),
        num_test=len(data.y_test),
        num_training=data.num_training,
        beta=trained.best.beta,
        path=_points(cell, trained.path, rows),
        history=thinned(trained.best.history),
        status=trained.best.status.value,
        reason=trained.best.reason,
        evaluations=sum(stage.evaluations for stage in trained.stages()),
        seconds=seconds,
        failed=trained.failures(),
    )
    kept = Model(trained.best.posterior, trained.best.likelihood)
    return outcome, kept.to_bytes() if cell.method == ELBO.name else b""


def _trained(cell: FitCell, model: Model, rows: ScaledRows, monitors: Sequence[Monitor]) -> Trained:
    if cell.protocol == "paper":
        return train_as_paper(cell, model, rows, monitors)
    return train_method(
        METHODS[cell.method],
        model,
        rows,
        betas=cell.betas,
        seed=cell.seed,
        max_steps=cell.max_steps,
        monitors=monitors,
    )


def _scores(cell: FitCell, result: TrainingResult, rows: ScaledRows) -> dict[str, float]:
    return mean_scores(row_scores(cell.task, result.posterior, result.likelihood, *rows.test))


def _points(cell: FitCell, path: BetaPath | None, rows: ScaledRows) -> tuple[PathPoint, ...]:
    """The path, its squared error without the half that the objective has."""
    if path is None or not METHODS[cell.method].chooses_beta:
        return ()
    factor = 2.0 if path.loss == "square_loss" else 1.0
    return tuple(
        PathPoint(
            beta=point.beta,
            validation=factor * point.validation_loss,
            error=factor * point.validation_error,
            test=_scores(cell, point.trained, rows),
        )
        for point in path.points
    )


def tell(monitors: Sequence[Monitor], stage: str, step: int, steps: int) -> None:
    """So many steps of a study are done; a monitor that wants to end the cell raises."""
    progress = Progress(stage, step, steps, step, math.nan, math.nan, math.nan)
    for monitor in monitors:
        monitor(progress)
