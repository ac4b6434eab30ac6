"""A fit of the paper's fig. 1a to 1e: train, choose β, judge."""

from collections.abc import Sequence

from directgp.experiments.method_training import Trained, clock, thinned, train_method
from directgp.experiments.methods import ELBO, METHODS
from directgp.experiments.models import Model, ScaledRows
from directgp.experiments.paper.as_paper import train_as_paper
from directgp.experiments.paper.cells import FitCell
from directgp.experiments.paper.results import FitOutcome, PathPoint
from directgp.experiments.paper.scores import mean_scores, row_scores
from directgp.experiments.paper.starting import scaled, start_of
from directgp.experiments.training_rows import CellData
from directgp.training.beta_path import BetaPath
from directgp.training.monitors import Monitor
from directgp.training.result import TrainingResult


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
            test=_scores(cell, point.result, rows),
        )
        for point in path.points
    )
