"""Training of an estimator: what is chosen how, from settings to a trained model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from directgp.errors import require
from directgp.estimators.reports.record import ChosenPath, chosen_path
from directgp.estimators.tables.training_table import TrainingTable
from directgp.training.candidates import Model
from directgp.training.data import Data, check_data
from directgp.training.grid import beta_grid
from directgp.training.recipe import Recipe
from directgp.training.result import StageResult, TrainingResult
from directgp.training.search import Search
from directgp.training.train import train
from directgp.training.validation import Folds, Given, HoldOut, Validation

_ROWS_FOR_FOLDS = 5000
"""Fewer rows are validated in folds, which uses each of them."""

_FOLDS = 3
_HELD_OUT = 0.2

_BETAS_IN_BATCHES = (10.0, 1.0, 0.1)
"""As in the paper's experiment with millions of rows."""


@dataclass(frozen=True)
class Choice:
    """What is open, and how it is decided."""

    beta: float | None
    """None: by validation."""

    hyperparameters: str
    validation_fraction: float | None
    """None: three folds for few rows, else a fifth."""

    warm: bool = False
    """Whether the model to start from is a trained one."""


@dataclass(frozen=True)
class Fitted:
    """A trained model, and how it was chosen, if there was a choice."""

    result: TrainingResult
    path: ChosenPath | None
    end: StageResult | None = None
    """The run during which the search for a model was ended from outside."""


def fit_model(
    recipe: Recipe,
    choice: Choice,
    models: Sequence[Sequence[Model]],
    table: TrainingTable,
    given: Given | None,
    generator: torch.Generator,
) -> Fitted:
    """Train, and choose where something is open.

    Parameters
    ----------
    recipe : Recipe
        Objective, rule and optimiser.
    choice : Choice
        β and hyperparameters, or how to choose them.
    models : sequence of sequences of Model
        Where to start, as in `Search`.
    table : TrainingTable
        All examples.
    given : Given
        Validation examples of the user's own.
    generator : torch.Generator
        Randomness, of the device of the table.
    """
    data = Data(table.X, table.y, table.weights)
    for row in models:
        for posterior, likelihood, _ in row:
            check_data("fit", data, posterior, likelihood)
    modes = _modes(recipe, choice)
    betas = _betas(recipe, choice, table, models[0][0])
    single = len(models) == len(models[0]) == 1
    if single and len(betas) == len(modes) == 1:
        run = _train(recipe, models[0][0], data, betas[0], modes[0], choice.warm, generator)
        return Fitted(run, None)
    require(
        given is not None or len(data) > 1,
        "rows to choose a model by",
        "two different ones at least",
        "one, repeated" if table.num_merged else "one",
        "Give validation_data, or name beta, hyperparameters, likelihood and ard.",
    )
    validation = given or _validation(choice, len(data))
    search = Search(recipe, data, validation, generator).run(models, betas, modes)
    path = chosen_path(search, betas, _words(validation, len(data)))
    return Fitted(search.best, path, search.end)


def _modes(recipe: Recipe, choice: Choice) -> list[str]:
    """What may be chosen; the plain ELBO solution is always there where the rest is open."""
    if recipe.collapsed is not None:
        return ["joint"]
    if recipe.name == "elbo" and choice.beta == 1.0:
        # q(u) over the held hyperparameters of the ELBO is the ELBO's own.
        return ["elbo"]
    if choice.hyperparameters == "auto":
        return ["elbo", "fixed", "joint"]
    return [choice.hyperparameters]


def _betas(recipe: Recipe, choice: Choice, table: TrainingTable, model: Model) -> list[float]:
    """β as given, or every second value of the paper's grid."""
    if choice.beta is not None:
        return [choice.beta]
    if recipe.collapsed is not None:
        return [1.0]
    m = model.posterior.Z.shape[-2]
    if recipe.chosen_batch_size(len(table.y), m) is not None:
        return list(_BETAS_IN_BATCHES)
    grid = beta_grid(max(1, round(table.count)))
    return grid[::2] if len(grid) % 2 else [*grid[::2], grid[-1]]


def _train(
    recipe: Recipe,
    model: Model,
    data: Data,
    beta: float,
    mode: str,
    warm: bool,
    generator: torch.Generator,
) -> TrainingResult:
    """One run, with nothing to choose."""
    result = train(
        model.posterior,
        model.likelihood,
        data.X,
        data.y,
        objective=recipe.objective,
        beta=beta,
        rule=recipe.rule,
        hyperparameters="fixed" if mode == "fixed" else "joint",
        optimizer=recipe.optimizer,
        weights=data.weights,
        batch_size=recipe.batch_size,
        max_steps=recipe.max_steps,
        stopping=recipe.stopping,
        monitors=recipe.monitors,
        start="scratch" if warm else "elbo",
        generator=generator,
    )
    return replace(result, hyperparameters=mode)


def _validation(choice: Choice, num_rows: int) -> Validation:
    if choice.validation_fraction is not None:
        return HoldOut(choice.validation_fraction)
    return Folds(_FOLDS) if num_rows < _ROWS_FOR_FOLDS else HoldOut(_HELD_OUT)


def _words(validation: Validation, num_rows: int) -> str:
    """How candidates were compared, for people."""
    if isinstance(validation, Given):
        return f"{len(validation.y)} examples given for validation"
    if isinstance(validation, Folds):
        return f"all {num_rows} examples, in {min(validation.number, num_rows)} folds"
    return f"{max(1, round(validation.fraction * num_rows))} of {num_rows} examples, set aside"
