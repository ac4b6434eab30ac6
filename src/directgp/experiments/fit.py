"""Run one cell: train by its method, choose β, score."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from directgp.datasets.problem import Problem, Task
from directgp.estimators.fitting import COUNTS, LABELS, REAL_VALUED, auto_inducing
from directgp.estimators.preprocessing import Scaling
from directgp.experiments.cell import BetaPoint, Cell, Finished, Outcome, Predictions, generator_of
from directgp.experiments.plan import ELBO, METHODS, Method, Rows, split
from directgp.likelihoods.base import Likelihood
from directgp.metrics import Judged, judge
from directgp.posteriors.prior import KernelName, MeanName
from directgp.posteriors.sparse import SparsePosterior
from directgp.shapes import Marginals
from directgp.training.beta_path import beta_grid, beta_path
from directgp.training.callbacks import Monitor
from directgp.training.result import BetaPath, StageResult, TrainingResult
from directgp.training.train import train
from directgp.training.validation import Given

Array = NDArray[np.float64]


@final
@dataclass(frozen=True)
class CellData:
    """Rows of the three parts, as they are in the table."""

    X_train: Array
    y_train: Array
    X_validation: Array
    y_validation: Array
    X_test: Array
    y_test: Array
    num_training: int = 0
    """Rows of the training part, of which X_train may be a few; 0 where that is not needed."""

    @classmethod
    def of(cls, problem: Problem, cell: Cell) -> "CellData":
        """The rows that a cell is about."""
        rows = split(problem, cell.repeat, cell.size, cell.seed)
        return cls.of_rows(problem, rows.training, rows.validation, rows.test)

    @classmethod
    def of_rows(
        cls, problem: Problem, training: Rows, validation: Rows, test: Rows, num_training: int = 0
    ) -> "CellData":
        """These rows of a problem."""
        X, y = problem.X, problem.y
        return cls(
            X[training], y[training], X[validation], y[validation], X[test], y[test], num_training
        )


FAMILIES = {"regression": REAL_VALUED, "classification": LABELS, "count": COUNTS}


@final
@dataclass(frozen=True)
class ScaledRows:
    """Tensors to train on and to judge by, and the units of y."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    offset: float
    scale: float

    @classmethod
    def of(
        cls,
        data: CellData,
        task: Task,
        dtype: Literal["float64", "float32"] = "float64",
        device: str = "cpu",
    ) -> "ScaledRows":
        """Inputs, and real-valued targets, with mean 0 and deviation 1 on the training rows."""
        inputs = Scaling.from_data(data.X_train)
        targets = Scaling.from_data(data.y_train[:, None])
        if task != "regression":
            targets = Scaling.identity(1)
        precision = torch.float64 if dtype == "float64" else torch.float32

        def tensors(X: Array, y: Array) -> tuple[Tensor, Tensor]:
            scaled = inputs.forward(X), targets.exact(y[:, None])[:, 0]
            return cast(
                tuple[Tensor, Tensor],
                tuple(torch.as_tensor(each).to(device, precision) for each in scaled),
            )

        return cls(
            tensors(data.X_train, data.y_train),
            tensors(data.X_validation, data.y_validation),
            tensors(data.X_test, data.y_test),
            float(targets.shift[0]),
            float(targets.scale[0]),
        )


@final
@dataclass(frozen=True)
class Model:
    """A posterior and its likelihood."""

    posterior: SparsePosterior
    likelihood: Likelihood

    def to_bytes(self) -> bytes:
        """All that training changed."""
        parts = {"posterior": self.posterior, "likelihood": self.likelihood}
        tensors = {
            f"{name}.{key}": value.detach().cpu().contiguous()
            for name, part in parts.items()
            for key, value in part.state_dict().items()
        }
        return save(tensors)

    def load(self, data: bytes) -> None:
        """Take over what another model of the same cell has learnt."""
        tensors = load(data)
        for name, part in (("posterior", self.posterior), ("likelihood", self.likelihood)):
            prefix = f"{name}."
            part.load_state_dict(
                {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            )


def starting_model(
    task: Task,
    X: Tensor,
    y: Tensor,
    *,
    likelihood: str,
    kernel: KernelName,
    ard: bool,
    mean: MeanName,
    num_inducing: int | None,
    generator: torch.Generator,
) -> Model:
    """Before training: q(u) at the prior, hyperparameters and inducing inputs that suit the rows.

    `num_inducing` None is as many as the estimators take; the generator is of the CPU.
    """
    latent = {"regression": y, "classification": None, "count": torch.log(y + 0.5)}[task]
    posterior = SparsePosterior.from_data(
        X.cpu(),
        None if latent is None else latent.cpu(),
        num_inducing=min(num_inducing or auto_inducing(len(X)), len(X)),
        kernel=kernel,
        ard=ard,
        mean=mean,
        generator=generator,
    )
    return Model(posterior.to(X.device), FAMILIES[task].named(likelihood, y))


_POINTS_OF_CURVE = 200


@final
@dataclass(frozen=True)
class Trained:
    """What a method has trained, and what it chose from."""

    best: TrainingResult
    path: BetaPath | None

    def stages(self) -> list[StageResult]:
        """Of everything that was trained; one that several results share counts once."""
        results = [self.best] if self.path is None else [p.trained for p in self.path.points]
        return list({id(stage): stage for each in results for stage in each.stages}.values())

    def failures(self) -> tuple[str, ...]:
        """Values of β that could not be trained, and why."""
        failed = () if self.path is None else self.path.failed
        return tuple(f"β = {each.beta:.3g}: {each.reason}" for each in failed)


def train_method(
    method: Method,
    model: Model,
    rows: ScaledRows,
    *,
    betas: Sequence[float],
    seed: int,
    max_steps: int | None,
    monitors: Sequence[Monitor],
) -> Trained:
    """By our optimisers; a method that chooses β begins at the ELBO solution, which is given."""
    X, y = rows.train
    generator = torch.Generator(X.device).manual_seed(seed)
    if not method.chooses_beta:
        result = train(
            model.posterior,
            model.likelihood,
            X,
            y,
            objective=method.objective,
            max_steps=max_steps,
            monitors=monitors,
            generator=generator,
        )
        return Trained(result, None)
    path = beta_path(
        model.posterior,
        model.likelihood,
        X,
        y,
        betas=betas,
        validation=Given(*rows.validation),
        objective=method.objective,
        hyperparameters=method.hyperparameters,
        start="given",
        max_steps=max_steps,
        monitors=monitors,
        generator=generator,
    )
    # The paper's choice. `path.best` would take a larger β that cannot be told from the best, and a
    # few very wrong rows hide even large differences of NLL.
    best = min(path.points, key=lambda point: point.validation_loss)
    return Trained(best.trained, path)


def thinned(losses: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Steps and losses, so many at most, the last one always."""
    every = max(1, math.ceil(len(losses) / _POINTS_OF_CURVE))
    kept = {*range(0, len(losses), every), len(losses) - 1} if losses else set()
    return tuple((step + 1, losses[step]) for step in sorted(kept))


def clock(device: str) -> float:
    """Processor time, which other programs disturb least; wall time where a GPU works."""
    return time.process_time() if device == "cpu" else time.perf_counter()


_ROWS_OF_PICTURES = 2000


def needs_elbo(method: Method) -> bool:
    """Whether a method starts from the ELBO solution of its split."""
    return method.chooses_beta


def run_cell(
    cell: Cell, data: CellData, elbo: bytes = b"", monitors: Sequence[Monitor] = ()
) -> Finished:
    """Train on the split's rows, choose β by its validation rows, judge by its test rows.

    Parameters
    ----------
    cell : Cell
        What to run.
    data : CellData
        Its rows.
    elbo : bytes
        The ELBO solution of the same split, for methods that start from it.
    monitors : sequence of Monitor
        See every step.
    """
    rows = scaled(cell, data)
    method = METHODS[cell.method]
    model = start_of(cell, *rows.train)
    if needs_elbo(method):
        model.load(elbo)
    since = clock(cell.settings.device)
    trained = train_method(
        method,
        model,
        rows,
        betas=cell.settings.betas or coarse_grid(cell.size),
        seed=cell.seed,
        max_steps=cell.settings.max_steps,
        monitors=monitors,
    )
    seconds = clock(cell.settings.device) - since
    judged = _judged(cell, trained.best, rows)
    outcome = Outcome(
        scores={name: float(values.mean()) for name, values in judged.scores.items()},
        num_test=len(data.y_test),
        beta=trained.best.beta,
        path=_points(trained.path, rows.scale),
        validation_loss="MSE" if method.objective == "square_loss" else "NLL",
        curve=thinned(trained.best.history),
        status=trained.best.status.value,
        reason=trained.best.reason,
        evaluations=sum(stage.evaluations for stage in trained.stages()),
        seconds=seconds,
        failed=trained.failures(),
    )
    kept = Model(trained.best.posterior, trained.best.likelihood)
    return Finished(outcome, _predictions(judged), kept.to_bytes() if method == ELBO else b"")


def scaled(cell: Cell, data: CellData) -> ScaledRows:
    """The rows of a cell, as its settings want them."""
    return ScaledRows.of(data, cell.task, cell.settings.dtype, cell.settings.device)


def start_of(cell: Cell, X: Tensor, y: Tensor) -> Model:
    """The model before training; the same for every method of a split."""
    settings = cell.settings
    return starting_model(
        cell.task,
        X,
        y,
        likelihood=settings.likelihood,
        kernel=cast(KernelName, settings.kernel),
        ard=settings.ard,
        mean="zero" if cell.task == "regression" else "constant",
        num_inducing=settings.num_inducing,
        generator=generator_of(cell.seed, cell.repeat),
    )


def coarse_grid(num_data: int) -> list[float]:
    """Every second β of the paper's grid, its last, and 1."""
    grid = beta_grid(num_data)
    return sorted({*grid[::2], grid[-1], 1.0}, reverse=True)


def _judged(cell: Cell, result: TrainingResult, rows: ScaledRows) -> Judged:
    X, y = rows.test
    q = result.posterior.predict(X)
    wide = Marginals(q.mean.double().cpu(), q.variance.double().cpu())
    likelihood = result.likelihood.to("cpu", torch.float64)
    return judge(cell.task, likelihood, y.double().cpu(), wide, rows.offset, rows.scale)


def _predictions(judged: Judged) -> Predictions:
    names = ("actual", "mean", "lower", "upper", "below", "up_to")
    return Predictions(*(getattr(judged, n)[:_ROWS_OF_PICTURES].numpy() for n in names))


def _points(path: BetaPath | None, scale: float) -> tuple[BetaPoint, ...]:
    """The losses of a path in the units of y: NLL, or the squared error without its half."""
    if path is None:
        return ()
    square = path.loss == "square_loss"
    factor, shift = (2 * scale * scale, 0.0) if square else (1.0, math.log(scale))
    return tuple(
        BetaPoint(
            beta=point.beta,
            loss=factor * point.validation_loss + shift,
            error=factor * point.validation_error,
        )
        for point in path.points
    )
