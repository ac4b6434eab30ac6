"""Lines of means with their standard errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from matplotlib.axes import Axes

from directgp.reports.figures.inks import PAPER, Mark
from directgp.reports.figures.ranges import clear_range, widened
from directgp.reports.paper.figures.averages import Average

_MANY = 12
"""Points of a line above which errors are a band, and only some points have a marker."""

_MARKERS = 6
"""Of such a line."""


@final
@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    label: str
    mark: Mark
    points: dict[float, Average]
    """By their place, in rising order."""

    @property
    def means(self) -> list[float]:
        """Of all points."""
        return [each.mean for each in self.points.values()]


def draw_lines(ax: Axes, lines: Sequence[Line]) -> None:
    """Draw them; dashes above whole lines, so that one seen through the other stays in sight."""
    for place, line in enumerate(lines):
        if len(line.points) > _MANY:
            _draw_band(ax, line)
        _draw_line(ax, line, place)


def line_range(lines: Sequence[Line], after: float = -math.inf) -> tuple[float, float]:
    """Of the vertical axis: where most means after a place can be told apart, with their errors."""
    late = [each for line in lines for x, each in line.points.items() if x >= after]
    low, high = clear_range([each.mean for each in late])
    shown = [each for each in late if low <= each.mean <= high and math.isfinite(each.error)]
    lows = [each.mean - each.error for each in shown]
    highs = [each.mean + each.error for each in shown]
    return widened(min([low, *lows]), max([high, *highs]), share=0.08)


def style(mark: Mark) -> dict[str, Any]:
    """How a mark is drawn."""
    return {
        "color": mark.color,
        "linestyle": mark.line,
        "marker": mark.marker,
        "markerfacecolor": mark.color if mark.filled else PAPER,
        "markersize": 4.5,
        "linewidth": 1.5,
    }


def _arrays(line: Line) -> tuple[Any, Any, Any]:
    """Places, means and errors; what is not finite is left out, or has no error."""
    mean = np.array([m if math.isfinite(m) else math.nan for m in line.means])
    error = np.array([e.error if math.isfinite(e.error) else 0.0 for e in line.points.values()])
    return np.array(list(line.points)), mean, error


def _draw_band(ax: Axes, line: Line) -> None:
    x, mean, error = _arrays(line)
    color = line.mark.color
    ax.fill_between(x, mean - error, mean + error, color=color, alpha=0.12, linewidth=0)


def _draw_line(ax: Axes, line: Line, place: int) -> None:
    x, mean, error = _arrays(line)
    depth = 3 + (line.mark.line != "-") - 0.01 * place
    if len(x) <= _MANY:
        ax.vlines(x, mean - error, mean + error, color=line.mark.color, linewidth=1.1, zorder=depth)
    # Markers of lines that run together are set side by side.
    every = math.ceil(len(x) / _MARKERS) if len(x) > _MANY else 1
    marked = (place % every, every)
    ax.plot(x, mean, label=line.label, zorder=depth, markevery=marked, **style(line.mark))
