"""Draw means with standard errors, along sizes and for methods."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from matplotlib.axes import Axes

from directgp.plots.style import Array, Mark, clear_range, widened
from directgp.text import fixed

_MANY = 12
"""A line with this many points shows errors as a band, and few markers."""

_MARKERS = 6
"""Markers of a line with many points."""

_LABEL = 0.5
"""Minimum distance of two labels of sizes, in inches."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, NaN for one value."""
    with np.errstate(invalid="ignore", over="ignore"):
        several = len(values) > 1
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if several else math.nan
        return float(np.mean(values)), error


@final
@dataclass(frozen=True)
class Line:
    """Means along x with their standard errors, which are NaN for a single value."""

    label: str
    """Name in the legend."""

    mark: Mark
    """Colour, marker and line style."""

    x: Array
    """Rising places."""

    mean: Array
    """Mean at each place."""

    error: Array
    """Standard error of each mean."""

    @classmethod
    def of(cls, label: str, mark: Mark, pairs: Iterable[tuple[float, float]]) -> "Line":
        """Return the line of the means of all values with the same x."""
        by_place: dict[float, list[float]] = {}
        for x, value in pairs:
            by_place.setdefault(x, []).append(value)
        places = sorted(by_place)
        moments = np.array([mean_and_error(by_place[x]) for x in places]).reshape(-1, 2)
        return cls(label, mark, np.array(places, dtype=np.float64), moments[:, 0], moments[:, 1])

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


def _inches_across(ax: Axes) -> float:
    """Estimate the width of the axes before the layout is computed."""
    return 0.85 * ax.get_position().width * ax.figure.get_figure(root=True).get_figwidth()
