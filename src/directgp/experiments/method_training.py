"""A method at work: trained from where it begins, with β chosen by validation rows."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from directgp.experiments.methods import Method
from directgp.experiments.models import Model, ScaledRows
from directgp.training.beta_path import BetaPath, beta_path
from directgp.training.monitors import Monitor
from directgp.training.result import StageResult, TrainingResult
from directgp.training.train import train
from directgp.training.validation import Given

_POINTS_OF_CURVE = 200


@final
@dataclass(frozen=True)
class Trained:
    """What a method has trained, and what it chose from."""

    best: TrainingResult
    path: BetaPath | None

    def stages(self) -> list[StageResult]:
        """Of everything that was trained; one that several results share counts once."""
        results = [self.best] if self.path is None else [p.result for p in self.path.points]
        return list({id(stage): stage for each in results for stage in each.stages}.values())

    def failures(self) -> tuple[str, ...]:
        """Values of β that could not be trained, and why."""
        failed = () if self.path is None else self.path.failed
        return tuple(f"β = {each.beta:.3g}: {each.reason}" for each in failed)


def train_method(
    method: Method,
    model: Model,
    rows: ScaledRows,
    *,
    betas: Sequence[float],
    seed: int,
    max_steps: int | None,
    monitors: Sequence[Monitor],
) -> Trained:
    """By our optimisers; a method that chooses β begins at the ELBO solution, which is given."""
    X, y = rows.train
    generator = torch.Generator(X.device).manual_seed(seed)
    if not method.chooses_beta:
        result = train(
            model.posterior,
            model.likelihood,
            X,
            y,
            objective=method.objective,
            max_steps=max_steps,
            monitors=monitors,
            generator=generator,
        )
        return Trained(result, None)
    path = beta_path(
        model.posterior,
        model.likelihood,
        X,
        y,
        betas=betas,
        validation=Given(*rows.validation),
        objective=method.objective,
        hyperparameters=method.hyperparameters,
        start="given",
        max_steps=max_steps,
        monitors=monitors,
        generator=generator,
    )
    # The paper's choice. `path.best` would take a larger β that cannot be told from the best, and a
    # few very wrong rows hide even large differences of NLL.
    best = min(path.points, key=lambda point: point.validation_loss)
    return Trained(best.result, path)


def thinned(losses: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Steps and losses, so many at most, the last one always."""
    every = max(1, math.ceil(len(losses) / _POINTS_OF_CURVE))
    kept = {*range(0, len(losses), every), len(losses) - 1} if losses else set()
    return tuple((step + 1, losses[step]) for step in sorted(kept))


def clock(device: str) -> float:
    """Processor time, which other programs disturb least; wall time where a GPU works."""
    return time.process_time() if device == "cpu" else time.perf_counter()
