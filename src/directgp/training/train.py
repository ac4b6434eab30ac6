"""Train a sparse posterior for an objective, on data in memory, on a stream, or on new data."""

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.api import check_own
from directgp.log_expectations.rule import Rule
from directgp.numerics.random import fresh_generator
from directgp.objectives.base import PointLoss
from directgp.posteriors.collapsed import Whitened, composed
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.beta_path import path_of
from directgp.training.callbacks import ProgressBar
from directgp.training.checkpoint import Checkpoints, open_checkpoint
from directgp.training.data import Data, Model, as_data, check_data
from directgp.training.distributed import Processes, ProcessGroup
from directgp.training.result import TrainingResult
from directgp.training.run import Monitor, Observer, OptimizerName, Recipe, SmallGradient, close
from directgp.training.trainer import Trainer, elbo_run, fixed_run, joint_run
from directgp.training.validation import Validation

if TYPE_CHECKING:
    from directgp.datasets.streams import ParquetRows

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
    whitened: bool = True,
) -> TrainingResult:
    """Minimise (N/n)·Σ loss + β·KL.

    Parameters
    ----------
    posterior : SparsePosterior
        Model at the start; it is not changed.
    likelihood : Likelihood
        p(y given f) at the start; it is not changed.
    X, y : tensor of shape (n, d), (n,)
        Training data, on the posterior's device.
    objective : str or PointLoss
        "log_loss", "square_loss", "elbo", "vfe", "fitc", "absolute_loss", "pinball_loss",
        "zero_one_cost", "crps", or a `PointLoss` object.
    beta : float
        β ≥ 0, the weight of the KL term.
    rule : Rule or str
        For "log_loss", as in `directgp.log_expectation`.
    hyperparameters : {"joint", "fixed", "auto"}
        "joint" trains kernel, mean, noise and inducing inputs together with q(u); "fixed" takes
        them from a finished ELBO run and trains q(u) alone, from scratch; "auto" trains both ways
        and returns the best by validation, which may also be the ELBO solution.
    start : {"elbo", "scratch"}
        A joint run starts from a short ELBO run, or from the posterior as given. From 1000 rows on,
        a warm-up by Adam (the stage "log_loss, warm-up") comes before joint L-BFGS; for counts and
        labels it replaces the ELBO run.
    validation : Given, HoldOut, Folds, Forward or Groups
        For "auto", as in `directgp.beta_path`.
    optimizer : {"auto", "lbfgs", "adam"}
        "auto" is L-BFGS for full batches and a deterministic rule, else Adam. L-BFGS with bMC
        keeps the base samples fixed.
    weights : tensor of shape (n,)
        Factor of each example's loss.
    batch_size : int
        Examples of one Adam step; by default all, or 1024 where n is very large.
    learning_rate : float
        Learning rate of Adam; by default 0.1 for all examples at once and 0.001 for batches, as in
        the paper.
    max_steps : int
        Largest number of steps of the last stage; by default 500 for L-BFGS, and the paper's 5000
        (regression) or 3000 for Adam.
    stopping : Monitor
        A stopping rule in place of the default.
    monitors : sequence of Monitor
        Callbacks that see each step: progress bars, budgets, cancelling, your own.
    observer : Observer
        With optimizer="adam": a callback that gets the model of the last stage.
    checkpoints : Checkpoints
        The file from which an interrupted run resumes.
    generator : torch.Generator
        Source of random numbers, on the device of the data; freshly seeded by default.
    processes : Processes
        The processes that torchrun has started; each computes a part of every step. Each calls
        `train` with the same data and settings, and gets the same result; model and random numbers
        start as in the first one. Adam only. The first process reads and writes checkpoints and
        shows progress bars; other monitors are called in each process, and any may stop all.
    whitened : bool
        Whether Adam changes the whitened q(u). With False, for joint training by Adam alone, it
        changes mean and covariance factor of q(u) themselves, which takes more steps and time.

    Returns
    -------
    TrainingResult
        The trained posterior and likelihood, and the reason for the end of training.

    Raises
    ------
    NumericalError
        No step has a finite value.
    LostProcessError
        Another process has ended; the message says how the job resumes.

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
        whitened=whitened,
    )
    joint = hyperparameters == "joint"
    allowed = "'joint' with whitened=False"
    require(whitened or joint, "hyperparameters", allowed, repr(hyperparameters))
    model = Model(posterior, likelihood)
    data = Data(X, y, weights)
    _check_choices(hyperparameters, ("joint", "fixed", "auto"), start, beta)
    check_data("train", data, posterior, likelihood)
    check_own(likelihood, y)
    if hyperparameters == "auto":
        allowed = "None with hyperparameters='auto'"
        require(processes is None, "processes", allowed, "Processes", "Use 'joint' or 'fixed'.")
        require(start == "elbo", "start with hyperparameters='auto'", "'elbo'", repr(start))
        return path_of(
            recipe,
            model,
            data,
            betas=[beta],
            validation=validation,
            hyperparameters="auto",
            checkpoints=checkpoints,
            generator=generator,
        ).best
    who = f"validation with hyperparameters='{hyperparameters}'"
    got = type(validation).__name__
    require(validation is None, who, "None", got, "It is for 'auto'.")
    if processes is not None:
        recipe = _distributed_recipe(recipe, model, data, beta, processes)
    recipe.check(likelihood)
    return _train_or_resume(
        recipe,
        model,
        data,
        beta=beta,
        mode=hyperparameters,
        start=start,
        checkpoints=checkpoints,
        generator=generator,
        processes=processes,
    )


def train_stream(
    posterior: SparsePosterior,
    likelihood: Likelihood,
    rows: "ParquetRows",
    *,
    epochs: float = 1.0,
    batch_size: int = 1024,
    objective: str | PointLoss = "log_loss",
    beta: float = 1.0,
    rule: Rule | str = "auto",
    hyperparameters: Literal["joint", "fixed"] = "joint",
    start: Literal["elbo", "scratch"] = "elbo",
    learning_rate: float | None = None,
    stopping: Monitor | None = None,
    monitors: Sequence[Monitor] = (),
    observer: Observer | None = None,
    checkpoints: Checkpoints | None = None,
    generator: torch.Generator | None = None,
    processes: Processes | None = None,
) -> TrainingResult:
    """Train by Adam on rows that are read from disk as they are needed.

    Memory depends on `batch_size`, on the number of inducing inputs and on the buffer of the rows,
    not on the number of rows. Arguments that are not listed here are those of `directgp.train`.

    Parameters
    ----------
    posterior : SparsePosterior
        Model at the start, of the dtype of the rows; it is not changed.
    rows : ParquetRows
        Training data; call `standardised` first.
    epochs : float
        Number of passes over the rows, for the objective and, with hyperparameters="fixed", for
        the ELBO run before it.
    batch_size : int
        Rows of one step.
    stopping : Monitor
        A rule to stop before the last epoch; none by default.
    checkpoints : Checkpoints
        As in `train`; the files of the rows must be the same when the run resumes.
    processes : Processes
        As in `train`. Each process reads its own part of the rows; their number must divide
        `batch_size`.

    Returns
    -------
    TrainingResult
        As from `train`.

    Raises
    ------
    InvalidInputError
        An argument or a row is not valid; rows are checked when they are read, during the run.

    Examples
    --------
    >>> import tempfile, numpy as np, pyarrow as pa, pyarrow.parquet, torch, directgp
    >>> from directgp.datasets.streams import ParquetRows
    >>> from directgp.likelihoods import Gaussian
    >>> from directgp.posteriors import SparsePosterior
    >>> folder, x = tempfile.mkdtemp(), np.linspace(-3, 3, 4000)
    >>> table = pa.table({"x": x, "y": np.sin(2 * x)})
    >>> pyarrow.parquet.write_table(table, f"{folder}/part.parquet")
    >>> rows = ParquetRows(folder, target="y").standardised()
    >>> X, y = map(torch.as_tensor, rows.sample(500)[:2])
    >>> posterior = SparsePosterior.from_data(X, y, num_inducing=10)
    >>> result = directgp.train_stream(
    ...     posterior, Gaussian(0.1), rows, epochs=2.0, batch_size=200, learning_rate=0.01
    ... )
    >>> result.steps
    80
    """
    from directgp.datasets.streams import ParquetRows

    kind = type(rows).__name__
    require(isinstance(rows, ParquetRows), "rows of train_stream", "ParquetRows", kind)
    whole = isinstance(batch_size, int) and batch_size >= 1
    require(whole, "batch_size of train_stream", "an integer, at least 1", batch_size)
    _check_choices(hyperparameters, ("joint", "fixed"), start, beta)
    require(0 < epochs < math.inf, "epochs of train_stream", "positive and finite", epochs)
    dtype = str(posterior.Z.dtype).removeprefix("torch.")
    remedy = f"Open them with ParquetRows(..., dtype='{dtype}')."
    allowed = f"of the posterior's dtype {dtype}"
    require(rows.dtype == dtype, "rows of train_stream", allowed, rows.dtype, remedy)
    recipe = Recipe(
        objective=objective,
        rule=rule,
        optimizer="adam",
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_steps=math.ceil(epochs * rows.num_rows / batch_size),
        # Adam never satisfies `SmallGradient`, and so runs through all epochs.
        stopping=stopping or SmallGradient(0.0),
        monitors=monitors,
        observer=observer,
    )
    recipe.check(likelihood)
    if not recipe.point_loss().uses_variance(likelihood):
        raise UnsupportedError(
            "train_stream needs a loss that depends on the variance of f: it never has all rows at "
            f"once to set the variance afterwards. Got '{recipe.name}'. Use 'log_loss', 'crps' or "
            "'elbo', or train on a sample."
        )
    if any(buffer.numel() > 1 for buffer in likelihood.buffers()):
        raise UnsupportedError(
            "train_stream needs a likelihood that is the same for every row. Got one with a "
            f"constant of each row ({likelihood.rows.argument}). Train on a sample, or leave it "
            "out."
        )
    size = 1 if processes is None else processes.size
    allowed = f"a multiple of the number of processes, {size}"
    require(batch_size % size == 0, "batch_size of train_stream", allowed, batch_size)
    with rows.batches(batch_size, seed=0) as stream:
        # Copy the batch: it is a view of a larger buffer.
        first = as_data(stream.next()).map(lambda tensor: tensor.clone().to(posterior.Z.device))
    # Leave the weights out: other batches may have positive ones where all of these are 0.
    check_data("train_stream", Data(first.X, first.y), posterior, likelihood)
    check_own(likelihood, first.y)
    model = Model(posterior, likelihood)
    if processes is not None:
        recipe = _distributed_recipe(recipe, model, first, beta, processes)
    return _train_or_resume(
        recipe,
        model,
        first,
        beta=beta,
        mode=hyperparameters,
        start=start,
        checkpoints=checkpoints,
        generator=generator,
        processes=processes,
        rows=rows,
    )


def _check_choices(mode: str, modes: tuple[str, ...], start: str, beta: float) -> None:
    require(mode in modes, "hyperparameters", f"one of {modes}", repr(mode))
    require(start in ("elbo", "scratch"), "start", "'elbo' or 'scratch'", repr(start))
    require(0 <= beta < math.inf, "beta", "finite and at least 0", beta)


def _distributed_recipe(
    recipe: Recipe, model: Model, data: Data, beta: float, processes: Processes
) -> Recipe:
    """Return the recipe for one of several processes, with Adam.

    Adam is chosen for a single process too, so that the result does not depend on their number.
    Raises `InvalidInputError` if the recipe needs all examples at once.
    """
    device = data.X.device
    where = "with processes"
    require(
        device == processes.device,
        f"X {where}",
        f"on the device of processes, {processes.device}",
        device,
    )
    allowed = "'auto' or 'adam', which need no more than the gradient"
    require(recipe.optimizer != "lbfgs", f"optimizer {where}", allowed, "'lbfgs'")
    # One progress bar is enough.
    shown = [m for m in recipe.monitors if processes.rank == 0 or not isinstance(m, ProgressBar)]
    by_adam = replace(recipe, optimizer="adam", monitors=tuple(shown))
    batches = by_adam.chosen_batch_size(len(data), model.posterior.Z.shape[-2]) is not None
    got = f"'{recipe.name}', which solves for q(u) from all examples at once"
    remedy = "Use objective='elbo', or for 'square_loss' a batch_size."
    free = by_adam.eliminated(model.likelihood, beta, "adam", batches) is None
    require(free, f"objective {where}", "one that trains q(u) by its gradient", got, remedy)
    return by_adam


def _train_or_resume(
    recipe: Recipe,
    model: Model,
    data: Data,
    *,
    beta: float,
    mode: str,
    start: str,
    checkpoints: Checkpoints | None,
    generator: torch.Generator | None,
    processes: Processes | None,
    rows: "ParquetRows | None" = None,
) -> TrainingResult:
    """Train from a checkpoint or from the start, in one or several processes."""
    group = None if processes is None or processes.size == 1 else ProcessGroup(processes)
    settings: tuple[object, ...] = (recipe.settings(), beta, mode, start)
    settings += () if rows is None else (rows.num_rows, rows.feature_names)
    try:
        with nullcontext() if group is None else group.deferred_signals():
            if group is not None:
                model = copy.deepcopy(model)
                group.load_first(model.posterior, model.likelihood)
            checkpoint = open_checkpoint(checkpoints, data, model, settings, group)
            random = generator or fresh_generator(data.X.device)
            if group is not None:
                state = group.tensors_of_first({"state": random.get_state()})
                random.set_state(state["state"])
            if checkpoint is not None:
                checkpoint.restore_generator(random)
            if rows is not None and group is not None:
                # Keep as many rows as this process has in one batch.
                data = data.take(torch.arange(len(data) // group.size, device=data.X.device))
            trainer = Trainer(data, random, checkpoint, group=group, rows=rows)
            if mode == "fixed":
                return fixed_run(trainer, recipe, elbo_run(trainer, recipe, model), beta)
            return joint_run(trainer, recipe, model, beta, start)
    finally:
        close(recipe.monitors)


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

    Kernel, mean, likelihood and inducing inputs do not change, and the earlier examples are not
    needed. For "elbo" with a Gaussian likelihood, "vfe" and "fitc" the result is a formula, and
    equals the q(u) of all examples at once, for any β and in any order. Otherwise it is an
    approximation: q_before alone represents the earlier examples.

    Examples far from the inducing inputs change little: q(u) cannot represent them. `train` moves
    the inducing inputs.

    Parameters
    ----------
    posterior : SparsePosterior
        Posterior with q_before; it is not changed.
    likelihood : Likelihood
        p(y given f); it is not changed.
    X, y : tensor of shape (n, d), (n,)
        New examples, on the posterior's device.
    objective : str or PointLoss
        As in `directgp.train`; it must depend on the variance of f.
    beta : float
        β > 0 of the earlier training: KL[q ‖ q_before] represents all earlier examples.
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
    remedy = "The KL term is the only record of the earlier examples. Use `train` to ignore them."
    require(0 < beta < math.inf, "beta of update", "positive and finite", beta, remedy)
    data = Data(X, y, weights)
    check_data("update", data, posterior, likelihood)
    check_own(likelihood, y)
    recipe.check(likelihood)
    # Earlier examples are represented by the covariance of q_before, which such a loss ignores.
    if not recipe.point_loss().uses_variance(likelihood):
        raise UnsupportedError(
            "update needs an objective that depends on the variance of f. Got "
            f"'{recipe.name}' with {type(likelihood).__name__}. Use 'elbo' or 'log_loss'. After "
            "training for square loss, 'elbo' with beta=1 gives the same mean as square loss for "
            "all examples."
        )
    trainer = Trainer(data, generator or fresh_generator(X.device))
    model = copy.deepcopy(Model(posterior, likelihood))
    posterior = model.posterior
    before = Whitened(posterior.u_mean.detach().clone(), posterior.u_chol.detach().tril())
    # During training the posterior holds q(u) relative to q_before.
    posterior.reset()
    try:
        stage = trainer.stage(recipe.name, recipe, model, beta, held=True, before=before)
    finally:
        close(monitors)
    with torch.no_grad():
        relative = Whitened(posterior.u_mean, posterior.u_chol.tril())
        posterior.set_q(*composed(before, relative))
    return trainer.result(recipe, model, beta, "held", (stage,))
