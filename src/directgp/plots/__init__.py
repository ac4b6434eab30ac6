"""Draw figures of estimators and reports from plain arrays; matplotlib loads on first use."""

from directgp.plots.beta import plot_beta_path
from directgp.plots.calibration import plot_pit, plot_reliability
from directgp.plots.dependence import (
    PartialDependence,
    dependence_limits,
    draw_partial_dependence,
    plot_partial_dependence,
)
from directgp.plots.predictions import plot_curve, plot_label_curve, plot_predicted_against_actual

__all__ = [
    "PartialDependence",
    "dependence_limits",
    "draw_partial_dependence",
    "plot_beta_path",
    "plot_curve",
    "plot_label_curve",
    "plot_partial_dependence",
    "plot_pit",
    "plot_predicted_against_actual",
    "plot_reliability",
]
