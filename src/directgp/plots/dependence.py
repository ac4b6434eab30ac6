"""Draw partial dependence: how the mean of y, or its probabilities, change along each feature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from directgp.errors import require
from directgp.plots.style import (
    CLASS_LINES,
    Array,
    axis_name,
    canvas,
    head_row,
    require_matplotlib,
    widened,
)
from directgp.text import percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
"""Panels side by side."""

_TICKS = 5
"""Values of a feature up to which each has a tick."""

_HALF = 0.3
"""Half the width of the mark of a value, as a share of the least distance of two values."""

_LETTERS = 24
"""Letters of a line of a legend."""

_WIDTH, _HEIGHT = 3.0, 2.5
"""Size of a panel, in inches."""


@final
@dataclass(frozen=True, eq=False)
class PartialDependence:
    """The mean of y along one feature, averaged over rows."""

    feature: str
    target: str
    """Names of the feature and of the mean of y, for the axes."""

    grid: Array
    mean: Array
    lower: Array
    upper: Array
    """Values of the feature, of shape (g,); the averaged mean of y at each, and an interval of its
    posterior, of shape (g,), or (c, g) for c classes."""

    coverage: float
    discrete: bool = False
    """Probability of the intervals; whether the feature has no other values than the grid."""

    classes: tuple[str, ...] = ()
    """Names of three or more classes, whose probabilities are drawn."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Return columns for a table of any library: feature, value, mean, lower and upper.

        Of several classes, each has its rows, and a column ``class`` its name.
        """
        rows, g = np.atleast_2d(self.mean, self.lower, self.upper), len(self.grid)
        number = max(1, len(self.classes))
        columns = {"feature": [self.feature] * (number * g)}
        if self.classes:
            columns["class"] = [name for name in self.classes for _ in range(g)]
        numbers = {"value": np.tile(self.grid, number)}
        numbers |= zip(("mean", "lower", "upper"), (each.ravel() for each in rows), strict=True)
        return columns | {name: values.tolist() for name, values in numbers.items()}


def main_classes(found: Sequence[PartialDependence]) -> list[PartialDependence]:
    """Return the records with the classes whose probabilities vary most, as many as are drawn."""
    if len(found[0].classes) <= len(CLASS_LINES):
        return [*found]
    ranges = np.max([np.ptp(each.mean, axis=1) for each in found], axis=0)
    kept = np.sort(np.argsort(-ranges, kind="stable")[: len(CLASS_LINES)])
    return [
        replace(
            each,
            classes=tuple(each.classes[k] for k in kept),
            **{name: getattr(each, name)[kept] for name in ("mean", "lower", "upper")},
        )
        for each in found
    ]


def dependence_limits(found: Sequence[PartialDependence]) -> tuple[float, float]:
    """Return a vertical range that holds all of them, so that effects can be compared."""
    low = min(float(np.min([each.mean, each.lower])) for each in found)
    high = max(float(np.max([each.mean, each.upper])) for each in found)
    return widened(low, high)


def draw_partial_dependence(
    ax: "Axes", found: PartialDependence, limits: tuple[float, float]
) -> None:
    """Draw mean and band as a curve, or as a mark at each value of a feature that has few.

    `limits` are those of the vertical axis: `dependence_limits` of all panels.
    """
    canvas(ax)
    curves = zip(*map(np.atleast_2d, (found.mean, found.lower, found.upper)), strict=True)
    names = found.classes or ("average over rows",)
    interval = f"{percent(found.coverage)} posterior interval"
    half = _HALF * (float(np.diff(found.grid).min()) if len(found.grid) > 1 else 1.0)
    for name, (mean, lower, upper), (color, style) in zip(names, curves, CLASS_LINES, strict=False):
        line: Any = {"color": color, "linewidth": 1.8, "label": axis_name(name, _LETTERS)}
        line["linestyle"] = style
        band: Any = {"color": color, "alpha": 0.14 if found.classes else 0.22, "linewidth": 0}
        band |= {} if found.classes else {"label": interval}
        if found.discrete:
            ax.hlines(mean, found.grid - half, found.grid + half, **line)
            ax.bar(found.grid, upper - lower, 2 * half, lower, **band)
        else:
            ax.plot(found.grid, mean, **line)
            ax.fill_between(found.grid, lower, upper, **band)
    ax.margins(x=0.1 if found.discrete else 0.01)
    if found.discrete and len(found.grid) <= _TICKS:
        ax.set_xticks(found.grid)
    ax.set_xlabel(axis_name(found.feature, 24))
    # `auto` stays as it was, so that a later plot on the same axes finds its own limits.
    ax.set_ylim(*limits, auto=None)


def plot_partial_dependence(
    found: Sequence[PartialDependence], ax: "Axes | Sequence[Axes] | None" = None
) -> "list[Axes]":
    """Draw each feature on axes of its own, given or new, with one vertical range for all.

    Three or more classes have a line each; of more than eight, those that vary most are drawn.
    """
    found = main_classes(found)
    rows = math.ceil(len(found) / _COLUMNS)
    columns = math.ceil(len(found) / rows)
    own = ax is None and len(found) > 1
    if own:
        require_matplotlib()
        from matplotlib import pyplot

        size = columns * _WIDTH, rows * _HEIGHT
        grid: Any = {"sharey": True, "squeeze": False, "layout": "constrained"}
        _, panels = pyplot.subplots(rows, columns, figsize=size, **grid)
        for unused in panels.flat[len(found) :]:
            unused.remove()
        axes = list(panels.flat[: len(found)])
    else:
        axes = [canvas(None)] if ax is None else np.ravel(np.asarray(ax, dtype=object)).tolist()
    allowed = f"one for each of {plural(len(found), 'feature')}"
    require(len(axes) == len(found), "ax of plot_partial_dependence", allowed, len(axes))
    limits = dependence_limits(found)
    for i, (each, here) in enumerate(zip(found, axes, strict=True)):
        draw_partial_dependence(here, each, limits)
        if not own or i % columns == 0:
            here.set_ylabel(axis_name(each.target, 32))
    if own:
        from directgp.plots.rendering import draw_legend

        draw_legend(axes[0].figure, axes)
        return axes
    head_row(axes[0])
    for other in axes[1:]:
        other.set_ylim(axes[0].get_ylim(), auto=None)
    return axes
