"""Record a race: every candidate with its validation loss, weight, and the decisions."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from directgp.race.race import MOST_MEMBERS, Race
from directgp.training.result import BetaPath, PathPoint
from directgp.training.validation import compare


def path_of(race: Race, betas: Sequence[float], validation: str) -> BetaPath:
    """Return the candidates with their losses; the chosen one is the heaviest."""
    trainers = race.trainers
    entrants = race.entrants
    path = BetaPath(
        points=(),
        chosen=0,
        loss=trainers.recipe.point_loss().validation_loss().name,
        seconds=time.perf_counter() - trainers.since,
        failed=tuple(trainers.failures),
        validation=validation,
        grid=tuple(betas),
        decisions=tuple(race.decisions),
    )
    if not entrants:
        return path
    weights = race.weights
    compared = compare(torch.stack([entrant.weighted for entrant in entrants]))
    points = compared.points([entrant.results[0] for entrant in entrants])
    named = tuple(
        PathPoint(
            beta=entrant.state.beta,
            hyperparameters=entrant.state.mode,
            result=point.result,
            validation_loss=point.validation_loss,
            validation_error=point.validation_error,
            difference=point.difference,
            difference_error=point.difference_error,
            rmse=trainers.rmse(entrant),
            label=entrant.state.label,
            weight=float(weight),
        )
        for point, entrant, weight in zip(points, entrants, weights, strict=True)
    )
    path = replace(path, points=named, chosen=int(weights.argmax()))
    if int((weights > 0).sum()) < 2:
        return path
    rows = trainers.pool(entrants).cross_fitted(MOST_MEMBERS)
    error = float(rows.std()) / len(rows) ** 0.5 if len(rows) > 1 else math.inf
    return replace(path, mixture_loss=float(rows.mean()), mixture_error=error)
