"""Define the models whose out-of-fold predictions are features of a GP.

The default is the histogram boosting of scikit-learn, kept as arrays (`Trees`). Any other
regressor or classifier can be a source, too; it is kept as it is.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from typing_extensions import override

from directgp.errors import InvalidInputError, UnsupportedError, refuse, require
from directgp.registry import Task
from directgp.stack.scales import Link, Scale
from directgp.stack.trees import Columns, Trees

Column = Float64[np.ndarray, " n"]
Raw = Float64[np.ndarray, "n k"]

TREES = "trees"
"""Name of the default source."""

_MAX_ITER = 500
"""Largest number of boosting iterations."""

_MIN_LEAF = 5
"""Rows of a leaf."""

_VALIDATION = 0.1
"""Share of the rows with which boosting decides when to stop, as by default in scikit-learn."""

_MIN_ROWS = 12
"""Boosting of fewer rows cannot split: two leaves of 5 rows, after a tenth is held out."""

_FEW_THREADS = 2
"""Smallest limit of the threads of boosting."""

_ENTRIES_PER_THREAD = 2**18
"""Entries of X for each thread of boosting. Its loops are short: on 33,000 rows with 9 features
sixteen threads took 1.4 times as long as one."""

_QUARTER = 0.25
"""Successes, failures or counts in all rows together that the smallest prediction stands for."""

_PSEUDO_WEIGHT = 0.125
"""Weight of a row that is added for a class without rows."""

_ROWS_PER_CLASS = 2
"""Rows that a class needs, since boosting holds some of each class out."""


class Target(NamedTuple):
    """What a source predicts."""

    task: Task
    """Kind of the targets."""

    link: Link
    """Scale of the feature, for targets that are not classes."""

    num_classes: int
    """Number of classes; 2 for targets that are not classes."""

    @property
    def is_class(self) -> bool:
        """Whether the targets are classes."""
        return self.task == "classification"

    @property
    def width(self) -> int:
        """Number of columns: one, or one for each of three or more classes."""
        return self.num_classes if self.is_class and self.num_classes > 2 else 1


class Rows(NamedTuple):
    """Training rows of a source."""

    X: Columns
    """Features; may have NaN."""

    y: Column
    """Targets, rates for exposures, or shares for trials."""

    weights: Column | None
    """Weight of each row, times its exposure or trials; None if all are 1."""

    amounts: Column | None
    """Exposure or trials of each row; None if all are 1."""

    def take(self, chosen: NDArray[Any]) -> "Rows":
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[chosen]
        amounts = None if self.amounts is None else self.amounts[chosen]
        return Rows(self.X[chosen], self.y[chosen], weights, amounts)

    @property
    def total(self) -> float:
        """Number of rows, or sum of their exposures or trials."""
        return float(len(self.y) if self.amounts is None else self.amounts.sum())


@runtime_checkable
class RawModel(Protocol):
    """A fitted model that predicts numbers, before they are brought to the scale of the feature."""

    def raw(self, X: Columns) -> Raw:
        """Return the predictions of the rows."""
        ...


@final
@dataclass(frozen=True)
class FittedSource:
    """A source that was fitted to the rows outside of one fold."""

    model: RawModel
    """`Trees`, or a `ForeignModel`."""

    scale: Scale
    """What brings its predictions to the scale of the feature."""

    def columns(self, X: Columns) -> Raw:
        """Return the features of the rows."""
        return self.scale.forward(self.model.raw(X))

    def between(self, X: Columns) -> "FittedSource":
        """Return the source with the thresholds of its trees between the values of all rows."""
        return replace(self, model=self.model.between(X)) if isinstance(self.model, Trees) else self


class StackSource(ABC):
    """A kind of model that is fitted to the rows outside of each fold."""

    name: str
    """Name of its features, and in error messages."""

    @property
    def takes_weights(self) -> bool:
        """Whether rows count by their weights."""
        return True

    @abstractmethod
    def fit(self, rows: Rows, target: Target, seed: int) -> FittedSource:
        """Fit a new model."""


def sources_of(value: Any, task: Task, who: str) -> tuple[StackSource, ...]:
    """Return the sources of the parameter `stack`; raise if it cannot be used for the task.

    "auto" is "trees" here. Raises `InvalidInputError`.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        require(value in ("auto", TREES), f"stack of {who}", _allowed(task), repr(value))
        return (Boosting(TREES),)
    values = list(value) if isinstance(value, list | tuple) else [value]
    require(bool(values), f"stack of {who}", _allowed(task), "an empty list")
    names: list[str] = []
    sources: list[StackSource] = []
    for item in values:
        if not (isinstance(item, str) and item == TREES):
            _check_estimator(item, task, who)
        name = TREES if isinstance(item, str) else type(item).__name__
        names.append(name)
        number = names.count(name)
        name = name if number == 1 else f"{name} {number}"
        sources.append(Boosting(name) if isinstance(item, str) else Foreign(name, item))
    return tuple(sources)


def check_stack(value: Any, task: Task, who: str) -> None:
    """Raise `InvalidInputError` unless the parameter `stack` can be used for the task."""
    sources_of(value, task, who)


def _allowed(task: Task) -> str:
    kind = "classifier" if task == "classification" else "regressor"
    return f"'auto', 'trees', None, a scikit-learn {kind}, or a list of {kind}s and 'trees'"


def _check_estimator(item: Any, task: Task, who: str) -> None:
    """Raise `InvalidInputError` unless it is an estimator for the task."""
    from sklearn.base import is_classifier, is_clusterer

    if isinstance(item, type):
        remedy = f"Give an instance: {item.__name__}()."
        refuse(f"stack of {who}", _allowed(task), f"the class {item.__name__}", remedy)
    for method in ("fit", "get_params"):
        require(hasattr(item, method), f"stack of {who}", _allowed(task), repr(item))
    name = type(item).__name__
    if (task == "classification") != is_classifier(item) or is_clusterer(item):
        refuse(f"stack of {who}", _allowed(task), name)
    methods = ("predict_proba", "decision_function") if task == "classification" else ("predict",)
    if not any(hasattr(item, method) for method in methods):
        got = f"{name}, which has no {' and no '.join(methods)}"
        refuse(f"stack of {who}", _allowed(task), got, "Use another estimator.")


# The default


@final
@dataclass(frozen=True)
class Boosting(StackSource):
    """Histogram gradient boosting that stops early, with the loss of the task."""

    name: str
    """Name of its features, and in error messages."""

    def fit(self, rows: Rows, target: Target, seed: int) -> FittedSource:
        """Fit with the deviance of the likelihood: log loss, Poisson, gamma or squared error."""
        if target.is_class:
            rows = with_every_class(rows, target.num_classes, seed)
        # The link of these losses is the link of the feature: raw predictions are on its scale.
        native = target.is_class or target.link == "log"
        scale = _native(_scale(rows, target)) if native else _scale(rows, target)
        if target.task == "count" and native and not rows.y.any():
            return FittedSource(Trees.constant(np.array([scale.low]), rows.X.shape[1]), scale)
        model = _boosting(rows, target, seed)
        labels = rows.y.astype(np.int64) if target.is_class else rows.y
        with few_threads(rows.X.size):
            model.fit(rows.X, labels, sample_weight=rows.weights)
        return FittedSource(Trees.from_boosting(model, rows.X), scale)


def few_threads(entries: int) -> AbstractContextManager[Any]:
    """Limit the threads of OpenMP, by the number of entries of X; never raise their number."""
    openmp = ThreadpoolController().select(user_api="openmp")
    before = max((library["num_threads"] for library in openmp.info()), default=1)
    pays = max(_FEW_THREADS, entries // _ENTRIES_PER_THREAD)
    limited: AbstractContextManager[Any] = openmp.limit(limits=min(before, pays))
    return limited


def _boosting(rows: Rows, target: Target, seed: int) -> Any:
    """Return the boosting before the fit."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    n = len(rows.y)
    settings: dict[str, Any] = {"min_samples_leaf": _MIN_LEAF, "random_state": seed}
    if n < _MIN_ROWS:
        settings |= {"max_iter": 1, "early_stopping": False}
    else:
        settings |= {"max_iter": _MAX_ITER, "early_stopping": True}
    if not target.is_class:
        losses = {"count": "poisson", "regression": "gamma"}
        loss = losses[target.task] if target.link == "log" else "squared_error"
        return HistGradientBoostingRegressor(loss=loss, **settings)
    # Each class needs a place among the rows that are held out.
    held_out = max(ceil(_VALIDATION * n), target.num_classes)
    return HistGradientBoostingClassifier(validation_fraction=held_out, **settings)


def with_every_class(rows: Rows, num_classes: int, seed: int) -> Rows:
    """Return the rows, and more for each class that has fewer than two.

    The rows outside of a fold may have none of a class. Without it, models of different folds would
    have different columns. Added rows have the features of other rows, drawn at random, and
    together the weight of a quarter of a row.
    """
    counts = np.bincount(rows.y.astype(np.int64), minlength=num_classes)
    added = np.repeat(np.arange(num_classes), np.maximum(_ROWS_PER_CLASS - counts, 0))
    if not len(added):
        return rows
    drawn = np.random.default_rng(seed).integers(len(rows.y), size=len(added))
    weights = np.ones(len(rows.y)) if rows.weights is None else rows.weights
    return Rows(
        X=np.concatenate([rows.X, rows.X[drawn]]),
        y=np.append(rows.y, added.astype(np.float64)),
        weights=np.append(weights, np.full(len(added), _PSEUDO_WEIGHT)),
        amounts=None,
    )


def _scale(rows: Rows, target: Target) -> Scale:
    """Return the scale of the mean of y, or of probabilities of classes.

    A mean at the end of its range has no finite link. The smallest rate stands for a quarter of a
    count in all rows, the smallest share for a quarter of a success, the largest for a quarter of a
    failure, and the smallest positive mean is a quarter of the smallest target.
    """
    least = _QUARTER / rows.total
    if target.is_class:
        return Scale("logit" if target.width == 1 else "log", least, 1 - least)
    if target.link == "logit":
        return Scale("logit", least, 1 - least)
    if target.link == "log":
        low = least if target.task == "count" else _QUARTER * float(rows.y.min())
        return Scale("log", max(low, np.finfo(np.float64).tiny))
    return Scale()


def _native(scale: Scale) -> Scale:
    """Return the scale of predictions on which the link was already taken.

    Scores of classes are not clipped.
    """
    return Scale(low=float(np.log(scale.low))) if scale.link == "log" else Scale()


# Estimators of the user


@final
@dataclass(frozen=True)
class Foreign(StackSource):
    """An estimator of the user."""

    name: str
    """Name of its features, and in error messages."""

    estimator: Any
    """Not fitted; each fold fits a clone."""

    @property
    @override
    def takes_weights(self) -> bool:
        from sklearn.utils.validation import has_fit_parameter

        return bool(has_fit_parameter(self.estimator, "sample_weight"))

    def fit(self, rows: Rows, target: Target, seed: int) -> FittedSource:
        """Fit a clone; raise `InvalidInputError` if that fails."""
        if target.is_class:
            rows = with_every_class(rows, target.num_classes, seed)
        model = _seeded(self.estimator, seed)
        labels = rows.y.astype(np.int64) if target.is_class else rows.y
        weighted = rows.weights is not None and self.takes_weights
        if rows.amounts is not None and not weighted:
            refuse(
                f"source {self.name!r} of the stack",
                "one whose fit takes sample_weight, for rows with exposure or trials",
                type(self.estimator).__name__,
                "Use stack='trees', or the estimator without a pipeline.",
            )
        options = {"sample_weight": rows.weights} if weighted else {}
        try:
            model.fit(rows.X, labels, **options)
        except Exception as error:  # any exception of the user's estimator
            raise InvalidInputError(
                f"The source {self.name!r} of the stack cannot be fitted: {error} Change it, or"
                " use stack='trees'."
            ) from error
        scale = _scale(rows, target)
        trees = _as_trees(model, target, rows.X)
        if trees is not None:
            return FittedSource(trees, _native(scale) if _links(model, target) else scale)
        foreign = ForeignModel(self.name, model, target.is_class, target.width)
        return FittedSource(foreign, scale if foreign.predicts_means else Scale())


@final
@dataclass(frozen=True)
class ForeignModel:
    """A fitted estimator of the user."""

    name: str
    """Name of the source."""

    estimator: Any
    """The fitted estimator."""

    is_classifier: bool
    """Whether it predicts classes."""

    width: int
    """Number of columns."""

    @property
    def predicts_means(self) -> bool:
        """Whether it predicts means of y or probabilities, or scores without a known scale."""
        return not self.is_classifier or hasattr(self.estimator, "predict_proba")

    def raw(self, X: Columns) -> Raw:
        """Return predictions, probabilities or scores; raise unless they are finite numbers."""
        if not self.is_classifier:
            method = "predict"
        else:
            method = "predict_proba" if self.predicts_means else "decision_function"
        who = f"{method} of the source {self.name!r} of the stack"
        try:
            predicted = getattr(self.estimator, method)(X)
        except Exception as error:  # any exception of the user's estimator
            raise InvalidInputError(f"{who} failed: {error}") from error
        values = np.asarray(predicted, dtype=np.float64).reshape(len(X), -1)
        if method == "predict_proba" and self.width == 1:
            values = values[:, 1:]
        allowed = f"{self.width} numbers for each row"
        require(values.shape[1] == self.width, who, allowed, f"{values.shape[1]}")
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            got = f"{values[tuple(bad[0])]} in row {bad[0][0]}"
            refuse(who, "finite numbers", got, "Use another estimator, or stack='trees'.")
        return values


def _seeded(estimator: Any, seed: int) -> Any:
    """Return a clone with a number in place of each random state that is None."""
    from sklearn.base import clone

    model = clone(estimator)
    names = [
        name
        for name, value in sorted(model.get_params(deep=True).items())
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    ]
    return model.set_params(**dict.fromkeys(names, seed))


def _links(model: Any, target: Target) -> bool:
    """Return whether the raw predictions of a boosting are on the scale of the feature."""
    return target.is_class or (target.link == "log" and model.loss in ("gamma", "poisson"))


def _as_trees(model: Any, target: Target, X: Columns) -> Trees | None:
    """Return the arrays of a histogram boosting of the user, which exports can hold.

    Returns None for other estimators, and for boosting that has no such arrays.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if type(model) not in (HistGradientBoostingClassifier, HistGradientBoostingRegressor):
        return None
    if model.loss in ("gamma", "poisson") and target.link != "log":
        return None
    try:
        return Trees.from_boosting(model, X)
    except UnsupportedError:
        return None
