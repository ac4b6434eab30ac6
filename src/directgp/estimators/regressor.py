"""Regression: real-valued targets."""

from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing_extensions import override

from directgp.estimators.base import (
    Column,
    SparseGPEstimator,
    unchanged_on_error,
)
from directgp.estimators.messages import regression_target
from directgp.estimators.validation import ArrayLike, check_finite_target, numbers
from directgp.likelihoods.base import Likelihood
from directgp.plots import plot_pit
from directgp.plots.predictions import plot_numbers
from directgp.predictive import predictive_mean, predictive_quantiles, predictive_variance
from directgp.shapes import Marginals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ONE_DEVIATION = (0.15865525393145707, 0.8413447460685429)
"""Φ(−1) and Φ(1)."""


@final
class SparseGPRegressor(RegressorMixin, SparseGPEstimator):
    """Gaussian process regression with calibrated predictions, for few rows and for millions.

    Parameters
    ----------
    objective : str or PointLoss, default="log_loss"
        What is trained for: "log_loss", "square_loss", "elbo", "vfe", "fitc", "crps",
        "absolute_loss", "pinball_loss", or a point loss of your own.
    beta : float or "auto", default="auto"
        β ≥ 0, the weight of the KL term, or chosen by validation.
    hyperparameters : {"auto", "joint", "fixed"}, default="auto"
        Train kernel, noise and inducing inputs together with q(u); or hold them as a finished ELBO
        run has them; or whichever validates better, the plain ELBO solution included.
    likelihood : {"auto", "gaussian", "student_t"} or Likelihood, default="auto"
        p(y given f), for targets with mean 0 and deviation 1 if standardized; "auto" takes the one
        with the larger evidence.
    kernel : {"rbf", "matern12", "matern32", "matern52"} or gpytorch kernel, default="rbf"
        Covariance of f. A kernel of your own is copied and starts from its own values.
    ard : bool or "auto", default="auto"
        A length scale for each feature, or one for all, or whichever has the larger evidence.
    mean : {"auto", "zero", "constant"}, default="auto"
        Prior mean of f; "auto" is zero.
    num_inducing : int or "auto", default="auto"
        Inducing inputs; "auto" is a quarter of the distinct rows, from 50 to 100.
    inducing : {"kmeans++", "random"} or array of shape (m, n_features), default="kmeans++"
        How they are chosen, or where they start, in the units of X.
    rule : str or Rule, default="auto"
        How log E[p(y given f)] is computed for "log_loss"; "auto" is exact.
    num_samples : int, default=10
        Of the rules that draw: "bmc", "smooth_bmc", "ups".
    optimizer : {"auto", "lbfgs", "adam"}, default="auto"
        "auto" is L-BFGS where all rows are looked at together and the rule is exact, else Adam.
    batch_size : int or "auto", default="auto"
        Rows of one Adam step; "auto" is all of them while they fit.
    max_iter : int, default=None
        Steps of one run; None leaves it to the optimiser.
    tol : float, default=None
        A run has converged when its mean loss moves by less than this; None leaves it to the
        optimiser.
    validation_fraction : float or "auto", default="auto"
        Rows that are set aside where something is chosen; "auto" is a fifth, or three folds below
        5000 rows. The chosen model is trained on all rows.
    standardize : bool, default=True
        Scale features and targets to mean 0 and deviation 1. Predictions are in your units.
    dtype : {"float64", "float32"}, default="float64"
        Precision of training.
    device : str, default="auto"
        "cpu", "cuda", …; "auto" is CUDA where there is one and 3000 rows or more.
    random_state : int, RandomState or None, default=None
        Of inducing inputs, splits and rules that draw.
    verbose : int, default=0
        1 shows a progress bar, 2 a line for each run.
    warm_start : bool, default=False
        Start the next `fit` from the model of the last one, in its units.

    Attributes
    ----------
    posterior_ : SparsePosterior
        q(f), for scaled inputs and targets.
    likelihood_ : Likelihood
        p(y given f), for scaled targets.
    scalings_ : Scalings
        How inputs and targets were scaled.
    beta_ : float
        β of the model.
    hyperparameters_ : str
        "joint", "fixed", or "elbo" where the plain ELBO solution was chosen; `partial_fit`
        leaves it.
    beta_path_ : BetaPath or None
        The candidates and their validation losses, where something was chosen.
    training_result_ : TrainingResult
        How the last training or update went, and why it stopped.
    n_iter_ : int
        Its steps.
    findings_ : tuple of str
        What `fit` warned of.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : array of shape (n_features,)
        Their names, where X had some.

    Examples
    --------
    >>> import numpy as np
    >>> from directgp import SparseGPRegressor
    >>> X = np.linspace(0, 6, 60).reshape(-1, 1)
    >>> y = np.sin(X[:, 0]) + np.random.default_rng(0).normal(scale=0.1, size=60)
    >>> model = SparseGPRegressor(objective="elbo", beta=1.0, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.1)
    True
    """

    _task = "regression"
    _default_mean = "zero"

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SparseGPRegressor":
        """Learn from new rows; the first call is `fit`.

        Later calls minimise Σ loss + β·KL[q(u) ‖ q(u) before], the sum over the new rows alone.
        Kernel, noise, inducing inputs and scalings are held, so let the first rows be like those
        to come: rows far from the inducing inputs are not represented. `fit` trains all of it
        anew, with ``warm_start=True`` from here. "square_loss" is updated as the Gaussian model
        that its variances come from; "absolute_loss", which has none of its own, is refused.

        Parameters
        ----------
        X, y, sample_weight
            New rows, as in `fit`, or one of them; those of earlier calls are not to be repeated.
        """
        with unchanged_on_error(self):
            (self._partial_fit if self._is_trained else self._fit)(X, y, sample_weight)
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Column | tuple[Column, Column]:
        """Mean of y, and its standard deviation if asked for.

        The deviation is that of y, noise included; `predict_latent` has that of f. With Student's
        t noise, whose own may be infinite, it is half the width of the central 68 % interval.
        """
        if not return_std:
            (mean,) = self._over_blocks(X, "predict", lambda like, q, _: [_mean(like, q)])
            return self._in_units(mean)
        mean, std = self._over_blocks(
            X, "predict", lambda like, q, _: [_mean(like, q), _std(like, q)]
        )
        return self._in_units(mean), self._deviation_in_units(std)

    def predict_quantiles(self, X: ArrayLike, levels: ArrayLike) -> NDArray[np.float64]:
        """Quantiles of y, shape (n, number of levels); levels lie between 0 and 1."""
        return self._quantiles(X, levels, "predict_quantiles")

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> tuple[Column, Column]:
        """Lower and upper end of the central interval that holds y with this probability."""
        return self._interval(X, coverage)

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0
    ) -> NDArray[np.float64]:
        """Joint draws of y at the rows of X, shape (n, n_samples); builds an n × n matrix."""
        return self._sample(X, n_samples, random_state)

    def plot_calibration(self, X: ArrayLike, y: ArrayLike, ax: "Axes | None" = None) -> "Axes":
        """Draw a histogram of P(Y ≤ y) over the rows: flat if predictions are calibrated."""
        return plot_pit(self._pit(X, y), ax)

    def plot_predictions(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        coverage: float = 0.9,
        ax: "Axes | None" = None,
    ) -> "Axes":
        """Draw mean and intervals along one feature; with more, predictions against targets."""
        check_is_fitted(self)
        return plot_numbers(self, X, y, coverage, None, ax)

    @override
    def _encoded(self, y: NDArray[Any], weights: Column | None, who: str, reset: bool) -> Column:
        values = numbers(y, who)
        check_finite_target(values, who)
        return values

    @override
    def _advice_on_target(self, y: Column) -> list[str]:
        return regression_target(y)


def _mean(likelihood: Likelihood, q: Marginals) -> Tensor:
    """Return the mean of y; for additive noise, which may have no mean, its centre."""
    return q.mean if likelihood.additive else predictive_mean(likelihood, q)


def _std(likelihood: Likelihood, q: Marginals) -> Tensor:
    """Deviation of y, or half the width of the interval that would hold as much of a Gaussian."""
    if likelihood.gaussian:
        return predictive_variance(likelihood, q).sqrt()
    ends = predictive_quantiles(likelihood, q, _ONE_DEVIATION)
    return 0.5 * ends.diff(dim=0)[0]
