"""Pictures of an estimator's predictions on a table."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float64
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from directgp.errors import refuse, require
from directgp.estimators.plots import (
    plot_curve,
    plot_label_curve,
    plot_pit,
    plot_predicted_against_actual,
    plot_reliability,
)
from directgp.estimators.user_types import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from directgp.estimators.classifier import SparseGPClassifier
    from directgp.estimators.count_regressor import SparseGPCountRegressor
    from directgp.estimators.regressor import SparseGPRegressor

    Numeric: TypeAlias = SparseGPRegressor | SparseGPCountRegressor

_POINTS = 200
"""Of a curve."""

Column = Float64[np.ndarray, " n"]
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
