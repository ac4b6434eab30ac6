"""Implement the regressor of counts."""

import warnings
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing_extensions import override

from directgp.errors import DirectGPWarning
from directgp.estimators import validation
from directgp.estimators.base import SparseGPEstimator
from directgp.estimators.explanations import FeatureRelevance, feature_relevance
from directgp.estimators.fit_procedure import unchanged_on_error
from directgp.estimators.frames import means, number_frame
from directgp.estimators.plotting import plot_numbers
from directgp.estimators.preprocessing import Column
from directgp.estimators.validation import ArrayLike, ValidationData, row_values
from directgp.plots import plot_pit
from directgp.plots.style import require_matplotlib
from directgp.predictive.mixture import PredictiveMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@final
class SparseGPCountRegressor(RegressorMixin, SparseGPEstimator):
    """Gaussian process regression of counts; the mean is a rate times the exposure.

    Parameters
    ----------
    objective : str or PointLoss, default="log_loss"
        The training loss: "log_loss", "elbo", "square_loss", or a point loss of your own.
    likelihood : str or Likelihood, default="auto"
        "poisson", "poisson_softplus", "negative_binomial" (for overdispersed counts), "com_poisson"
        (for underdispersed ones), "zero_inflated_poisson", "zero_inflated_negative_binomial" or
        "binomial" (needs trials). "auto" races "poisson", "negative_binomial" and "com_poisson",
        and the zero-inflated ones if there are many zeros; with trials it is "binomial".
    mean : {"auto", "zero", "constant"}, default="auto"
        Prior mean of f; "auto" is a constant.
    standardize : bool, default=True
        Scale the features to mean 0 and standard deviation 1.
    beta, hyperparameters, kernel, ard, num_inducing, inducing, rule, num_samples, optimizer, \
batch_size, max_iter, tol, validation_fraction, dtype, device, random_state, verbose, warm_start, \
effort, time_budget, n_jobs, missing, combine, stack, columns, validation
        As in `SparseGPRegressor`.

    Attributes
    ----------
    members_, weights_, stack_, posterior_, likelihood_, scalings_, beta_, hyperparameters_, \
beta_path_, training_result_, \
n_iter_, findings_, feature_importances_, n_features_in_, feature_names_in_, columns_
        As in `SparseGPRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from directgp import SparseGPCountRegressor
    >>> random = np.random.default_rng(0)
    >>> X = random.uniform(0, 3, (60, 1))
    >>> hours = random.uniform(1, 10, 60)
    >>> y = random.poisson(2.0 * hours)
    >>> one = {"objective": "elbo", "beta": 1.0, "likelihood": "poisson", "kernel": "rbf"}
    >>> model = SparseGPCountRegressor(**one, random_state=0)
    >>> model = model.fit(X, y, exposure=hours)
    >>> bool(abs(model.predict([[1.0]], exposure=[5.0])[0] - 10) < 1)
    True
    """

    _task = "count"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> "SparseGPCountRegressor":
        """Train on a table of features and a column of counts.

        Parameters
        ----------
        X, sample_weight
            As in `SparseGPRegressor.fit`.
        y : array-like of shape (n,)
            Counts, 0, 1, 2, …
        validation_data : (X, y), (X, y, exposure) or (X, y, trials)
            Validation rows in place of a part of X.
        exposure : array-like of shape (n,)
            Time, area or number of people of each count; 1 unless given. The mean count is the
            rate times the exposure.
        trials : array-like of shape (n,)
            Number of trials, of which y succeeded; with ``likelihood="auto"`` it is "binomial".
            The other methods take exposure and trials, too, for the rows they are given.
        """
        with unchanged_on_error(self):
            constants = row_values(self._who("fit"), exposure=exposure, trials=trials)
            self._fit(X, y, sample_weight, validation_data, constants)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> "SparseGPCountRegressor":
        """Update the model with new rows; the first call is `fit`.

        Later calls update q(u) and hold the rest, as in `SparseGPRegressor.partial_fit`.

        Parameters
        ----------
        X, y, sample_weight, exposure, trials
            One or more new rows, as in `fit`; do not repeat rows of earlier calls.
        """
        with unchanged_on_error(self):
            constants = row_values(self._who("partial_fit"), exposure=exposure, trials=trials)
            if self._is_trained:
                self._partial_fit(X, y, sample_weight, constants)
            else:
                self._fit(X, y, sample_weight, row_values=constants)
        return self

    def predict(
        self, X: ArrayLike, exposure: ArrayLike | None = None, trials: ArrayLike | None = None
    ) -> Column:
        """Return the mean count, for an exposure of 1 unless given.

        Where it is beyond float64, as E e^f is for a wide q(f), the median stands in for it.
        """
        constants = row_values(self._who("predict"), exposure=exposure, trials=trials)
        (mean,) = self._over_blocks(X, "predict", means, constants)
        return mean

    def predict_quantiles(
        self,
        X: ArrayLike,
        levels: ArrayLike,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return quantiles of the count, shape (n, number of levels)."""
        constants = row_values(self._who("predict_quantiles"), exposure=exposure, trials=trials)
        return self._quantiles(X, levels, "predict_quantiles", constants)

    def predict_interval(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> tuple[Column, Column]:
        """Return the ends, both included, of a central interval with at least this probability."""
        constants = row_values(self._who("predict_interval"), exposure=exposure, trials=trials)
        return self._interval(X, coverage, constants)

    def predict_frame(
        self,
        X: ArrayLike,
        intervals: ArrayLike = (0.9,),
        quantiles: ArrayLike = (),
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Any:
        """Return predictions as a table of the library of X, as `SparseGPRegressor.predict_frame`.

        Columns are ``mean`` and ``sd`` of the count, the ends of intervals, and quantiles.
        """
        constants = row_values(self._who("predict_frame"), exposure=exposure, trials=trials)
        return number_frame(self, X, intervals, quantiles, constants)

    def predict_pmf(
        self,
        X: ArrayLike,
        max_count: int,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return the probabilities of the counts 0 to max_count, shape (n, max_count + 1)."""
        who = self._who("predict_pmf")
        validation.check_whole(max_count, 0, f"max_count of {who}")
        constants = row_values(who, exposure=exposure, trials=trials)

        def pmf(mixture: PredictiveMixture, _: slice) -> list[Tensor]:
            first = torch.zeros_like(mixture.components[0].rows)
            index = torch.arange(len(first), device=mixture.device)
            return [*mixture.probabilities(index, first, max_count + 1)]

        return np.stack(self._over_blocks(X, "predict_pmf", pmf, constants), axis=1)

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: Any = 0,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return joint samples of y, as `SparseGPRegressor.sample_y`."""
        constants = row_values(self._who("sample_y"), exposure=exposure, trials=trials)
        return self._sample(X, n_samples, random_state, constants)

    def log_density(
        self,
        X: ArrayLike,
        y: ArrayLike,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Column:
        """Return the log of the predictive probability of each count."""
        self._warn_without_exposure(exposure, "log_density")
        constants = row_values(self._who("log_density"), exposure=exposure, trials=trials)
        return self._log_density(X, y, "log_density", constants)

    def nll(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> float:
        """Return the mean negative log probability of the counts: the smaller the better."""
        self._warn_without_exposure(exposure, "nll")
        constants = row_values(self._who("nll"), exposure=exposure, trials=trials)
        return self._nll(X, y, sample_weight, constants)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> float:
        """Return D² of the Poisson deviance: 1 is perfect, 0 as good as a constant rate.

        It is NaN, with a warning, if a constant rate fits the counts exactly.
        """
        self._warn_without_exposure(exposure, "score")
        means = np.maximum(self.predict(X, exposure, trials), np.finfo(np.float64).tiny)
        counts = self._targets(X, y, "score")
        weights = validation.check_sample_weight(sample_weight, counts[:, None], self._who("score"))
        if not np.average(counts, weights=weights):
            warnings.warn(
                "D² is not defined if every count is 0.", UndefinedMetricWarning, stacklevel=2
            )
            return float("nan")
        sizes = trials if exposure is None else exposure
        exposures = np.ones(len(counts)) if sizes is None else np.asarray(sizes, dtype=np.float64)
        rate = np.average(counts, weights=weights) / np.average(exposures, weights=weights)
        from sklearn.metrics import mean_tweedie_deviance  # 0.1 s that a fit does not need

        # D² = 1 − D(y, μ) / D(y, rate · exposure)
        deviance, constant = (
            mean_tweedie_deviance(counts, predicted, sample_weight=weights, power=1)
            for predicted in (means, rate * exposures)
        )
        # By rounding, the deviance of an exact rate is up to about 2⁻⁵¹ times the counts.
        if constant <= 2.0**-48 * np.average(counts, weights=weights):
            warnings.warn(
                "D² is not defined: a constant rate already fits these counts exactly.",
                UndefinedMetricWarning,
                stacklevel=2,
            )
            return float("nan")
        return float(1 - deviance / constant)

    def feature_relevance(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        n_repeats: int = 5,
        random_state: Any = 0,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> FeatureRelevance:
        """Return how much the model uses each feature.

        Parameters are those of `SparseGPRegressor.feature_relevance`, and the exposure or trials of
        the rows of X.
        """
        if X is not None:
            self._warn_without_exposure(exposure, "feature_relevance")
        constants = row_values(self._who("feature_relevance"), exposure=exposure, trials=trials)
        return feature_relevance(self, X, y, constants, n_repeats, random_state)

    def _warn_without_exposure(self, exposure: ArrayLike | None, method: str) -> None:
        """Warn if counts are scored without exposure, and the model was trained with exposures."""
        exposed = getattr(self, "exposed_", False) and self.likelihood_.rows.argument == "exposure"
        if exposure is None and exposed:
            warnings.warn(
                f"{method} uses an exposure of 1, but the model was trained with exposures. Give "
                "exposure=; in cross-validation route it to the score (set_score_request).",
                DirectGPWarning,
                stacklevel=3,
            )

    def plot_calibration(
        self,
        X: ArrayLike,
        y: ArrayLike,
        exposure: ArrayLike | None = None,
        ax: "Axes | None" = None,
        trials: ArrayLike | None = None,
    ) -> "Axes":
        """Plot a histogram of P(Y ≤ y) over the rows; it is flat if predictions are calibrated."""
        require_matplotlib()
        constants = row_values(self._who("plot_calibration"), exposure=exposure, trials=trials)
        return plot_pit(self._pit(X, y, constants), ax)

    def plot_predictions(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        coverage: float = 0.9,
        exposure: ArrayLike | None = None,
        ax: "Axes | None" = None,
        trials: ArrayLike | None = None,
    ) -> "Axes":
        """Plot mean and intervals along one feature; with more, predictions against targets."""
        check_is_fitted(self)
        constants = row_values(self._who("plot_predictions"), exposure=exposure, trials=trials)
        return plot_numbers(self, X, y, coverage, constants, ax)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    @override
    def _encoded(self, y: NDArray[Any], weights: Column | None, who: str, reset: bool) -> Column:
        values = validation.numbers(y, who)
        validation.check_counts(values, who)
        return values
