"""How often a class came, against its predicted probability."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.estimators.plots.reliability import wilson
from directgp.experiments.methods import Method
from directgp.experiments.results import Predictions
from directgp.reports.calibration import reliability
from directgp.reports.figures.inks import GREY, INK, mark_of
from directgp.reports.figures.panels import head, label_edges, panels
from directgp.reports.figures.picture import Picture
from directgp.reports.numbers import percent

_TICKS, _TICK_NAMES = (0.0, 0.5, 1.0), ("0", "0.5", "1")

_TALLEST, _FLOOR = 0.14, -0.18
"""Height of the tallest bar of counts, and where bars stand, in units of probability."""


def reliability_picture(found: dict[Method, Predictions]) -> Picture:
    """A panel a method."""
    errors = [
        f"{m.label}: {percent(reliability(p.actual, p.mean).expected_error)}"
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
