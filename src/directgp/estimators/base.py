"""Implement the base class of the three estimators: fit, partial_fit, predict, plot and save."""

import copy
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import (
    Tags,
    check_consistent_length,
    check_random_state,
    column_or_1d,
    estimator_html_repr,
)
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from directgp.errors import NumericalError, refuse, require
from directgp.estimators import messages, validation
from directgp.estimators.explanations import (
    NO_LENGTH_SCALES,
    Explained,
    FeatureRelevance,
    feature_relevance,
    partial_dependence,
)
from directgp.estimators.fitting import (
    Fit,
    Fitted,
    candidates,
    check_row_argument,
    inducing_number,
    needs_fine_targets,
    starting_models,
)
from directgp.estimators.frames import (
    check_shares,
    names_of_numbers,
    predicted_numbers,
    table_like,
)
from directgp.estimators.outputs import columns, over_outputs
from directgp.estimators.preprocessing import Column, Columns, Scalings, TrainingTable, prepare_rows
from directgp.estimators.saving import STRUCTURE, save
from directgp.estimators.settings import CONSTRAINTS, device_of, recipe_of
from directgp.estimators.summary import Summary, summary_of
from directgp.estimators.validation import ArrayLike, RowValues, ValidationData
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import observed_range
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.plots import plot_beta_path, plot_partial_dependence
from directgp.plots.style import require_matplotlib
from directgp.posteriors.prior import MeanName
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive import predictive_cdf, predictive_log_density, predictive_quantiles
from directgp.predictive.moments import check_coverage
from directgp.registry import LOSSES, RULES, Task, likelihoods_of
from directgp.shapes import Marginals
from directgp.training.data import Model
from directgp.training.result import TrainingResult
from directgp.training.validation import Given

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = tuple[Columns, Column, Column | None, RowValues | None]
"""Inputs, targets, weights and row values."""

SomeEstimator = TypeVar("SomeEstimator", bound="SparseGPEstimator")

_BLOCK_VALUES = 2**21
"""Entries of K_uf in one block of predictions, 16 MB in float64."""


@contextmanager
def unchanged_on_error(estimator: object) -> Iterator[None]:
    """Restore the attributes of an estimator if an exception is raised."""
    before = vars(estimator).copy()
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


class SparseGPEstimator(BaseEstimator, ABC):
    """A sparse Gaussian process with the interface of scikit-learn."""

    _doc_link_module = "directgp"
    _doc_link_template = (
        "https://directgp.readthedocs.io/en/stable/api.html#directgp.{estimator_name}"
    )

    _task: ClassVar[Task]
    _default_mean: ClassVar[MeanName] = "constant"

    def __init__(
        self,
        *,
        objective: Any = "log_loss",
        beta: Any = "auto",
        hyperparameters: Any = "auto",
        likelihood: Any = "auto",
        kernel: Any = "auto",
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
        effort: Any = "default",
        time_budget: Any = None,
        n_jobs: Any = None,
        missing: Any = "error",
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
        self.effort = effort
        self.time_budget = time_budget
        self.n_jobs = n_jobs
        self.missing = missing

    @abstractmethod
    def _encoded(self, y: NDArray[Any], weights: Column | None, who: str, reset: bool) -> Column:
        """Return the targets as numbers; with `reset`, learn the classes of labels."""

    @property
    def _num_classes(self) -> int:
        """Number of classes of the labels; 2 for targets that are no labels."""
        return len(getattr(self, "classes_", (0, 1)))

    def _scaled_rows(self, given: RowValues | None, n: int, who: str) -> Tensor | None:
        """Return checked row values of new rows, in the units of training."""
        if given is None:
            return None
        check_row_argument(self.likelihood_, given.argument, who)
        return torch.as_tensor(self.scalings_.scaled_rows(given.checked(n, who), exact=True))

    def _advice_on_target(self, y: Column) -> Iterable[str]:
        """Return warnings about the targets."""
        return ()

    @property
    def _parameter_constraints(self) -> dict[str, list[Any]]:
        return CONSTRAINTS | {
            "likelihood": [StrOptions({"auto", *likelihoods_of(self._task)}), Likelihood],
            "objective": [StrOptions(set(LOSSES)), PointLoss],
            "rule": [StrOptions({"auto", *RULES}), Rule],
        }

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    @property
    def _is_trained(self) -> bool:
        return hasattr(self, "posterior_")

    def _who(self, method: str) -> str:
        """Return the name of a method for error messages."""
        return f"{type(self).__name__}.{method}"

    # Training

    def fit(
        self: SomeEstimator,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> SomeEstimator:
        """Train on a table of features and a column of targets.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Features.
        y : array-like of shape (n,)
            Targets: real numbers, or labels of two classes.
        sample_weight : array-like of shape (n,)
            Weight of each row: 2 counts as two equal rows, 0 as no row.
        validation_data : (X, y)
            Validation rows in place of a part of X; unused if nothing is chosen.
        """
        with unchanged_on_error(self):
            self._fit(X, y, sample_weight, validation_data)
        return self

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None = None,
        row_values: RowValues | None = None,
        classes_known: bool = False,
    ) -> None:
        """Validate the arguments, train, set the fitted attributes, and warn."""
        started = time.perf_counter()
        who = self._who("fit")
        self._check_parameters()
        warm = bool(self.warm_start) and self._is_trained
        rows = self._checked(
            X, y, sample_weight, row_values, who, reset=not warm, classes_known=classes_known
        )
        fit = self._prepared(rows, device_of(self.device, who, len(rows[0])), warm)
        table = fit.table
        fitted = self._trained(fit, self._given(validation_data, fit))
        result, path = fitted.result, fitted.path
        self._set_result(result)
        self._structure = {name: fit.params[name] for name in STRUCTURE}
        self.scalings_ = table.scalings
        self.beta_ = result.beta
        self.hyperparameters_ = result.hyperparameters
        unit = abs(float(table.scalings.targets.scale[0]))
        loss = fit.recipe.point_loss().validation_loss()
        self.beta_path_ = None if path is None else path.in_units(unit, loss)
        self.num_rows_, self.num_merged_ = table.num_rows, table.num_merged
        self.exposed_ = row_values is not None
        self.fit_seconds_ = time.perf_counter() - started
        found = [*messages.findings_of_fit(self, fit, fitted), *self._advice_on_target(rows[1])]
        self.findings_ = messages.issue(found, result, compared=path is not None)

    def _partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        row_values: RowValues | None = None,
    ) -> None:
        """Validate the arguments, update q(u), set the fitted attributes, and warn."""
        who, Z = self._who("partial_fit"), self.posterior_.Z
        self._check_parameters()
        device = Z.device if self.device == "auto" else device_of(self.device, who)
        rows = self._checked(X, y, sample_weight, row_values, who, reset=False, min_rows=1)
        fit = self._prepared(rows, device, True, Z.shape[-2])
        result = fit.update(self.beta_, self.hyperparameters_)
        self._set_result(result)
        self.num_rows_ += fit.table.num_rows
        self.num_merged_ += fit.table.num_merged
        self.exposed_ |= row_values is not None
        self.fit_seconds_ = result.seconds
        found = messages.issue(messages.findings_of_update(self, result, fit.table), result)
        self.findings_ = tuple(dict.fromkeys((*self.findings_, *found)))

    def _check_parameters(self) -> None:
        self._validate_params()
        if self.device != "auto":
            device_of(self.device, self._who("fit"))
        given = self.likelihood
        if isinstance(given, Likelihood) and given.task != self._task:
            remedy = (
                "Use SparseGPRegressor for real numbers, SparseGPClassifier for labels and "
                "SparseGPCountRegressor for counts."
            )
            who, allowed = f"likelihood of {type(self).__name__}", f"one for {self._task}"
            refuse(who, allowed, type(given).__name__, remedy)

    def _checked(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        row_values: RowValues | None,
        who: str,
        *,
        reset: bool,
        min_rows: int = 2,
        classes_known: bool = False,
    ) -> Rows:
        """Return the rows with a positive weight, as validated arrays."""
        if y is None:
            # scikit-learn raises its own error.
            validate_data(self, X, y)
        gaps = self.missing == "impute"
        inputs = validation.finite_inputs(self, X, who, reset, min_rows, gaps)
        labels = column_or_1d(validation.plain_array(y), warn=True)
        check_consistent_length(inputs, labels)
        weights = validation.check_sample_weight(sample_weight, inputs, who, min_rows)
        validation.check_no_gaps(labels, who)
        if weights is not None:
            # The targets of rows of weight 0 need not be valid.
            labels = np.where(weights > 0, labels, labels[np.argmax(weights > 0)])
        targets = self._encoded(labels, weights, who, reset and not classes_known)
        values = None if row_values is None else row_values.checked(len(inputs), who)
        if weights is None:
            return inputs, targets, None, values
        kept = weights > 0
        values = None if values is None else values.take(kept)
        return inputs[kept], targets[kept], weights[kept], values

    def _inputs(self, X: ArrayLike, who: str) -> Columns:
        """Return X as float64; raise if its features are not those of `fit`, or for gaps.

        Gaps are allowed if the model was fitted with ``missing="impute"``.
        """
        return validation.finite_inputs(self, X, who, gaps=self.scalings_.imputation is not None)

    def _prepared(
        self, rows: Rows, device: torch.device, warm: bool, num_inducing: int | None = None
    ) -> Fit:
        """Return the scaled rows, and new models or the trained one for a warm start."""
        X, y, weights, _ = rows
        params = self.get_params(deep=False)
        scale, regression = bool(self.standardize), self._task == "regression"
        argument = rows[3] and rows[3].argument
        names = candidates(self.likelihood, self._task, argument, y, self._num_classes)
        if warm:
            scalings = self.scalings_
        else:
            how = {"inputs": scale, "targets": scale and regression}
            how["fine"] = needs_fine_targets(self.likelihood, names, y)
            scalings = Scalings.from_data(X, y, weights, **how, impute=self.missing == "impute")
        # A kernel of the user, or a trained one, may depend on the sign of a column.
        named = isinstance(self.kernel, str) and isinstance(self.inducing, str)
        table = prepare_rows(
            *rows,
            scalings,
            turn=scale and named and not warm,
            real_valued=regression,
            dtype=getattr(torch, np.dtype(self.dtype).name),
            device=device,
        )
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        number = num_inducing or inducing_number(params, len(table.X))
        recipe = recipe_of(params, len(table.X), number)
        if warm:
            models = [[self._trained_model(params, table, num_inducing is not None)]]
        else:
            mean = self._default_mean if self.mean == "auto" else self.mean
            settings = {**params, "mean": mean, "mean_is_auto": self.mean == "auto"}
            settings |= {"candidates": names, "num_classes": self._num_classes}
            models = starting_models(settings, self._task, recipe, table, number, seed)
        return Fit(params, recipe, table, models, torch.Generator(device).manual_seed(seed), warm)

    def _trained_model(self, params: dict[str, Any], table: TrainingTable, update: bool) -> Model:
        """Return a copy of the trained model; raise if parameters ask for another structure."""
        changed = [name for name in STRUCTURE if not _same(params[name], self._structure[name])]
        got = f"other values of {', '.join(changed)}"
        who, remedy = f"{type(self).__name__} with warm_start", "Fit with warm_start=False."
        if update:
            who, remedy = self._who("partial_fit"), "Call fit."
        allowed = f"those of the last fit, for {', '.join(STRUCTURE)}"
        require(not changed, f"parameters of {who}", allowed, got, remedy)
        posterior, likelihood = copy.deepcopy((self.posterior_, self.likelihood_))
        check_row_argument(likelihood, table.row_argument, who)
        likelihood = likelihood.to(table.X).with_row_values(table.row_values)
        return Model(posterior.to(table.X), likelihood, "as before")

    def _given(self, validation_data: ValidationData | None, fit: Fit) -> Given | None:
        """Return the user's validation examples in the units of training."""
        if validation_data is None:
            return None
        who = self._who("fit")
        argument = fit.table.row_argument
        names = "(X, y)" if argument is None else f"(X, y, {argument})"
        parts = len(validation_data) if isinstance(validation_data, tuple | list) else None
        got = type(validation_data).__name__ if parts is None else f"{parts} parts"
        wanted = 2 if argument is None else 3
        require(parts == wanted, f"validation_data of {who}", f"a tuple {names}", got)
        X, y = validation_data[:2]
        given = None if argument is None else RowValues(argument, validation_data[2])
        who = f"{who}, validation_data"
        with validation.explained(f"{who} cannot be used"):
            inputs, targets, _, values = self._checked(
                X, y, None, given, who, reset=False, min_rows=1
            )
        model, scalings = fit.models[0][0], fit.table.scalings
        to, likelihood = model.posterior.Z, None
        if values is not None:
            rows = torch.as_tensor(scalings.scaled_rows(values)).to(to)
            likelihood = model.likelihood.with_row_values(rows)
        scaled = torch.as_tensor(scalings.scaled_inputs(inputs)).to(to)
        return Given(scaled, torch.as_tensor(scalings.scaled_targets(targets)).to(to), likelihood)

    def _trained(self, fit: Fit, given: Given | None) -> Fitted:
        return fit.train(given)

    def _set_result(self, result: TrainingResult) -> None:
        likelihood = result.likelihood.rows.without(result.likelihood)
        self.training_result_ = replace(result, likelihood=likelihood)
        self.posterior_: SparsePosterior = result.posterior
        self.likelihood_: Likelihood = likelihood
        self.n_iter_ = result.steps

    # Predictions

    @over_outputs(columns)
    def predict_latent(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of f, without the noise of y.

        For real-valued targets in their units; for labels and counts on the scale of the
        likelihood's link, for an exposure of 1. For the likelihoods "gamma" and "log_normal" f is
        on the scale of log y, for "beta" on that of log(y/(1 − y)). With several latent functions,
        such as one for each of three classes, one column each.
        """
        mean, std = self._over_blocks(
            X, "predict_latent", lambda _, q, rows: (q.mean, q.variance.sqrt())
        )
        if mean.ndim == 1:
            return self._latent_in_units(mean, std, 0)
        latents = [
            self._latent_in_units(*each, p) for p, each in enumerate(zip(mean, std, strict=True))
        ]
        means, deviations = (np.stack(each, 1) for each in zip(*latents, strict=True))
        return means, deviations

    def _latent_in_units(self, mean: Column, std: Column, p: int) -> tuple[Column, Column]:
        """Return mean and deviation of a latent in the units of the targets, or on its scale."""
        if p in self.likelihood_.units.log_variances:
            return mean + 2 * self.scalings_.targets.log_scale, std
        if self.likelihood_.latent_scale:
            return mean + self.likelihood_.units.latent_offset, std
        return self._in_units(mean), self._deviation_in_units(std)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Column:
        """Return the log of the predictive density or probability of each y."""
        return self._log_density(X, y, "log_density")

    def nll(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the mean negative log density or probability: the smaller the better."""
        return self._nll(X, y, sample_weight)

    def _over_blocks(
        self,
        X: ArrayLike,
        method: str,
        compute: Callable[[Likelihood, Marginals, slice], Sequence[Tensor]],
        row_values: RowValues | None = None,
    ) -> list[NDArray[np.float64]]:
        """Return functions of the marginals of f in float64, computed in blocks of rows."""
        check_is_fitted(self)
        who = self._who(method)
        inputs = self._inputs(X, who)
        values = self._scaled_rows(row_values, len(inputs), who)
        Z = self.posterior_.Z
        size = max(1, _BLOCK_VALUES // self.posterior_.u_mean.numel())
        parts = []
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            scaled = torch.as_tensor(self.scalings_.scaled_inputs(inputs[rows])).to(Z)
            some = None if values is None else values[rows].to(Z)
            with torch.no_grad():
                q = self.posterior_.predict(scaled)
                wide = Marginals(q.mean.double(), q.variance.double())
                found = compute(self.likelihood_.with_row_values(some), wide, rows)
            parts.append([each.double().cpu().numpy() for each in found])
            for each in parts[-1]:
                undefined = np.isnan(each).any(axis=tuple(range(each.ndim - 1)))
                if undefined.any():
                    raise NumericalError(
                        f"{who} is not defined for row {start + int(undefined.argmax())} of X: the "
                        "distribution of y there is beyond float64. Check that X has the units of "
                        "the training rows, or fit with another likelihood."
                    )
        return [np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)]

    def _quantiles(
        self, X: ArrayLike, levels: ArrayLike, method: str, row_values: RowValues | None = None
    ) -> NDArray[np.float64]:
        """Return quantiles of y, one column a level."""
        wanted = validation.checked_levels(levels, self._who(method))
        (found,) = self._over_blocks(
            X, method, lambda like, q, _: [predictive_quantiles(like, q, wanted)], row_values
        )
        return self._in_units(found.T)

    def _frame(
        self, X: ArrayLike, intervals: Any, quantiles: Any, row_values: RowValues | None
    ) -> Any:
        """Return mean, deviation, intervals and quantiles as a table like X."""
        check_is_fitted(self)
        who = self._who("predict_frame")
        shares = check_shares(intervals, "intervals", who)
        levels = check_shares(quantiles, "quantiles", who)
        names = names_of_numbers(shares, levels)
        require(
            len({*names}) == len(names), f"intervals and quantiles of {who}", "different", names
        )
        table_like(X, {}, who)
        columns = predicted_numbers(self, X, shares, levels, row_values)
        return table_like(X, dict(zip(names, columns, strict=True)), who)

    def _interval(
        self, X: ArrayLike, coverage: float, row_values: RowValues | None = None
    ) -> tuple[Column, Column]:
        """Return the central interval of y, with equal probability below and above."""
        who = self._who("predict_interval")
        check_coverage(who, coverage)
        tail = 0.5 * (1 - coverage)
        require(1 - tail < 1, f"coverage of {who}", "further from 1 than rounding", coverage)
        found = self._quantiles(X, [tail, 1 - tail], "predict_interval", row_values)
        return found[:, 0], found[:, 1]

    def _log_density(
        self, X: ArrayLike, y: ArrayLike, method: str, row_values: RowValues | None = None
    ) -> Column:
        """Return log p(y) of each row, in the units of the targets."""
        scaled = self._scaled_targets(X, y, method)

        def densities(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            return [predictive_log_density(likelihood, scaled[rows].to(q.mean.device), q)]

        (found,) = self._over_blocks(X, method, densities, row_values)
        return found - self.scalings_.targets.log_scale

    def _nll(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        row_values: RowValues | None = None,
    ) -> float:
        who, densities = self._who("nll"), self._log_density(X, y, "nll", row_values)
        weights = validation.check_sample_weight(sample_weight, densities[:, None], who)
        return -float(np.average(densities, weights=weights))

    def _sample(
        self, X: ArrayLike, n_samples: int, random_state: Any, row_values: RowValues | None = None
    ) -> NDArray[np.float64]:
        """Return draws of y from the joint posterior, one column each."""
        check_is_fitted(self)
        who = self._who("sample_y")
        validation.check_whole(n_samples, 1, f"n_samples of {who}")
        inputs = self._inputs(X, who)
        values = self._scaled_rows(row_values, len(inputs), who)
        state = check_random_state(random_state)
        Z = self.posterior_.Z
        generator = torch.Generator(Z.device).manual_seed(int(state.randint(2**31 - 1)))
        scaled = torch.as_tensor(self.scalings_.scaled_inputs(inputs)).to(Z)
        f = self.posterior_.sample(scaled, n_samples, generator)
        given = None if values is None else values.to(Z)
        drawn = self.likelihood_.with_row_values(given).sample(f, state)
        return self._in_units(drawn.T)

    def _targets(self, X: ArrayLike, y: ArrayLike, method: str) -> Column:
        """Return the targets of new rows as numbers."""
        check_is_fitted(self)
        values = column_or_1d(validation.plain_array(y), warn=True)
        check_consistent_length(X, values)
        return self._encoded(values, None, self._who(method), reset=False)

    def _scaled_targets(self, X: ArrayLike, y: ArrayLike, method: str) -> Tensor:
        targets = self._targets(X, y, method)
        return torch.as_tensor(self.scalings_.targets.exact(targets[:, None])[:, 0])

    def _in_units(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.scalings_.targets.backward(values[..., None])[..., 0]

    def _deviation_in_units(self, std: Column) -> Column:
        return self.scalings_.targets.backward_deviation(std[:, None])[:, 0]

    # Explanations

    @property
    def feature_importances_(self) -> Column:
        """Share of each feature in the sum of 1 / lengthscale; needs a lengthscale for each.

        1 / lengthscale is proportional to the slope of f that the prior expects, per standard
        deviation of the feature (per unit of X with ``standardize=False``); 0 for a constant
        column. It does not say how strong an effect is: a linear effect has a long lengthscale,
        however strong it is. See `feature_relevance` for what predictions lose.
        """
        check_is_fitted(self)
        found = Explained.of(self).relevance()
        if found is None:
            raise AttributeError(
                f"{NO_LENGTH_SCALES}, so {type(self).__name__} has no feature_importances_. Fit "
                "with ard=True, or use feature_relevance(X, y)."
            )
        return found

    def feature_relevance(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        n_repeats: int = 5,
        random_state: Any = 0,
    ) -> FeatureRelevance:
        """Return how much the model uses each feature, as a record that prints as a table.

        Parameters
        ----------
        X, y : array-like of shape (n, n_features) and (n,)
            Validation or test rows for the permutation importance, the increase of `nll` when one
            column is shuffled. Each of two columns that are nearly equal may have a small one.
        n_repeats : int
            Shuffles of each column, at least 2. The standard error is over them, not over rows.
        random_state : int, RandomState or None
            Seed of the shuffles.
        """
        return feature_relevance(self, X, y, None, n_repeats, random_state)

    @over_outputs(None)
    def plot_partial_dependence(
        self,
        X: ArrayLike,
        features: str | int | Sequence[str | int] | None = None,
        *,
        ax: "Axes | Sequence[Axes] | None" = None,
        coverage: float = 0.9,
    ) -> "list[Axes]":
        """Plot the mean of y along each feature, averaged over the rows of X; return the axes.

        It is the probability of the second class for labels, and the rate for counts; three or
        more classes have a line for the probability of each, of at most eight classes. The band is
        the central interval, at each value, of the posterior of this average: how well the model
        knows it, not how rows differ. After training for the log loss the posterior may describe a
        part of the noise, too.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows, of which at most 200 (100 for three or more classes) are averaged, a sample with
            a fixed seed. A curve goes from the 5 % to the 95 % quantile of the feature; up to ten
            different values are marks.
        features : name, number, or list of them
            By default the six of the largest `feature_importances_`, or if there are none, those
            whose curves vary most.
        ax : matplotlib axes, or one for each feature
            A new figure by default.
        coverage : float
            Probability of the band.
        """
        require_matplotlib()
        return plot_partial_dependence(partial_dependence(self, X, features, coverage=coverage), ax)

    # Summary, plots and files

    def _pit(self, X: ArrayLike, y: ArrayLike, row_values: RowValues | None = None) -> Column:
        """Return P(Y ≤ y), or for counts a random number from P(Y < y) to it, of a fixed seed."""
        scaled = self._scaled_targets(X, y, "plot_calibration")

        def both(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            low, high = observed_range(likelihood, scaled[rows].to(q.mean.device))
            up_to = predictive_cdf(likelihood, high, q)
            if low is high:
                return [up_to, up_to]
            return [predictive_cdf(likelihood, low, q), up_to]

        below, up_to = self._over_blocks(X, "plot_calibration", both, row_values)
        share = np.random.default_rng(0).uniform(size=len(below))
        return np.asarray(np.clip(below + share * (up_to - below), 0.0, 1.0))

    @over_outputs(None)
    def plot_beta_path(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the validation loss of every candidate; the chosen one is ringed."""
        check_is_fitted(self)
        path = self.beta_path_
        if path is None or not path.points:
            who = f"plot_beta_path of {type(self).__name__}"
            allowed = "called after a fit that chose β or hyperparameters"
            got = f"one with beta={self.beta!r} and hyperparameters={self.hyperparameters!r}"
            refuse(who, allowed, got, "Fit with beta='auto'.")
        return plot_beta_path(path, ax)

    def summary(self) -> Summary:
        """Return the model, the choice of β, noise, lengthscales, validation losses and warnings.

        It is a text, which a prompt and a notebook show; in a program `print` it. Its method
        `to_dict` returns the same as plain values.
        """
        check_is_fitted(self)
        return summary_of(self)

    def _repr_html_inner(self) -> str:
        """Return the diagram of scikit-learn and, once fitted, the summary."""
        diagram: str = estimator_html_repr(self)
        fitted = self._is_trained or "outputs_" in vars(self)
        return f"{diagram}{summary_of(self)._repr_html_()}" if fitted else diagram

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        found: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return found | ({"text/html": self._repr_html_inner()} if "text/html" in found else {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `directgp.load` reads.

        An existing file is replaced atomically. The file holds numbers and plain values, no code.
        """
        check_is_fitted(self)
        save(self, path)


def _same(one: object, other: object) -> bool:
    """Return whether two parameters are equal: arrays by entries, other objects by identity."""
    if one is other:
        return True
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return bool(np.array_equal(np.asarray(one, dtype=object), np.asarray(other, dtype=object)))
