"""The validation loss along β."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from directgp.errors import require
from directgp.estimators.plots.beta_axis import BetaAxis
from directgp.estimators.plots.beta_curve import KINDS, draw_kind
from directgp.estimators.plots.candidate import Candidate, loss_range
from directgp.estimators.plots.canvas import (
    GREY,
    INK,
    axis_name,
    canvas,
    head_row,
    letters_of_text,
    lines_of_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FOOT = 3.6
"""Lines of text that have room below the best loss, for what is said of the chosen one."""


def plot_beta_path(
    points: Sequence[Candidate], chosen: int, loss: str, ax: "Axes | None" = None
) -> "Axes":
    """Validation loss of every candidate of a path, with the chosen one ringed.

    The bands are one standard error of the paired difference from the best candidate, by which
    the choice is made: where a band reaches the dotted line, the candidate is not distinguishable
    from the best. Losses far above the others are arrows at the upper edge.

    Parameters
    ----------
    points
        Such as `directgp.training.BetaPath.points`.
    chosen
        Index of the chosen one.
    loss
        Name of the loss that is compared, such as "log_loss".
    ax
        Axes to draw on; a new figure unless given.
    """
    _check(points, chosen)
    ax = canvas(ax)
    axis = BetaAxis.of([point.beta for point in points])
    axis.draw(ax)
    ax.set_ylabel(axis_name(f"validation {loss.replace('_', ' ')}", 32))
    best, top = loss_range(points, chosen)
    if math.isnan(best):
        ax.set_yticks([])
        head_row(ax, "no validation loss is finite")
        return ax
    below = min(_FOOT / lines_of_text(ax), 0.4)
    ax.set_ylim(best - (top - best) * below / (1 - below), top + 0.1 * (top - best))
    for kind in KINDS:
        draw_kind(
            ax, axis, [p for p in points if p.hyperparameters == kind.name], kind, (best, top)
        )
    ax.axhline(best, color=GREY, linewidth=1.0, linestyle=":")
    # Nothing is drawn by this: it puts the meaning of the bands into the legend.
    ax.fill_between([], [], color=GREY, alpha=0.3, lw=0, label="± s.e. against best")
    head_row(ax)
    if math.isfinite(points[chosen].validation_loss):
        _mark_chosen(ax, axis, points[chosen])
    return ax


def _check(points: Sequence[Candidate], chosen: int) -> None:
    require(len(points) > 0, "points", "at least one candidate", "none")
    require(0 <= chosen < len(points), "chosen", f"an index below {len(points)}", chosen)
    for point in points:
        require(0 <= point.beta < math.inf, "each β", "finite and at least 0", point.beta)
        name, names = point.hyperparameters, [kind.name for kind in KINDS]
        require(name in names, "hyperparameters", f"one of {names}", repr(name))


def _mark_chosen(ax: "Axes", axis: BetaAxis, point: Candidate) -> None:
    """A ring, and below all curves what it is."""
    x, y, text = axis.place(point.beta), point.validation_loss, _description(point)
    ax.plot([x], [y], "o", markersize=12, mfc="none", mec=INK, mew=1.5)
    half = min(0.5 * max(map(len, text.splitlines())) / letters_of_text(ax), 0.45)
    across = axis.across(point.beta)
    centre = min(max(across, half + 0.02), 0.98 - half)
    start = min(max(0.5 + 0.5 * (across - centre) / half, 0.0), 1.0)
    ax.annotate(
        text,
        (x, y),
        xytext=(centre, 0.03),
        textcoords="axes fraction",
        ha="center",
        va="bottom",
        fontsize="small",
        arrowprops={"arrowstyle": "-", "lw": 0.8, "shrinkB": 7, "relpos": (start, 1.0)},
    )


def _description(point: Candidate) -> str:
    kind = f"{point.hyperparameters}, β = {point.beta:.3g}"
    if point.hyperparameters == "elbo":
        kind = "ELBO"
    return f"chosen: {kind}\n{_with_error(point.validation_loss, point.validation_error)}"


def _with_error(value: float, error: float) -> str:
    """A value with two digits of its standard error, as far as there is one."""
    if not 0 < error < math.inf:
        return f"{value:.4g}".replace("-", "−")
    decimals = 1 - math.floor(math.log10(error))
    form = f".{max(decimals, 0)}f" if -3 <= decimals <= 5 else ".2e"
    return f"{value:{form}} ± {error:{form}}".replace("-", "−")
