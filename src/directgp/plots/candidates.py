"""Draw the validation losses of the candidates of a race."""

import math
from typing import TYPE_CHECKING, Any

from directgp.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAPER,
    WIDE,
    axis_name,
    canvas,
    clear_range,
    head_row,
    letters_of_text,
    lines_of_text,
    widened,
)
from directgp.text import one_line, percent, with_error
from directgp.training.result import BetaPath, PathPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {
    "fixed": ("fixed", BLUE, "o"),
    "joint": ("joint", ORANGE, "s"),
    "elbo": ("ELBO", GREEN, "D"),
}
"""Label, colour and marker of each mode."""

_ROW = 0.32
"""Height of a candidate in a figure of its own, in inches."""

_FRAME = 1.0
"""Height of legend and axis in a figure of its own, in inches."""

_LINES = 1.7
"""Lines of text that a candidate needs on axes of the user: its name, and its mark."""

_MARGIN = 0.08
"""Margin beside the losses, with room for a weight, as a share of their range."""

_LETTERS = 1.2
"""Letters of the names of candidates for each average letter: most of theirs are narrow."""

_RING = 60.0
"""Area of the ring of a weight of 0; that of a weight of 1 is nine times as large."""


def plot_candidates(path: BetaPath, ax: "Axes | None" = None) -> "Axes":
    """Draw a mark for each candidate of a race at its validation loss, the best first.

    Bars are one standard error of the paired difference from the best candidate. Rings mark the
    members of the result; their areas grow with the weights, which stand beside them. Losses far
    above the others are arrows at the right. Axes with little room have the members and the best
    others.
    """
    room = len(path.points)
    if ax is None:
        ax = canvas(None, (WIDE[0], _FRAME + _ROW * (room + 1)))
    else:
        ax = canvas(ax)
        room = int(lines_of_text(ax) / _LINES) - 1
    ax.grid(False, axis="y")
    ax.set_yticks([])
    ax.set_xlabel(axis_name(f"validation {path.loss.replace('_', ' ')}"))
    points = _shown(path, room)
    more = len(path.points) - len(points)
    rest = f" ({more:,} more above)" if more else ""
    ax.set_ylabel(f"candidates, the best first{rest}")
    low, high = clear_range([point.validation_loss for point in points])
    ends = [low, high, *(value for value in _mixture_ends(path) if math.isfinite(value))]
    left, right = widened(min(ends), max(ends), _MARGIN)
    ax.set(xlim=(left, right), ylim=(-0.5, len(points) - 0.3))
    if path.mixture_loss is not None:
        _draw_mixture(ax, path)
    for mode, (label, color, marker) in KINDS.items():
        if any(point.hyperparameters == mode for point in points):
            # Empty: adds the mode to the legend.
            ax.plot([], [], marker, color=color, ms=4.5, label=label)
    for row, point in enumerate(reversed(points)):
        _draw_candidate(ax, point, row, right)
    head_row(ax)
    return ax


def _shown(path: BetaPath, room: int) -> list[PathPoint]:
    """Return the members and as many of the best others as there is room for, the best first."""
    ranked = sorted(path.points, key=_rank)
    others = [point for point in ranked if not point.weight]
    free = max(0, max(1, room) - (len(ranked) - len(others)))
    left_out = {id(point) for point in others[free:]}
    return [point for point in ranked if id(point) not in left_out]


def _rank(point: PathPoint) -> float:
    loss = point.validation_loss
    return math.inf if math.isnan(loss) else loss


def _mixture_ends(path: BetaPath) -> tuple[float, ...]:
    if path.mixture_loss is None or path.mixture_error is None:
        return ()
    return path.mixture_loss - path.mixture_error, path.mixture_loss + path.mixture_error


def _draw_mixture(ax: "Axes", path: BetaPath) -> None:
    """Draw a line at the loss of the mixture, with a band of one standard error."""
    loss, error = path.validated
    ax.axvline(loss, color=INK, lw=1.2, ls="--", label=f"mixture {with_error(loss, error)}")
    if math.isfinite(error):
        ax.axvspan(loss - error, loss + error, color=GREY, alpha=0.15, linewidth=0)


def _draw_candidate(ax: "Axes", point: PathPoint, row: int, right: float) -> None:
    """Draw name, loss and weight of a candidate in a row."""
    _, color, marker = KINDS[point.hyperparameters]
    name = one_line(point.label, max(8, int(_LETTERS * letters_of_text(ax))))
    across = ax.get_yaxis_transform()
    text: Any = {"fontsize": "small", "transform": across, "va": "bottom"}
    box = {"facecolor": PAPER, "alpha": 0.7, "edgecolor": "none", "pad": 0.5}
    ax.text(0.005, row + 0.12, name.replace("$", r"\$"), color=INK, bbox=box, **text)
    loss, error = point.validation_loss, point.difference_error
    inside = loss <= right
    face = color if point.weight else PAPER
    style: Any = {"color": color, "mfc": face, "ms": 4.5, "ls": "none"}
    x, y, frame = loss, row - 0.1, ax.transData
    if inside:
        bar = error if math.isfinite(error) else 0.0
        ax.errorbar([x], [y], xerr=[bar], color=color, elinewidth=1.2, linestyle="none")
    else:
        x, frame, marker = 0.97, across, ">"
    ax.plot([x], [y], marker, transform=frame, **style)
    if point.weight:
        area = _RING * (1 + 8 * point.weight)
        ring: Any = {"facecolors": "none", "edgecolors": INK, "lw": 1.2, "zorder": 4}
        ax.scatter([x], [y], s=area, transform=frame, **ring)
        offset = 4 + math.sqrt(area) / 2
        place: Any = {"xytext": (offset, 0), "textcoords": "offset points", "ha": "left"}
        if not inside:
            place |= {"xytext": (-offset, 0), "ha": "right"}
        weight = percent(point.weight, 0)
        ax.annotate(weight, (x, y), xycoords=frame, va="center", fontsize="small", **place)
