"""Draw PIT histograms and reliability diagrams."""

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from directgp.metrics import BINS, Reliability, reliability
from directgp.plots.style import BLUE, GREY, INK, SQUARE, Array, canvas, head_row
from directgp.text import p_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PER_BIN = 40
"""Values per bin when their number decides the number of bins."""

_TALLEST = 0.14
"""Height of the tallest bar of counts, in units of probability."""

_FLOOR = -0.18
"""Foot of the bars of counts, in units of probability."""

_Z = 1.959964
"""Quantile of the normal distribution at 0.975."""


def pit_bars(below: Array, up_to: Array, bins: int) -> Array:
    """Return the heights of the non-randomised PIT histogram, shape (bins,): 1 if calibrated.

    Each row spreads its weight evenly from P(Y < y) to P(Y ≤ y) (Czado, Gneiting and Held, 2009);
    if the two are equal, this is the usual histogram.
    """
    edges = np.linspace(0, 1, bins + 1)[1:-1, None]
    reached = (edges >= up_to).astype(np.float64)
    within = (edges > below) & (edges < up_to)
    np.divide(edges - below, up_to - below, out=reached, where=within)
    return np.asarray(np.diff(reached.mean(1), prepend=0.0, append=1.0) * bins)


def pit_bins(num_values: int) -> int:
    """Return the number of bins for this number of values, from 5 to 20."""
    return int(np.clip(num_values // _PER_BIN, 5, 20))


def pit_band(num_values: int, bins: int) -> tuple[float, float]:
    """Return the range in which 95 % of the bars of uniform values lie."""
    low, high = stats.binom.interval(0.95, num_values, 1 / bins) if bins > 1 else [num_values] * 2
    return low * bins / num_values, high * bins / num_values


def draw_pit(ax: "Axes", heights: Array, band: tuple[float, float], color: str, note: str) -> None:
    """Draw the bars of a PIT histogram, the band of `pit_band` and the line of uniform values."""
    edges = np.linspace(0, 1, len(heights) + 1)
    named = {"bars": note, "band": "95 % of bars", "line": "uniform"} if note else {}
    ax.stairs(heights, edges, fill=True, color=color, alpha=0.5, label=named.get("bars"))
    ax.stairs(heights, edges, color=color, linewidth=1.0)
    ax.axhspan(*band, color=GREY, alpha=0.24, lw=0, zorder=0.5, label=named.get("band"))
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle="--", label=named.get("line"))
    ax.set_xlim(0, 1)


def plot_pit(pit: Array, ax: "Axes | None" = None, bins: int | None = None) -> "Axes":
    """Draw a histogram of the PIT with the range in which 95 % of the bars of uniform values lie.

    `pit` has the values of the predictive distribution functions at the targets. A hump means that
    the distributions are too wide, a bowl that they are too narrow, a slope that they are too low
    or too high. The legend has the p-value of the Kolmogorov–Smirnov test.
    """
    n = len(pit)
    bins = pit_bins(n) if bins is None else bins
    ax = canvas(ax)
    heights = pit_bars(pit, pit, bins)
    band = pit_band(n, bins)
    test = p_value(float(stats.kstest(pit, "uniform").pvalue))
    draw_pit(ax, heights, band, BLUE, f"n = {n}, KS {test}")
    ax.set(xlabel="probability integral transform", ylabel="density")
    ax.set_ylim(0, 1.08 * max(float(heights.max()), band[1]), auto=None)
    head_row(ax)
    return ax


def wilson(share: Array, count: Array) -> tuple[Array, Array]:
    """Return Wilson's 95 % interval for a probability, given a share among `count` trials."""
    shrunk = 1 / (1 + _Z**2 / count)
    centre = shrunk * (share + _Z**2 / (2 * count))
    half = shrunk * _Z * np.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return centre - half, centre + half


def draw_reliability(ax: "Axes", bins_of_labels: Reliability, color: str, bins: int = BINS) -> None:
    """Draw observed shares with intervals against predictions, and counts as bars below 0."""
    low, high = wilson(bins_of_labels.observed, bins_of_labels.count)
    errors = np.clip([bins_of_labels.observed - low, high - bins_of_labels.observed], 0, None)
    heights = _TALLEST * bins_of_labels.count / bins_of_labels.count.max()
    bars: Any = {"bottom": _FLOOR, "color": GREY, "alpha": 0.45, "linewidth": 0}
    ax.bar(bins_of_labels.predicted, heights, 0.6 / bins, **bars)
    ax.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle="--")
    points: Any = {"color": color, "markersize": 4.5, "elinewidth": 1.1, "clip_on": False}
    ax.errorbar(bins_of_labels.predicted, bins_of_labels.observed, yerr=errors, fmt="o", **points)
    ax.set(xlim=(-0.04, 1.04), ylim=(-0.2, 1.04))


def plot_reliability(
    y: Array, probability: Array, ax: "Axes | None" = None, bins: int = BINS
) -> "Axes":
    """Draw a reliability diagram of labels 0 and 1, with the number of rows of each bin below it.

    Each point is a bin of equal width: its mean probability, and the share of ones with Wilson's
    95 % interval. ECE is the mean distance of the points from the diagonal, weighted by counts.
    """
    ax = canvas(ax, SQUARE)
    bins_of_labels = reliability(y, probability, bins)
    draw_reliability(ax, bins_of_labels, BLUE, bins)
    ticks = np.linspace(0, 1, 6)
    ax.set(xticks=ticks, yticks=ticks)
    ax.set(xlabel="predicted probability", ylabel="observed share, 95 % interval")
    brier = float(np.mean((probability - y) ** 2))
    head_row(
        ax, f"n = {len(y)}   ECE {bins_of_labels.expected_error:.3f}   Brier score {brier:.3f}"
    )
    return ax
