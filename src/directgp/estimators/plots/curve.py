"""Predictions along one input."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from directgp.estimators.plots.canvas import (
    BLUE,
    INK,
    axis_name,
    canvas,
    head_row,
    percent,
)
from directgp.estimators.plots.checks import Array, check_coverage, column, finite, interval
from directgp.estimators.plots.cloud import draw_cloud

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """Predictive mean and intervals along one input, over the data.

    Parameters
    ----------
    x
        Inputs in any order, shape ``(n,)``.
    mean, lower, upper
        Mean and ends of the predictive interval at each of them; there is a gap where they are
        not finite.
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
    low, high = interval(lower, upper, len(inputs))
    check_coverage(coverage)
    examples = None if data is None else _examples(*data)
    ax = canvas(ax)
    if examples is not None:
        draw_cloud(ax, *examples, INK, "data")
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


def _examples(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    inputs = finite(x, "x of the data")
    return inputs, finite(y, "y of the data", len(inputs))
