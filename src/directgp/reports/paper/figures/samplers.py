"""Product samplers along training: a figure of ours, S1."""

from collections.abc import Callable

from matplotlib.axes import Axes

from directgp.estimators.plots.canvas import BLUE, GREEN, ORANGE
from directgp.experiments.paper.cells import PaperCell, SamplerCell
from directgp.experiments.paper.results import Results, SamplerLook
from directgp.reports.figures.inks import INK, PURPLE, Mark
from directgp.reports.numbers import short, whole
from directgp.reports.paper.figures.averages import averages
from directgp.reports.paper.figures.axes import ratio_axis
from directgp.reports.paper.figures.base import Slots
from directgp.reports.paper.figures.lines import Line, draw_lines
from directgp.reports.paper.figures.panel import Panel

Looked = dict[str, tuple[Mark, Callable[[SamplerLook], float]]]

_PAPERS, _OURS = Mark(BLUE, "^", "-"), Mark(GREEN, "v", "-")

_PANELS: dict[str, Looked] = {
    "proposals a draw": {
        "by theory": (Mark(INK, "x", ":"), lambda look: look.expected_proposals),
        "uPS, the paper's sampler": (_PAPERS, lambda look: look.proposals.value),
        "with its width held at 1": (
            Mark(PURPLE, "o", "--", filled=False),
            lambda look: look.proposals_narrow.value,
        ),
        "uPS (ours)": (_OURS, lambda look: look.proposals_ours.value),
    },
    "seconds of a draw": {
        "one example at a time": (Mark(INK, "D", "--"), lambda look: look.one_by_one_seconds),
        "all examples at once": (Mark(INK, "D", "-"), lambda look: look.vectorised_seconds),
    },
    "seconds × squared error": {
        "bMC": (Mark(ORANGE, "s", "-"), lambda look: look.bmc_seconds * look.bmc_error),
        "uPS, the paper's sampler": (
            _PAPERS,
            lambda look: look.paper_ups_seconds * look.paper_ups_error,
        ),
        "uPS (ours)": (_OURS, lambda look: look.our_ups_seconds * look.our_ups_error),
    },
}
"""What is looked at, by what vertical axes say."""


def shows_samplers(cell: PaperCell) -> bool:
    """Whether a cell is a study of samplers."""
    return isinstance(cell, SamplerCell)


def sampler_slots(results: Results) -> Slots:
    """Three panels a data set."""
    datasets = sorted({cell.dataset for cell, _ in results.samplers()})
    return {
        f"{dataset}, {label}": _panel(results, dataset, label)
        for dataset in datasets
        for label in _PANELS
    }


def _panel(results: Results, dataset: str, label: str) -> Panel:
    looks = [look for c, out in results.samplers() if c.dataset == dataset for look in out.looks]
    steps = sorted({look.step for look in looks})
    lines = [
        Line(name, mark, averages((float(steps.index(x.step)), number(x)) for x in looks))
        for name, (mark, number) in _PANELS[label].items()
    ]
    ends = ", ".join(f"{line.label} {short(line.means[-1])}" for line in lines)
    words = f"{label} after {whole(steps[-1])} steps, {ends}"
    return Panel(f"{dataset}", words, lambda ax: _draw(ax, lines, steps, label))


def _draw(ax: Axes, lines: list[Line], steps: list[int], label: str) -> None:
    draw_lines(ax, lines)
    ratio_axis(ax)
    ax.set_xticks(range(len(steps)), [whole(step) for step in steps])
    ax.set(xlabel="steps of training (not to scale)", ylabel=label)
