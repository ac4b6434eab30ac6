"""One cell: train by its method, choose β, judge."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from directgp.experiments.cells import Cell
from directgp.experiments.methods import ELBO, METHODS, Method
from directgp.experiments.models import Model, ScaledRows, starting_model
from directgp.experiments.results import BetaPoint, Finished, Outcome, Predictions
from directgp.experiments.training_rows import CellData
from directgp.metrics import Judged, judge
from directgp.shapes import Marginals
from directgp.training.beta_path import BetaPath, beta_path
from directgp.training.grid import beta_grid
from directgp.training.monitors import Monitor
from directgp.training.result import StageResult, TrainingResult
from directgp.training.train import train
from directgp.training.validation import Given

_POINTS_OF_CURVE = 200
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
    rows = ScaledRows.of(data, cell)
    method = METHODS[cell.method]
    model = starting_model(cell, *rows.train)
    if needs_elbo(method):
        model.load(elbo)
    since = _clock(cell)
    trained = _trained(cell, method, model, rows, monitors)
    seconds = _clock(cell) - since
    judged = _judged(cell, trained.best, rows)
    outcome = Outcome(
        scores={name: float(values.mean()) for name, values in judged.scores.items()},
        num_test=len(data.y_test),
        beta=trained.best.beta,
        path=_points(trained.path, rows.scale),
        validation_loss="MSE" if method.objective == "square_loss" else "NLL",
        curve=_thinned(trained.best.history),
        status=trained.best.status.value,
        reason=trained.best.reason,
        evaluations=sum(stage.evaluations for stage in trained.stages()),
        seconds=seconds,
        failed=()
        if trained.path is None
        else tuple(f"β = {each.beta:.3g}: {each.reason}" for each in trained.path.failed),
    )
    kept = Model(trained.best.posterior, trained.best.likelihood)
    return Finished(outcome, _predictions(judged), kept.to_bytes() if method == ELBO else b"")


@dataclass(frozen=True)
class _Trained:
    best: TrainingResult
    path: BetaPath | None

    def stages(self) -> list[StageResult]:
        """Of everything that was trained; one that several results share counts once."""
        results = [self.best] if self.path is None else [p.result for p in self.path.points]
        return list({id(stage): stage for each in results for stage in each.stages}.values())


def _trained(
    cell: Cell, method: Method, model: Model, rows: ScaledRows, monitors: Sequence[Monitor]
) -> _Trained:
    X, y = rows.train
    generator = torch.Generator(X.device).manual_seed(cell.seed)
    steps = cell.settings.max_steps
    if not method.chooses_beta:
        result = train(
            model.posterior,
            model.likelihood,
            X,
            y,
            objective=method.objective,
            max_steps=steps,
            monitors=monitors,
            generator=generator,
        )
        return _Trained(result, None)
    path = beta_path(
        model.posterior,
        model.likelihood,
        X,
        y,
        betas=cell.settings.betas or coarse_grid(len(y)),
        validation=Given(*rows.validation),
        objective=method.objective,
        hyperparameters=method.hyperparameters,
        start="given",
        max_steps=steps,
        monitors=monitors,
        generator=generator,
    )
    # The paper's choice. `path.best` would take a larger β that cannot be told from the best, and a
    # few very wrong rows hide even large differences of NLL.
    best = min(path.points, key=lambda point: point.validation_loss)
    return _Trained(best.result, path)


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


def _thinned(losses: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Steps and losses, so many at most, the last one always."""
    every = max(1, math.ceil(len(losses) / _POINTS_OF_CURVE))
    kept = {*range(0, len(losses), every), len(losses) - 1} if losses else set()
    return tuple((step + 1, losses[step]) for step in sorted(kept))


def _clock(cell: Cell) -> float:
    """Processor time, which other programs disturb least; wall time where a GPU works."""
    return time.process_time() if cell.settings.device == "cpu" else time.perf_counter()
