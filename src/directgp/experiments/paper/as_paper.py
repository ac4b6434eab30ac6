"""Training to the letter of the paper: Adam, its learning rates, stopping rule and grid."""

import copy
from collections.abc import Sequence

import torch

from directgp.errors import NumericalError
from directgp.experiments.method_training import Trained
from directgp.experiments.methods import METHODS
from directgp.experiments.models import Model, ScaledRows
from directgp.experiments.paper.cells import FitCell
from directgp.experiments.seeds import seed_of
from directgp.training.beta_path import BetaPath, PathPoint, beta_path
from directgp.training.monitors import Monitor
from directgp.training.result import Failure
from directgp.training.stopping import LossRange
from directgp.training.validation import Given

_BATCH = 6000
"""Rows of a step where there are more, for the log loss."""

_TOLERANCE = 1e-4
_WINDOW, _OTHER_WINDOW = 50, 20
"""Losses that must lie within the tolerance: regression, and the rest."""


def train_as_paper(
    cell: FitCell, model: Model, rows: ScaledRows, monitors: Sequence[Monitor]
) -> Trained:
    """Every β on its own, each from the model that is given; the smallest validation loss wins.

    The ELBO of regression is the collapsed one, as FITC's objective is, and q(u) of the square loss
    is its closed form. Learning rates (0.1 for all rows, 0.001 for batches) and numbers of steps
    (5000 for regression, 3000 else) are those that `directgp.train` has for Adam.
    """
    seconds = 0.0
    points: list[PathPoint] = []
    failed: list[Failure] = []
    for beta in cell.betas:
        try:
            path = _one(cell, model, rows, beta, monitors)
        except NumericalError as error:
            failed.append(Failure(beta, METHODS[cell.method].hyperparameters, str(error)))
            continue
        seconds += path.seconds
        points += path.points
    if not points:
        raise NumericalError(failed[0].reason)
    losses = [point.validation_loss for point in points]
    chosen = losses.index(min(losses))
    found = BetaPath(tuple(points), chosen, path.loss, seconds, tuple(failed))
    return Trained(found.best, found)


def _one(
    cell: FitCell, model: Model, rows: ScaledRows, beta: float, monitors: Sequence[Monitor]
) -> BetaPath:
    method, regression = METHODS[cell.method], cell.task == "regression"
    collapsed = regression and method.objective == "elbo"
    batches = regression and method.objective == "log_loss" and cell.size > _BATCH
    X, y = rows.train
    return beta_path(
        copy.deepcopy(model.posterior),
        model.likelihood,
        X,
        y,
        betas=[beta],
        validation=Given(*rows.validation),
        objective="vfe" if collapsed else method.objective,
        rule=cell.rule.rule() if method.objective == "log_loss" else "auto",
        hyperparameters=method.hyperparameters,
        start="given",
        optimizer="adam",
        batch_size=_BATCH if batches else None,
        max_steps=cell.max_steps,
        stopping=LossRange(_WINDOW if regression else _OTHER_WINDOW, _TOLERANCE),
        monitors=monitors,
        generator=torch.Generator(X.device).manual_seed(seed_of(cell.seed, cell.repeat)),
    )
