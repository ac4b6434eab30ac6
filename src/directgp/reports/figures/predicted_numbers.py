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
from directgp.reports.numbers import percent, whole

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
    inside = percent(float(_covered(predictions).mean()))
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
        ax.set_xticks([0, *powers], ["0", *map(whole, powers)])
        ax.set_yticks([0, *powers], ["0", *map(whole, powers)])
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
