"""Draw PIT histograms and reliability diagrams."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from directgp.plots.style import (
    BLUE,
    GREY,
    INK,
    SQUARE,
    Array,
    canvas,
    check_bins,
    head_row,
    labels,
    shares,
)
from directgp.text import p_value

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
    return f"n = {n}, KS {p_value(p)}"


_TALLEST = 0.16
"""Height of the tallest bar of the histogram, in units of probability."""

_Z = 1.959964
"""Quantile of the normal distribution at 0.975."""


def plot_reliability(
    y: ArrayLike, probability: ArrayLike, ax: "Axes | None" = None, bins: int = 10
) -> "Axes":
    """Reliability diagram, with how many predictions each bin has drawn below it.

    Each point is a bin of equal width: its mean probability, and the share of ones with Wilson's
    95 % interval. ECE is the mean distance of the points from the diagonal, weighted by counts.

    Parameters
    ----------
    y
        Labels 0 and 1, shape ``(n,)``.
    probability
        Predicted probabilities of a one, shape ``(n,)``.
    ax
        Axes to draw on; a new figure unless given.
    bins
        Number of bins; empty ones have no point.
    """
    p = shares(probability, "probability")
    ones = labels(y, "y", len(p))
    check_bins(bins)
    ax = canvas(ax, SQUARE)
    count, mean, share = _binned(ones, p, bins)
    low, high = wilson(share[count > 0], count[count > 0])
    _draw_counts(ax, count)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, linestyle="--")
    x, height = mean[count > 0], share[count > 0]
    bars = np.clip([height - low, high - height], 0, None)
    ax.errorbar(
        x, height, yerr=bars, fmt="o", color=BLUE, markersize=5, elinewidth=1.2, clip_on=False
    )
    ece = float(np.sum(count[count > 0] * np.abs(x - height)) / len(p))
    brier = float(np.mean((p - ones) ** 2))
    ticks = np.linspace(0, 1, 6)
    ax.set(xlim=(-0.02, 1.02), ylim=(-_TALLEST - 0.06, 1.02), xticks=ticks, yticks=ticks)
    ax.set(xlabel="predicted probability", ylabel="observed share, 95 % interval")
    head_row(ax, f"n = {len(p)}   ECE {ece:.3f}   Brier score {brier:.3f}")
    return ax


def wilson(share: Array, count: Array) -> tuple[Array, Array]:
    """Wilson's 95 % interval for a probability, given a share among `count` trials."""
    shrunk = 1 / (1 + _Z**2 / count)
    centre = shrunk * (share + _Z**2 / (2 * count))
    half = shrunk * _Z * np.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return centre - half, centre + half


def _binned(ones: Array, p: Array, bins: int) -> tuple[Array, Array, Array]:
    """Count, mean probability and share of ones in bins of equal width."""
    index = np.minimum((p * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins).astype(np.float64)
    each = np.maximum(count, 1)
    mean = np.bincount(index, weights=p, minlength=bins) / each
    return count, mean, np.bincount(index, weights=ones, minlength=bins) / each


def _draw_counts(ax: "Axes", count: Array) -> None:
    """Bars below zero, where no probability is."""
    floor = -_TALLEST - 0.05
    left = np.arange(len(count)) / len(count)
    ax.bar(
        left,
        _TALLEST * count / count.max(),
        width=1 / len(count),
        bottom=floor,
        align="edge",
        color=GREY,
        alpha=0.5,
        edgecolor="white",
        linewidth=0.6,
    )
