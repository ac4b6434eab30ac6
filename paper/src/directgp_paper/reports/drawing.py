"""Draw scores along training, ratios, and histograms of draws."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from directgp.plots import Line, Mark, draw_lines, line_range
from directgp.text import number

Array = NDArray[np.float64]

_DECADES = 50.0
"""Ratio of the ends of a range from which on powers of ten are enough ticks."""

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
"""Ticks within a decade."""

_MIN_TICKS = 3

_TICK = 0.3
"""Minimum distance of two ticks of a histogram, in inches."""

_BINS = 36
"""Bins of a histogram."""

_TAIL = 0.005
"""Share of the values at either end that is counted in the outermost bins."""

_RATIO = 20.0
"""Ratio of the ends of a range from which on a histogram has a logarithmic axis.

With negative values, the width of the range: the axis is then linear around 0 only.
"""


def draw_progress(ax: Axes, lines: Sequence[Line], x_label: str, label: str, after: float) -> None:
    """Draw scores along training; only means beyond `after` decide the vertical range."""
    draw_lines(ax, lines)
    ax.set(xlabel=x_label, ylabel=label, ylim=line_range(lines, after))
    ax.locator_params(nbins=6)
    if x_label == "step":
        ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{round(step):,}"))


def ratio_axis(ax: Axes) -> None:
    """Make the vertical axis logarithmic, with ticks within a decade if the range is small."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high / low < _DECADES:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        ticks = [step * 10.0**decade for decade in decades for step in _STEPS]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) < _MIN_TICKS:
            even = MaxNLocator(_MIN_TICKS + 1).tick_values(low, high)
            ticks = [float(tick) for tick in even if low <= tick <= high]
        ax.set_yticks(ticks, [number(tick, 2) for tick in ticks])
        ax.set_ylim(low, high)
    ax.minorticks_off()


def bin_edges(values: Array) -> Array:
    """Return the edges of bins of equal width on the axis that suits the values."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.linspace(0.0, 1.0, _BINS + 1)
    low, high = (float(end) for end in np.quantile(finite, [_TAIL, 1 - _TAIL]))
    match _scale(low, high):
        case "log":
            return np.geomspace(low, high, _BINS + 1)
        case "asinh":
            return np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(high), _BINS + 1))
    middle = (low + high) / 2
    least = 1e-3 * max(abs(low), abs(high), 1e-12)
    reach = max((high - low) / 2, least)
    return np.linspace(middle - reach, middle + reach, _BINS + 1)


def draw_histograms(
    ax: Axes, draws: Mapping[str, tuple[Mark, Array]], edges: Array, label: str
) -> None:
    """Draw the share of draws in each bin; draws beyond the axis count in the outermost bins."""
    for place, (name, (mark, values)) in enumerate(draws.items()):
        valid = values[~np.isnan(values)]
        counts, _ = np.histogram(np.clip(valid, edges[0], edges[-1]), edges)
        heights = counts / max(len(valid), 1)
        depth = 2 + 0.1 * place
        ax.stairs(heights, edges, color=mark.color, alpha=0.13, fill=True, zorder=depth)
        line: Any = {"linestyle": mark.line, "linewidth": 1.5, "zorder": depth + 0.05}
        ax.stairs(heights, edges, color=mark.color, label=name, **line)
    low = float(edges[0])
    high = float(edges[-1])
    scale = _scale(low, high)
    ax.set_xscale(scale)
    if scale == "asinh":
        ticks = _signed_ticks(low, high, int(_inches_across(ax) / _TICK))
        ax.set_xticks(ticks, [number(tick) for tick in ticks])
    if scale != "linear":
        ax.minorticks_off()
    ax.set(xlabel=label, ylabel="share of draws", xlim=(low, high))
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="y", nbins=5)


def _scale(low: float, high: float) -> Literal["linear", "log", "asinh"]:
    if low > 0:
        return "log" if high > _RATIO * low else "linear"
    return "asinh" if high - low > _RATIO else "linear"


def _signed_ticks(low: float, high: float, limit: int) -> list[float]:
    """Return 0 and powers of ten of either sign, with threes if there are not too many."""
    for steps in ((1.0, 3.0), (1.0,)):
        sizes = [step * 10.0**decade for decade in range(12) for step in steps]
        ticks = [x for x in (0.0, *sizes, *(-size for size in sizes)) if low <= x <= high]
        if len(ticks) <= limit:
            break
    return ticks


def _inches_across(ax: Axes) -> float:
    """Estimate the width of the axes before the layout is computed."""
    return 0.85 * ax.get_position().width * ax.figure.get_figure(root=True).get_figwidth()
