"""Adam before L-BFGS: its first steps carry inducing inputs further than a line search does."""

from dataclasses import replace

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.gaussian import Gaussian
from directgp.objectives.log_losses import GibbsLoss
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.recipe import Recipe
from directgp.training.result import StageResult, Status
from directgp.training.stopping import LossRange
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
