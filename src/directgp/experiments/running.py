"""One cell: train by its method, choose β, judge."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from directgp.experiments.cells import Cell
from directgp.experiments.method_training import clock, thinned, train_method
from directgp.experiments.methods import ELBO, METHODS, Method
from directgp.experiments.models import Model, ScaledRows, starting_model
from directgp.experiments.results import BetaPoint, Finished, Outcome, Predictions
from directgp.experiments.seeds import generator_of
from directgp.experiments.training_rows import CellData
from directgp.metrics import Judged, judge
from directgp.posteriors.prior import KernelName
from directgp.shapes import Marginals
from directgp.training.beta_path import BetaPath
from directgp.training.grid import beta_grid
from directgp.training.monitors import Monitor
from directgp.training.result import TrainingResult

_ROWS_OF_PICTURES = 2000


def needs_elbo(method: Method) -> bool:
    """Whether a method starts from the ELBO solution of its split."""
    return method.chooses_beta


def run_cell(
    cell: Cell, data: CellData, elbo: bytes = b"", monitors: Sequence[Monitor] = ()
) -> Finished:
    """Train on the split's rows, choose β by its validation rows, judge by its test rows.

    Parameters
    ----------
    cell : Cell
        What to run.
    data : CellData
        Its rows.
    elbo : bytes
        The ELBO solution of the same split, for methods that start from it.
    monitors : sequence of Monitor
        See every step.
    """
    rows = scaled(cell, data)
    method = METHODS[cell.method]
    model = start_of(cell, *rows.train)
    if needs_elbo(method):
        model.load(elbo)
    since = clock(cell.settings.device)
    trained = train_method(
        method,
        model,
        rows,
        betas=cell.settings.betas or coarse_grid(cell.size),
        seed=cell.seed,
        max_steps=cell.settings.max_steps,
        monitors=monitors,
    )
    seconds = clock(cell.settings.device) - since
    judged = _judged(cell, trained.best, rows)
    outcome = Outcome(
        scores={name: float(values.mean()) for name, values in judged.scores.items()},
        num_test=len(data.y_test),
        beta=trained.best.beta,
        path=_points(trained.path, rows.scale),
        validation_loss="MSE" if method.objective == "square_loss" else "NLL",
        curve=thinned(trained.best.history),
        status=trained.best.status.value,
        reason=trained.best.reason,
        evaluations=sum(stage.evaluations for stage in trained.stages()),
        seconds=seconds,
        failed=trained.failures(),
    )
    kept = Model(trained.best.posterior, trained.best.likelihood)
    return Finished(outcome, _predictions(judged), kept.to_bytes() if method == ELBO else b"")


def scaled(cell: Cell, data: CellData) -> ScaledRows:
    """The rows of a cell, as its settings want them."""
    return ScaledRows.of(data, cell.task, cell.settings.dtype, cell.settings.device)


def start_of(cell: Cell, X: Tensor, y: Tensor) -> Model:
    """The model before training; the same for every method of a split."""
    settings = cell.settings
    return starting_model(
        cell.task,
        X,
        y,
        likelihood=settings.likelihood,
        kernel=cast(KernelName, settings.kernel),
        ard=settings.ard,
        mean="zero" if cell.task == "regression" else "constant",
        num_inducing=settings.num_inducing,
        generator=generator_of(cell.seed, cell.repeat),
    )


def coarse_grid(num_data: int) -> list[float]:
    """Every second β of the paper's grid, its last, and 1."""
    grid = beta_grid(num_data)
    return sorted({*grid[::2], grid[-1], 1.0}, reverse=True)


def _judged(cell: Cell, result: TrainingResult, rows: ScaledRows) -> Judged:
    X, y = rows.test
    q = result.posterior.predict(X)
    wide = Marginals(q.mean.double().cpu(), q.variance.double().cpu())
    likelihood = result.likelihood.to("cpu", torch.float64)
    return judge(cell.task, likelihood, y.double().cpu(), wide, rows.offset, rows.scale)


def _predictions(judged: Judged) -> Predictions:
    names = ("actual", "mean", "lower", "upper", "below", "up_to")
    return Predictions(*(getattr(judged, n)[:_ROWS_OF_PICTURES].numpy() for n in names))


def _points(path: BetaPath | None, scale: float) -> tuple[BetaPoint, ...]:
    """The losses of a path in the units of y: NLL, or the squared error without its half."""
    if path is None:
        return ()
    square = path.loss == "square_loss"
    factor, shift = (2 * scale * scale, 0.0) if square else (1.0, math.log(scale))
    return tuple(
        BetaPoint(
            beta=point.beta,
            loss=factor * point.validation_loss + shift,
            error=factor * point.validation_error,
        )
        for point in path.points
    )
