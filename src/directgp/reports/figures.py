"""Draw the pictures for the report of a comparison."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from directgp.estimators.explanations import dependence_on
from directgp.experiments.cell import Method
from directgp.experiments.compare_cell import ComparedFit, Predictions
from directgp.experiments.stats import RankingRow
from directgp.metrics import COVERAGE, Reliability, Score, reliability
from directgp.plots import calibration
from directgp.plots.beta import BetaAxis, draw_rings
from directgp.plots.curves import Line, draw_estimates, draw_sizes, mean_and_error
from directgp.plots.dependence import (
    PartialDependence,
    dependence_limits,
    draw_partial_dependence,
    main_classes,
)
from directgp.plots.predictions import draw_covered, draw_diagonal
from directgp.plots.rendering import Layout, Panel, Picture
from directgp.plots.style import (
    BLUE,
    DARK,
    ORANGE,
    Array,
    Mark,
    axis_name,
    clear_range,
    mark_empty,
    method_mark,
    widened,
)
from directgp.reports.findings import Findings, Importance, pooled
from directgp.text import decimals_for, joined, number, one_line, percent, plural, with_error

_TALL = 4.0
"""Height at which the bars of a PIT histogram are cut."""

_SKEWED = 30.0
"""Axes of counts are logarithmic above 1 if the largest is this many times the median."""

_OUTSIDE = 0.5
"""Predictions further outside the range of the targets than this share of it are cut."""

_HALVES = {0.0: "0", 0.5: "0.5", 1.0: "1"}
"""Ticks of an axis of probabilities."""

_MAX_FEATURES = 12
"""Features whose importance is drawn."""

_MAX_CLASS = 24
"""Letters of a class in a legend."""

_MAX_TEXTS = 12
"""Largest number of classes of a matrix with numbers."""

_LEAST_TEXT = 0.005
"""Smallest share that is written."""

_DENSEST = 0.55
"""Opacity of the square of a share of 1; its number can be read in light and in dark colours."""

_MAX_TICKS = 20
"""Largest number of classes that are named along a matrix."""

_MAX_TICK = 12
"""Largest number of letters of a name along a matrix."""

_SQUARE = Layout(height=3.6, min_width=2.4, min_width_narrow=2.4, max_width=3.9)
"""Layout of panels with equal axes."""

_Content = TypeVar("_Content")


def make_pictures(findings: Findings, method: Method | None) -> list[Picture]:
    """Return the pictures that have something to show, of features for the recommended method."""
    if not findings.ranking:
        return []
    every = [make(findings) for make in (_scores, _learning, _calibration, _predicted)]
    if method is not None:
        every += [_importance(findings, method), _dependence(findings, method)]
    return [picture for picture in (*every, _betas(findings)) if picture]


def _panels(
    contents: dict[Method, _Content],
    draw: Callable[[Axes, _Content, Mark], None],
    describe: Callable[[_Content], str],
) -> list[Panel]:
    """Return a panel for each method, drawn from its content and its mark."""

    def panel(method: Method, content: _Content) -> Panel:
        mark = method_mark(method.name)
        alt = f"{method.label}: {describe(content)}"
        return Panel(method.label, lambda ax: draw(ax, content, mark), alt)

    return [panel(*entry) for entry in contents.items()]


def _described(panels: Sequence[Panel]) -> str:
    return f"{'; '.join(panel.alt for panel in panels)}."


def _scores(findings: Findings) -> Picture:
    """Draw NLL and the second score."""
    shown = findings.scores[:2]

    def panel(score: Score) -> Panel:
        estimates = [(s.method, s.scores[score.name]) for s in findings.ranking]
        rows = [
            (method.label, method_mark(method.name), estimate.values, estimate.mean, estimate.error)
            for method, estimate in estimates
        ]
        decimals = decimals_for([e.mean for _, e in estimates], [e.error for _, e in estimates])
        words = [f"{m.label} {with_error(e.mean, e.error, decimals)}" for m, e in estimates]
        repeats = plural(len(estimates[0][1].values), "repeat")
        alt = f"{score.label}, mean of {repeats}: {'; '.join(words)}."
        label = f"{score.label} (lower is better)"
        return Panel("", lambda ax: draw_estimates(ax, rows, label), alt)

    panels = [panel(score) for score in shown]
    names = " and ".join(score.label for score in shown)
    return Picture(
        name="scores",
        title=f"{names} of every method",
        short=names,
        caption="Large marks are means with one standard error, small ones single repeats. "
        "Further left is better; outliers are arrows at the edge.",
        alt=" ".join(estimate.alt for estimate in panels),
        panels=panels,
        layout=Layout(height=0.27 * len(findings.ranking) + 0.62, share_y=True),
    )


def _learning(findings: Findings) -> Picture | None:
    """Draw NLL and the second score against the number of training rows."""
    if len(findings.by_size) < 2:
        return None
    rows_of: dict[Method, list[RankingRow]] = {m: [] for m in findings.comparison.plan.methods}
    for size in sorted(findings.by_size):
        for row in findings.by_size[size]:
            rows_of[row.method].append(row)

    def panel(score: Score) -> Panel:
        lines = [
            Line(
                method.label,
                method_mark(method.name),
                np.array([float(s.size) for s in method_rows]),
                np.array([s.scores[score.name].mean for s in method_rows]),
                np.array([s.scores[score.name].error for s in method_rows]),
            )
            for method, method_rows in rows_of.items()
            if method_rows
        ]
        ends = [zip(line.x, line.mean, strict=True) for line in lines]
        words = [", ".join(f"{number(m)} at {int(x):,} rows" for x, m in points) for points in ends]
        alt = "; ".join(f"{line.label} {word}" for line, word in zip(lines, words, strict=True))
        return Panel("", lambda ax: draw_sizes(ax, lines, score.label), alt)

    panels = [panel(score) for score in findings.scores[:2]]
    return Picture(
        name="learning",
        title="Learning curves",
        caption="Scores on the same test rows against the number of training rows; bars are one "
        "standard error over the repeats.",
        alt=f"NLL by number of training rows: {panels[0].alt}.",
        panels=panels,
        layout=Layout(height=2.7, min_width=3.2, min_width_narrow=3.2),
    )


def _betas(findings: Findings) -> Picture | None:
    """Draw the validation loss along β, one panel for each method that chooses β."""
    every = {m: findings.runs(m.name) for m in findings.comparison.plan.methods}
    chosen = {m: [run for run in runs if run.outcome.path] for m, runs in every.items()}
    panels = _panels(
        {method: runs for method, runs in chosen.items() if runs},
        _draw_betas,
        lambda runs: f"β = {joined([number(run.outcome.beta) for run in runs])}",
    )
    if not panels:
        return None
    return Picture(
        name="beta",
        title="Loss against β",
        short="β",
        caption="Loss on the validation rows for every β of the grid: thin lines are single "
        "repeats, the thick line is their mean, rings are the chosen β. Each panel has its own "
        "loss.",
        alt="Validation loss along β; chosen in each repeat by "
        f"{'; by '.join(beta_panel.alt for beta_panel in panels)}.",
        panels=panels,
        layout=Layout(height=2.1, min_width=2.2),
    )


def _draw_betas(ax: Axes, runs: Sequence[ComparedFit], mark: Mark) -> None:
    paths = [{point.beta: point.loss for point in run.outcome.path} for run in runs]
    common = sorted(set.intersection(*map(set, paths)))
    mean = {beta: float(np.mean([path[beta] for path in paths])) for beta in common}
    axis = BetaAxis.of([beta for path in paths for beta in path])
    for path, width, alpha in (*((path, 0.8, 0.4) for path in paths), (mean, 2.0, 1.0)):
        betas = sorted(path)
        losses = [path[beta] if math.isfinite(path[beta]) else math.nan for beta in betas]
        ax.plot(axis.places(betas), losses, color=mark.color, linewidth=width, alpha=alpha)
    betas = [run.outcome.beta for run in runs]
    rings = [path.get(beta, math.nan) for path, beta in zip(paths, betas, strict=True)]
    draw_rings(ax, axis, betas, rings, mark.color)
    axis.draw(ax)
    every = [loss for path in paths for loss in path.values() if math.isfinite(loss)]
    means = [loss for loss in mean.values() if math.isfinite(loss)]
    rings = [loss for loss in rings if math.isfinite(loss)]
    if not every:
        mark_empty(ax)
    low, high = clear_range(means or every)
    ax.set_ylim(widened(min([low, *rings]), max([high, *rings]), share=0.12))
    ax.locator_params(axis="y", nbins=4)
    ax.set_ylabel(runs[0].outcome.validation_loss.replace("_", " "))


def _calibration(findings: Findings) -> Picture | None:
    """Draw PIT histograms or reliability diagrams, one panel a method, with repeats pooled."""
    methods = [row.method for row in findings.objectives]
    every = {method: pooled(findings.runs(method.name)) for method in methods}
    usable = {
        method: predictions for method, predictions in every.items() if len(predictions.actual)
    }
    if not usable:
        return None
    if findings.comparison.plan.data.task == "classification":
        panels = _panels(
            {m: reliability(*predictions.one_against_rest()) for m, predictions in usable.items()},
            _draw_reliability,
            lambda bins: percent(bins.expected_error, 1),
        )
        many = len(findings.comparison.plan.data.classes or ()) > 2
        caption = (
            "Observed share of the class (with 95 % intervals) for rows with similar predicted "
            "probability. Calibrated points are on the dashed line; the grey bars below are the "
            f"number of rows{', each of which counts once for every class' if many else ''}."
        )
        intro = "Observed share against predicted probability. Mean distance from the diagonal, "
        layout = Layout(
            height=2.2,
            min_width=1.9,
            min_width_narrow=1.7,
            x_label="predicted probability",
            y_label="observed share",
        )
    else:
        panels = _pit_panels(usable, findings.num_repeats)
        caption = (
            "The position of the actual values within their predicted distributions "
            "(probability integral transform). Calibrated bars are flat, at the dashed line; a "
            "hump means that the distributions are too wide, a bowl that they are too narrow, a "
            "slope that they are too low or too high. The grey band contains nearly all bars of a "
            "calibrated method."
        )
        intro = "Histograms of the PIT, 1 throughout if calibrated. "
        layout = Layout(
            height=1.75,
            min_width=1.9,
            min_width_narrow=1.7,
            x_label="probability integral transform",
            y_label="density",
        )
    return Picture(
        name="calibration",
        title="Calibration",
        caption=caption,
        alt=intro + _described(panels),
        panels=panels,
        layout=layout,
    )


def _pit_panels(predictions: dict[Method, Predictions], repeats: int) -> list[Panel]:
    # Compute the band for the rows of one repeat: repeats share rows.
    rows = max(1, min(len(rows_of.actual) for rows_of in predictions.values()) // repeats)
    bins = calibration.pit_bins(rows)
    band = calibration.pit_band(rows, bins)
    bars = {
        m: calibration.pit_bars(rows_of.below, rows_of.up_to, bins)
        for m, rows_of in predictions.items()
    }
    top = min(_TALL, 1.08 * max(band[1], *(float(rows_of.max()) for rows_of in bars.values())))

    def draw(ax: Axes, heights: Array, mark: Mark) -> None:
        calibration.draw_pit(ax, heights, band, mark.color, "")
        ax.set(ylim=(0, top), xticks=list(_HALVES), xticklabels=list(_HALVES.values()))

    return _panels(
        bars, draw, lambda rows_of: f"bars from {rows_of.min():.2f} to {rows_of.max():.2f}"
    )


def _draw_reliability(ax: Axes, bins: Reliability, mark: Mark) -> None:
    calibration.draw_reliability(ax, bins, mark.color)
    ax.set_xticks(list(_HALVES), list(_HALVES.values()))
    ax.set_yticks(list(_HALVES), list(_HALVES.values()))


def _predicted(findings: Findings) -> Picture | None:
    """Draw the first repeat of the method with the best NLL and of the ELBO, or of the next."""
    rows = findings.objectives or list(findings.ranking)
    elbo = findings.elbo
    best = min(rows, key=lambda row: row.scores["nll"].mean)
    others = [row for row in rows if row is not best]
    others.sort(key=lambda row: (row is not elbo, row.scores["nll"].mean))
    methods = [row.method for row in (best, *others[:1])]
    every = {method: pooled(findings.runs(method.name)[:1]) for method in methods}
    usable = {
        method: predictions for method, predictions in every.items() if len(predictions.actual)
    }
    data = findings.comparison.plan.data
    if not usable:
        return None
    if data.classes:
        names = [one_line(name, _MAX_CLASS) for name in data.classes]
        return _predicted_labels(usable, *names) if len(names) == 2 else _confusion(usable, names)
    return predicted_numbers(usable, one_line(data.target, 40), counts=data.task == "count")


def _predicted_labels(
    predictions: dict[Method, Predictions], other_label: str, label: str
) -> Picture:
    def draw(ax: Axes, rows: Predictions, _: Mark) -> None:
        edges = np.linspace(0, 1, 21)
        for one, color, hatch, name in ((0, BLUE, "////", other_label), (1, ORANGE, "", label)):
            heights, _bins = np.histogram(rows.mean[rows.actual == one], edges)
            ax.stairs(heights, edges, fill=True, color=color, alpha=0.3)
            style: Any = {"linewidth": 1.3, "hatch": hatch, "label": axis_name(name)}
            ax.stairs(heights, edges, color=color, **style)
        ax.set_xlim(0, 1)

    def describe(rows: Predictions) -> str:
        ones = rows.mean[rows.actual == 1]
        others = rows.mean[rows.actual == 0]
        means = [f"{group.mean():.2f}" if len(group) else "–" for group in (ones, others)]
        return f"mean {means[0]} for rows of the class, {means[1]} for the others"

    panels = _panels(predictions, draw, describe)
    x_label = f"predicted probability of {label}"
    return Picture(
        name="predicted",
        title="Predicted probabilities by class",
        short="Predictions",
        caption=f"Predicted probabilities of {label} for test rows of the class {label} (orange) "
        f"and of {other_label} (blue, hatched); the less the two overlap, the better. First "
        "repeat; the method with the best NLL comes first.",
        alt=f"Histograms of the {x_label}. {_described(panels)}",
        panels=panels,
        layout=Layout(
            height=2.4, min_width=2.4, min_width_narrow=2.4, x_label=x_label, y_label="test rows"
        ),
    )


def _confusion(predictions: dict[Method, Predictions], names: Sequence[str]) -> Picture:
    """Draw the mean probability of each class over the rows of each actual class."""
    number = len(names)

    def shares(rows: Predictions) -> Array:
        chances = np.zeros((number, number)) if rows.chances is None else rows.chances
        groups = [chances[rows.actual == k] for k in range(number)]
        return np.array(
            [group.mean(0) if len(group) else np.full(number, np.nan) for group in groups]
        )

    def draw(ax: Axes, rows: Predictions, _: Mark) -> None:
        table = shares(rows)
        for i, j in np.ndindex(table.shape):
            color = BLUE if i == j else ORANGE
            share = float(np.nan_to_num(table[i, j]))
            box: Any = {"facecolor": color, "alpha": _DENSEST * share, "linewidth": 0}
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **box))
            if number <= _MAX_TEXTS and share >= _LEAST_TEXT:
                ax.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize="small")
        ax.set(xlim=(-0.5, number - 0.5), ylim=(number - 0.5, -0.5), aspect="equal")
        step = math.ceil(number / _MAX_TICKS)
        shown = [axis_name(name, 60)[:_MAX_TICK] for name in names[::step]]
        ax.set_xticks(range(0, number, step), shown, rotation=90 if max(map(len, shown)) > 3 else 0)
        ax.set_yticks(range(0, number, step), shown)
        ax.grid(False)

    def describe(rows: Predictions) -> str:
        groups = np.diag(shares(rows))
        words = [f"{name} {percent(p, 0)}" for name, p in zip(names, groups, strict=True) if p >= 0]
        return f"mean probability of the actual class {', '.join(words)}"

    panels = _panels(predictions, draw, describe)
    return Picture(
        name="predicted",
        title="Predicted probabilities by class",
        short="Predictions",
        caption="A row for each actual class, a column for each predicted one: the mean predicted "
        "probability, in %, over the test rows of the actual class. Probability on the diagonal "
        "(blue) is right, the rest (orange) shows which classes are confused. First repeat; the "
        "method with the best NLL comes first.",
        alt=f"Matrices of mean probabilities. {_described(panels)}",
        panels=panels,
        layout=replace(_SQUARE, x_label="predicted class", y_label="actual class"),
    )


def predicted_numbers(predictions: dict[Method, Predictions], target: str, counts: bool) -> Picture:
    """Draw predicted means against actual values, one panel a method, with the same axes."""
    actual = np.concatenate([rows_of.actual for rows_of in predictions.values()])
    mean = np.concatenate([rows_of.mean for rows_of in predictions.values()])
    low = float(actual.min())
    high = float(actual.max())
    reach = _OUTSIDE * (high - low or 1.0)
    low = min(low, max(float(mean.min()), low - reach))
    high = max(high, min(float(mean.max()), high + reach))
    skewed = counts and high > _SKEWED * max(1.0, float(np.median(actual)))

    def covered(rows: Predictions) -> Any:
        return (rows.lower <= rows.actual) & (rows.actual <= rows.upper)

    def drawn_in(colors: tuple[str, str]) -> list[Panel]:
        def draw(ax: Axes, rows: Predictions, _: Mark) -> None:
            draw_covered(ax, rows.actual, np.clip(rows.mean, low, high), covered(rows), colors)
            draw_diagonal(ax, low, high)
            _set_equal_axes(ax, low, high, skewed)

        return _panels(predictions, draw, describe)

    def describe(rows: Predictions) -> str:
        error = float(np.sqrt(np.mean((rows.mean - rows.actual) ** 2)))
        return (
            f"{plural(len(rows.actual), 'row')}, root mean squared error {number(error)}, "
            f"{percent(float(covered(rows).mean()), 1)} inside their interval"
        )

    panels = drawn_in((BLUE, ORANGE))
    return Picture(
        name="predicted",
        title="Predicted against actual",
        short="Predictions",
        caption=f"Predicted mean of {target} against its actual value, test rows of the first "
        "repeat. Orange rows are outside their 90 % interval; outliers are drawn at the edge. The "
        "method with the best NLL comes first.",
        alt=f"Scatter of predictions around the diagonal. {_described(panels)}",
        panels=panels,
        dark_panels=drawn_in((DARK[BLUE], DARK[ORANGE])),
        layout=replace(_SQUARE, x_label=f"actual {target}", y_label="predicted mean"),
    )


def _set_equal_axes(ax: Axes, low: float, high: float, skewed: bool) -> None:
    margin = 0.04 * (high - low or 1.0)
    limits = (-0.2, 1.3 * high) if skewed else (low - margin, high + margin)
    if skewed:
        ticks = [0, *(10**k for k in range(int(np.log10(high)) + 1))]
        names = [f"{tick:,}" for tick in ticks]
        ax.set_xscale("symlog", linthresh=1)
        ax.set_yscale("symlog", linthresh=1)
        ax.set(xticks=ticks, xticklabels=names, yticks=ticks, yticklabels=names)
        ax.minorticks_off()
    ax.set(xlim=limits, ylim=limits)


def _importance(findings: Findings, method: Method) -> Picture | None:
    """Draw how much the recommended method needs each feature, in every repeat."""
    importances = findings.importance(method.name)
    if not importances:
        return None
    shown = importances[:_MAX_FEATURES]
    mark = method_mark(method.name)

    def panel(label: str, values_of: Callable[[Importance], Sequence[float]]) -> Panel:
        rows = [
            (axis_name(item.feature, 24), mark, values_of(item), *mean_and_error(values_of(item)))
            for item in shown
        ]
        words = [f"{name} {number(mean, 2)}" for name, _, _, mean, _ in rows]
        alt = f"{label}: {'; '.join(words)}."
        return Panel("", lambda ax: draw_estimates(ax, rows, label, whole=True), alt)

    panels = [panel("increase of NLL if shuffled", lambda item: item.increases)]
    if shown[0].relevance:
        panels.append(panel("share of 1 / lengthscale", lambda item: item.relevance))
    slopes = " Its share of 1 / lengthscale: how fast the predictions vary along it."
    slopes = slopes if len(panels) > 1 else ""
    left_out = len(importances) - len(shown)
    others = f" {plural(left_out, 'feature')} of less importance left out." if left_out else ""
    return Picture(
        name="importance",
        title="Which features matter",
        short="Features",
        caption=f"{method.label}: the increase of NLL when the values of a feature are shuffled "
        f"among the test rows; 0 means that the predictions do not need it.{slopes} Large marks "
        f"are means with one standard error, small ones single repeats.{others}",
        alt=" ".join(item.alt for item in panels),
        panels=panels,
        layout=Layout(height=0.27 * len(shown) + 0.62, share_y=True),
    )


def _dependence(findings: Findings, method: Method) -> Picture | None:
    """Draw the mean of y along the most important features."""
    # Only the first repeat has curves.
    runs = findings.finished(method.name)[:1]
    explanations = [
        run.explanation for run in runs if run.explanation and len(run.explanation.features)
    ]
    if not explanations:
        return None
    data = findings.comparison.plan.data
    names = tuple(one_line(name, _MAX_CLASS) for name in data.classes or ())
    many = names if len(names) > 2 else ()
    target = data.target
    if names:
        target = "probability" if many else f"P({names[1]})"
    curves = [curve[:, ~np.isnan(curve[0])] for curve in explanations[0].curves]
    records = main_classes(
        [
            dependence_on(data.feature_names[j], target, curve, COVERAGE, many)
            for j, curve in zip(explanations[0].features.tolist(), curves, strict=True)
        ]
    )
    limits = dependence_limits(records)
    drawn = records[0].classes

    def panel(record: PartialDependence) -> Panel:
        ends = np.atleast_2d(record.mean)[:, [0, -1]]
        words = [f"from {number(float(low), 3)} to {number(float(high), 3)}" for low, high in ends]
        words = (
            [" ".join(words_of_curve) for words_of_curve in zip(drawn, words, strict=True)]
            if many
            else words
        )
        alt = f"{record.feature}: {', '.join(words)}"
        return Panel("", lambda ax: draw_partial_dependence(ax, record, limits), alt)

    panels = [panel(record) for record in records]
    what = f"the predicted mean of {one_line(target, 40)}"
    if many:
        restriction = f" that varies most, of {len(many)}," if len(drawn) < len(many) else ""
        what = f"the predicted probability of each class{restriction}"
    return Picture(
        name="dependence",
        title="How predictions change with each feature",
        short="Dependence",
        caption=f"{method.label}, first repeat: {what} when "
        "one feature is set to each value in turn and the others keep those of the test rows, "
        f"averaged over the rows, with a {percent(COVERAGE, 0)} interval of the model. The most "
        "important features come first.",
        alt=f"Predicted mean at the smallest and the largest value. {_described(panels)}",
        panels=panels,
        layout=Layout(
            height=2.2, min_width=2.4, min_width_narrow=2.4, y_label=one_line(target, 32)
        ),
    )
