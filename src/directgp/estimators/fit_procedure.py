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
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, _safe_indexing, check_consistent_length, column_or_1d
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import validate_data
from torch import Tensor

from directgp.errors import refuse, require
from directgp.estimators import messages, validation
from directgp.estimators.column_kinds import check_kinds
from directgp.estimators.fitting import Continuation, Fit, Fitted
from directgp.estimators.inputs import read_inputs
from directgp.estimators.kernel_expressions import is_text, kernel_of
from directgp.estimators.members import Member, set_members
from directgp.estimators.preprocessing import (
    CheckedRows,
    Column,
    Scalings,
    TrainingTable,
    prepare_rows,
)
from directgp.estimators.series import with_validation
from directgp.estimators.settings import (
    CONSTRAINTS,
    DESCRIBED,
    STRUCTURE,
    FitSettings,
    device_of,
    plain_parameters,
)
from directgp.estimators.stacking import Stacking
from directgp.estimators.starting_models import (
    Models,
    candidates,
    check_row_argument,
    needs_fine_targets,
)
from directgp.estimators.validation import ArrayLike, RowValues, ValidationData
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.posteriors.prior import MeanName
from directgp.registry import LOSSES, RULES, Task, likelihoods_of
from directgp.stack import check_stack
from directgp.text import one_line
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

    _term_shares: list[list[float]] | None = None
    """Share of each term of the kernel over training rows, for each latent function."""

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
        combine: Any = "mixture",
        stack: Any = "auto",
        columns: Any = "auto",
        validation: Any = "auto",
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
        self.combine = combine
        self.stack = stack
        self.columns = columns
        self.validation = validation

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
        # `kernel_of` reads the text of an expression.
        text = {"kernel": [str]} if is_text(self.kernel) else {}
        return (
            CONSTRAINTS
            | text
            | {
                "likelihood": [StrOptions({"auto", *likelihoods_of(self._task)}), Likelihood],
                "objective": [StrOptions(set(LOSSES)), PointLoss],
                "rule": [StrOptions({"auto", *RULES}), Rule],
            }
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    @property
    def _feature_names(self) -> tuple[str, ...]:
        """Names of the features, or their numbers."""
        numbers = [f"column {j}" for j in range(self.n_features_in_)]
        return tuple(map(str, getattr(self, "feature_names_in_", numbers)))

    @property
    def _coded(self) -> tuple[int, ...]:
        """Numbers of the columns of codes."""
        kinds = getattr(self, "columns_", None)
        return () if kinds is None else kinds.coded

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

        With `betas`, in falling order, a warm start trains its one member along these β while the
        loss of the validation examples falls; comparisons of objectives use this. The monitors are
        called after every step.
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
        fit: Fit | Continuation
        if warm:
            who = f"{type(self).__name__} with warm_start"
            remedy = "Fit with warm_start=False."
            fit, stacking = self._continued_fit(settings, rows, device, who, remedy, anew=True)
        else:
            fit, stacking = self._new_fit(settings, rows, device, started)
        table = fit.table
        examples = self._validation_examples(validation_data, fit)
        fitted = fit.train(examples)
        result = fitted.result
        self._fit_params = {name: getattr(self, name) for name in DESCRIBED}
        self.scalings_ = table.scalings
        unit = abs(float(table.scalings.targets.scale[0]))
        loss = fit.recipe.point_loss().validation_loss()
        self.beta_path_ = None if fitted.path is None else fitted.path.in_units(unit, loss)
        self._set_fitted(fitted.with_losses(self.beta_path_), stacking)
        self._describe_rows(stacking)
        self.beta_ = result.beta
        self.hyperparameters_ = result.hyperparameters
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
        fit, stacking = self._continued_fit(settings, rows, device, who, "Call fit.")
        fitted = fit.update()
        result = fitted.result
        self._set_fitted(fitted, stacking)
        self._fit_params = {**self._fit_params, "objective": self.objective}
        self.num_rows_ += fit.table.num_rows
        self.num_merged_ += fit.table.num_merged
        self.exposed_ |= row_values is not None
        self.fit_seconds_ = result.seconds
        texts = messages.issue(messages.findings_of_update(self, result, fit.table), result)
        self.findings_ = tuple(dict.fromkeys((*self.findings_, *texts)))

    def _check_parameters(self) -> None:
        self._validate_params()
        check_stack(self.stack, self._task, type(self).__name__)
        check_kinds(self.columns, type(self).__name__)
        kernel_of(self.kernel)
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
        inputs = read_inputs(self, X, who, reset, min_rows, gaps)
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
        if reset and self.columns_ is not None and not counted.all():
            # Levels of rows of weight 0 are unseen.
            rows_of_weight = _safe_indexing(validation.plain_array(X), np.flatnonzero(counted))
            inputs[counted] = read_inputs(self, rows_of_weight, who, reset, min_rows, gaps)
        values = None if values is None else values.take(counted)
        return CheckedRows(inputs[counted], targets[counted], weights[counted], values)

    def _settings(
        self, rows: CheckedRows, betas: tuple[float, ...] = (), monitors: tuple[Monitor, ...] = ()
    ) -> FitSettings:
        """Return the settings of a call: the parameters, and what the rows decide."""
        parameters = plain_parameters(self.get_params(deep=False))
        return FitSettings(
            **parameters | {"kernel": kernel_of(self.kernel)},
            task=self._task,
            feature_names=self._feature_names,
            column_kinds=self.columns_,
            num_classes=self._num_classes,
            candidates=candidates(
                self.likelihood,
                task=self._task,
                row_argument=rows.argument,
                y=rows.y,
                num_classes=self._num_classes,
            ),
            default_mean=self._default_mean,
            class_names=tuple(one_line(str(label)) for label in getattr(self, "classes_", ())),
            betas=betas,
            monitors=monitors,
        )

    def _new_fit(
        self, settings: FitSettings, rows: CheckedRows, device: torch.device, since: float
    ) -> tuple[Fit, Stacking]:
        """Return the scaled rows and the starting models, and the stack, of a fit begun then."""
        regression = settings.task == "regression"
        scalings = Scalings.from_data(
            rows.X,
            rows.y,
            rows.weights,
            inputs=settings.standardize,
            targets=settings.standardize and regression,
            fine=needs_fine_targets(settings.likelihood, settings.candidates, rows.y),
            impute=settings.missing == "impute",
            coded=self._coded,
        )
        # A kernel of the user may depend on the sign of a column.
        named = not isinstance(settings.kernel, Kernel) and isinstance(settings.inducing, str)
        table = prepare_rows(
            rows,
            scalings,
            turn=settings.standardize and named,
            real_valued=regression,
            coded=self._coded,
            dtype=settings.torch_dtype,
            device=device,
        )
        settings = with_validation(settings, table)
        seed = settings.new_seed()
        # A single class has nothing to learn.
        varied = regression or bool(table.y.min() < table.y.max())
        stacked = varied and True in settings.stacks(len(table.X))
        stacking = Stacking.fitted(settings, table, seed) if stacked else Stacking(None, table)
        table = stacking.table
        num_inducing = settings.inducing_number(len(table.X))
        recipe = settings.recipe(num_rows=len(table.X), num_inducing=num_inducing)
        models = Models(settings, recipe, table, seed, stacking.columns, stacking.extended)
        fit = Fit(
            settings=settings, recipe=recipe, table=table, models=models, seed=seed, since=since
        )
        return fit, stacking

    def _continued_fit(
        self,
        settings: FitSettings,
        rows: CheckedRows,
        device: torch.device,
        who: str,
        remedy: str,
        *,
        anew: bool = False,
    ) -> tuple[Continuation, Stacking]:
        """Return the rows with the scaling of the first fit, and copies of the trained members.

        With `anew` the models of the stack are fitted to these rows, which may be those of the
        first fit. Raises `InvalidInputError` if parameters ask for another structure.
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
            coded=self._coded,
            dtype=settings.torch_dtype,
            device=device,
        )
        seed = settings.new_seed()
        stacking = Stacking(self.stack_, table)
        if self.stack_ is not None:
            stacking = Stacking.fitted(settings, table, seed) if anew else stacking.of_new_rows()
        members = [self._member_on(member, table, who) for member in self.members_]
        number = members[0].posterior.num_inducing
        fit = Continuation(
            settings=settings,
            recipe=settings.recipe(num_rows=len(table.X), num_inducing=number),
            table=stacking.table,
            members=members,
            weights=tuple(self.weights_.tolist()),
            columns=stacking.columns,
            seed=seed,
        )
        return fit, stacking

    def _member_on(self, member: Member, table: TrainingTable, who: str) -> Member:
        """Return a copy of a trained member, with the row values of a table."""
        posterior, likelihood = copy.deepcopy((member.posterior, member.likelihood))
        check_row_argument(likelihood, table.row_argument, who)
        likelihood = likelihood.to(table.X).with_row_values(table.row_values)
        return replace(member, posterior=posterior.to(table.X), likelihood=likelihood)

    def _validation_examples(
        self, validation_data: ValidationData | None, fit: Fit | Continuation
    ) -> Given | None:
        """Return the user's validation examples in the units of training."""
        if validation_data is None:
            return None
        who = self._who("fit")
        table = fit.table
        argument = table.row_argument
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
        scalings = table.scalings
        like = table.X

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values).to(like)

        likelihood = None
        if rows.values is not None:
            constants = tensor(scalings.scaled_rows(rows.values))
            likelihood = fit.likelihood.with_row_values(constants)
        inputs = tensor(scalings.scaled_inputs(rows.X))
        return Given(inputs, tensor(scalings.scaled_targets(rows.y)), likelihood)

    @abstractmethod
    def _describe_rows(self, stacking: Stacking) -> None:
        """Set the attributes that describe the fitted model over its training rows."""

    def _set_fitted(self, fitted: Fitted, stacking: Stacking) -> None:
        """Set the trained members and their weights; the heaviest is the model of this name."""
        result = fitted.result
        likelihood = result.likelihood.rows.without(result.likelihood)
        self.training_result_ = replace(result, likelihood=likelihood)
        self.n_iter_ = result.steps
        set_members(self, fitted.members, fitted.weights)
        used = any(member.stacked for member in fitted.members)
        self.stack_ = stacking.stack if used else None


def _same(first: object, second: object) -> bool:
    """Return whether two parameters are equal: arrays by entries, other objects by identity."""
    if first is second:
        return True
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return bool(np.array_equal(np.asarray(first, dtype=object), np.asarray(second, dtype=object)))
