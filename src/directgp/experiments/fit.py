"""Train a method on the rows of a cell, choose β, and score its predictions."""

import json
import math
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import ModuleDict

from directgp.datasets.problem import Problem
from directgp.estimators.fitting import (
    auto_inducing,
    named_likelihood,
    starting_models,
    with_latents_of,
)
from directgp.estimators.preprocessing import Scalings, TrainingTable
from directgp.experiments.cell import Method, generator_of, seed_of
from directgp.experiments.plan import Rows
from directgp.likelihoods.starts import rough_latent
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import Task
from directgp.training.beta_path import beta_path
from directgp.training.data import Data, Model
from directgp.training.race import EFFORTS
from directgp.training.result import BetaPath, Status, TrainingResult
from directgp.training.run import Monitor, Recipe
from directgp.training.search import Search
from directgp.training.train import train
from directgp.training.trainer import without_steps
from directgp.training.validation import Given

Array = NDArray[np.float64]


class CellData(NamedTuple):
    """The rows of the three parts of a split, unscaled."""

    train: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]
    """X and y of each part."""

    num_training: int = 0
    """Rows of the training part, of which `train` may be a subset; 0 if not recorded."""

    num_classes: int = 2
    """Classes of the table, of which a part may lack some."""

    @classmethod
    def of(
        cls, problem: Problem, training: Rows, validation: Rows, test: Rows, num_training: int = 0
    ) -> "CellData":
        """Return these rows of a problem."""
        X, y = problem.X, problem.y
        first, second, third = ((X[rows], y[rows]) for rows in (training, validation, test))
        return cls(first, second, third, num_training, problem.num_classes)


class ScaledRows(NamedTuple):
    """Scaled tensors of the three parts."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    scalings: Scalings
    num_classes: int = 2

    @property
    def offset(self) -> float:
        """The target in its units is offset + scale·y."""
        return float(self.scalings.targets.shift[0])

    @property
    def scale(self) -> float:
        """Standard deviation of the training targets; 1 for labels and counts."""
        return float(self.scalings.targets.scale[0])

    @classmethod
    def of(
        cls,
        data: CellData,
        task: Task,
        dtype: Literal["float64", "float32"] = "float64",
        device: str = "cpu",
    ) -> "ScaledRows":
        """Scale inputs and real-valued targets to mean 0, deviation 1 on the training rows.

        If inputs have gaps, they are imputed first, by the training rows.
        """
        parts = (data.train, data.validation, data.test)
        scalings = Scalings.from_data(
            *data.train,
            None,
            inputs=True,
            targets=task == "regression",
            impute=any(bool(np.isnan(X).any()) for X, _ in parts),
        )
        precision, targets = (
            torch.float64 if dtype == "float64" else torch.float32,
            scalings.targets,
        )

        def tensors(X: Array, y: Array) -> tuple[Tensor, Tensor]:
            inputs = torch.as_tensor(scalings.scaled_inputs(X))
            scaled = torch.as_tensor(targets.exact(y[:, None]))[:, 0]
            return inputs.to(device, precision), scaled.to(device, precision)

        train, validation, test = (tensors(*part) for part in parts)
        return cls(train, validation, test, scalings, data.num_classes)


def model_bytes(model: Model, **facts: str) -> bytes:
    """Return the state of posterior and likelihood, with facts about the model."""
    state = _modules(model).state_dict()
    plain = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    return save(plain, facts or None)


def facts_in(data: bytes) -> dict[str, str]:
    """Return the facts that `model_bytes` was given."""
    # The file starts with the length of a JSON document.
    length = int.from_bytes(data[:8], "little")
    facts: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return facts


def load_bytes(model: Model, data: bytes) -> None:
    """Load the state of a model of the same shape."""
    _modules(model).load_state_dict(load(data))


def _modules(model: Model) -> ModuleDict:
    return ModuleDict({"posterior": model.posterior, "likelihood": model.likelihood})


def starting_model(
    task: Task,
    X: Tensor,
    y: Tensor,
    likelihood: str,
    num_inducing: int | None,
    seed: tuple[int, ...],
    units: tuple[float, float] = (1.0, 0.0),
    num_classes: int = 2,
    **prior: Any,
) -> Model:
    """Return an untrained model: q(u) at the prior, hyperparameters initialised from the rows.

    `num_inducing` None is the default of the estimators; the targets of the user are unit·y +
    offset; `prior` has kernel, ard and mean.
    """
    made = named_likelihood(likelihood, y, *units, num_classes)
    if made.latent_scale:
        prior = {**prior, "mean": "constant"}
    latent = rough_latent(made, y)
    posterior = SparsePosterior.from_data(
        X.cpu(),
        None if latent is None else latent.cpu(),
        num_inducing=min(num_inducing or auto_inducing(len(X)), len(X)),
        generator=generator_of(*seed),
        **prior,
    )
    return Model(with_latents_of(made, posterior.to(X.device), y), made)


def chosen_model(
    task: Task,
    X: Tensor,
    y: Tensor,
    seeds: tuple[int, ...],
    num_inducing: int | None,
    monitors: Sequence[Monitor],
    scalings: Scalings | None = None,
    num_classes: int = 2,
    **choices: Any,
) -> Model:
    """Return an untrained model, or the one of the highest evidence after short runs.

    The choices are kernel, ard and likelihood, or "auto".
    """
    mean, seed = "zero" if task == "regression" else "constant", seed_of(*seeds)
    scalings = scalings or Scalings.identity(X.shape[1])
    if "auto" not in choices.values():
        prior = {"kernel": choices["kernel"], "ard": choices["ard"], "mean": mean}
        units = scalings.unit, scalings.offset
        name = choices["likelihood"]
        given = (task, X, y, name, num_inducing, seeds, units, num_classes)
        model = starting_model(*given, **prior)
        kernel = f"{choices['kernel']} ARD" if choices["ard"] else choices["kernel"]
        return model._replace(name=f"{kernel}, {choices['likelihood']}")
    table = TrainingTable(X, y, None, None, None, scalings, len(y), 0)
    params = {**choices, "mean": mean, "mean_is_auto": True, "inducing": "kmeans++"}
    params["num_classes"] = num_classes
    recipe = Recipe("elbo", monitors=monitors)
    number = min(num_inducing or auto_inducing(len(X)), len(X))
    models = starting_models(params, task, recipe, table, number, seed)
    generator = torch.Generator(X.device).manual_seed(seed)
    data = Data(X, y, None)
    search = Search(recipe, data, Given(X, y), generator, EFFORTS["default"])
    return search.choose(models)[0]


_CURVE_POINTS = 200
"""Points of a thinned training curve."""


class Trained(NamedTuple):
    """The chosen run of a method, and the path of β it was chosen from."""

    best: TrainingResult
    path: BetaPath | None

    @classmethod
    def before(cls, model: Model) -> "Trained":
        """Return a model that needs no training."""
        stage = without_steps("elbo", Status.CONVERGED, "Trained before.")
        return cls(TrainingResult(*model[:2], "elbo", 1.0, "elbo", (stage,), 0.0), None)

    def facts(self) -> dict[str, Any]:
        """Return the fields of `TrainingOutcome` that training decides."""
        results = [self.best] if self.path is None else [p.trained for p in self.path.points]
        # A stage that several results share counts once.
        stages = {id(stage): stage for each in results for stage in each.stages}.values()
        failed = () if self.path is None else self.path.failed
        return {
            "beta": self.best.beta,
            "status": self.best.status.value,
            "reason": self.best.reason,
            "evaluations": sum(stage.evaluations for stage in stages),
            "failed": tuple(f"β = {each.beta:.3g}: {each.reason}" for each in failed),
        }

    def curve(self) -> tuple[tuple[int, float], ...]:
        """Return (step, objective) of the chosen run, thinned; the last step is always there."""
        losses = self.best.history
        every = max(1, math.ceil(len(losses) / _CURVE_POINTS))
        kept = {*range(0, len(losses), every), len(losses) - 1} if losses else set()
        return tuple((step + 1, losses[step]) for step in sorted(kept))

    def to_bytes(self, **facts: str) -> bytes:
        """Return the state of the chosen model."""
        return model_bytes(Model.of(self.best), **facts)


def train_method(
    method: Method,
    model: Model,
    rows: ScaledRows,
    betas: Sequence[float],
    seed: int,
    max_steps: int | None,
    monitors: Sequence[Monitor],
) -> Trained:
    """Train with the default optimisers; β is chosen along a path that starts at the model."""
    problem = model.posterior, model.likelihood, *rows.train
    settings: dict[str, Any] = {
        "objective": method.objective,
        "max_steps": max_steps,
        "monitors": monitors,
        "generator": torch.Generator(rows.train[0].device).manual_seed(seed),
    }
    if not method.chooses_beta and method.hyperparameters == "joint":
        return Trained(train(*problem, **settings), None)
    path = beta_path(
        *problem,
        betas=betas,
        validation=Given(*rows.validation),
        hyperparameters=method.hyperparameters,
        start="given",
        **settings,
    )
    # The paper's choice. `path.best` would take a larger β within the standard error of the best,
    # and a few rows with a very large loss make that error large.
    best = min(path.points, key=lambda point: point.validation_loss)
    return Trained(best.trained, path)


def race_method(
    method: Method,
    model: Model,
    rows: ScaledRows,
    betas: Sequence[float],
    seed: int,
    max_steps: int | None,
    monitors: Sequence[Monitor],
) -> Trained:
    """Train as `train_method` does, while steps lower the objective and β the validation loss."""
    objective, mode = method.objective, method.hyperparameters
    recipe = Recipe(objective, max_steps=max_steps, monitors=monitors)
    generator = torch.Generator(rows.train[0].device).manual_seed(seed)
    data, validation = Data(*rows.train, None), Given(*rows.validation)
    search = Search(recipe, data, validation, generator, EFFORTS["fast"])
    grid = sorted({*betas}, reverse=True) if method.chooses_beta else [1.0]
    search.along(model, mode, grid)
    return Trained(search.best, search.path if method.chooses_beta and search.trials else None)


def clock(device: str) -> float:
    """Return processor time, which other programs disturb least; wall time on a GPU."""
    return time.process_time() if device == "cpu" else time.perf_counter()
