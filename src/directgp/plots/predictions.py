"""Draw predictions along one input and against the targets."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from directgp.errors import refuse
from directgp.plots.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    SQUARE,
    Array,
    axis_name,
    canvas,
    column,
    draw_cloud,
    finite,
    head_row,
    interval,
    labels,
    shares,
)
from directgp.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AWAY, _JITTER = 0.09, 0.045
"""Distance of the marks of labels from [0, 1], and its random part."""

_FEW, _MANY = 200, 5000
"""Numbers of examples up to which intervals and single points are drawn."""


def plot_curve(
    x: ArrayLike,
    mean: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    coverage: float,
    ax: "Axes | None" = None,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    name: str = "x",
    target: str = "y",
) -> "Axes":
    """Draw the predictive mean and intervals along one input, over the data.

    Parameters
    ----------
    x
        Inputs in any order, shape ``(n,)``.
    mean, lower, upper
        Mean and ends of the predictive interval at each input; values that are not finite leave
        a gap.
    coverage
        Probability of the intervals.
    ax
        Axes to draw on; a new figure unless given.
    data
        Inputs and targets of examples.
    name, target
        Names of the input and of what is predicted.
    """
    inputs = finite(x, "x")
    centre = column(mean, "mean", len(inputs))
    low, high = interval(lower, upper, coverage, len(inputs))
    if data is not None:
        x_data = finite(data[0], "x of the data")
        y_data = finite(data[1], "y of the data", len(x_data))
    ax = canvas(ax)
    if data is not None:
        draw_cloud(ax, x_data, y_data, INK, "data")
    order = np.argsort(inputs, kind="stable")
    ax.fill_between(
        inputs[order],
        low[order],
        high[order],
        color=BLUE,
        alpha=0.22,
        linewidth=0,
        label=f"{percent(coverage)} interval",
    )
    ax.plot(inputs[order], centre[order], color=BLUE, linewidth=1.8, label="mean")
    ax.margins(x=0.01)
    ax.set(xlabel=axis_name(name), ylabel=axis_name(target, 32))
    head_row(ax)
    return ax


def plot_label_curve(
    x: ArrayLike,
    probability: ArrayLike,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    ax: "Axes | None" = None,
    name: str = "x",
    label: str = "1",
) -> "Axes":
    """Draw the probability of a class along one input; labels are marks below 0 and above 1.

    Parameters
    ----------
    x
        Inputs in any order, shape ``(n,)``.
    probability
        Probability of the class at each of them.
    data
        Inputs and labels 0 and 1 of examples.
    ax
        Axes to draw on; a new figure unless given.
    name, label
        Names of the input and of the class.
    """
    inputs = finite(x, "x")
    p = shares(probability, "probability", len(inputs))
    marks = None if data is None else _marks(*data)
    ax = canvas(ax)
    if marks is not None:
        draw_cloud(ax, *marks, INK)
    order = np.argsort(inputs, kind="stable")
    ax.axhline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    ax.plot(inputs[order], p[order], color=BLUE, linewidth=1.8)
    ax.margins(x=0.02)
    edge = 0.03 if data is None else _AWAY + 2 * _JITTER
    ax.set(ylim=(-edge, 1 + edge), yticks=np.linspace(0, 1, 6))
    ax.set(xlabel=axis_name(name), ylabel=axis_name(f"P({label})", 32))
    return ax


def _marks(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    inputs = finite(x, "x of the data")
    ones = labels(y, "y of the data", len(inputs))
    jitter = np.random.default_rng(0).uniform(-_JITTER, _JITTER, len(inputs))
    return inputs, np.where(ones == 1, 1 + _AWAY, -_AWAY) + jitter


def plot_predicted_against_actual(
    y: ArrayLike,
    predicted: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    coverage: float,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw predictions against the targets, and give the share of targets inside their intervals.

    Up to 200 examples have their intervals drawn; more than 5000 are shown by their density.

    Parameters
    ----------
    y, predicted
        Targets and predictions, shape ``(n,)``.
    lower, upper
        Ends of the predictive intervals.
    coverage
        Probability of the intervals.
    ax
        Axes to draw on; a new figure unless given.
    """
    targets = finite(y, "y")
    n = len(targets)
    centre = finite(predicted, "predicted", n)
    low, high = interval(lower, upper, coverage, n)
    ax = canvas(ax, SQUARE)
    covered = (low <= targets) & (targets <= high)
    note = f"{percent(coverage)} intervals cover {percent(covered.mean(), 1)} of {n}"
    start, end = _limits(targets, centre, low, high)
    ax.set(xlim=(start, end), ylim=(start, end), xlabel="actual", ylabel="predicted")
    if n > _MANY:
        draw_diagonal(ax, start, end)
        _draw_density(ax, targets, centre, (start, end, start, end))
        head_row(ax, note)
        return ax
    draw_covered(ax, targets, centre, covered, names=(note, "" if covered.all() else "missed"))
    draw_diagonal(ax, start, end)
    if n <= _FEW:
        for mask, color in ((covered, BLUE), (~covered, ORANGE)):
            ends = np.clip(low[mask], start, end), np.clip(high[mask], start, end)
            ax.vlines(targets[mask], *ends, color=color, alpha=0.4, linewidth=1.0)
    head_row(ax)
    return ax


def draw_covered(
    ax: "Axes",
    actual: Array,
    predicted: Array,
    covered: NDArray[np.bool_],
    colors: tuple[str, str] = (BLUE, ORANGE),
    names: tuple[str, str] = ("", ""),
) -> None:
    """Draw predictions against targets, those inside and those outside their interval."""
    for mask, color, name in zip((covered, ~covered), colors, names, strict=True):
        draw_cloud(ax, actual[mask], predicted[mask], color, name, among=len(actual))


def draw_diagonal(ax: "Axes", start: float, end: float) -> None:
    """Draw the line of predictions that equal the target."""
    ax.plot([start, end], [start, end], color=GREY, linewidth=1.0, linestyle="--", zorder=2.5)


def _limits(targets: Array, centre: Array, low: Array, high: Array) -> tuple[float, float]:
    """Return the limits of both axes: all points, and intervals unless they are much longer."""
    middle = np.concatenate([targets, centre])
    start, end = float(middle.min()), float(middle.max())
    reach = 0.5 * (end - start) or max(0.05 * abs(end), 0.5)
    if len(targets) <= _FEW:
        start = max(start - reach, min(start, float(np.min(low))))
        end = min(end + reach, max(end, float(np.max(high))))
    return start - 0.08 * reach, end + 0.08 * reach


def _draw_density(
    ax: "Axes", x: Array, y: Array, extent: tuple[float, float, float, float]
) -> None:
    from matplotlib.colors import LogNorm

    # `vmin` is below one, so that a single example is visible.
    norm = LogNorm(vmin=0.2)
    ax.hexbin(x, y, gridsize=45, extent=extent, mincnt=1, norm=norm, cmap="Blues", linewidths=0.1)


_CURVE_POINTS = 200
"""Points of a predicted curve."""


def plot_numbers(
    model: Any,
    X: Any,
    y: Any,
    coverage: float,
    exposure: Any,
    ax: "Axes | None",
) -> "Axes":
    """Plot mean and intervals along a single feature, else predictions against targets.

    A curve is for an exposure of 1, and counts are divided by theirs.
    """
    who = f"{type(model).__name__}.plot_predictions"
    given = {} if exposure is None else {"exposure": exposure}
    if model.n_features_in_ > 1:
        if y is None:
            refuse(f"y of {who}", "given with more than one feature", "None")
        targets = model._targets(X, y, "plot_predictions")
        mean, (lower, upper) = model.predict(X, **given), model._interval(X, coverage, exposure)
        return plot_predicted_against_actual(targets, mean, lower, upper, coverage, ax)
    inputs, grid, name = curve_points(model, X)
    exposures, data = model._exposure(exposure, len(inputs), who), None
    if y is not None:
        targets = model._targets(X, y, "plot_predictions")
        data = inputs, targets / (1.0 if exposures is None else exposures)
    with without_names():
        mean, (lower, upper) = (
            model.predict(grid[:, None]),
            model._interval(grid[:, None], coverage),
        )
    target = "y" if exposures is None else "y / exposure"
    return plot_curve(grid, mean, lower, upper, coverage, ax, data, name, target)


def curve_points(model: Any, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """Return the single feature of X, points across its range, and its name."""
    inputs = model._inputs(X, f"{type(model).__name__}.plot_predictions")[:, 0]
    lower, upper = float(inputs.min()), float(inputs.max())
    margin = 0.05 * (upper - lower)
    grid = np.linspace(lower - margin, upper + margin, _CURVE_POINTS)
    return inputs, grid, str(getattr(model, "feature_names_in_", ["x"])[0])


@contextmanager
def without_names() -> Iterator[None]:
    """Ignore the warning that the points of a curve have no feature names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        yield
