"""What a fitted estimator tells of itself: a summary, a file, the path of β."""

import os
from typing import TYPE_CHECKING

from sklearn.utils.validation import check_is_fitted

from directgp.errors import refuse
from directgp.estimators.persistence import save_model
from directgp.estimators.plots import plot_beta_path
from directgp.estimators.predicting import PredictingEstimator
from directgp.estimators.reports.facts import facts_of
from directgp.estimators.reports.summary import summary_text
from directgp.estimators.state import state_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class TellingEstimator(PredictingEstimator):
    """An estimator that can be looked into and kept."""

    def summary(self) -> None:
        """Print what was trained, which β and why, noise, length scales and validation losses."""
        check_is_fitted(self)
        print(summary_text(facts_of(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `directgp.load` reads.

        What was at the path before is replaced in one step, or left as it was if that fails. The
        file holds numbers and plain facts, no code.
        """
        check_is_fitted(self)
        save_model(path, state_of(self))

    def plot_beta_path(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the validation loss of every candidate; the chosen one is ringed."""
        check_is_fitted(self)
        path = self.beta_path_
        if path is None or not path.points:
            refuse(
                f"plot_beta_path of {type(self).__name__}",
                "called after a fit that chose β or hyperparameters",
                f"one with beta={self.beta!r} and hyperparameters={self.hyperparameters!r}",
                "Fit with beta='auto'.",
            )
        return plot_beta_path(path.points, path.chosen, path.loss, ax)
