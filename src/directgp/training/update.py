"""New examples for a trained posterior: q(u) is updated, the rest is held."""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.numerics.random import fresh_generator
from directgp.objectives.base import PointLoss
from directgp.posteriors.collapsed import Whitened, composed
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.callbacks import Monitor, close
from directgp.training.checkpoint import Journal
from directgp.training.data import Data, check_data
from directgp.training.recipe import OptimizerName, Recipe
from directgp.training.result import TrainingResult
from directgp.training.runs import result_of
from directgp.training.trainer import Trainer


def update(
    posterior: SparsePosterior,
    likelihood: Likelihood,
    X: Float[Tensor, "n d"],
    y: Num[Tensor, " n"],
    *,
    objective: str | PointLoss = "log_loss",
    beta: float = 1.0,
    rule: Rule | str = "auto",
    optimizer: OptimizerName = "auto",
    weights: Num[Tensor, " n"] | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_steps: int | None = None,
    stopping: Monitor | None = None,
    monitors: Sequence[Monitor] = (),
    generator: torch.Generator | None = None,
) -> TrainingResult:
    """Minimise Σ loss + β·KL[q(u) ‖ q_before(u)] over q(u), the sum over the new examples alone.

    Kernel, mean, likelihood and inducing inputs are held, and nothing but q_before is needed of
    earlier examples. For "elbo" with a Gaussian likelihood, "vfe" and "fitc" the result is a
    formula, and the q(u) of all examples at once, for any β and in any order. Elsewhere it is near
    it: what q(u) cannot say about the earlier examples is lost.

    Examples far from the inducing inputs change little: q(u) cannot represent them. `train` moves
    the inducing inputs.

    Parameters
    ----------
    posterior : SparsePosterior
        With q_before; it is left as it is.
    likelihood : Likelihood
        p(y given f), likewise.
    X, y : tensor of shape (n, d), (n,)
        New examples, on the posterior's device.
    objective : str or PointLoss
        As in `directgp.train`, but one that sees the variance of f.
    beta : float
        β > 0, the same as before: KL[q ‖ q_before] is all that is left of earlier examples.
    rule, optimizer, weights, batch_size, learning_rate, max_steps, stopping, monitors, generator
        As in `directgp.train`.

    Returns
    -------
    TrainingResult
        The updated posterior, with `hyperparameters` "held". The loss is a mean over the new
        examples.

    Examples
    --------
    >>> import torch, directgp
    >>> from directgp.likelihoods import Gaussian
    >>> from directgp.posteriors import SparsePosterior
    >>> from directgp.training import update
    >>> X = torch.linspace(-3, 3, 60, dtype=torch.float64).reshape(-1, 1)
    >>> y = torch.sin(2 * X[:, 0])
    >>> posterior = SparsePosterior.from_data(X, y, num_inducing=10)
    >>> first = directgp.train(posterior, Gaussian(0.1), X[::2], y[::2], objective="elbo")
    >>> both = update(first.posterior, first.likelihood, X[1::2], y[1::2], objective="elbo")
    >>> both.reason
    'The optimum is a formula.'
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
    remedy = "Nothing else is left of earlier examples; take `train` to do without them."
    require(0 < beta < float("inf"), "beta of update", "positive and finite", beta, remedy)
    data = Data(X, y, weights)
    check_data("update", data, posterior, likelihood)
    recipe.check(likelihood)
    _check_sees_variance(recipe, likelihood)
    trainer = Trainer(data, generator or fresh_generator(X.device), Journal())
    try:
        return update_run(trainer, recipe, posterior, likelihood, beta)
    finally:
        close(monitors)


def update_run(
    trainer: Trainer,
    recipe: Recipe,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
) -> TrainingResult:
    """q(u) trained with the one before in the prior's place, and the rest held."""
    posterior, likelihood = copy.deepcopy((posterior, likelihood))
    before = Whitened(posterior.u_mean.detach().clone(), posterior.u_chol.detach().tril())
    # While it is trained, the posterior has q(u) as seen from the one before.
    posterior.reset()
    stage = trainer.stage(
        recipe.name, recipe, posterior, likelihood, beta, held=True, before=before
    )
    with torch.no_grad():
        relative = Whitened(posterior.u_mean, posterior.u_chol.tril())
        posterior.set_q(*composed(before, relative))
    return result_of(trainer, recipe, posterior, likelihood, beta, "held", (stage,))


def _check_sees_variance(recipe: Recipe, likelihood: Likelihood) -> None:
    """Refuse a loss of the mean alone: it forms no covariance, by which earlier examples count."""
    if not recipe.point_loss().uses_variance(likelihood):
        raise UnsupportedError(
            "update needs an objective that sees the variance of f. Got "
            f"'{recipe.name}' with {type(likelihood).__name__}. Use 'elbo' or 'log_loss'; 'elbo' "
            "with beta=1 after training for square loss gives the mean that square loss has for "
            "all examples."
        )
