"""Record learning curves of Adam."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from directgp.experiments.fit import CellData, GPModel, ScaledRows, clock
from directgp.experiments.paper.cells import CurveCell, CurveOutcome, CurvePoint
from directgp.experiments.paper.fits import mean_scores, paper_model, row_scores
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.callbacks import Monitor, Observer
from directgp.training.result import Progress
from directgp.training.train import train


@final
class EveryStep(Monitor):
    """Never stops the run, whether or not it has converged."""

    @override
    def __call__(self, progress: Progress) -> None:
        return None

    @override
    def reset(self) -> None:
        return None


_ROWS_KEPT = 20_000
"""Test rows whose losses are stored, for paired tests over rows."""


def run_curve(
    cell: CurveCell, data: CellData, start: bytes, device: str, monitors: Sequence[Monitor]
) -> tuple[CurveOutcome, bytes, NDArray[np.float32]]:
    """Return the curve, the ELBO solution for cells that start from it, and the losses of rows."""
    rows = ScaledRows.of(data, cell.task, device=device)
    model = paper_model(cell, *rows.train)
    if cell.hyperparameters == "fixed":
        model.load(start)
        _fix_hyperparameters(model)
    scorer = _Scorer(cell, rows, device)
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
        observer=Observer(cell.every, scorer.score),
        generator=torch.Generator(X.device).manual_seed(cell.seed + cell.repeat),
    )
    outcome = CurveOutcome(
        points=tuple(scorer.points),
        num_test=len(data.y_test),
        num_training=data.num_training,
        status=result.status.value,
        reason=result.reason,
        seconds=scorer.points[-1].seconds,
    )
    starts_others = cell.objective == "elbo" and cell.beta == 1.0
    kept = GPModel(result.posterior, result.likelihood).to_bytes() if starts_others else b""
    return outcome, kept, np.stack(scorer.losses)


def _fix_hyperparameters(model: GPModel) -> None:
    """Make q(u) the only trainable part, at the prior."""
    model.posterior.reset()
    for name, parameter in model.posterior.named_parameters():
        parameter.requires_grad_(name in ("u_mean", "u_chol"))
    for parameter in model.likelihood.parameters():
        parameter.requires_grad_(False)


@final
@dataclass
class _Scorer:
    """Scores the test rows at some steps of training."""

    cell: CurveCell
    rows: ScaledRows
    device: str
    points: list[CurvePoint] = field(default_factory=list, init=False)
    losses: list[NDArray[np.float32]] = field(default_factory=list, init=False)
    _since: float = field(init=False)
    _scoring: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._since = clock(self.device)

    def score(self, step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        """Score the current model."""
        now = clock(self.device)
        seen = row_scores(self.cell.task, posterior, likelihood, *self.rows.test)
        self.losses.append(seen["nll"][:_ROWS_KEPT].to(torch.float32).numpy())
        self.points.append(
            CurvePoint(
                step=step,
                epoch=_epoch(step, self.cell),
                scores=mean_scores(seen),
                seconds=now - self._since - self._scoring,
            )
        )
        self._scoring += clock(self.device) - now


def _epoch(step: int, cell: CurveCell) -> float:
    """Return the passes over the training rows; the last batch of each may be smaller."""
    batch = min(cell.batch_size or cell.size, cell.size)
    passes, steps = divmod(step, -(-cell.size // batch))
    return passes + steps * batch / cell.size
