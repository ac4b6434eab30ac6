"""Draw the figures of the paper from results."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from directgp.experiments.cell import METHODS
from directgp.experiments.paper.cells import (
    CurveCell,
    CurveOutcome,
    FitCell,
    FitOutcome,
    GradientCell,
    PaperCell,
    Results,
    RuleFacts,
    SamplerCell,
    SamplerLook,
)
from directgp.plots.beta import BetaAxis
from directgp.plots.style import BLUE, GREEN, ORANGE
from directgp.reports.drawing import GREY, INK, PURPLE, Mark, Picture, mark_of
from directgp.reports.paper_drawing import (
    Average,
    Layout,
    Line,
    Panel,
    arranged,
    averages,
    draw_lines,
    inches_across,
    line_range,
    mark_of_beta,
    mark_of_rule,
    ratio_axis,
    size_axis,
    step_axis,
    told_apart,
    varied,
)
from directgp.text import joined, number, plural

MAIN, APPENDIX = "main text", "appendix"
"""Where a figure is in the paper."""

Slots = dict[str, Panel | None]
"""The panels that a figure of the paper has, by what is in them; None where it was not run."""


@final
@dataclass(frozen=True)
class Figure:
    """What it shows, what it needs, and how its panels come from results."""

    name: str
    """As the paper numbers it: "1a", "2"; ours begin with S."""

    title: str
    caption: str
    where: str
    """In the paper."""

    uses: Callable[[PaperCell], bool]
    """Whether it shows a cell."""

    slots: Callable[[Results], Slots]
    """Its panels, given the cells that it shows."""

    layout: Layout = field(default_factory=Layout)

    @property
    def file(self) -> str:
        """Name of its files, and of its place on the page."""
        return f"figure-{self.name.lower()}"

    def picture(self, results: Results) -> Picture | None:
        """None where nothing of it was run."""
        shown = Results(tuple(record for record in results.records if self.uses(record.cell)))
        slots = self.slots(shown)
        panels = [panel for panel in slots.values() if panel]
        if not panels:
            return None
        return Picture(
            name=self.file,
            title=f"Figure {self.name}. {self.title}",
            short=self.name,
            caption=self.caption
            + _absent([name for name, panel in slots.items() if not panel])
            + self._open(results),
            alt=" ".join(f"{panel.title}: {panel.words}." for panel in panels),
            draw=lambda width: arranged(panels, self.layout, width),
        )

    def _open(self, results: Results) -> str:
        """How many of its cells lines lack, so that they are not taken for the whole."""
        failed = sum(self.uses(each.cell) for each in results.failed)
        missing = sum(map(self.uses, results.missing))
        lacking = [
            f"{plural(number, 'cell')} {what}"
            for number, what in ((missing, "not run"), (failed, "failed"))
            if number
        ]
        return f" Of this figure, {joined(lacking)}." if lacking else ""


def _absent(names: list[str]) -> str:
    return f" Not run: {joined(names)}." if names else ""


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
    return Panel(dataset, _in_words(lines, label), lambda ax: _draw_sizes(ax, lines, label))


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
        f"{line.label} {number(line.points[size].mean)}" for line in lines if size in line.points
    ]
    return f"mean test {label} at {int(size):,} training rows, {', '.join(ends)}"


def _draw_sizes(ax: Axes, lines: Sequence[Line], label: str) -> None:
    draw_lines(ax, lines)
    size_axis(ax, sorted({size for line in lines for size in line.points}))
    ax.set(xlabel="training rows", ylabel=label, ylim=line_range(lines))
    ax.locator_params(axis="y", nbins=6)


CHOOSING = ("beta-elbo", "log-joint", "log-fixed")
"""Methods whose β is chosen by NLL."""

SMALL_SIZE = 691
"""Training rows of fig. 1c."""


def small_size(results: Results, dataset: str) -> int | None:
    """The size of the paper's figure, or the one nearest to it by ratio."""
    sizes = _beta_sizes(results, dataset)
    return min(sizes, key=lambda size: abs(math.log(size / SMALL_SIZE)), default=None)


def largest_size(results: Results, dataset: str) -> int | None:
    """If it is another than the small one."""
    largest = max(_beta_sizes(results, dataset), default=None)
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
    words = [f"{line.label} chose β = {', '.join(map(number, betas))}" for line, betas in lines]
    title = f"{dataset}, {size:,} rows"
    return Panel(title, "; ".join(words), lambda ax: _draw_betas(ax, lines))


def _beta_sizes(results: Results, dataset: str) -> set[int]:
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


def _draw_betas(ax: Axes, lines: Sequence[tuple[Line, list[float]]]) -> None:
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


_RULES = ("exact", "bmc", "smooth-bmc", "ups", "ups-mixed")


@final
@dataclass(frozen=True)
class Look:
    """Of one way of training."""

    place: tuple[int, float]
    """In the order of the legend."""

    label: str
    mark: Mark


def method_of(cell: CurveCell) -> str:
    """What the line-up calls the training of a curve."""
    if cell.objective == "log_loss":
        return f"log-{cell.hyperparameters}"
    return "elbo" if cell.beta == 1 else "beta-elbo"


def by_objective(cell: CurveCell) -> Look:
    """Where objectives and values of β are compared."""
    bound = cell.objective == "elbo"
    name = ("ELBO" if cell.beta == 1 else "β-ELBO") if bound else f"DLM {cell.hyperparameters}"
    place = 0 if bound else 1 + (cell.hyperparameters == "fixed")
    mark = mark_of_beta(method_of(cell), cell.beta)
    return Look((place, cell.beta), f"{name}, β = {cell.beta:g}", mark)


def by_rule(cell: CurveCell) -> Look:
    """Where rules and numbers of samples are compared."""
    place = _RULES.index(cell.rule.name), float(cell.rule.samples)
    return Look(place, cell.rule.label, mark_of_rule(cell.rule))


def particulars(cell: CurveCell) -> tuple[str, ...]:
    """What else curves of one name may differ in."""
    batch = "all rows" if cell.batch_size is None else f"batches of {cell.batch_size:,}"
    return f"learning rate {cell.learning_rate:g}", batch, f"{cell.size:,} rows"


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
        f"{name} {number(each.mean)} at {against} {number(x)}" for name, x, each in ends
    )
    return Panel(
        title, f"mean test {label}, {words}", lambda ax: _draw_curves(ax, lines, label, against)
    )


def _has(outcome: CurveOutcome, label: str) -> bool:
    return bool(outcome.points) and all(label.lower() in each.scores for each in outcome.points)


def _lines(
    curves: Curves, label: str, against: Against, look: Callable[[CurveCell], Look]
) -> list[Line]:
    """One a way of training, means over its repeats."""
    ways: dict[Hashable, list[tuple[CurveCell, CurveOutcome]]] = {}
    for cell, outcome in sorted(curves, key=lambda pair: look(pair[0]).place):
        ways.setdefault(cell.replace(repeat=0, seed=0), []).append((cell, outcome))
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


def _draw_curves(ax: Axes, lines: Sequence[Line], label: str, against: Against) -> None:
    draw_lines(ax, lines)
    last = max(x for line in lines for x in line.points)
    ax.set(xlabel=against, ylabel=label, ylim=line_range(lines, _SETTLED * last))
    ax.locator_params(nbins=6)
    if against == "step":
        step_axis(ax)


Statistic = Literal["alignment", "squared_norm", "squared_error"]
Array = NDArray[np.float64]

AXES: dict[Statistic, str] = {
    "alignment": "⟨g, g*⟩ / ‖g*‖²",
    "squared_norm": "‖g‖² / ‖g*‖²",
    "squared_error": "‖g − g*‖² / ‖g*‖²",
}

BLOCK = "u_mean"
DATASET = "abalone"

_BINS = 36
_TAIL = 0.005
"""Share of the draws at either end that is counted in the outermost bins."""

_WIDE = 20.0
"""Ratio of the ends of a range from which on its axis is logarithmic.

Where there are negative values, the range itself: then the axis is linear about 0 only.
"""

_BETWEEN = 0.3
"""Inches that a tick needs, at the least."""


def shows_gradients(cell: PaperCell) -> bool:
    """Whether a cell is the paper's study of gradients."""
    return isinstance(cell, GradientCell) and cell.dataset == DATASET


def histogram_panel(
    results: Results, title: str, rule: str, statistic: Statistic, beside: Sequence[str]
) -> Panel | None:
    """Draws of one rule, on the axis that it shares with the rules beside it."""
    draws = _draws(results, statistic, [rule])
    if not draws:
        return None
    edges = bin_edges(np.concatenate(list(_draws(results, statistic, [rule, *beside]).values())))
    words = [f"{facts.label} {number(float(np.median(each)))}" for facts, each in draws.items()]
    return Panel(
        title,
        f"medians of {AXES[statistic]}, {', '.join(words)}",
        lambda ax: _draw_histograms(ax, draws, edges, AXES[statistic]),
    )


def bin_edges(values: Array) -> Array:
    """Of equal width on the axis that suits the values."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.linspace(0.0, 1.0, _BINS + 1)
    low, high = (float(end) for end in np.quantile(finite, [_TAIL, 1 - _TAIL]))
    match _scale(low, high):
        case "log":
            return np.geomspace(low, high, _BINS + 1)
        case "asinh":
            return np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(high), _BINS + 1))
    middle, least = (low + high) / 2, 1e-3 * max(abs(low), abs(high), 1e-12)
    reach = max((high - low) / 2, least)
    return np.linspace(middle - reach, middle + reach, _BINS + 1)


def _scale(low: float, high: float) -> Literal["linear", "log", "asinh"]:
    if low > 0:
        return "log" if high > _WIDE * low else "linear"
    return "asinh" if high - low > _WIDE else "linear"


def _draws(results: Results, statistic: Statistic, names: Sequence[str]) -> dict[RuleFacts, Array]:
    """Of all repeats together, by rule, few samples first."""
    found: dict[RuleFacts, list[Array]] = {}
    for cell, _, record in results.gradients():
        for rule in cell.rules:
            drawn = record.arrays.get(f"{statistic}.{rule.label}.{BLOCK}")
            if rule.name in names and drawn is not None and len(drawn):
                found.setdefault(rule, []).append(drawn.astype(np.float64))
    ordered = sorted(found, key=lambda rule: (rule.name, rule.samples))
    return {rule: np.concatenate(found[rule]) for rule in ordered}


def _shares(values: Array, edges: Array) -> Array:
    """Of the draws in each bin; what lies beyond counts in the outermost."""
    known = values[~np.isnan(values)]
    counts, _ = np.histogram(np.clip(known, edges[0], edges[-1]), edges)
    return counts / max(len(known), 1)


def _draw_histograms(ax: Axes, draws: dict[RuleFacts, Array], edges: Array, label: str) -> None:
    for place, (rule, values) in enumerate(draws.items()):
        mark = mark_of_rule(rule)
        shares = _shares(values, edges)
        depth = 2 + 0.1 * place
        ax.stairs(shares, edges, color=mark.color, alpha=0.13, fill=True, zorder=depth)
        ax.stairs(
            shares,
            edges,
            color=mark.color,
            linestyle=mark.line,
            linewidth=1.5,
            label=rule.label,
            zorder=depth + 0.05,
        )
    _scale_axis(ax, float(edges[0]), float(edges[-1]))
    ax.set(xlabel=label, ylabel="share of draws", xlim=(edges[0], edges[-1]))
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="y", nbins=5)


def _scale_axis(ax: Axes, low: float, high: float) -> None:
    ax.set_xscale(_scale(low, high))
    if ax.get_xscale() == "asinh":
        ticks = _signed_ticks(low, high, most=int(inches_across(ax) / _BETWEEN))
        ax.set_xticks(ticks, [number(tick) for tick in ticks])
    if ax.get_xscale() != "linear":
        ax.minorticks_off()


def _signed_ticks(low: float, high: float, most: int) -> list[float]:
    """Nought, and ones and threes of either sign; where those are many, ones alone."""
    for steps in ((1.0, 3.0), (1.0,)):
        sizes = [step * 10.0**decade for decade in range(12) for step in steps]
        ticks = [x for x in (0.0, *sizes, *(-size for size in sizes)) if low <= x <= high]
        if len(ticks) <= most:
            break
    return ticks


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
    ends = ", ".join(f"{line.label} {number(line.means[-1])}" for line in lines)
    words = f"{label} after {steps[-1]:,} steps, {ends}"
    return Panel(f"{dataset}", words, lambda ax: _draw_samplers(ax, lines, steps, label))


def _draw_samplers(ax: Axes, lines: list[Line], steps: list[int], label: str) -> None:
    draw_lines(ax, lines)
    ratio_axis(ax)
    ax.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
    ax.set(xlabel="steps of training (not to scale)", ylabel=label)


REGRESSION = ("pol", "cadata", "sarcos", "song")
CLASSIFICATION = ("banana", "thyroid", "twonorm", "ringnorm")
COUNT = ("abalone", "peds1_dir0", "peds1_dir1", "peds1_dir2")
PEDESTRIANS = ("peds1_dir2", "peds1", "peds1_dir0", "peds1_dir1")
"""The one of fig. 1e first; "peds1" is a direction that is not known."""

LOG = ("elbo", "beta-elbo", "fitc", "log-joint", "log-fixed")
ALL = (*LOG, "square-joint", "square-fixed")

_SMALL_AT_MOST = 1382
"""Training rows; twice those of fig. 1c."""

_MEANS = "Means over the repeats that were run, with bars of one standard error; lower is better."
_RINGS = "Rings are at the values of β that repeats chose, the dotted line at β = 1."


def _sizes(
    name: str, title: str, caption: str, datasets: Sequence[str], score: str, label: str
) -> Figure:
    methods = ALL if score == "mse" else LOG
    where = MAIN if name.startswith("1") else APPENDIX
    slots = _one(datasets, score, label) if name == "1e" else _each(datasets, score, label)
    uses = shows_fits((*datasets, "peds1") if datasets == COUNT else datasets, methods)
    return Figure(name, title, f"{caption} {_MEANS}", where, uses, slots)


def _each(datasets: Sequence[str], score: str, label: str) -> Callable[[Results], Slots]:
    def slots(results: Results) -> Slots:
        found = {each: size_panel(results, each, score, label) for each in datasets}
        beside = size_panel(results, "peds1", score, label) if datasets == COUNT else None
        return {**found, "peds1": beside} if beside else found

    return slots


def _one(datasets: Sequence[str], score: str, label: str) -> Callable[[Results], Slots]:
    """The first of the sets that was run."""

    def slots(results: Results) -> Slots:
        found = {each: size_panel(results, each, score, label) for each in datasets}
        return next(({each: panel} for each, panel in found.items() if panel), {})

    return slots


def _shows_small_cadata(cell: PaperCell) -> bool:
    near = isinstance(cell, FitCell) and cell.size <= _SMALL_AT_MOST
    return near and shows_fits(("cadata",), CHOOSING)(cell)


def _small_cadata(results: Results) -> Slots:
    return {"cadata": beta_panel(results, "cadata", small_size(results, "cadata"))}


def _regression_and_betas(results: Results) -> Slots:
    small, large = small_size(results, "cadata"), largest_size(results, "cadata")
    found = _each(REGRESSION, "nll", "NLL")(results)
    return {
        "pol": found["pol"],
        "cadata": found["cadata"],
        "cadata against β with few rows": beta_panel(results, "cadata", small),
        "sarcos": found["sarcos"],
        "song": found["song"],
        "cadata against β with many rows": beta_panel(results, "cadata", large),
    }


_SARCOS, _RINGNORM = ("sarcos",), ("ringnorm",)
_TEST = "of test rows against the number of training rows"

FIT_FIGURES = (
    _sizes("1a", "Regression: log loss", f"NLL {_TEST}.", _SARCOS, "nll", "NLL"),
    _sizes("1b", "Regression: square loss", f"MSE {_TEST}.", _SARCOS, "mse", "MSE"),
    Figure(
        "1c",
        "The values of β that are selected",
        "NLL of validation rows against β, with few training rows: the size nearest to the "
        f"paper's 691. {_RINGS} {_MEANS}",
        MAIN,
        _shows_small_cadata,
        _small_cadata,
    ),
    _sizes("1d", "Classification: log loss", f"NLL {_TEST}.", _RINGNORM, "nll", "NLL"),
    _sizes("1e", "Count regression: log loss", f"NLL {_TEST}.", PEDESTRIANS, "nll", "NLL"),
    Figure(
        "2",
        "Regression: log loss of four sets, and loss against β",
        f"NLL {_TEST}; and of validation rows of cadata against β, with few and with many "
        f"training rows. {_RINGS} {_MEANS}",
        APPENDIX,
        shows_fits(REGRESSION, LOG),
        _regression_and_betas,
    ),
    _sizes("3", "Regression: square loss of four sets", f"MSE {_TEST}.", REGRESSION, "mse", "MSE"),
    _sizes(
        "4", "Classification: log loss of four sets", f"NLL {_TEST}.", CLASSIFICATION, "nll", "NLL"
    ),
    _sizes(
        "5",
        "Classification: error of four sets",
        f"Error {_TEST}.",
        CLASSIFICATION,
        "error",
        "error",
    ),
    _sizes("6", "Counts: log loss of four sets", f"NLL {_TEST}.", COUNT, "nll", "NLL"),
    _sizes(
        "7",
        "Counts: relative error of four sets",
        f"Mean relative error {_TEST}.",
        COUNT,
        "mre",
        "MRE",
    ),
)


AIRLINE = "airline"
_SAMPLED = ("exact", "bmc", "ups", "ups-mixed")
_SMOOTH = ("exact", "bmc", "smooth-bmc")
_BANDS = (
    "Means over the repeats that were run, with bands of one standard error where there are "
    "several; lower is better. The beginning may lie above the axis."
)


def _objectives(name: str, where: str, *scores: str) -> Figure:
    def slots(results: Results) -> Slots:
        curves = curves_of(results, AIRLINE)
        return {s: curve_panel(AIRLINE, curves, s, "epoch", by_objective) for s in scores}

    return Figure(
        name,
        "Airline: ELBO and DLM",
        f"{' and '.join(scores)} of test rows by the epoch. {_BANDS}",
        where,
        shows_objectives(AIRLINE),
        slots,
    )


def _sampling(name: str, beta: float, where: str, *scores: str) -> Figure:
    def slots(results: Results) -> Slots:
        curves = curves_of(results, AIRLINE)
        return {s: curve_panel(AIRLINE, curves, s, "epoch", by_rule) for s in scores}

    return Figure(
        name,
        f"Airline, β = {beta:g}: exact gradients and sampling",
        f"Log-loss DLM, joint, by the epoch: {' and '.join(scores)} of test rows. {_BANDS}",
        where,
        shows_rules([AIRLINE], _SAMPLED, [beta]),
        slots,
    )


def _smooth_airline(results: Results) -> Slots:
    """At the values of β of which there are smoothed curves."""
    betas = {cell.beta for cell, _, _ in results.curves() if cell.rule.name == "smooth-bmc"}
    found: Slots = {}
    for beta in sorted(betas):
        curves, title = curves_of(results, AIRLINE, beta), f"{AIRLINE}, β = {beta:g}"
        for score in ("NLL", "error"):
            found[f"{score}, β = {beta:g}"] = curve_panel(title, curves, score, "epoch", by_rule)
    return found


def _by_set(datasets: Sequence[str], named: Sequence[str] = ()) -> Callable[[Results], Slots]:
    """A panel for every data set and β; those of the named that were not run are missed."""

    def slots(results: Results) -> Slots:
        found: Slots = {}
        for dataset in datasets:
            betas = sorted({cell.beta for cell, _ in curves_of(results, dataset)})
            for beta in betas:
                curves, title = curves_of(results, dataset, beta), f"{dataset}, β = {beta:g}"
                found[title] = curve_panel(title, curves, "NLL", "step", by_rule)
            if not betas and dataset in named:
                found[dataset] = None
        return found

    return slots


def _rules(
    name: str,
    title: str,
    datasets: Sequence[str],
    rules: Sequence[str],
    named: Sequence[str] = (),
) -> Figure:
    return Figure(
        name,
        title,
        f"Log-loss DLM, joint, by the step of Adam: NLL of test rows. {_BANDS}",
        APPENDIX,
        shows_rules(datasets, rules),
        _by_set(datasets, named),
    )


_COUNTS = (*COUNT, "peds1")

CURVE_FIGURES = (
    _objectives("1f", MAIN, "NLL"),
    _sampling("1i", 0.1, MAIN, "NLL"),
    _objectives("8", APPENDIX, "NLL", "error"),
    _sampling("10", 0.1, APPENDIX, "NLL", "error"),
    _sampling("11", 1.0, APPENDIX, "NLL", "error"),
    _sampling("12", 10.0, APPENDIX, "NLL", "error"),
    Figure(
        "13",
        "Airline: bMC and smooth-bMC",
        f"Log-loss DLM, joint, by the epoch: NLL and error of test rows. {_BANDS}",
        APPENDIX,
        shows_rules([AIRLINE], _SMOOTH),
        _smooth_airline,
    ),
    _rules("14", "Counts: uPS and bMC", _COUNTS, _SAMPLED),
    _rules("15", "Counts: bMC and smooth-bMC", _COUNTS, _SMOOTH),
    _rules(
        "16", "Regression: exact gradients and bMC", REGRESSION, ("exact", "bmc"), named=REGRESSION
    ),
)


_ROWS = {"ups": "uPS", "bmc": "bMC", "smooth-bmc": "smooth-bMC"}
_COLUMNS: dict[Statistic, str] = {
    "alignment": "(i)",
    "squared_norm": "(ii)",
    "squared_error": "error",
}
_DRAWS = (
    "Gradients in the mean of q(u), drawn again and again right after initialisation, against the "
    "exact gradient g*; draws beyond the axis are counted in its last bins."
)
_NOT_BIAS = (
    "What the paper calls bias is the squared error of single draws: variance and squared bias "
    "together."
)


def _single(name: str, rule: str, beside: str) -> Figure:
    def slots(results: Results) -> Slots:
        panel = histogram_panel(results, DATASET, rule, "squared_error", [beside])
        return {DATASET: panel}

    return Figure(
        name,
        f"The paper's estimate of bias: {_ROWS[rule]}",
        f"{_DRAWS} {_NOT_BIAS} Figures 1g and 1h have the same horizontal axis.",
        MAIN,
        shows_gradients,
        slots,
    )


def _grid(results: Results) -> Slots:
    return {
        f"{title} {column}": histogram_panel(
            results, f"{title}: {column}", rule, statistic, list(_ROWS)
        )
        for rule, title in _ROWS.items()
        for statistic, column in _COLUMNS.items()
    }


GRADIENT_FIGURES = (
    _single("1g", "bmc", "ups"),
    _single("1h", "ups", "bmc"),
    Figure(
        "9",
        "Gradients drawn by uPS, bMC and smooth-bMC",
        f"{_DRAWS} Condition (i) is ⟨g, g*⟩/‖g*‖², which is 1 for the exact gradient as is "
        "condition (ii), ‖g‖²/‖g*‖². The three rules have the same horizontal axes. "
        f"{_NOT_BIAS}",
        APPENDIX,
        shows_gradients,
        _grid,
        Layout(height=2.1, least=3.0, least_narrow=1.9),
    ),
    Figure(
        "S1",
        "Product samplers along training",
        "First, how often the samplers propose for one draw; then the processor time of a draw "
        "for every example by the paper's sampler; last, the time of a gradient times its squared "
        "error, over the squared norm of the exact one: what a given accuracy costs. Means over "
        "the repeats, with bars of one standard error where there are several; lower is better.",
        "not in the paper, which tells of it in words",
        shows_samplers,
        sampler_slots,
    ),
)


_ORDER = [*(f"1{letter}" for letter in "abcdefghi"), *map(str, range(2, 17)), "S1"]

_EVERY = {figure.name: figure for figure in (*FIT_FIGURES, *CURVE_FIGURES, *GRADIENT_FIGURES)}

FIGURES: dict[str, Figure] = {name: _EVERY[name] for name in _ORDER}
"""In the paper's order, ours last."""
