"""Collect the arrays of the paper's figures from results and draw them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, final

import numpy as np
from matplotlib.axes import Axes

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
    SamplerPoint,
)
from directgp.plots.beta import BetaAxis, draw_rings
from directgp.plots.curves import (
    Line,
    bin_edges,
    draw_histograms,
    draw_lines,
    draw_progress,
    draw_sizes,
    line_range,
    ratio_axis,
)
from directgp.plots.rendering import Layout, Panel, Picture
from directgp.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    Array,
    Mark,
    method_mark,
)
from directgp.text import joined, number, plural

Panels = dict[str, Panel | None]
"""Panels of a figure of the paper by their content; None if nothing of it was run."""

Uses = Callable[[PaperCell], bool]
"""Whether a figure shows a cell."""

_Cell = TypeVar("_Cell", FitCell, CurveCell)
_Outcome = TypeVar("_Outcome", FitOutcome, CurveOutcome)

Fits = Sequence[tuple[FitCell, FitOutcome]]
Curves = Sequence[tuple[CurveCell, CurveOutcome]]


@final
@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: its texts, the cells it shows, and its panels."""

    name: str
    """Number in the paper: "1a", "2"; ours begin with S."""

    title: str
    caption: str
    uses: Uses
    panels: Callable[[Results], Panels]
    """The panels, given the results of the cells that it shows."""

    layout: Layout = field(default_factory=Layout)

    @property
    def file(self) -> str:
        """Name of its files, and its anchor on the page."""
        return f"figure-{self.name.lower()}"

    @property
    def where(self) -> str:
        """The part of the paper that has it."""
        if self.name.startswith("S"):
            return "not in the paper, which describes it in words"
        return "main text" if self.name.endswith(tuple("abcdefghi")) else "appendix"

    def picture(self, results: Results) -> Picture | None:
        """Return the picture; None if nothing of it was run."""
        shown = Results(tuple(record for record in results.records if self.uses(record.cell)))
        found = self.panels(shown)
        panels = [panel for panel in found.values() if panel]
        if not panels:
            return None
        absent = [name for name, panel in found.items() if not panel]
        failed = sum(self.uses(each.cell) for each in results.failed)
        missing = sum(map(self.uses, results.missing))
        lacking = [
            f"{plural(count, 'cell')} {status}"
            for count, status in ((missing, "not run"), (failed, "failed"))
            if count
        ]
        return Picture(
            name=self.file,
            title=f"Figure {self.name}. {self.title}",
            caption=self.caption
            + (f" Not run: {joined(absent)}." if absent else "")
            + (f" Of this figure, {joined(lacking)}." if lacking else ""),
            alt=" ".join(f"{panel.title}: {panel.alt}." for panel in panels),
            panels=panels,
            layout=self.layout,
        )


@final
@dataclass(frozen=True)
class Way:
    """One way of training: all cells of a line."""

    order: tuple[Any, ...]
    """Place in the legend."""

    label: str
    mark: Mark
    details: tuple[str, ...]
    """What else lines of the same label may differ in."""


def group_ways(
    found: Sequence[tuple[_Cell, _Outcome]], way_of: Callable[[_Cell], Way]
) -> list[tuple[str, Mark, list[tuple[_Cell, _Outcome]]]]:
    """Return name, mark and cells of each way, so that no mean is taken over several ways.

    The name has the details in which ways of the same label differ; they also differ in dashes.
    """
    groups: dict[Way, list[tuple[_Cell, _Outcome]]] = {}
    for cell, outcome in found:
        groups.setdefault(way_of(cell), []).append((cell, outcome))
    ways = sorted(groups, key=lambda way: (*way.order, way.details))
    named = []
    for place, way in enumerate(ways):
        rivals = [other for other in ways if other.label == way.label]
        differing = [
            detail
            for k, detail in enumerate(way.details)
            if len({other.details[k] for other in rivals}) > 1
        ]
        name = f"{way.label} ({', '.join(differing)})" if differing else way.label
        earlier = sum(other.label == way.label for other in ways[:place])
        dashes = (":" if earlier % 2 else "-.") if earlier else way.mark.line
        named.append((name, replace(way.mark, line=dashes), groups[way]))
    return named


# Fits: scores against the number of training rows, and losses along β.

CHOOSING = ("beta-elbo", "log-joint", "log-fixed")
"""Methods that choose β by NLL."""

_SMALL_SIZE = 691
"""Training rows of fig. 1c."""


def _fits_of(datasets: Sequence[str], methods: Sequence[str]) -> Uses:
    return lambda cell: (
        isinstance(cell, FitCell) and cell.dataset in datasets and cell.method in methods
    )


def _fit_way(cell: FitCell) -> Way:
    order = list(METHODS).index(cell.method)
    details = cell.rule.label, f"{cell.protocol} protocol"
    return Way((order,), METHODS[cell.method].label, method_mark(cell.method), details)


def _size_panel(results: Results, dataset: str, score: str, label: str) -> Panel | None:
    fits = [(c, o) for c, o in results.fits() if c.dataset == dataset and score in o.scores]
    if not fits:
        return None
    lines = [
        Line.of(name, mark, ((float(c.size), o.scores[score]) for c, o in own))
        for name, mark, own in group_ways(fits, _fit_way)
    ]
    size = max(cell.size for cell, _ in fits)
    ends = [f"{line.label} {number(line.at(float(size)))}" for line in lines if size in line.x]
    alt = f"mean test {label} at {size:,} training rows, {', '.join(ends)}"
    return Panel(dataset, lambda ax: draw_sizes(ax, lines, label), alt)


def _beta_panel(results: Results, dataset: str, small: bool) -> Panel | None:
    """Draw losses along β at the size nearest to the paper's by ratio, or at the largest other."""
    fits = [
        (cell, outcome)
        for cell, outcome in results.fits()
        if cell.dataset == dataset and cell.method in CHOOSING and outcome.path
    ]
    sizes = {cell.size for cell, _ in fits}
    nearest = min(sizes, key=lambda size: abs(math.log(size / _SMALL_SIZE)), default=0)
    size = nearest if small else max(sizes, default=0)
    if not sizes or (not small and size == nearest):
        return None
    lines = []
    for name, mark, own in group_ways([fit for fit in fits if fit[0].size == size], _fit_way):
        paths = [{point.beta: point.validation for point in outcome.path} for _, outcome in own]
        common = set.intersection(*map(set, paths))
        line = Line.of(name, mark, ((beta, path[beta]) for beta in common for path in paths))
        lines.append((line, sorted(outcome.beta for _, outcome in own)))
    words = [f"{line.label} chose β = {', '.join(map(number, betas))}" for line, betas in lines]
    title = f"{dataset}, {size:,} rows"
    return Panel(title, lambda ax: _draw_betas(ax, lines), "; ".join(words))


def _draw_betas(ax: Axes, lines: Sequence[tuple[Line, list[float]]]) -> None:
    axis = BetaAxis.of([float(beta) for line, _ in lines for beta in line.x])
    ax.axvline(1.0, color=GREY, linewidth=1.0, linestyle=":")
    draw_lines(ax, [replace(line, x=axis.places(line.x.tolist())) for line, _ in lines])
    for line, chosen in lines:
        betas = [beta for beta in dict.fromkeys(chosen) if beta in line.x]
        draw_rings(ax, axis, betas, [line.at(beta) for beta in betas], line.mark.color)
    axis.draw(ax)
    ax.set(ylabel="validation NLL", ylim=line_range([line for line, _ in lines]))
    ax.locator_params(axis="y", nbins=6)


REGRESSION = ("pol", "cadata", "sarcos", "song")
CLASSIFICATION = ("banana", "thyroid", "twonorm", "ringnorm")
COUNT = ("abalone", "peds1_dir0", "peds1_dir1", "peds1_dir2")
PEDESTRIANS = ("peds1_dir2", "peds1", "peds1_dir0", "peds1_dir1")
"""The one of fig. 1e first; the direction of "peds1" is not known."""

_LOG = ("elbo", "beta-elbo", "fitc", "log-joint", "log-fixed")
_ALL = (*_LOG, "square-joint", "square-fixed")

_MAX_SMALL = 1382
"""Largest number of training rows that fig. 1c shows, twice its size."""

_LABELS = {"nll": "NLL", "mse": "MSE", "error": "error", "mre": "MRE"}
_MEANS = "Means over the repeats that were run, with bars of one standard error; lower is better."
_RINGS = "Rings are at the values of β that repeats chose, the dotted line at β = 1."
_TEST = "of test rows against the number of training rows"


def _sizes(
    name: str, title: str, datasets: Sequence[str], score: str, first: bool = False
) -> PaperFigure:
    """Return a figure of a score by size, with all data sets or the first one that was run."""
    label = _LABELS[score]

    def panels(results: Results) -> Panels:
        found = {each: _size_panel(results, each, score, label) for each in datasets}
        if first:
            return next(({each: panel} for each, panel in found.items() if panel), {})
        more = _size_panel(results, "peds1", score, label) if datasets == COUNT else None
        return {**found, "peds1": more} if more else found

    used = (*datasets, "peds1") if datasets == COUNT else datasets
    uses = _fits_of(used, _ALL if score == "mse" else _LOG)
    described = {"error": "Error", "mre": "Mean relative error"}.get(score, label)
    return PaperFigure(name, title, f"{described} {_TEST}. {_MEANS}", uses, panels)


def _regression_and_betas(results: Results) -> Panels:
    found = {each: _size_panel(results, each, "nll", "NLL") for each in REGRESSION}
    return {
        "pol": found["pol"],
        "cadata": found["cadata"],
        "cadata against β with few rows": _beta_panel(results, "cadata", small=True),
        "sarcos": found["sarcos"],
        "song": found["song"],
        "cadata against β with many rows": _beta_panel(results, "cadata", small=False),
    }


def _uses_small_cadata(cell: PaperCell) -> bool:
    return _fits_of(("cadata",), CHOOSING)(cell) and cell.size <= _MAX_SMALL


_FIT_FIGURES = (
    _sizes("1a", "Regression: log loss", ("sarcos",), "nll"),
    _sizes("1b", "Regression: square loss", ("sarcos",), "mse"),
    PaperFigure(
        "1c",
        "The values of β that are selected",
        "NLL of validation rows against β, with few training rows: the size nearest to the "
        f"paper's 691. {_RINGS} {_MEANS}",
        _uses_small_cadata,
        lambda results: {"cadata": _beta_panel(results, "cadata", small=True)},
    ),
    _sizes("1d", "Classification: log loss", ("ringnorm",), "nll"),
    _sizes("1e", "Count regression: log loss", PEDESTRIANS, "nll", first=True),
    PaperFigure(
        "2",
        "Regression: log loss of four sets, and loss against β",
        f"NLL {_TEST}; and of validation rows of cadata against β, with few and with many "
        f"training rows. {_RINGS} {_MEANS}",
        _fits_of(REGRESSION, _LOG),
        _regression_and_betas,
    ),
    _sizes("3", "Regression: square loss of four sets", REGRESSION, "mse"),
    _sizes("4", "Classification: log loss of four sets", CLASSIFICATION, "nll"),
    _sizes("5", "Classification: error of four sets", CLASSIFICATION, "error"),
    _sizes("6", "Counts: log loss of four sets", COUNT, "nll"),
    _sizes("7", "Counts: relative error of four sets", COUNT, "mre"),
)


# Curves: scores along training.

_RULES = {
    "exact": Mark(INK, "D", "-"),
    "bmc": Mark(ORANGE, "s", "-"),
    "smooth-bmc": Mark(PURPLE, "o", "-", filled=False),
    "ups": Mark(BLUE, "^", "-"),
    "ups-mixed": Mark(GREEN, "v", "-"),
}
"""Colour and marker are those of the rule; the line style shows the number of samples."""

_DASHES = {1: ":", 10: "--", 100: "-"}
_BETA_MARKERS = {0.1: "v", 1.0: "o", 10.0: "^"}

_SETTLED = 0.2
"""Share of the horizontal axis that does not decide the range of the vertical one."""

_AIRLINE = "airline"
_SAMPLED = ("exact", "bmc", "ups", "ups-mixed")
_SMOOTH = ("exact", "bmc", "smooth-bmc")
_BANDS = (
    "Means over the repeats that were run, with bands of one standard error if there are several; "
    "lower is better. The beginning may be above the axis."
)


def rule_mark(rule: RuleFacts) -> Mark:
    """Return the mark of a rule, the same in every picture."""
    line = "-" if rule.name == "exact" else _DASHES.get(rule.samples, "-.")
    return replace(_RULES[rule.name], line=line)


def beta_mark(method: str, beta: float) -> Mark:
    """Return colour and line style of a method with the marker of β."""
    return replace(method_mark(method), marker=_BETA_MARKERS.get(beta, "s"))


def method_of(cell: CurveCell) -> str:
    """Return the method that trains a curve."""
    if cell.objective == "log_loss":
        return f"log-{cell.hyperparameters}"
    return "elbo" if cell.beta == 1 else "beta-elbo"


def _details(cell: CurveCell) -> tuple[str, ...]:
    batch = "all rows" if cell.batch_size is None else f"batches of {cell.batch_size:,}"
    return f"learning rate {cell.learning_rate:g}", batch, f"{cell.size:,} rows"


def _objective_way(cell: CurveCell) -> Way:
    bound = cell.objective == "elbo"
    name = ("ELBO" if cell.beta == 1 else "β-ELBO") if bound else f"DLM {cell.hyperparameters}"
    order = 0 if bound else 1 + (cell.hyperparameters == "fixed")
    mark = beta_mark(method_of(cell), cell.beta)
    return Way((order, cell.beta), f"{name}, β = {cell.beta:g}", mark, _details(cell))


def _rule_way(cell: CurveCell) -> Way:
    order = list(_RULES).index(cell.rule.name), cell.rule.samples
    return Way(order, cell.rule.label, rule_mark(cell.rule), _details(cell))


def _uses_rules(datasets: Sequence[str], rules: Sequence[str], beta: float | None = None) -> Uses:
    """Use joint log-loss curves of these rules, of one β if given."""
    return lambda cell: (
        isinstance(cell, CurveCell)
        and cell.dataset in datasets
        and cell.objective == "log_loss"
        and cell.hyperparameters == "joint"
        and cell.rule.name in rules
        and beta in (None, cell.beta)
    )


def _curve_panel(
    results: Results,
    dataset: str,
    label: str,
    against: Literal["epoch", "step"],
    way_of: Callable[[CurveCell], Way],
    beta: float | None = None,
) -> Panel | None:
    """Draw a score, named by its label, along training, of one β if given."""
    score = label.lower()
    curves = [
        (cell, outcome)
        for cell, outcome, _ in results.curves()
        if cell.dataset == dataset
        and beta in (None, cell.beta)
        and outcome.points
        and all(score in point.scores for point in outcome.points)
    ]
    if not curves:
        return None
    lines = [
        Line.of(
            name,
            mark,
            (
                (point.epoch if against == "epoch" else float(point.step), point.scores[score])
                for _, outcome in own
                for point in outcome.points
            ),
        )
        for name, mark, own in group_ways(curves, way_of)
    ]
    ends = ", ".join(
        f"{each.label} {number(each.mean[-1])} at {against} {number(each.x[-1])}" for each in lines
    )
    after = _SETTLED * max(float(line.x[-1]) for line in lines)
    title = dataset if beta is None else f"{dataset}, β = {beta:g}"
    return Panel(
        title,
        lambda ax: draw_progress(ax, lines, against, label, after),
        f"mean test {label}, {ends}",
    )


def _airline(
    name: str, title: str, described: str, uses: Uses, way: Callable[[CurveCell], Way], *scores: str
) -> PaperFigure:
    def panels(results: Results) -> Panels:
        return {each: _curve_panel(results, _AIRLINE, each, "epoch", way) for each in scores}

    caption = f"{described}{' and '.join(scores)} of test rows by the epoch. {_BANDS}"
    return PaperFigure(name, title, caption, uses, panels)


def _objectives(name: str, *scores: str) -> PaperFigure:
    def uses(cell: PaperCell) -> bool:
        exact = isinstance(cell, CurveCell) and cell.rule.name == "exact"
        return exact and cell.dataset == _AIRLINE

    return _airline(name, "Airline: ELBO and DLM", "", uses, _objective_way, *scores)


def _sampling(name: str, beta: float, *scores: str) -> PaperFigure:
    title = f"Airline, β = {beta:g}: exact gradients and sampling"
    uses = _uses_rules([_AIRLINE], _SAMPLED, beta)
    return _airline(name, title, "Log-loss DLM, joint: ", uses, _rule_way, *scores)


def _smooth_airline(results: Results) -> Panels:
    """Draw the values of β that have curves of smooth-bMC."""
    betas = {cell.beta for cell, _, _ in results.curves() if cell.rule.name == "smooth-bmc"}
    return {
        f"{score}, β = {beta:g}": _curve_panel(results, _AIRLINE, score, "epoch", _rule_way, beta)
        for beta in sorted(betas)
        for score in ("NLL", "error")
    }


def _rules(
    name: str, title: str, datasets: Sequence[str], rules: Sequence[str], all_sets: bool = False
) -> PaperFigure:
    """Return a figure of NLL along steps, one panel for each data set and β.

    With `all_sets`, the caption names data sets that were not run.
    """

    def panels(results: Results) -> Panels:
        found: Panels = {}
        for dataset in datasets:
            betas = {cell.beta for cell, _, _ in results.curves() if cell.dataset == dataset}
            for beta in sorted(betas):
                panel = _curve_panel(results, dataset, "NLL", "step", _rule_way, beta)
                found[f"{dataset}, β = {beta:g}"] = panel
            if not betas and all_sets:
                found[dataset] = None
        return found

    caption = f"Log-loss DLM, joint: NLL of test rows by the step of Adam. {_BANDS}"
    return PaperFigure(name, title, caption, _uses_rules(datasets, rules), panels)


_CURVE_FIGURES = (
    _objectives("1f", "NLL"),
    _sampling("1i", 0.1, "NLL"),
    _objectives("8", "NLL", "error"),
    _sampling("10", 0.1, "NLL", "error"),
    _sampling("11", 1.0, "NLL", "error"),
    _sampling("12", 10.0, "NLL", "error"),
    PaperFigure(
        "13",
        "Airline: bMC and smooth-bMC",
        f"Log-loss DLM, joint: NLL and error of test rows by the epoch. {_BANDS}",
        _uses_rules([_AIRLINE], _SMOOTH),
        _smooth_airline,
    ),
    _rules("14", "Counts: uPS and bMC", (*COUNT, "peds1"), _SAMPLED),
    _rules("15", "Counts: bMC and smooth-bMC", (*COUNT, "peds1"), _SMOOTH),
    _rules(
        "16", "Regression: exact gradients and bMC", REGRESSION, ("exact", "bmc"), all_sets=True
    ),
)


# Gradients and samplers.

_STATISTICS = {
    "alignment": ("(i)", "⟨g, g*⟩ / ‖g*‖²"),
    "squared_norm": ("(ii)", "‖g‖² / ‖g*‖²"),
    "squared_error": ("error", "‖g − g*‖² / ‖g*‖²"),
}
"""Short name and label of each statistic of a drawn gradient."""

_GRADIENT_RULES = {"ups": "uPS", "bmc": "bMC", "smooth-bmc": "smooth-bMC"}
_GRADIENT_SET = "abalone"
_DRAWS = (
    "Gradients in the mean of q(u), drawn repeatedly right after initialisation, against the exact "
    "gradient g*; draws beyond the axis are counted in its last bins."
)
_NOT_BIAS = (
    "What the paper calls bias is the squared error of single draws: variance and squared bias "
    "together."
)


def _uses_gradients(cell: PaperCell) -> bool:
    return isinstance(cell, GradientCell) and cell.dataset == _GRADIENT_SET


def _gradient_draws(
    results: Results, statistic: str, rules: Sequence[str]
) -> dict[str, tuple[Mark, Array]]:
    """Return the draws of all repeats by rule, few samples first."""
    found: dict[RuleFacts, list[Array]] = {}
    for cell, _, record in results.gradients():
        for rule in cell.rules:
            drawn = record.arrays.get(f"{statistic}.{rule.label}.u_mean")
            if rule.name in rules and drawn is not None and len(drawn):
                found.setdefault(rule, []).append(drawn.astype(np.float64))
    ordered = sorted(found, key=lambda rule: (rule.name, rule.samples))
    return {rule.label: (rule_mark(rule), np.concatenate(found[rule])) for rule in ordered}


def _histogram_panel(
    results: Results, title: str, rule: str, statistic: str, others: Sequence[str]
) -> Panel | None:
    """Draw the draws of one rule, on the axis that it shares with other rules."""
    draws = _gradient_draws(results, statistic, [rule])
    if not draws:
        return None
    shared = _gradient_draws(results, statistic, [rule, *others]).values()
    edges = bin_edges(np.concatenate([values for _, values in shared]))
    label = _STATISTICS[statistic][1]
    words = [f"{name} {number(float(np.median(each)))}" for name, (_, each) in draws.items()]
    alt = f"medians of {label}, {', '.join(words)}"
    return Panel(title, lambda ax: draw_histograms(ax, draws, edges, label), alt)


def _bias(name: str, rule: str, other: str) -> PaperFigure:
    def panels(results: Results) -> Panels:
        panel = _histogram_panel(results, _GRADIENT_SET, rule, "squared_error", [other])
        return {_GRADIENT_SET: panel}

    caption = f"{_DRAWS} {_NOT_BIAS} Figures 1g and 1h have the same horizontal axis."
    title = f"The paper's estimate of bias: {_GRADIENT_RULES[rule]}"
    return PaperFigure(name, title, caption, _uses_gradients, panels)


def _all_histograms(results: Results) -> Panels:
    return {
        f"{title} {short}": _histogram_panel(
            results, f"{title}: {short}", rule, statistic, list(_GRADIENT_RULES)
        )
        for rule, title in _GRADIENT_RULES.items()
        for statistic, (short, _) in _STATISTICS.items()
    }


_PAPER_SAMPLER, _OUR_SAMPLER = Mark(BLUE, "^", "-"), Mark(GREEN, "v", "-")

_SAMPLER_LINES: dict[str, dict[str, tuple[Mark, Callable[[SamplerPoint], float]]]] = {
    "proposals a draw": {
        "by theory": (Mark(INK, "x", ":"), lambda look: look.expected_proposals),
        "uPS, the paper's sampler": (_PAPER_SAMPLER, lambda look: look.proposals.value),
        "with its width held at 1": (
            Mark(PURPLE, "o", "--", filled=False),
            lambda look: look.proposals_narrow.value,
        ),
        "uPS (ours)": (_OUR_SAMPLER, lambda look: look.proposals_ours.value),
    },
    "seconds of a draw": {
        "one example at a time": (Mark(INK, "D", "--"), lambda look: look.one_by_one_seconds),
        "all examples at once": (Mark(INK, "D", "-"), lambda look: look.vectorised_seconds),
    },
    "seconds × squared error": {
        "bMC": (Mark(ORANGE, "s", "-"), lambda look: look.bmc_seconds * look.bmc_error),
        "uPS, the paper's sampler": (
            _PAPER_SAMPLER,
            lambda look: look.paper_ups_seconds * look.paper_ups_error,
        ),
        "uPS (ours)": (_OUR_SAMPLER, lambda look: look.our_ups_seconds * look.our_ups_error),
    },
}
"""Lines of each panel, by the label of its vertical axis."""


def _sampler_panels(results: Results) -> Panels:
    datasets = sorted({cell.dataset for cell, _ in results.samplers()})
    return {
        f"{dataset}, {label}": _sampler_panel(results, dataset, label)
        for dataset in datasets
        for label in _SAMPLER_LINES
    }


def _sampler_panel(results: Results, dataset: str, label: str) -> Panel:
    looks = [look for c, out in results.samplers() if c.dataset == dataset for look in out.looks]
    steps = sorted({look.step for look in looks})
    lines = [
        Line.of(name, mark, ((float(steps.index(look.step)), value(look)) for look in looks))
        for name, (mark, value) in _SAMPLER_LINES[label].items()
    ]

    def draw(ax: Axes) -> None:
        draw_lines(ax, lines)
        ratio_axis(ax)
        ax.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
        ax.set(xlabel="steps of training (not to scale)", ylabel=label)

    ends = ", ".join(f"{line.label} {number(line.mean[-1])}" for line in lines)
    return Panel(dataset, draw, f"{label} after {steps[-1]:,} steps, {ends}")


_GRADIENT_FIGURES = (
    _bias("1g", "bmc", "ups"),
    _bias("1h", "ups", "bmc"),
    PaperFigure(
        "9",
        "Gradients drawn by uPS, bMC and smooth-bMC",
        f"{_DRAWS} Condition (i) is ⟨g, g*⟩/‖g*‖², which is 1 for the exact gradient as is "
        "condition (ii), ‖g‖²/‖g*‖². The three rules have the same horizontal axes. "
        f"{_NOT_BIAS}",
        _uses_gradients,
        _all_histograms,
        Layout(height=2.1, min_width_narrow=1.9),
    ),
    PaperFigure(
        "S1",
        "Product samplers along training",
        "First, the number of proposals for one draw; then the processor time of a draw for every "
        "example by the paper's sampler; last, the time of a gradient times its squared error, "
        "over the squared norm of the exact one: the cost of a given accuracy. Means over the "
        "repeats, with bars of one standard error if there are several; lower is better.",
        lambda cell: isinstance(cell, SamplerCell),
        _sampler_panels,
    ),
)

_ORDER = [*(f"1{letter}" for letter in "abcdefghi"), *map(str, range(2, 17)), "S1"]

_EVERY = {each.name: each for each in (*_FIT_FIGURES, *_CURVE_FIGURES, *_GRADIENT_FIGURES)}

FIGURES: dict[str, PaperFigure] = {name: _EVERY[name] for name in _ORDER}
"""All figures in the order of the paper, ours last."""
