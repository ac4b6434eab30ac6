"""Collect the arrays of the paper's figures from results and draw them."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, final

import numpy as np
from matplotlib.axes import Axes

from directgp.plots import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    BetaAxis,
    Layout,
    Line,
    Mark,
    Panel,
    Picture,
    draw_lines,
    draw_rings,
    draw_sizes,
    line_range,
    method_mark,
)
from directgp.text import joined, number, plural
from directgp_paper.experiments.cells import (
    AIRLINE,
    BETA_METHODS,
    FITC_OF_ELBO,
    PAPER_METHODS,
    CurveCell,
    FitCell,
    GradientCell,
    PaperCell,
    Results,
    RuleFacts,
    SamplerCell,
)
from directgp_paper.experiments.claims.fits import (
    CLASSIFICATION_SETS,
    COUNT_SETS,
    ONE_DIRECTION,
    REGRESSION_SETS,
    SMALL_FACTOR,
)
from directgp_paper.experiments.claims.runs import AnyRecord, place
from directgp_paper.experiments.sweep import SMALL_SIZE
from directgp_paper.reports.drawing import (
    Array,
    bin_edges,
    draw_histograms,
    draw_progress,
    ratio_axis,
)

PEDESTRIANS = ("peds1_dir2", "peds1", "peds1_dir0", "peds1_dir1")
"""Directions of Peds1, first the direction of fig. 1e."""

Records = Sequence[AnyRecord]

Panels = Callable[[str, Records], Iterator[Panel]]
"""Yields the panels of one data set, given its results."""


@final
@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: its texts, the cells it shows, and its panels."""

    name: str
    """Number in the paper: "1a", "2"; ours begin with S."""

    title: str
    """What the figure shows."""

    caption: str
    """Sentences below the figure."""

    kind: type[PaperCell]
    """Kind of the cells that the figure shows."""

    shown: Mapping[str, Collection[Any]]
    """Allowed values of the cells' attributes; of "dataset" in the order of the panels."""

    panels: Panels
    """Yields the panels of one data set."""

    layout: Layout = field(default_factory=Layout)
    """Sizes of the panels."""

    @property
    def file(self) -> str:
        """Name of its files, and its anchor on the page."""
        return f"figure-{self.name.lower()}"

    @property
    def where(self) -> str:
        """The part of the paper that has the figure."""
        if self.name.startswith("S"):
            return "not in the paper"
        return "main text" if self.name[-1].isalpha() else "appendix"

    def uses(self, cell: PaperCell) -> bool:
        """Return whether the figure shows a cell."""
        return isinstance(cell, self.kind) and all(
            attrgetter(name)(cell) in values for name, values in self.shown.items()
        )

    def picture(self, results: Results) -> Picture | None:
        """Return the picture; None if no cell of the figure was run."""
        by_dataset: dict[str, list[AnyRecord]] = {n: [] for n in self.shown.get("dataset", ())}
        for record in sorted(results.records, key=lambda record: record.cell.dataset):
            if self.uses(record.cell):
                by_dataset.setdefault(record.cell.dataset, []).append(record)
        run = {name: records for name, records in by_dataset.items() if records}
        # The set of an unknown direction is shown if it was run, and not missed otherwise.
        absent = [name for name in by_dataset if name not in run and name != ONE_DIRECTION]
        if self.shown.get("dataset") == PEDESTRIANS:
            # One direction is enough.
            absent = []
            run = dict(itertools.islice(run.items(), 1))
        panels = [panel for name, records in run.items() for panel in self.panels(name, records)]
        if not panels:
            return None
        missing = sum(map(self.uses, results.missing))
        failed = sum(self.uses(failure.cell) for failure in results.failed)
        counts = {"not run": missing, "failed": failed}
        lacking = [f"{plural(count, 'cell')} {status}" for status, count in counts.items() if count]
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
class Series(NamedTuple):
    """The cells of one line: its place in the legend, its label and its mark."""

    order: tuple[Any, ...]
    """Sort key of the legend."""

    label: str
    """Name in the legend."""

    mark: Mark
    """Colour, marker and line style."""

    details: tuple[str, ...]
    """Other properties in which lines of the same label may differ; "" for the usual one."""


def _grouped(
    records: Records, series_of: Callable[[Any], Series]
) -> list[tuple[str, Mark, list[AnyRecord]]]:
    """Return name, mark and results of each series, so that no mean is taken over several series.

    The name has the details in which series of the same label differ; they also differ in dashes.
    """
    groups: dict[Series, list[AnyRecord]] = {}
    for record in records:
        groups.setdefault(series_of(record.cell), []).append(record)
    every = sorted(groups, key=lambda series: (*series.order, series.details))
    named = []
    for position, series in enumerate(every):
        rivals = [rival.details for rival in every if rival.label == series.label]
        values = zip(series.details, zip(*rivals, strict=True), strict=True)
        differing = [detail for detail, others in values if detail and len(set(others)) > 1]
        name = f"{series.label} ({', '.join(differing)})" if differing else series.label
        earlier = sum(rival.label == series.label for rival in every[:position])
        dashes = (":" if earlier % 2 else "-.") if earlier else series.mark.line
        named.append((name, replace(series.mark, line=dashes), groups[series]))
    return named


def _lines(
    records: Records,
    series_of: Callable[[Any], Series],
    points_of: Callable[[AnyRecord], Iterable[tuple[float, float]]],
) -> list[Line]:
    """Return the means of the points (x, y) of each series."""
    return [
        Line.of(name, mark, itertools.chain.from_iterable(map(points_of, members)))
        for name, mark, members in _grouped(records, series_of)
    ]


def _ends(lines: Sequence[Line], label: str, against: str) -> str:
    """Return the alternative text of a panel: the end of each line."""
    ends = [f"{line.label} {number(line.mean[-1])} at {line.x[-1]:,g}" for line in lines]
    return f"{label} by {against}, {', '.join(ends)}"


# Fits: scores against the number of training rows, and losses along β.

_LOG = ("elbo", "beta-elbo", "fitc", "log-joint", "log-fixed")
_ALL = (*_LOG, "square-joint", "square-fixed")
_WITH_SCRIPT = (*_LOG, FITC_OF_ELBO.name)

_LABELS = {"nll": "NLL", "mse": "MSE", "error": "error", "mre": "MRE"}
_MEANS = "Means over the repeats that were run, with bars of one standard error; lower is better."
_RINGS = "Rings are at the values of β that repeats chose, the dotted line at β = 1."
_TEST = "of test rows against the number of training rows"


def _method_series(cell: FitCell) -> Series:
    order = list(PAPER_METHODS).index(cell.method)
    details = cell.rule.label, "paper protocol" if cell.protocol == "paper" else ""
    return Series((order,), PAPER_METHODS[cell.method].label, method_mark(cell.method), details)


def _size_panel(score: str, dataset: str, records: Records) -> Iterator[Panel]:
    scored = [record for record in records if score in record.outcome.scores]
    lines = _lines(scored, _method_series, lambda r: [(r.cell.size, r.outcome.scores[score])])
    if lines:
        draw = partial(draw_sizes, lines=lines, label=_LABELS[score])
        yield Panel(dataset, draw, _ends(lines, f"mean test {_LABELS[score]}", "training rows"))


def _beta_panel(dataset: str, records: Records, small: bool = True) -> Iterator[Panel]:
    """Draw losses along β at the size nearest to the paper's by ratio, or at the largest other."""
    with_path = [r for r in records if r.cell.method in BETA_METHODS and r.outcome.path]
    sizes = {record.cell.size for record in with_path}
    nearest = min(sizes, key=lambda size: abs(math.log(size / SMALL_SIZE)), default=0)
    size = nearest if small else max(sizes, default=0)
    if not sizes or (not small and size == nearest):
        return
    lines = []
    for name, mark, members in _grouped(
        [r for r in with_path if r.cell.size == size], _method_series
    ):
        paths = [{point.beta: point.validation for point in r.outcome.path} for r in members]
        common = set.intersection(*map(set, paths))
        line = Line.of(name, mark, ((beta, path[beta]) for beta in common for path in paths))
        lines.append((line, sorted(record.outcome.beta for record in members)))
    words = [f"{line.label} chose β = {', '.join(map(number, betas))}" for line, betas in lines]
    yield Panel(f"{dataset}, {size:,} rows", partial(_draw_betas, lines=lines), "; ".join(words))


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


def _regression_and_betas(dataset: str, records: Records) -> Iterator[Panel]:
    yield from _size_panel("nll", dataset, records)
    if dataset == "cadata":
        for small in (True, False):
            yield from _beta_panel(dataset, records, small)


def _sizes(name: str, title: str, datasets: Sequence[str], score: str) -> PaperFigure:
    """Return a figure of a score by size."""
    shown = {"dataset": datasets, "method": _ALL if score == "mse" else _WITH_SCRIPT}
    described = {"error": "Error", "mre": "Mean relative error"}.get(score, _LABELS[score])
    caption = f"{described} {_TEST}. {_MEANS}"
    return PaperFigure(name, title, caption, FitCell, shown, partial(_size_panel, score))


# Curves: scores along training.

_RULES = {
    "exact": Mark(INK, "D", "-"),
    "bmc": Mark(ORANGE, "s", "-"),
    "smooth-bmc": Mark(PURPLE, "o", "-", filled=False),
    "ups": Mark(BLUE, "^", "-"),
    "ups-mixed": Mark(GREEN, "v", "-"),
    "ups-paper": Mark(PURPLE, "P", "-"),
}
"""Colour and marker of each rule; the line style shows the number of samples."""

_DASHES = {1: ":", 10: "--", 100: "-"}
_BETA_MARKERS = {0.1: "v", 1.0: "o", 10.0: "^"}

_SETTLED = 0.2
"""Share of the horizontal axis that does not decide the range of the vertical one."""

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


def _details(cell: CurveCell) -> tuple[str, ...]:
    batch = "all rows" if cell.batch_size is None else f"batches of {cell.batch_size:,}"
    return f"learning rate {cell.learning_rate:g}", batch, f"{cell.size:,} rows"


def _objective_series(cell: CurveCell) -> Series:
    bound = cell.objective == "elbo"
    name = ("ELBO" if cell.beta == 1 else "β-ELBO") if bound else f"DLM {cell.hyperparameters}"
    order = 0 if bound else 1 + (cell.hyperparameters == "fixed")
    mark = beta_mark(cell.method, cell.beta)
    return Series((order, cell.beta), f"{name}, β = {cell.beta:g}", mark, _details(cell))


def _rule_series(cell: CurveCell) -> Series:
    order = list(_RULES).index(cell.rule.name), cell.rule.samples
    return Series(order, cell.rule.label, rule_mark(cell.rule), _details(cell))


def _curve_panel(
    title: str, label: str, against: str, series_of: Callable[[Any], Series], records: Records
) -> Iterator[Panel]:
    """Draw a score, named by its label, against "epoch", "step" or "seconds"."""
    score = label.lower()

    def points(value: Callable[[Any], float], record: AnyRecord) -> Iterator[tuple[float, float]]:
        for point in record.outcome.points:
            yield point.epoch if against == "epoch" else point.step, value(point)

    curves = [r for r in records if r.outcome.points and score in r.outcome.points[-1].scores]
    if against == "seconds" and curves:
        # Times of the machine that has most runs.
        here = Counter(map(place, curves)).most_common(1)[0][0]
        curves = [record for record in curves if place(record) == here]
    lines = _lines(curves, series_of, partial(points, lambda point: point.scores[score]))
    if against == "seconds":
        # Repeats are averaged at each step, in both directions.
        times = _lines(curves, series_of, partial(points, attrgetter("seconds")))
        lines = [replace(line, x=time.mean) for line, time in zip(lines, times, strict=True)]
    if lines:
        after = _SETTLED * max(float(line.x[-1]) for line in lines)
        draw = partial(draw_progress, lines=lines, x_label=against, label=label, after=after)
        yield Panel(title, draw, _ends(lines, f"mean test {label}", against))


def _along(
    name: str,
    title: str,
    rules: Sequence[str],
    scores: Sequence[str] = ("NLL",),
    datasets: Sequence[str] = (AIRLINE,),
    beta: float | None = None,
    objectives: bool = False,
    whitened: bool = True,
    by_time: bool = False,
) -> PaperFigure:
    """Return a figure of scores along training, by the epoch for airline, else by the step or time.

    It compares rules for joint log-loss DLM, for one β or with a panel for each β, or else the
    objectives for every β in one panel.
    """
    against, unit = "step", "step of Adam"
    if by_time:
        against, unit = "seconds", "seconds of training"
    elif AIRLINE in datasets:
        against, unit = "epoch", "epoch"
    series = _objective_series if objectives else _rule_series
    shown: dict[str, Collection[Any]] = {"dataset": datasets, "rule.name": rules}
    shown |= {} if objectives else {"objective": ["log_loss"], "hyperparameters": ["joint"]}
    shown |= {"whitened": [whitened]} | ({} if beta is None else {"beta": [beta]})

    def panels(dataset: str, records: Records) -> Iterator[Panel]:
        groups = {dataset: records}
        if beta is None and not objectives:
            # A comparison with smooth-bMC is of those β that it was run for.
            smooth = {r.cell.beta for r in records if r.cell.rule.name == "smooth-bmc"}
            betas = sorted(smooth or {r.cell.beta for r in records})
            groups = {
                f"{dataset}, β = {value:g}": [r for r in records if r.cell.beta == value]
                for value in betas
            }
        for (title, members), score in itertools.product(groups.items(), scores):
            yield from _curve_panel(title, score, against, series, members)

    described = "" if objectives else "Log-loss DLM, joint: "
    machine = " Only runs of one machine are shown." if by_time else ""
    caption = f"{described}{' and '.join(scores)} of test rows by the {unit}. {_BANDS}{machine}"
    return PaperFigure(name, title, caption, CurveCell, shown, panels)


# Gradients and samplers.

_STATISTICS = {
    "alignment": ("(i)", "⟨g, g*⟩ / ‖g*‖²"),
    "squared_norm": ("(ii)", "‖g‖² / ‖g*‖²"),
    "squared_error": ("error", "‖g − g*‖² / ‖g*‖²"),
}
"""Short name and label of each statistic of a drawn gradient."""

_GRADIENT_RULES = {"ups": "uPS", "bmc": "bMC", "smooth-bmc": "smooth-bMC"}
_DRAWS = (
    "Gradients in the mean of q(u), drawn repeatedly right after initialisation, against the exact "
    "gradient g*; draws beyond the axis are counted in its last bins."
)
_BIAS = "The paper's estimate of bias"
_SAME_AXIS = "Figures 1g and 1h have the same horizontal axis."
_NOT_BIAS = (
    "What the paper calls bias is the squared error of single draws: variance and squared bias "
    "together."
)


def _histograms(
    name: str, title: str, caption: str, rules: Sequence[str], statistics: Sequence[str]
) -> PaperFigure:
    """Return a figure of drawn gradients, with a panel for each rule and statistic.

    Panels of a statistic have the same axis, which figures 1g and 1h share.
    """
    several = len(statistics) > 1
    sharing = _GRADIENT_RULES if several else ("bmc", "ups")

    def panels(dataset: str, records: Records) -> Iterator[Panel]:
        for rule, statistic in itertools.product(rules, statistics):
            short, label = _STATISTICS[statistic]
            draws = _gradient_draws(records, statistic, [rule])
            if draws:
                shared = _gradient_draws(records, statistic, sharing).values()
                edges = bin_edges(np.concatenate([values for _, values in shared]))
                ends = [f"{name} {number(float(np.median(v)))}" for name, (_, v) in draws.items()]
                draw = partial(draw_histograms, draws=draws, edges=edges, label=label)
                title = f"{_GRADIENT_RULES[rule]}: {short}" if several else dataset
                yield Panel(title, draw, f"medians of {label}, {', '.join(ends)}")

    shown = {"dataset": ["abalone"]}
    layout = Layout(height=2.1, min_width_narrow=1.9) if several else Layout()
    text = f"{_DRAWS} {caption} {_NOT_BIAS}"
    return PaperFigure(name, title, text, GradientCell, shown, panels, layout)


def _gradient_draws(
    records: Records, statistic: str, rules: Iterable[str]
) -> dict[str, tuple[Mark, Array]]:
    """Return the draws of all repeats by rule, few samples first."""
    draws: dict[RuleFacts, list[Array]] = {}
    for arrays, rule in ((record.arrays, rule) for record in records for rule in record.cell.rules):
        drawn = arrays.get(f"{statistic}.{rule.label}.u_mean")
        if rule.name in rules and drawn is not None and len(drawn):
            draws.setdefault(rule, []).append(drawn.astype(np.float64))
    ordered = sorted(draws, key=lambda rule: (rule.name, rule.samples))
    return {rule.label: (rule_mark(rule), np.concatenate(draws[rule])) for rule in ordered}


_PAPER_SAMPLER = Mark(BLUE, "^", "-")
_OUR_SAMPLER = Mark(GREEN, "v", "-")

_SAMPLER_LINES: dict[str, dict[str, tuple[Mark, *tuple[str, ...]]]] = {
    "proposals a draw": {
        "by theory": (Mark(INK, "x", ":"), "expected_proposals"),
        "uPS, the paper's sampler": (_PAPER_SAMPLER, "proposals.value"),
        "with its width held at 1": (Mark(PURPLE, "o", "--", False), "proposals_narrow.value"),
        "uPS (ours)": (_OUR_SAMPLER, "proposals_ours.value"),
    },
    "seconds of a draw": {
        "one example at a time": (Mark(INK, "D", "--"), "one_by_one_seconds"),
        "all examples at once": (Mark(INK, "D", "-"), "vectorised_seconds"),
    },
    "seconds × squared error": {
        "bMC": (Mark(ORANGE, "s", "-"), "bmc_seconds", "bmc_error"),
        "uPS, the paper's sampler": (_PAPER_SAMPLER, "paper_ups_seconds", "paper_ups_error"),
        "uPS (ours)": (_OUR_SAMPLER, "our_ups_seconds", "our_ups_error"),
    },
}
"""Lines of each panel, by the label of its vertical axis: mark, and attributes to multiply."""


def _sampler_panels(dataset: str, records: Records) -> Iterator[Panel]:
    points = [point for record in records for point in record.outcome.looks]
    for label, rows in _SAMPLER_LINES.items():
        lines = [
            Line.of(
                name, mark, ((p.step, math.prod(attrgetter(f)(p) for f in factors)) for p in points)
            )
            for name, (mark, *factors) in rows.items()
        ]
        yield Panel(
            dataset, partial(_draw_sampler, lines=lines, label=label), _ends(lines, label, "step")
        )


def _draw_sampler(ax: Axes, lines: Sequence[Line], label: str) -> None:
    steps = lines[0].x
    draw_lines(ax, [replace(line, x=np.arange(len(steps), dtype=np.float64)) for line in lines])
    ratio_axis(ax)
    ax.set_xticks(range(len(steps)), [f"{step:,g}" for step in steps])
    ax.set(xlabel="steps of training (not to scale)", ylabel=label)


_BOTH = ("NLL", "error")
_SAMPLING = "exact gradients and sampling"

_FIGURES = (
    _sizes("1a", "Regression: log loss", ("sarcos",), "nll"),
    _sizes("1b", "Regression: square loss", ("sarcos",), "mse"),
    PaperFigure(
        "1c",
        "The values of β that are selected",
        "NLL of validation rows against β, with few training rows: the size nearest to the "
        f"paper's {SMALL_SIZE}. {_RINGS} {_MEANS}",
        FitCell,
        {
            "dataset": ["cadata"],
            "method": BETA_METHODS,
            "size": range(int(SMALL_SIZE * SMALL_FACTOR) + 1),
        },
        _beta_panel,
    ),
    _sizes("1d", "Classification: log loss", ("ringnorm",), "nll"),
    _sizes("1e", "Count regression: log loss", PEDESTRIANS, "nll"),
    _along("1f", "Airline: ELBO and DLM", ["exact"], objectives=True),
    _histograms("1g", f"{_BIAS}: bMC", _SAME_AXIS, ["bmc"], ["squared_error"]),
    _histograms("1h", f"{_BIAS}: uPS", _SAME_AXIS, ["ups"], ["squared_error"]),
    _along("1i", f"Airline, β = 0.1: {_SAMPLING}", _SAMPLED, beta=0.1),
    PaperFigure(
        "2",
        "Regression: log loss of four sets, and loss against β",
        f"NLL {_TEST}; and of validation rows of cadata against β, with few and with many "
        f"training rows. {_RINGS} {_MEANS}",
        FitCell,
        {"dataset": REGRESSION_SETS, "method": _WITH_SCRIPT},
        _regression_and_betas,
    ),
    _sizes("3", "Regression: square loss of four sets", REGRESSION_SETS, "mse"),
    _sizes("4", "Classification: log loss of four sets", CLASSIFICATION_SETS, "nll"),
    _sizes("5", "Classification: error of four sets", CLASSIFICATION_SETS, "error"),
    _sizes("6", "Counts: log loss of four sets", COUNT_SETS, "nll"),
    _sizes("7", "Counts: relative error of four sets", COUNT_SETS, "mre"),
    _along("8", "Airline: ELBO and DLM", ["exact"], _BOTH, objectives=True),
    _histograms(
        "9",
        "Gradients drawn by uPS, bMC and smooth-bMC",
        "Condition (i) is ⟨g, g*⟩/‖g*‖², which is 1 for the exact gradient as is condition (ii), "
        "‖g‖²/‖g*‖². The three rules have the same horizontal axes.",
        list(_GRADIENT_RULES),
        list(_STATISTICS),
    ),
    _along("10", f"Airline, β = 0.1: {_SAMPLING}", _SAMPLED, _BOTH, beta=0.1),
    _along("11", f"Airline, β = 1: {_SAMPLING}", _SAMPLED, _BOTH, beta=1.0),
    _along("12", f"Airline, β = 10: {_SAMPLING}", _SAMPLED, _BOTH, beta=10.0),
    _along("13", "Airline: bMC and smooth-bMC", _SMOOTH, _BOTH),
    _along("14", "Counts: uPS and bMC", _SAMPLED, datasets=COUNT_SETS),
    _along("15", "Counts: bMC and smooth-bMC", _SMOOTH, datasets=COUNT_SETS),
    _along("16", "Regression: exact gradients and bMC", ("exact", "bmc"), datasets=REGRESSION_SETS),
    PaperFigure(
        "S1",
        "Product samplers along training",
        "First, the number of proposals for one draw; then the processor time of a draw for every "
        "example by the paper's sampler; last, the time of a gradient times its squared error, "
        "over the squared norm of the exact one: the cost of a given accuracy. Means over the "
        "repeats, with bars of one standard error if there are several; lower is better.",
        SamplerCell,
        {},
        _sampler_panels,
    ),
    _along(
        "S2",
        f"Airline, β = 0.1, m and V trained themselves: {_SAMPLING}",
        _SAMPLED,
        beta=0.1,
        whitened=False,
    ),
    _along(
        "S3",
        "Counts: time to converge by uPS and bMC",
        ("bmc", "ups-mixed", "ups-paper"),
        datasets=COUNT_SETS,
        beta=0.1,
        by_time=True,
    ),
)

FIGURES: dict[str, PaperFigure] = {figure.name: figure for figure in _FIGURES}
"""All figures in the order of the paper, ours last."""
