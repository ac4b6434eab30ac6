"""Learning curves, score against epoch or step: fig. 1f, 1i, 8 and 10 to 16."""

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from matplotlib.axes import Axes

from directgp.experiments.paper.cells import CurveCell, PaperCell
from directgp.experiments.paper.results import CurveOutcome, Results
from directgp.reports.numbers import short
from directgp.reports.paper.figures.averages import Average, averages
from directgp.reports.paper.figures.axes import step_axis
from directgp.reports.paper.figures.curve_looks import Look, particulars
from directgp.reports.paper.figures.lines import Line, draw_lines, line_range
from directgp.reports.paper.figures.names import told_apart
from directgp.reports.paper.figures.panel import Panel
from directgp.reports.paper.figures.variants import varied

Against = Literal["epoch", "step"]
Curves = Sequence[tuple[CurveCell, CurveOutcome]]

_SETTLED = 0.2
"""Share of the horizontal axis that does not decide on the range of the vertical one."""


def shows_objectives(dataset: str) -> Callable[[PaperCell], bool]:
    """Whether a cell is a curve without sampling."""
    return lambda cell: (
        isinstance(cell, CurveCell) and cell.dataset == dataset and cell.rule.name == "exact"
    )


def shows_rules(
    datasets: Sequence[str], rules: Sequence[str], betas: Sequence[float] = ()
) -> Callable[[PaperCell], bool]:
    """Whether a cell is a joint log-loss curve by one of the rules, of these β if given."""
    return lambda cell: (
        isinstance(cell, CurveCell)
        and cell.dataset in datasets
        and cell.objective == "log_loss"
        and cell.hyperparameters == "joint"
        and cell.rule.name in rules
        and (not betas or cell.beta in betas)
    )


def curves_of(results: Results, dataset: str, beta: float | None = None) -> Curves:
    """Those of a data set, and of one β if given."""
    return [
        (cell, outcome)
        for cell, outcome, _ in results.curves()
        if cell.dataset == dataset and beta in (None, cell.beta)
    ]


def curve_panel(
    title: str, curves: Curves, label: str, against: Against, look: Callable[[CurveCell], Look]
) -> Panel | None:
    """A score, named by its label, along training; None where there is nothing."""
    lines = _lines([pair for pair in curves if _has(pair[1], label)], label, against, look)
    if not lines:
        return None
    ends = [(line.label, *list(line.points.items())[-1]) for line in lines]
    words = ", ".join(
        f"{name} {short(each.mean)} at {against} {short(x)}" for name, x, each in ends
    )
    return Panel(title, f"mean test {label}, {words}", lambda ax: _draw(ax, lines, label, against))


def _has(outcome: CurveOutcome, label: str) -> bool:
    return bool(outcome.points) and all(label.lower() in each.scores for each in outcome.points)


def _lines(
    curves: Curves, label: str, against: Against, look: Callable[[CurveCell], Look]
) -> list[Line]:
    """One a way of training, means over its repeats."""
    ways: dict[Hashable, list[tuple[CurveCell, CurveOutcome]]] = {}
    for cell, outcome in sorted(curves, key=lambda pair: look(pair[0]).place):
        ways.setdefault(cell.but(repeat=0, seed=0), []).append((cell, outcome))
    looks = [look(runs[0][0]) for runs in ways.values()]
    told = [particulars(runs[0][0]) for runs in ways.values()]
    names = told_apart([(each.label, more) for each, more in zip(looks, told, strict=True)])
    return [
        Line(name, varied(looks[k].mark, _earlier(looks, k)), _points(runs, label, against))
        for k, (name, runs) in enumerate(zip(names, ways.values(), strict=True))
    ]


def _earlier(looks: Sequence[Look], place: int) -> int:
    """How many before this one have its name."""
    return [each.label for each in looks[:place]].count(looks[place].label)


def _points(runs: Curves, label: str, against: Against) -> dict[float, Average]:
    return averages(
        (point.epoch if against == "epoch" else float(point.step), point.scores[label.lower()])
        for _, outcome in runs
        for point in outcome.points
    )


def _draw(ax: Axes, lines: Sequence[Line], label: str, against: Against) -> None:
    draw_lines(ax, lines)
    last = max(x for line in lines for x in line.points)
    ax.set(xlabel=against, ylabel=label, ylim=line_range(lines, _SETTLED * last))
    ax.locator_params(nbins=6)
    if against == "step":
        step_axis(ax)
