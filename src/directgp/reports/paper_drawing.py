"""Draw lines of means, axes and panels for the figures of the paper."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from directgp.experiments.cell import METHODS
from directgp.experiments.paper.cells import RuleFacts
from directgp.plots.style import BLUE, GREEN, ORANGE
from directgp.reports.drawing import (
    INK,
    PAPER,
    PURPLE,
    Mark,
    clear_range,
    head,
    mark_of,
    panels,
    widened,
)
from directgp.text import number

_Key = TypeVar("_Key", bound=Hashable)


@final
@dataclass(frozen=True)
class Average:
    """A mean and its standard error, which is NaN for one value."""

    mean: float
    error: float


def average(values: Sequence[float]) -> Average:
    """Over repeats; infinite or NaN if one of them is."""
    numbers = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(numbers.mean())
        deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return Average(mean, deviation / math.sqrt(len(numbers)))


def averages(pairs: Iterable[tuple[_Key, float]]) -> dict[_Key, Average]:
    """The mean at each place, in the order in which places come first."""
    found: dict[_Key, list[float]] = {}
    for place, value in pairs:
        found.setdefault(place, []).append(value)
    return {place: average(values) for place, values in found.items()}


_BETWEEN = 0.5
"""Least distance of two labels, in inches."""


_DECADES = 50.0
"""Ratio of the ends of a range from which on powers of ten are ticks enough."""

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
"""Where ticks are within a decade."""

_FEWEST = 3
"""Ticks that tell how far apart two points are."""


def step_axis(ax: Axes) -> None:
    """Steps of training along the horizontal axis: ``1,000``."""
    ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{round(step):,}"))


def ratio_axis(ax: Axes) -> None:
    """Logarithmic and vertical, with ticks that can be read within a decade too."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high / low < _DECADES:
        ticks = _ticks(low, high)
        ax.set_yticks(ticks, [number(tick, 2) for tick in ticks])
        ax.set_ylim(low, high)
    ax.minorticks_off()


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    found = [step * 10.0**decade for decade in decades for step in _STEPS]
    inside = [tick for tick in found if low <= tick <= high]
    if len(inside) >= _FEWEST:
        return inside
    even = MaxNLocator(_FEWEST + 1).tick_values(low, high)
    return [float(tick) for tick in even if low <= tick <= high]


def size_axis(ax: Axes, sizes: Sequence[float]) -> None:
    """Logarithmic, with the sizes that were run; labels that would touch are left out."""
    low, high = sizes[0], sizes[-1]
    margin = 1.06 * (high / low) ** 0.03
    ax.set_xscale("log")
    ax.set_xlim(low / margin, high * margin)
    shown = _apart(ax, sizes)
    ax.set_xticks(list(sizes), [f"{int(s):,}" if s in shown else "" for s in sizes])
    ax.minorticks_off()


def inches_across(ax: Axes) -> float:
    """About the width of the axes, before anything has its final place."""
    return 0.85 * ax.get_position().width * ax.figure.get_figure(root=True).get_figwidth()


def _apart(ax: Axes, sizes: Sequence[float]) -> set[float]:
    """The largest, and going down those that are far enough from the last one kept."""
    left, right = (math.log(end) for end in ax.get_xlim())
    inches = inches_across(ax)
    kept = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if (math.log(kept[-1]) - math.log(size)) / (right - left) * inches >= _BETWEEN:
            kept.append(size)
    return set(kept)


_RULES = {
    "exact": Mark(INK, "D", "-"),
    "bmc": Mark(ORANGE, "s", "-"),
    "smooth-bmc": Mark(PURPLE, "o", "-", filled=False),
    "ups": Mark(BLUE, "^", "-"),
    "ups-mixed": Mark(GREEN, "v", "-"),
}
"""The colour and the marker say which rule; the line how many samples."""

_DASHES = {1: ":", 10: "--", 100: "-"}
_OTHERWISE = "-."

_BETA_MARKERS = {0.1: "v", 1.0: "o", 10.0: "^"}


def mark_of_rule(rule: RuleFacts) -> Mark:
    """The same in every picture."""
    dash = "-" if rule.name == "exact" else _DASHES.get(rule.samples, _OTHERWISE)
    return replace(_RULES[rule.name], line=dash)


def mark_of_beta(method: str, beta: float) -> Mark:
    """Colour and line of the method, the marker of β."""
    return replace(mark_of(METHODS[method]), marker=_BETA_MARKERS.get(beta, "s"))


Particulars = tuple[str, ...]


def told_apart(found: Sequence[tuple[str, Particulars]]) -> list[str]:
    """Each name, and in brackets those of its particulars in which others of that name differ."""
    names = []
    for name, particulars in found:
        rivals = [others for called, others in found if called == name]
        differing = [
            each for k, each in enumerate(particulars) if len({other[k] for other in rivals}) > 1
        ]
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return names


def varied(mark: Mark, number: int) -> Mark:
    """The mark itself for the first, other dashes for those that follow."""
    return mark if number == 0 else replace(mark, line=":" if number % 2 else "-.")


_LETTER, _HANDLE = 0.068, 0.55
"""Width of a letter and of the line before it in a legend, in inches."""

_ROOM = 4.5
"""Width of a picture, in inches, that can have its legend at the right."""

_LEGEND: Any = {"frameon": False, "handlelength": 2.4}


@final
@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    words: str
    """What it shows, in numbers."""

    draw: Callable[[Axes], None]


@final
@dataclass(frozen=True)
class Layout:
    """How panels are put together."""

    height: float = 2.6
    least: float = 3.0
    """Of a panel's width."""

    least_narrow: float = 3.0
    """The same on a phone."""


def arranged(every: Sequence[Panel], layout: Layout, width: float) -> Figure:
    """Panels in rows, one legend above them all."""
    least = layout.least if width > 6 else layout.least_narrow
    figure, axes = panels(len(every), width, layout.height, least)
    for ax, panel in zip(axes, every, strict=True):
        panel.draw(ax)
        head(ax, panel.title)
    _draw_legend(figure, axes)
    return figure


def _draw_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Every name once; beside a single panel where there is room, else above."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    wide = _HANDLE + _LETTER * max(map(len, found), default=0)
    across = figure.get_figwidth()
    if len(axes) == 1 and across > _ROOM:
        figure.set_figwidth(across + wide)
        figure.legend(list(found.values()), list(found), loc="outside right upper", **_LEGEND)
        return
    columns = max(1, min(len(found), int(across / wide)))
    figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(found) / columns))
    names = {"loc": "outside upper left", "ncols": columns, **_LEGEND}
    figure.legend(list(found.values()), list(found), **names)


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
