"""Make the starting models of a fit: likelihoods, inducing inputs and priors to compare."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import cast, final

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
from directgp.estimators.kernel_expressions import column_facts, of_all_columns
from directgp.estimators.preprocessing import GRID, Column, TrainingTable
from directgp.estimators.settings import FitSettings
from directgp.estimators.validation import explained
from directgp.integration.contract import has
from directgp.kernels import Expression
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
from directgp.posteriors.inducing import InducingName, choose_inducing
from directgp.posteriors.prior import MeanName, Prior
from directgp.posteriors.sparse import SparsePosterior, most_uncertain
from directgp.race.candidates import Candidate, Choices
from directgp.race.race import EFFORTS
from directgp.race.structure import StructureSearch, rough_split
from directgp.registry import LIKELIHOODS, KernelName, Task, likelihoods_of
from directgp.training.data import Data, Model
from directgp.training.run import Recipe
from directgp.training.validation import Split

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
    return usable | _changing_noise(settings, recipe, table, list(usable.values()))


def _changing_noise(
    settings: FitSettings, recipe: Recipe, table: TrainingTable, usable: Sequence[Likelihood]
) -> dict[str, Likelihood]:
    """Return the likelihood of noise that depends on X, where "auto" may take it."""
    # Likelihoods with f on another scale have noise that depends on the mean already.
    plain = has(usable[0], GaussianPredictive) and not any(each.latent_scale for each in usable)
    # The kernel of a user may be for a single function.
    open_choice = settings.likelihood == "auto" and isinstance(settings.kernel, str)
    by_density = recipe.point_loss().validation_loss().log_density
    if not (plain and open_choice and by_density) or table.row_argument is not None:
        return {}
    (name,) = (row.name for row in LIKELIHOODS.values() if row.auto_for == "changing noise")
    likelihood = named_likelihood(name, table.y)
    try:
        recipe.check(likelihood)
    except UnsupportedError:
        return {}
    return {name: likelihood}


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


@final
class Models:
    """Makes the untrained models of candidates, from the rows of a table.

    `columns` are those of the stack, scaled, and `stacked_inputs` adds them to scaled inputs.
    """

    def __init__(
        self,
        settings: FitSettings,
        recipe: Recipe,
        table: TrainingTable,
        seed: int,
        columns: Float[Tensor, "n k"] | None = None,
        stacked_inputs: Callable[[Float[Tensor, "m d"]], Float[Tensor, "m e"]] | None = None,
    ) -> None:
        if isinstance(settings.kernel, Kernel):
            more = 0 if columns is None else columns.shape[1]
            check_kernel(settings.kernel, table.X.shape[1] + more)
            remedy = "Set ard_num_dims of the kernel itself."
            got = repr(settings.ard)
            require(settings.ard == "auto", "ard with a kernel of your own", "'auto'", got, remedy)
        if isinstance(settings.kernel, Expression):
            remedy = "Set ard in its parts."
            got = repr(settings.ard)
            require(settings.ard == "auto", "ard with an expression", "'auto'", got, remedy)
        self._settings = settings
        self._table = table
        self._seed = seed
        self._stacked_inputs = stacked_inputs
        number = 0 if columns is None else columns.shape[1]
        self._columns = {
            stacked: column_facts(
                settings.feature_names,
                settings.column_kinds,
                table.scalings,
                number if stacked else 0,
            )
            for stacked in (False, True)
        }
        self.likelihoods = _likelihoods(settings, recipe, table)
        """Likelihoods that the objective supports, by name, with the row values of the table."""
        self.num_inducing = settings.inducing_number(len(table.X))
        """Number of inducing inputs at the start."""
        self._data = {False: Data(table.X, table.y, table.weights)}
        if columns is not None:
            both = torch.cat([table.X, columns], 1)
            self._data[True] = Data(both, table.y, table.weights)
        self._inputs: dict[tuple[bool, str], Float[Tensor, "m d"]] = {}
        self._structures: dict[str, Prior] = {}
        """Priors of Gaussian models by the text of their kernel, from a search of structures."""
        self._models: dict[tuple[object, ...], Model] = {}

    def data(self, stacked: bool) -> Data:
        """Return the rows as examples, with the columns of the stack or without."""
        return self._data[stacked]

    def inputs(self, scaled: Float[Tensor, "m d"], stacked: bool) -> Float[Tensor, "m e"]:
        """Return scaled inputs of new rows, with the columns of the stack or without."""
        return self._stacked_inputs(scaled) if stacked and self._stacked_inputs else scaled

    def model(self, candidate: Candidate) -> Model:
        """Return the untrained model of a candidate, with the row values of all rows."""
        stacked, kernel, ard = candidate.stacked, candidate.kernel, candidate.ard
        key = stacked, kernel, ard, candidate.likelihood, candidate.own_kernels
        if key not in self._models:
            likelihood = copy.deepcopy(self.likelihoods[candidate.likelihood])
            prior = self._prior(stacked, kernel, ard, likelihood)
            posterior = SparsePosterior(prior, self._inducing(stacked, kernel, prior))
            posterior = with_latents_of(likelihood, posterior, self._table.y)
            if candidate.own_kernels:
                posterior = posterior.with_own_kernels()
            self._models[key] = Model(posterior, likelihood)
        return self._models[key]

    def _prior(self, stacked: bool, kernel: str, ard: bool, likelihood: Likelihood) -> Prior:
        """Return the prior of the user's kernel, or of a named one."""
        X = self.data(stacked).X
        latent = rough_latent(likelihood, self._table.y)
        mean = self._settings.mean_for(likelihood.latent_scale)
        own = self._settings.kernel
        if not isinstance(own, Kernel):
            columns = self._columns[stacked]
            name = cast(KernelName, kernel)
            chosen: KernelName | Expression = name
            structure = self._structures.get(kernel)
            if structure is not None:
                return self._of_structure(structure, likelihood, mean)
            if isinstance(own, Expression):
                chosen = own
            elif any(column.coded for column in columns):
                chosen = of_all_columns(name, ard)
            return Prior.from_data(X, latent, kernel=chosen, ard=ard, mean=mean, columns=columns)
        function: Mean = ConstantMean() if mean == "constant" else ZeroMean()
        if isinstance(function, ConstantMean) and latent is not None:
            function.constant = latent.mean()
        return Prior(copy.deepcopy(own), function, dtype=X.dtype).to(X.device)

    def _of_structure(self, searched: Prior, likelihood: Likelihood, mean: MeanName) -> Prior:
        """Return a prior with the kernel of a search, and its parameters if f has their scale."""
        X = self._data[False].X
        latent = rough_latent(likelihood, self._table.y)
        columns = self._columns[False]
        expression = searched.kernel.expression
        prior = Prior.from_data(X, latent, kernel=expression, mean=mean, columns=columns)
        first = next(iter(self.likelihoods.values()))
        if likelihood.latent_scale == first.latent_scale and latent is not None:
            prior.kernel.load_state_dict(searched.kernel.state_dict())
            with torch.no_grad():
                prior.raw_output_scale.copy_(searched.raw_output_scale)
        return prior

    def search(
        self, parts: Sequence[Split], deadline: float
    ) -> tuple[tuple[str, ...], Sequence[str]]:
        """Choose structures of the kernel by splits of the rows, for candidates without the stack.

        Returns the texts of the kernels, the preferred first, and the decisions in sentences.
        Without kinds of columns there is nothing to choose from.
        """
        if self._settings.kernel != "auto" or self._settings.column_kinds is None:
            return (), ()
        columns = self._columns[False]
        first = next(iter(self.likelihoods.values()))
        search = StructureSearch([rough_split(part, first) for part in parts], columns, deadline)
        names = [column.name for column in columns]
        for trial in search.run():
            prior = trial.results[-1].posterior.prior
            self._structures[repr(trial.expression.named(names))] = prior
        return tuple(self._structures), search.decisions

    def _inducing(self, stacked: bool, kernel: str, prior: Prior) -> Float[Tensor, "m d"]:
        """Return scaled inducing inputs, chosen by a method or given in the units of X."""
        key = stacked, kernel if self._by_prior(stacked) else ""
        if key not in self._inputs:
            self._inputs[key] = self._chosen_inducing(stacked, prior)
        return self._inputs[key]

    def _by_prior(self, stacked: bool) -> bool:
        """Return whether inducing inputs are rows: a mean of codes is the code of no level."""
        coded = any(column.coded for column in self._columns[stacked])
        return coded and self._settings.inducing == "kmeans++"

    def _chosen_inducing(self, stacked: bool, prior: Prior) -> Float[Tensor, "m d"]:
        X = self.data(stacked).X
        inducing = self._settings.inducing
        if isinstance(inducing, str):
            generator = torch.Generator().manual_seed(self._seed)
            method = cast(InducingName, inducing)
            if self._by_prior(stacked):
                return most_uncertain(prior, X, self.num_inducing)
            chosen = choose_inducing(X, self.num_inducing, method, generator)
            return torch.round(chosen * GRID) / GRID
        scalings = self._table.scalings
        imputation = scalings.imputation
        d = self._table.X.shape[1] if imputation is None else len(imputation.medians)
        name = "inducing of fit"
        allowed = f"finite, of shape (m, {d}), in the units of X"
        with explained(f"{name} must be {allowed}"):
            Z: np.ndarray = check_array(inducing, dtype=np.float64, input_name="inducing")
        require(Z.shape[1] == d, name, allowed, f"shape {Z.shape}")
        scaled = torch.as_tensor(scalings.scaled_inputs(Z)).to(X)
        return self.inputs(scaled, stacked)

    def choices(self, modes: Sequence[str], betas: Sequence[float]) -> Choices:
        """Return what the settings leave open."""
        settings, rows = self._settings, len(self._table.X)
        kernel = settings.kernel
        if isinstance(kernel, Kernel):
            kernels: tuple[str, ...] = (type(kernel).__name__,)
        elif isinstance(kernel, Expression):
            kernels = (repr(kernel),)
        else:
            kernels = _kernels(kernel)
        effort = EFFORTS[settings.effort]
        most = min(effort.most_inducing, rows // effort.rows_per_inducing)
        alike = [
            each.num_latent > 1 and not has(each, UnlikeLatents)
            for each in self.likelihoods.values()
        ]
        return Choices(
            kernels=kernels,
            ard=self._ard(),
            likelihoods=tuple(self.likelihoods),
            modes=tuple(modes),
            betas=tuple(betas),
            stacked=settings.stacks(rows) if True in self._data else (False,),
            num_inducing=self.num_inducing,
            most_inducing=most if settings.grows else 0,
            own_kernels=any(alike) and isinstance(kernel, str),
            by_elbo=self._by_elbo(modes),
            conjugate=tuple(
                name
                for name, each in self.likelihoods.items()
                if isinstance(each, ConjugateLikelihood)
            ),
        )

    def _by_elbo(self, modes: Sequence[str]) -> tuple[str, ...]:
        """Return the likelihoods of several that are trained by the ELBO alone, if it is a mode.

        Log loss makes the noise itself uncertain where it may depend on X. Where targets repeat, as
        whole numbers do, the result is a peak at each of them with tails of any width.
        """
        if "elbo" not in modes or len(self.likelihoods) == 1:
            return ()
        kinds = (LIKELIHOODS.get(name) for name in self.likelihoods)
        return tuple(kind.name for kind in kinds if kind and kind.auto_for == "changing noise")

    def _ard(self) -> tuple[bool, ...]:
        """Return whether each feature may have a lengthscale; the first is preferred."""
        rows, d = self._table.X.shape
        if isinstance(self._settings.kernel, Kernel | Expression):
            return (False,)
        many = rows >= _ROWS_FOR_ARD * d
        if self._settings.ard != "auto":
            return (self._settings.ard,)
        if d > 1:
            return many, not many
        # One feature and the columns of a stack do not share a lengthscale.
        return (many and True in self._data,)


def _kernels(kernel: str) -> tuple[str, ...]:
    return _KERNELS if kernel == "auto" else (kernel,)


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
