"""One curve of losses along β, with its band; what is too high is an arrow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from directgp.estimators.plots.beta_axis import BetaAxis
from directgp.estimators.plots.candidate import Candidate
from directgp.estimators.plots.canvas import BLUE, GREEN, ORANGE
from directgp.estimators.plots.checks import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Kind:
    """How candidates of one kind are drawn."""

    name: str
    label: str
    color: str
    marker: str

    raised: float
    """Arrows lie this share of the range above it, so that those of two curves stay apart."""


KINDS = (
    Kind("fixed", "fixed", BLUE, "o", 0.08),
    Kind("joint", "joint", ORANGE, "s", 0.02),
    Kind("elbo", "ELBO", GREEN, "D", 0.02),
)


def draw_kind(
    ax: "Axes",
    axis: BetaAxis,
    points: Sequence[Candidate],
    kind: Kind,
    losses: tuple[float, float],
) -> None:
    """Draw the candidates of one kind, where there are any, in a range of losses."""
    if not points:
        return
    ordered = sorted(points, key=lambda point: point.beta)
    x = np.array([axis.place(point.beta) for point in ordered])
    loss = np.array([point.validation_loss for point in ordered])
    error = np.array([point.difference_error for point in ordered])
    best, top = losses
    high = loss > top
    y = np.where(high, top + kind.raised * (top - best), loss)
    width = np.where(np.isfinite(error) & ~high, error, 0.0)
    if kind.name == "elbo":
        ax.axhline(y[0], color=kind.color, linewidth=1.2, linestyle="--")
    if len(x) == 1:
        ax.errorbar(x, y, yerr=width, color=kind.color, elinewidth=1.4)
    upper = np.where(high, y, np.minimum(y + width, top))
    ax.fill_between(x, y - width, upper, color=kind.color, alpha=0.18, linewidth=0)
    _draw_line(ax, x, y, high, kind)
    ax.plot(x[high], y[high], "^", color=kind.color, markersize=6)


def _draw_line(ax: "Axes", x: Array, y: Array, high: NDArray[np.bool_], kind: Kind) -> None:
    """The curve, with a gap between neighbours that are both too high."""
    gaps = np.flatnonzero(high[1:] & high[:-1]) + 1
    marked = np.flatnonzero(~np.insert(high, gaps, True))
    ax.plot(
        np.insert(x, gaps, x[gaps]),
        np.insert(y, gaps, np.nan),
        f"-{kind.marker}",
        color=kind.color,
        linewidth=1.6,
        markersize=4.5,
        markevery=marked.tolist(),
        label=kind.label,
    )
