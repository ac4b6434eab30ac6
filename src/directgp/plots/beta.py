"""Draw the validation loss along β."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from directgp.errors import require
from directgp.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    Array,
    axis_name,
    canvas,
    head_row,
    letters_of_text,
    lines_of_text,
)
from directgp.text import with_error
from directgp.training.result import PathPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TICK = 36.0
"""Least distance of two ticks, in points."""


@dataclass(frozen=True)
class BetaAxis:
    """Where each β lies, and which have a tick."""

    low: float
    """The smallest β above 0."""

    high: float

    has_zero: bool

    @classmethod
    def of(cls, betas: Sequence[float]) -> "BetaAxis":
        """The axis on which all of these have a place."""
        positive = [beta for beta in betas if beta > 0] or [1.0]
        return cls(min(positive), max(positive), any(beta == 0 for beta in betas))

    def place(self, beta: float) -> float:
        """β itself; and for 0, a place left of all others."""
        return beta if beta > 0 else self.low / 10**self._gap

    def across(self, beta: float) -> float:
        """The place as a share of the axis."""
        low, high = self._limits
        return math.log(self.place(beta) / low) / math.log(high / low)

    def draw(self, ax: "Axes") -> None:
        """Set scale, limits and ticks, and break the axis where 0 stands apart."""
        width = ax.bbox.width * 72 / ax.figure.dpi
        places = {tick: _text(tick) for tick in self._ticks(max(2, int(width / _TICK)))}
        if self.has_zero:
            places = {self.place(0.0): "0", **places}
        ax.set_xscale("log")
        ax.set_xticks(list(places), list(places.values()))
        ax.minorticks_off()
        ax.set(xlim=self._limits, xlabel="β")
        if self.has_zero:
            self._draw_break(ax)

    def _draw_break(self, ax: "Axes") -> None:
        ax.text(
            self.low / 10 ** (0.5 * self._gap),
            0,
            "//",
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="center",
            fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )

    @property
    def _gap(self) -> float:
        """Decades between 0 and the smallest other β."""
        return max(0.3, 0.12 * math.log10(self.high / self.low))

    @property
    def _limits(self) -> tuple[float, float]:
        first = self.place(0.0) if self.has_zero else self.low
        margin = 10 ** (0.35 * self._gap)
        return first / margin, self.high * margin

    def _ticks(self, most: int) -> list[float]:
        """Decades, or finer where there are few."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for steps in ((1,), (1, 2, 5)):
            every = [step * 10.0**k for k in range(first, last + 1) for step in steps]
            ticks = [t for t in every if self.low * 0.999 <= t <= self.high * 1.001]
            if len(ticks) >= 3:
                stride = math.ceil(len(ticks) / most)
                return ticks[stride - 1 :: stride]
        return sorted({self.low, self.high})


def _text(beta: float) -> str:
    exponent = round(math.log10(beta))
    if -3 <= exponent <= 4:
        return f"{beta:.3g}" if beta < 1000 else f"{beta:.0f}"
    return f"$10^{{{exponent}}}$" if math.isclose(beta, 10.0**exponent) else f"{beta:.1e}"


_ABOVE = 3.0
"""A curve leaves the picture this many median distances above the best loss."""


_BAND = 1.4
"""The range is widened up to this factor to hold standard errors."""


def loss_range(points: Sequence[PathPoint], chosen: int) -> tuple[float, float]:
    """From the best loss up to where a loss is far above most others; NaN where none is finite.

    The chosen candidate and the ELBO are always inside.
    """
    losses = np.array([point.validation_loss for point in points])
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return math.nan, math.nan
    best = float(finite.min())
    gaps = finite - best
    usual = min(_ABOVE * float(np.median(gaps)), float(gaps.max()))
    elbo = [point for point in points if point.hyperparameters == "elbo"]
    kept = [point.validation_loss - best for point in (points[chosen], *elbo)]
    span = 1.1 * max([usual, *(gap for gap in kept if math.isfinite(gap))])
    span = span or _width_of_one(best, points[chosen].validation_error)
    return best, best + max(span, min(_band_above(points, best, span), _BAND * span))


def _band_above(points: Sequence[PathPoint], best: float, span: float) -> float:
    """How far above the best loss the standard errors of what is inside reach."""
    inside = [point for point in points if point.validation_loss <= best + span]
    ends = [point.validation_loss + point.difference_error - best for point in inside]
    return max((end for end in ends if math.isfinite(end)), default=0.0)


def _width_of_one(loss: float, error: float) -> float:
    """A range for losses that are all equal."""
    return 2 * error if 0 < error < math.inf else 0.1 * abs(loss) or 1.0


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
    points: Sequence[PathPoint],
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


_FOOT = 3.6
"""Lines of text that have room below the best loss, for what is said of the chosen one."""


def plot_beta_path(
    points: Sequence[PathPoint], chosen: int, loss: str, ax: "Axes | None" = None
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


def _check(points: Sequence[PathPoint], chosen: int) -> None:
    require(len(points) > 0, "points", "at least one candidate", "none")
    require(0 <= chosen < len(points), "chosen", f"an index below {len(points)}", chosen)
    for point in points:
        require(0 <= point.beta < math.inf, "each β", "finite and at least 0", point.beta)
        name, names = point.hyperparameters, [kind.name for kind in KINDS]
        require(name in names, "hyperparameters", f"one of {names}", repr(name))


def _mark_chosen(ax: "Axes", axis: BetaAxis, point: PathPoint) -> None:
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


def _description(point: PathPoint) -> str:
    kind = f"{point.hyperparameters}, β = {point.beta:.3g}"
    if point.hyperparameters == "elbo":
        kind = "ELBO"
    return f"chosen: {kind}\n{with_error(point.validation_loss, point.validation_error)}"
