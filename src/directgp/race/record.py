"""Record a race: every candidate with its validation loss, weight, and the decisions."""

import time
from collections.abc import Sequence

import torch

from directgp.race.race import MOST_MEMBERS, Race
from directgp.training.result import BetaPath, PathPoint
from directgp.training.validation import compare


def path_of(race: Race, betas: Sequence[float], validation: str) -> BetaPath:
    """Return the candidates with their losses; the chosen one is the heaviest."""
    trainers, entrants = race.trainers, race.entrants
    loss = trainers.recipe.point_loss().validation_loss()
    seconds = time.perf_counter() - trainers.since
    common = {
        "loss": loss.name,
        "seconds": seconds,
        "failed": tuple(trainers.failures),
        "validation": validation,
        "grid": tuple(betas),
        "decisions": tuple(race.decisions),
    }
    if not entrants:
        return BetaPath((), 0, **common)
    weights = race.weights
    compared = compare(torch.stack([entrant.weighted for entrant in entrants]))
    points = compared.points([entrant.results[0] for entrant in entrants])
    named = tuple(
        PathPoint(
            beta=entrant.candidate.beta,
            hyperparameters=entrant.candidate.mode,
            result=point.result,
            validation_loss=point.validation_loss,
            validation_error=point.validation_error,
            difference=point.difference,
            difference_error=point.difference_error,
            rmse=entrant.rmse,
            label=entrant.candidate.label,
            weight=float(weight),
        )
        for point, entrant, weight in zip(points, entrants, weights, strict=True)
    )
    if race.combine == "mixture" and int((weights > 0).sum()) > 1:
        rows = trainers.pool(entrants).cross_fitted(MOST_MEMBERS)
        error = float(rows.std()) / len(rows) ** 0.5 if len(rows) > 1 else float("inf")
        common |= {"mixture_loss": float(rows.mean()), "mixture_error": error}
    return BetaPath(named, int(weights.argmax()), **common)
