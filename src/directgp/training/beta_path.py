"""Train a grid of β and validate each posterior."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import NumericalError, require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.numerics.random import fresh_generator
from directgp.objectives.base import PointLoss
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.callbacks import Monitor, close
from directgp.training.checkpoint import Checkpoints, journal_for
from directgp.training.data import Data, check_data
from directgp.training.recipe import OptimizerName, Recipe
from directgp.training.result import BetaPath, Failure, TrainingResult
from directgp.training.runs import (
    elbo_run,
    fixed_run,
    given_run,
    joint_run,
    result_of,
    short_elbo_run,
)
from directgp.training.trainer import Trainer
from directgp.training.validation import (
    Comparison,
    Folds,
    Given,
    Split,
    Validation,
    compare,
    default_validation,
    split,
)

_SHARE_OF_STEPS = 10
"""A neighbour gets the steps of a whole run, divided by this: it starts near its optimum."""

_SMALLEST = 0.01


def beta_grid(num_data: int) -> list[float]:
    """n, n/2, n/4, … and 0.01: the paper's grid."""
    halvings = max(0, math.floor(math.log2(num_data / _SMALLEST)))
    grid = [num_data / 2**k for k in range(halvings + 1)]
    return grid if grid[-1] == _SMALLEST else [*grid, _SMALLEST]


def check_betas(betas: Sequence[float]) -> list[float]:
    """The values in falling order, refused where one cannot be meant."""
    require(len(betas) >= 1, "betas", "at least one value", "none")
    for beta in betas:
        require(0 <= beta < math.inf, "each of betas", "finite and at least 0", beta)
    return sorted(set(map(float, betas)), reverse=True)


def nearest_one(betas: Sequence[float]) -> int:
    """Where the β nearest 1 is, from which the ELBO solution is near."""
    return min(range(len(betas)), key=lambda i: abs(math.log(max(betas[i], 1e-300))))


def brief(recipe: Recipe, optimizer: str, likelihood: Likelihood) -> Recipe:
    """The recipe with the steps of a run that starts near its optimum."""
    whole = recipe.chosen_max_steps(optimizer, likelihood)
    return replace(recipe, max_steps=max(1, whole // _SHARE_OF_STEPS))


def batches_models(
    trainer: Trainer, recipe: Recipe, posterior: SparsePosterior, likelihood: Likelihood
) -> bool:
    """Whether a grid of β is trained as one batch of models: by Adam, where all can be free."""
    optimizer = trainer.optimizer(recipe, posterior)
    size = recipe.chosen_batch_size(len(trainer.data), posterior.Z.shape[-2])
    closed_form = recipe.eliminated(likelihood, 1.0, optimizer, size is not None) is not None
    free = recipe.point_loss().uses_variance(likelihood)
    return optimizer == "adam" and not closed_form and free


def train_grid(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    betas: Sequence[float],
    base: TrainingResult | None,
    held: bool,
) -> list[TrainingResult]:
    """A result for each β, in order; fewer where a budget or a callback ended the training.

    Hyperparameters are held at those of the base, or trained from it, or from a short ELBO run
    where there is no base.
    """
    if len(betas) > 1 and batches_models(trainer, recipe, posterior, likelihood):
        return _batched(trainer, recipe, posterior, likelihood, betas, base, held)
    return _neighbours(trainer, recipe, posterior, likelihood, betas, base, held)


def _neighbours(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    betas: Sequence[float],
    base: TrainingResult | None,
    held: bool,
) -> list[TrainingResult]:
    """From the β nearest 1, where the ELBO solution is near, outwards to both ends."""
    shorter = brief(recipe, trainer.optimizer(recipe, posterior), likelihood)

    def first(beta: float) -> TrainingResult:
        if held and base is not None:
            return fixed_run(trainer, recipe, base, beta)
        if base is not None:
            start = base.posterior, base.likelihood
            return joint_run(trainer, recipe, *start, beta, start="scratch")
        return joint_run(trainer, recipe, posterior, likelihood, beta, start="elbo")

    def after(neighbour: TrainingResult, beta: float) -> TrainingResult:
        if held and base is not None:
            return fixed_run(trainer, shorter, base, beta, start=neighbour.posterior)
        return joint_run(trainer, shorter, neighbour.posterior, neighbour.likelihood, beta)

    def attempt(beta: float, neighbour: TrainingResult | None) -> TrainingResult | None:
        try:
            return first(beta) if neighbour is None else after(neighbour, beta)
        except NumericalError as error:
            trainer.failures.append(Failure(beta, "fixed" if held else "joint", str(error)))
            return None

    middle = nearest_one(betas)
    found = {middle: attempt(betas[middle], None)}
    for outwards in (range(middle - 1, -1, -1), range(middle + 1, len(betas))):
        neighbour = found[middle]
        for i in outwards:
            if any(result is not None and result.ended for result in found.values()):
                break
            found[i] = attempt(betas[i], neighbour)
            neighbour = found[i] or neighbour
    return [result for _, result in sorted(found.items()) if result is not None]


def _batched(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    betas: Sequence[float],
    base: TrainingResult | None,
    held: bool,
) -> list[TrainingResult]:
    """Every β at once, as one batch of models; K_uf is shared where hyperparameters are held."""
    if base is None:
        base = short_elbo_run(trainer, recipe, posterior, likelihood)
    if base.ended:
        return [base]
    like = copy.deepcopy(base.posterior)
    if held:
        like.reset()
    many = like.repeated(len(betas), shared_prior=held)
    noises = base.likelihood if held else base.likelihood.repeated(len(betas))
    grid = torch.tensor(betas, dtype=like.Z.dtype, device=like.Z.device)
    mode = "fixed" if held else "joint"
    try:
        stage = trainer.stage(recipe.name, recipe, many, noises, grid, held=held)
    except NumericalError as error:
        trainer.failures += [Failure(beta, mode, str(error)) for beta in betas]
        return []
    results = []
    for i, beta in enumerate(betas):
        noise = copy.deepcopy(noises) if held else noises.member(i, base.likelihood)
        member = many.member(i, like), noise
        own = replace(stage, loss=trainer.value(recipe, *member, beta))
        results.append(result_of(trainer, recipe, *member, beta, mode, (*base.stages, own)))
    return results


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
    points = comparison.points(results)
    return BetaPath(points, comparison.chosen, loss, seconds, found.failures)


def _without_validation(results: Sequence[TrainingResult]) -> Comparison:
    """What is known of candidates whose training was ended before any fold was: nothing."""
    nothing = torch.full((len(results),), torch.nan)
    distance = [abs(math.log(max(result.beta, 1e-300))) for result in results]
    return Comparison(nothing, nothing, nothing, nothing, distance.index(min(distance)))
