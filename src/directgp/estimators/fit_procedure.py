"""Fit an estimator: check parameters and rows, prepare them, train, set the fitted attributes."""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_consistent_length, column_or_1d
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import validate_data

from directgp.errors import refuse, require
from directgp.estimators import messages, validation
from directgp.estimators.fitting import Fit, Fitted
from directgp.estimators.preprocessing import (
    CheckedRows,
    Column,
    Scalings,
    prepare_rows,
)
from directgp.estimators.settings import (
    CONSTRAINTS,
    DESCRIBED,
    STRUCTURE,
    FitSettings,
    device_of,
    plain_parameters,
)
from directgp.estimators.starting_models import (
    candidates,
    check_row_argument,
    needs_fine_targets,
    starting_models,
)
from directgp.estimators.validation import ArrayLike, RowValues, ValidationData
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.posteriors.prior import MeanName
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import LOSSES, RULES, Task, likelihoods_of
from directgp.training.data import Model
from directgp.training.result import TrainingResult
from directgp.training.run import Monitor
from directgp.training.validation import Given


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


class TrainableEstimator(BaseEstimator, ABC):
    """The constructor parameters of the estimators, and their training."""

    _doc_link_module = "directgp"
    _doc_link_template = (
        "https://directgp.readthedocs.io/en/stable/api.html#directgp.{estimator_name}"
    )

    _task: ClassVar[Task]
    """Kind of the targets."""

    _default_mean: ClassVar[MeanName] = "constant"
    """Prior mean for ``mean="auto"``."""

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
        """Number of classes of the labels; 2 for targets that are not labels."""
        return len(getattr(self, "classes_", (0, 1)))

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

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None = None,
        row_values: RowValues | None = None,
        *,
        classes_known: bool = False,
        betas: tuple[float, ...] = (),
        monitors: tuple[Monitor, ...] = (),
    ) -> None:
        """Validate the arguments, train, set the fitted attributes, and warn.

        With `betas`, in falling order, one model is trained along these β while its objective
        falls, in place of the search; comparisons of objectives use this. The monitors are called
        after every step.
        """
        started = time.perf_counter()
        who = self._who("fit")
        self._check_parameters()
        warm = bool(self.warm_start) and self._is_trained
        rows = self._checked(
            X, y, sample_weight, row_values, who, reset=not warm, classes_known=classes_known
        )
        settings = self._settings(rows, betas, monitors)
        device = device_of(settings.device, who, len(rows.X))
        if warm:
            who = f"{type(self).__name__} with warm_start"
            remedy = "Fit with warm_start=False."
            fit = self._continued_fit(settings, rows, device, who, remedy)
        else:
            fit = self._new_fit(settings, rows, device)
        table = fit.table
        fitted = self._trained(fit, self._validation_examples(validation_data, fit))
        result = fitted.result
        self._set_result(result)
        self._fit_params = {name: getattr(self, name) for name in DESCRIBED}
        self.scalings_ = table.scalings
        self.beta_ = result.beta
        self.hyperparameters_ = result.hyperparameters
        unit = abs(float(table.scalings.targets.scale[0]))
        loss = fit.recipe.point_loss().validation_loss()
        self.beta_path_ = None if fitted.path is None else fitted.path.in_units(unit, loss)
        self.num_rows_ = table.num_rows
        self.num_merged_ = table.num_merged
        self.exposed_ = row_values is not None
        self.fit_seconds_ = time.perf_counter() - started
        texts = [*messages.findings_of_fit(self, fit, fitted), *self._advice_on_target(rows.y)]
        self.findings_ = messages.issue(texts, result, compared=fitted.path is not None)

    def _partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        row_values: RowValues | None = None,
    ) -> None:
        """Validate the arguments, update q(u), set the fitted attributes, and warn."""
        who = self._who("partial_fit")
        self._check_parameters()
        rows = self._checked(X, y, sample_weight, row_values, who, reset=False, min_rows=1)
        settings = self._settings(rows)
        device = self.posterior_.Z.device
        if settings.device != "auto":
            device = device_of(settings.device, who)
        fit = self._continued_fit(settings, rows, device, who, "Call fit.")
        result = fit.update(self.beta_, self.hyperparameters_)
        self._set_result(result)
        self._fit_params = {**self._fit_params, "objective": self.objective}
        self.num_rows_ += fit.table.num_rows
        self.num_merged_ += fit.table.num_merged
        self.exposed_ |= row_values is not None
        self.fit_seconds_ = result.seconds
        texts = messages.issue(messages.findings_of_update(self, result, fit.table), result)
        self.findings_ = tuple(dict.fromkeys((*self.findings_, *texts)))

    def _check_parameters(self) -> None:
        self._validate_params()
        if self.device != "auto":
            device_of(self.device, self._who("fit"))
        likelihood = self.likelihood
        if isinstance(likelihood, Likelihood) and likelihood.task != self._task:
            remedy = (
                "Use SparseGPRegressor for real numbers, SparseGPClassifier for labels and "
                "SparseGPCountRegressor for counts."
            )
            who = f"likelihood of {type(self).__name__}"
            refuse(who, f"one for {self._task}", type(likelihood).__name__, remedy)

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
    ) -> CheckedRows:
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
            return CheckedRows(inputs, targets, None, values)
        counted = weights > 0
        values = None if values is None else values.take(counted)
        return CheckedRows(inputs[counted], targets[counted], weights[counted], values)

    def _settings(
        self, rows: CheckedRows, betas: tuple[float, ...] = (), monitors: tuple[Monitor, ...] = ()
    ) -> FitSettings:
        """Return the settings of a call: the parameters, and what the rows decide."""
        return FitSettings(
            **plain_parameters(self.get_params(deep=False)),
            task=self._task,
            num_classes=self._num_classes,
            candidates=candidates(
                self.likelihood,
                task=self._task,
                row_argument=rows.argument,
                y=rows.y,
                num_classes=self._num_classes,
            ),
            default_mean=self._default_mean,
            betas=betas,
            monitors=monitors,
        )

    def _new_fit(self, settings: FitSettings, rows: CheckedRows, device: torch.device) -> Fit:
        """Return the scaled rows and the starting models."""
        regression = settings.task == "regression"
        scalings = Scalings.from_data(
            rows.X,
            rows.y,
            rows.weights,
            inputs=settings.standardize,
            targets=settings.standardize and regression,
            fine=needs_fine_targets(settings.likelihood, settings.candidates, rows.y),
            impute=settings.missing == "impute",
        )
        # A kernel of the user may depend on the sign of a column.
        named = isinstance(settings.kernel, str) and isinstance(settings.inducing, str)
        table = prepare_rows(
            rows,
            scalings,
            turn=settings.standardize and named,
            real_valued=regression,
            dtype=settings.torch_dtype,
            device=device,
        )
        seed = settings.new_seed()
        num_inducing = settings.inducing_number(len(table.X))
        recipe = settings.recipe(num_rows=len(table.X), num_inducing=num_inducing)
        models = starting_models(
            settings, recipe=recipe, table=table, num_inducing=num_inducing, seed=seed
        )
        return Fit(
            settings=settings,
            recipe=recipe,
            table=table,
            models=models,
            generator=torch.Generator(device).manual_seed(seed),
            warm=False,
        )

    def _continued_fit(
        self,
        settings: FitSettings,
        rows: CheckedRows,
        device: torch.device,
        who: str,
        remedy: str,
    ) -> Fit:
        """Return the rows with the scaling of the first fit, and a copy of the trained model.

        Raises `InvalidInputError` if parameters ask for another structure.
        """
        changed = [
            name for name in STRUCTURE if not _same(getattr(self, name), self._fit_params[name])
        ]
        got = f"other values of {', '.join(changed)}"
        allowed = f"those of the last fit, for {', '.join(STRUCTURE)}"
        require(not changed, f"parameters of {who}", allowed, got, remedy)
        table = prepare_rows(
            rows,
            self.scalings_,
            turn=False,
            real_valued=settings.task == "regression",
            dtype=settings.torch_dtype,
            device=device,
        )
        posterior, likelihood = copy.deepcopy((self.posterior_, self.likelihood_))
        check_row_argument(likelihood, table.row_argument, who)
        likelihood = likelihood.to(table.X).with_row_values(table.row_values)
        model = Model(posterior.to(table.X), likelihood, "as before")
        recipe = settings.recipe(num_rows=len(table.X), num_inducing=posterior.num_inducing)
        return Fit(
            settings=settings,
            recipe=recipe,
            table=table,
            models=[[model]],
            generator=torch.Generator(device).manual_seed(settings.new_seed()),
            warm=True,
        )

    def _validation_examples(
        self, validation_data: ValidationData | None, fit: Fit
    ) -> Given | None:
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
        values = None if argument is None else RowValues(argument, validation_data[2])
        who = f"{who}, validation_data"
        with validation.explained(f"{who} cannot be used"):
            rows = self._checked(X, y, None, values, who, reset=False, min_rows=1)
        model = fit.models[0][0]
        scalings = fit.table.scalings
        Z = model.posterior.Z
        likelihood = None
        if rows.values is not None:
            constants = torch.as_tensor(scalings.scaled_rows(rows.values)).to(Z)
            likelihood = model.likelihood.with_row_values(constants)
        inputs = torch.as_tensor(scalings.scaled_inputs(rows.X)).to(Z)
        targets = torch.as_tensor(scalings.scaled_targets(rows.y)).to(Z)
        return Given(inputs, targets, likelihood)

    def _trained(self, fit: Fit, examples: Given | None) -> Fitted:
        """Train the prepared models."""
        return fit.train(examples)

    def _set_result(self, result: TrainingResult) -> None:
        likelihood = result.likelihood.rows.without(result.likelihood)
        self.training_result_ = replace(result, likelihood=likelihood)
        self.posterior_: SparsePosterior = result.posterior
        self.likelihood_: Likelihood = likelihood
        self.n_iter_ = result.steps


def _same(first: object, second: object) -> bool:
    """Return whether two parameters are equal: arrays by entries, other objects by identity."""
    if first is second:
        return True
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return bool(np.array_equal(np.asarray(first, dtype=object), np.asarray(second, dtype=object)))
