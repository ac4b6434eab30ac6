"""Draw the pictures of a comparison."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from directgp.experiments.cell import Method
from directgp.experiments.plan import ComparedFit, Predictions
from directgp.experiments.stats import ScoreEstimate, Standing, best_of
from directgp.metrics import Score
from directgp.plots.beta import BetaAxis
from directgp.plots.calibration import wilson
from directgp.plots.style import BLUE, ORANGE, axis_name, canvas, draw_cloud
from directgp.reports.drawing import (
    DARK,
    GREY,
    INK,
    PAPER,
    Picture,
    clear_range,
    face_of,
    head,
    label_edges,
    leave_empty,
    mark_of,
    panels,
    widened,
)
from directgp.reports.verdict import Array, Findings, pit_bars, pooled, reliability
from directgp.text import decimals_for, fixed, joined, number, one_line, percent, plural, with_error

_BETA_TICKS = 3
"""Decades that have a tick, at most."""

_APART = 0.25
"""Where β = 0 has a tick at the left, the others begin at this share of the axis."""


def betas_picture(findings: Findings) -> Picture | None:
    """A panel for every method that chooses β; none where no method does."""
    chosen = _choosing(findings)
    if not chosen:
        return None
    return Picture(
        name="beta",
        title="Loss against β",
        short="β",
        caption=(
            "Loss on the validation rows for every β of the grid: thin lines are single repeats, "
            "the thick line their mean, rings the β that was chosen. Each panel has its own loss."
        ),
        alt=_betas_in_words(chosen),
        draw=lambda width: _draw_betas(chosen, width),
    )


def _choosing(findings: Findings) -> dict[Method, list[ComparedFit]]:
    """Runs with a path, by method."""
    every = {m: findings.runs(m.name) for m in findings.comparison.plan.methods}
    found = {m: [run for run in runs if run.outcome.path] for m, runs in every.items()}
    return {method: runs for method, runs in found.items() if runs}


def _betas_in_words(chosen: dict[Method, list[ComparedFit]]) -> str:
    parts = []
    for method, runs in chosen.items():
        betas = [number(run.outcome.beta) for run in runs]
        parts.append(f"{method.label}: β = {joined(betas)}")
    return f"Validation loss along β; chosen in each repeat by {'; by '.join(parts)}."


def _draw_betas(chosen: dict[Method, list[ComparedFit]], width: float) -> Figure:
    figure, axes = panels(len(chosen), width, 2.1, 2.2 if width > 6 else 3.0)
    for ax, (method, runs) in zip(axes, chosen.items(), strict=True):
        _draw_beta_method(ax, method, runs)
    return figure


def _draw_beta_method(ax: Axes, method: Method, runs: Sequence[ComparedFit]) -> None:
    axis = BetaAxis.of([point.beta for run in runs for point in run.outcome.path])
    color = mark_of(method).color
    for run in runs:
        _draw_line(ax, axis, _path(run), color, 0.8, 0.4)
    _draw_line(ax, axis, _mean(runs), color, 2.0, 1.0)
    for run in runs:
        _draw_ring(ax, axis, run, color)
    axis.draw(ax)
    _draw_ticks(ax, axis)
    _draw_losses(ax, runs)
    head(ax, method.label)


def _draw_losses(ax: Axes, runs: Sequence[ComparedFit]) -> None:
    """The vertical axis: means that can be told apart, and every choice."""
    rings = [loss for run in runs if math.isfinite(loss := _loss_of_choice(run))]
    every = [loss for run in runs for loss in _path(run).values() if math.isfinite(loss)]
    means = [loss for loss in _mean(runs).values() if math.isfinite(loss)]
    if not every:
        leave_empty(ax)
    low, high = clear_range(means or every)
    ax.set_ylim(widened(min([low, *rings]), max([high, *rings]), share=0.12))
    ax.locator_params(axis="y", nbins=4)
    ax.set_ylabel(runs[0].outcome.validation_loss.replace("_", " "))


def _path(run: ComparedFit) -> dict[float, float]:
    """Losses in rising order of β."""
    return {p.beta: p.loss for p in sorted(run.outcome.path, key=lambda point: point.beta)}


def _draw_ticks(ax: Axes, axis: BetaAxis) -> None:
    """A few decades, and zero: panels are small."""
    first, last = math.ceil(math.log10(axis.low) - 1e-9), math.floor(math.log10(axis.high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / _BETA_TICKS))
    ticks = {10.0**k: number(10.0**k) for k in range(last, first - 1, -stride)}
    zero = {axis.place(0.0): "0"} if axis.has_zero else {}
    if zero:
        ticks = {tick: name for tick, name in ticks.items() if axis.across(tick) > _APART}
    if ticks:
        ax.set_xticks([*zero, *ticks], [*zero.values(), *ticks.values()])


def _mean(runs: Sequence[ComparedFit]) -> dict[float, float]:
    """Mean loss at each β that every repeat has tried."""
    paths = [_path(run) for run in runs]
    common = sorted(set.intersection(*(set(path) for path in paths)))
    return {beta: float(np.mean([path[beta] for path in paths])) for beta in common}


def _loss_of_choice(run: ComparedFit) -> float:
    return _path(run).get(run.outcome.beta, math.nan)


def _draw_line(
    ax: Axes, axis: BetaAxis, losses: dict[float, float], color: str, width: float, alpha: float
) -> None:
    x = [axis.place(beta) for beta in losses]
    y = [loss if math.isfinite(loss) else math.nan for loss in losses.values()]
    ax.plot(x, y, color=color, linewidth=width, alpha=alpha)


def _draw_ring(ax: Axes, axis: BetaAxis, run: ComparedFit, color: str) -> None:
    ax.plot(
        axis.place(run.outcome.beta),
        _loss_of_choice(run),
        "o",
        color=color,
        markerfacecolor=PAPER,
        markeredgewidth=1.6,
        markersize=6,
        zorder=4,
    )


_TALL = 4.0
"""Bars are cut at this height, so that one of them does not flatten all others."""

_PER_BIN = 40
"""Rows of a repeat that a bin should have."""


def pit_picture(found: dict[Method, Predictions], repeats: int) -> Picture:
    """A panel a method; rows of several repeats are partly the same, so the band is for one."""
    rows = max(1, min(len(each.actual) for each in found.values()) // repeats)
    bins = int(np.clip(rows // _PER_BIN, 5, 20))
    bars = {method: pit_bars(each.below, each.up_to, bins) for method, each in found.items()}
    words = [f"{m.label}: bars from {b.min():.2f} to {b.max():.2f}" for m, b in bars.items()]
    return Picture(
        name="calibration",
        title="Calibration",
        short="Calibration",
        caption=(
            "Where the actual values lie within their predicted distributions (the probability "
            "integral transform). Flat, at the dashed line, is right; a hump says that the "
            "distributions are too wide, a bowl that they are too narrow, a slope that they lie "
            "too low or too high. Nearly all bars of a calibrated method lie in the grey band."
        ),
        alt=f"Histograms of the PIT, 1 throughout if calibrated. {'; '.join(words)}.",
        draw=lambda width: _draw_pits(bars, rows, width),
    )


def _draw_pits(bars: dict[Method, Array], rows: int, width: float) -> Figure:
    figure, axes = panels(len(bars), width, 1.75, 1.9 if width > 6 else 1.7)
    bins = len(next(iter(bars.values())))
    low, high = stats.binom.interval(0.95, rows, 1 / bins)
    band = low * bins / rows, high * bins / rows
    top = min(_TALL, 1.08 * max(float(each.max()) for each in (*bars.values(), np.array(band))))
    for ax, (method, heights) in zip(axes, bars.items(), strict=True):
        _draw_pit(ax, method, heights, band)
        ax.set(xlim=(0, 1), ylim=(0, top), xticks=(0, 0.5, 1), xticklabels=("0", "0.5", "1"))
    label_edges(figure, "probability integral transform", "density")
    return figure


def _draw_pit(ax: Axes, method: Method, heights: Array, band: tuple[float, float]) -> None:
    color = mark_of(method).color
    edges = np.linspace(0, 1, len(heights) + 1)
    ax.axhspan(*band, color=GREY, alpha=0.22, linewidth=0)
    ax.stairs(heights, edges, fill=True, color=color, alpha=0.45)
    ax.stairs(heights, edges, color=color, linewidth=1.0)
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle="--")
    head(ax, method.label)


_TICKS, _TICK_NAMES = (0.0, 0.5, 1.0), ("0", "0.5", "1")

_TALLEST, _FLOOR = 0.14, -0.18
"""Height of the tallest bar of counts, and where bars stand, in units of probability."""


def reliability_picture(found: dict[Method, Predictions]) -> Picture:
    """A panel a method."""
    errors = [
        f"{m.label}: {percent(reliability(p.actual, p.mean).expected_error, 1)}"
        for m, p in found.items()
    ]
    return Picture(
        name="calibration",
        title="Calibration",
        short="Calibration",
        caption=(
            "How often the class came (with 95 % intervals) for rows with the same predicted "
            "probability. Points on the dashed line are right; the grey bars below are the number "
            "of rows."
        ),
        alt=(
            "Observed share against predicted probability. Mean distance from the diagonal, "
            f"{'; '.join(errors)}."
        ),
        draw=lambda width: _draw_reliabilities(found, width),
    )


def _draw_reliabilities(found: dict[Method, Predictions], width: float) -> Figure:
    figure, axes = panels(len(found), width, 2.2, 1.9 if width > 6 else 1.7)
    for ax, (method, predictions) in zip(axes, found.items(), strict=True):
        _draw_reliability(ax, method, predictions)
    label_edges(figure, "predicted probability", "observed share")
    return figure


def _draw_reliability(ax: Axes, method: Method, predictions: Predictions) -> None:
    bins = reliability(predictions.actual, predictions.mean)
    low, high = wilson(bins.observed, bins.count)
    bars = np.clip([bins.observed - low, high - bins.observed], 0, None)
    heights = _TALLEST * bins.count / bins.count.max()
    ax.bar(bins.predicted, heights, 0.06, bottom=_FLOOR, color=GREY, alpha=0.45, linewidth=0)
    ax.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle="--")
    color = mark_of(method).color
    ax.errorbar(
        bins.predicted, bins.observed, yerr=bars, fmt="o", color=color, markersize=4, elinewidth=1
    )
    ax.set(xlim=(-0.04, 1.04), ylim=(-0.2, 1.04), xticks=_TICKS, yticks=_TICKS)
    ax.set(xticklabels=_TICK_NAMES, yticklabels=_TICK_NAMES)
    head(ax, method.label)


def calibration_picture(findings: Findings) -> Picture | None:
    """A panel a method, repeats pooled; none where no prediction is finite."""
    methods = [standing.method for standing in findings.standings]
    every = {method: pooled(findings.runs(method.name)) for method in methods}
    found = {method: each for method, each in every.items() if len(each.actual)}
    if not found:
        return None
    if findings.comparison.plan.data.task == "classification":
        return reliability_picture(found)
    return pit_picture(found, findings.num_repeats)


def learning_picture(findings: Findings) -> Picture:
    """NLL and the second score by size."""
    shown = findings.scores[:2]
    return Picture(
        name="learning",
        title="Learning curves",
        short="Learning curves",
        caption=(
            "Scores on the same test rows against the number of training rows; bands are one "
            "standard error over the repeats."
        ),
        alt=_learning_in_words(findings),
        draw=lambda width: _draw_learning(findings, shown, width),
    )


def _learning_in_words(findings: Findings) -> str:
    parts = []
    for method in _methods(findings):
        points = [f"{e.mean:.3g} at {size:,} rows" for size, e in _curve(findings, method, "nll")]
        parts.append(f"{method.label} {', '.join(points)}")
    return f"NLL by number of training rows: {'; '.join(parts)}.".replace("-0.", "−0.")


def _methods(findings: Findings) -> list[Method]:
    found = {s.method.name for each in findings.by_size.values() for s in each}
    return [method for method in findings.comparison.plan.methods if method.name in found]


def _curve(findings: Findings, method: Method, score: str) -> list[tuple[int, ScoreEstimate]]:
    """Sizes in rising order, and the scores there."""
    return [
        (size, standing.scores[score])
        for size, each in sorted(findings.by_size.items())
        for standing in each
        if standing.method == method
    ]


def _draw_learning(findings: Findings, shown: Sequence[Score], width: float) -> Figure:
    figure, axes = panels(len(shown), width, 2.7, 3.2)
    for ax, score in zip(axes, shown, strict=True):
        _draw_learning_score(ax, findings, score)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = 4 if width > 6 else 2
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False)
    return figure


def _draw_learning_score(ax: Axes, findings: Findings, score: Score) -> None:
    sizes = sorted(findings.by_size)
    curves = {method: _curve(findings, method, score.name) for method in _methods(findings)}
    means = [estimate.mean for curve in curves.values() for _, estimate in curve]
    low, high = widened(*clear_range(means), share=0.1)
    for method, curve in curves.items():
        _draw_learning_method(ax, method, curve)
    ax.set_xscale("log")
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.minorticks_off()
    ax.set(xlabel="training rows", ylabel=score.label, ylim=(low, high))


def _draw_learning_method(
    ax: Axes, method: Method, curve: Sequence[tuple[int, ScoreEstimate]]
) -> None:
    mark = mark_of(method)
    sizes = np.array([size for size, _ in curve])
    mean = np.array([e.mean if math.isfinite(e.mean) else np.nan for _, e in curve])
    error = np.array([e.error if math.isfinite(e.error) else 0.0 for _, e in curve])
    ax.fill_between(sizes, mean - error, mean + error, color=mark.color, alpha=0.09, linewidth=0)
    ax.plot(
        sizes,
        mean,
        linestyle=mark.line,
        marker=mark.marker,
        color=mark.color,
        markerfacecolor=face_of(method),
        markersize=4.5,
        linewidth=1.5,
        label=method.label,
    )


def predicted_labels(found: dict[Method, Predictions], other: str, label: str) -> Picture:
    """A panel a method."""
    words = [f"{m.label}: {_labels_in_words(p)}" for m, p in found.items()]
    return Picture(
        name="predicted",
        title="Predicted probabilities by class",
        short="Predictions",
        caption=(
            f"How often each probability of {label} was predicted, for test rows that were "
            f"{label} (orange) and those that were {other} (blue, hatched); the better the two are "
            "parted, the better. First repeat; the best method in NLL comes first."
        ),
        alt=f"Histograms of the predicted probability of {label}. {'; '.join(words)}.",
        draw=lambda width: _draw_labels(found, other, label, width),
    )


def _labels_in_words(predictions: Predictions) -> str:
    ones = predictions.actual == 1
    means = [f"{predictions.mean[m].mean():.2f}" if m.any() else "–" for m in (ones, ~ones)]
    return f"mean {means[0]} where it came, {means[1]} where not"


def _draw_labels(found: dict[Method, Predictions], other: str, label: str, width: float) -> Figure:
    figure, axes = panels(len(found), width, 2.4, 2.4)
    for ax, (method, predictions) in zip(axes, found.items(), strict=True):
        ones = predictions.actual == 1
        _draw_histogram(ax, predictions.mean[~ones], BLUE, "////", axis_name(other))
        _draw_histogram(ax, predictions.mean[ones], ORANGE, "", axis_name(label))
        ax.set(xlim=(0, 1))
        head(ax, method.label)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper left", ncols=2 if width > 6 else 1, frameon=False
    )
    label_edges(figure, f"predicted probability of {label}", "test rows")
    return figure


def _draw_histogram(
    ax: Axes, values: NDArray[np.float64], color: str, hatch: str, label: str
) -> None:
    bins = np.linspace(0, 1, 21)
    heights, _ = np.histogram(values, bins)
    ax.stairs(heights, bins, fill=True, color=color, alpha=0.3)
    ax.stairs(heights, bins, color=color, linewidth=1.3, label=label, hatch=hatch)


_SKEWED = 30.0
"""Axes of counts are logarithmic above 1 where the largest is this many times the median."""

_DARK = DARK[BLUE.lower()], DARK[ORANGE.lower()]

_OUTSIDE = 0.5
"""Predictions are shown up to this share of the range of actual values outside it."""

_WIDE, _PANEL, _HEIGHT = 6.0, 3.9, 3.6
"""Inches: figures from the first on have panels of this width, and all of this height."""

_MANY = 300
"""More points than this are drawn in pixels."""


def predicted_numbers(found: dict[Method, Predictions], target: str, counts: bool) -> Picture:
    """A panel a method, with equal axes."""
    words = [f"{m.label}: {_covered_in_words(p)}" for m, p in found.items()]
    return Picture(
        name="predicted",
        title="Predicted against actual",
        short="Predictions",
        caption=(
            f"Predicted mean of {target} against its actual value, test rows of the first repeat. "
            "Orange rows lie outside their 90 % interval, and predictions far off at the edge; the "
            "best method in NLL comes first."
        ),
        alt=f"Scatter of predictions around the diagonal. {'; '.join(words)}.",
        draw=lambda width: _draw_numbers(found, target, counts, width, (BLUE, ORANGE)),
        draw_dark=lambda width: _draw_numbers(found, target, counts, width, _DARK),
    )


def _covered(predictions: Predictions) -> NDArray[np.bool_]:
    above, below = predictions.lower <= predictions.actual, predictions.actual <= predictions.upper
    return np.asarray(above & below)


def _covered_in_words(predictions: Predictions) -> str:
    n = len(predictions.actual)
    error = float(np.sqrt(np.mean((predictions.mean - predictions.actual) ** 2)))
    inside = percent(float(_covered(predictions).mean()), 1)
    return f"{n:,} rows, root mean squared error {error:.3g}, {inside} inside their interval"


def _draw_numbers(
    found: dict[Method, Predictions],
    target: str,
    counts: bool,
    width: float,
    colors: tuple[str, str],
) -> Figure:
    most = width if width < _WIDE else _PANEL * len(found)
    figure, axes = panels(len(found), most, _HEIGHT, 2.4)
    low, high = _limits(list(found.values()))
    skewed = counts and high > _SKEWED * _typical(found)
    for ax, (method, predictions) in zip(axes, found.items(), strict=True):
        _draw_cloud(ax, predictions, colors, (low, high))
        ax.plot([low, high], [low, high], color=GREY, linewidth=1.0, linestyle="--", zorder=2.5)
        _set_axes(ax, low, high, skewed)
        head(ax, method.label)
    label_edges(figure, f"actual {target}", "predicted mean")
    return figure


def _limits(every: list[Predictions]) -> tuple[float, float]:
    """All actual values, and the predictions that are not far outside."""
    actual = np.concatenate([each.actual for each in every])
    mean = np.concatenate([each.mean for each in every])
    low, high = float(actual.min()), float(actual.max())
    reach = _OUTSIDE * (high - low or 1.0)
    return (
        min(low, max(float(mean.min()), low - reach)),
        max(high, min(float(mean.max()), high + reach)),
    )


def _typical(found: dict[Method, Predictions]) -> float:
    return max(1.0, float(np.median(np.concatenate([p.actual for p in found.values()]))))


def _set_axes(ax: Axes, low: float, high: float, skewed: bool) -> None:
    """The same horizontally and vertically."""
    margin = 0.04 * (high - low or 1.0)
    limits = (-0.2, 1.3 * high) if skewed else (low - margin, high + margin)
    if skewed:
        powers = [10**k for k in range(int(np.log10(high)) + 1)]
        ax.set_xscale("symlog", linthresh=1)
        ax.set_yscale("symlog", linthresh=1)
        ax.set_xticks([0, *powers], ["0", *(f"{power:,}" for power in powers)])
        ax.set_yticks([0, *powers], ["0", *(f"{power:,}" for power in powers)])
        ax.minorticks_off()
    ax.set(xlim=limits, ylim=limits)


def _draw_cloud(
    ax: Axes, predictions: Predictions, colors: tuple[str, str], limits: tuple[float, float]
) -> None:
    """Rows inside their interval and rows outside it; those far off are at the edge."""
    covered, n = _covered(predictions), len(predictions.actual)
    mean = np.clip(predictions.mean, *limits)
    for mask, color in zip((covered, ~covered), colors, strict=True):
        draw_cloud(ax, predictions.actual[mask], mean[mask], color, among=n)
    for cloud in ax.collections:
        cloud.set_rasterized(n > _MANY)


_SHORT = 24
"""Letters of a class in a legend."""


def predicted_picture(findings: Findings) -> Picture | None:
    """The first repeat of the best method in NLL, and of the ELBO or, if that is it, the next."""
    every = {method: pooled(findings.runs(method.name)[:1]) for method in _shown(findings)}
    found = {method: each for method, each in every.items() if len(each.actual)}
    if not found:
        return None
    data = findings.comparison.plan.data
    if data.classes:
        return predicted_labels(found, *(one_line(name, _SHORT) for name in data.classes))
    return predicted_numbers(found, one_line(data.target, 40), counts=data.task == "count")


def _shown(findings: Findings) -> list[Method]:
    best, elbo = best_of(findings.standings, "nll"), findings.elbo
    others = [standing for standing in findings.standings if standing is not best]
    others.sort(key=lambda standing: (standing is not elbo, standing.scores["nll"].mean))
    return [best.method, *(standing.method for standing in others[:1])]


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
        alt=" ".join(_scores_in_words(findings.standings, score) for score in shown),
        draw=lambda width: _draw_scores(findings.standings, shown, width),
    )


def _scores_in_words(standings: Sequence[Standing], score: Score) -> str:
    found = [standing.scores[score.name] for standing in standings]
    decimals = decimals_for([e.mean for e in found], [e.error for e in found])
    values = [
        f"{standing.method.label} {with_error(each.mean, each.error, decimals)}"
        for standing, each in zip(standings, found, strict=True)
    ]
    repeats = plural(len(found[0].values), "repeat")
    return f"{score.label}, mean of {repeats}: {'; '.join(values)}."


def _draw_scores(standings: Sequence[Standing], shown: Sequence[Score], width: float) -> Figure:
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


def _reach(estimate: ScoreEstimate) -> list[float]:
    """All that should be seen of a method."""
    error = estimate.error if math.isfinite(estimate.error) else 0.0
    return [*estimate.values, estimate.mean - error, estimate.mean + error]


def _draw_row(ax: Axes, standing: Standing, estimate: ScoreEstimate, row: int, high: float) -> None:
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
    text = "not finite" if not math.isfinite(mean) else fixed(mean, 1)
    ax.text(0.96, row, text, transform=at, ha="right", va="center", fontsize="small")


_START, _FLAT = 3, 10.0
"""Of a curve whose first values span this many times the rest, the rest is shown."""


def training_picture(findings: Findings) -> Picture | None:
    """The first repeat of every method; none where nothing was recorded."""
    methods = [standing.method for standing in findings.standings]
    found = {m: run for m in methods for run in findings.runs(m.name)[:1] if run.outcome.curve}
    if not found:
        return None
    return Picture(
        name="training",
        title="Training curves",
        short="Training",
        caption=(
            "The objective at each step of the run that was chosen, first repeat. Objectives are "
            "of different kinds, so each panel has its own axis. Where β was chosen the run began "
            "at the solution of a neighbouring β; a curve that still falls at its end would have "
            "gained from more steps."
        ),
        alt="Objective by step. "
        + f"{'; '.join(_training_in_words(m, run) for m, run in found.items())}.",
        draw=lambda width: _draw_training(found, width),
    )


def _training_in_words(method: Method, run: ComparedFit) -> str:
    (_, first), (steps, last) = run.outcome.curve[0], run.outcome.curve[-1]
    return (
        f"{method.label}: from {first:.4g} to {last:.4g} in {steps:,} steps, {run.outcome.status}"
    )


def _draw_training(found: dict[Method, ComparedFit], width: float) -> Figure:
    figure, axes = panels(len(found), width, 1.75, 2.1 if width > 6 else 1.75)
    for ax, (method, run) in zip(axes, found.items(), strict=True):
        _draw_run(ax, method, run.outcome.curve)
    label_edges(figure, "step", "objective")
    return figure


def _draw_run(ax: Axes, method: Method, curve: Sequence[tuple[int, float]]) -> None:
    # Step 0 has no place on a logarithmic axis, so that it is drawn as 1.
    steps = [max(step, 1) for step, _ in curve]
    losses = [loss if math.isfinite(loss) else math.nan for _, loss in curve]
    mark = mark_of(method)
    ax.plot(steps, losses, color=mark.color, linestyle=mark.line, linewidth=1.5)
    if all(math.isnan(loss) for loss in losses):
        leave_empty(ax)
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_ylim(widened(*_range(losses)))
    ax.locator_params(axis="y", nbins=4)
    head(ax, method.label)


def _range(losses: Sequence[float]) -> tuple[float, float]:
    """All that is finite, but for a start that would flatten the rest."""
    finite = [loss for loss in losses if math.isfinite(loss)] or [0.0]
    late = finite[_START:] or finite
    low, high = min(finite), max(finite)
    return (low, max(late)) if high - low > _FLAT * (max(late) - low) > 0 else (low, high)
