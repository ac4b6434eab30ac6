"""Choose starting models and train the model of an estimator."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from jaxtyping import Float
from sklearn.utils.validation import check_array
from torch import Tensor

from directgp.errors import UnsupportedError, require
from directgp.estimators.preprocessing import TrainingTable
from directgp.estimators.validation import ArrayLike, about
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import exposed
from directgp.posteriors.inducing import InducingName, choose_inducing
from directgp.posteriors.prior import KernelName, Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import LIKELIHOODS, Task, likelihoods_of
from directgp.training.beta_path import beta_grid
from directgp.training.data import Data, Model, check_data
from directgp.training.recipe import Recipe
from directgp.training.result import BetaPath, StageResult, TrainingResult
from directgp.training.search import Search
from directgp.training.train import train
from directgp.training.validation import Folds, Given, HoldOut, Validation

Targets = Float[Tensor, " n"]

_MOST_INDUCING, _FEWEST_INDUCING = 100, 50

_GRID = 2.0**32


@dataclass(frozen=True)
class ModelSettings:
    """The constructor's choices that say which models there are."""

    task: Task
    likelihood: str | Likelihood
    kernel: str | Kernel
    ard: bool | Literal["auto"]
    mean: Literal["zero", "constant"]
    num_inducing: int
    inducing: str | Float[Tensor, "m d"]
    """A method, or the inputs themselves, scaled."""


def named_likelihood(name: str, y: Targets) -> Likelihood:
    """Return the likelihood of that name, with starting values for these targets."""
    likelihood: Likelihood = LIKELIHOODS[name].load().from_targets(y)
    return likelihood.to(y)


def starting_models(
    settings: ModelSettings,
    recipe: Recipe,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    latent: Float[Tensor, " n"] | None,
    exposure: Float[Tensor, " n"] | None,
    generator: torch.Generator,
) -> list[list[Model]]:
    """For each kernel one model a likelihood, the simplest first.

    Parameters
    ----------
    settings : ModelSettings
        What the user asked for.
    recipe : Recipe
        Likelihoods that its objective cannot be used with are left out.
    X, y : tensor of shape (n, d), (n,)
        Scaled training data.
    latent : tensor of shape (n,)
        Rough values of f, where the targets give some.
    exposure : tensor of shape (n,)
        Of counts.
    generator : torch.Generator
        Of the CPU, for the inducing inputs.
    """
    likelihoods = _likelihoods(settings, recipe, y)
    Z = _inducing(settings, X, generator)
    priors = _priors(settings, X, latent)
    return [
        [
            Model(
                SparsePosterior(copy.deepcopy(prior), Z),
                exposed(copy.deepcopy(likelihood), exposure),
                f"{k}, {name}",
            )
            for name, likelihood in likelihoods.items()
        ]
        for k, prior in priors.items()
    ]


def _likelihoods(
    settings: ModelSettings, recipe: Recipe, y: Float[Tensor, " n"]
) -> dict[str, Likelihood]:
    given = settings.likelihood
    if isinstance(given, Likelihood):
        recipe.check(given)
        return {type(given).__name__: copy.deepcopy(given).to(y)}
    names = likelihoods_of(settings.task, auto=True) if given == "auto" else (given,)
    found, refusals = {}, []
    for name in names:
        likelihood = named_likelihood(name, y)
        try:
            recipe.check(likelihood)
            found[name] = likelihood
        except UnsupportedError as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    return found


def _inducing(
    settings: ModelSettings, X: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "m d"]:
    if isinstance(settings.inducing, Tensor):
        return settings.inducing
    method = cast(InducingName, settings.inducing)
    Z = choose_inducing(X, settings.num_inducing, method, generator)
    # On the grid of the scaled inputs, sums that round otherwise give the same centres.
    return torch.round(Z * _GRID) / _GRID


def _priors(
    settings: ModelSettings, X: Float[Tensor, "n d"], latent: Float[Tensor, " n"] | None
) -> dict[str, Prior]:
    kernel, mean = settings.kernel, settings.mean
    if isinstance(kernel, Kernel):
        return {type(kernel).__name__: _own_prior(kernel, mean, X, latent)}
    name = cast(KernelName, kernel)
    ards = (False, True) if settings.ard == "auto" and X.shape[-1] > 1 else (settings.ard is True,)
    return {
        f"{name} ARD" if ard else name: Prior.from_data(X, latent, kernel=name, ard=ard, mean=mean)
        for ard in ards
    }


def _own_prior(
    kernel: Kernel, mean: str, X: Float[Tensor, "n d"], latent: Float[Tensor, " n"] | None
) -> Prior:
    """A prior of the user's own kernel, which is left as it is."""
    function: Mean = ConstantMean() if mean == "constant" else ZeroMean()
    if isinstance(function, ConstantMean) and latent is not None:
        function.constant = latent.mean()
    prior = Prior(copy.deepcopy(kernel), function, dtype=X.dtype)
    return prior.to(X.device)


def auto_inducing(num_rows: int) -> int:
    """A quarter of the rows, between 50 and 100; all of them where they are fewer."""
    return min(num_rows, max(_FEWEST_INDUCING, min(_MOST_INDUCING, num_rows // 4)))


def check_kernel(kernel: Kernel, d: int) -> None:
    """Refuse a kernel for batches, or for another number of features, whole and in parts."""
    name = f"the kernel {type(kernel).__name__}"
    require(
        kernel.batch_shape == torch.Size(),
        name,
        "of an empty batch_shape",
        f"batch_shape {tuple(kernel.batch_shape)}",
        "One estimator trains one model: leave batch_shape out.",
    )
    features = d if kernel.active_dims is None else len(kernel.active_dims)
    require(
        kernel.ard_num_dims in (None, features),
        name,
        f"of ard_num_dims None or {features}, the number of features it sees",
        kernel.ard_num_dims,
    )
    require(
        kernel.active_dims is None or bool((kernel.active_dims < d).all()),
        name,
        f"of active_dims below {d}, the number of features it is given",
        [] if kernel.active_dims is None else kernel.active_dims.tolist(),
    )
    for part in _parts(kernel):
        # A ScaleKernel takes the active_dims of its kernel for its own, and selects once.
        shared = isinstance(kernel, ScaleKernel) and part.active_dims is not None
        check_kernel(part, d if shared else features)


def _parts(module: torch.nn.Module) -> Iterator[Kernel]:
    """The kernels that a kernel is made of, but not theirs."""
    for child in module.children():
        if isinstance(child, Kernel):
            yield child
        else:
            yield from _parts(child)


def given_inducing(inducing: ArrayLike, d: int, who: str) -> np.ndarray:
    """Inducing inputs that the user has chosen, refused unless of shape (m, d) and finite."""
    name, allowed = f"inducing of {who}", f"finite, of shape (m, {d}), in the units of X"
    with about(f"{name} must be {allowed}"):
        Z: np.ndarray = check_array(inducing, dtype=np.float64, input_name="inducing")
    require(Z.shape[1] == d, name, allowed, f"shape {Z.shape}")
    return Z


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
    path: BetaPath | None
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
    path = replace(search.path, validation=_words(validation, len(data)))
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
