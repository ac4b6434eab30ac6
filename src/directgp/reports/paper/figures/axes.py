"""Axes."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from directgp.reports.numbers import short, whole

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
    ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: whole(round(step))))


def ratio_axis(ax: Axes) -> None:
    """Logarithmic and vertical, with ticks that can be read within a decade too."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high / low < _DECADES:
        ticks = _ticks(low, high)
        ax.set_yticks(ticks, [short(tick, 2) for tick in ticks])
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
    ax.set_xticks(list(sizes), [whole(int(s)) if s in shown else "" for s in sizes])
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
