"""Predictions against what came."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from directgp.estimators.plots.canvas import (
    BLUE,
    GREY,
    ORANGE,
    SQUARE,
    canvas,
    head_row,
    percent,
)
from directgp.estimators.plots.checks import Array, check_coverage, finite, interval
from directgp.estimators.plots.cloud import draw_cloud

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW, _MANY = 200, 5000
"""Intervals are drawn up to the one, and single points up to the other."""


def plot_predicted_against_actual(
    y: ArrayLike,
    predicted: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    coverage: float,
    ax: "Axes | None" = None,
) -> "Axes":
    """Predictions against the targets, and the share of targets that their intervals cover.

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
    low, high = interval(lower, upper, n)
    check_coverage(coverage)
    ax = canvas(ax, SQUARE)
    covered = (low <= targets) & (targets <= high)
    note = f"{percent(coverage)} intervals cover {100 * covered.mean():.1f} % of {n}"
    start, end = _limits(targets, centre, low, high)
    ax.axline((start, start), (end, end), color=GREY, linewidth=1.0, linestyle="--", zorder=2.5)
    ax.set(xlim=(start, end), ylim=(start, end), xlabel="actual", ylabel="predicted")
    if n > _MANY:
        _draw_density(ax, targets, centre, (start, end, start, end))
        head_row(ax, note)
        return ax
    for mask, color, label in ((covered, BLUE, note), (~covered, ORANGE, "missed")):
        if mask.any() or label == note:
            draw_cloud(ax, targets[mask], centre[mask], color, label, among=n)
        if n <= _FEW:
            ends = np.clip(low[mask], start, end), np.clip(high[mask], start, end)
            ax.vlines(targets[mask], *ends, color=color, alpha=0.4, linewidth=1.0)
    head_row(ax)
    return ax


def _limits(targets: Array, centre: Array, low: Array, high: Array) -> tuple[float, float]:
    """Both axes from here to there: all points, and intervals unless they dwarf the points."""
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

    # Below one, so that a single example is seen.
    norm = LogNorm(vmin=0.2)
    ax.hexbin(x, y, gridsize=45, extent=extent, mincnt=1, norm=norm, cmap="Blues", linewidths=0.1)
