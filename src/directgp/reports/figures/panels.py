"""Small multiples: equal panels in as many columns as the width allows."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.estimators.plots.canvas import axis_name, canvas

_WIDEST = 4.8
"""Of a panel, in inches."""


def panels(count: int, width: float, height: float, least: float) -> tuple[Figure, list[Axes]]:
    """So many axes of a height, none narrower than the least, in rows of nearly equal length."""
    most = max(1, int(width / least))
    rows = math.ceil(count / most)
    columns = math.ceil(count / rows)
    size = min(width, columns * _WIDEST), rows * height
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for ax in every[count:]:
        ax.remove()
    return figure, [canvas(ax) for ax in every[:count]]


def label_edges(figure: Figure, x: str, y: str) -> None:
    """One name for all horizontal axes, and one for all vertical ones."""
    figure.supxlabel(axis_name(x), fontsize="medium")
    figure.supylabel(axis_name(y), fontsize="medium")


def head(ax: Axes, title: str) -> None:
    """The name of a panel, set left above it."""
    ax.set_title(axis_name(title, 30), loc="left")


def leave_empty(ax: Axes) -> None:
    """Say why nothing is drawn."""
    ax.text(0.5, 0.5, "not finite", transform=ax.transAxes, ha="center", va="center")
