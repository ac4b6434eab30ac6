"""Training a sparse posterior for an objective: joint, fixed, or whichever validates better."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.numerics.random import fresh_generator
from directgp.objectives.base import PointLoss
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.beta_path import path_of
from directgp.training.callbacks import Monitor, Observer, close
from directgp.training.checkpoint import Checkpoints, journal_for
from directgp.training.data import Data, check_data
from directgp.training.distributed import Processes, Together
from directgp.training.recipe import (
    OptimizerName,
    Recipe,
    common_order,
    common_start,
    parallel_recipe,
)
from directgp.training.result import TrainingResult
from directgp.training.runs import mode_run
from directgp.training.trainer import Trainer
from directgp.training.validation import Validation

HyperparameterMode = Literal["joint", "fixed", "auto"]


def train(
    posterior: SparsePosterior,
    likelihood: Likelihood,
    X: Float[Tensor, "n d"],
    y: Num[Tensor, " n"],
    *,
    objective: str | PointLoss = "log_loss",
    beta: float = 1.0,
    rule: Rule | str = "auto",
    hyperparameters: HyperparameterMode = "joint",
    start: Literal["elbo", "scratch"] = "elbo",
    validation: Validation | None = None,
    optimizer: OptimizerName = "auto",
    weights: Num[Tensor, " n"] | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_steps: int | None = None,
    stopping: Monitor | None = None,
    monitors: Sequence[Monitor] = (),
    observer: Observer | None = None,
    checkpoints: Checkpoints | None = None,
    generator: torch.Generator | None = None,
    processes: Processes | None = None,
) -> TrainingResult:
    """Minimise (N/n)·Σ loss + β·KL, and say why it stopped.

    Parameters
    ----------
    posterior : SparsePosterior
        Where to start from; it is left as it is.
    likelihood : Likelihood
        p(y given f), likewise.
    X, y : tensor of shape (n, d), (n,)
        Training data, on the posterior's device.
    objective : str or PointLoss
        "log_loss", "square_loss", "elbo", "vfe", "fitc", "absolute_loss", "pinball_loss",
        "zero_one_cost", "crps", or a point loss of your own.
    beta : float
        β ≥ 0, the weight of the KL term.
    rule : Rule or str
        For "log_loss", as in `directgp.log_expectation`.
    hyperparameters : {"joint", "fixed", "auto"}
        Train kernel, mean, noise and inducing inputs together with q(u); or take them from a
        finished ELBO run, hold them, and train q(u) from scratch; or whichever of the two, and of
        the plain ELBO solution, validates better.
    start : {"elbo", "scratch"}
        Where a joint run starts: from a short ELBO run, or from the posterior as given. From 1000
        rows on, some steps of Adam come before L-BFGS over q(u) and the rest, a stage named
        "warm-up", and there is no ELBO run for counts.
    validation : Given, HoldOut or Folds
        For "auto", as in `directgp.beta_path`.
    optimizer : {"auto", "lbfgs", "adam"}
        "auto" is L-BFGS for all examples at once and a deterministic rule, else Adam. L-BFGS with
        bMC holds the base samples fixed.
    weights : tensor of shape (n,)
        Factor of each example's loss.
    batch_size : int
        Examples of one Adam step; all, unless given or n is very large.
    learning_rate : float
        Adam's; 0.1 for all examples at once and 0.001 for batches, as in the paper.
    max_steps : int
        Steps of the run, those before it aside; 500 for L-BFGS, 5000 (regression) or 3000 for
        Adam, as in the paper.
    stopping : Monitor
        A stopping rule in place of the default.
    monitors : sequence of Monitor
        Progress bars, budgets, cancelling, and whatever else wants to see each step.
    observer : Observer
        With optimizer="adam": looks at the model of the last stage every so many steps.
    checkpoints : Checkpoints
        Keep the run on disk and go on from there.
    generator : torch.Generator
        Randomness, of the data's device; freshly seeded when none is given.
    processes : Processes
        Those that torchrun has started, to share the examples of each step among them. Each calls
        `train` with the same data and settings, and gets the same result; model and randomness
        begin as in the first one. Adam only. Checkpoints are read and written by the first
        process. Progress bars are shown by the first one; other monitors are asked in each, and
        any of them may stop all.

    Returns
    -------
    TrainingResult
        The trained posterior and likelihood, and how training went.

    Raises
    ------
    NumericalError
        If no finite way down could be found; it says what happened and what to try.
    LostProcessError
        If one of the processes is gone; it says from where the job goes on.

    Examples
    --------
    >>> import torch, directgp
    >>> from directgp.likelihoods import Gaussian
    >>> from directgp.posteriors import SparsePosterior
    >>> X = torch.linspace(-3, 3, 60, dtype=torch.float64).reshape(-1, 1)
    >>> y = torch.sin(2 * X[:, 0]) + 0.2 * torch.cos(40 * X[:, 0])
    >>> posterior = SparsePosterior.from_data(X, y, num_inducing=10)
    >>> result = directgp.train(posterior, Gaussian(0.1), X, y)
    >>> result.status
    <Status.CONVERGED: 'converged'>
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
        observer=observer,
    )
    if hyperparameters == "auto":
        allowed = "None with hyperparameters='auto'"
        require(processes is None, "processes", allowed, "some", "Use 'joint' or 'fixed'.")
        require(start == "elbo", "start with hyperparameters='auto'", "'elbo'", repr(start))
        return path_of(
            recipe,
            posterior,
            likelihood,
            Data(X, y, weights),
            [beta],
            validation,
            "auto",
            checkpoints,
            generator,
        ).best
    modes = ("joint", "fixed", "auto")
    require(hyperparameters in modes, "hyperparameters", f"one of {modes}", repr(hyperparameters))
    require(
        validation is None,
        f"validation with hyperparameters='{hyperparameters}'",
        "None",
        type(validation).__name__,
        "It is for 'auto'.",
    )
    require(start in ("elbo", "scratch"), "start", "'elbo' or 'scratch'", repr(start))
    require(0 <= beta < float("inf"), "beta", "finite and at least 0", beta)
    data = Data(X, y, weights)
    check_data("train", data, posterior, likelihood)
    if processes is not None:
        recipe = parallel_recipe(recipe, data, posterior, likelihood, beta, processes)
    recipe.check(likelihood)
    together, settings = Together(processes), (recipe.settings(), beta, hyperparameters, start)
    try:
        with together.listening():
            posterior, likelihood = common_start(together, posterior, likelihood)
            journal = journal_for(checkpoints, data, posterior, likelihood, settings, together)
            random = generator or fresh_generator(X.device)
            common_order(together, random)
            journal.rewind(random)
            trainer = Trainer(data, random, journal, together=together)
            model = posterior, likelihood
            return mode_run(trainer, recipe, *model, beta, hyperparameters, start)
    finally:
        close(monitors)
