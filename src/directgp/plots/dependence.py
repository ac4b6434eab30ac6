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

_LETTERS_OF_LEVEL = 12
"""Letters of the name of a level at the axis."""

_WIDTH = 3.0
"""Width of a panel, in inches."""

_HEIGHT = 2.5
"""Height of a panel, in inches."""


@final
@dataclass(frozen=True, eq=False)
class PartialDependence:
    """The mean of y along one feature, averaged over rows."""

    feature: str
    """Name of the feature, for the axis."""

    target: str
    """Name of the mean of y, for the axis."""

    grid: Array
    """Values of the feature, of shape (g,)."""

    mean: Array
    """Averaged mean of y at each value, of shape (g,), or (c, g) for c classes."""

    lower: Array
    """Lower end of a posterior interval of the mean, of the same shape."""

    upper: Array
    """Upper end of a posterior interval of the mean, of the same shape."""

    coverage: float
    """Probability of the intervals."""

    discrete: bool = False
    """Whether the grid has all values of the feature."""

    classes: tuple[str, ...] = ()
    """Names of three or more classes, whose probabilities are drawn."""

    levels: tuple[str, ...] = ()
    """Names of the values of the grid, if these are codes of levels."""

    dates: bool = False
    """Whether the grid has dates, as days since 1970."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Return columns for a table of any library: feature, value, mean, lower and upper.

        Of several classes, each has its rows, and a column ``class`` its name. The value of a level
        is its name, of a date days since 1970.
        """
        rows = np.atleast_2d(self.mean, self.lower, self.upper)
        g = len(self.grid)
        number = max(1, len(self.classes))
        columns = {"feature": [self.feature] * (number * g)}
        if self.classes:
            columns["class"] = [name for name in self.classes for _ in range(g)]
        numbers = {"value": np.tile(np.array(self.levels) if self.levels else self.grid, number)}
        numbers |= zip(("mean", "lower", "upper"), (column.ravel() for column in rows), strict=True)
        return columns | {name: values.tolist() for name, values in numbers.items()}


def main_classes(dependences: Sequence[PartialDependence]) -> list[PartialDependence]:
    """Keep the classes whose probabilities vary most, as many as are drawn."""
    if len(dependences[0].classes) <= len(CLASS_LINES):
        return [*dependences]
    ranges = np.max([np.ptp(dependence.mean, axis=1) for dependence in dependences], axis=0)
    chosen = np.sort(np.argsort(-ranges, kind="stable")[: len(CLASS_LINES)])
    return [
        replace(
            dependence,
            classes=tuple(dependence.classes[k] for k in chosen),
            **{name: getattr(dependence, name)[chosen] for name in ("mean", "lower", "upper")},
        )
        for dependence in dependences
    ]


def dependence_limits(found: Sequence[PartialDependence]) -> tuple[float, float]:
    """Return a vertical range that holds all curves, so that effects can be compared."""
    low = min(float(np.min([dependence.mean, dependence.lower])) for dependence in found)
    high = max(float(np.max([dependence.mean, dependence.upper])) for dependence in found)
    return widened(low, high)


def draw_partial_dependence(
    ax: "Axes", found: PartialDependence, limits: tuple[float, float]
) -> None:
    """Draw mean and band as a curve, or as a mark at each value of a feature that has few.

    `limits` are the ends of the vertical axis: `dependence_limits` of all panels.
    """
    canvas(ax)
    curves = zip(*map(np.atleast_2d, (found.mean, found.lower, found.upper)), strict=True)
    names = found.classes or ("average over rows",)
    interval = f"{percent(found.coverage)} posterior interval"
    # Levels have the same distance, whatever their codes.
    grid = np.arange(float(len(found.levels))) if found.levels else found.grid
    half = _HALF * (float(np.diff(grid).min()) if len(grid) > 1 else 1.0)
    for name, (mean, lower, upper), (color, style) in zip(names, curves, CLASS_LINES, strict=False):
        line: Any = {"color": color, "linewidth": 1.8, "label": axis_name(name, _LETTERS)}
        line["linestyle"] = style
        band: Any = {"color": color, "alpha": 0.14 if found.classes else 0.22, "linewidth": 0}
        band |= {} if found.classes else {"label": interval}
        if found.discrete:
            ax.hlines(mean, grid - half, grid + half, **line)
            ax.bar(grid, upper - lower, 2 * half, lower, **band)
        else:
            ax.plot(grid, mean, **line)
            ax.fill_between(grid, lower, upper, **band)
    ax.margins(x=0.1 if found.discrete else 0.01)
    if found.levels:
        names_of_levels = [axis_name(level, _LETTERS_OF_LEVEL) for level in found.levels]
        turned = len(grid) > _TICKS or sum(map(len, names_of_levels)) > _LETTERS
        ax.set_xticks(grid, names_of_levels, rotation=90 if turned else 0)
    elif found.dates:
        # Dates of matplotlib are days since 1970, too.
        ax.xaxis_date()
        ax.tick_params(axis="x", rotation=30)
    elif found.discrete and len(grid) <= _TICKS:
        ax.set_xticks(grid)
    ax.set_xlabel(axis_name(found.feature, 24))
    # Keep `auto`, so that a later plot on the same axes sets its limits.
    ax.set_ylim(*limits, auto=None)


def plot_partial_dependence(
    found: Sequence[PartialDependence], ax: "Axes | Sequence[Axes] | None" = None
) -> "list[Axes]":
    """Draw each feature on axes of its own, given or new, with one vertical range for all.

    Three or more classes have a line each; of more than eight, those that vary most are drawn.
    """
    shown = main_classes(found)
    rows = math.ceil(len(shown) / _COLUMNS)
    columns = math.ceil(len(shown) / rows)
    new_figure = ax is None and len(shown) > 1
    if new_figure:
        require_matplotlib()
        from matplotlib import pyplot

        size = columns * _WIDTH, rows * _HEIGHT
        grid: Any = {"sharey": True, "squeeze": False, "layout": "constrained"}
        _, panels = pyplot.subplots(rows, columns, figsize=size, **grid)
        for unused in panels.flat[len(shown) :]:
            unused.remove()
        axes = list(panels.flat[: len(shown)])
    else:
        axes = [canvas(None)] if ax is None else np.ravel(np.asarray(ax, dtype=object)).tolist()
    allowed = f"one for each of {plural(len(shown), 'feature')}"
    require(len(axes) == len(shown), "ax of plot_partial_dependence", allowed, len(axes))
    limits = dependence_limits(shown)
    for i, (dependence, here) in enumerate(zip(shown, axes, strict=True)):
        draw_partial_dependence(here, dependence, limits)
        if not new_figure or i % columns == 0:
            here.set_ylabel(axis_name(dependence.target, 32))
    if new_figure:
        from directgp.plots.rendering import draw_legend

        draw_legend(axes[0].figure, axes)
        return axes
    head_row(axes[0])
    for panel in axes[1:]:
        panel.set_ylim(axes[0].get_ylim(), auto=None)
    return axes
