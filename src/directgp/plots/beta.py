"""Draw losses along β."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from directgp.plots.candidates import KINDS, plot_candidates
from directgp.plots.style import (
    GREY,
    INK,
    Array,
    axis_name,
    canvas,
    head_row,
    letters_of_text,
    lines_of_text,
)
from directgp.text import number, with_error
from directgp.training.result import BetaPath, PathPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICK = 36.0
"""Minimum distance of two ticks, in points."""

_ABOVE = 3.0
"""A loss this many median distances above the best one is drawn as an arrow."""

_BAND = 1.4
"""Factor by which the range of losses may grow to contain standard errors."""

_FOOT = 3.6
"""Lines of text below the best loss, for the description of the chosen candidate."""

_RAISED = {"fixed": 0.08, "joint": 0.02, "elbo": 0.02}
"""Height of arrows above the range of losses as a share of it, of each mode."""


@final
@dataclass(frozen=True)
class BetaAxis:
    """Logarithmic axis of β, with a place for β = 0 left of a break."""

    low: float
    """The smallest β above 0."""

    high: float
    """The largest β."""

    has_zero: bool
    """Whether β = 0 has a place."""

    @classmethod
    def of(cls, betas: Sequence[float]) -> "BetaAxis":
        """Return the axis that contains all β."""
        positive = [beta for beta in betas if beta > 0] or [1.0]
        return cls(min(positive), max(positive), any(beta == 0 for beta in betas))

    def place(self, beta: float) -> float:
        """Return β itself, or the place of 0."""
        return beta if beta > 0 else self.low / 10**self._gap

    def places(self, betas: Sequence[float]) -> Array:
        """Return the place of each β."""
        return np.array([self.place(beta) for beta in betas])

    def across(self, beta: float) -> float:
        """Return the place as a share of the axis."""
        low, high = self._limits
        return math.log(self.place(beta) / low) / math.log(high / low)

    def draw(self, ax: "Axes") -> None:
        """Set scale, limits and ticks, and draw the break before 0."""
        width = ax.bbox.width * 72 / ax.figure.dpi
        places = {tick: number(tick) for tick in self._ticks(max(2, int(width / _TICK)))}
        if self.has_zero:
            places = {self.place(0.0): "0", **places}
        ax.set_xscale("log")
        ax.set_xticks(list(places), list(places.values()))
        ax.minorticks_off()
        ax.set(xlim=self._limits, xlabel="β")
        if self.has_zero:
            middle = self.low / 10 ** (0.5 * self._gap)
            style: Any = {"ha": "center", "va": "center", "fontsize": "small"}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            ax.text(middle, 0, "//", transform=ax.get_xaxis_transform(), bbox=box, **style)

    @property
    def _gap(self) -> float:
        """Decades between 0 and the smallest other β."""
        return max(0.3, 0.12 * math.log10(self.high / self.low))

    @property
    def _limits(self) -> tuple[float, float]:
        first = self.place(0.0) if self.has_zero else self.low
        margin = 10 ** (0.35 * self._gap)
        return first / margin, self.high * margin

    def _ticks(self, limit: int) -> list[float]:
        """Return decades, or finer ticks if there are fewer than three decades."""
        first = math.floor(math.log10(self.low))
        last = math.ceil(math.log10(self.high))
        for steps in ((1,), (1, 2, 5)):
            every = [step * 10.0**k for k in range(first, last + 1) for step in steps]
            ticks = [t for t in every if self.low * 0.999 <= t <= self.high * 1.001]
            if len(ticks) >= 3:
                stride = math.ceil(len(ticks) / limit)
                return ticks[stride - 1 :: stride]
        return sorted({self.low, self.high})


def draw_rings(
    ax: "Axes", axis: BetaAxis, betas: Sequence[float], losses: Sequence[float], color: str
) -> None:
    """Draw rings around the chosen β."""
    style: Any = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.4, "zorder": 4}
    ax.plot(axis.places(betas), losses, "o", markeredgecolor=color, **style)


def plot_beta_path(path: BetaPath, ax: "Axes | None" = None) -> "Axes":
    """Draw the validation loss of every candidate of a path, with a ring around the chosen one.

    Of one model it is drawn along β; candidates of a race differ in more, and have a row each. The
    bands are one standard error of the paired difference from the best candidate, by which the
    choice is made: if a band reaches the dotted line, the candidate is not significantly
    different from the best. Losses far above the others are arrows at the upper edge.
    """
    if any(point.weight is not None for point in path.points):
        return plot_candidates(path, ax)
    points = path.points
    chosen = path.points[path.chosen]
    ax = canvas(ax)
    axis = BetaAxis.of([point.beta for point in points])
    axis.draw(ax)
    ax.set_ylabel(axis_name(f"validation {path.loss.replace('_', ' ')}", 32))
    best, top = _loss_range(points, chosen)
    if math.isnan(best):
        ax.set_yticks([])
        head_row(ax, "no validation loss is finite")
        return ax
    below = min(_FOOT / lines_of_text(ax), 0.4)
    ax.set_ylim(best - (top - best) * below / (1 - below), top + 0.1 * (top - best))
    for kind in KINDS:
        candidates = [point for point in points if point.hyperparameters == kind]
        if candidates:
            _draw_kind(ax, axis, sorted(candidates, key=lambda point: point.beta), kind, best, top)
    ax.axhline(best, color=GREY, linewidth=1.0, linestyle=":")
    # Empty: adds the meaning of the bands to the legend.
    ax.fill_between([], [], color=GREY, alpha=0.3, lw=0, label="± s.e. against best")
    head_row(ax)
    if math.isfinite(chosen.validation_loss):
        _mark_chosen(ax, axis, chosen)
    return ax


def _loss_range(points: Sequence[PathPoint], chosen: PathPoint) -> tuple[float, float]:
    """Return the range of losses without outliers above; NaN if no loss is finite.

    The chosen candidate and the ELBO are always inside.
    """
    losses = np.array([point.validation_loss for point in points])
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return math.nan, math.nan
    best = float(finite.min())
    gaps = finite - best
    usual = min(_ABOVE * float(np.median(gaps)), float(gaps.max()))
    shown = [chosen, *(point for point in points if point.hyperparameters == "elbo")]
    inside = (point.validation_loss - best for point in shown)
    span = 1.1 * max([usual, *(gap for gap in inside if math.isfinite(gap))])
    if not span:
        error = chosen.validation_error
        span = 2 * error if 0 < error < math.inf else 0.1 * abs(best) or 1.0
    ends = [
        point.validation_loss + point.difference_error - best
        for point in points
        if point.validation_loss <= best + span
    ]
    reach = max((end for end in ends if math.isfinite(end)), default=0.0)
    return best, best + max(span, min(reach, _BAND * span))


def _draw_kind(
    ax: "Axes", axis: BetaAxis, points: Sequence[PathPoint], kind: str, best: float, top: float
) -> None:
    """Draw the candidates of one kind: a curve with its band, and arrows above the range."""
    label, color, marker = KINDS[kind]
    raised = _RAISED[kind]
    x = axis.places([point.beta for point in points])
    loss = np.array([point.validation_loss for point in points])
    error = np.array([point.difference_error for point in points])
    high = loss > top
    y = np.where(high, top + raised * (top - best), loss)
    width = np.where(np.isfinite(error) & ~high, error, 0.0)
    if kind == "elbo":
        ax.axhline(y[0], color=color, linewidth=1.2, linestyle="--")
    if len(x) == 1:
        ax.errorbar(x, y, yerr=width, color=color, elinewidth=1.4)
    upper = np.where(high, y, np.minimum(y + width, top))
    ax.fill_between(x, y - width, upper, color=color, alpha=0.18, linewidth=0)
    # Two neighbours above the range are not connected.
    gaps = np.flatnonzero(high[1:] & high[:-1]) + 1
    marked = np.flatnonzero(~np.insert(high, gaps, True)).tolist()
    style: Any = {"linewidth": 1.6, "markersize": 4.5, "markevery": marked, "label": label}
    line = np.insert(x, gaps, x[gaps]), np.insert(y, gaps, np.nan)
    ax.plot(*line, f"-{marker}", color=color, **style)
    ax.plot(x[high], y[high], "^", color=color, markersize=6)


def _mark_chosen(ax: "Axes", axis: BetaAxis, point: PathPoint) -> None:
    """Draw a ring around a candidate, and its description below all curves."""
    elbo = point.hyperparameters == "elbo"
    kind = "ELBO" if elbo else f"{point.hyperparameters}, β = {number(point.beta)}"
    text = f"chosen: {kind}\n{with_error(point.validation_loss, point.validation_error)}"
    x = axis.place(point.beta)
    y = point.validation_loss
    ax.plot([x], [y], "o", markersize=12, mfc="none", mec=INK, mew=1.5)
    half = min(0.5 * max(map(len, text.splitlines())) / letters_of_text(ax), 0.45)
    across = axis.across(point.beta)
    centre = min(max(across, half + 0.02), 0.98 - half)
    start = min(max(0.5 + 0.5 * (across - centre) / half, 0.0), 1.0)
    place: Any = {"xytext": (centre, 0.03), "textcoords": "axes fraction", "ha": "center"}
    line = {"arrowstyle": "-", "lw": 0.8, "shrinkB": 7, "relpos": (start, 1.0)}
    ax.annotate(text, (x, y), **place, va="bottom", fontsize="small", arrowprops=line)
