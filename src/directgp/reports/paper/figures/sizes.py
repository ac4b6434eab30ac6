"""Scores against the number of training rows: fig. 1a, 1b, 1d, 1e and 2 to 7."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from directgp.experiments.methods import METHODS
from directgp.experiments.paper.cells import FitCell, PaperCell
from directgp.experiments.paper.results import FitOutcome, Results
from directgp.reports.figures.inks import Mark, mark_of
from directgp.reports.numbers import short, whole
from directgp.reports.paper.figures.averages import averages
from directgp.reports.paper.figures.axes import size_axis
from directgp.reports.paper.figures.lines import Line, draw_lines, line_range
from directgp.reports.paper.figures.names import told_apart
from directgp.reports.paper.figures.panel import Panel
from directgp.reports.paper.figures.variants import varied

Fits = Sequence[tuple[FitCell, FitOutcome]]


def shows_fits(datasets: Sequence[str], methods: Sequence[str]) -> Callable[[PaperCell], bool]:
    """Whether a cell is a fit of one of these."""
    return lambda cell: (
        isinstance(cell, FitCell) and cell.dataset in datasets and cell.method in methods
    )


def size_panel(results: Results, dataset: str, score: str, label: str) -> Panel | None:
    """Of one data set; None where there is nothing."""
    fits = [(c, o) for c, o in results.fits() if c.dataset == dataset and score in o.scores]
    lines = size_lines(fits, score)
    if not lines:
        return None
    return Panel(dataset, _in_words(lines, label), lambda ax: _draw(ax, lines, label))


def size_lines(fits: Fits, score: str) -> list[Line]:
    """One a way of fitting; the mean at each size is over the repeats that were finished."""
    return [
        Line(name, mark, averages(sorted((float(c.size), o.scores[score]) for c, o in own)))
        for name, mark, own in ways_of_fitting(fits)
    ]


def ways_of_fitting(fits: Fits) -> list[tuple[str, Mark, Fits]]:
    """Name, mark and fits of each method, in the order of the line-up.

    Other rules or protocols are ways of their own, so that nothing is averaged over them.
    """
    order = list(METHODS)
    kinds = sorted({_kind(cell) for cell, _ in fits}, key=lambda k: (order.index(k[0]), *k[1:]))
    names = told_apart([(METHODS[m].label, (rule, f"{how} protocol")) for m, rule, how in kinds])
    ways: list[tuple[str, Mark, Fits]] = []
    for place, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        rivals = [other[0] for other in kinds[:place]].count(kind[0])
        own = [(cell, outcome) for cell, outcome in fits if _kind(cell) == kind]
        ways.append((name, varied(mark_of(METHODS[kind[0]]), rivals), own))
    return ways


def _kind(cell: FitCell) -> tuple[str, str, str]:
    return cell.method, cell.rule.label, cell.protocol


def _in_words(lines: Sequence[Line], label: str) -> str:
    size = max(size for line in lines for size in line.points)
    ends = [
        f"{line.label} {short(line.points[size].mean)}" for line in lines if size in line.points
    ]
    return f"mean test {label} at {whole(int(size))} training rows, {', '.join(ends)}"


def _draw(ax: Axes, lines: Sequence[Line], label: str) -> None:
    draw_lines(ax, lines)
    size_axis(ax, sorted({size for line in lines for size in line.points}))
    ax.set(xlabel="training rows", ylabel=label, ylim=line_range(lines))
    ax.locator_params(axis="y", nbins=6)
