"""Panels, and pictures made of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.reports.figures.panels import head, panels

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
