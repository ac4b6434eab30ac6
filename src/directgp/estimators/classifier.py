"""Implement the classifier of two or more classes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor
from typing_extensions import override

from directgp.errors import refuse, require
from directgp.estimators import validation
from directgp.estimators.base import SparseGPEstimator
from directgp.estimators.explanations import FeatureRelevance, feature_relevance
from directgp.estimators.fit_procedure import unchanged_on_error
from directgp.estimators.frames import LABEL, table_like
from directgp.estimators.inputs import EncodedRows
from directgp.estimators.messages import one_class
from directgp.estimators.plotting import curve_points
from directgp.estimators.preprocessing import Column, Columns
from directgp.estimators.validation import ArrayLike, ValidationData
from directgp.likelihoods.capabilities import Classes
from directgp.metrics import one_against_rest
from directgp.plots import plot_label_curve, plot_reliability
from directgp.plots.style import require_matplotlib
from directgp.predictive.mixture import PredictiveMixture
from directgp.registry import LIKELIHOODS, likelihoods_of
from directgp.text import joined

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@final
class SparseGPClassifier(ClassifierMixin, SparseGPEstimator):
    """Gaussian process classification of two or more classes, with calibrated probabilities.

    Two classes have one latent function. Each of more classes has one of its own, and the softmax
    of all, averaged exactly over their posterior, gives the probabilities.

    Parameters
    ----------
    objective : str or PointLoss, default="log_loss"
        The training loss: "log_loss", "elbo", "square_loss" (probit), "zero_one_cost", or a point
        loss of your own. A `ZeroOneCost` with two costs also changes the threshold of `predict`.
    likelihood : {"auto", "probit", "logistic", "softmax", "robust_max", "ordinal"} or Likelihood, \
default="auto"
        p(y given f); "auto" is probit, which has closed forms, for two classes and softmax for
        more. "probit" and "logistic" are for two classes.
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
    classes_ : array of shape (n_classes,)
        The classes, sorted.
    threshold_ : float
        Of two classes, `predict` returns the second if its probability exceeds this.
    members_, weights_, stack_, posterior_, likelihood_, scalings_, beta_, hyperparameters_, \
beta_path_, training_result_, \
n_iter_, findings_, feature_importances_, n_features_in_, feature_names_in_, columns_
        As in `SparseGPRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from directgp import SparseGPClassifier
    >>> X = np.linspace(-2, 2, 40).reshape(-1, 1)
    >>> y = np.where(X[:, 0] > 0, "high", "low")
    >>> one = {"objective": "elbo", "beta": 1.0, "kernel": "rbf"}
    >>> model = SparseGPClassifier(**one, random_state=0).fit(X, y)
    >>> model.predict([[-1.5], [1.5]]).tolist()
    ['low', 'high']
    """

    classes_: NDArray[Any]

    _task = "classification"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> "SparseGPClassifier":
        """Train on a table of features and a column of labels.

        Parameters
        ----------
        X, sample_weight
            As in `SparseGPRegressor.fit`.
        y : array-like of shape (n,)
            Labels of two or more classes: strings, integers or booleans.
        validation_data : (X, y)
            Validation rows in place of a part of X; unused if nothing is chosen.
        """
        with unchanged_on_error(self):
            self._fit(X, y, sample_weight, validation_data)
            self.threshold_ = getattr(self.objective, "threshold", 0.5)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "SparseGPClassifier":
        """Update the model with new rows; the first call is `fit`.

        Later calls update q(u) and hold the rest, as in `SparseGPRegressor.partial_fit`.

        Parameters
        ----------
        X, y, sample_weight
            One or more new rows, as in `fit`; do not repeat rows of earlier calls.
        classes : array-like of shape (n_classes,)
            All classes, needed in the first call if its rows lack some of them. Kernel and mean
            cannot be learned from one class: they keep their starting values, with a warning; β
            is 1 unless given.
        """
        trained = self._is_trained
        with unchanged_on_error(self):
            if classes is not None:
                before = self.classes_ if trained else None
                who = f"classes of {self._who('partial_fit')}"
                self.classes_ = validation.declared_classes(classes, before, who)
                if not trained:
                    self._check_parameters()
                    self._check_likelihood(self._who("partial_fit"))
            if trained:
                self._partial_fit(X, y, sample_weight)
            else:
                self._fit(X, y, sample_weight, classes_known=classes is not None)
                self.threshold_ = getattr(self.objective, "threshold", 0.5)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable class, or of two the cheaper one for a `ZeroOneCost`."""
        return self._decided(self._log_proba(X, "predict"))

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return log probabilities of the classes, (n, n_classes), accurate in the tails."""
        return self._log_proba(X, "predict_log_proba")

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return probabilities of the classes, (n, n_classes), in the order of `classes_`."""
        return np.exp(self._log_proba(X, "predict_proba"))

    def predict_frame(self, X: ArrayLike) -> Any:
        """Return predictions as a table of the library of X, pandas or polars, with its index.

        Columns are the probability of each class, such as ``p_yes``, and ``predicted``, the class
        that `predict` returns.
        """
        check_is_fitted(self)
        names = [f"p_{label}" for label in self.classes_]
        log_proba = self._log_proba(X, "predict_frame")
        columns = dict(zip(names, np.exp(log_proba).T, strict=True))
        columns[LABEL] = self._decided(log_proba)
        return table_like(X, columns, self._who("predict_frame"))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return log odds of the second class minus log odds of the threshold.

        For more than two classes, return the log probability of each.
        """
        return self._scores(self._log_proba(X, "decision_function"))

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Column:
        """Return the log of the predictive probability of each label."""
        return self._log_density(X, y, "log_density")

    def nll(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the mean negative log probability of the labels: the smaller the better."""
        return self._nll(X, y, sample_weight)

    def feature_relevance(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        n_repeats: int = 5,
        random_state: Any = 0,
    ) -> FeatureRelevance:
        """Return how much the model uses each feature.

        Parameters are those of `SparseGPRegressor.feature_relevance`.
        """
        return feature_relevance(self, X, y, None, n_repeats, random_state)

    def plot_calibration(self, X: ArrayLike, y: ArrayLike, ax: "Axes | None" = None) -> "Axes":
        """Plot the frequency of the second class against its predicted probability.

        For more than two classes, plot the frequency of each class against its probability: each
        row counts once for every class.
        """
        require_matplotlib()
        labels = self._targets(X, y, "plot_calibration")
        return plot_reliability(*one_against_rest(labels, self.predict_proba(X)), ax)

    def plot_predictions(
        self, X: ArrayLike, y: ArrayLike | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Plot the probability of the second class along the one feature of the model.

        For more than two classes, plot the probability of each, of at most eight classes.
        """
        require_matplotlib()
        check_is_fitted(self)
        who = self._who("plot_predictions")
        remedy = "plot_calibration works for any number."
        allowed = "called for a model of one feature"
        got = f"{self.n_features_in_} features"
        require(self.n_features_in_ == 1, who, allowed, got, remedy)
        require(not self._coded, who, "called for a feature of numbers", "one of levels", remedy)
        inputs, grid, name = curve_points(self, X)
        data = None if y is None else (inputs, self._targets(X, y, "plot_predictions"))
        chances = self.predict_proba(EncodedRows(grid[:, None]))
        names = [str(label) for label in self.classes_]
        if len(names) > 2:
            return plot_label_curve(grid, chances, data=data, ax=ax, name=name, classes=names)
        second = chances[:, 1]
        return plot_label_curve(grid, second, data=data, ax=ax, name=name, label=names[1])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy: the share of rows whose class `predict` returns."""
        # Objects that are numbers are valid labels for `fit`, but not for accuracy_score.
        labels = validation.plain_labels(
            column_or_1d(validation.plain_array(y)), self._who("score")
        )
        return float(super().score(X, labels, sample_weight))

    def _scores(self, log_proba: Columns) -> NDArray[np.float64]:
        """Return the values of `decision_function` for log probabilities of the classes."""
        if log_proba.shape[1] > 2:
            return log_proba
        # log p₁ − log p₀ − logit(threshold)
        border = np.log(self.threshold_) - np.log1p(-self.threshold_)
        return np.asarray(log_proba[:, 1] - log_proba[:, 0] - border)

    def _decided(self, log_proba: Columns) -> NDArray[Any]:
        """Return the class that `predict` chooses for log probabilities of the classes."""
        scores = self._scores(log_proba)
        places = scores.argmax(1) if scores.ndim > 1 else (scores > 0).astype(int)
        classes: NDArray[Any] = self.classes_[places]
        return classes

    def _log_proba(self, X: ArrayLike, method: str) -> NDArray[np.float64]:
        """Return log probabilities of the classes, one column each."""

        def compute(mixture: PredictiveMixture, _: slice) -> list[Tensor]:
            return [*mixture.label_log_probabilities()]

        check_is_fitted(self)
        return np.stack(self._over_blocks(X, method, compute), axis=1)

    @override
    def _encoded(self, y: NDArray[Any], weights: Column | None, who: str, reset: bool) -> Column:
        y = validation.plain_labels(y, who)
        if reset:
            check_classification_targets(y)
            classes = np.unique(y if weights is None else y[weights > 0])
            validation.check_classes(classes, who)
            self.classes_ = classes
            self._check_likelihood(who)
        strange = ~np.isin(y, self.classes_)
        if strange.any():
            row = int(np.flatnonzero(strange)[0])
            labels = ", ".join(map(repr, self.classes_.tolist()))
            refuse(f"y of {who}", f"one of {labels}", f"{y.tolist()[row]!r} in row {row}")
        return np.searchsorted(self.classes_, y).astype(np.float64)

    def _check_likelihood(self, who: str) -> None:
        """Raise `InvalidInputError` for a likelihood of another number of classes."""
        likelihood = self.likelihood
        number = len(self.classes_)
        owner = f"likelihood of {who}"
        if isinstance(likelihood, Classes):
            got = f"{type(likelihood).__name__}({likelihood.num_classes})"
            require(likelihood.num_classes == number, owner, f"one of {number} classes", got)
        elif number > 2 and likelihood != "auto":
            got = likelihood if isinstance(likelihood, str) else type(likelihood).__name__
            many = isinstance(likelihood, str) and LIKELIHOODS[likelihood].many_classes
            names = ("auto", *likelihoods_of("classification", num_classes=number))
            allowed = f"{joined([repr(name) for name in names], 'or')} for {number} classes"
            remedy = "Or use sklearn.multiclass.OneVsRestClassifier, one model per class."
            require(many, owner, allowed, repr(got), remedy)

    @override
    def _advice_on_target(self, y: Column) -> Iterable[str]:
        return one_class(y, self.classes_)
