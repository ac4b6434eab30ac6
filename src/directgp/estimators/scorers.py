"""Scorers for `cross_val_score`, `GridSearchCV` and others: the larger the better.

They look through pipelines and searches to the estimator inside.
"""

from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from directgp.errors import UnsupportedError, require
from directgp.estimators.user_types import ArrayLike

_COVERAGE = 0.9


def neg_nll(estimator: Any, X: ArrayLike, y: ArrayLike, **given: Any) -> float:
    """Mean log density of the targets.

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
    model, inputs = _inside(estimator, X, "nll")
    return -float(model.nll(inputs, y, **given))


def coverage_error(estimator: Any, X: ArrayLike, y: ArrayLike, **given: Any) -> float:
    """Minus the distance of the coverage of 90 % intervals from 0.9."""
    model, inputs = _inside(estimator, X, "predict_interval")
    lower, upper = model.predict_interval(inputs, _COVERAGE, **given)
    target = np.asarray(y, dtype=np.float64).ravel()
    return -abs(float(np.mean((lower <= target) & (target <= upper))) - _COVERAGE)


SCORERS = {"neg_nll": neg_nll, "coverage_error": coverage_error}
"""By name."""


def get_scorer(name: str) -> Any:
    """The scorer of that name, "neg_nll" or "coverage_error"."""
    require(name in SCORERS, "name of get_scorer", f"one of {sorted(SCORERS)}", repr(name))
    return SCORERS[name]


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
