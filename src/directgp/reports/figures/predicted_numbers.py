"""Scatter of predicted means against actual values."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from directgp.estimators.plots.canvas import BLUE, ORANGE
from directgp.estimators.plots.cloud import draw_cloud
from directgp.experiments.methods import Method
from directgp.experiments.results import Predictions
from directgp.reports.figures.inks import DARK, GREY
from directgp.reports.figures.panels import head, label_edges, panels
from directgp.reports.figures.picture import Picture
from directgp.reports.numbers import percent

_SKEWED = 30.0
"""Axes of counts are logarithmic above 1 where the largest is this many times the median."""

_DARK = DARK[BLUE.lower()], DARK[ORANGE.lower()]

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
            "Orange rows lie outside their 90 % interval; the best method in NLL comes first."
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
    inside = percent(float(_covered(predictions).mean()))
    return f"{n:,} rows, root mean squared error {error:.3g}, {inside} inside their interval"


def _draw_numbers(
    found: dict[Method, Predictions],
    target: str,
    counts: bool,
    width: float,
    colors: tuple[str, str],
) -> Figure:
    wide = width > 6
    figure, axes = panels(len(found), min(width, 3.9 * len(found) if wide else width), 3.6, 2.4)
    every = np.concatenate([np.r_[p.actual, p.mean] for p in found.values()])
    low, high = float(every.min()), float(every.max())
    margin = 0.04 * (high - low or 1.0)
    skewed = counts and high > _SKEWED * max(float(np.median(every)), 1.0)
    for ax, (method, predictions) in zip(axes, found.items(), strict=True):
        if skewed:
            ax.set_xscale("symlog", linthresh=1)
            ax.set_yscale("symlog", linthresh=1)
        ax.plot([low, high], [low, high], color=GREY, linewidth=1.0, linestyle="--", zorder=2.5)
        _draw_cloud(ax, predictions, colors)
        ax.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
        head(ax, method.label)
    label_edges(figure, f"actual {target}", "predicted mean")
    return figure


def _draw_cloud(ax: Axes, predictions: Predictions, colors: tuple[str, str]) -> None:
    covered, n = _covered(predictions), len(predictions.actual)
    for mask, color in zip((covered, ~covered), colors, strict=True):
        draw_cloud(ax, predictions.actual[mask], predictions.mean[mask], color, among=n)
    for cloud in ax.collections:
        cloud.set_rasterized(n > _MANY)
