"""Implement the regressor of real-valued targets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from typing_extensions import override

from directgp.estimators.base import SparseGPEstimator
from directgp.estimators.explanations import FeatureRelevance, feature_relevance
from directgp.estimators.fit_procedure import unchanged_on_error
from directgp.estimators.frames import means, moments, number_frame
from directgp.estimators.messages import regression_target
from directgp.estimators.outputs import (
    average,
    columns,
    fit_outputs,
    over_outputs,
)
from directgp.estimators.plotting import plot_numbers
from directgp.estimators.preprocessing import Column
from directgp.estimators.validation import (
    ArrayLike,
    ValidationData,
    numbers,
    plain_array,
    row_values,
)
from directgp.likelihoods.units import in_units
from directgp.plots import plot_pit
from directgp.plots.style import require_matplotlib
from directgp.predictive.component import check_targets
from directgp.registry import LIKELIHOODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = NDArray[np.float64]
"""Of shape (n,), or (n, P) for P outputs."""


@final
class SparseGPRegressor(RegressorMixin, SparseGPEstimator):
    """Gaussian process regression with calibrated predictions, for up to millions of rows.

    `fit` races candidates on validation rows: likelihoods, kernels, objectives, and Gaussian
    processes that see predictions of boosted trees as a feature. The prediction is the mixture of
    the best ones, p(y) = Σ_k w_k p_k(y). With objective, beta, likelihood, kernel and ard given,
    and ``combine="best"`` and ``stack=None``, it is that of one Gaussian process.

    Parameters
    ----------
    objective : str or PointLoss, default="log_loss"
        The training loss: "log_loss", "square_loss", "elbo", "vfe", "fitc", "crps",
        "absolute_loss", "pinball_loss", or a point loss of your own.
    beta : float or "auto", default="auto"
        β ≥ 0, the weight of the KL term; "auto" races several values.
    hyperparameters : {"auto", "joint", "fixed"}, default="auto"
        "joint" trains kernel, noise and inducing inputs together with q(u); "fixed" takes them
        from an ELBO run; "auto" races "joint" and the plain ELBO solution.
    likelihood : {"auto", "gaussian", "student_t", …} or Likelihood, default="auto"
        p(y given f), of the scaled targets if standardized; "auto" races several. "gamma",
        "log_normal" and "beta" are for positive targets and proportions, "heteroscedastic" is for
        noise that depends on the inputs.
    kernel : {"auto", "rbf", "matern12", "matern32", "matern52"}, Expression or gpytorch kernel
        Covariance of f; "auto", the default, races the last two and "rbf", and for columns that are
        not numbers an expression of their parts. An expression of `directgp.kernels` may be given
        as text. A kernel of gpytorch is copied, and training starts from its values.
    ard : bool or "auto", default="auto"
        A lengthscale for each feature, or one for all; "auto" races both.
    mean : {"auto", "zero", "constant"}, default="auto"
        Prior mean of f; "auto" is zero.
    num_inducing : int or "auto", default="auto"
        Number of inducing inputs; "auto" starts with a quarter of the distinct rows, from 50 to
        100, and races twice as many where that may pay.
    inducing : {"kmeans++", "random"} or array of shape (m, n_features), default="kmeans++"
        Method that chooses the first inducing inputs, or these inputs in the units of X.
    rule : str or Rule, default="auto"
        Method for log E[p(y given f)] of "log_loss"; "auto" is exact.
    num_samples : int, default=10
        Samples of the Monte Carlo rules "bmc", "smooth_bmc" and "ups".
    optimizer : {"auto", "lbfgs", "adam"}, default="auto"
        "auto" is L-BFGS for full batches and an exact rule, else Adam.
    batch_size : int or "auto", default="auto"
        Rows of one Adam step; "auto" is all rows unless they are very many.
    max_iter : int, default=None
        Steps of one run; None is the default of the optimiser.
    tol : float, default=None
        Change of the mean loss below which a run has converged; None is the default of the
        optimiser.
    validation_fraction : float or "auto", default="auto"
        Rows held out for the race; "auto" is a fifth, or three folds below 1000 rows. The members
        of the mixture are then trained on all rows.
    validation : {"auto", "random", "forward", "groups"}, default="auto"
        How rows are held out: at random; "forward", forecasts from several origins in the column of
        kind "time"; "groups", whole groups of the column of this kind. "auto" is "forward" for a
        series, one row for each time, and otherwise "random".
    standardize : bool, default=True
        Scale features and targets to mean 0 and standard deviation 1; predictions are in your
        units.
    dtype : {"float64", "float32"}, default="float64"
        Precision of training.
    device : str, default="auto"
        "cpu", "cuda", …; "auto" is CUDA if available, for 3000 rows or more.
    random_state : int, RandomState or None, default=None
        Seed of inducing inputs, validation splits and Monte Carlo rules.
    verbose : int, default=0
        1 shows a progress bar, 2 prints a line for each run.
    warm_start : bool, default=False
        Start the next `fit` from the trained model, with its scaling.
    effort : {"fast", "default", "thorough"}, default="default"
        How much the race spends: the fall of the validation loss for which a candidate is trained
        further, the numbers of candidates, and the largest numbers of rows and
        inducing inputs of a candidate.
    time_budget : float, default=None
        Seconds after which the race ends with what it has; a warning says what was not tried.
    n_jobs : int, default=None
        Candidates and folds trained at once, in threads of one core each; -1 is one for each core.
        The result does not depend on it.
    missing : {"error", "impute"}, default="error"
        What to do with NaN in X. "impute" takes the median of the column, and adds a feature of 0
        and 1 for each column with NaN in training; infinity raises an error. A missing category or
        group is a level of its own.
    combine : {"mixture", "best"}, default="mixture"
        "mixture" predicts with up to six candidates, weighted so that the validation loss of their
        mixture is smallest; "best" with the candidate of the smallest validation loss alone.
    stack : {"auto", "trees"}, estimator, list of them, or None, default="auto"
        Models whose out-of-fold predictions are further features of the Gaussian processes.
        "trees" is histogram gradient boosting; "auto" races processes with it and without, from
        100 rows on, if β is chosen, too; None has no such features. An estimator of your own, as
        of scikit-learn, is cloned, and cannot be saved to a file.
    columns : "auto" or mapping from a name (a number, for arrays) to a kind, default="auto"
        Kinds of columns: "number", "time" (days since 1970, or numbers as they are), "category" and
        "group" (levels with codes; the rows of a new group are to be predicted, too), and "place"
        for two columns, latitude and longitude in degrees. "auto", and columns that are not named,
        go by the types of a data frame: dates are "time", text and categoricals "category", and
        latitude and longitude of these names a "place". Arrays have numbers.

    Attributes
    ----------
    members_ : tuple of Member
        The Gaussian processes of the mixture, the heaviest first, each with `posterior`,
        `likelihood`, `beta`, `hyperparameters`, `label` and `stacked`.
    weights_ : array of shape (n_members,)
        Their weights, with the sum 1.
    stack_ : Stack or None
        The fitted models whose predictions are features of the members with `stacked`.
    posterior_ : SparsePosterior
        q(f) of the heaviest member, for scaled inputs and targets.
    likelihood_ : Likelihood
        p(y given f) of the heaviest member, for scaled targets.
    scalings_ : Scalings
        Scaling of inputs, targets and columns of the stack.
    beta_ : float
        β of the heaviest member.
    hyperparameters_ : str
        "joint", "fixed", or "elbo" for the plain ELBO solution, of the heaviest member;
        `partial_fit` does not change it.
    beta_path_ : BetaPath or None
        The candidates and their validation losses, if there were several.
    training_result_ : TrainingResult
        Result of the last training or update of the heaviest member, with the reason why it
        stopped.
    n_iter_ : int
        Steps of the last training or update.
    findings_ : tuple of str
        The warnings of `fit` and `partial_fit`.
    outputs_ : list of SparseGPRegressor
        The fitted model of each output, if y has several columns. The attributes above are theirs,
        except `findings_`. Arrays that methods return have the outputs along axis 1, and `nll` and
        `score` are means over outputs.
    output_names_ : tuple of str
        Names of the outputs, if y is a table with several named columns.
    feature_importances_ : array of shape (n_features,)
        Relevance of the features by the lengthscales of the members that have one for each.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : array of shape (n_features,)
        Names of the features, if X had some.
    columns_ : ColumnKinds or None
        The columns with kind, unit and levels; None if all are plain numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from directgp import SparseGPRegressor
    >>> X = np.linspace(0, 6, 60).reshape(-1, 1)
    >>> y = np.sin(X[:, 0]) + np.random.default_rng(0).normal(scale=0.1, size=60)
    >>> one = {"objective": "elbo", "beta": 1.0, "likelihood": "gaussian", "kernel": "rbf"}
    >>> model = SparseGPRegressor(**one, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.1)
    True
    """

    _task = "regression"
    _default_mean = "zero"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> "SparseGPRegressor":
        """Train on a table of features and a column of targets.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Features.
        y : array-like of shape (n,) or (n, P)
            Targets, real numbers. With P ≥ 2 columns there are P outputs, each with a model of its
            own, as if it were fitted alone; NaN is a missing value, left out for its output.
        sample_weight : array-like of shape (n,)
            Weight of each row: 2 counts as two equal rows, 0 as no row. Medians of
            ``missing="impute"`` ignore the weights.
        validation_data : (X, y), (X, y, noise) or (X, y, upper)
            Validation rows in place of a part of X; unused if nothing is chosen.
        noise : array-like of shape (n,)
            Variance of the noise of each y, in its units squared, for a likelihood that uses it.
        upper : array-like of shape (n,)
            Upper end of the interval from y that has the target, for a likelihood that uses it.
            The other methods take noise and upper, too, for the rows they are given. With several
            outputs both may have a column for each.
        """
        with unchanged_on_error(self):
            constants = row_values(self._who("fit"), noise=noise, upper=upper)
            if self._has_outputs(y, held=bool(self.warm_start)):
                fit_outputs(self, "fit", X, y, sample_weight, validation_data, constants)
            else:
                for name in ("outputs_", "output_names_"):
                    # Remove the outputs of an earlier fit.
                    self.__dict__.pop(name, None)
                self._fit(X, y, sample_weight, validation_data, constants)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> "SparseGPRegressor":
        """Update the model with new rows; the first call is `fit`.

        Later calls minimise Σ loss + β·KL[q(u) ‖ q_before(u)], with the sum over the new rows
        alone. Kernel, noise, inducing inputs and scalings are held, so the first rows should be
        like the later ones: q(u) cannot represent rows far from the inducing inputs. `fit` trains
        all parameters, with ``warm_start=True`` from the current model. "square_loss" updates the
        Gaussian model that gives its variances; "absolute_loss" has no variances and raises an
        error.

        Parameters
        ----------
        X, y, sample_weight, noise, upper
            One or more new rows, as in `fit`; do not repeat rows of earlier calls.
        """
        with unchanged_on_error(self):
            constants = row_values(self._who("partial_fit"), noise=noise, upper=upper)
            if self._has_outputs(y, held=True):
                fit_outputs(self, "partial_fit", X, y, sample_weight, row_values=constants)
            elif self._is_trained:
                self._partial_fit(X, y, sample_weight, constants)
            else:
                self._fit(X, y, sample_weight, row_values=constants)
        return self

    def _has_outputs(self, y: ArrayLike, held: bool) -> bool:
        """Return whether y is for several outputs.

        If a fitted model is continued (`held`), its number of outputs decides; targets of another
        number raise an error where they are checked.
        """
        if held and (self._is_trained or "outputs_" in vars(self)):
            return "outputs_" in vars(self)
        try:
            shape = np.shape(plain_array(y))
        except (TypeError, ValueError):
            # Lists of different lengths, say; the checks of one output raise.
            return False
        return len(shape) == 2 and shape[1] > 1

    @over_outputs(columns)
    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> Values | tuple[Values, Values]:
        """Return the mean of y, and with `return_std` its standard deviation.

        Where the mean does not exist or is beyond float64, the median stands in for it.
        The deviation includes the noise, unlike `predict_latent`, and the differences of the
        members' means. With Student's t noise in a member, whose variance may be infinite, it is
        half the width of the central 68 % interval.
        """
        constants = row_values(self._who("predict"), noise=noise, upper=upper)
        if not return_std:
            (mean,) = self._over_blocks(X, "predict", means, constants)
            return self.scalings_.targets_in_units(mean)
        mean, std = self._over_blocks(X, "predict", moments, constants)
        scalings = self.scalings_
        return scalings.targets_in_units(mean), scalings.deviations_in_units(std)

    @over_outputs(columns)
    def predict_quantiles(
        self,
        X: ArrayLike,
        levels: ArrayLike,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return quantiles of y, shape (n, number of levels); levels lie between 0 and 1."""
        constants = row_values(self._who("predict_quantiles"), noise=noise, upper=upper)
        return self._quantiles(X, levels, "predict_quantiles", constants)

    @over_outputs(columns)
    def predict_interval(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> tuple[Values, Values]:
        """Return lower and upper end of the central interval with this probability."""
        constants = row_values(self._who("predict_interval"), noise=noise, upper=upper)
        return self._interval(X, coverage, constants)

    @over_outputs(None)
    def predict_frame(
        self,
        X: ArrayLike,
        intervals: ArrayLike = (0.9,),
        quantiles: ArrayLike = (),
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> Any:
        """Return predictions as a table of the library of X, with its index.

        Parameters
        ----------
        X : DataFrame of pandas or polars
            Features.
        intervals : sequence of float
            Probabilities of central intervals: columns ``lower`` and ``upper``, or of several
            ``lower_90`` and so on.
        quantiles : sequence of float
            Levels of quantiles: columns such as ``q0.1``.
        noise, upper : array-like of shape (n,)
            As in `fit`.

        Returns
        -------
        DataFrame
            Columns ``mean`` and ``sd``, the ends of intervals, and quantiles.
        """
        constants = row_values(self._who("predict_frame"), noise=noise, upper=upper)
        return number_frame(self, X, intervals, quantiles, constants)

    @over_outputs(columns)
    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: Any = 0,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return joint samples of y, shape (n, n_samples); needs memory for an n × n matrix.

        Each sample is that of one member of the mixture, chosen by weight.
        """
        constants = row_values(self._who("sample_y"), noise=noise, upper=upper)
        return self._sample(X, n_samples, random_state, constants)

    @over_outputs(columns)
    def log_density(
        self,
        X: ArrayLike,
        y: ArrayLike,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> Values:
        """Return the log of the predictive density of each y."""
        constants = row_values(self._who("log_density"), noise=noise, upper=upper)
        return self._log_density(X, y, "log_density", constants)

    @over_outputs(average)
    def nll(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> float:
        """Return the mean negative log density: the smaller the better."""
        constants = row_values(self._who("nll"), noise=noise, upper=upper)
        return self._nll(X, y, sample_weight, constants)

    @override
    @over_outputs(average)
    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R², the share of the variance of y that predictions explain.

        With several outputs, return the mean of the R² of the outputs; each output uses the rows
        that have its target.
        """
        return float(super().score(X, y, sample_weight))

    @over_outputs(None)
    def feature_relevance(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        n_repeats: int = 5,
        random_state: Any = 0,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
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
        noise, upper : array-like of shape (n,)
            As in `fit`.
        """
        constants = row_values(self._who("feature_relevance"), noise=noise, upper=upper)
        return feature_relevance(self, X, y, constants, n_repeats, random_state)

    @over_outputs(None)
    def plot_calibration(
        self,
        X: ArrayLike,
        y: ArrayLike,
        ax: "Axes | None" = None,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> "Axes":
        """Plot a histogram of P(Y ≤ y) over the rows; it is flat if predictions are calibrated."""
        require_matplotlib()
        constants = row_values(self._who("plot_calibration"), noise=noise, upper=upper)
        return plot_pit(self._pit(X, y, constants), ax)

    @over_outputs(None)
    def plot_predictions(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        coverage: float = 0.9,
        ax: "Axes | None" = None,
        noise: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> "Axes":
        """Plot mean and intervals along one feature; with more, predictions against targets.

        A model whose likelihood needs noise has predictions against targets, too.
        """
        check_is_fitted(self)
        constants = row_values(self._who("plot_predictions"), noise=noise, upper=upper)
        return plot_numbers(self, X, y, coverage, constants, ax)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise the usual error; with several outputs, say where their attributes are."""
            number = len(vars(self).get("outputs_", ()))
            if number == 0:
                return super().__getattribute__(name)
            raise AttributeError(
                f"{type(self).__name__!r} object with {number} outputs has no attribute {name!r}. "
                f"Each output may have one: model.outputs_[k].{name}"
            )

    @override
    def _encoded(self, y: NDArray[Any], weights: Column | None, who: str, reset: bool) -> Column:
        values = numbers(y, who)
        likelihoods = [self.likelihood]
        if self._is_trained and not reset:
            likelihoods = [member.likelihood for member in self.members_]
        elif isinstance(self.likelihood, str):
            named = self.likelihood != "auto"
            likelihoods = [LIKELIHOODS[self.likelihood].make()] if named else []
        if likelihoods and all(likelihood.latent_scale for likelihood in likelihoods):
            # Before rows are scaled and sorted, so that errors have the user's values and rows.
            originals = [in_units(likelihood, 1.0, 0.0) for likelihood in likelihoods]
            check_targets(originals, torch.as_tensor(values))
        return values

    @override
    def _advice_on_target(self, y: Column) -> Iterable[str]:
        return regression_target(y)
