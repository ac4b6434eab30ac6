"""Define colours, marks and axes that all pictures share."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from directgp.errors import require_extra
from directgp.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
"""Numbers to draw."""

# Four colours of the palette by Okabe and Ito, which colour-blind readers can distinguish.

BLUE = "#0072b2"
"""First colour."""

ORANGE = "#d55e00"
"""Second colour."""

GREEN = "#009e73"
"""Third colour."""

PURPLE = "#cc79a7"
"""Fourth colour."""

CLASS_LINES = [(color, line) for line in ("-", "--") for color in (BLUE, ORANGE, GREEN, PURPLE)]
"""Colour and style of the line of each class, as many as can be told apart."""

INK = "#262626"
"""Colour of text."""

GREY = "#737373"
"""Colour of axes and secondary marks."""

PALE = "#ebebeb"
"""Colour of grid lines."""

PAPER = "#ffffff"
"""Colour of the page."""

DARK = {
    INK: "#e4e4e1",
    GREY: "#a3a6a8",
    PALE: "#2d3236",
    PAPER: "#16191b",
    BLUE: "#5bb0ea",
    ORANGE: "#f5894a",
    GREEN: "#38c79b",
    PURPLE: "#de9cc1",
    "#000000": "#e4e4e1",
}
"""Colour on a dark page for each colour on a white page."""

WIDE = (6.0, 3.8)
"""Size of a wide figure, in inches."""

SQUARE = (4.6, 4.6)
"""Size of a square figure, in inches."""

_LINE = 1.6
"""Height of a line of small text, in font sizes of the axis labels."""

_LETTER = 0.47
"""Width of a letter of small text, in font sizes of the axis labels."""

_MANY = 2000
"""More points than this have small marks."""

_RASTERIZED = 300
"""More points than this are stored as pixels in vector formats."""

_FAR = 4.0
"""A value is an outlier if its distance from the lowest value is more than this many times the 60 %
quantile of these distances."""

_MIN_RANGE = 1e-3
"""Smallest range of an axis, as a share of its values."""


@final
@dataclass(frozen=True)
class Mark:
    """Colour, marker and line style of one line."""

    color: str
    """Colour of line and markers."""

    marker: str
    """Marker of matplotlib."""

    line: str
    """Line style of matplotlib."""

    filled: bool = True
    """Whether markers are filled with the colour."""

    @property
    def style(self) -> dict[str, Any]:
        """Keyword arguments of `Axes.plot`."""
        return {
            "color": self.color,
            "linestyle": self.line,
            "marker": self.marker,
            "markerfacecolor": self.color if self.filled else PAPER,
            "markersize": 4.5,
            "linewidth": 1.5,
        }


_METHODS = {
    "elbo": Mark(INK, "D", "-"),
    "beta-elbo": Mark(GREEN, "o", "-"),
    "fitc": Mark(PURPLE, "^", "-"),
    "fitc-of-elbo": Mark(PURPLE, "^", "--", filled=False),
    "log-joint": Mark(BLUE, "s", "-"),
    "log-fixed": Mark(BLUE, "s", "--", filled=False),
    "square-joint": Mark(ORANGE, "v", "-"),
    "square-fixed": Mark(ORANGE, "v", "--", filled=False),
}
"""Colour by objective; fixed hyperparameters are hollow and dashed."""


def method_mark(name: str) -> Mark:
    """Return the mark of a method, the same in every picture."""
    return _METHODS.get(name, Mark(GREY, "P", ":"))


def require_matplotlib() -> None:
    """Raise `MissingExtraError` if matplotlib is not installed."""
    require_extra("A plot", "plots", "matplotlib")


def canvas(ax: "Axes | None", size: tuple[float, float] = WIDE) -> "Axes":
    """Return the given axes, or axes of a new figure, with a light grid and an open frame."""
    if ax is None:
        require_matplotlib()
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=size, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color=PALE, linewidth=0.8)
    ax.set_axisbelow(True)
    return ax


def axis_name(name: str, width: int = 48) -> str:
    """Wrap a name for an axis or a legend, make it visible, and escape dollar signs."""
    text = textwrap.fill(visible(name, keep="\n"), width).replace("$", r"\$")
    # matplotlib leaves labels that begin with "_" out of legends: a space without width leads.
    return f"\u200b{text}" if text.startswith("_") else text


def lines_of_text(ax: "Axes") -> float:
    """Return the height of the axes in lines of small text."""
    return float(ax.bbox.height * 72 / ax.figure.dpi / (_LINE * _text_size(ax)))


def letters_of_text(ax: "Axes") -> float:
    """Return the width of the axes in average letters of small text."""
    return float(ax.bbox.width * 72 / ax.figure.dpi / (_LETTER * _text_size(ax)))


def _text_size(ax: "Axes") -> float:
    return float(ax.xaxis.label.get_fontproperties().get_size_in_points())


def head_row(ax: "Axes", note: str = "") -> None:
    """Extend the axes upwards, and put the note there, or the legend if there is no note."""
    names = ax.get_legend_handles_labels()[1]
    # The rows of the legend, estimated from the number of letters.
    rows = math.ceil(sum(len(name) + 7 for name in names) / letters_of_text(ax))
    rows = 1 if note else max(1, min(len(names), rows))
    share = min((rows + 0.3) / lines_of_text(ax), 0.4)
    bottom, top = ax.get_ylim()
    # Keep `auto`, so that a later plot on the same axes sets its limits.
    ax.set_ylim(bottom, bottom + (top - bottom) / (1 - share), auto=None)
    if note:
        ax.text(0.02, 1 - share / 2, note, transform=ax.transAxes, va="center", fontsize="small")
        return
    legend = ax.legend(
        loc="upper left",
        ncols=math.ceil(len(names) / rows),
        frameon=False,
        fontsize="small",
        borderaxespad=0.1,
        handlelength=1.6,
        handletextpad=0.5,
        columnspacing=1.3,
    )
    legend.set_in_layout(False)


def mark_empty(ax: "Axes") -> None:
    """Write "not finite" on axes without a finite value."""
    ax.text(0.5, 0.5, "not finite", transform=ax.transAxes, ha="center", va="center")


def clear_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of the finite values without outliers above."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not len(finite):
        return 0.0, 1.0
    low = float(finite.min())
    high = float(finite.max())
    usual = _FAR * float(np.quantile(finite - low, 0.6))
    if 0 < 2 * usual < high - low:
        high = float(finite[finite <= low + usual].max())
    return low, high


def widened(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """Add a margin to a range, which gets a minimum width so that noise stays small."""
    least = _MIN_RANGE * max(abs(low), abs(high)) or 1.0
    extra = max(0.0, least - (high - low)) / 2
    margin = share * max(high - low, least)
    return low - extra - margin, high + extra + margin


def draw_cloud(ax: "Axes", x: Array, y: Array, color: str, label: str = "", among: int = 0) -> None:
    """Draw one mark an example, more transparent the more examples there are.

    `among` is the number of all examples if these are a part. The mark of the legend is opaque.
    """
    count = max(among, len(x), 1)
    ax.scatter(
        x,
        y,
        s=12 if count <= _MANY else 5,
        color=color,
        alpha=min(0.8, max(0.03, 10 / math.sqrt(count))),
        linewidths=0,
        rasterized=count > _RASTERIZED,
        zorder=1.8,
    )
    if label:
        ax.scatter([], [], s=14, color=color, linewidths=0, label=label)
