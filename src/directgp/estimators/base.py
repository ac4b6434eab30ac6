"""What the three estimators share: the constructor, and the checks of what comes in."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data
from torch import Tensor

from directgp.estimators.families import COUNTS, Family
from directgp.estimators.tables.checks import (
    check_finite_inputs,
    check_rows_with_weight,
    check_sample_weight,
    with_stand_ins,
)
from directgp.estimators.tables.feature_kinds import explain, refuse_times
from directgp.estimators.tables.training_table import TrainingTable
from directgp.estimators.user_types import ArrayLike
from directgp.posteriors.prior import MeanName

Column = Float64[np.ndarray, " n"]
Columns = Float64[np.ndarray, "n d"]


class SparseGPEstimator(BaseEstimator, ABC):
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
        if weights is None or self._family is COUNTS:
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
