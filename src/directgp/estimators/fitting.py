"""Choose starting models and train the model of an estimator."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

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
from directgp.training.train import train, update
from directgp.training.validation import Folds, Given, HoldOut, Validation

Targets = Float[Tensor, " n"]

_MOST_INDUCING, _FEWEST_INDUCING = 100, 50

_GRID = 2.0**32


Params = Mapping[str, Any]
"""Constructor parameters of an estimator."""


def named_likelihood(name: str, y: Targets) -> Likelihood:
    """Return the likelihood of that name, with starting values for these targets."""
    likelihood: Likelihood = LIKELIHOODS[name].load().from_targets(y)
    return likelihood.to(y)


def rough_latent(
    task: Task, y: Targets, exposure: Float[Tensor, " n"] | None = None
) -> Targets | None:
    """Return rough values of f, if the targets give some: y itself, or log((y + ½)/e) of counts."""
    if task == "regression":
        return y
    if task == "classification":
        return None
    counts = torch.log(y + 0.5)
    return counts if exposure is None else counts - torch.log(exposure)


def inducing_number(params: Params, num_rows: int) -> int:
    """Return the number of inducing inputs for this many distinct rows."""
    if not isinstance(params["inducing"], str):
        return len(np.asarray(params["inducing"]))
    number = params["num_inducing"]
    return auto_inducing(num_rows) if number == "auto" else min(int(number), num_rows)


def starting_models(
    params: Params, task: Task, recipe: Recipe, table: TrainingTable, num_inducing: int, seed: int
) -> list[list[Model]]:
    """Return for each kernel one model a likelihood, the simplest first.

    Likelihoods that the objective cannot be used with are left out.
    """
    X, y = table.X, table.y
    if not isinstance(params["kernel"], str):
        check_kernel(params["kernel"], X.shape[1])
        remedy = "Give the kernel itself ard_num_dims."
        given = repr(params["ard"])
        require(params["ard"] == "auto", "ard with a kernel of your own", "'auto'", given, remedy)
    likelihoods = _likelihoods(params["likelihood"], task, recipe, y)
    Z = _inducing(params["inducing"], table, num_inducing, seed)
    priors = _priors(params, X, rough_latent(task, y, table.exposure))
    return [
        [
            Model(
                SparsePosterior(copy.deepcopy(prior), Z),
                exposed(copy.deepcopy(likelihood), table.exposure),
                f"{k}, {name}",
            )
            for name, likelihood in likelihoods.items()
        ]
        for k, prior in priors.items()
    ]


def _likelihoods(
    given: str | Likelihood, task: Task, recipe: Recipe, y: Targets
) -> dict[str, Likelihood]:
    if isinstance(given, Likelihood):
        recipe.check(given)
        return {type(given).__name__: copy.deepcopy(given).to(y)}
    names = likelihoods_of(task, auto=True) if given == "auto" else (given,)
    found, errors = {}, []
    for name in names:
        likelihood = named_likelihood(name, y)
        try:
            recipe.check(likelihood)
            found[name] = likelihood
        except UnsupportedError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _inducing(inducing: Any, table: TrainingTable, number: int, seed: int) -> Float[Tensor, "m d"]:
    """Return scaled inducing inputs, chosen by a method or given in the units of X."""
    X = table.X
    if not isinstance(inducing, str):
        Z = given_inducing(inducing, X.shape[1])
        return torch.as_tensor(table.scalings.inputs.forward(Z)).to(X)
    generator = torch.Generator().manual_seed(seed)
    chosen = choose_inducing(X, number, cast(InducingName, inducing), generator)
    # On the grid of the scaled inputs, sums that round otherwise give the same centres.
    return torch.round(chosen * _GRID) / _GRID


def _priors(params: Params, X: Float[Tensor, "n d"], latent: Targets | None) -> dict[str, Prior]:
    kernel, mean, ard = params["kernel"], params["mean"], params["ard"]
    if isinstance(kernel, Kernel):
        return {type(kernel).__name__: _own_prior(kernel, mean, X, latent)}
    name = cast(KernelName, kernel)
    ards = (False, True) if ard == "auto" and X.shape[-1] > 1 else (ard is True,)
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


def given_inducing(inducing: ArrayLike, d: int) -> np.ndarray:
    """Return the user's inducing inputs; raise unless they are of shape (m, d) and finite."""
    name, allowed = "inducing of fit", f"finite, of shape (m, {d}), in the units of X"
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
class Fitted:
    """A trained model, and how it was chosen, if there was a choice."""

    result: TrainingResult
    path: BetaPath | None
    end: StageResult | None = None
    """The run during which the search for a model was ended from outside."""


def fit_model(
    recipe: Recipe,
    params: Params,
    models: Sequence[Sequence[Model]],
    table: TrainingTable,
    given: Given | None,
    generator: torch.Generator,
    warm: bool,
) -> Fitted:
    """Train the model, or search over models, β and modes where the parameters leave a choice.

    With `warm`, the model to start from is a trained one.
    """
    data = Data(table.X, table.y, table.weights)
    for row in models:
        for posterior, likelihood, _ in row:
            check_data("fit", data, posterior, likelihood)
    modes = _modes(recipe, params)
    betas = _betas(recipe, params, table, models[0][0])
    single = len(models) == len(models[0]) == 1
    if single and len(betas) == len(modes) == 1:
        run = _train(recipe, models[0][0], table, betas[0], modes[0], warm, generator)
        return Fitted(run, None)
    require(
        given is not None or len(data) > 1,
        "rows to choose a model by",
        "two different ones at least",
        "one, repeated" if table.num_merged else "one",
        "Give validation_data, or name beta, hyperparameters, likelihood and ard.",
    )
    validation = given or _validation(params["validation_fraction"], len(data))
    search = Search(recipe, data, validation, generator).run(models, betas, modes)
    path = replace(search.path, validation=_words(validation, len(data)))
    return Fitted(search.best, path, search.end)


def _modes(recipe: Recipe, params: Params) -> list[str]:
    """Return the modes to choose from; the plain ELBO solution is one unless a mode is given."""
    if recipe.collapsed is not None:
        return ["joint"]
    if recipe.name == "elbo" and params["beta"] == 1.0:
        # q(u) over the held hyperparameters of the ELBO is the ELBO's own.
        return ["elbo"]
    mode = params["hyperparameters"]
    return ["elbo", "fixed", "joint"] if mode == "auto" else [mode]


def _betas(recipe: Recipe, params: Params, table: TrainingTable, model: Model) -> list[float]:
    """Return the given β, or every second value of the paper's grid."""
    if params["beta"] != "auto":
        return [float(params["beta"])]
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
    table: TrainingTable,
    beta: float,
    mode: str,
    warm: bool,
    generator: torch.Generator,
) -> TrainingResult:
    """Train one model, with nothing to choose."""
    result = train(
        *model[:2],
        table.X,
        table.y,
        hyperparameters="fixed" if mode == "fixed" else "joint",
        start="scratch" if warm else "elbo",
        **_arguments(recipe, table, beta, generator),
    )
    return replace(result, hyperparameters=mode)


def updated(
    recipe: Recipe, model: Model, table: TrainingTable, beta: float, generator: torch.Generator
) -> TrainingResult:
    """Return the model after the rows of a table, with all but q(u) held."""
    return update(*model[:2], table.X, table.y, **_arguments(recipe, table, beta, generator))


def _arguments(
    recipe: Recipe, table: TrainingTable, beta: float, generator: torch.Generator
) -> dict[str, Any]:
    """Return the arguments that `train` and `update` share."""
    return {
        "objective": recipe.objective,
        "beta": beta,
        "rule": recipe.rule,
        "optimizer": recipe.optimizer,
        "weights": table.weights,
        "batch_size": recipe.batch_size,
        "max_steps": recipe.max_steps,
        "stopping": recipe.stopping,
        "monitors": recipe.monitors,
        "generator": generator,
    }


def _validation(fraction: float | str, num_rows: int) -> Validation:
    if fraction != "auto":
        return HoldOut(float(fraction))
    return Folds(_FOLDS) if num_rows < _ROWS_FOR_FOLDS else HoldOut(_HELD_OUT)


def _words(validation: Validation, num_rows: int) -> str:
    """How candidates were compared, for people."""
    if isinstance(validation, Given):
        return f"{len(validation.y)} examples given for validation"
    if isinstance(validation, Folds):
        return f"all {num_rows} examples, in {min(validation.number, num_rows)} folds"
    return f"{max(1, round(validation.fraction * num_rows))} of {num_rows} examples, set aside"
