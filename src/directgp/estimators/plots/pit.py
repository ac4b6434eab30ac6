"""Probability integral transforms: uniform where the predictive distributions are right."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from directgp.estimators.plots.canvas import BLUE, GREY, INK, canvas, head_row
from directgp.estimators.plots.checks import check_bins, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PER_BIN = 40
"""Values that a bin should have when their number chooses the bins."""


def plot_pit(pit: ArrayLike, ax: "Axes | None" = None, bins: int | None = None) -> "Axes":
    """Histogram of the PIT with the range in which 95 % of the bars of uniform values lie.

    A hump says that the predictive distributions are too wide, a bowl that they are too narrow, a
    slope that they lie too low or too high. The legend has the p-value of the Kolmogorov–Smirnov
    test.

    Parameters
    ----------
    pit
        Values of the predictive distribution function at the targets, shape ``(n,)``.
    ax
        Axes to draw on; a new figure unless given.
    bins
        Number of bars; 5 to 20 by the number of values unless given.
    """
    values = shares(pit, "pit")
    n = len(values)
    bins = int(np.clip(n // _PER_BIN, 5, 20)) if bins is None else bins
    check_bins(bins)
    ax = canvas(ax)
    density, edges = np.histogram(values, bins=bins, range=(0, 1), density=True)
    low, high = stats.binom.interval(0.95, n, 1 / bins) if bins > 1 else (n, n)
    ax.stairs(density, edges, fill=True, color=BLUE, alpha=0.55, label=_summary(values))
    ax.stairs(density, edges, color=BLUE, linewidth=1.0)
    ax.axhspan(low * bins / n, high * bins / n, color=GREY, alpha=0.25, lw=0, label="95 % of bars")
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle="--", label="uniform")
    ax.set(xlim=(0, 1), xlabel="probability integral transform", ylabel="density")
    ax.set_ylim(0, 1.08 * max(float(density.max()), high * bins / n), auto=None)
    head_row(ax)
    return ax


def _summary(values: ArrayLike) -> str:
    p = float(stats.kstest(values, "uniform").pvalue)
    n = len(np.asarray(values))
    return f"n = {n}, KS p {'< 0.001' if p < 0.001 else f'= {p:.2g}'}"
