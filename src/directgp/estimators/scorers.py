"""Scorers for `cross_val_score`, `GridSearchCV` and others: the larger the better.

They look through pipelines and searches to the estimator inside.
"""

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length, column_or_1d

from directgp.errors import UnsupportedError, require
from directgp.estimators.validation import (
    ArrayLike,
    check_finite_target,
    check_sample_weight,
    numbers,
)

_COVERAGE = 0.9


class Scorer(BaseEstimator, ABC):
    """A scorer that metadata can be routed to: `set_score_request(exposure=True)`."""

    def __call__(self, estimator: Any, X: ArrayLike, y: ArrayLike, **given: Any) -> float:
        """The score; what is given beside X and y goes to the estimator's method."""
        return self.score(estimator, X, y, **given)

    @abstractmethod
    def score(
        self,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """The score of a fitted estimator, or of one within a pipeline."""


@final
class NegNLL(Scorer):
    """Mean log density of the targets, `neg_nll`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> from directgp import SparseGPRegressor
    >>> from directgp.estimators import neg_nll
    >>> X = np.linspace(0, 6, 60).reshape(-1, 1)
    >>> y = np.sin(X[:, 0]) + np.random.default_rng(0).normal(scale=0.3, size=60)
    >>> model = SparseGPRegressor(objective="elbo", beta=1.0, random_state=0)
    >>> len(cross_val_score(model, X, y, scoring=neg_nll, cv=2))
    2
    """

    def score(
        self,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Minus `nll`."""
        model, inputs = _inside(estimator, X, "nll")
        given = {"sample_weight": sample_weight, "exposure": exposure}
        given = {name: value for name, value in given.items() if value is not None}
        return -float(model.nll(inputs, y, **given))


@final
class NegCoverageError(Scorer):
    """Minus the distance of the coverage of 90 % intervals from 0.9, `neg_coverage_error`."""

    def score(
        self,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Rows count by their weights."""
        model, inputs = _inside(estimator, X, "predict_interval")
        target = numbers(column_or_1d(y), "neg_coverage_error")
        check_finite_target(target, "neg_coverage_error")
        check_consistent_length(inputs, target)
        weights = check_sample_weight(sample_weight, target[:, None], "neg_coverage_error")
        given = {} if exposure is None else {"exposure": exposure}
        lower, upper = model.predict_interval(inputs, _COVERAGE, **given)
        inside = np.average((lower <= target) & (target <= upper), weights=weights)
        return -abs(float(inside) - _COVERAGE)


neg_nll = NegNLL()
neg_coverage_error = NegCoverageError()

_SCORERS = {"neg_nll": neg_nll, "neg_coverage_error": neg_coverage_error}


def get_scorer(name: str) -> Scorer:
    """The scorer of that name, "neg_nll" or "neg_coverage_error"."""
    require(name in _SCORERS, "name of get_scorer", f"one of {sorted(_SCORERS)}", repr(name))
    return _SCORERS[name]


def _inside(estimator: Any, X: ArrayLike, method: str) -> tuple[Any, Any]:
    """The estimator that has the method, and X as it sees it."""
    if hasattr(estimator, method):
        return estimator, X
    if hasattr(estimator, "best_estimator_"):
        return _inside(estimator.best_estimator_, X, method)
    if isinstance(estimator, Pipeline):
        before = estimator[:-1]
        return _inside(estimator[-1], before.transform(X) if len(before) else X, method)
    raise UnsupportedError(
        f"The scorer needs an estimator with the method {method}. Got "
        f"{type(estimator).__name__}. Use it with a directgp estimator, or a Pipeline of one."
    )
