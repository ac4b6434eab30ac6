"""Record the candidates of a search with their losses."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from directgp.training.result import Failure
from directgp.training.search import SearchResult

_POWERS = {"square_loss": 2, "absolute_loss": 1, "pinball_loss": 1, "crps": 1}
"""How losses grow with the unit of the target; log loss is shifted."""


@final
@dataclass(frozen=True)
class ModelTried:
    """A kernel and a likelihood, by the evidence for them."""

    name: str
    evidence: float
    """ELBO − ½ k log n, k the number of hyperparameters; beyond 5000 rows on 2500 of them."""


@final
@dataclass(frozen=True)
class BetaPoint:
    """One candidate: a mode and a β."""

    beta: float
    hyperparameters: str
    """"joint", "fixed", or "elbo" for the plain ELBO solution."""

    validation_loss: float
    """Mean over the validation examples."""

    validation_error: float
    """Its standard error."""

    difference: float
    """Mean of this candidate's loss minus that of the best one, example by example."""

    difference_error: float
    """Standard error of that mean."""

    status: str
    """Why its training stopped."""


@final
@dataclass(frozen=True)
class ChosenPath:
    """The candidates of a fit, the one chosen, and what it was chosen from."""

    points: tuple[BetaPoint, ...]
    """From the most to the least regularised; none where there was nothing to choose."""

    chosen: int
    """Index of the chosen one."""

    loss: str
    """Name of the loss that was compared."""

    validation: str
    """On what, in words."""

    grid: tuple[float, ...]
    """The values of β that were allowed."""

    models: tuple[ModelTried, ...]
    """Kernels and likelihoods that were tried before, the first the simplest."""

    failed: tuple[str, ...] = ()
    """Why candidates could not be trained."""

    def in_units(self, scale: float) -> "ChosenPath":
        """The path of a target that was divided by a scale, with losses of the target itself."""
        power = _POWERS.get(self.loss, 0)
        shift = math.log(scale) if self.loss == "log_loss" else 0.0

        def point(each: BetaPoint) -> BetaPoint:
            errors = ("validation_error", "difference", "difference_error")
            scaled = {name: scale**power * getattr(each, name) for name in errors}
            loss = scale**power * each.validation_loss + shift
            return replace(each, validation_loss=loss, **scaled)

        return replace(self, points=tuple(map(point, self.points)))

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        lists = {"points", "grid", "models", "failed"}
        return {key: list(at) if key in lists else at for key, at in asdict(self).items()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "ChosenPath":
        """Undo `to_json`."""
        if not 0 <= plain["chosen"] < max(1, len(plain["points"])):
            raise ValueError("the chosen candidate is none of those compared")
        return cls(
            points=tuple(BetaPoint(**point) for point in plain["points"]),
            chosen=plain["chosen"],
            loss=plain["loss"],
            validation=plain["validation"],
            grid=tuple(plain["grid"]),
            models=tuple(ModelTried(**model) for model in plain["models"]),
            failed=tuple(plain["failed"]),
        )


def chosen_path(search: SearchResult, grid: Sequence[float], validation: str) -> ChosenPath:
    """What there is to keep of a search."""
    comparison = search.comparison
    points = [
        BetaPoint(
            beta=candidate.beta,
            hyperparameters=candidate.hyperparameters,
            validation_loss=float(comparison.mean[i]),
            validation_error=float(comparison.error[i]),
            difference=float(comparison.difference[i]),
            difference_error=float(comparison.difference_error[i]),
            status=candidate.results[0].status.value,
        )
        for i, candidate in enumerate(search.candidates)
        if comparison is not None
    ]
    return ChosenPath(
        points=tuple(points),
        chosen=0 if comparison is None else comparison.chosen,
        loss=search.loss,
        validation=validation,
        grid=tuple(grid),
        models=tuple(ModelTried(each.model.name, each.evidence) for each in search.solutions),
        failed=tuple(_words(failure) for failure in search.failed),
    )


def _words(failure: Failure) -> str:
    return f"{failure.hyperparameters}, β = {failure.beta:g}: {failure.reason}"
