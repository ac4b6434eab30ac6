"""Draw figures of estimators and reports from plain arrays; matplotlib loads on first use."""

from directgp.plots.beta import plot_beta_path
from directgp.plots.calibration import plot_pit, plot_reliability
from directgp.plots.predictions import plot_curve, plot_label_curve, plot_predicted_against_actual

__all__ = [
    "plot_beta_path",
    "plot_curve",
    "plot_label_curve",
    "plot_pit",
    "plot_predicted_against_actual",
    "plot_reliability",
]
