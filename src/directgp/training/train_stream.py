"""Training on more rows than fit in memory."""

import math
from collections.abc import Sequence
from typing import Literal

import torch

from directgp.datasets.streams import ParquetRows
from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.numerics.random import fresh_generator
from directgp.objectives.base import PointLoss
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.callbacks import Monitor, Observer, SmallGradient, close
from directgp.training.checkpoint import Checkpoints, journal_for
from directgp.training.data import Data, as_data, check_data
from directgp.training.distributed import Processes, Together
from directgp.training.recipe import Recipe, common_order, common_start, parallel_recipe
from directgp.training.result import TrainingResult
from directgp.training.runs import mode_run
from directgp.training.trainer import Trainer

_NEVER = SmallGradient(0.0)
"""Adam does not look at the gradient: all epochs are gone through."""


def train_stream(
    posterior: SparsePosterior,
    likelihood: Likelihood,
    rows: ParquetRows,
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
    """`directgp.train` with Adam on rows that are read from disk as they are needed.

    Memory depends on `batch_size`, on the number of inducing inputs and on the buffer of the rows,
    not on how many rows there are. Arguments that are not listed here are those of `train`.

    Parameters
    ----------
    posterior : SparsePosterior
        Where to start from, of the dtype of the rows; it is left as it is.
    rows : ParquetRows
        Training data; standardise them first.
    epochs : float
        How often each row is looked at, in the run of the objective and, with
        hyperparameters="fixed", in the ELBO run before it.
    batch_size : int
        Rows of one step.
    stopping : Monitor
        A rule to stop before all epochs are over; none, unless given.
    checkpoints : Checkpoints
        As in `train`; the files must be the same when the run is taken up.
    processes : Processes
        As in `train`. Each process reads its own share of the rows, and takes its part of
        `batch_size`, which their number must divide.

    Returns
    -------
    TrainingResult
        As from `train`.

    Raises
    ------
    InvalidInputError
        Also in the middle of a run, where a row is read that cannot be meant.

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
    kind = type(rows).__name__
    require(isinstance(rows, ParquetRows), "rows of train_stream", "ParquetRows", kind)
    whole = isinstance(batch_size, int) and batch_size >= 1
    require(whole, "batch_size of train_stream", "an integer, at least 1", batch_size)
    modes = ("joint", "fixed")
    require(hyperparameters in modes, "hyperparameters", f"one of {modes}", repr(hyperparameters))
    require(start in ("elbo", "scratch"), "start", "'elbo' or 'scratch'", repr(start))
    require(0 <= beta < math.inf, "beta", "finite and at least 0", beta)
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
        stopping=stopping or _NEVER,
        monitors=monitors,
        observer=observer,
    )
    recipe.check(likelihood)
    _check_streams(recipe, likelihood)
    together = Together(processes)
    allowed = f"a multiple of the number of processes, {together.size}"
    require(batch_size % together.size == 0, "batch_size of train_stream", allowed, batch_size)
    with rows.batches(batch_size, seed=0) as stream:
        # A copy: the batch is part of a whole buffer.
        first = as_data(stream.next()).clone().to(posterior.Z.device)
    # Whether a weight is positive somewhere is not for one batch to say.
    check_data("train_stream", Data(first.X, first.y), posterior, likelihood)
    if processes is not None:
        recipe = parallel_recipe(recipe, first, posterior, likelihood, beta, processes)
    settings = (recipe.settings(), beta, hyperparameters, start, rows.num_rows, rows.feature_names)
    mine = first.take(torch.arange(batch_size // together.size, device=first.X.device))
    try:
        with together.listening():
            posterior, likelihood = common_start(together, posterior, likelihood)
            journal = journal_for(checkpoints, first, posterior, likelihood, settings, together)
            random = generator or fresh_generator(posterior.Z.device)
            common_order(together, random)
            journal.rewind(random)
            trainer = Trainer(mine, random, journal, together=together, rows=rows)
            model = posterior, likelihood
            return mode_run(trainer, recipe, *model, beta, hyperparameters, start)
    finally:
        close(monitors)


def _check_streams(recipe: Recipe, likelihood: Likelihood) -> None:
    """Refuse what needs all rows at once."""
    if not recipe.point_loss().uses_variance(likelihood):
        raise UnsupportedError(
            f"train_stream needs a loss that sees the variance of f, since it never has all rows "
            f"at once to set the variance afterwards. Got '{recipe.name}'. Use 'log_loss', 'crps' "
            "or 'elbo', or train on a sample."
        )
    if any(buffer.numel() > 1 for buffer in likelihood.buffers()):
        raise UnsupportedError(
            "train_stream needs a likelihood that is the same for every row. Got one with "
            "exposures. Train on a sample, or leave out the exposures."
        )
