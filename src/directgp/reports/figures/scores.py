"""Scores of every method, with each repeat."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.datasets.wording import several
from directgp.estimators.plots.canvas import canvas
from directgp.experiments.standings import Estimate, Standing
from directgp.metrics import Score
from directgp.reports.figures.inks import face_of, mark_of
from directgp.reports.figures.picture import Picture
from directgp.reports.figures.ranges import clear_range, widened
from directgp.reports.findings import Findings
from directgp.reports.numbers import decimals_of, number, with_error

_ROW, _FOOT = 0.27, 0.62
"""Height of a method and of the axis below, in inches."""

_NARROW = 6.0


def scores_picture(findings: Findings) -> Picture:
    """NLL and the second score, a row a method."""
    shown = findings.scores[:2]
    return Picture(
        name="scores",
        title=f"{shown[0].label} and {shown[1].label} of every method",
        short=f"{shown[0].label} and {shown[1].label}",
        caption=(
            "Large marks are means with one standard error, small ones single repeats. "
            "Further left is better; values far off are arrows at the edge."
        ),
        alt=" ".join(_in_words(findings.standings, score) for score in shown),
        draw=lambda width: _draw(findings.standings, shown, width),
    )


def _in_words(standings: Sequence[Standing], score: Score) -> str:
    found = [standing.scores[score.name] for standing in standings]
    decimals = decimals_of([e.mean for e in found], [e.error for e in found])
    values = [
        f"{standing.method.label} {with_error(each.mean, each.error, decimals)}"
        for standing, each in zip(standings, found, strict=True)
    ]
    repeats = several(len(found[0].values), "repeat")
    return f"{score.label}, mean of {repeats}: {'; '.join(values)}."


def _draw(standings: Sequence[Standing], shown: Sequence[Score], width: float) -> Figure:
    stacked = width < _NARROW
    height = _ROW * len(standings) + _FOOT
    rows, columns = (len(shown), 1) if stacked else (1, len(shown))
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=not stacked).ravel()
    for ax, score in zip(axes, shown, strict=True):
        _draw_score(canvas(ax), standings, score)
    return figure


def _draw_score(ax: Axes, standings: Sequence[Standing], score: Score) -> None:
    found = [standing.scores[score.name] for standing in standings]
    low, high = widened(*clear_range([value for each in found for value in _reach(each)]))
    for row, (standing, each) in enumerate(zip(standings, found, strict=True)):
        _draw_row(ax, standing, each, row, high)
    ax.set_yticks(range(len(standings)), [standing.method.label for standing in standings])
    ax.set(
        xlim=(low, high),
        ylim=(len(standings) - 0.4, -0.6),
        xlabel=f"{score.label} (lower is better)",
    )
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.locator_params(axis="x", nbins=6)


def _reach(estimate: Estimate) -> list[float]:
    """All that should be seen of a method."""
    error = estimate.error if math.isfinite(estimate.error) else 0.0
    return [*estimate.values, estimate.mean - error, estimate.mean + error]


def _draw_row(ax: Axes, standing: Standing, estimate: Estimate, row: int, high: float) -> None:
    mark = mark_of(standing.method)
    _draw_repeats(ax, [value for value in estimate.values if value <= high], mark.color, row)
    if not math.isfinite(estimate.mean) or estimate.mean > high:
        _draw_far(ax, estimate.mean, mark.color, row)
        return
    error = estimate.error if math.isfinite(estimate.error) else 0.0
    ax.errorbar(
        estimate.mean,
        row,
        xerr=error,
        fmt=mark.marker,
        color=mark.color,
        markerfacecolor=face_of(standing.method),
        markersize=6,
        elinewidth=1.6,
        zorder=3,
    )


def _draw_repeats(ax: Axes, values: Sequence[float], color: str, row: int) -> None:
    # Nothing that is not clipped may be empty: the layout would make room for it without end.
    if values:
        (dots,) = ax.plot(values, [row] * len(values), "o", color=color, markersize=3.2)
        dots.set(alpha=0.35, markeredgewidth=0, clip_on=False)


def _draw_far(ax: Axes, mean: float, color: str, row: int) -> None:
    """An arrow at the edge, and how far it goes."""
    at = ax.get_yaxis_transform()
    ax.plot(0.985, row, ">", color=color, markersize=6, transform=at, clip_on=False)
    text = "not finite" if not math.isfinite(mean) else number(mean, 1)
    ax.text(0.96, row, text, transform=at, ha="right", va="center", fontsize="small")
