"""Run fits and learning curves of the paper: rows, model, training and scores."""

import copy
import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from directgp.datasets.problem import Problem
from directgp.errors import NumericalError, require
from directgp.experiments.cell import ELBO, Circumstances, Record, seed_of
from directgp.experiments.fit import clock
from directgp.experiments.paper.cells import (
    AIRLINE,
    PAPER_METHODS,
    BetaScores,
    CurveCell,
    CurveOutcome,
    CurvePoint,
    FitCell,
    FitOutcome,
    PaperCell,
)
from directgp.experiments.paper.fit import (
    Trained,
    load_bytes,
    model_bytes,
    starting_model,
    train_method,
)
from directgp.experiments.splits import TEST, VALIDATION, CellData, Parts, ScaledRows
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive import predictive_log_density, predictive_mean
from directgp.registry import Task, chosen_likelihood
from directgp.shapes import Marginals
from directgp.training.beta_path import beta_path
from directgp.training.data import Model
from directgp.training.result import BetaPath, Failure, Progress, TrainingResult
from directgp.training.run import LossRange, Monitor, Observer
from directgp.training.train import train
from directgp.training.validation import Given

BATCH, RATE = 6000, 0.1
"""Batch size where there are more rows, in regression; and the learning rate, also of such batches:
so it is in the authors' script, and 1e-3 is far from converged after 5000 steps."""


def paper_parts(dataset: str, task: Task, num_rows: int) -> Parts:
    """Return the numbers of rows of each part of a split.

    Regression: 67/8/25 %, at most 10,000 test rows of song. Classification and count: a tenth of
    all rows for validation, up to 1000 of the rest for the test. Airline: 100,000 for the test.
    """
    if dataset == AIRLINE:
        test = min(100_000, num_rows // 4)
        return Parts(num_rows - test, 0, test)
    if task == "regression":
        validation = round(VALIDATION * num_rows)
        training = num_rows - validation - round(TEST * num_rows)
        test = min(num_rows - validation - training, 10_000 if dataset == "song" else num_rows)
        return Parts(training, validation, test)
    validation = round(0.1 * num_rows)
    test = min(1_000, (num_rows - validation) // 2)
    return Parts(num_rows - validation - test, validation, test)


def paper_rows(cell: PaperCell, problem: Problem) -> CellData:
    """Return the rows of a cell; sizes of a repeat differ in the training rows only."""
    parts = paper_parts(cell.dataset, cell.task, len(problem.y))
    require(1 <= cell.size <= parts.training, "size", f"from 1 to {parts.training}", cell.size)
    order = np.random.default_rng([cell.seed, cell.repeat]).permutation(len(problem.y))
    test, validation, rest = np.split(order, np.cumsum([parts.test, parts.validation]))
    if isinstance(cell, CurveCell):
        test = test[: cell.num_test]
    return CellData.of(problem, rest[: cell.size], validation, test, parts.training)


SECOND: dict[Task, str] = {"regression": "mse", "classification": "error", "count": "mre"}
"""The score beside NLL, by the names of `directgp.metrics`."""


@torch.no_grad()
def row_scores(
    task: Task,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
) -> dict[str, Float[Tensor, " n"]]:
    """Return NLL and the second score of each row, on the CPU, in float64."""
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
    """Return the means over the rows."""
    return {name: float(values.mean()) for name, values in rows.items()}


def paper_model(cell: PaperCell, X: Tensor, y: Tensor) -> Model:
    """Return the untrained model of the paper, the same for all cells of a split."""
    likelihood, seed = chosen_likelihood(cell.task, None), (cell.seed, cell.repeat)
    mean = "constant" if cell.task == "classification" else "zero"
    prior: dict[str, Any] = {"kernel": "rbf", "ard": cell.dataset == AIRLINE, "mean": mean}
    return starting_model(cell.task, X, y, likelihood, cell.num_inducing, seed, **prior)


def run_fit(
    cell: FitCell, data: CellData, start: bytes, device: str, monitors: Sequence[Monitor]
) -> Record[FitCell, FitOutcome]:
    """Train by the cell's protocol; the ELBO's model is kept for the cells that start from it."""
    rows = ScaledRows.of(data, cell.task, device=device)
    model = paper_model(cell, *rows.train)
    if cell.start is not None:
        load_bytes(model, start)
    since = clock(device)
    if cell.protocol == "paper":
        trained = _train_as_paper(cell, model, rows, monitors)
    else:
        method = PAPER_METHODS[cell.method]
        steps = cell.max_steps
        trained = train_method(method, model, rows, cell.betas, cell.seed, steps, monitors)
    seconds = clock(device) - since
    outcome = FitOutcome(
        **trained.facts(),
        scores=_scores(cell, trained.best, rows),
        num_test=len(data.test[1]),
        num_training=data.num_training,
        path=_path(cell, trained.path, rows),
        history=trained.curve(),
        seconds=seconds,
    )
    kept = trained.to_bytes() if cell.method == ELBO.name else b""
    return Record(cell, outcome, Circumstances.here(device), model=kept)


def _scores(cell: FitCell, result: TrainingResult, rows: ScaledRows) -> dict[str, float]:
    return mean_scores(row_scores(cell.task, result.posterior, result.likelihood, *rows.test))


def _path(cell: FitCell, path: BetaPath | None, rows: ScaledRows) -> tuple[BetaScores, ...]:
    """Return the scores of each β; the squared error is without the ½ of the objective."""
    if path is None or not PAPER_METHODS[cell.method].chooses_beta:
        return ()
    factor = 2.0 if path.loss == "square_loss" else 1.0
    return tuple(
        BetaScores(
            beta=point.beta,
            validation=factor * point.validation_loss,
            error=factor * point.validation_error,
            test=_scores(cell, point.trained, rows),
        )
        for point in path.points
    )


def report_step(monitors: Sequence[Monitor], stage: str, step: int, steps: int) -> None:
    """Report a finished step of a study to the monitors; a monitor may raise to end the cell."""
    progress = Progress(stage, step, steps, step, math.nan, math.nan, math.nan)
    for monitor in monitors:
        monitor(progress)


_TOLERANCE = 1e-4
_WINDOW, _OTHER_WINDOW = 50, 20
"""Losses that must lie within the tolerance: in regression, and in the other tasks."""


def _train_as_paper(
    cell: FitCell, model: Model, rows: ScaledRows, monitors: Sequence[Monitor]
) -> Trained:
    """Train each β from the given model, and choose the smallest validation loss.

    The ELBO of regression is the collapsed one, as FITC's objective is, and q(u) of the square loss
    is its closed form. Numbers of steps (5000 for regression, 3000 otherwise) are the defaults of
    `directgp.train` for Adam.
    """
    method, regression = PAPER_METHODS[cell.method], cell.task == "regression"
    collapsed = regression and method.objective == "elbo"
    batches = regression and method.objective == "log_loss" and cell.size > BATCH
    X, y = rows.train
    paths: list[BetaPath] = []
    failed: list[Failure] = []
    for beta in cell.betas:
        try:
            path = beta_path(
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
                batch_size=BATCH if batches else None,
                learning_rate=RATE,
                max_steps=cell.max_steps,
                stopping=LossRange(_WINDOW if regression else _OTHER_WINDOW, _TOLERANCE),
                monitors=monitors,
                generator=torch.Generator(X.device).manual_seed(seed_of(cell.seed, cell.repeat)),
            )
            paths.append(path)
        except NumericalError as error:
            failed.append(Failure(beta, method.hyperparameters, str(error)))
    if not paths:
        raise NumericalError(failed[0].reason)
    points = tuple(point for path in paths for point in path.points)
    losses = [point.validation_loss for point in points]
    chosen, seconds = losses.index(min(losses)), sum(path.seconds for path in paths)
    found = BetaPath(points, chosen, paths[0].loss, seconds, tuple(failed))
    return Trained(found.best, found)


@final
class EveryStep(Monitor):
    """Never stops the run, whether or not it has converged."""

    @override
    def __call__(self, progress: Progress) -> None:
        return None


_ROWS_KEPT = 1_000
"""Test rows whose losses are stored, for paired tests over rows."""


def run_curve(
    cell: CurveCell, data: CellData, start: bytes, device: str, monitors: Sequence[Monitor]
) -> Record[CurveCell, CurveOutcome]:
    """Train with Adam and score the test rows along the way.

    The solution of the ELBO with β = 1 is kept for the cells that start from it.
    """
    rows = ScaledRows.of(data, cell.task, device=device)
    model = paper_model(cell, *rows.train)
    if cell.hyperparameters == "fixed":
        # q(u) is the only trainable part, and starts at the prior.
        load_bytes(model, start)
        model.posterior.reset()
        for name, parameter in model.posterior.named_parameters():
            parameter.requires_grad_(name in ("u_mean", "u_chol"))
        for parameter in model.likelihood.parameters():
            parameter.requires_grad_(False)
    points: list[CurvePoint] = []
    losses: list[NDArray[np.float32]] = []
    # A pass over the rows in batches, of which the last may be smaller.
    batch = min(cell.batch_size or cell.size, cell.size)
    since, scoring = clock(device), 0.0

    def score(step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        nonlocal scoring
        now = clock(device)
        seen = row_scores(cell.task, posterior, likelihood, *rows.test)
        if cell.dataset != AIRLINE:
            losses.clear()
        losses.append(seen["nll"][:_ROWS_KEPT].to(torch.float32).numpy())
        passes, steps = divmod(step, -(-cell.size // batch))
        epoch, seconds = passes + steps * batch / cell.size, now - since - scoring
        points.append(CurvePoint(step=step, epoch=epoch, scores=mean_scores(seen), seconds=seconds))
        scoring += clock(device) - now

    X, y = rows.train
    result = train(
        model.posterior,
        model.likelihood,
        X,
        y,
        objective=cell.objective,
        beta=cell.beta,
        rule=cell.rule.rule() if cell.objective == "log_loss" else "auto",
        start="scratch",
        optimizer="adam",
        batch_size=cell.batch_size,
        learning_rate=cell.learning_rate,
        max_steps=cell.steps,
        stopping=EveryStep(),
        monitors=monitors,
        observer=Observer(cell.every, score),
        generator=torch.Generator(X.device).manual_seed(cell.seed + cell.repeat),
        whitened=cell.whitened,
    )
    outcome = CurveOutcome(
        points=tuple(points),
        num_test=len(data.test[1]),
        num_training=data.num_training,
        status=result.status.value,
        reason=result.reason,
        seconds=points[-1].seconds,
    )
    starts_others = cell.objective == "elbo" and cell.beta == 1.0
    kept = model_bytes(Model.of(result)) if starts_others else b""
    return Record(cell, outcome, Circumstances.here(device), {"losses": np.stack(losses)}, kept)
