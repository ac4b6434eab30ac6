"""Training of a grid of β on one set of data, from neighbour to neighbour or as one batch."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from directgp.errors import NumericalError, require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.recipe import Recipe
from directgp.training.result import Failure, TrainingResult
from directgp.training.runs import fixed_run, joint_run, result_of, short_elbo_run
from directgp.training.trainer import Trainer

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
