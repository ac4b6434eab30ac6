"""Histograms of predicted probabilities, class by class."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from directgp.estimators.plots.canvas import BLUE, ORANGE, axis_name
from directgp.experiments.methods import Method
from directgp.experiments.results import Predictions
from directgp.reports.figures.panels import head, label_edges, panels
from directgp.reports.figures.picture import Picture


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
