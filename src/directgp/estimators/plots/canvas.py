"""What all pictures share: axes, colours, and a row for the legend that covers no data."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
"""Of the palette by Okabe and Ito, told apart by colour-blind readers too."""

INK, GREY, PALE = "0.15", "0.45", "0.92"

WIDE, SQUARE = (6.0, 3.8), (4.6, 4.6)

_LINE, _LETTER = 1.6, 0.47
"""Height of a line and width of a letter of small text, in font sizes of the axis labels."""


def canvas(ax: "Axes | None", size: tuple[float, float] = WIDE) -> "Axes":
    """The axes that were given, or those of a new figure; with a light grid and an open frame."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=size, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color=PALE, linewidth=0.8)
    ax.set_axisbelow(True)
    return ax


def lines_of_text(ax: "Axes") -> float:
    """How many lines of small text the axes are high."""
    return float(ax.bbox.height * 72 / ax.figure.dpi / (_LINE * _text_size(ax)))


def letters_of_text(ax: "Axes") -> float:
    """How many letters of small text the axes are wide, by a letter of usual width."""
    return float(ax.bbox.width * 72 / ax.figure.dpi / (_LETTER * _text_size(ax)))


def head_row(ax: "Axes", note: str = "") -> None:
    """Make room above the data; the note goes there, or the legend where there is none."""
    names = ax.get_legend_handles_labels()[1]
    rows = 1 if note else _legend_rows(ax, names)
    share = min((rows + 0.3) / lines_of_text(ax), 0.4)
    bottom, top = ax.get_ylim()
    # A later plot on the same axes finds its own limits, as `auto` is left as it was.
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


def _legend_rows(ax: "Axes", names: Sequence[str]) -> int:
    """Rows that the legend needs, guessed from the letters: nothing is drawn yet."""
    rows = math.ceil(sum(len(name) + 7 for name in names) / letters_of_text(ax))
    return max(1, min(len(names), rows))


def _text_size(ax: "Axes") -> float:
    return float(ax.xaxis.label.get_fontproperties().get_size_in_points())


def axis_name(name: str, width: int = 48) -> str:
    """A name for an axis: broken into lines, and a dollar sign is only a dollar sign."""
    return textwrap.fill(name, width).replace("$", r"\$")


def percent(share: float) -> str:
    """``0.9`` as ``90 %``."""
    return f"{100 * share:.4g} %"
