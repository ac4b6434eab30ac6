"""Marks of examples, few or many."""

import math
from typing import TYPE_CHECKING

from directgp.estimators.plots.checks import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MANY = 2000


def draw_cloud(ax: "Axes", x: Array, y: Array, color: str, label: str = "", among: int = 0) -> None:
    """One mark an example, the fainter the more there are, so that the dense parts show.

    Parameters
    ----------
    ax, x, y, color
        Where and how to draw.
    label
        For the legend, where the mark is not faint.
    among
        Number of examples in all, where these are a part.
    """
    count = max(among, len(x), 1)
    ax.scatter(
        x,
        y,
        s=12 if count <= _MANY else 5,
        color=color,
        alpha=min(0.8, max(0.03, 10 / math.sqrt(count))),
        linewidths=0,
        rasterized=count > _MANY,
        zorder=1.8,
    )
    if label:
        ax.scatter([], [], s=14, color=color, linewidths=0, label=label)
