"""Draw predictions along one input and against the targets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from directgp.plots.style import (
    BLUE,
    CLASS_LINES,
    GREY,
    INK,
    ORANGE,
    SQUARE,
    Array,
    axis_name,
    canvas,
    draw_cloud,
    head_row,
)
from directgp.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AWAY = 0.09
"""Distance of the marks of labels from [0, 1]."""

_JITTER = 0.045
"""Random part of the distance."""

_FEW = 200
"""Largest number of examples whose intervals are drawn."""

_MANY = 5000
"""Largest number of examples whose points are drawn one by one."""


def plot_curve(
    x: Array,
    mean: Array,
    lower: Array,
    upper: Array,
    coverage: float,
    ax: "Axes | None" = None,
    data: tuple[Array, Array] | None = None,
    name: str = "x",
    target: str = "y",
) -> "Axes":
    """Draw the predictive mean and intervals along one input x, in any order, over the data.

    Values that are not finite leave a gap. `data` has inputs and targets of examples; `name` and
    `target` are the labels of the axes.
    """
    ax = canvas(ax)
    if data is not None:
        draw_cloud(ax, *data, INK, "data")
    order = np.argsort(x, kind="stable")
    band: Any = {"alpha": 0.22, "linewidth": 0, "label": f"{percent(coverage)} interval"}
    ax.fill_between(x[order], lower[order], upper[order], color=BLUE, **band)
    ax.plot(x[order], mean[order], color=BLUE, linewidth=1.8, label="mean")
    ax.margins(x=0.01)
    ax.set(xlabel=axis_name(name), ylabel=axis_name(target, 32))
    head_row(ax)
    return ax


def plot_label_curve(
    x: Array,
    probability: Array,
    data: tuple[Array, Array] | None = None,
    ax: "Axes | None" = None,
    name: str = "x",
    label: str = "1",
    classes: Sequence[str] = (),
) -> "Axes":
    """Draw the probability of a class along one input x, in any order.

    `data` has inputs and labels 0 and 1 of examples, which are marks below 0 and above 1; `name`
    and `label` are the names of the input and of the class. With the names of three or more
    `classes`, the probabilities have a column for each, and labels 0, 1, … are coloured marks above
    1; of more than eight classes, those that vary most are drawn.
    """
    ax = canvas(ax)
    if classes:
        _draw_classes(ax, x, probability, data, classes)
        ax.set(xlabel=axis_name(name), ylabel="probability")
        return ax
    if data is not None:
        inputs, ones = data
        jitter = np.random.default_rng(0).uniform(-_JITTER, _JITTER, len(inputs))
        draw_cloud(ax, inputs, np.where(ones == 1, 1 + _AWAY, -_AWAY) + jitter, INK)
    order = np.argsort(x, kind="stable")
    ax.axhline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    ax.plot(x[order], probability[order], color=BLUE, linewidth=1.8)
    ax.margins(x=0.02)
    edge = 0.03 if data is None else _AWAY + 2 * _JITTER
    ax.set(ylim=(-edge, 1 + edge), yticks=np.linspace(0, 1, 6))
    ax.set(xlabel=axis_name(name), ylabel=axis_name(f"P({label})", 32))
    return ax


def _draw_classes(
    ax: "Axes",
    x: Array,
    probability: Array,
    data: tuple[Array, Array] | None,
    classes: Sequence[str],
) -> None:
    order = np.argsort(x, kind="stable")
    varying = np.argsort(-np.ptp(probability, axis=0), kind="stable")[: len(CLASS_LINES)]
    for k, (color, style) in zip(np.sort(varying).tolist(), CLASS_LINES, strict=False):
        line: Any = {"color": color, "linestyle": style, "linewidth": 1.8}
        ax.plot(x[order], probability[order, k], label=axis_name(classes[k], 24), **line)
        if data is not None:
            of_class = data[0][data[1] == k]
            jitter = np.random.default_rng(k).uniform(-_JITTER, _JITTER, len(of_class))
            draw_cloud(ax, of_class, 1 + _AWAY + jitter, color, among=len(data[0]))
    ax.margins(x=0.02)
    top = 1.03 if data is None else 1 + _AWAY + 2 * _JITTER
    ax.set(ylim=(-0.03, top), yticks=np.linspace(0, 1, 6))
    head_row(ax)


def plot_predicted_against_actual(
    y: Array,
    predicted: Array,
    lower: Array,
    upper: Array,
    coverage: float,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw predictions against the targets, and give the share of targets inside their intervals.

    Up to 200 examples have their intervals drawn; more than 5000 are shown by their density.
    """
    n = len(y)
    ax = canvas(ax, SQUARE)
    covered = (lower <= y) & (y <= upper)
    note = f"{percent(coverage)} intervals cover {percent(covered.mean(), 1)} of {n}"
    start, end = _limits(y, predicted, lower, upper)
    ax.set(xlim=(start, end), ylim=(start, end), xlabel="actual", ylabel="predicted")
    if n > _MANY:
        from matplotlib.colors import LogNorm

        draw_diagonal(ax, start, end)
        # `vmin` is below one, so that a single example is visible.
        density: Any = {"norm": LogNorm(vmin=0.2), "cmap": "Blues", "linewidths": 0.1}
        extent = (start, end, start, end)
        ax.hexbin(y, predicted, gridsize=45, extent=extent, mincnt=1, **density)
        head_row(ax, note)
        return ax
    draw_covered(ax, y, predicted, covered, names=(note, "" if covered.all() else "missed"))
    draw_diagonal(ax, start, end)
    if n <= _FEW:
        for mask, color in ((covered, BLUE), (~covered, ORANGE)):
            ends = np.clip(lower[mask], start, end), np.clip(upper[mask], start, end)
            ax.vlines(y[mask], *ends, color=color, alpha=0.4, linewidth=1.0)
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
    """Draw predictions against targets, inside and outside the intervals."""
    for mask, color, name in zip((covered, ~covered), colors, names, strict=True):
        draw_cloud(ax, actual[mask], predicted[mask], color, name, among=len(actual))


def draw_diagonal(ax: "Axes", start: float, end: float) -> None:
    """Draw the line of predictions that equal the target."""
    ax.plot([start, end], [start, end], color=GREY, linewidth=1.0, linestyle="--", zorder=2.5)


def _limits(targets: Array, centre: Array, low: Array, high: Array) -> tuple[float, float]:
    """Return the limits of both axes: all points, and intervals unless they are much longer."""
    middle = np.concatenate([targets, centre])
    start = float(middle.min())
    end = float(middle.max())
    reach = 0.5 * (end - start) or max(0.05 * abs(end), 0.5)
    if len(targets) <= _FEW:
        start = max(start - reach, min(start, float(np.min(low))))
        end = min(end + reach, max(end, float(np.max(high))))
    return start - 0.08 * reach, end + 0.08 * reach
