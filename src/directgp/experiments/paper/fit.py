"""Train a method of the paper on the rows of a cell, and choose β."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import ModuleDict

from directgp.estimators.settings import auto_inducing
from directgp.estimators.starting_models import named_likelihood, with_latents_of
from directgp.experiments.cell import Method, generator_of
from directgp.experiments.splits import ScaledRows
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import Task
from directgp.training.beta_path import beta_path
from directgp.training.data import Model
from directgp.training.result import BetaPath, TrainingResult
from directgp.training.run import Monitor
from directgp.training.train import train
from directgp.training.validation import Given


def model_bytes(model: Model) -> bytes:
    """Return the state of posterior and likelihood."""
    state = _modules(model).state_dict()
    plain = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    return save(plain)


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
    **prior: Any,
) -> Model:
    """Return an untrained model: q(u) at the prior, hyperparameters initialised from the rows.

    `num_inducing` None is the default of the estimators; `prior` has kernel, ard and mean.
    """
    made = named_likelihood(likelihood, y)
    if made.latent_scale:
        prior = {**prior, "mean": "constant"}
    latent = made.rough_latent(y)
    posterior = SparsePosterior.from_data(
        X.cpu(),
        None if latent is None else latent.cpu(),
        num_inducing=min(num_inducing or auto_inducing(len(X)), len(X)),
        generator=generator_of(*seed),
        **prior,
    )
    return Model(with_latents_of(made, posterior.to(X.device), y), made)


_CURVE_POINTS = 200
"""Points of a thinned training curve."""


class Trained(NamedTuple):
    """The chosen run of a method, and the path of β it was chosen from."""

    best: TrainingResult
    path: BetaPath | None

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

    def to_bytes(self) -> bytes:
        """Return the state of the chosen model."""
        return model_bytes(Model.of(self.best))


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
