"""Learning curves: scores against the number of training rows."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.experiments.methods import Method
from directgp.experiments.standings import Estimate
from directgp.metrics import Score
from directgp.reports.figures.inks import face_of, mark_of
from directgp.reports.figures.panels import panels
from directgp.reports.figures.picture import Picture
from directgp.reports.figures.ranges import clear_range, widened
from directgp.reports.findings import Findings
from directgp.reports.numbers import whole


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
        alt=_in_words(findings),
        draw=lambda width: _draw(findings, shown, width),
    )


def _in_words(findings: Findings) -> str:
    parts = []
    for method in _methods(findings):
        points = [f"{e.mean:.3g} at {size:,} rows" for size, e in _curve(findings, method, "nll")]
        parts.append(f"{method.label} {', '.join(points)}")
    return f"NLL by number of training rows: {'; '.join(parts)}.".replace("-0.", "−0.")


def _methods(findings: Findings) -> list[Method]:
    found = {s.method.name for each in findings.by_size.values() for s in each}
    return [method for method in findings.comparison.plan.methods if method.name in found]


def _curve(findings: Findings, method: Method, score: str) -> list[tuple[int, Estimate]]:
    """Sizes in rising order, and the scores there."""
    return [
        (size, standing.scores[score])
        for size, each in sorted(findings.by_size.items())
        for standing in each
        if standing.method == method
    ]


def _draw(findings: Findings, shown: Sequence[Score], width: float) -> Figure:
    figure, axes = panels(len(shown), width, 2.7, 3.2)
    for ax, score in zip(axes, shown, strict=True):
        _draw_score(ax, findings, score)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = 4 if width > 6 else 2
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False)
    return figure


def _draw_score(ax: Axes, findings: Findings, score: Score) -> None:
    sizes = sorted(findings.by_size)
    curves = {method: _curve(findings, method, score.name) for method in _methods(findings)}
    means = [estimate.mean for curve in curves.values() for _, estimate in curve]
    low, high = widened(*clear_range(means), share=0.1)
    for method, curve in curves.items():
        _draw_method(ax, method, curve)
    ax.set_xscale("log")
    ax.set_xticks(sizes, [whole(size) for size in sizes])
    ax.minorticks_off()
    ax.set(xlabel="training rows", ylabel=score.label, ylim=(low, high))


def _draw_method(ax: Axes, method: Method, curve: Sequence[tuple[int, Estimate]]) -> None:
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
