"""What the three estimators share: the constructor, fitting, and the marginals of f."""

import copy
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from directgp.errors import refuse, require
from directgp.estimators import advice
from directgp.estimators.checks import (
    about,
    check_finite_inputs,
    check_parts,
    check_rows_with_weight,
    check_sample_weight,
    checked_levels,
)
from directgp.estimators.facts import facts_of
from directgp.estimators.families import Family
from directgp.estimators.feature_kinds import explain, refuse_times
from directgp.estimators.findings import findings_of_training, issue, still_falling
from directgp.estimators.fitting import Choice, Fitted, fit_model
from directgp.estimators.persistence import save_model
from directgp.estimators.plots import plot_beta_path
from directgp.estimators.sampling import sample_targets
from directgp.estimators.settings import choice_of, device_of, dtype_of, recipe_of
from directgp.estimators.starting_models import (
    ModelSettings,
    auto_inducing,
    check_kernel,
    given_inducing,
    starting_models,
)
from directgp.estimators.state import state_of
from directgp.estimators.summary import summary_text
from directgp.estimators.training_table import Scalings, TrainingTable, training_table
from directgp.estimators.user_types import ArrayLike, ValidationData
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import CountLikelihood, exposed
from directgp.posteriors.prior import MeanName
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive import predictive_cdf, predictive_log_density, predictive_quantiles
from directgp.predictive.checks import check_coverage
from directgp.shapes import Marginals
from directgp.training.candidates import Model
from directgp.training.recipe import Recipe
from directgp.training.result import TrainingResult
from directgp.training.validation import Given

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Column = Float64[np.ndarray, " n"]
Columns = Float64[np.ndarray, "n d"]

_BLOCK_VALUES = 2**21
"""Entries of K_uf that one block of predictions holds, 16 MB in float64."""


class SparseGPEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """A sparse Gaussian process as scikit-learn knows models."""

    _family: ClassVar[Family]
    _scales_targets: ClassVar[bool]
    """Whether `standardize` holds for the targets, too."""

    _default_mean: ClassVar[MeanName]

    def __init__(
        self,
        *,
        objective: Any = "log_loss",
        beta: Any = "auto",
        hyperparameters: Any = "auto",
        likelihood: Any = "auto",
        kernel: Any = "rbf",
        ard: Any = "auto",
        mean: Any = "auto",
        num_inducing: Any = "auto",
        inducing: Any = "kmeans++",
        rule: Any = "auto",
        num_samples: Any = 10,
        optimizer: Any = "auto",
        batch_size: Any = "auto",
        max_iter: Any = None,
        tol: Any = None,
        validation_fraction: Any = "auto",
        standardize: Any = True,
        dtype: Any = "float64",
        device: Any = "auto",
        random_state: Any = None,
        verbose: Any = 0,
        warm_start: Any = False,
    ) -> None:
        self.objective = objective
        self.beta = beta
        self.hyperparameters = hyperparameters
        self.likelihood = likelihood
        self.kernel = kernel
        self.ard = ard
        self.mean = mean
        self.num_inducing = num_inducing
        self.inducing = inducing
        self.rule = rule
        self.num_samples = num_samples
        self.optimizer = optimizer
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.validation_fraction = validation_fraction
        self.standardize = standardize
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    @abstractmethod
    def _encoded(self, y: NDArray[Any], weights: Column | None, who: str, reset: bool) -> Column:
        """The targets as numbers, refused where they cannot be; learns classes where asked."""

    @abstractmethod
    def _latent(self, table: TrainingTable) -> Tensor | None:
        """Rough values of f at the training rows, if the targets give some."""

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
        exposure: ArrayLike | None = None,
        classes_known: bool = False,
    ) -> None:
        """Check everything, train, and only then change what was learnt before."""
        since = time.perf_counter()
        self._validate_params()
        who = f"{type(self).__name__}.fit"
        device = device_of(self.device, who)
        warm = bool(self.warm_start) and hasattr(self, "posterior_")
        inputs, targets, weights = self._checked(
            X, y, sample_weight, who, reset=not warm, classes_known=classes_known
        )
        exposures = self._exposure(exposure, len(inputs), who)
        table = self._training_table(inputs, targets, weights, exposures, device, warm)
        random = check_random_state(self.random_state).randint(2**31 - 1)
        num_inducing = self._number_of_inducing(len(table.X))
        recipe = recipe_of(self.get_params(deep=False), len(table.X), num_inducing)
        models = self._models(recipe, table, num_inducing, random, warm)
        given = self._given(validation_data, table.scalings, exposure is not None, models[0][0])
        generator = torch.Generator(device).manual_seed(random)
        choice = replace(choice_of(self.get_params(deep=False)), warm=warm)
        fitted = self._trained(recipe, choice, models, table, given, generator)
        self._learn(fitted, table)
        self.fit_seconds_ = time.perf_counter() - since
        self._tell(fitted, table, targets)

    def _trained(
        self,
        recipe: Recipe,
        choice: Choice,
        models: list[list[Model]],
        table: TrainingTable,
        given: Given | None,
        generator: torch.Generator,
    ) -> Fitted:
        return fit_model(recipe, choice, models, table, given, generator)

    def _checked(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        who: str,
        *,
        reset: bool,
        least: int = 2,
        classes_known: bool = False,
    ) -> tuple[Columns, Column, Column | None]:
        """Inputs, targets and weights as arrays, of so many rows at least."""
        if y is None:
            # The words for this are scikit-learn's.
            validate_data(self, X, y)
        inputs = self._inputs(X, who, reset=reset, least=least)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(inputs, labels)
        weights = check_sample_weight(sample_weight, inputs, who)
        check_rows_with_weight(weights, least, who)
        learn = reset and not classes_known
        return inputs, self._encoded(labels, weights, who, learn), weights

    def _inputs(self, X: ArrayLike, who: str, *, reset: bool = False, least: int = 1) -> Columns:
        """X as finite float64, with the features that were fitted."""
        refuse_times(X, who)
        try:
            inputs: Columns = validate_data(
                self,
                X,
                reset=reset,
                dtype=np.float64,
                ensure_all_finite=False,
                ensure_min_samples=least,
            )
        except (TypeError, ValueError) as error:
            explain(error, X, who)
        check_finite_inputs(inputs, getattr(self, "feature_names_in_", None), who)
        return inputs

    def _exposure(self, exposure: ArrayLike | None, n: int, who: str) -> Column | None:
        """Only counts have an exposure."""
        return None

    def _training_table(
        self,
        X: Columns,
        y: Column,
        weights: Column | None,
        exposure: Column | None,
        device: torch.device,
        warm: bool,
    ) -> TrainingTable:
        scale = bool(self.standardize)
        own = isinstance(self.kernel, str) and isinstance(self.inducing, str)
        scalings = (
            self.scalings_
            if warm
            else Scalings.from_data(
                X, y, weights, inputs=scale, targets=scale and self._scales_targets
            )
        )
        return training_table(
            X,
            y,
            weights,
            exposure,
            scalings,
            # A kernel of one's own, and a trained one, may know directions.
            turn=scale and own and not warm,
            real_valued=self._scales_targets,
            dtype=dtype_of(self.dtype),
            device=device,
        )

    def _number_of_inducing(self, num_rows: int) -> int:
        if not isinstance(self.inducing, str):
            return len(np.asarray(self.inducing))
        if self.num_inducing == "auto":
            return auto_inducing(num_rows)
        return min(int(self.num_inducing), num_rows)

    def _models(
        self, recipe: Recipe, table: TrainingTable, num_inducing: int, seed: int, warm: bool
    ) -> list[list[Model]]:
        if warm:
            posterior, likelihood = copy.deepcopy((self.posterior_, self.likelihood_))
            likelihood = exposed(likelihood.to(table.X), table.exposure)
            return [[Model(posterior.to(table.X), likelihood, "as before")]]
        d = table.X.shape[1]
        if not isinstance(self.kernel, str):
            check_kernel(self.kernel, d)
            require(
                self.ard == "auto",
                f"ard of {type(self).__name__} with a kernel of your own",
                "'auto'",
                repr(self.ard),
                "Give the kernel itself ard_num_dims.",
            )
        inducing = self.inducing
        if not isinstance(inducing, str):
            Z = given_inducing(inducing, d, f"{type(self).__name__}.fit")
            inducing = torch.as_tensor(table.scalings.inputs.forward(Z)).to(table.X)
        settings = ModelSettings(
            family=self._family,
            likelihood=self.likelihood,
            kernel=self.kernel,
            ard=self.ard,
            mean=self._default_mean if self.mean == "auto" else self.mean,
            num_inducing=num_inducing,
            inducing=inducing,
        )
        random = torch.Generator().manual_seed(seed)
        latent = self._latent(table)
        return starting_models(settings, recipe, table.X, table.y, latent, table.exposure, random)

    def _given(
        self,
        validation_data: ValidationData | None,
        scalings: Scalings,
        has_exposure: bool,
        model: Model,
    ) -> Given | None:
        """Validation examples of the user's own, in the units of training."""
        if validation_data is None:
            return None
        who, wanted = f"{type(self).__name__}.fit", 3 if has_exposure else 2
        what = "(X, y, exposure)" if has_exposure else "(X, y)"
        check_parts(validation_data, wanted, f"validation_data of {who}", what)
        who = f"{who}, validation_data"
        with about(f"{who} cannot be used"):
            X, y, _ = self._checked(validation_data[0], validation_data[1], None, who, reset=False)
        to, likelihood = model.posterior.Z, None
        if has_exposure:
            values = self._exposure(validation_data[2], len(X), who)
            likelihood = exposed(model.likelihood, torch.as_tensor(values).to(to))
        inputs = torch.as_tensor(scalings.inputs.forward(X)).to(to)
        return Given(inputs, torch.as_tensor(scalings.scaled_targets(y)).to(to), likelihood)

    def _learn(self, fitted: Fitted, table: TrainingTable) -> None:
        """Set what was learnt."""
        self._learn_result(fitted.result)
        self.scalings_ = table.scalings
        self.beta_ = fitted.result.beta
        self.hyperparameters_ = fitted.result.hyperparameters
        unit = abs(float(table.scalings.targets.scale[0]))
        self.beta_path_ = None if fitted.path is None else fitted.path.in_units(unit)
        self.num_rows_, self.num_merged_ = table.num_rows, table.num_merged

    def _learn_result(self, result: TrainingResult) -> None:
        """Set the model, and how it was trained."""
        likelihood = result.likelihood
        if isinstance(likelihood, CountLikelihood):
            likelihood = likelihood.without_exposure()
        self.training_result_ = replace(result, likelihood=likelihood)
        self.posterior_: SparsePosterior = result.posterior
        self.likelihood_: Likelihood = likelihood
        self.n_iter_ = result.steps

    def _tell(self, fitted: Fitted, table: TrainingTable, y: Column) -> None:
        """Warn of what a user should know, and remember it for `summary`."""
        names = getattr(self, "feature_names_in_", None)
        found = advice.constant_columns(table.X.double().cpu().numpy(), names)
        found += advice.merged_rows(table.num_merged, table.num_rows)
        if isinstance(self.num_inducing, int | np.integer) and isinstance(self.inducing, str):
            found += advice.too_few_rows(len(table.X), int(self.num_inducing))
        found += self._advice_on_target(y)
        found += findings_of_training(fitted.result, fitted.path, names)
        if fitted.end is not None and not fitted.result.ended:
            found += advice.cut_short(fitted.end.status, fitted.end.reason)
        issue(found)
        unfinished = []
        if still_falling(fitted.result):
            unfinished = advice.not_converged(fitted.result.status, fitted.result.reason)
            issue(unfinished, ConvergenceWarning)
        self.findings_ = (*found, *unfinished)

    def _advice_on_target(self, y: Column) -> list[str]:
        return []

    def _over_blocks(
        self,
        X: ArrayLike,
        who: str,
        compute: Callable[[Likelihood, Marginals, slice], Sequence[Tensor]],
        exposure: ArrayLike | None = None,
    ) -> list[NDArray[np.float64]]:
        """What follows from the marginals of f, a block of rows at a time, then joined."""
        check_is_fitted(self)
        who = f"{type(self).__name__}.{who}"
        inputs = self._inputs(X, who)
        exposures = self._exposure(exposure, len(inputs), who)
        Z = self.posterior_.Z
        size = max(1, _BLOCK_VALUES // len(Z))
        parts = []
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            scaled = torch.as_tensor(self.scalings_.inputs.forward(inputs[rows])).to(Z)
            some = None if exposures is None else torch.as_tensor(exposures[rows]).to(Z)
            with torch.no_grad():
                found = compute(
                    exposed(self.likelihood_, some), self.posterior_.predict(scaled), rows
                )
            parts.append([each.double().cpu().numpy() for each in found])
        return [np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)]

    def _quantiles(
        self, X: ArrayLike, levels: ArrayLike, who: str, exposure: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Quantiles of y, one column a level."""
        wanted = checked_levels(levels, f"{type(self).__name__}.{who}")
        (found,) = self._over_blocks(
            X, who, lambda like, q, _: [predictive_quantiles(like, q, wanted)], exposure
        )
        return self.scalings_.targets.backward(found.T[..., None])[..., 0]

    def _interval(
        self, X: ArrayLike, coverage: float, exposure: ArrayLike | None = None
    ) -> tuple[Column, Column]:
        """The central interval of y, as much probability below as above."""
        check_coverage(f"{type(self).__name__}.predict_interval", coverage)
        tail = 0.5 * (1 - coverage)
        found = self._quantiles(X, [tail, 1 - tail], "predict_interval", exposure)
        return found[:, 0], found[:, 1]

    def _log_density(
        self, X: ArrayLike, y: ArrayLike, who: str, exposure: ArrayLike | None = None
    ) -> Column:
        """log p(y) of each row, in the units of the targets."""
        scaled = self._targets_of(X, y, who)

        def densities(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            wide = Marginals(q.mean.double(), q.variance.double())
            return [predictive_log_density(likelihood, scaled[rows].to(q.mean.device), wide)]

        (found,) = self._over_blocks(X, who, densities, exposure)
        return found - self.scalings_.targets.log_scale

    def _cdf(
        self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None
    ) -> tuple[Column, Column]:
        """P(Y < y) and P(Y ≤ y); the same for real-valued targets."""
        who = "plot_calibration"
        scaled = self._targets_of(X, y, who)

        def both(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            wide = Marginals(q.mean.double(), q.variance.double())
            here = scaled[rows].to(q.mean.device)
            up_to = predictive_cdf(likelihood, here, wide)
            if not isinstance(likelihood, CountLikelihood):
                return [up_to, up_to]
            return [predictive_cdf(likelihood, here - 1, wide), up_to]

        below, up_to = self._over_blocks(X, who, both, exposure)
        return below, up_to

    def _targets_of(self, X: ArrayLike, y: ArrayLike, who: str) -> Tensor:
        """Targets of new rows, in the units of training."""
        check_is_fitted(self)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(X, labels)
        targets = self._encoded(labels, None, f"{type(self).__name__}.{who}", reset=False)
        return torch.as_tensor(self.scalings_.targets.exact(targets[:, None])[:, 0])

    def _sample(
        self, X: ArrayLike, n_samples: int, random_state: Any, exposure: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Draws of y from the joint posterior, one column each."""
        check_is_fitted(self)
        who = f"{type(self).__name__}.sample_y"
        inputs = self._inputs(X, who)
        exposures = self._exposure(exposure, len(inputs), who)
        state = check_random_state(random_state)
        Z = self.posterior_.Z
        generator = torch.Generator(Z.device).manual_seed(int(state.randint(2**31 - 1)))
        scaled = torch.as_tensor(self.scalings_.inputs.forward(inputs)).to(Z)
        f = self.posterior_.sample(scaled, n_samples, generator)
        given = None if exposures is None else torch.as_tensor(exposures).to(Z)
        drawn = sample_targets(exposed(self.likelihood_, given), f, state)
        return self.scalings_.targets.backward(drawn.T[..., None])[..., 0]

    def _nll(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Mean of −log p(y)."""
        densities = self._log_density(X, y, "nll", exposure)
        who = f"{type(self).__name__}.nll"
        weights = check_sample_weight(sample_weight, densities[:, None], who)
        return -float(np.average(densities, weights=weights))

    def predict_latent(self, X: ArrayLike) -> tuple[Column, Column]:
        """Mean and standard deviation of f, without the noise of y.

        For real-valued targets in their units; for labels and counts on the scale of the
        likelihood's link, for an exposure of 1.
        """
        mean, std = self._over_blocks(
            X, "predict_latent", lambda _, q, rows: (q.mean, q.variance.sqrt())
        )
        return self._in_units(mean), self._deviation_in_units(std)

    def summary(self) -> None:
        """Print what was trained, which β and why, noise, length scales and validation losses."""
        check_is_fitted(self)
        print(summary_text(facts_of(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `directgp.load` reads.

        What was at the path before is replaced in one step, or left as it was if that fails. The
        file holds numbers and plain facts, no code.
        """
        check_is_fitted(self)
        save_model(path, state_of(self))

    def plot_beta_path(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the validation loss of every candidate; the chosen one is ringed."""
        check_is_fitted(self)
        path = self.beta_path_
        if path is None or not path.points:
            refuse(
                f"plot_beta_path of {type(self).__name__}",
                "called after a fit that chose β or hyperparameters",
                f"one with beta={self.beta!r} and hyperparameters={self.hyperparameters!r}",
                "Fit with beta='auto'.",
            )
        return plot_beta_path(path.points, path.chosen, path.loss, ax)

    def _in_units(self, values: Column) -> Column:
        """Scaled targets in the units of the user's."""
        return self.scalings_.targets.backward(values[:, None])[:, 0]

    def _deviation_in_units(self, std: Column) -> Column:
        return self.scalings_.targets.backward_deviation(std[:, None])[:, 0]
