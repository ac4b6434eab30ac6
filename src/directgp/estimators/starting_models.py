"""Make the starting models of a fit: likelihoods, inducing inputs and priors to compare."""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

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
from directgp.estimators.settings import FitSettings
from directgp.estimators.validation import explained
from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.starts import (
    UnlikeLatents,
    latent_starts,
    rough_latent,
    starting_likelihood,
    suits,
)
from directgp.likelihoods.units import in_units
from directgp.posteriors.inducing import InducingName, choose_inducing
from directgp.posteriors.prior import MeanName, Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import LIKELIHOODS, KernelName, Task, likelihoods_of
from directgp.training.data import Model
from directgp.training.run import Recipe

Targets = Float[Tensor, " n"]

_ROWS_FOR_ARD = 20
"""Rows for each feature from which a lengthscale for each is preferred."""

_KERNELS: tuple[KernelName, ...] = ("matern52", "matern32", "rbf")
"""Kernels that "auto" compares, the preferred first."""

_SKEWED = 3.0
"""Largest value over the median from which positive targets are skewed."""

_FINE = 2.0**-12
"""Targets are not rounded if one is closer than this, in standard deviations, to a bound of the
support."""


# Likelihoods


def named_likelihood(
    name: str, y: Targets, *, unit: float = 1.0, offset: float = 0.0, num_classes: int = 2
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
    likelihood: str | Likelihood,
    *,
    task: Task,
    row_argument: str | None,
    y: Column,
    num_classes: int = 2,
) -> tuple[str, ...]:
    """Return the names of the likelihoods to compare, for targets in the units of the user."""
    if isinstance(likelihood, Likelihood):
        return ()
    if likelihood != "auto":
        return (likelihood,)
    if row_argument is not None:
        return tuple(_users(task, row_argument))
    named = likelihoods_of(task, True, num_classes) + _for_kinds(task, y)
    targets = torch.tensor(y)
    return tuple(name for name in named if suits(LIKELIHOODS[name].load(), targets))


def _for_kinds(task: Task, y: Column) -> tuple[str, ...]:
    """Return the likelihoods for proportions, or for positive targets that are skewed."""
    lowest, highest = (float(y.min()), float(y.max())) if len(y) else (0.0, 0.0)
    kinds = set()
    if 0 < lowest and highest < 1:
        kinds.add("proportion")
    if 0 < lowest and highest > _SKEWED * float(np.median(y)):
        kinds.add("positive")
    rows = (row for row in LIKELIHOODS.values() if row.task == task)
    return tuple(row.name for row in rows if row.auto_for in kinds)


def needs_fine_targets(likelihood: str | Likelihood, names: Sequence[str], y: Column) -> bool:
    """Return whether rounding would change targets near an end of the support of a likelihood."""
    kinds = {LIKELIHOODS[name].auto_for for name in names}
    if isinstance(likelihood, Likelihood):
        kind = type(likelihood).__name__
        kinds = {row.auto_for for row in LIKELIHOODS.values() if row.kind == kind}
    distance = float(y.min()) if kinds & {"positive", "proportion"} else math.inf
    if "proportion" in kinds:
        distance = min(distance, 1 - float(y.max()))
    return 0 < distance < _FINE * float(y.std())


def _users(task: Task, row_argument: str) -> Sequence[str]:
    """Return the likelihoods that "auto" compares for rows with this argument: all that use it."""
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
    # Without such a likelihood, take the default: its check raises the error.
    return compared or users[:1] or likelihoods_of(task)[:1]


def check_row_argument(likelihood: Likelihood, argument: str | None, who: str) -> None:
    """Raise `InvalidInputError` if the likelihood has no use for the row values, or lacks them."""
    name = type(likelihood).__name__
    needed = likelihood.rows.argument
    if argument is None:
        missing = needed is not None and likelihood.rows.required
        allowed = f"given with the likelihood {name}"
        remedy = f"Give {needed}= for each row."
        require(not missing, f"{needed} of {who}", allowed, "None", remedy)
        return
    if needed != argument:
        users = [n for n, row in LIKELIHOODS.items() if row.load().rows.argument == argument]
        allowed = f"given with a likelihood that uses it ({', '.join(users) or 'there is none'})"
        remedy = f"Leave it out, or give {needed}=." if needed else "Leave it out."
        refuse(f"{argument} of {who}", allowed, f"it with {name}", remedy)


def _likelihoods(
    settings: FitSettings, recipe: Recipe, table: TrainingTable
) -> dict[str, Likelihood]:
    """Return the likelihoods to compare, by name, for the rows of the table."""
    likelihood = settings.likelihood
    if isinstance(likelihood, Likelihood):
        recipe.check(likelihood)
        check_row_argument(likelihood, table.row_argument, "fit")
        scaled = in_units(copy.deepcopy(likelihood), table.scalings.unit, table.scalings.offset)
        name = type(likelihood).__name__
        return {name: scaled.to(table.y).with_row_values(table.row_values)}
    usable: dict[str, Likelihood] = {}
    errors: list[DirectGPError] = []
    for name in settings.candidates:
        try:
            usable[name] = _candidate(name, settings, recipe, table)
        except UnsupportedError as error:
            errors.append(error)
        except InvalidInputError as error:
            if len(settings.candidates) == 1:
                raise
            errors.append(error)
    if not usable:
        raise errors[0]
    return usable


def _candidate(
    name: str, settings: FitSettings, recipe: Recipe, table: TrainingTable
) -> Likelihood:
    """Return the likelihood of that name; raise if objective, rows or targets do not suit it."""
    scalings = table.scalings
    likelihood = named_likelihood(
        name,
        table.y,
        unit=scalings.unit,
        offset=scalings.offset,
        num_classes=settings.num_classes,
    )
    check_row_argument(likelihood, table.row_argument, "fit")
    recipe.check(likelihood)
    if settings.likelihood == "auto" and likelihood.latent_scale:
        # The digits of float32 may not tell small values from 0.
        likelihood.check_targets(table.y)
    return likelihood.with_row_values(table.row_values)


# Models


def starting_models(
    settings: FitSettings,
    *,
    recipe: Recipe,
    table: TrainingTable,
    num_inducing: int,
    seed: int,
) -> list[list[Model]]:
    """Return for each kernel one model per likelihood that the objective supports."""
    if isinstance(settings.kernel, Kernel):
        check_kernel(settings.kernel, table.X.shape[1])
        remedy = "Set ard_num_dims of the kernel itself."
        got = repr(settings.ard)
        require(settings.ard == "auto", "ard with a kernel of your own", "'auto'", got, remedy)
    likelihoods = _likelihoods(settings, recipe, table)
    Z = _inducing(settings.inducing, table, num_inducing, seed)
    priors: dict[str, dict[str, Prior]] = {}
    for likelihood in likelihoods.values():
        scale = likelihood.latent_scale
        if scale not in priors:
            latent = rough_latent(likelihood, table.y)
            priors[scale] = _priors(settings, settings.mean_for(scale), table.X, latent)
    return [
        [
            Model(
                with_latents_of(
                    likelihood,
                    SparsePosterior(copy.deepcopy(priors[likelihood.latent_scale][kernel]), Z),
                    table.y,
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


def _inducing(inducing: Any, table: TrainingTable, number: int, seed: int) -> Float[Tensor, "m d"]:
    """Return scaled inducing inputs, chosen by a method or given in the units of X."""
    X = table.X
    if isinstance(inducing, str):
        generator = torch.Generator().manual_seed(seed)
        chosen = choose_inducing(X, number, cast(InducingName, inducing), generator)
        return torch.round(chosen * GRID) / GRID
    imputation = table.scalings.imputation
    d = X.shape[1] if imputation is None else len(imputation.medians)
    name = "inducing of fit"
    allowed = f"finite, of shape (m, {d}), in the units of X"
    with explained(f"{name} must be {allowed}"):
        Z: np.ndarray = check_array(inducing, dtype=np.float64, input_name="inducing")
    require(Z.shape[1] == d, name, allowed, f"shape {Z.shape}")
    return torch.as_tensor(table.scalings.scaled_inputs(Z)).to(X)


def _priors(
    settings: FitSettings, mean: MeanName, X: Float[Tensor, "n d"], latent: Targets | None
) -> dict[str, Prior]:
    """Return the prior of the user's kernel, or of a named one without and with ARD."""
    kernel = settings.kernel
    if isinstance(kernel, Kernel):
        function: Mean = ConstantMean() if mean == "constant" else ZeroMean()
        if isinstance(function, ConstantMean) and latent is not None:
            function.constant = latent.mean()
        prior = Prior(copy.deepcopy(kernel), function, dtype=X.dtype)
        return {type(kernel).__name__: prior.to(X.device)}
    names = _KERNELS if kernel == "auto" else (cast(KernelName, kernel),)
    # Of two that validation cannot tell apart, the first is taken.
    many = len(X) >= _ROWS_FOR_ARD * X.shape[-1]
    both = settings.ard == "auto" and X.shape[-1] > 1
    choices = (many, not many) if both else (settings.ard is True,)
    return {
        f"{name} ARD" if ard else name: Prior.from_data(X, latent, kernel=name, ard=ard, mean=mean)
        for name in names
        for ard in choices
    }


def check_kernel(kernel: Kernel, d: int) -> None:
    """Raise if a kernel or a part of it has a batch shape or another number of features."""
    name = f"the kernel {type(kernel).__name__}"
    shape = tuple(kernel.batch_shape)
    remedy = "Leave batch_shape out: an estimator is one model."
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
