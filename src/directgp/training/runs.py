"""Run the stages of training: warm-up, ELBO, joint and fixed."""

import copy
from dataclasses import replace

import torch

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.bernoulli import Bernoulli
from directgp.likelihoods.counts import CountLikelihood
from directgp.likelihoods.gaussian import Gaussian
from directgp.numerics.special import softplus_inverse
from directgp.objectives.log_losses import GibbsLoss
from directgp.posteriors.collapsed import calibrate
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.callbacks import LossRange
from directgp.training.recipe import Recipe
from directgp.training.result import StageResult, Status, TrainingResult
from directgp.training.trainer import Trainer, without_steps

_FEWEST_ROWS = 1000
"""With fewer L-BFGS is done sooner than Adam has begun."""

_STEPS, _FEWER_STEPS, _RATE = 100, 50, 0.1
_SMALL_BETA = 0.5
"""Below it log loss has a long way to go; above it, and for the ELBO, fewer steps do."""

_GAUSSIAN_STEPS, _GAUSSIAN_RATE = 300, 0.05
"""With Gaussian noise the losses are steeper, and the way is longer."""


def warm_up(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
) -> tuple[StageResult, ...]:
    """A stage of Adam, in place; none where it gains nothing.

    The best state is kept, so that L-BFGS begins no higher than without.
    """
    if not gains(trainer, recipe, posterior, likelihood, beta):
        return ()
    name, brisk = f"{recipe.name}, warm-up", _by_adam(trainer, recipe, likelihood, beta)
    try:
        return (trainer.stage(name, brisk, posterior, likelihood, beta),)
    except NumericalError as error:
        # Its last good state is kept; a line search may well find a way from there.
        return (without_steps(name, Status.FAILED, str(error)),)


def gains(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
) -> bool:
    """Whether L-BFGS follows over q(u), Z and many rows, with a value that is not drawn."""
    if len(trainer.data) < _FEWEST_ROWS:
        return False
    if not posterior.Z.requires_grad:
        return False
    loss = recipe.point_loss()
    lbfgs = trainer.optimizer(recipe, posterior) == "lbfgs"
    free = recipe.eliminated(likelihood, beta, "lbfgs", batches=False) is None
    return lbfgs and free and loss.deterministic and loss.uses_variance(likelihood)


def _by_adam(trainer: Trainer, recipe: Recipe, likelihood: Likelihood, beta: float) -> Recipe:
    gaussian = isinstance(likelihood, Gaussian)
    far = beta < _SMALL_BETA and not isinstance(recipe.point_loss(), GibbsLoss)
    steps = _GAUSSIAN_STEPS if gaussian else _STEPS if far else _FEWER_STEPS
    return replace(
        recipe,
        optimizer="adam",
        # All examples at once, however many there are.
        batch_size=len(trainer.data),
        learning_rate=_GAUSSIAN_RATE if gaussian else _RATE,
        max_steps=min(steps, recipe.max_steps or steps),
        stopping=LossRange(20, 1e-4),
    )


_SHORT_RUN = {"lbfgs": 50, "adam": 300}
"""Steps of the ELBO run that a joint run starts from."""


def elbo_run(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    near: bool = False,
) -> TrainingResult:
    """The finished ELBO solution, trained in the recipe's way; near it there is no warm-up."""
    elbo = as_elbo(recipe)
    posterior, likelihood = copy.deepcopy((posterior, likelihood))
    stages = () if near else warm_up(trainer, elbo, posterior, likelihood, 1.0)
    if not _ended(stages):
        stages = (*stages, trainer.stage("elbo", elbo, posterior, likelihood, 1.0))
    return result_of(trainer, elbo, posterior, likelihood, 1.0, "elbo", stages)


def given_run(
    trainer: Trainer, recipe: Recipe, posterior: SparsePosterior, likelihood: Likelihood
) -> TrainingResult:
    """A finished ELBO solution that was trained before."""
    stage = without_steps("elbo", Status.CONVERGED, "Trained before.")
    return result_of(trainer, as_elbo(recipe), posterior, likelihood, 1.0, "elbo", (stage,))


def short_elbo_run(
    trainer: Trainer, recipe: Recipe, posterior: SparsePosterior, likelihood: Likelihood
) -> TrainingResult:
    """Where a joint run starts from."""
    steps = _SHORT_RUN[trainer.optimizer(as_elbo(recipe), posterior)]
    steps = min(steps, recipe.max_steps or steps)
    return elbo_run(trainer, replace(recipe, max_steps=steps), posterior, likelihood, near=True)


def joint_run(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
    start: str = "near",
) -> TrainingResult:
    """Everything trained together: from near its optimum, from scratch, or after a short ELBO."""
    given = posterior
    posterior, likelihood = copy.deepcopy((posterior, likelihood))
    stages: tuple[StageResult, ...] = ()
    if start == "elbo" and _gains_from_elbo(trainer, recipe, posterior, likelihood, beta):
        base = short_elbo_run(trainer, recipe, posterior, likelihood)
        if base.ended:
            return base
        posterior, likelihood, stages = base.posterior, base.likelihood, base.stages
    sees_variance = recipe.point_loss().uses_variance(likelihood)
    if not sees_variance:
        posterior = posterior.with_unit_scale()
    if start != "near":
        stages = (*stages, *warm_up(trainer, recipe, posterior, likelihood, beta))
    if not _ended(stages):
        stages = (*stages, trainer.stage(recipe.name, recipe, posterior, likelihood, beta))
    if not sees_variance:
        posterior = _with_variances(trainer, recipe, posterior, likelihood, beta, given)
    return result_of(trainer, recipe, posterior, likelihood, beta, "joint", stages)


def fixed_run(
    trainer: Trainer,
    recipe: Recipe,
    base: TrainingResult,
    beta: float,
    start: SparsePosterior | None = None,
) -> TrainingResult:
    """q(u) trained with the rest held as a finished ELBO run has left it.

    q(u) starts at the prior, or where another posterior with the same hyperparameters has it.
    """
    if base.ended:
        return base
    posterior, likelihood = copy.deepcopy((base.posterior, base.likelihood))
    if start is None:
        posterior.reset()
    else:
        # The scale of the other prior may have been calibrated since.
        ratio = (start.prior.scale / posterior.prior.scale).detach().sqrt()
        posterior.set_q(ratio * start.u_mean.detach(), start.u_chol.detach())
    stage = trainer.stage(recipe.name, recipe, posterior, likelihood, beta, held=True)
    if not recipe.point_loss().uses_variance(likelihood):
        given = base.posterior
        posterior = _with_variances(trainer, recipe, posterior, likelihood, beta, given)
    stages = (*base.stages, stage)
    return result_of(trainer, recipe, posterior, likelihood, beta, "fixed", stages)


def mode_run(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
    hyperparameters: str,
    start: str,
) -> TrainingResult:
    """A joint run, or a fixed one with the ELBO run that it needs."""
    if hyperparameters == "fixed":
        base = elbo_run(trainer, recipe, posterior, likelihood)
        return fixed_run(trainer, recipe, base, beta)
    return joint_run(trainer, recipe, posterior, likelihood, beta, start)


def _gains_from_elbo(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
) -> bool:
    """Whether a short ELBO run is a good place to start from.

    For many counts or labels it is not: the lengthscales it finds are so long that log loss with
    small β does not find its way back, and a warm-up gets further.
    """
    if recipe.name in ("elbo", "vfe", "fitc"):
        return False
    discrete = isinstance(likelihood, CountLikelihood | Bernoulli)
    return not (discrete and gains(trainer, recipe, posterior, likelihood, beta))


def _ended(stages: tuple[StageResult, ...]) -> bool:
    """Whether a budget, a callback or Ctrl-C has ended the training."""
    return any(stage.ends_training for stage in stages)


def as_elbo(recipe: Recipe) -> Recipe:
    """The recipe with the ELBO for its objective."""
    return replace(recipe, objective="elbo", rule="auto", observer=None)


def _with_variances(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
    given: SparsePosterior,
) -> SparsePosterior:
    """Variances of f and the noise for a loss that saw neither.

    The loss counts as ½p·(y − μ)² with p chosen so that its sum is right; for square loss p = 1.
    What asks for a gradient is what does so in the posterior that was given.
    """
    data = trainer.data
    with torch.no_grad():
        marginals = posterior.predict(data.X)
        losses = recipe.point_loss()(likelihood, data.y, marginals)
        square = (data.y - marginals.mean).square()
        if data.weights is not None:
            losses, square = data.weights * losses, data.weights * square
        total = float(square.sum())
        precision = 2 * float(losses.sum()) / total if total > 0 else 1.0
    calibrated = calibrate(posterior, data.X, data.y.to(data.X), beta / precision, data.weights)
    if isinstance(likelihood, Gaussian):
        noise = torch.as_tensor(calibrated.noise, dtype=likelihood.raw_noise.dtype)
        with torch.no_grad():
            likelihood.raw_noise.copy_(softplus_inverse(noise))
    for before, after in zip(given.parameters(), calibrated.posterior.parameters(), strict=True):
        after.requires_grad_(before.requires_grad)
    return calibrated.posterior


def result_of(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
    mode: str,
    stages: tuple[StageResult, ...],
) -> TrainingResult:
    """What a run has found so far."""
    return TrainingResult(
        posterior=posterior,
        likelihood=likelihood,
        objective=recipe.name,
        beta=beta,
        hyperparameters=mode,
        stages=stages,
        seconds=trainer.seconds,
    )
