"""Collect the arrays of a comparison and draw its pictures."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from directgp.experiments.cell import Method
from directgp.experiments.plan import ComparedFit, Predictions
from directgp.experiments.stats import RankingRow, best_of
from directgp.metrics import Score
from directgp.plots.beta import BetaAxis, draw_rings
from directgp.plots.calibration import (
    draw_pit,
    draw_reliability,
    pit_band,
    pit_bars,
    pit_bins,
    reliability,
)
from directgp.plots.curves import Line, draw_estimates, draw_sizes, draw_training
from directgp.plots.predictions import draw_covered, draw_diagonal
from directgp.plots.rendering import Layout, Panel, Picture
from directgp.plots.style import (
    BLUE,
    DARK,
    ORANGE,
    Array,
    axis_name,
    clear_range,
    mark_empty,
    method_mark,
    widened,
)
from directgp.reports.verdict import Findings, pooled
from directgp.text import decimals_for, joined, number, one_line, percent, plural, with_error

PICTURES = ("scores", "learning", "beta", "calibration", "predicted", "training")
"""Names of all pictures that a report may have."""

_TALL = 4.0
"""Height at which the bars of a PIT histogram are cut."""

_SKEWED = 30.0
"""Axes of counts are logarithmic above 1 if the largest is this many times the median."""

_OUTSIDE = 0.5
"""Predictions further outside the range of the targets than this share of it are cut."""

_HALVES, _HALF_NAMES = (0.0, 0.5, 1.0), ("0", "0.5", "1")

_MAX_CLASS = 24
"""Letters of a class in a legend."""


def gallery(findings: Findings) -> list[Picture]:
    """Return the pictures of a comparison that have something to show."""
    if not findings.ranking:
        return []
    every = [
        _scores(findings),
        _learning(findings),
        _betas(findings),
        _calibration(findings),
        _predicted(findings),
        _training(findings),
    ]
    return [picture for picture in every if picture]


def _scores(findings: Findings) -> Picture:
    """Draw NLL and the second score."""
    shown = findings.scores[:2]

    def panel(score: Score) -> Panel:
        found = [(s.method, s.scores[score.name]) for s in findings.ranking]
        rows = [
            (method.label, method_mark(method.name), each.values, each.mean, each.error)
            for method, each in found
        ]
        decimals = decimals_for([e.mean for _, e in found], [e.error for _, e in found])
        words = [f"{m.label} {with_error(e.mean, e.error, decimals)}" for m, e in found]
        repeats = plural(len(found[0][1].values), "repeat")
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
        alt=" ".join(each.alt for each in panels),
        panels=panels,
        layout=Layout(height=0.27 * len(findings.ranking) + 0.62, share_y=True),
    )


def _learning(findings: Findings) -> Picture | None:
    """Draw NLL and the second score against the number of training rows."""
    if len(findings.by_size) < 2:
        return None
    sizes = sorted(findings.by_size)

    def lines(score: str) -> list[Line]:
        found: dict[Method, list[RankingRow]] = {}
        for size in sizes:
            for row in findings.by_size[size]:
                found.setdefault(row.method, []).append(row)
        return [
            Line(
                method.label,
                method_mark(method.name),
                np.array([float(s.size) for s in found[method]]),
                np.array([s.scores[score].mean for s in found[method]]),
                np.array([s.scores[score].error for s in found[method]]),
            )
            for method in findings.comparison.plan.methods
            if method in found
        ]

    def panel(score: Score) -> Panel:
        drawn = lines(score.name)
        return Panel("", lambda ax: draw_sizes(ax, drawn, score.label))

    words = [
        f"{line.label} "
        + ", ".join(
            f"{number(m)} at {int(x):,} rows" for x, m in zip(line.x, line.mean, strict=True)
        )
        for line in lines("nll")
    ]
    return Picture(
        name="learning",
        title="Learning curves",
        caption="Scores on the same test rows against the number of training rows; bars are one "
        "standard error over the repeats.",
        alt=f"NLL by number of training rows: {'; '.join(words)}.",
        panels=[panel(score) for score in findings.scores[:2]],
        layout=Layout(height=2.7, min_width=3.2, min_width_narrow=3.2),
    )


def _betas(findings: Findings) -> Picture | None:
    """Draw the validation loss along β, one panel for each method that chooses β."""
    every = {m: findings.runs(m.name) for m in findings.comparison.plan.methods}
    chosen = {m: [run for run in runs if run.outcome.path] for m, runs in every.items()}
    chosen = {method: runs for method, runs in chosen.items() if runs}
    if not chosen:
        return None

    def panel(method: Method, runs: list[ComparedFit]) -> Panel:
        betas = joined([number(run.outcome.beta) for run in runs])
        color = method_mark(method.name).color
        alt = f"{method.label}: β = {betas}"
        return Panel(method.label, lambda ax: _draw_betas(ax, runs, color), alt)

    panels = [panel(*each) for each in chosen.items()]
    return Picture(
        name="beta",
        title="Loss against β",
        short="β",
        caption="Loss on the validation rows for every β of the grid: thin lines are single "
        "repeats, the thick line is their mean, rings are the chosen β. Each panel has its own "
        "loss.",
        alt="Validation loss along β; chosen in each repeat by "
        f"{'; by '.join(each.alt for each in panels)}.",
        panels=panels,
        layout=Layout(height=2.1, min_width=2.2),
    )


def _draw_betas(ax: Axes, runs: Sequence[ComparedFit], color: str) -> None:
    paths = [{point.beta: point.loss for point in run.outcome.path} for run in runs]
    common = sorted(set.intersection(*map(set, paths)))
    mean = {beta: float(np.mean([path[beta] for path in paths])) for beta in common}
    axis = BetaAxis.of([beta for path in paths for beta in path])
    for path, width, alpha in (*((path, 0.8, 0.4) for path in paths), (mean, 2.0, 1.0)):
        betas = sorted(path)
        losses = [path[beta] if math.isfinite(path[beta]) else math.nan for beta in betas]
        ax.plot(axis.places(betas), losses, color=color, linewidth=width, alpha=alpha)
    betas = [run.outcome.beta for run in runs]
    rings = [path.get(beta, math.nan) for path, beta in zip(paths, betas, strict=True)]
    draw_rings(ax, axis, betas, rings, color)
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
    methods = [row.method for row in findings.ranking]
    every = {method: pooled(findings.runs(method.name)) for method in methods}
    found = {method: each for method, each in every.items() if len(each.actual)}
    if not found:
        return None
    if findings.comparison.plan.data.task == "classification":
        return _reliabilities(found)
    return _pits(found, findings.num_repeats)


def _pits(found: dict[Method, Predictions], repeats: int) -> Picture:
    # Repeats share rows, so the band is that of the rows of one repeat.
    rows = max(1, min(len(each.actual) for each in found.values()) // repeats)
    bins = pit_bins(rows)
    band = pit_band(rows, bins)
    bars = {method: pit_bars(each.below, each.up_to, bins) for method, each in found.items()}
    top = min(_TALL, 1.08 * max(band[1], *(float(each.max()) for each in bars.values())))

    def panel(method: Method, heights: Array) -> Panel:
        def draw(ax: Axes) -> None:
            draw_pit(ax, heights, band, method_mark(method.name).color, "")
            ax.set(ylim=(0, top), xticks=_HALVES, xticklabels=_HALF_NAMES)

        alt = f"{method.label}: bars from {heights.min():.2f} to {heights.max():.2f}"
        return Panel(method.label, draw, alt)

    panels = [panel(*each) for each in bars.items()]
    return Picture(
        name="calibration",
        title="Calibration",
        caption="The position of the actual values within their predicted distributions "
        "(probability integral transform). Calibrated bars are flat, at the dashed line; a hump "
        "means that the distributions are too wide, a bowl that they are too narrow, a slope that "
        "they are too low or too high. The grey band contains nearly all bars of a calibrated "
        "method.",
        alt="Histograms of the PIT, 1 throughout if calibrated. "
        f"{'; '.join(each.alt for each in panels)}.",
        panels=panels,
        layout=Layout(1.75, 1.9, 1.7, x_label="probability integral transform", y_label="density"),
    )


def _reliabilities(found: dict[Method, Predictions]) -> Picture:
    def panel(method: Method, predictions: Predictions) -> Panel:
        bins = reliability(predictions.actual, predictions.mean)

        def draw(ax: Axes) -> None:
            draw_reliability(ax, bins, method_mark(method.name).color)
            ax.set(xticks=_HALVES, yticks=_HALVES)
            ax.set(xticklabels=_HALF_NAMES, yticklabels=_HALF_NAMES)

        alt = f"{method.label}: {percent(bins.expected_error, 1)}"
        return Panel(method.label, draw, alt)

    panels = [panel(*each) for each in found.items()]
    return Picture(
        name="calibration",
        title="Calibration",
        caption="Observed share of the class (with 95 % intervals) for rows with similar predicted "
        "probability. Calibrated points are on the dashed line; the grey bars below are the number "
        "of rows.",
        alt="Observed share against predicted probability. Mean distance from the diagonal, "
        f"{'; '.join(each.alt for each in panels)}.",
        panels=panels,
        layout=Layout(2.2, 1.9, 1.7, x_label="predicted probability", y_label="observed share"),
    )


def _predicted(findings: Findings) -> Picture | None:
    """Draw the first repeat of the method with the best NLL and of the ELBO, or of the next."""
    best, elbo = best_of(findings.ranking, "nll"), findings.elbo
    others = [row for row in findings.ranking if row is not best]
    others.sort(key=lambda row: (row is not elbo, row.scores["nll"].mean))
    methods = [row.method for row in (best, *others[:1])]
    every = {method: pooled(findings.runs(method.name)[:1]) for method in methods}
    found = {method: each for method, each in every.items() if len(each.actual)}
    data = findings.comparison.plan.data
    if not found:
        return None
    if data.classes:
        return _predicted_labels(found, *(one_line(name, _MAX_CLASS) for name in data.classes))
    return predicted_numbers(found, one_line(data.target, 40), counts=data.task == "count")


def _predicted_labels(found: dict[Method, Predictions], other: str, label: str) -> Picture:
    def panel(method: Method, predictions: Predictions) -> Panel:
        ones, mean = predictions.actual == 1, predictions.mean

        def draw(ax: Axes) -> None:
            edges = np.linspace(0, 1, 21)
            for mask, color, hatch, name in (
                (~ones, BLUE, "////", other),
                (ones, ORANGE, "", label),
            ):
                heights, _ = np.histogram(mean[mask], edges)
                ax.stairs(heights, edges, fill=True, color=color, alpha=0.3)
                style: Any = {"linewidth": 1.3, "hatch": hatch, "label": axis_name(name)}
                ax.stairs(heights, edges, color=color, **style)
            ax.set_xlim(0, 1)

        means = [f"{mean[mask].mean():.2f}" if mask.any() else "–" for mask in (ones, ~ones)]
        alt = f"{method.label}: mean {means[0]} for rows of the class, {means[1]} for the others"
        return Panel(method.label, draw, alt)

    panels = [panel(*each) for each in found.items()]
    return Picture(
        name="predicted",
        title="Predicted probabilities by class",
        short="Predictions",
        caption=f"Predicted probabilities of {label} for test rows of the class {label} (orange) "
        f"and of {other} (blue, hatched); the less the two overlap, the better. First repeat; the "
        "method with the best NLL comes first.",
        alt=f"Histograms of the predicted probability of {label}. "
        f"{'; '.join(each.alt for each in panels)}.",
        panels=panels,
        layout=Layout(
            2.4, 2.4, 2.4, x_label=f"predicted probability of {label}", y_label="test rows"
        ),
    )


def predicted_numbers(found: dict[Method, Predictions], target: str, counts: bool) -> Picture:
    """Draw predicted means against actual values, one panel a method, with the same axes."""
    actual = np.concatenate([each.actual for each in found.values()])
    mean = np.concatenate([each.mean for each in found.values()])
    low, high = float(actual.min()), float(actual.max())
    reach = _OUTSIDE * (high - low or 1.0)
    low = min(low, max(float(mean.min()), low - reach))
    high = max(high, min(float(mean.max()), high + reach))
    skewed = counts and high > _SKEWED * max(1.0, float(np.median(actual)))

    def panel(method: Method, rows: Predictions, colors: tuple[str, str]) -> Panel:
        covered: NDArray[np.bool_] = (rows.lower <= rows.actual) & (rows.actual <= rows.upper)

        def draw(ax: Axes) -> None:
            draw_covered(ax, rows.actual, np.clip(rows.mean, low, high), covered, colors)
            draw_diagonal(ax, low, high)
            _set_equal_axes(ax, low, high, skewed)

        error = float(np.sqrt(np.mean((rows.mean - rows.actual) ** 2)))
        alt = (
            f"{method.label}: {plural(len(covered), 'row')}, root mean squared error "
            f"{number(error)}, {percent(float(covered.mean()), 1)} inside their interval"
        )
        return Panel(method.label, draw, alt)

    panels = [panel(*each, (BLUE, ORANGE)) for each in found.items()]
    return Picture(
        name="predicted",
        title="Predicted against actual",
        short="Predictions",
        caption=f"Predicted mean of {target} against its actual value, test rows of the first "
        "repeat. Orange rows are outside their 90 % interval; outliers are drawn at the edge. The "
        "method with the best NLL comes first.",
        alt=f"Scatter of predictions around the diagonal. "
        f"{'; '.join(each.alt for each in panels)}.",
        panels=panels,
        dark_panels=[panel(*each, (DARK[BLUE], DARK[ORANGE])) for each in found.items()],
        layout=Layout(
            3.6, 2.4, 2.4, max_width=3.9, x_label=f"actual {target}", y_label="predicted mean"
        ),
    )


def _set_equal_axes(ax: Axes, low: float, high: float, skewed: bool) -> None:
    margin = 0.04 * (high - low or 1.0)
    limits = (-0.2, 1.3 * high) if skewed else (low - margin, high + margin)
    if skewed:
        ticks = [0, *(10**k for k in range(int(np.log10(high)) + 1))]
        ax.set_xscale("symlog", linthresh=1)
        ax.set_yscale("symlog", linthresh=1)
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.minorticks_off()
    ax.set(xlim=limits, ylim=limits)


def _training(findings: Findings) -> Picture | None:
    """Draw the objective along the first repeat of every method."""
    methods = [row.method for row in findings.ranking]
    found = {m: run for m in methods for run in findings.runs(m.name)[:1] if run.outcome.curve}
    if not found:
        return None

    def panel(method: Method, run: ComparedFit) -> Panel:
        steps, losses = zip(*run.outcome.curve, strict=True)
        mark = method_mark(method.name)
        alt = (
            f"{method.label}: from {number(losses[0], 4)} to {number(losses[-1], 4)} in "
            f"{steps[-1]:,} steps, {run.outcome.status}"
        )
        return Panel(method.label, lambda ax: draw_training(ax, steps, losses, mark), alt)

    panels = [panel(*each) for each in found.items()]
    return Picture(
        name="training",
        title="Training curves",
        short="Training",
        caption="The objective at each step of the chosen run, first repeat. Objectives are of "
        "different kinds, so each panel has its own axis. If β was chosen, the run started from "
        "the solution of a neighbouring β; a curve that still falls at its end needs more steps.",
        alt=f"Objective by step. {'; '.join(each.alt for each in panels)}.",
        panels=panels,
        layout=Layout(1.75, 2.1, 1.75, x_label="step", y_label="objective"),
    )
