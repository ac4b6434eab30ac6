"""Train a grid of β and choose one by validation."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from directgp.errors import NumericalError, require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.api import check_own
from directgp.log_expectations.rule import Rule
from directgp.numerics.random import fresh_generator
from directgp.objectives.base import PointLoss
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.checkpoint import Checkpoints, open_checkpoint
from directgp.training.data import Data, Model, check_data
from directgp.training.result import BetaPath, Failure, Status, TrainingResult
from directgp.training.run import Monitor, OptimizerName, Recipe, close
from directgp.training.trainer import (
    Trainer,
    as_elbo,
    elbo_run,
    fixed_run,
    joint_run,
    short_elbo_run,
    without_steps,
)
from directgp.training.validation import (
    Folds,
    Given,
    HoldOut,
    PairedComparison,
    Split,
    Validation,
    compare,
    split,
)

StopRule = Callable[[Sequence[TrainingResult | None]], bool]
"""Returns whether to stop after these results, from the β nearest 1 towards an end of a grid."""

_SHARE_OF_STEPS = 10
"""A run that starts near its optimum gets the default steps divided by this."""

_SMALLEST = 0.01
"""Smallest β of the paper's grid."""


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

    L-BFGS trains the β nearest 1 first, and then outwards, each from the result of its neighbour;
    Adam trains all β as one batch of models, or one by one if f has several latents. Paired
    differences of the validation loss compare the candidates. It is the loss that is optimised, by
    its exact rule (log loss for ELBO, VFE and FITC). Of the candidates that are not distinguishable
    from the best, the most regularised is chosen.

    Parameters
    ----------
    posterior, likelihood, X, y
        As in `directgp.train`.
    betas : sequence of float
        The grid; by default n, n/2, n/4, … and 0.01.
    validation : Given, HoldOut, Folds, Forward or Groups
        Examples on which the candidates are compared; by default a tenth of the examples, or five
        folds below 1000 examples. With folds the posteriors are trained on all examples, and the
        losses come from models trained without the fold.
    hyperparameters : {"joint", "fixed", "auto"}
        As in `directgp.train`; the candidates of "auto" are both grids and the ELBO solution.
    start : {"elbo", "given"}
        "elbo" starts from an ELBO run. "given" takes posterior and likelihood as the result of a
        finished ELBO run: fixed runs keep its hyperparameters, joint runs start from them. Then
        validation has to be `Given`, with rows that this ELBO run has not seen.
    objective, rule, optimizer, weights, batch_size, learning_rate, max_steps, stopping, monitors, \
checkpoints, generator
        As in `directgp.train`. `max_steps` holds for each β; by default every β after the first,
        which starts near its optimum, gets a tenth of the steps.

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
    ...     posterior, Gaussian(0.1), X, y, betas=[10.0, 1.0], max_steps=20, generator=generator
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
    return path_of(
        recipe,
        Model(posterior, likelihood),
        Data(X, y, weights),
        betas=betas,
        validation=validation,
        hyperparameters=hyperparameters,
        checkpoints=checkpoints,
        generator=generator,
        start=start,
    )


def path_of(
    recipe: Recipe,
    model: Model,
    data: Data,
    *,
    betas: Sequence[float] | None,
    validation: Validation | None,
    hyperparameters: str,
    checkpoints: Checkpoints | None,
    generator: torch.Generator | None,
    start: str = "elbo",
    falling: bool = False,
) -> BetaPath:
    """Return the path of a recipe; the other arguments are those of `beta_path`.

    With `falling`, L-BFGS goes outwards from the β nearest 1 only while the loss on the examples
    of `Given` falls, and the β with the lowest loss is chosen.
    """
    mode = hyperparameters
    modes = ("joint", "fixed", "auto")
    require(mode in modes, "hyperparameters", f"one of {modes}", repr(mode))
    require(start in ("elbo", "given"), "start", "'elbo' or 'given'", repr(start))
    check_data("beta_path", data, model.posterior, model.likelihood)
    check_own(model.likelihood, data.y)
    recipe.check(model.likelihood)
    grid = beta_grid(len(data)) if betas is None else sorted({*map(float, betas)}, reverse=True)
    require(len(grid) >= 1, "betas", "at least one value", "none")
    for beta in grid:
        require(0 <= beta < math.inf, "each of betas", "finite and at least 0", beta)
    random = generator or fresh_generator(data.X.device)
    how = validation or (Folds() if len(data) < 1000 else HoldOut())
    allowed = "Given(X, y), with rows that the ELBO run was not trained on"
    fits = isinstance(how, Given)
    who = "validation with start='given'"
    require(start == "elbo" or fits, who, allowed, type(how).__name__)
    settings = (recipe.settings(), grid, mode, how.settings(), start)
    checkpoint = open_checkpoint(checkpoints, data, model, settings)
    if checkpoint is not None:
        checkpoint.restore_generator(random)
    splits = split(how, data, model.posterior, model.likelihood, random)
    loss = recipe.point_loss().validation_loss()
    since = time.perf_counter()

    def rises(passed: Sequence[TrainingResult | None]) -> bool:
        trained = [result for result in passed if result is not None]
        *_, before, after = (float(splits[0].losses(result, loss).mean()) for result in trained)
        return not after < before

    def train(data: Data, likelihood: Likelihood) -> tuple[list[TrainingResult], list[Failure]]:
        trainer = Trainer(data, random, checkpoint, since)
        start_model = Model(model.posterior, likelihood)
        stop = rises if falling else None
        results = _candidates(trainer, recipe, start_model, grid, mode, start, stop)
        return results, trainer.failures

    try:
        folds = isinstance(how, Folds)
        first = splits[0]
        whole = (data, model.likelihood) if folds else (first.training, first.likelihood)
        results, failures = train(*whole)
        if not results:
            raise NumericalError(failures[0].reason)
        parts = [] if folds else [_losses(first, results, results, loss)]
        for fold in splits if folds and not _ended(results) else ():
            candidates, _ = train(fold.training, fold.likelihood)
            if _ended(candidates):
                break
            parts.append(_losses(fold, candidates, results, loss))
    finally:
        close(recipe.monitors)
    if parts:
        comparison = compare(torch.cat(parts, -1))
    else:
        nan = torch.full((len(results),), torch.nan)
        chosen = nearest_one([result.beta for result in results])
        comparison = PairedComparison(nan, nan, nan, nan, chosen)
    points = comparison.points(results)
    chosen = int(comparison.mean.argmin()) if falling and parts else comparison.chosen
    seconds = time.perf_counter() - since
    return BetaPath(points, chosen, loss.name, seconds, tuple(failures))


def _losses(
    part: Split,
    candidates: Sequence[TrainingResult],
    results: Sequence[TrainingResult],
    loss: PointLoss,
) -> Float[Tensor, "c v"]:
    """Return the validation losses of candidates on a split, one row for each result.

    A row is NaN if the candidate of its result could not be trained for this split.
    """
    losses = {(c.hyperparameters, c.beta): part.losses(c, loss) for c in candidates}
    untrained = torch.full_like(part.validation.X[:, 0], torch.nan)
    return torch.stack([losses.get((r.hyperparameters, r.beta), untrained) for r in results])


def _candidates(
    trainer: Trainer,
    recipe: Recipe,
    model: Model,
    betas: Sequence[float],
    mode: str,
    start: str,
    stop: StopRule | None = None,
) -> list[TrainingResult]:
    """Train the candidates, from the most to the least regularised."""
    base = None
    if start == "given":
        stage = without_steps("elbo", Status.CONVERGED, "Trained before.")
        base = trainer.result(as_elbo(recipe), model, 1.0, "elbo", (stage,))
    if mode == "joint":
        return train_grid(trainer, recipe, model, betas, base, held=False, stop=stop)
    base = base or elbo_run(trainer, recipe, model)
    results = [base] if mode == "auto" else []
    for held in (True, False) if mode == "auto" else (True,):
        if _ended(results or [base]):
            return results or [base]
        results += train_grid(trainer, recipe, model, betas, base, held=held, stop=stop)
    return results


def _ended(results: Sequence[TrainingResult]) -> bool:
    return any(result.ended for result in results)


def beta_grid(num_data: int, factor: int = 2) -> list[float]:
    """Return the paper's grid: n, n/2, n/4, … and 0.01; or one with another factor."""
    steps = max(0, math.floor(math.log2(num_data / _SMALLEST) / math.log2(factor)))
    grid = [num_data / factor**k for k in range(steps + 1)]
    return grid if grid[-1] == _SMALLEST else [*grid, _SMALLEST]


def nearest_one(betas: Sequence[float]) -> int:
    """Return the index of the β nearest 1: its optimum is nearest to the ELBO solution."""
    return min(range(len(betas)), key=lambda i: abs(math.log(max(betas[i], 1e-300))))


def brief(recipe: Recipe, optimizer: str, likelihood: Likelihood) -> Recipe:
    """Return the recipe with fewer steps, for a run that starts near its optimum."""
    whole = recipe.chosen_max_steps(optimizer, likelihood)
    return replace(recipe, max_steps=max(1, whole // _SHARE_OF_STEPS))


def batches_models(recipe: Recipe, model: Model, num_data: int) -> bool:
    """Return whether a grid of β is trained as one batch of models: by Adam, without formulas.

    A model of several latents already has a batch axis, for its latents.
    """
    optimizer = recipe.chosen_optimizer(num_data, model.posterior.Z.shape[-2])
    size = recipe.chosen_batch_size(num_data, model.posterior.Z.shape[-2])
    formula = recipe.eliminated(model.likelihood, 1.0, optimizer, size is not None) is not None
    free = recipe.point_loss().uses_variance(model.likelihood)
    single = model.posterior.num_latent == 1
    return optimizer == "adam" and single and not formula and free


def train_grid(
    trainer: Trainer,
    recipe: Recipe,
    model: Model,
    betas: Sequence[float],
    base: TrainingResult | None,
    held: bool,
    stop: StopRule | None = None,
) -> list[TrainingResult]:
    """Return a result for each β, in order; fewer where a budget or a callback ended the training.

    With `held`, the hyperparameters are those of the base. Otherwise they are trained too, from the
    base, or from a short ELBO run if there is no base. `stop` is called with two or more results.
    """
    if len(betas) > 1 and batches_models(recipe, model, len(trainer.data)):
        return _batched(trainer, recipe, model, betas, base, held)
    shorter = recipe
    if recipe.max_steps is None:
        shorter = brief(recipe, trainer.optimizer(recipe, model.posterior), model.likelihood)
    results: list[TrainingResult] = []

    def attempt(beta: float, neighbour: TrainingResult | None) -> TrainingResult | None:
        how = recipe if neighbour is None else shorter
        near = neighbour or base
        try:
            if held and base is not None:
                result = fixed_run(trainer, how, base, beta, neighbour)
            elif near is None:
                result = joint_run(trainer, how, model, beta, start="elbo")
            else:
                start = "scratch" if neighbour is None else "near"
                result = joint_run(trainer, how, Model.of(near), beta, start)
        except NumericalError as error:
            trainer.failures.append(Failure(beta, "fixed" if held else "joint", str(error)))
            return None
        results.append(result)
        return result

    def ended(passed: Sequence[TrainingResult | None], left: int) -> bool:
        several = sum(result is not None for result in passed) > 1
        return _ended(results) or (stop is not None and several and stop(passed))

    return outwards(betas, attempt, ended)


Trained = TypeVar("Trained")


def outwards(
    betas: Sequence[float],
    train: Callable[[float, Trained | None], Trained | None],
    ended: Callable[[Sequence[Trained | None], int], bool],
) -> list[Trained]:
    """Train from the β nearest 1, where the ELBO solution is near, to both ends of the grid.

    `train` gets β and the nearest trained candidate, and returns None if training failed. `ended`
    gets the candidates of one direction so far, and the number of β left in this direction.
    """
    middle = nearest_one(betas)
    trained = {middle: train(betas[middle], None)}
    for direction in (range(middle - 1, -1, -1), range(middle + 1, len(betas))):
        passed = [trained[middle]]
        for done, i in enumerate(direction):
            if ended(passed, len(direction) - done):
                break
            successes = [candidate for candidate in passed if candidate is not None]
            trained[i] = train(betas[i], successes[-1] if successes else None)
            passed.append(trained[i])
    return [candidate for _, candidate in sorted(trained.items()) if candidate is not None]


def _batched(
    trainer: Trainer,
    recipe: Recipe,
    model: Model,
    betas: Sequence[float],
    base: TrainingResult | None,
    held: bool,
) -> list[TrainingResult]:
    """Train every β at once, as one batch of models; with `held` they share K_uf."""
    base = base or short_elbo_run(trainer, recipe, model)
    if base.ended:
        return [base]
    template = copy.deepcopy(base.posterior)
    if held:
        template.reset()
    many = Model(
        template.repeated(len(betas), shared_prior=held),
        base.likelihood if held else repeated(base.likelihood, len(betas)),
    )
    grid = torch.tensor(betas, dtype=template.Z.dtype, device=template.Z.device)
    mode = "fixed" if held else "joint"
    try:
        stage = trainer.stage(recipe.name, recipe, many, grid, held=held)
    except NumericalError as error:
        trainer.failures += [Failure(beta, mode, str(error)) for beta in betas]
        return []
    results = []
    for i, beta in enumerate(betas):
        likelihood = many.likelihood
        if held:
            own_likelihood = copy.deepcopy(likelihood)
        else:
            own_likelihood = batch_member(likelihood, i, base.likelihood)
        member = Model(many.posterior.member(i, template), own_likelihood)
        own_stage = replace(stage, loss=trainer.value(recipe, member, beta))
        results.append(trainer.result(recipe, member, beta, mode, (*base.stages, own_stage)))
    return results


def repeated(likelihood: Likelihood, number: int) -> Likelihood:
    """Return a batch of the likelihood, with parameters of shape (number, 1)."""
    twin = copy.deepcopy(likelihood)
    for name, parameter in likelihood.named_parameters(recurse=False):
        many = parameter.detach().reshape(1, 1).repeat(number, 1)
        setattr(twin, name, nn.Parameter(many, parameter.requires_grad))
    return twin


def batch_member(batch: Likelihood, index: int, template: Likelihood) -> Likelihood:
    """Return one likelihood of a batch made by `repeated`, with the shapes of the template."""
    twin = copy.deepcopy(template)
    with torch.no_grad():
        parameters = dict(batch.named_parameters(recurse=False))
        for name, parameter in twin.named_parameters(recurse=False):
            parameter.copy_(parameters[name][index].reshape(parameter.shape))
    return twin
