"""Implement what the three estimators share: fit, predict, update, save."""

import copy
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

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
from directgp.estimators import messages
from directgp.estimators.fitting import (
    Choice,
    Fitted,
    ModelSettings,
    auto_inducing,
    check_kernel,
    fit_model,
    given_inducing,
    starting_models,
)
from directgp.estimators.messages import findings_of_training, issue, still_falling
from directgp.estimators.preprocessing import Scalings, TrainingTable, training_table
from directgp.estimators.settings import choice_of, constraints, device_of, dtype_of, recipe_of
from directgp.estimators.summary import facts_of, summary_text
from directgp.estimators.validation import (
    ArrayLike,
    ValidationData,
    about,
    check_finite_inputs,
    check_parts,
    check_rows_with_weight,
    check_sample_weight,
    check_whole,
    checked_levels,
    explain,
    refuse_times,
    with_stand_ins,
)
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.likelihoods.counts import exposed
from directgp.persistence import ModelState, save_model
from directgp.plots import (
    plot_beta_path,
    plot_curve,
    plot_label_curve,
    plot_pit,
    plot_predicted_against_actual,
    plot_reliability,
)
from directgp.posteriors.prior import MeanName
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive import predictive_cdf, predictive_log_density, predictive_quantiles
from directgp.predictive.moments import check_coverage
from directgp.registry import Task
from directgp.shapes import Marginals
from directgp.training.data import Model
from directgp.training.recipe import Recipe
from directgp.training.result import TrainingResult
from directgp.training.train import update
from directgp.training.trainer import as_elbo
from directgp.training.validation import Given

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from directgp.estimators.classifier import SparseGPClassifier
    from directgp.estimators.count_regressor import SparseGPCountRegressor
    from directgp.estimators.regressor import SparseGPRegressor

    Numeric: TypeAlias = SparseGPRegressor | SparseGPCountRegressor


@contextmanager
def unchanged_on_error(estimator: object) -> Iterator[None]:
    """Take attributes back that were set before something was raised."""
    before = vars(estimator).copy()
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def state_of(model: "TellingEstimator") -> ModelState:
    """Everything that was learnt, and the constructor's parameters."""
    result, scalings = model.training_result_, model.scalings_
    classes = getattr(model, "classes_", None)
    names = getattr(model, "feature_names_in_", None)
    return ModelState(
        estimator=type(model).__name__,
        params=_params(model),
        posterior=model.posterior_,
        likelihood=model.likelihood_,
        arrays={
            "input_shift": scalings.inputs.shift,
            "input_scale": scalings.inputs.scale,
            "target_shift": scalings.targets.shift,
            "target_scale": scalings.targets.scale,
        },
        classes=None if classes is None else classes.tolist(),
        classes_dtype=None if classes is None else classes.dtype.str,
        feature_names=None if names is None else list(map(str, names)),
        stages=result.stages,
        record={
            "inputs_rounded": scalings.inputs.rounded,
            "targets_rounded": scalings.targets.rounded,
            "objective": result.objective,
            "beta": model.beta_,
            "hyperparameters": model.hyperparameters_,
            "path": None if model.beta_path_ is None else model.beta_path_.to_json(),
            "seconds": result.seconds,
            "fit_seconds": model.fit_seconds_,
            "exposed": model.exposed_,
            "threshold": getattr(model, "threshold_", None),
            "num_rows": model.num_rows_,
            "num_merged": model.num_merged_,
            "findings": list(model.findings_),
        },
    )


def _params(model: "TellingEstimator") -> dict[str, Any]:
    """The constructor's parameters; a type by its name, and a table as an array."""
    params: dict[str, Any] = model.get_params(deep=False)
    params["dtype"] = np.dtype(params["dtype"]).name
    if not isinstance(params["inducing"], str):
        params["inducing"] = np.asarray(params["inducing"], dtype=np.float64)
    return params


Column = Float64[np.ndarray, " n"]
Columns = Float64[np.ndarray, "n d"]


class SparseGPEstimator(BaseEstimator, ABC):
    """A sparse Gaussian process as scikit-learn knows models."""

    _task: ClassVar[Task]
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

    @property
    def _parameter_constraints(self) -> dict[str, list[Any]]:
        return constraints(self._task)

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
        labels = with_stand_ins(labels, weights, who)
        targets = self._encoded(labels, weights, who, reset and not classes_known)
        # Counts keep their rows, as the exposure does, until the table is made.
        if weights is None or self._task == "count":
            return inputs, targets, weights
        kept = weights > 0
        return inputs[kept], targets[kept], weights[kept]

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


STRUCTURE = ("kernel", "ard", "mean", "likelihood", "num_inducing", "inducing", "standardize")
"""Parameters that say what the model is."""


class LearningEstimator(SparseGPEstimator):
    """An estimator that is fitted to a table."""

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
        self._check_task()
        warm = bool(self.warm_start) and hasattr(self, "posterior_")
        inputs, targets, weights = self._checked(
            X, y, sample_weight, who, reset=not warm, classes_known=classes_known
        )
        exposures = self._exposure(exposure, len(inputs), who)
        device = device_of(self.device, who, len(inputs))
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
        self.exposed_ = exposure is not None
        self.fit_seconds_ = time.perf_counter() - since
        self._tell(fitted, table, targets)

    def _check_task(self) -> None:
        """Raise `InvalidInputError` if the likelihood is for targets of another kind."""
        if isinstance(self.likelihood, Likelihood):
            require(
                self.likelihood.task == self._task,
                f"likelihood of {type(self).__name__}",
                f"one for {self._task}",
                type(self.likelihood).__name__,
                "Use SparseGPRegressor for real numbers, SparseGPClassifier for labels and "
                "SparseGPCountRegressor for counts.",
            )

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
            self._check_structure()
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
            task=self._task,
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
            X, y, _ = self._checked(
                validation_data[0], validation_data[1], None, who, reset=False, least=1
            )
        to, likelihood = model.posterior.Z, None
        if has_exposure:
            values = self._exposure(validation_data[2], len(X), who)
            likelihood = exposed(model.likelihood, torch.as_tensor(values).to(to))
        inputs = torch.as_tensor(scalings.inputs.forward(X)).to(to)
        return Given(inputs, torch.as_tensor(scalings.scaled_targets(y)).to(to), likelihood)

    def _check_structure(self) -> None:
        """Refuse parameters that a warm start cannot follow."""
        before = self._structure
        changed = [name for name in STRUCTURE if not _same(getattr(self, name), before[name])]
        require(
            not changed,
            f"parameters of {type(self).__name__} with warm_start",
            f"as in the fit before, for {', '.join(STRUCTURE)}",
            f"other values of {', '.join(changed)}",
            "Fit with warm_start=False.",
        )

    def _learn(self, fitted: Fitted, table: TrainingTable) -> None:
        """Set what was learnt."""
        self._learn_result(fitted.result)
        self._structure = {name: getattr(self, name) for name in STRUCTURE}
        self.scalings_ = table.scalings
        self.beta_ = fitted.result.beta
        self.hyperparameters_ = fitted.result.hyperparameters
        unit = abs(float(table.scalings.targets.scale[0]))
        self.beta_path_ = None if fitted.path is None else fitted.path.in_units(unit)
        self.num_rows_, self.num_merged_ = table.num_rows, table.num_merged

    def _learn_result(self, result: TrainingResult) -> None:
        """Set the model, and how it was trained."""
        likelihood = result.likelihood.without_exposure()
        self.training_result_ = replace(result, likelihood=likelihood)
        self.posterior_: SparsePosterior = result.posterior
        self.likelihood_: Likelihood = likelihood
        self.n_iter_ = result.steps

    def _tell(self, fitted: Fitted, table: TrainingTable, y: Column) -> None:
        """Warn of what a user should know, and remember it for `summary`."""
        names = getattr(self, "feature_names_in_", None)
        found = messages.constant_columns(table.X.double().cpu().numpy(), names)
        found += messages.merged_rows(table.num_merged, table.num_rows)
        found += messages.small_weights(table.count, table.num_rows)
        if self.warm_start:
            found += messages.outside_scaling(table.X.double().cpu().numpy(), names)
        if isinstance(self.num_inducing, int | np.integer) and isinstance(self.inducing, str):
            found += messages.too_few_rows(len(table.X), int(self.num_inducing))
        found += self._advice_on_target(y)
        found += findings_of_training(fitted.result, fitted.path, names)
        if fitted.end is not None and not fitted.result.ended:
            found += messages.cut_short(fitted.end.status, fitted.end.reason)
        issue(found)
        unfinished = []
        if still_falling(fitted.result):
            result, compared = fitted.result, fitted.path is not None
            unfinished = messages.not_converged(result.status, result.reason, compared)
            issue(unfinished, ConvergenceWarning)
        self.findings_ = (*found, *unfinished)

    def _advice_on_target(self, y: Column) -> list[str]:
        return []


def _same(one: object, other: object) -> bool:
    """Whether two parameters are equal; arrays by their entries, objects if they are the same."""
    if one is other:
        return True
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return bool(np.array_equal(np.asarray(one, dtype=object), np.asarray(other, dtype=object)))


class UpdatableEstimator(LearningEstimator):
    """An estimator that learns from rows as they come."""

    @property
    def _is_trained(self) -> bool:
        return hasattr(self, "posterior_")

    def _partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        exposure: ArrayLike | None = None,
    ) -> None:
        """Check everything, update q(u), and only then change the model."""
        self._validate_params()
        who = f"{type(self).__name__}.partial_fit"
        here = self.posterior_.Z.device
        device = here if self.device == "auto" else device_of(self.device, who)
        checked = self._checked(X, y, sample_weight, who, reset=False, least=1)
        exposures = self._exposure(exposure, len(checked[0]), who)
        table = self._training_table(*checked, exposures, device, warm=True)
        random = check_random_state(self.random_state).randint(2**31 - 1)
        num_inducing = len(self.posterior_.Z)
        recipe = recipe_of(self.get_params(deep=False), len(table.X), num_inducing)
        ((model,),) = self._models(recipe, table, num_inducing, random, warm=True)
        kept = self.hyperparameters_ == "elbo" and recipe.point_loss().uses_variance(
            model.likelihood
        )
        if kept or _is_of_squares(recipe, model.likelihood):
            recipe, beta = as_elbo(recipe), 1.0
        else:
            beta = self.beta_
        generator = torch.Generator(device).manual_seed(random)
        self._learn_more(updated(recipe, model, table, beta, generator), table)

    def _learn_more(self, result: TrainingResult, table: TrainingTable) -> None:
        """Set what an update has changed, and warn where it was cut off."""
        self._learn_result(result)
        self.num_rows_ += table.num_rows
        self.num_merged_ += table.num_merged
        self.fit_seconds_ = result.seconds
        found = self._advice_on_scaling(table) + messages.cut_short(result.status, result.reason)
        issue(found)
        unfinished = []
        if still_falling(result):
            unfinished = messages.not_converged(result.status, result.reason)
            issue(unfinished, ConvergenceWarning)
        # What is found again in every part is kept once.
        self.findings_ = tuple(dict.fromkeys((*self.findings_, *found, *unfinished)))

    def _advice_on_scaling(self, table: TrainingTable) -> list[str]:
        """Of new rows, where inputs are scaled at all."""
        if not table.scalings.inputs.rounded:
            return []
        names = getattr(self, "feature_names_in_", None)
        return messages.outside_scaling(table.X.double().cpu().numpy(), names)


def _is_of_squares(recipe: Recipe, likelihood: Likelihood) -> bool:
    """Whether the model is the Gaussian one, of β = 1, whose mean is that of square loss."""
    conjugate = isinstance(likelihood, ConjugateLikelihood)
    return conjugate and recipe.point_loss().eliminates == "square_loss"


def updated(
    recipe: Recipe, model: Model, table: TrainingTable, beta: float, generator: torch.Generator
) -> TrainingResult:
    """The model after the rows of a table, all but q(u) as it was."""
    return update(
        model.posterior,
        model.likelihood,
        table.X,
        table.y,
        objective=recipe.objective,
        beta=beta,
        rule=recipe.rule,
        optimizer=recipe.optimizer,
        weights=table.weights,
        batch_size=recipe.batch_size,
        max_steps=recipe.max_steps,
        stopping=recipe.stopping,
        monitors=recipe.monitors,
        generator=generator,
    )


_BLOCK_VALUES = 2**21
"""Entries of K_uf that one block of predictions holds, 16 MB in float64."""


class PredictingEstimator(UpdatableEstimator):
    """An estimator that says how y is distributed."""

    def _over_blocks(
        self,
        X: ArrayLike,
        who: str,
        compute: Callable[[Likelihood, Marginals, slice], Sequence[Tensor]],
        exposure: ArrayLike | None = None,
    ) -> list[NDArray[np.float64]]:
        """What follows from the marginals of f in float64, a block of rows at a time, joined."""
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
                q = self.posterior_.predict(scaled)
                wide = Marginals(q.mean.double(), q.variance.double())
                found = compute(exposed(self.likelihood_, some), wide, rows)
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
        who = f"{type(self).__name__}.predict_interval"
        check_coverage(who, coverage)
        tail = 0.5 * (1 - coverage)
        require(1 - tail < 1, f"coverage of {who}", "further from 1 than rounding", coverage)
        found = self._quantiles(X, [tail, 1 - tail], "predict_interval", exposure)
        return found[:, 0], found[:, 1]

    def _log_density(
        self, X: ArrayLike, y: ArrayLike, who: str, exposure: ArrayLike | None = None
    ) -> Column:
        """log p(y) of each row, in the units of the targets."""
        scaled = self._targets_of(X, y, who)

        def densities(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            return [predictive_log_density(likelihood, scaled[rows].to(q.mean.device), q)]

        (found,) = self._over_blocks(X, who, densities, exposure)
        return found - self.scalings_.targets.log_scale

    def _cdf(
        self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None
    ) -> tuple[Column, Column]:
        """P(Y < y) and P(Y ≤ y); the same for real-valued targets."""
        who = "plot_calibration"
        scaled = self._targets_of(X, y, who)

        def both(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            here = scaled[rows].to(q.mean.device)
            up_to = predictive_cdf(likelihood, here, q)
            if likelihood.task != "count":
                return [up_to, up_to]
            return [predictive_cdf(likelihood, here - 1, q), up_to]

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
        check_whole(n_samples, 1, f"n_samples of {who}")
        inputs = self._inputs(X, who)
        exposures = self._exposure(exposure, len(inputs), who)
        state = check_random_state(random_state)
        Z = self.posterior_.Z
        generator = torch.Generator(Z.device).manual_seed(int(state.randint(2**31 - 1)))
        scaled = torch.as_tensor(self.scalings_.inputs.forward(inputs)).to(Z)
        f = self.posterior_.sample(scaled, n_samples, generator)
        given = None if exposures is None else torch.as_tensor(exposures).to(Z)
        drawn = exposed(self.likelihood_, given).sample(f, state)
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

    def _in_units(self, values: Column) -> Column:
        """Scaled targets in the units of the user's."""
        return self.scalings_.targets.backward(values[:, None])[:, 0]

    def _deviation_in_units(self, std: Column) -> Column:
        return self.scalings_.targets.backward_deviation(std[:, None])[:, 0]


class TellingEstimator(PredictingEstimator):
    """An estimator that can be looked into and kept."""

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


_POINTS = 200
"""Of a curve."""

Grid = Float64[np.ndarray, " points"]


def draw_pit(
    model: "Numeric", X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None, ax: "Axes | None"
) -> "Axes":
    """Histogram of P(Y ≤ y): flat if predictions are calibrated.

    For counts the step of the distribution function at y is filled at random, with a fixed seed.
    """
    below, up_to = model._cdf(X, y, exposure)
    share = np.random.default_rng(0).uniform(size=len(below))
    return plot_pit(np.clip(below + share * (up_to - below), 0.0, 1.0), ax)


def draw_numbers(
    model: "Numeric",
    X: ArrayLike,
    y: ArrayLike | None,
    coverage: float,
    exposure: ArrayLike | None,
    ax: "Axes | None",
) -> "Axes":
    """Mean and intervals along a single feature; else predictions against targets."""
    check_is_fitted(model)
    who = f"{type(model).__name__}.plot_predictions"
    if model.n_features_in_ == 1:
        return _draw_curve(model, X, y, coverage, exposure, ax, who)
    if y is None:
        refuse(f"y of {who}", "given with more than one feature", "None")
    targets = _targets(model, X, y, who)
    found = _centre_and_interval(model, X, coverage, exposure)
    return plot_predicted_against_actual(targets, *found, coverage, ax)


def _draw_curve(
    model: "Numeric",
    X: ArrayLike,
    y: ArrayLike | None,
    coverage: float,
    exposure: ArrayLike | None,
    ax: "Axes | None",
    who: str,
) -> "Axes":
    """Predictions for an exposure of 1; counts are divided by theirs."""
    inputs = model._inputs(X, who)[:, 0]
    exposures = model._exposure(exposure, len(inputs), who)
    grid = _grid(inputs)
    data = None
    if y is not None:
        data = inputs, _targets(model, X, y, who) / (1.0 if exposures is None else exposures)
    with _without_names():
        found = _centre_and_interval(model, grid[:, None], coverage, None)
    target = "y" if exposures is None else "y / exposure"
    return plot_curve(grid, *found, coverage, ax, data, _name(model), target)


def _targets(model: "Numeric | SparseGPClassifier", X: ArrayLike, y: ArrayLike, who: str) -> Column:
    """The targets as numbers, one for each row."""
    values = column_or_1d(y, warn=True)
    check_consistent_length(X, values)
    return model._encoded(values, None, who, reset=False)


@contextmanager
def _without_names() -> Iterator[None]:
    """Points of a curve have no column names, and need none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        yield


def _centre_and_interval(
    model: "Numeric", X: ArrayLike, coverage: float, exposure: ArrayLike | None
) -> tuple[Column, Column, Column]:
    given: dict[str, Any] = {} if exposure is None else {"exposure": exposure}
    mean: Any = model.predict(X, **given)
    return mean, *model._interval(X, coverage, exposure)


def draw_reliability(
    model: "SparseGPClassifier", X: ArrayLike, y: ArrayLike, ax: "Axes | None"
) -> "Axes":
    """Frequency of the second class against its predicted probability."""
    check_is_fitted(model)
    labels = _targets(model, X, y, f"{type(model).__name__}.plot_calibration")
    return plot_reliability(labels, model.predict_proba(X)[:, 1], ax)


def draw_labels(
    model: "SparseGPClassifier", X: ArrayLike, y: ArrayLike | None, ax: "Axes | None"
) -> "Axes":
    """Probability of the second class along a single feature."""
    check_is_fitted(model)
    who = f"{type(model).__name__}.plot_predictions"
    require(
        model.n_features_in_ == 1,
        who,
        "called for a model of one feature",
        f"{model.n_features_in_} features",
        "plot_calibration works for any number.",
    )
    inputs = model._inputs(X, who)[:, 0]
    grid = _grid(inputs)
    data = None if y is None else (inputs, _targets(model, X, y, who))
    with _without_names():
        probability = model.predict_proba(grid[:, None])[:, 1]
    return plot_label_curve(grid, probability, data, ax, _name(model), str(model.classes_[1]))


def _grid(inputs: Column) -> Grid:
    """Points across the inputs, and a little beyond."""
    lower, upper = float(inputs.min()), float(inputs.max())
    margin = 0.05 * (upper - lower)
    return np.linspace(lower - margin, upper + margin, _POINTS)


def _name(model: "Numeric | SparseGPClassifier") -> str:
    return str(getattr(model, "feature_names_in_", ["x"])[0])
