"""Provide scorers for `cross_val_score`, `GridSearchCV` and others: the larger the better.

They accept pipelines and searches, and score the estimator inside.
"""

from collections.abc import Callable
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, column_or_1d

from directgp.errors import UnsupportedError, require
from directgp.estimators.outputs import parts_of
from directgp.estimators.validation import ArrayLike, check_sample_weight, numbers, plain_array

_COVERAGE = 0.9


class Scorer(BaseEstimator):
    """A scorer with metadata routing: `set_score_request(exposure=True)`."""

    score: Callable[..., float]

    def __call__(self, estimator: Any, X: ArrayLike, y: ArrayLike, **given: Any) -> float:
        """Return the score; scikit-learn passes the routed metadata as keywords."""
        return self.score(estimator, X, y, **given)


@final
class NegNLL(Scorer):
    """Mean log density of the targets: `neg_nll`.

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
        trials: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> float:
        """Return minus `nll` of a fitted estimator, a pipeline or a search."""
        model, inputs = _inside(estimator, X, "nll")
        constants = _given(exposure=exposure, trials=trials, noise=noise, upper=upper)
        return -float(model.nll(inputs, y, sample_weight, **constants))


@final
class NegCoverageError(Scorer):
    """Minus the distance between 0.9 and the coverage of 90 % intervals: `neg_coverage_error`."""

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
        """Return minus abs(coverage − 0.9), with the rows weighted by `sample_weight`.

        With several outputs it is the mean over them.
        """
        model, inputs = _inside(estimator, X, "predict_interval")
        constants = _given(exposure=exposure, trials=trials, noise=noise, upper=upper)
        if hasattr(model, "outputs_"):
            arguments = {"X": inputs, "y": y, "sample_weight": sample_weight, **constants}
            parts = parts_of(model, "predict_interval", arguments)
            # An output without a target in these rows has no score.
            asked = [part for part in parts if part.rows is None or part.rows.any()]
            return float(np.mean([self.score(part.model, **part.arguments) for part in asked]))
        target = numbers(column_or_1d(plain_array(y)), "neg_coverage_error")
        check_consistent_length(inputs, target)
        weights = check_sample_weight(sample_weight, target[:, None], "neg_coverage_error")
        lower, upper = model.predict_interval(inputs, _COVERAGE, **constants)
        inside = np.average((lower <= target) & (target <= upper), weights=weights)
        return -abs(float(inside) - _COVERAGE)


neg_nll = NegNLL()
neg_coverage_error = NegCoverageError()

_SCORERS = {"neg_nll": neg_nll, "neg_coverage_error": neg_coverage_error}


def get_scorer(name: str) -> Scorer:
    """Return the scorer of that name, "neg_nll" or "neg_coverage_error"."""
    require(name in _SCORERS, "name of get_scorer", f"one of {sorted(_SCORERS)}", repr(name))
    return _SCORERS[name]


def _given(**row_values: ArrayLike | None) -> dict[str, ArrayLike]:
    """Return the arguments that are not None."""
    return {name: values for name, values in row_values.items() if values is not None}


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
