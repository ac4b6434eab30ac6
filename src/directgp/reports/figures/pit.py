"""Histograms of the probability integral transform."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from directgp.experiments.methods import Method
from directgp.experiments.results import Predictions
from directgp.reports.calibration import Array, pit_bars
from directgp.reports.figures.inks import GREY, INK, mark_of
from directgp.reports.figures.panels import head, label_edges, panels
from directgp.reports.figures.picture import Picture

_TALL = 4.0
"""Bars are cut at this height, so that one of them does not flatten all others."""

_PER_BIN = 40
"""Rows of a repeat that a bin should have."""


def pit_picture(found: dict[Method, Predictions], repeats: int) -> Picture:
    """A panel a method; rows of several repeats are partly the same, so the band is for one."""
    rows = max(1, min(len(each.actual) for each in found.values()) // repeats)
    bins = int(np.clip(rows // _PER_BIN, 5, 20))
    bars = {method: pit_bars(each.below, each.up_to, bins) for method, each in found.items()}
    words = [f"{m.label}: bars from {b.min():.2f} to {b.max():.2f}" for m, b in bars.items()]
    return Picture(
        name="calibration",
        title="Calibration",
        short="Calibration",
        caption=(
            "Where the actual values lie within their predicted distributions (the probability "
            "integral transform). Flat, at the dashed line, is right; a hump says that the "
            "distributions are too wide, a bowl that they are too narrow, a slope that they lie "
            "too low or too high. Nearly all bars of a calibrated method lie in the grey band."
        ),
        alt=f"Histograms of the PIT, 1 throughout if calibrated. {'; '.join(words)}.",
        draw=lambda width: _draw_pits(bars, rows, width),
    )


def _draw_pits(bars: dict[Method, Array], rows: int, width: float) -> Figure:
    figure, axes = panels(len(bars), width, 1.75, 1.9 if width > 6 else 1.7)
    bins = len(next(iter(bars.values())))
    low, high = stats.binom.interval(0.95, rows, 1 / bins)
    band = low * bins / rows, high * bins / rows
    top = min(_TALL, 1.08 * max(float(each.max()) for each in (*bars.values(), np.array(band))))
    for ax, (method, heights) in zip(axes, bars.items(), strict=True):
        _draw_pit(ax, method, heights, band)
        ax.set(xlim=(0, 1), ylim=(0, top), xticks=(0, 0.5, 1), xticklabels=("0", "0.5", "1"))
    label_edges(figure, "probability integral transform", "density")
    return figure


def _draw_pit(ax: Axes, method: Method, heights: Array, band: tuple[float, float]) -> None:
    color = mark_of(method).color
    edges = np.linspace(0, 1, len(heights) + 1)
    ax.axhspan(*band, color=GREY, alpha=0.22, linewidth=0)
    ax.stairs(heights, edges, fill=True, color=color, alpha=0.45)
    ax.stairs(heights, edges, color=color, linewidth=1.0)
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle="--")
    head(ax, method.label)
