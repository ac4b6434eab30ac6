"""Define the base class of the three estimators: the methods that they share."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from directgp.errors import refuse
from directgp.estimators.explanations import (
    NO_LENGTH_SCALES,
    Explained,
    FeatureRelevance,
    feature_relevance,
    partial_dependence,
)
from directgp.estimators.fit_procedure import unchanged_on_error
from directgp.estimators.outputs import columns, over_outputs
from directgp.estimators.predictions import PredictingEstimator
from directgp.estimators.preprocessing import Column
from directgp.estimators.saving import save
from directgp.estimators.summary import Summary, summary_of
from directgp.estimators.validation import ArrayLike, ValidationData
from directgp.plots import plot_beta_path, plot_partial_dependence
from directgp.plots.style import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SomeEstimator = TypeVar("SomeEstimator", bound="SparseGPEstimator")


class SparseGPEstimator(PredictingEstimator):
    """A sparse Gaussian process with the interface of scikit-learn."""

    def fit(
        self: SomeEstimator,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> SomeEstimator:
        """Train on a table of features and a column of targets.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Features.
        y : array-like of shape (n,)
            Targets: real numbers, or labels of two classes.
        sample_weight : array-like of shape (n,)
            Weight of each row: 2 counts as two equal rows, 0 as no row.
        validation_data : (X, y)
            Validation rows in place of a part of X; unused if nothing is chosen.
        """
        with unchanged_on_error(self):
            self._fit(X, y, sample_weight, validation_data)
        return self

    @over_outputs(columns)
    def predict_latent(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of f, without the noise of y.

        For real-valued targets in their units; for labels and counts on the scale of the
        likelihood's link, for an exposure of 1. For the likelihoods "gamma" and "log_normal" f is
        on the scale of log y, for "beta" on that of log(y/(1 − y)). With several latent functions,
        such as one for each of three classes, one column each.
        """
        mean, std = self._over_blocks(
            X, "predict_latent", lambda _, q, rows: (q.mean, q.variance.sqrt())
        )
        if mean.ndim == 1:
            return self._latent_in_units(mean, std, 0)
        latents = [
            self._latent_in_units(*moments, p)
            for p, moments in enumerate(zip(mean, std, strict=True))
        ]
        means, deviations = (np.stack(moments, 1) for moments in zip(*latents, strict=True))
        return means, deviations

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Column:
        """Return the log of the predictive density or probability of each y."""
        return self._log_density(X, y, "log_density")

    def nll(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the mean negative log density or probability: the smaller the better."""
        return self._nll(X, y, sample_weight)

    # Explanations

    @property
    def feature_importances_(self) -> Column:
        """Share of each feature in the sum of 1 / lengthscale; needs a lengthscale for each.

        1 / lengthscale is proportional to the slope of f that the prior expects, per standard
        deviation of the feature (per unit of X with ``standardize=False``); 0 for a constant
        column. It does not say how strong an effect is: a linear effect has a long lengthscale,
        however strong it is. See `feature_relevance` for what predictions lose.
        """
        check_is_fitted(self)
        shares = Explained.of(self).relevance()
        if shares is None:
            raise AttributeError(
                f"{NO_LENGTH_SCALES}, so {type(self).__name__} has no feature_importances_. Fit "
                "with ard=True, or use feature_relevance(X, y)."
            )
        return shares

    def feature_relevance(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        n_repeats: int = 5,
        random_state: Any = 0,
    ) -> FeatureRelevance:
        """Return how much the model uses each feature, as a record that prints as a table.

        Parameters
        ----------
        X, y : array-like of shape (n, n_features) and (n,)
            Validation or test rows for the permutation importance, the increase of `nll` when one
            column is shuffled. Each of two columns that are nearly equal may have a small one.
        n_repeats : int
            Shuffles of each column, at least 2. The standard error is over them, not over rows.
        random_state : int, RandomState or None
            Seed of the shuffles.
        """
        return feature_relevance(self, X, y, None, n_repeats, random_state)

    @over_outputs(None)
    def plot_partial_dependence(
        self,
        X: ArrayLike,
        features: str | int | Sequence[str | int] | None = None,
        *,
        ax: "Axes | Sequence[Axes] | None" = None,
        coverage: float = 0.9,
    ) -> "list[Axes]":
        """Plot the mean of y along each feature, averaged over the rows of X; return the axes.

        It is the probability of the second class for labels, and the rate for counts; three or
        more classes have a line for the probability of each, of at most eight classes. The band is
        the central interval, at each value, of the posterior of this average: how well the model
        knows it, not how rows differ. After training for the log loss the posterior may describe a
        part of the noise, too.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows, of which at most 200 (100 for three or more classes) are averaged, a sample with
            a fixed seed. A curve goes from the 5 % to the 95 % quantile of the feature; up to ten
            different values are marks.
        features : name, number, or list of them
            By default the six of the largest `feature_importances_`, or if there are none, those
            whose curves vary most.
        ax : matplotlib axes, or one for each feature
            A new figure by default.
        coverage : float
            Probability of the band.
        """
        require_matplotlib()
        return plot_partial_dependence(partial_dependence(self, X, features, coverage=coverage), ax)

    # Summary, plots and files

    @over_outputs(None)
    def plot_beta_path(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the validation loss of every candidate; the chosen one is ringed."""
        check_is_fitted(self)
        path = self.beta_path_
        if path is None or not path.points:
            who = f"plot_beta_path of {type(self).__name__}"
            allowed = "called after a fit that chose β or hyperparameters"
            got = f"one with beta={self.beta!r} and hyperparameters={self.hyperparameters!r}"
            refuse(who, allowed, got, "Fit with beta='auto'.")
        return plot_beta_path(path, ax)

    def summary(self) -> Summary:
        """Return the model, the choice of β, noise, lengthscales, validation losses and warnings.

        It is a text, which a prompt and a notebook show; in a program `print` it. Its method
        `to_dict` returns the same as plain values.
        """
        check_is_fitted(self)
        return summary_of(self)

    def _repr_html_inner(self) -> str:
        """Return the diagram of scikit-learn and, once fitted, the summary."""
        diagram: str = estimator_html_repr(self)
        fitted = self._is_trained or "outputs_" in vars(self)
        return f"{diagram}{summary_of(self)._repr_html_()}" if fitted else diagram

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return bundle | ({"text/html": self._repr_html_inner()} if "text/html" in bundle else {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `directgp.load` reads.

        An existing file is replaced atomically. The file holds numbers and plain values, no code.
        """
        check_is_fitted(self)
        save(self, path)
