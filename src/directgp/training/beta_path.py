"""The whole grid of β, every posterior with its validation loss."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import NumericalError, require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.base import Rule
from directgp.numerics.noise import fresh_generator
from directgp.objectives.base import PointLoss
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.data import Data, check_data
from directgp.training.grid import beta_grid, check_betas, train_grid
from directgp.training.journal import Checkpoints, journal_for
from directgp.training.monitors import Monitor, close
from directgp.training.recipe import OptimizerName, Recipe
from directgp.training.result import Failure, TrainingResult
from directgp.training.runs import elbo_run, given_run
from directgp.training.selection import Comparison, compare
from directgp.training.trainer import Trainer
from directgp.training.validation import (
    Folds,
    Given,
    Split,
    Validation,
    default_validation,
    split,
)


@dataclass(frozen=True)
class PathPoint:
    """One candidate of a path."""

    beta: float
    hyperparameters: str
    """"joint", "fixed", or "elbo" for the plain ELBO solution."""

    result: TrainingResult
    validation_loss: float
    """Mean over the validation examples, of the loss that is optimised."""

    validation_error: float
    """Its standard error."""

    difference: float
    """Mean of this candidate's loss minus that of the best one, example by example."""

    difference_error: float
    """Standard error of that mean."""


@dataclass(frozen=True)
class BetaPath:
    """Every candidate with its validation loss, and the one that is chosen."""

    points: tuple[PathPoint, ...]
    """From the most to the least regularised: ELBO, fixed with falling β, joint with falling β."""

    chosen: int
    """The most regularised one that is not distinguishable from the best; the β nearest 1 where
    training was ended before any validation."""

    loss: str
    """Name of the loss that was compared."""

    seconds: float

    failed: tuple[Failure, ...] = ()
    """Candidates whose training ended with an error."""

    @property
    def best(self) -> TrainingResult:
        """The chosen candidate's result."""
        return self.points[self.chosen].result

    @property
    def beta(self) -> float:
        """The chosen β."""
        return self.points[self.chosen].beta


def beta_path(
    posterior: SparsePosterior,
    likelihood: Likelihood,
    X: Float[Tensor, "n d"],
    y: Num[Tensor, " n"],
    *,
    betas: Sequence[float] | None = None,
    validation: Validation | None = None,
    objective: str | PointLoss = "log_loss",
    rule: Rule | str = "auto",
    hyperparameters: Literal["joint", "fixed", "auto"] = "joint",
    start: Literal["elbo", "given"] = "elbo",
    optimizer: OptimizerName = "auto",
    weights: Num[Tensor, " n"] | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_steps: int | None = None,
    stopping: Monitor | None = None,
    monitors: Sequence[Monitor] = (),
    checkpoints: Checkpoints | None = None,
    generator: torch.Generator | None = None,
) -> BetaPath:
    """Train a grid of β and choose one by validation.

    L-BFGS goes from neighbour to neighbour, from the β nearest 1 outwards; Adam trains all β as one
    batch of models. Candidates are compared by the loss that is optimised (ELBO, VFE and FITC: log
    loss), always by its exact rule, in paired differences; among those that are not distinguishable
    from the best, the most regularised is chosen.

    Parameters
    ----------
    posterior, likelihood, X, y
        As in `directgp.train`.
    betas : sequence of float
        The grid; n, n/2, n/4, … and 0.01 unless given.
    validation : Given, HoldOut or Folds
        Examples to compare by; a tenth of the examples is set aside, or five folds below 1000
        examples, unless given. With folds the posteriors are trained on all examples, and the
        losses come from models trained without the fold.
    hyperparameters : {"joint", "fixed", "auto"}
        As in `directgp.train`; "auto" has both grids and the plain ELBO solution for candidates.
    start : {"elbo", "given"}
        Where the way begins: at an ELBO run of its own; or at posterior and likelihood as they are,
        a finished ELBO run: fixed runs hold their hyperparameters, joint ones start there. Then
        validation has to be `Given`, rows that this run has not seen.
    objective, rule, optimizer, weights, batch_size, learning_rate, max_steps, stopping, monitors, \
checkpoints, generator
        As in `directgp.train`. The steps are those of the first β; its neighbours, which start near
        their optimum, get a tenth.

    Examples
    --------
    >>> import torch, directgp
    >>> from directgp.likelihoods import Gaussian
    >>> from directgp.posteriors import SparsePosterior
    >>> generator = torch.Generator().manual_seed(0)
    >>> X = torch.linspace(-3, 3, 60, dtype=torch.float64).reshape(-1, 1)
    >>> y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(60, generator=generator)
    >>> posterior = SparsePosterior.from_data(X, y, num_inducing=8, generator=generator)
    >>> path = directgp.beta_path(
    ...     posterior, Gaussian(0.1), X, y, betas=[10.0, 1.0], max_steps=50, generator=generator
    ... )
    >>> len(path.points), path.beta in (10.0, 1.0)
    (2, True)
    """
    recipe = Recipe(
        objective=objective,
        rule=rule,
        optimizer=optimizer,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_steps=max_steps,
        stopping=stopping,
        monitors=monitors,
    )
    data = Data(X, y, weights)
    return path_of(
        recipe,
        posterior,
        likelihood,
        data,
        betas,
        validation,
        hyperparameters,
        checkpoints,
        generator,
        start,
    )


def path_of(
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    data: Data,
    betas: Sequence[float] | None,
    validation: Validation | None,
    hyperparameters: str,
    checkpoints: Checkpoints | None,
    generator: torch.Generator | None,
    start: str = "elbo",
) -> BetaPath:
    """`beta_path` for a recipe."""
    modes = ("joint", "fixed", "auto")
    require(hyperparameters in modes, "hyperparameters", f"one of {modes}", repr(hyperparameters))
    require(start in ("elbo", "given"), "start", "'elbo' or 'given'", repr(start))
    check_data("beta_path", data, posterior, likelihood)
    recipe.check(likelihood)
    grid = beta_grid(len(data)) if betas is None else check_betas(betas)
    random = generator or fresh_generator(data.X.device)
    how = default_validation(len(data)) if validation is None else validation
    require(
        start == "elbo" or isinstance(how, Given),
        "validation with start='given'",
        "Given: the run that is given has seen all other rows",
        type(how).__name__,
    )
    settings = (recipe.settings(), grid, hyperparameters, how.settings(), start)
    journal = journal_for(checkpoints, data, posterior, likelihood, settings)
    journal.rewind(random)
    splits = split(how, data, posterior, likelihood, random)
    loss = recipe.validation_loss()
    since = time.perf_counter()

    def candidates(data: Data, likelihood: Likelihood) -> Candidates:
        trainer = Trainer(data, random, journal, since)
        results = _train(trainer, recipe, posterior, likelihood, grid, hyperparameters, start)
        return Candidates(results, tuple(trainer.failures))

    try:
        folds = isinstance(how, Folds)
        first = splits[0]
        found = (
            candidates(data, likelihood) if folds else candidates(first.training, first.likelihood)
        )
        if not found.results:
            raise NumericalError(found.failures[0].reason)
        losses = (
            _fold_losses(splits, candidates, loss, found.results)
            if folds
            else torch.stack([first.losses(result, loss) for result in found.results])
        )
    finally:
        close(recipe.monitors)
    return _path(found, losses, loss.name, time.perf_counter() - since)


class Candidates(NamedTuple):
    """What could be trained, and what could not."""

    results: list[TrainingResult]
    failures: tuple[Failure, ...]


def _train(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    betas: Sequence[float],
    mode: str,
    start: str,
) -> list[TrainingResult]:
    """The candidates, from the most to the least regularised."""
    given = given_run(trainer, recipe, posterior, likelihood) if start == "given" else None
    if mode == "joint":
        return train_grid(trainer, recipe, posterior, likelihood, betas, given, held=False)
    base = given or elbo_run(trainer, recipe, posterior, likelihood)
    results = [base] if mode == "auto" else []
    for held in (True, False) if mode == "auto" else (True,):
        if _ended(results or [base]):
            return results or [base]
        results += train_grid(trainer, recipe, posterior, likelihood, betas, base, held=held)
    return results


def _fold_losses(
    splits: Sequence[Split],
    candidates: Callable[[Data, Likelihood], Candidates],
    loss: PointLoss,
    results: Sequence[TrainingResult],
) -> Float[Tensor, "c n"] | None:
    """The validation losses of every fold that was trained to its end, side by side.

    They are NaN where a candidate could not be trained without the fold.
    """
    parts = []
    for fold in () if _ended(results) else splits:
        found = candidates(fold.training, fold.likelihood).results
        if _ended(found):
            break
        known = {(r.hyperparameters, r.beta): fold.losses(r, loss) for r in found}
        nothing = torch.full_like(fold.validation.X[:, 0], torch.nan)
        keys = [(result.hyperparameters, result.beta) for result in results]
        parts.append(torch.stack([known.get(key, nothing) for key in keys]))
    return torch.cat(parts, -1) if parts else None


def _ended(results: Sequence[TrainingResult]) -> bool:
    """Whether a budget, a callback or Ctrl-C has ended the training."""
    return any(result.ended for result in results)


def _path(
    found: Candidates, losses: Float[Tensor, "c n"] | None, loss: str, seconds: float
) -> BetaPath:
    results = found.results
    comparison = _without_validation(results) if losses is None else compare(losses)
    points = tuple(
        PathPoint(
            beta=result.beta,
            hyperparameters=result.hyperparameters,
            result=result,
            validation_loss=float(comparison.mean[i]),
            validation_error=float(comparison.error[i]),
            difference=float(comparison.difference[i]),
            difference_error=float(comparison.difference_error[i]),
        )
        for i, result in enumerate(results)
    )
    return BetaPath(points, comparison.chosen, loss, seconds, found.failures)


def _without_validation(results: Sequence[TrainingResult]) -> Comparison:
    """What is known of candidates whose training was ended before any fold was: nothing."""
    nothing = torch.full((len(results),), torch.nan)
    distance = [abs(math.log(max(result.beta, 1e-300))) for result in results]
    return Comparison(nothing, nothing, nothing, nothing, distance.index(min(distance)))
