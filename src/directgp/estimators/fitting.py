"""Choose starting models and train the model of an estimator."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from jaxtyping import Float
from sklearn.utils.validation import check_array
from torch import Tensor

from directgp.errors import (
    DirectGPError,
    InvalidInputError,
    UnsupportedError,
    refuse,
    require,
)
from directgp.estimators.preprocessing import GRID, Column, TrainingTable
from directgp.estimators.validation import explained
from directgp.integration.capabilities import has
from directgp.io import cores
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.likelihoods.capabilities import GaussianPredictive
from directgp.likelihoods.starts import (
    UnlikeLatents,
    latent_starts,
    rough_latent,
    starting_likelihood,
    suits,
)
from directgp.likelihoods.units import in_units
from directgp.log_expectations.api import check_own
from directgp.posteriors.inducing import InducingName, choose_inducing
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import LIKELIHOODS, KernelName, Task, likelihoods_of
from directgp.training.beta_path import beta_grid
from directgp.training.coverage import Coverage, Group
from directgp.training.data import Data, Model, check_data
from directgp.training.race import EFFORTS
from directgp.training.result import BetaPath, StageResult, Status, TrainingResult
from directgp.training.run import Recipe
from directgp.training.search import Search, ended
from directgp.training.train import train, update
from directgp.training.trainer import as_elbo
from directgp.training.validation import Folds, Given, HoldOut, Validation

Targets = Float[Tensor, " n"]

Params = Mapping[str, Any]
"""Constructor parameters of an estimator."""

_MAX_INDUCING = 100
_MIN_INDUCING = 50

_ROWS_FOR_FOLDS = 1000
"""Fewer rows are validated in folds, which uses each of them."""

_ROWS_FOR_ARD = 20
"""Rows for each feature from which a lengthscale for each is preferred."""

_FOLDS = 3
_HELD_OUT = 0.2
"""Part of the rows for validation where there are no folds."""

_KERNELS: tuple[KernelName, ...] = ("matern52", "matern32", "rbf")
"""Kernels that "auto" compares, the preferred first."""

_BETAS_IN_BATCHES = (10.0, 1.0, 0.1)
"""Candidates of β for batches, as in the paper's experiment with millions of rows."""


_SKEWED = 3.0
"""Largest value over the median from which positive targets are skewed."""

_FINE = 2.0**-12
"""Distance from the end of the support, in deviations, below which targets are not rounded."""


def named_likelihood(
    name: str, y: Targets, unit: float = 1.0, offset: float = 0.0, num_classes: int = 2
) -> Likelihood:
    """Return the likelihood of that name, with starting values for these targets."""
    row = LIKELIHOODS[name]
    make = row.load()
    likelihood: Likelihood = (
        make.from_labels(y, num_classes)
        if row.many_classes
        else starting_likelihood(make, y, unit, offset)
    )
    return likelihood.to(y)


def candidates(
    given: str | Likelihood, task: Task, row_argument: str | None, y: Column, num_classes: int = 2
) -> tuple[str, ...]:
    """Return the names of the likelihoods to compare, for targets in the units of the user."""
    if isinstance(given, Likelihood):
        return ()
    if given != "auto":
        return (given,)
    if row_argument is not None:
        return tuple(_users(task, row_argument))
    named = likelihoods_of(task, True, num_classes) + _for_kinds(task, y)
    targets = torch.tensor(y)
    return tuple(name for name in named if suits(LIKELIHOODS[name].load(), targets))


def _for_kinds(task: Task, y: Column) -> tuple[str, ...]:
    """Return the names for proportions, or for positive targets that are skewed."""
    lowest, highest = (float(y.min()), float(y.max())) if len(y) else (0.0, 0.0)
    kinds = set()
    if 0 < lowest and highest < 1:
        kinds.add("proportion")
    if 0 < lowest and highest > _SKEWED * float(np.median(y)):
        kinds.add("positive")
    rows = (row for row in LIKELIHOODS.values() if row.task == task)
    return tuple(row.name for row in rows if row.auto_for in kinds)


def needs_fine_targets(given: str | Likelihood, names: Sequence[str], y: Column) -> bool:
    """Return whether rounding would change targets near an end of the support of a likelihood."""
    kinds = {LIKELIHOODS[name].auto_for for name in names}
    if isinstance(given, Likelihood):
        kinds = {row.auto_for for row in LIKELIHOODS.values() if row.kind == type(given).__name__}
    distance = float(y.min()) if kinds & {"positive", "proportion"} else math.inf
    if "proportion" in kinds:
        distance = min(distance, 1 - float(y.max()))
    return 0 < distance < _FINE * float(y.std())


def auto_inducing(num_rows: int) -> int:
    """Return a quarter of the rows, between 50 and 100; all of them if they are fewer."""
    return min(num_rows, max(_MIN_INDUCING, min(_MAX_INDUCING, num_rows // 4)))


def inducing_number(params: Params, num_rows: int) -> int:
    """Return the number of inducing inputs for this number of distinct rows."""
    if not isinstance(params["inducing"], str):
        return len(np.asarray(params["inducing"]))
    number = params["num_inducing"]
    return auto_inducing(num_rows) if number == "auto" else min(int(number), num_rows)


def starting_models(
    params: Params, task: Task, recipe: Recipe, table: TrainingTable, num_inducing: int, seed: int
) -> list[list[Model]]:
    """Return for each kernel one model per likelihood that the objective supports."""
    X, y = table.X, table.y
    if not isinstance(params["kernel"], str):
        check_kernel(params["kernel"], X.shape[1])
        got, remedy = repr(params["ard"]), "Set ard_num_dims of the kernel itself."
        require(params["ard"] == "auto", "ard with a kernel of your own", "'auto'", got, remedy)
    likelihoods = _likelihoods(params, task, recipe, table)
    Z = _inducing(params["inducing"], table, num_inducing, seed)
    priors: dict[str, dict[str, Prior]] = {}
    for likelihood in likelihoods.values():
        scale = likelihood.latent_scale
        if scale not in priors:
            # Only f on the scale of standardised targets has the mean 0.
            own = {"mean": "constant"} if scale and params.get("mean_is_auto") else {}
            priors[scale] = _priors({**params, **own}, X, rough_latent(likelihood, y))
    return [
        [
            Model(
                with_latents_of(
                    likelihood,
                    SparsePosterior(copy.deepcopy(priors[likelihood.latent_scale][kernel]), Z),
                    y,
                ),
                copy.deepcopy(likelihood),
                f"{kernel}, {name}",
            )
            for name, likelihood in likelihoods.items()
        ]
        for kernel in next(iter(priors.values()))
    ]


def with_latents_of(
    likelihood: Likelihood, posterior: SparsePosterior, y: Targets
) -> SparsePosterior:
    """Return q(u) = p(u) for the latents of a likelihood, which start with one kernel."""
    if likelihood.num_latent == 1:
        return posterior
    prior = posterior.prior
    shared = not has(likelihood, UnlikeLatents)
    posterior = posterior.with_latents(likelihood.num_latent, shared=shared)
    if starts := latent_starts(likelihood, y):
        posterior.prior = prior.with_starts(starts)
    return posterior


def _likelihoods(
    params: Params, task: Task, recipe: Recipe, table: TrainingTable
) -> dict[str, Likelihood]:
    """Return the likelihoods to compare, by name, for the rows of the table."""
    given, y, argument = params["likelihood"], table.y, table.row_argument
    scalings = table.scalings
    units = scalings.unit, scalings.offset
    if isinstance(given, Likelihood):
        recipe.check(given)
        check_row_argument(given, argument, "fit")
        made = in_units(copy.deepcopy(given), *units).to(y)
        return {type(given).__name__: made.with_row_values(table.row_values)}
    names = params.get("candidates")
    if names is None:
        original = scalings.targets.backward(y.double().cpu().numpy()[:, None])[:, 0]
        names = candidates(given, task, argument, original)
    found: dict[str, Likelihood] = {}
    errors: list[DirectGPError] = []
    for name in names:
        try:
            likelihood = named_likelihood(name, y, *units, params.get("num_classes", 2))
            check_row_argument(likelihood, argument, "fit")
            recipe.check(likelihood)
            if given == "auto" and likelihood.latent_scale:
                # The digits of float32 may not tell small values from 0.
                likelihood.check_targets(y)
            found[name] = likelihood.with_row_values(table.row_values)
        except UnsupportedError as error:
            errors.append(error)
        except InvalidInputError as error:
            if len(names) == 1:
                raise
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _users(task: Task, row_argument: str) -> Sequence[str]:
    """Return the names that "auto" compares where there are row values: those that use them."""
    users = [
        name
        for name in likelihoods_of(task)
        if LIKELIHOODS[name].load().rows.argument == row_argument
    ]
    compared = [
        name
        for name in users
        if LIKELIHOODS[name].auto and LIKELIHOODS[name].load().rows.proportional
    ]
    # The default, where no candidate uses the row values: its check says what is wrong.
    return compared or users[:1] or likelihoods_of(task)[:1]


def check_row_argument(likelihood: Likelihood, argument: str | None, who: str) -> None:
    """Raise `InvalidInputError` if the likelihood has no use for the row values, or lacks them."""
    name, own = type(likelihood).__name__, likelihood.rows.argument
    if argument is None:
        missing = own is not None and likelihood.rows.required
        allowed, remedy = f"given with the likelihood {name}", f"Give {own}= for each row."
        require(not missing, f"{own} of {who}", allowed, "None", remedy)
        return
    if own != argument:
        users = [n for n, row in LIKELIHOODS.items() if row.load().rows.argument == argument]
        allowed = f"given with a likelihood that uses it ({', '.join(users) or 'there is none'})"
        remedy = f"Leave it out, or give {own}=." if own else "Leave it out."
        refuse(f"{argument} of {who}", allowed, f"it with {name}", remedy)


def _inducing(inducing: Any, table: TrainingTable, number: int, seed: int) -> Float[Tensor, "m d"]:
    """Return scaled inducing inputs, chosen by a method or given in the units of X."""
    X = table.X
    if isinstance(inducing, str):
        generator = torch.Generator().manual_seed(seed)
        chosen = choose_inducing(X, number, cast(InducingName, inducing), generator)
        return torch.round(chosen * GRID) / GRID
    imputation = table.scalings.imputation
    d = X.shape[1] if imputation is None else len(imputation.medians)
    name, allowed = "inducing of fit", f"finite, of shape (m, {d}), in the units of X"
    with explained(f"{name} must be {allowed}"):
        Z: np.ndarray = check_array(inducing, dtype=np.float64, input_name="inducing")
    require(Z.shape[1] == d, name, allowed, f"shape {Z.shape}")
    return torch.as_tensor(table.scalings.scaled_inputs(Z)).to(X)


def _priors(params: Params, X: Float[Tensor, "n d"], latent: Targets | None) -> dict[str, Prior]:
    """Return the prior of the user's kernel, or of a named one without and with ARD."""
    kernel, mean, ard = params["kernel"], params["mean"], params["ard"]
    if isinstance(kernel, Kernel):
        function: Mean = ConstantMean() if mean == "constant" else ZeroMean()
        if isinstance(function, ConstantMean) and latent is not None:
            function.constant = latent.mean()
        prior = Prior(copy.deepcopy(kernel), function, dtype=X.dtype)
        return {type(kernel).__name__: prior.to(X.device)}
    names: tuple[KernelName, ...] = _KERNELS if kernel == "auto" else (kernel,)
    # Of two that validation cannot tell apart, the first is taken.
    many = len(X) >= _ROWS_FOR_ARD * X.shape[-1]
    ards = (many, not many) if ard == "auto" and X.shape[-1] > 1 else (ard is True,)
    return {
        f"{name} ARD" if ard else name: Prior.from_data(X, latent, kernel=name, ard=ard, mean=mean)
        for name in names
        for ard in ards
    }


def check_kernel(kernel: Kernel, d: int) -> None:
    """Raise if a kernel or a part of it has a batch shape or another number of features."""
    name = f"the kernel {type(kernel).__name__}"
    shape, remedy = tuple(kernel.batch_shape), "Leave batch_shape out: an estimator is one model."
    require(shape == (), name, "of an empty batch_shape", f"batch_shape {shape}", remedy)
    dims = list(range(d)) if kernel.active_dims is None else kernel.active_dims.tolist()
    features = len(dims)
    allowed = f"of ard_num_dims None or {features}, the number of features it uses"
    require(kernel.ard_num_dims in (None, features), name, allowed, kernel.ard_num_dims)
    allowed = f"of active_dims below {d}, the number of features it is given"
    require(max(dims, default=0) < d, name, allowed, dims)
    for part in _parts(kernel):
        # A ScaleKernel copies the active_dims of its kernel, and selects features only once.
        shared = isinstance(kernel, ScaleKernel) and part.active_dims is not None
        check_kernel(part, d if shared else features)


def _parts(module: torch.nn.Module) -> Iterator[Kernel]:
    """Yield the kernels directly inside a kernel."""
    for child in module.children():
        if isinstance(child, Kernel):
            yield child
        else:
            yield from _parts(child)


def _number_of_jobs(n_jobs: int | None) -> int:
    """Return the number of threads: one by default, and below 0 all cores but −1 − n_jobs."""
    if n_jobs is None:
        return 1
    require(n_jobs != 0, "n_jobs", "an integer other than 0, or None", n_jobs)
    return n_jobs if n_jobs > 0 else max(1, cores() + 1 + n_jobs)


class Fitted(NamedTuple):
    """A trained model, and the candidates it was chosen from."""

    result: TrainingResult
    path: BetaPath | None = None
    end: StageResult | None = None
    """The run during which a budget, the user or a callback ended the search."""

    untried: tuple[str, ...] = ()
    """What the search left out because it was ended."""

    coverage: Coverage = Coverage()
    """That of 90 % intervals, on validation rows if there are some, else on the training rows."""

    replaced: tuple[str, Group] | None = None
    """A candidate of lower loss whose intervals are too narrow, and where."""


class Fit(NamedTuple):
    """The settings, rows and starting models of one call of `fit` or `partial_fit`."""

    params: Params
    recipe: Recipe
    table: TrainingTable
    models: Sequence[Sequence[Model]]
    """For each kernel one model per likelihood."""

    generator: torch.Generator
    warm: bool
    """Whether the model to start from is a trained one."""

    def train(self, given: Given | None) -> Fitted:
        """Train the model, or search over models, β and modes if the parameters leave a choice."""
        table, models = self.table, self.models
        data = Data(table.X, table.y, table.weights)
        for row in models:
            for posterior, likelihood, _ in row:
                check_data("fit", data, posterior, likelihood)
        for _, likelihood, _ in models[0]:
            check_own(likelihood, table.y)
        modes, betas = self._modes(), self._betas()

        def coverage(result: TrainingResult) -> Coverage:
            """Return that of the training rows."""
            return Coverage.of([(result, data, result.likelihood)], self.recipe.point_loss())

        if len(models) == len(models[0]) == len(betas) == len(modes) == 1:
            result = train(
                *models[0][0][:2],
                table.X,
                table.y,
                hyperparameters="fixed" if modes[0] == "fixed" else "joint",
                start="scratch" if self.warm else "elbo",
                **self._arguments(self.recipe, betas[0]),
            )
            result = replace(result, hyperparameters=modes[0])
            return Fitted(result, coverage=coverage(result))
        got = "one, repeated" if table.num_merged else "one"
        who, allowed = "rows to choose a model by", "at least two different ones"
        remedy = "Give validation_data, or set beta, hyperparameters, likelihood and ard."
        require(given is not None or len(data) > 1, who, allowed, got, remedy)
        validation, description = self._validation(given)
        grow = self.params["num_inducing"] == "auto" and isinstance(self.params["inducing"], str)
        search = Search(
            self.recipe,
            data,
            validation,
            self.generator,
            EFFORTS[self.params["effort"]],
            grows=grow,
            n_jobs=_number_of_jobs(self.params["n_jobs"]),
            **self._with_changing_noise(),
        ).run(models, betas, modes)
        best, end = search.best, search.end
        if end is not None and end.status is not Status.BUDGET:
            best = ended(best, end)
        return Fitted(
            best,
            replace(search.path, validation=description),
            end,
            tuple(search.untried),
            search.coverage if search.trials else coverage(best),
            search.replaced,
        )

    def _with_changing_noise(self) -> dict[str, Any]:
        """Return what "auto" compares, too, where the noise of real targets depends on X."""
        row, params = self.models[0], self.params
        # Families on another scale of f have noise that depends on the mean.
        plain = has(row[0].likelihood, GaussianPredictive) and not any(
            m.likelihood.latent_scale for m in row
        )
        # A kernel of the user's may be for one function only.
        open_choice = params["likelihood"] == "auto" and isinstance(params["kernel"], str)
        by_density = self.recipe.point_loss().validation_loss().log_density
        if not (plain and open_choice and by_density) or self.table.row_argument is not None:
            return {}
        (name,) = (each.name for each in LIKELIHOODS.values() if each.auto_for == "changing noise")
        likelihood = named_likelihood(name, self.table.y)
        try:
            self.recipe.check(likelihood)
        except UnsupportedError:
            return {}
        return {"with_changing_noise": likelihood, "noise_name": name}

    def update(self, beta: float, mode: str) -> TrainingResult:
        """Update q(u) of a model of this β and mode with the rows, and hold all the rest."""
        recipe, (posterior, likelihood, _) = self.recipe, self.models[0][0]
        loss = recipe.point_loss()
        kept_elbo = mode == "elbo" and loss.uses_variance(likelihood)
        # Square loss has the mean of the Gaussian model with β = 1, which is updated instead.
        conjugate = isinstance(likelihood, ConjugateLikelihood)
        if kept_elbo or (conjugate and loss.eliminates == "square_loss"):
            recipe, beta = as_elbo(recipe), 1.0
        arguments = self._arguments(recipe, beta)
        return update(posterior, likelihood, self.table.X, self.table.y, **arguments)

    def _arguments(self, recipe: Recipe, beta: float) -> dict[str, Any]:
        """Return the arguments that `train` and `update` share."""
        left = ("observer", "whitened")
        settings = {name: value for name, value in vars(recipe).items() if name not in left}
        weights, generator = self.table.weights, self.generator
        return {**settings, "beta": beta, "weights": weights, "generator": generator}

    def _modes(self) -> list[str]:
        """Return the modes to choose from; with "auto" the plain ELBO solution is one of them."""
        if self.recipe.collapsed is not None:
            return ["joint"]
        if self.recipe.name == "elbo" and self.params["beta"] == 1.0:
            # q(u) for the held hyperparameters of the ELBO is the ELBO's own.
            return ["elbo"]
        mode = self.params["hyperparameters"]
        return ["elbo", "joint"] if mode == "auto" else [mode]

    def _betas(self) -> list[float]:
        """Return the given β, or every second value of the paper's grid."""
        if self.params["beta"] != "auto":
            return [float(self.params["beta"])]
        if self.recipe.collapsed is not None:
            return [1.0]
        num_inducing = self.models[0][0].posterior.Z.shape[-2]
        if self.recipe.chosen_batch_size(len(self.table.y), num_inducing) is not None:
            return list(_BETAS_IN_BATCHES)
        grid = beta_grid(max(1, round(self.table.count)))
        return grid[::2] if len(grid) % 2 else [*grid[::2], grid[-1]]

    def _validation(self, given: Given | None) -> tuple[Validation, str]:
        """Return how candidates are validated, and a description of it."""
        if given is not None:
            return given, f"{len(given.y)} examples given for validation"
        n, fraction = len(self.table.y), self.params["validation_fraction"]
        if fraction == "auto" and n < _ROWS_FOR_FOLDS:
            return Folds(_FOLDS), f"all {n} examples, in {min(_FOLDS, n)} folds"
        held_out = HoldOut(_HELD_OUT if fraction == "auto" else float(fraction))
        return held_out, f"{max(1, round(held_out.fraction * n))} of {n} examples, held out"
