"""Provide scorers for `cross_val_score`, `GridSearchCV` and others: the larger the better.

They accept pipelines and searches, and score the estimator inside.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, final

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, column_or_1d
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.estimators.outputs import calls_of
from directgp.estimators.validation import (
    ArrayLike,
    check_sample_weight,
    numbers,
    plain_array,
    row_values,
)
from directgp.metrics import COVERAGE, central_share

RowConstants = dict[str, ArrayLike]
"""Row values by the name of their argument."""


class Scorer(BaseEstimator, ABC):
    """A scorer with metadata routing: `set_score_request(exposure=True)`."""

    _method: ClassVar[str]
    """Method of the estimator that the score needs."""

    def __call__(self, estimator: Any, X: ArrayLike, y: ArrayLike, **given: Any) -> float:
        """Return the score; scikit-learn passes the routed metadata as keywords."""
        return self.score(estimator, X, y, **given)

    def score(
        self,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> float:
        """Return the score of a fitted estimator, a pipeline or a search."""
        model, inputs = _inside(estimator, X, self._method)
        arguments = {"exposure": exposure, "trials": trials, "noise": noise, "upper": upper}
        constants = {name: values for name, values in arguments.items() if values is not None}
        return self._score(model, inputs, y, sample_weight, constants)

    @abstractmethod
    def _score(
        self, model: Any, X: Any, y: ArrayLike, sample_weight: Any, constants: RowConstants
    ) -> float:
        """Return the score of a fitted estimator, with the row values by name."""


@final
class NegNLL(Scorer):
    """Mean log density of the targets, minus `nll`: `neg_nll`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> from directgp import SparseGPRegressor
    >>> from directgp.estimators import neg_nll
    >>> X = np.linspace(0, 6, 60).reshape(-1, 1)
    >>> y = np.sin(X[:, 0]) + np.random.default_rng(0).normal(scale=0.3, size=60)
    >>> settings = {"likelihood": "gaussian", "kernel": "rbf", "stack": None, "random_state": 0}
    >>> model = SparseGPRegressor(objective="elbo", beta=1.0, **settings)
    >>> len(cross_val_score(model, X, y, scoring=neg_nll, cv=2))
    2
    """

    _method = "nll"

    @override
    def _score(
        self, model: Any, X: Any, y: ArrayLike, sample_weight: Any, constants: RowConstants
    ) -> float:
        return -float(model.nll(X, y, sample_weight, **constants))


@final
class NegCoverageError(Scorer):
    """Minus the distance between 0.9 and the coverage of 90 % intervals: `neg_coverage_error`.

    A count at an end of its interval is covered in part, so that calibrated counts have 90 %. With
    several outputs it is the mean over them.
    """

    _method = "predict_interval"

    @override
    def _score(
        self, model: Any, X: Any, y: ArrayLike, sample_weight: Any, constants: RowConstants
    ) -> float:
        if hasattr(model, "outputs_"):
            arguments = {"X": X, "y": y, "sample_weight": sample_weight, **constants}
            calls = calls_of(model, self._method, arguments)
            scores = [self.score(call.model, **call.arguments) for call in calls if call.has_rows]
            return float(np.mean(scores))
        targets = numbers(column_or_1d(plain_array(y)), "neg_coverage_error")
        check_consistent_length(X, targets)
        weights = check_sample_weight(sample_weight, targets[:, None], "neg_coverage_error")
        if model.likelihood_.task == "count":
            rows = row_values("neg_coverage_error", **constants)
            ends = model._probabilities_below(X, targets, "neg_coverage_error", rows)
            covered = central_share(*map(torch.as_tensor, ends)).numpy()
        else:
            lower, upper = model.predict_interval(X, COVERAGE, **constants)
            covered = (lower <= targets) & (targets <= upper)
        # −|coverage − 0.9|
        return -abs(float(np.average(covered, weights=weights)) - COVERAGE)


neg_nll = NegNLL()
neg_coverage_error = NegCoverageError()

_SCORERS = {"neg_nll": neg_nll, "neg_coverage_error": neg_coverage_error}


def get_scorer(name: str) -> Scorer:
    """Return the scorer of that name, "neg_nll" or "neg_coverage_error"."""
    require(name in _SCORERS, "name of get_scorer", f"one of {sorted(_SCORERS)}", repr(name))
    return _SCORERS[name]


def _inside(estimator: Any, X: ArrayLike, method: str) -> tuple[Any, Any]:
    """Return the estimator with the method inside a pipeline or a search, and its input."""
    if hasattr(estimator, method):
        return estimator, X
    if hasattr(estimator, "best_estimator_"):
        return _inside(estimator.best_estimator_, X, method)
    from sklearn.pipeline import Pipeline  # 50 ms that only scorers need

    if isinstance(estimator, Pipeline):
        before = estimator[:-1]
        return _inside(estimator[-1], before.transform(X) if len(before) else X, method)
    raise UnsupportedError(
        f"The scorer needs an estimator with the method {method}. Got "
        f"{type(estimator).__name__}. Use it with a directgp estimator, or with a Pipeline of one."
    )
