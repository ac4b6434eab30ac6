"""Draw the terms of a kernel: curves, effects of levels, maps, and pictures of two columns."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override

from directgp.errors import require
from directgp.plots.style import (
    BLUE,
    CLASS_LINES,
    GREY,
    Array,
    axis_name,
    canvas,
    draw_cloud,
    head_row,
    lines_of_text,
    require_matplotlib,
)
from directgp.text import one_line, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
"""Panels side by side."""

_WIDTH = 3.7
"""Width of a panel, in inches."""

_HEIGHT = 3.0
"""Height of a panel, in inches."""

_LETTERS = 34
"""Letters of a line of a title, and of two levels at an axis."""

_LETTERS_OF_LEVEL = 14
"""Letters of the name of a level in a legend."""

_COLORS = "RdBu_r"
"""Colours of means: blue below 0, red above."""

_MANY_POINTS = 300
"""More points than this on a map are small."""

MAX_LEVELS = 60
"""Levels of a picture."""


@dataclass(frozen=True, eq=False)
class TermPicture(ABC):
    """What is drawn of one term of a kernel."""

    title: str
    """The term in words."""

    target: str
    """What the means are parts of."""

    @abstractmethod
    def draw(self, ax: "Axes") -> None:
        """Draw the picture on axes."""

    def _head(self, ax: "Axes") -> None:
        ax.set_title(axis_name(self.title, _LETTERS), fontsize="medium")


@final
@dataclass(frozen=True, eq=False)
class TermCurve(TermPicture):
    """A term along its only column, with a band."""

    column: str
    """Name of the column."""

    x: Array
    """Values of the column."""

    mean: Array
    """Mean at each value."""

    lower: Array
    """Lower end of the interval at each value."""

    upper: Array
    """Upper end of the interval at each value."""

    dates: str = ""
    """Format of x as dates, in days since 1970: "auto", or such as "%b"; empty for numbers."""

    data: Array | None = None
    """Values of the column in rows, which have marks at the axis."""

    @override
    def draw(self, ax: "Axes") -> None:
        canvas(ax)
        ax.axhline(0.0, color=GREY, linewidth=0.8)
        ax.plot(self.x, self.mean, color=BLUE, linewidth=1.8)
        ax.fill_between(self.x, self.lower, self.upper, color=BLUE, alpha=0.22, linewidth=0)
        if self.data is not None:
            low = ax.get_xaxis_transform()
            marks: Any = {
                "color": GREY,
                "markersize": 5,
                "markeredgewidth": 0.4,
                "alpha": 0.6,
                "transform": low,
            }
            ax.plot(self.data, 0.02 + 0 * self.data, "|", rasterized=True, **marks)
        ax.margins(x=0.01)
        _date_axis(ax, self.dates)
        ax.set(xlabel=axis_name(self.column, 24), ylabel=axis_name(f"part of {self.target}", 30))
        self._head(ax)


@final
@dataclass(frozen=True, eq=False)
class TermLines(TermPicture):
    """The means of a term along a column, a line for each of several periods or levels."""

    column: str
    """Name of the column."""

    x: Array
    """Values of the column."""

    means: Array
    """Mean of each line at each value, of shape (lines, values)."""

    names: tuple[str, ...]
    """Name of each line."""

    dates: str = ""
    """Format of x as dates, as of `TermCurve`."""

    @override
    def draw(self, ax: "Axes") -> None:
        canvas(ax)
        ax.axhline(0.0, color=GREY, linewidth=0.8)
        if len(self.names) <= len(CLASS_LINES):
            for name, line, (color, style) in zip(
                self.names, self.means, CLASS_LINES, strict=False
            ):
                label = axis_name(one_line(name, _LETTERS_OF_LEVEL))
                ax.plot(self.x, line, color=color, linestyle=style, linewidth=1.6, label=label)
            head_row(ax)
        else:
            ax.plot(self.x, self.means.T, color=BLUE, linewidth=0.8, alpha=0.5)
        ax.margins(x=0.01)
        _date_axis(ax, self.dates)
        ax.set(xlabel=axis_name(self.column, 24), ylabel=axis_name(f"part of {self.target}", 30))
        self._head(ax)


@final
@dataclass(frozen=True, eq=False)
class TermLevels(TermPicture):
    """The effect of each level with its interval, sorted by mean: a caterpillar plot."""

    column: str
    """Name of the column."""

    levels: tuple[str, ...]
    """Names of the levels, in the order of the means."""

    mean: Array
    """Mean of each level."""

    lower: Array
    """Lower end of the interval of each level."""

    upper: Array
    """Upper end of the interval of each level."""

    among: int = 0
    """Number of all levels, if these are a part."""

    @override
    def draw(self, ax: "Axes") -> None:
        canvas(ax)
        ax.axvline(0.0, color=GREY, linewidth=0.8)
        heights = np.arange(float(len(self.levels)))
        ax.hlines(heights, self.lower, self.upper, color=BLUE, linewidth=1.6, alpha=0.5)
        ax.plot(self.mean, heights, "o", color=BLUE, markersize=3.5)
        # Every other name, say, where there is no room for all.
        stride = max(1, math.ceil(len(heights) / max(1.0, 1.1 * lines_of_text(ax))))
        names = [axis_name(one_line(level, _LETTERS // 2)) for level in self.levels[::stride]]
        ax.set_yticks(heights[::stride], names, fontsize="small")
        ax.set_ylim(-0.7, len(heights) - 0.3)
        more = f", {len(self.levels)} of {self.among:,} levels" if self.among else ""
        ax.set(
            xlabel=axis_name(f"part of {self.target}", 40),
            ylabel=axis_name(f"{self.column}{more}", 30),
        )
        self._head(ax)


@final
@dataclass(frozen=True, eq=False)
class TermMap(TermPicture):
    """The mean of a term at places, above its surface."""

    names: tuple[str, str]
    """Names of latitude and longitude."""

    latitude: Array
    """Latitude of each place."""

    longitude: Array
    """Longitude of each place."""

    mean: Array
    """Mean at each place."""

    rows: Array
    """Latitudes of the grid."""

    columns: Array
    """Longitudes of the grid."""

    surface: Array
    """Mean at the grid, of shape (rows, columns); NaN where it is not drawn."""

    @override
    def draw(self, ax: "Axes") -> None:
        canvas(ax)
        colors = _colors(self.mean, self.surface)
        ax.grid(False)
        ax.pcolormesh(self.columns, self.rows, self.surface, shading="nearest", alpha=0.6, **colors)
        many = len(self.mean) > _MANY_POINTS
        points = ax.scatter(
            self.longitude,
            self.latitude,
            c=self.mean,
            s=6 if many else 22,
            edgecolors="none" if many else GREY,
            linewidths=0 if many else 0.5,
            rasterized=many,
            **colors,
        )
        # A degree of longitude is shorter than one of latitude.
        middle = math.radians(float(np.mean(self.rows)))
        ax.set_aspect(1 / max(0.1, math.cos(middle)), adjustable="datalim")
        _color_bar(ax, points, self.target)
        ax.set(xlabel=axis_name(self.names[1], 24), ylabel=axis_name(self.names[0], 24))
        self._head(ax)


@final
@dataclass(frozen=True, eq=False)
class TermImage(TermPicture):
    """The mean of a term of two columns."""

    names: tuple[str, str]
    """Names of the columns of x and y."""

    x: Array
    """Values of the first column."""

    y: Array
    """Values of the second column."""

    mean: Array
    """Mean, of shape (y, x)."""

    data: tuple[Array, Array] | None = None
    """Both columns at rows of data."""

    dates: tuple[str, str] = ("", "")
    """Formats of the columns as dates, as of `TermCurve`."""

    @override
    def draw(self, ax: "Axes") -> None:
        canvas(ax)
        ax.grid(False)
        colors = _colors(self.mean)
        image = ax.pcolormesh(self.x, self.y, self.mean, shading="gouraud", **colors)
        if self.data is not None:
            ax.plot(*self.data, ".", color=GREY, markersize=1.5, alpha=0.4, rasterized=True)
        _color_bar(ax, image, self.target)
        _date_axis(ax, self.dates[0])
        if self.dates[1]:
            ax.yaxis_date()
        ax.set(xlabel=axis_name(self.names[0], 24), ylabel=axis_name(self.names[1], 24))
        ax.set(xlim=(self.x.min(), self.x.max()), ylim=(self.y.min(), self.y.max()))
        self._head(ax)


@final
@dataclass(frozen=True, eq=False)
class TermCloud(TermPicture):
    """The mean of a term of several columns at rows, against one column."""

    column: str
    """Name of the column."""

    x: Array
    """Value of the column in each row."""

    mean: Array
    """Mean in each row."""

    dates: str = ""
    """Format of x as dates, as of `TermCurve`."""

    @override
    def draw(self, ax: "Axes") -> None:
        canvas(ax)
        ax.axhline(0.0, color=GREY, linewidth=0.8)
        draw_cloud(ax, self.x, self.mean, BLUE)
        _date_axis(ax, self.dates)
        ax.set(xlabel=axis_name(self.column, 24), ylabel=axis_name(f"part of {self.target}", 30))
        self._head(ax)


def _date_axis(ax: "Axes", dates: str) -> None:
    """Show x, in days since 1970, as dates."""
    if not dates:
        return
    # Its classes have no types.
    known: Any = import_module("matplotlib.dates")
    ax.xaxis_date()
    if dates == "%b":
        locator, formatter = known.MonthLocator(range(1, 13, 2)), known.DateFormatter(dates)
    elif dates == "%a":
        locator, formatter = known.DayLocator(), known.DateFormatter(dates)
    elif dates == "%H:%M":
        locator, formatter = known.HourLocator(range(0, 24, 6)), known.DateFormatter(dates)
    else:
        locator = known.AutoDateLocator(minticks=3, maxticks=7)
        formatter = known.ConciseDateFormatter(locator)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(formatter)


def _colors(*means: Array) -> dict[str, Any]:
    """Return a colour map with its middle at 0."""
    largest = max(float(np.nanmax(np.abs(each), initial=0.0)) for each in means) or 1.0
    return {"cmap": _COLORS, "vmin": -largest, "vmax": largest}


def _color_bar(ax: "Axes", drawn: Any, target: str) -> None:
    figure = ax.get_figure()
    if figure is not None:
        bar = figure.colorbar(drawn, ax=ax, shrink=0.85, pad=0.02)
        bar.set_label(axis_name(f"part of {target}", 30))


def plot_term_pictures(
    pictures: Sequence[TermPicture], ax: "Axes | Sequence[Axes] | None" = None
) -> "list[Axes]":
    """Draw each picture on axes of its own, given or new."""
    if ax is None:
        require_matplotlib()
        from matplotlib import pyplot

        count = len(pictures)
        # Four panels are two rows of two.
        columns = math.ceil(count / math.ceil(count / _COLUMNS))
        rows = math.ceil(count / columns)
        size = columns * _WIDTH, rows * _HEIGHT
        grid: Any = {"squeeze": False, "layout": "constrained"}
        _, panels = pyplot.subplots(rows, columns, figsize=size, **grid)
        for unused in panels.flat[count:]:
            unused.remove()
        axes = list(panels.flat[:count])
    else:
        axes = np.ravel(np.asarray(ax, dtype=object)).tolist()
    allowed = f"one for each of {plural(len(pictures), 'picture')}"
    require(len(axes) == len(pictures), "ax of plot_parts", allowed, len(axes))
    for picture, here in zip(pictures, axes, strict=True):
        picture.draw(here)
    return axes
