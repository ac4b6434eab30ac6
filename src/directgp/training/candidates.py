"""What a search compares, and what it finds."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import Failure, StageResult, TrainingResult
from directgp.training.selection import Comparison


class Model(NamedTuple):
    """Where training may start: prior, inducing inputs and likelihood."""

    posterior: SparsePosterior
    likelihood: Likelihood
    name: str
    """What sets it apart from the others."""


@dataclass(frozen=True)
class Solution:
    """The ELBO solution of a model."""

    model: Model
    result: TrainingResult
    evidence: float
    """ELBO − ½ k log n, k the number of hyperparameters; the more the better."""

    whole: bool
    """Whether all examples were looked at, not a part of many."""


@dataclass(frozen=True)
class Candidate:
    """A mode and a β, trained on every split."""

    hyperparameters: str
    """"elbo", "fixed" or "joint"."""

    beta: float
    results: tuple[TrainingResult, ...]
    """One for each split."""

    losses: Float[Tensor, " v"]
    """Of every validation example."""

    @property
    def loss(self) -> float:
        """Mean validation loss; infinite where one is not a number."""
        loss = float(self.losses.mean())
        return math.inf if math.isnan(loss) else loss


@dataclass(frozen=True)
class SearchResult:
    """Every candidate, the one chosen, and what came of it on all examples."""

    best: TrainingResult
    solutions: tuple[Solution, ...]
    """The models that were tried."""

    candidates: tuple[Candidate, ...]
    """Of the best model, from the most to the least regularised; none where there was nothing to
    choose, or training was ended before."""

    comparison: Comparison | None
    """Of the candidates, if there are any."""

    loss: str
    """Name of the loss that was compared."""

    failed: tuple[Failure, ...]
    seconds: float
    end: StageResult | None = None
    """The run that a budget, a monitor or Ctrl-C ended, and the search with it."""
