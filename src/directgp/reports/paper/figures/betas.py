"""Validation NLL against β: fig. 1c and the last column of fig. 2."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from directgp.estimators.plots.beta_axis import BetaAxis
from directgp.experiments.paper.results import Results
from directgp.reports.figures.inks import GREY, Mark
from directgp.reports.numbers import short, whole
from directgp.reports.paper.figures.averages import averages
from directgp.reports.paper.figures.lines import Line, draw_lines, line_range
from directgp.reports.paper.figures.panel import Panel
from directgp.reports.paper.figures.sizes import Fits, ways_of_fitting

CHOOSING = ("beta-elbo", "log-joint", "log-fixed")
"""Methods whose β is chosen by NLL."""

SMALL_SIZE = 691
"""Training rows of fig. 1c."""


def small_size(results: Results, dataset: str) -> int | None:
    """The size of the paper's figure, or the one nearest to it by ratio."""
    sizes = _sizes(results, dataset)
    return min(sizes, key=lambda size: abs(math.log(size / SMALL_SIZE)), default=None)


def largest_size(results: Results, dataset: str) -> int | None:
    """If it is another than the small one."""
    largest = max(_sizes(results, dataset), default=None)
    return None if largest == small_size(results, dataset) else largest


def beta_panel(results: Results, dataset: str, size: int | None) -> Panel | None:
    """At one size; None where there is nothing."""
    fits = [
        (cell, outcome)
        for cell, outcome in results.fits()
        if (cell.dataset, cell.size) == (dataset, size) and cell.method in CHOOSING and outcome.path
    ]
    if size is None or not fits:
        return None
    lines = [(_line(*way), sorted(o.beta for _, o in way[2])) for way in ways_of_fitting(fits)]
    words = [f"{line.label} chose β = {', '.join(map(short, betas))}" for line, betas in lines]
    title = f"{dataset}, {whole(size)} rows"
    return Panel(title, "; ".join(words), lambda ax: _draw(ax, lines))


def _sizes(results: Results, dataset: str) -> set[int]:
    return {
        cell.size
        for cell, outcome in results.fits()
        if cell.dataset == dataset and cell.method in CHOOSING and outcome.path
    }


def _line(name: str, mark: Mark, fits: Fits) -> Line:
    """Means over repeats, at the values of β that every repeat has tried."""
    paths = [{point.beta: point.validation for point in outcome.path} for _, outcome in fits]
    common = sorted(set.intersection(*map(set, paths)))
    return Line(name, mark, averages((beta, path[beta]) for beta in common for path in paths))


def _draw(ax: Axes, lines: Sequence[tuple[Line, list[float]]]) -> None:
    """Lines, and rings around the points that repeats have chosen."""
    axis = BetaAxis.of([beta for line, _ in lines for beta in line.points])
    ax.axvline(1.0, color=GREY, linewidth=1.0, linestyle=":")
    draw_lines(ax, [_placed(line, axis) for line, _ in lines])
    for line, chosen in lines:
        _draw_rings(ax, line, axis, chosen)
    axis.draw(ax)
    ax.set(ylabel="validation NLL", ylim=line_range([line for line, _ in lines]))
    ax.locator_params(axis="y", nbins=6)


def _placed(line: Line, axis: BetaAxis) -> Line:
    points = {axis.place(beta): each for beta, each in line.points.items()}
    return Line(line.label, line.mark, points)


def _draw_rings(ax: Axes, line: Line, axis: BetaAxis, betas: Sequence[float]) -> None:
    kept = [beta for beta in dict.fromkeys(betas) if beta in line.points]
    ax.plot(
        [axis.place(beta) for beta in kept],
        [line.points[beta].mean for beta in kept],
        "o",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=line.mark.color,
        markeredgewidth=1.3,
        zorder=4,
    )
