"""Plot the predictions of a fitted estimator."""

from typing import TYPE_CHECKING, Any

import numpy as np

from directgp.errors import refuse
from directgp.estimators.inputs import EncodedRows
from directgp.estimators.validation import RowValues
from directgp.plots.predictions import plot_curve, plot_predicted_against_actual
from directgp.plots.style import Array, require_matplotlib
from directgp.registry import ROW_CONSTANTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVE_POINTS = 200
"""Points of a predicted curve."""


def plot_numbers(
    model: Any, X: Any, y: Any, coverage: float, row_values: RowValues | None, ax: "Axes | None"
) -> "Axes":
    """Plot mean and intervals along a single feature, else predictions against targets.

    If the likelihood needs a noise variance of each row, which points of a curve do not have,
    predictions are plotted against targets, too. A curve of counts is for an exposure of 1, or for
    one trial; the counts that are drawn are divided by their exposures or trials.
    """
    require_matplotlib()
    who = f"{type(model).__name__}.plot_predictions"
    rows = model.likelihood_.rows
    needs_rows = rows.required and not ROW_CONSTANTS[rows.argument].proportional
    if model.n_features_in_ > 1 or needs_rows or model._coded:
        if y is None:
            reason = "more than one feature"
            if model._coded and model.n_features_in_ == 1:
                reason = "a feature of levels"
            if needs_rows:
                reason = f"a likelihood that needs {rows.argument}"
            refuse(f"y of {who}", f"given with {reason}", "None")
        targets = model._targets(X, y, "plot_predictions")
        constants = {} if row_values is None else {row_values.argument: row_values.values}
        mean = model.predict(X, **constants)
        lower, upper = model._interval(X, coverage, row_values)
        return plot_predicted_against_actual(targets, mean, lower, upper, coverage, ax)
    inputs, grid, name = curve_points(model, X)
    model._scaled_rows(row_values, len(inputs), who)
    data = None
    target = "y"
    exposures = np.ones(1)
    values_of_grid = None
    constants = {}
    if row_values is not None and ROW_CONSTANTS[row_values.argument].proportional:
        target = f"y / {row_values.argument}"
        exposures = np.asarray(row_values.values, dtype=np.float64)
        values_of_grid = RowValues(row_values.argument, np.ones(len(grid)))
        constants = {row_values.argument: values_of_grid.values}
    if y is not None:
        data = inputs, model._targets(X, y, "plot_predictions") / exposures
    rows_of_grid = EncodedRows(grid[:, None])
    mean = model.predict(rows_of_grid, **constants)
    lower, upper = model._interval(rows_of_grid, coverage, values_of_grid)
    return plot_curve(
        grid, mean, lower, upper, coverage, ax=ax, data=data, name=name, target=target
    )


def curve_points(model: Any, X: Any) -> tuple[Array, Array, str]:
    """Return the single feature of X, points across its range, and its name."""
    inputs = model._inputs(X, f"{type(model).__name__}.plot_predictions")[:, 0]
    lower = float(np.nanmin(inputs))
    upper = float(np.nanmax(inputs))
    margin = 0.05 * (upper - lower)
    grid = np.linspace(lower - margin, upper + margin, _CURVE_POINTS)
    return inputs, grid, str(getattr(model, "feature_names_in_", ["x"])[0])
