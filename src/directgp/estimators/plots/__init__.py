"""Pictures of fitted estimators, each drawn from plain arrays; matplotlib loads on first use."""

from directgp.estimators.plots.beta_path import plot_beta_path
from directgp.estimators.plots.candidate import Candidate
from directgp.estimators.plots.curve import plot_curve
from directgp.estimators.plots.label_curve import plot_label_curve
from directgp.estimators.plots.pit import plot_pit
from directgp.estimators.plots.predicted import plot_predicted_against_actual
from directgp.estimators.plots.reliability import plot_reliability

__all__ = [
    "Candidate",
    "plot_beta_path",
    "plot_curve",
    "plot_label_curve",
    "plot_pit",
    "plot_predicted_against_actual",
    "plot_reliability",
]
