"""The evidence for a model, and which models to look at."""

import math
from collections.abc import Callable, Iterable, Sequence

from directgp.training.candidates import Model, Solution
from directgp.training.data import Data
from directgp.training.result import TrainingResult

Place = tuple[int, int]


def evidence(result: TrainingResult, data: Data) -> float:
    """ELBO − ½ k log n: what a hyperparameter must gain to be worth having (Schwarz).

    An example counts as often as its weight says, and the ELBO of a part of the data as if it were
    that of all.
    """
    parameters = (*result.posterior.prior.parameters(), *result.likelihood.parameters())
    k = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    n = len(data) if data.weights is None else float(data.weights.sum())
    found = -len(data) * result.loss - 0.5 * k * math.log(max(n, 1.0))
    return found if math.isfinite(found) else -math.inf


def strongest(solutions: Sequence[Solution]) -> Solution:
    """The one with the largest evidence."""
    return max(solutions, key=lambda solution: solution.evidence)


def most_models(models: Sequence[Sequence[Model]]) -> int:
    """Models that `try_models` may look at: a column, a row, and another column."""
    return 2 * len(models) + len(models[0]) - 2


def try_models(
    models: Sequence[Sequence[Model]], solve: Callable[[Model], list[Solution]]
) -> list[Solution]:
    """The solutions of a kernel chosen with the first likelihood, a likelihood, a kernel again.

    Parameters
    ----------
    models : sequence of sequences of Model
        For each kernel one model a likelihood.
    solve : callable
        The solution of a model, or nothing where it has none.
    """
    tried: dict[Place, list[Solution]] = {}

    def best(places: Iterable[Place]) -> Place:
        for i, j in places:
            if (i, j) not in tried:
                tried[i, j] = solve(models[i][j])
        return max(tried, key=lambda place: _largest(tried[place]))

    kernel, _ = best((i, 0) for i in range(len(models)))
    _, likelihood = best((kernel, j) for j in range(len(models[0])))
    best((i, likelihood) for i in range(len(models)))
    return [found for some in tried.values() for found in some]


def _largest(solutions: Sequence[Solution]) -> float:
    return max((each.evidence for each in solutions), default=-math.inf)
