"""Horizontal axes."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from directgp.reports.numbers import whole

_BETWEEN = 0.5
"""Least distance of two labels, in inches."""


def size_axis(ax: Axes, sizes: Sequence[float]) -> None:
    """Logarithmic, with the sizes that were run; labels that would touch are left out."""
    low, high = sizes[0], sizes[-1]
    margin = 1.06 * (high / low) ** 0.03
    ax.set_xscale("log")
    ax.set_xlim(low / margin, high * margin)
    shown = _apart(ax, sizes)
    ax.set_xticks(list(sizes), [whole(int(s)) if s in shown else "" for s in sizes])
    ax.minorticks_off()


def _apart(ax: Axes, sizes: Sequence[float]) -> set[float]:
    """The largest, and going down those that are far enough from the last one kept."""
    left, right = (math.log(end) for end in ax.get_xlim())
    inches = 0.85 * ax.get_position().width * ax.figure.get_figure(root=True).get_figwidth()
    kept = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if (math.log(kept[-1]) - math.log(size)) / (right - left) * inches >= _BETWEEN:
            kept.append(size)
    return set(kept)
