"""Record learning curves of Adam."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from directgp.experiments.fit import CellData, Model, ScaledRows, clock
from directgp.experiments.paper.cells import CurveCell, CurveOutcome, CurvePoint
from directgp.experiments.paper.fits import mean_scores, row_scores, scaled, start_of
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.callbacks import Monitor, Observer
from directgp.training.result import Progress
from directgp.training.train import train


@final
class EveryStep(Monitor):
    """Lets every step be taken, whether or not the training has converged."""

    @override
    def __call__(self, progress: Progress) -> None:
        """Go on."""

    @override
    def reset(self) -> None:
        """Nothing is remembered."""


_ROWS_KEPT = 20_000
"""Test rows whose losses are kept, for paired tests over rows."""


def run_curve(
    cell: CurveCell, data: CellData, start: bytes, device: str, monitors: Sequence[Monitor]
) -> tuple[CurveOutcome, bytes, NDArray[np.float32]]:
    """The curve, the ELBO solution for those that hold its hyperparameters, and losses of rows."""
    rows = scaled(data, cell.task, device)
    model = start_of(cell, *rows.train)
    if cell.hyperparameters == "fixed":
        model.load(start)
        _hold(model)
    looks = _Looks(cell, rows, device)
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
        observer=Observer(cell.every, looks.see),
        generator=torch.Generator(X.device).manual_seed(cell.seed + cell.repeat),
    )
    outcome = CurveOutcome(
        points=tuple(looks.points),
        num_test=len(data.y_test),
        num_training=data.num_training,
        status=result.status.value,
        reason=result.reason,
        seconds=looks.points[-1].seconds,
    )
    starts_others = cell.objective == "elbo" and cell.beta == 1.0
    kept = Model(result.posterior, result.likelihood).to_bytes() if starts_others else b""
    return outcome, kept, np.stack(looks.losses)


def _hold(model: Model) -> None:
    """Train q(u) alone, from scratch."""
    model.posterior.reset()
    for name, parameter in model.posterior.named_parameters():
        parameter.requires_grad_(name in ("u_mean", "u_chol"))
    for parameter in model.likelihood.parameters():
        parameter.requires_grad_(False)


@final
@dataclass
class _Looks:
    """What is seen of the test rows on the way."""

    cell: CurveCell
    rows: ScaledRows
    device: str
    points: list[CurvePoint] = field(default_factory=list, init=False)
    losses: list[NDArray[np.float32]] = field(default_factory=list, init=False)
    _since: float = field(init=False)
    _looking: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._since = clock(self.device)

    def see(self, step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        """Judge the model as it is."""
        now = clock(self.device)
        seen = row_scores(self.cell.task, posterior, likelihood, *self.rows.test)
        self.losses.append(seen["nll"][:_ROWS_KEPT].to(torch.float32).numpy())
        self.points.append(
            CurvePoint(
                step=step,
                epoch=_epoch(step, self.cell),
                scores=mean_scores(seen),
                seconds=now - self._since - self._looking,
            )
        )
        self._looking += clock(self.device) - now


def _epoch(step: int, cell: CurveCell) -> float:
    """Passes over the training rows; the last batch of each has what is left."""
    batch = min(cell.batch_size or cell.size, cell.size)
    passes, steps = divmod(step, -(-cell.size // batch))
    return passes + steps * batch / cell.size
