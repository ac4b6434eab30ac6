"""Run fits and learning curves of the paper: rows, model, training and scores."""

import copy
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from directgp import Marginals, beta_path, train
from directgp.datasets import Task
from directgp.errors import NumericalError
from directgp.experiments import Circumstances, Method, Record, seed_of
from directgp.likelihoods import Likelihood
from directgp.posteriors import SparsePosterior
from directgp.predictive import predictive_log_density, predictive_mean
from directgp.training import (
    BetaPath,
    Failure,
    Given,
    LossRange,
    Monitor,
    Observer,
    Progress,
    TrainingResult,
)
from directgp_paper.experiments.cells import (
    AIRLINE,
    ELBO,
    PAPER_METHODS,
    BetaScores,
    CurveCell,
    CurveOutcome,
    CurvePoint,
    FitCell,
    FitOutcome,
)
from directgp_paper.experiments.models import PaperModel, paper_model
from directgp_paper.experiments.rows import PaperRows, ScaledRows

BATCH = 6000
"""Batch size in regression with more rows than this."""

RATE = 0.1
"""Learning rate, also of batches, as in the authors' script.

With 1e-3, Adam is far from converged after 5000 steps.
"""


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


_CURVE_POINTS = 200
"""Points of a thinned training curve."""


class Trained(NamedTuple):
    """The chosen run of a method, and the path of β from which the run was chosen."""

    best: TrainingResult
    path: BetaPath | None

    def facts(self) -> dict[str, Any]:
        """Return the fields of `FitOutcome` that training decides."""
        results = [self.best]
        failures: tuple[Failure, ...] = ()
        if self.path is not None:
            results = [point.trained for point in self.path.points]
            failures = self.path.failed
        # A stage that several results share counts once.
        stages = {id(stage): stage for result in results for stage in result.stages}.values()
        return {
            "beta": self.best.beta,
            "status": self.best.status.value,
            "reason": self.best.reason,
            "evaluations": sum(stage.evaluations for stage in stages),
            "failed": tuple(f"β = {failure.beta:.3g}: {failure.reason}" for failure in failures),
        }

    def curve(self) -> tuple[tuple[int, float], ...]:
        """Return (step, objective) of the chosen run, thinned; the last step is always there."""
        losses = self.best.history
        every = max(1, math.ceil(len(losses) / _CURVE_POINTS))
        steps = {*range(0, len(losses), every), len(losses) - 1} if losses else set()
        return tuple((step + 1, losses[step]) for step in sorted(steps))


def run_fit(
    cell: FitCell, data: PaperRows, start: bytes, device: str, monitors: Sequence[Monitor]
) -> Record[FitCell, FitOutcome]:
    """Train by the cell's protocol; the ELBO's model is kept for the cells that start from it."""
    rows = ScaledRows.of(data, cell.task, device=device)
    model = paper_model(cell, *rows.train)
    if cell.start is not None:
        model.load_bytes(start)
    since = clock(device)
    if cell.protocol == "paper":
        trained = _train_as_paper(cell, model, rows, monitors)
    else:
        trained = _train_by_defaults(cell, model, rows, monitors)
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
    saved = PaperModel.of(trained.best).to_bytes() if cell.method == ELBO.name else b""
    return Record(cell, outcome, Circumstances.here(device), model=saved)


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


def clock(device: str) -> float:
    """Return processor time, which other programs disturb least; wall time on a GPU."""
    return time.process_time() if device == "cpu" else time.perf_counter()


def report_step(monitors: Sequence[Monitor], stage: str, step: int, steps: int) -> None:
    """Report a finished step of a study to the monitors; a monitor may raise to end the cell."""
    progress = Progress(stage, step, steps, step, math.nan, math.nan, math.nan)
    for monitor in monitors:
        monitor(progress)


def _train_by_defaults(
    cell: FitCell, model: PaperModel, rows: ScaledRows, monitors: Sequence[Monitor]
) -> Trained:
    """Train with the default optimisers; β is chosen along a path that starts at the model."""
    method: Method = PAPER_METHODS[cell.method]
    X, y = rows.train
    settings: dict[str, Any] = {
        "objective": method.objective,
        "max_steps": cell.max_steps,
        "monitors": monitors,
        "generator": torch.Generator(X.device).manual_seed(cell.seed),
    }
    if not method.chooses_beta and method.hyperparameters == "joint":
        return Trained(train(model.posterior, model.likelihood, X, y, **settings), None)
    path = beta_path(
        model.posterior,
        model.likelihood,
        X,
        y,
        betas=cell.betas,
        validation=Given(*rows.validation),
        hyperparameters=method.hyperparameters,
        start="given",
        **settings,
    )
    # The paper's choice. `path.best` would take a larger β within the standard error of the best,
    # and a few rows with a very large loss make that error large.
    best = min(path.points, key=lambda point: point.validation_loss)
    return Trained(best.trained, path)


_TOLERANCE = 1e-4
"""Range of the last losses at which a run has converged."""

_WINDOW = 50
"""Losses that must lie within the tolerance in regression."""

_OTHER_WINDOW = 20
"""Losses that must lie within the tolerance in the other tasks."""


def _train_as_paper(
    cell: FitCell, model: PaperModel, rows: ScaledRows, monitors: Sequence[Monitor]
) -> Trained:
    """Train each β from the given model, and choose the smallest validation loss.

    The ELBO of regression is the collapsed one, as FITC's objective is, and q(u) of the square loss
    is its closed form. Numbers of steps (5000 for regression, 3000 otherwise) are the defaults of
    `directgp.train` for Adam.
    """
    method = PAPER_METHODS[cell.method]
    regression = cell.task == "regression"
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
    chosen = losses.index(min(losses))
    seconds = sum(path.seconds for path in paths)
    whole = BetaPath(points, chosen, paths[0].loss, seconds, tuple(failed))
    return Trained(whole.best, whole)


@final
class EveryStep(Monitor):
    """Stopping rule that never stops: the run takes all its steps."""

    @override
    def __call__(self, progress: Progress) -> None:
        return None


_ROWS_KEPT = 1_000
"""Test rows whose losses are stored, for paired tests over rows."""


def run_curve(
    cell: CurveCell, data: PaperRows, start: bytes, device: str, monitors: Sequence[Monitor]
) -> Record[CurveCell, CurveOutcome]:
    """Train with Adam and score the test rows along the way.

    The solution of the ELBO with β = 1 is kept for the cells that start from it.
    """
    rows = ScaledRows.of(data, cell.task, device=device)
    model = paper_model(cell, *rows.train)
    if cell.hyperparameters == "fixed":
        # q(u) is the only trainable part, and starts at the prior.
        model.load_bytes(start)
        model.posterior.reset()
        for name, parameter in model.posterior.named_parameters():
            parameter.requires_grad_(name in ("u_mean", "u_chol"))
        for parameter in model.likelihood.parameters():
            parameter.requires_grad_(False)
    points: list[CurvePoint] = []
    losses: list[NDArray[np.float32]] = []
    # A pass over the rows in batches, of which the last may be smaller.
    batch = min(cell.batch_size or cell.size, cell.size)
    since = clock(device)
    scoring = 0.0

    def score(step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        nonlocal scoring
        now = clock(device)
        seen = row_scores(cell.task, posterior, likelihood, *rows.test)
        if cell.dataset != AIRLINE:
            losses.clear()
        losses.append(seen["nll"][:_ROWS_KEPT].to(torch.float32).numpy())
        passes, steps = divmod(step, -(-cell.size // batch))
        epoch = passes + steps * batch / cell.size
        seconds = now - since - scoring
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
    saved = PaperModel.of(result).to_bytes() if starts_others else b""
    return Record(cell, outcome, Circumstances.here(device), {"losses": np.stack(losses)}, saved)
