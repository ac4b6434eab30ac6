"""Draw means with standard errors along sizes and steps, and histograms."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from directgp.plots.style import Array, Mark, clear_range, widened
from directgp.text import fixed, number

_MANY = 12
"""A line with this many points shows errors as a band, and few markers."""

_MARKERS = 6
"""Markers of a line with many points."""

_LABEL = 0.5
"""Minimum distance of two labels of sizes, in inches."""

_TICK = 0.3
"""Minimum distance of two ticks of a histogram, in inches."""

_DECADES = 50.0
"""If the ends of a range have at least this ratio, powers of ten are enough ticks."""

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
"""Ticks within a decade."""

_MIN_TICKS = 3
"""Smallest number of ticks of a logarithmic axis."""

_BINS = 36
"""Bins of a histogram."""

_TAIL = 0.005
"""Share of the values at either end that is counted in the outermost bins."""

_RATIO = 20.0
"""If the ends of a range have at least this ratio, a histogram has a logarithmic axis.

With negative values, the width of the range: the axis is then linear around 0 only.
"""


@final
@dataclass(frozen=True)
class Line:
    """Means along x with their standard errors, which are NaN for a single value."""

    label: str
    mark: Mark
    x: Array
    mean: Array
    error: Array

    @classmethod
    def of(cls, label: str, mark: Mark, pairs: Iterable[tuple[float, float]]) -> "Line":
        """Return the line of the means of all values with the same x."""
        by_place: dict[float, list[float]] = {}
        for x, value in pairs:
            by_place.setdefault(x, []).append(value)
        places = sorted(by_place)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = [float(np.mean(by_place[x])) for x in places]
            error = [
                float(np.std(by_place[x], ddof=1)) / math.sqrt(len(by_place[x]))
                if len(by_place[x]) > 1
                else math.nan
                for x in places
            ]
        return cls(label, mark, np.array(places, dtype=np.float64), np.array(mean), np.array(error))

    def at(self, x: float) -> float:
        """Return the mean at x; NaN if x has no value."""
        return float(self.mean[self.x == x][0]) if x in self.x else math.nan


def draw_lines(ax: Axes, lines: Sequence[Line]) -> None:
    """Draw lines with standard errors, dashed lines above solid ones."""
    for place, line in enumerate(lines):
        color = line.mark.color
        x = line.x
        mean = np.where(np.isfinite(line.mean), line.mean, np.nan)
        error = np.where(np.isfinite(line.error), line.error, 0.0)
        depth = 3 + (line.mark.line != "-") - 0.01 * place
        every = 1
        if len(x) > _MANY:
            every = math.ceil(len(x) / _MARKERS)
            ax.fill_between(x, mean - error, mean + error, color=color, alpha=0.12, linewidth=0)
        else:
            ax.vlines(x, mean - error, mean + error, color=color, linewidth=1.1, zorder=depth)
        # Start the markers of each line at another point, so that equal lines can be seen.
        marked = (place % every, every)
        ax.plot(x, mean, label=line.label, zorder=depth, markevery=marked, **line.mark.style)


def line_range(lines: Sequence[Line], after: float = -math.inf) -> tuple[float, float]:
    """Return the range of the means beyond `after` with their errors, without outliers above."""
    mean = np.concatenate([line.mean[line.x >= after] for line in lines])
    error = np.concatenate([line.error[line.x >= after] for line in lines])
    low, high = clear_range(mean.tolist())
    shown = (low <= mean) & (mean <= high) & np.isfinite(error)
    ends = (mean - error)[shown], (mean + error)[shown]
    return widened(min([low, *ends[0]]), max([high, *ends[1]]), share=0.08)


def draw_sizes(ax: Axes, lines: Sequence[Line], label: str) -> None:
    """Draw scores against the number of training rows; labels that would touch are left out."""
    draw_lines(ax, lines)
    sizes = sorted({float(size) for line in lines for size in line.x})
    margin = 1.06 * (sizes[-1] / sizes[0]) ** 0.03
    left = sizes[0] / margin
    right = sizes[-1] * margin
    ax.set_xscale("log")
    per_inch = math.log(right / left) / _inches_across(ax)
    labelled = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if math.log(labelled[-1] / size) >= _LABEL * per_inch:
            labelled.append(size)
    ax.set_xticks(sizes, [f"{int(size):,}" if size in labelled else "" for size in sizes])
    ax.minorticks_off()
    ax.set(xlim=(left, right), xlabel="training rows", ylabel=label, ylim=line_range(lines))
    ax.locator_params(axis="y", nbins=6)


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


def draw_estimates(
    ax: Axes,
    rows: Sequence[tuple[str, Mark, Sequence[float], float, float]],
    label: str,
    whole: bool = False,
) -> None:
    """Draw one row a method: its values, and their mean with its standard error.

    A row is the name, the mark, the values, the mean and the error. Means that are outliers or
    not finite are arrows at the edge, unless the whole range is shown, which then includes 0.
    """
    reach: list[float] = []
    for *_, values, mean, error in rows:
        width = error if math.isfinite(error) else 0.0
        reach += [*values, mean - width, mean + width]
    low, high = widened(*((min(0.0, *reach), max(reach)) if whole else clear_range(reach)))
    at_edge = ax.get_yaxis_transform()
    for row, (_, mark, values, mean, error) in enumerate(rows):
        inside = [value for value in values if value <= high]
        # An empty line that is not clipped would break the layout.
        if inside:
            (dots,) = ax.plot(inside, [row] * len(inside), "o", color=mark.color, markersize=3.2)
            dots.set(alpha=0.35, markeredgewidth=0, clip_on=False)
        if math.isfinite(mean) and mean <= high:
            style = mark.style | {"linestyle": "none", "markersize": 6, "elinewidth": 1.6}
            ax.errorbar(mean, row, xerr=error if math.isfinite(error) else 0.0, **style, zorder=3)
        else:
            arrow: Any = {"color": mark.color, "markersize": 6, "clip_on": False}
            ax.plot(0.985, row, ">", transform=at_edge, **arrow)
            text = fixed(mean, 1) if math.isfinite(mean) else "not finite"
            ax.text(0.96, row, text, transform=at_edge, ha="right", va="center", fontsize="small")
    ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
    ax.set(xlim=(low, high), ylim=(len(rows) - 0.4, -0.6), xlabel=label)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.locator_params(axis="x", nbins=6)


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
        finite = values[~np.isnan(values)]
        counts, _ = np.histogram(np.clip(finite, edges[0], edges[-1]), edges)
        heights = counts / max(len(finite), 1)
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
