"""Share axes, colours, legends and input checks between pictures."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from directgp.errors import require

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


Array = NDArray[np.float64]


def column(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """The values as floats, refused unless they are a non-empty array of one axis."""
    array = np.asarray(values, dtype=np.float64)
    require(array.ndim == 1 and len(array) > 0, who, "one axis of values", f"shape {array.shape}")
    if length is not None:
        require(len(array) == length, who, f"{length} values, as the others are", len(array))
    return array


def finite(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """A column, refused where a value is NaN or infinite."""
    array = column(values, who, length)
    _require_each(np.isfinite(array), array, who, "finite")
    return array


def shares(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """A column of values from 0 to 1."""
    array = column(values, who, length)
    _require_each((array >= 0) & (array <= 1), array, who, "from 0 to 1")
    return array


def labels(values: ArrayLike, who: str, length: int | None = None) -> Array:
    """A column of 0 and 1."""
    array = column(values, who, length)
    _require_each((array == 0) | (array == 1), array, who, "labels 0 and 1")
    return array


def interval(lower: ArrayLike, upper: ArrayLike, length: int) -> tuple[Array, Array]:
    """The ends of intervals, in order."""
    low, high = column(lower, "lower", length), column(upper, "upper", length)
    _require_each(low <= high, low, "lower", "at most upper")
    return low, high


def check_coverage(coverage: float) -> None:
    """Refuse a share of the predictive mass that no interval has."""
    require(0 < coverage < 1, "coverage", "between 0 and 1", coverage)


def check_bins(bins: int) -> None:
    """Refuse a number of bins that is none."""
    require(bins >= 1, "bins", "at least 1", bins)


def _require_each(mask: NDArray[np.bool_], array: Array, who: str, allowed: str) -> None:
    if not mask.all():
        first = int(np.argmin(mask))
        require(False, who, allowed, f"{array[first].item()!r} at index {first}")


_MANY = 2000


def draw_cloud(ax: "Axes", x: Array, y: Array, color: str, label: str = "", among: int = 0) -> None:
    """One mark an example, the fainter the more there are, so that the dense parts show.

    Parameters
    ----------
    ax, x, y, color
        Where and how to draw.
    label
        For the legend, where the mark is not faint.
    among
        Number of examples in all, where these are a part.
    """
    count = max(among, len(x), 1)
    ax.scatter(
        x,
        y,
        s=12 if count <= _MANY else 5,
        color=color,
        alpha=min(0.8, max(0.03, 10 / math.sqrt(count))),
        linewidths=0,
        rasterized=count > _MANY,
        zorder=1.8,
    )
    if label:
        ax.scatter([], [], s=14, color=color, linewidths=0, label=label)
