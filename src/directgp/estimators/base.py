"""Define the base class of the three estimators: the methods that they share."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing_extensions import override

from directgp.errors import refuse
from directgp.estimators.decomposition import Decomposition, decompose, training_shares
from directgp.estimators.explanations import (
    NO_LENGTH_SCALES,
    Explained,
    partial_dependence,
)
from directgp.estimators.outputs import columns, over_outputs
from directgp.estimators.predictions import PredictingEstimator
from directgp.estimators.preprocessing import Column
from directgp.estimators.saving import save
from directgp.estimators.stacking import Stacking
from directgp.estimators.summary import Summary, summary_of
from directgp.estimators.term_pictures import term_pictures
from directgp.estimators.validation import ArrayLike
from directgp.plots import plot_beta_path, plot_partial_dependence
from directgp.plots.parts import plot_term_pictures
from directgp.plots.style import require_matplotlib
from directgp.predictive.mixture import PredictiveMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class SparseGPEstimator(PredictingEstimator):
    """A sparse Gaussian process with the interface of scikit-learn."""

    @over_outputs(columns)
    def predict_latent(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of f, without the noise of y.

        f is that of the heaviest member of a mixture: latents of different likelihoods have no
        common scale.

        For real-valued targets f has their units; for labels and counts it is on the scale of the
        likelihood's link, for an exposure of 1. For the likelihoods "gamma", "log_normal" and
        "weibull" f is on the scale of log y, for "beta" on the scale of log(y/(1 − y)). Several
        latent functions, such as one for each of three classes, have one column each.
        """

        def moments(mixture: PredictiveMixture, _: slice) -> list[Tensor]:
            (member,) = mixture.components
            return [member.marginals.mean, member.marginals.variance.sqrt()]

        mean, std = self._over_blocks(X, "predict_latent", moments, heaviest=True)
        if mean.ndim == 1:
            return self._latent_in_units(mean, std, 0)
        latents = [
            self._latent_in_units(*moments, p)
            for p, moments in enumerate(zip(mean, std, strict=True))
        ]
        means, deviations = (np.stack(moments, 1) for moments in zip(*latents, strict=True))
        return means, deviations

    # Explanations

    @override
    def _describe_rows(self, stacking: Stacking) -> None:
        inputs = stacking.table.X
        if stacking.columns is not None:
            inputs = torch.cat([inputs, stacking.columns], 1)
        self._term_shares = training_shares(self, inputs, stacking.table.weights)

    @property
    def feature_importances_(self) -> Column:
        """Share of each feature in the sum of 1 / lengthscale; needs a lengthscale for each.

        1 / lengthscale is proportional to the slope of f that the prior expects, per standard
        deviation of the feature (per unit of X with ``standardize=False``); 0 for a constant
        column. It does not say how strong an effect is: a linear effect has a long lengthscale,
        however strong it is. See `feature_relevance` for what predictions lose.

        Members with such lengthscales count by their weights. The share of a column of the stack
        is given to the features by which its trees split, as often as they do; that of a model
        other than the boosted trees is left out.
        """
        check_is_fitted(self)
        shares = Explained.of(self).relevance()
        if shares is None:
            raise AttributeError(
                f"{NO_LENGTH_SCALES}, so {type(self).__name__} has no feature_importances_. Fit "
                "with ard=True, or use feature_relevance(X, y)."
            )
        return shares

    @over_outputs(None)
    def decompose(self, X: ArrayLike, *, coverage: float = 0.9, latent: int = 0) -> Decomposition:
        """Return the part of f of each term of the kernel, with bands, as a record.

        f is the sum of a constant and independent parts, such as the trend and the season of a
        series, or the effects of groups. The part of a term that is an ``Additive`` kernel, or a
        ``Linear`` one of several columns, is split into the effects of columns and of pairs. Any
        other kernel is one term. Of a mixture it is the members with the kernel of the heaviest
        one.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.
        coverage : float
            Probability of the band of each part.
        latent : int
            Number of the latent function, if there are several: of a class, or 1 for the noise of
            "heteroscedastic".

        Returns
        -------
        Decomposition
            Means and bands in the units of `predict_latent`; the share of each term in the variance
            of f over the training rows; Sobol indices of an ``Additive`` kernel. It prints as a
            table.
        """
        return decompose(self, X, coverage, latent)

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
        part of the noise, too. Both are of the mixture, with predictions of the stack along each
        feature.

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

    @over_outputs(None)
    def plot_parts(
        self,
        X: ArrayLike | None = None,
        *,
        ax: "Axes | Sequence[Axes] | None" = None,
        coverage: float = 0.9,
        latent: int = 0,
    ) -> "list[Axes]":
        """Plot the part of f of each term of the kernel; return the axes, the largest share first.

        A term of one column is a curve with a band, a season that changes also three of its
        periods. Levels of a category or a group, or their slopes, are sorted by their means, at
        most 60. A place is a map, two columns are a picture, and more columns a cloud of means at
        the rows. Of many terms, the twelve of the largest shares are drawn, and three pairs.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows for the ranges of columns, for clouds and for maps; by default inducing inputs.
        ax : matplotlib axes, or one for each picture
            A new figure by default.
        coverage : float
            Probability of the bands.
        latent : int
            As in `decompose`.
        """
        require_matplotlib()
        return plot_term_pictures(term_pictures(self, X, coverage, latent), ax)

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
