"""Fit sources out of fold, and predict their features for new rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, final

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from directgp.errors import require
from directgp.registry import Task
from directgp.stack.scales import Link
from directgp.stack.sources import Column, FittedSource, Raw, Rows, StackSource, Target
from directgp.stack.trees import Columns, Trees

_FOLDS = 5
"""Number of folds, with as many rows or more."""

_MAX_SEED = 2**31 - 1
"""Largest seed of an estimator."""


@final
@dataclass(frozen=True)
class FoldedSource:
    """The models of one source, one for each fold."""

    names: tuple[str, ...]
    """Names of its columns."""

    folds: tuple[FittedSource, ...]
    """The model that was fitted without each fold."""

    def columns(self, X: Columns) -> Raw:
        """Return the mean of the models' features."""
        mean: Raw = np.mean([fitted.columns(X) for fitted in self.folds], axis=0)
        return mean


@final
@dataclass(frozen=True)
class Stack:
    """Fitted sources, whose predictions are further columns of the inputs of a GP."""

    sources: tuple[FoldedSource, ...]
    """The sources, in the order of their columns."""

    num_features: int
    """Number of columns of the rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(name for source in self.sources for name in source.names)

    def columns(self, X: Columns) -> Raw:
        """Return the features of new rows, on the scale of the link; X may have NaN."""
        got = f"shape {X.shape}"
        require(X.ndim == 2 and X.shape[1] == self.num_features, "X of the stack", self._shape, got)
        return np.column_stack([source.columns(X) for source in self.sources])

    @property
    def _shape(self) -> str:
        return f"of shape (n, {self.num_features})"


def fit_stack(
    sources: Sequence[StackSource],
    X: Columns,
    y: Column,
    *,
    task: Task,
    seed: int,
    link: Link = "identity",
    num_classes: int = 2,
    weights: Column | None = None,
    amounts: Column | None = None,
    labels: Sequence[str] = (),
) -> tuple[Stack, Raw]:
    """Fit the sources, and return them with their features of the training rows.

    The features of a row come from models that were fitted without the row, so they are as good as
    those of new rows.

    Parameters
    ----------
    sources : sequence of StackSource
        From `sources_of`.
    X : array of shape (n, d)
        Features; may have NaN. The order of the rows matters: folds are drawn by the seed.
    y : array of shape (n,)
        Numbers of classes from 0, or targets in the range of the link.
    task : str
        Kind of the targets.
    seed : int
        Seed of the folds and the models.
    link : str
        Scale of the features, for targets that are not classes: "log" for counts and positive
        numbers, "logit" for proportions and numbers of successes.
    num_classes : int
        Number of classes.
    weights : array of shape (n,), optional
        Positive weight of each row.
    amounts : array of shape (n,), optional
        Exposure or trials of each row, to which the mean of y is proportional.
    labels : sequence of str
        Names of the classes, for the names of the columns.

    Returns
    -------
    Stack, array of shape (n, k)
        One column for each source, or one for each of three or more classes.
    """
    enough = "at least two different ones"
    require(len(y) > 1, "rows of a stack", enough, "one", "Fit with stack=None.")
    target = Target(task, link, num_classes)
    rows = _rows(X, y, weights, amounts)
    generator = np.random.default_rng(seed)
    folds = fold_of_rows(y, target.is_class, generator)
    folded, columns = [], []
    for source in sources:
        seeds = generator.integers(_MAX_SEED, size=folds.max() + 1).tolist()
        models = [source.fit(rows.take(folds != k), target, seeds[k]) for k in range(len(seeds))]
        models = [fitted.between(X) for fitted in with_common_baseline(models)]
        own = np.empty((len(y), target.width))
        for k, fitted in enumerate(models):
            own[folds == k] = fitted.columns(X[folds == k])
        folded.append(FoldedSource(_names(source, target, labels), tuple(models)))
        columns.append(own)
    return Stack(tuple(folded), X.shape[1]), np.column_stack(columns)


def _rows(X: Columns, y: Column, weights: Column | None, amounts: Column | None) -> Rows:
    """Return targets per unit of exposure or trial, with the amounts as weights."""
    if amounts is None:
        return Rows(X, y, weights, None)
    return Rows(X, y / amounts, amounts if weights is None else weights * amounts, amounts)


def fold_of_rows(
    y: Column, is_class: bool, generator: np.random.Generator
) -> Int64[np.ndarray, " n"]:
    """Return the fold of each row, with about the same targets in each fold.

    Rows are sorted by target, equal ones at random. Of each five that follow each other one goes to
    each fold: for classes in a fixed order, so that each fold has all classes of five rows or more.
    """
    number = min(_FOLDS, len(y))
    order = np.lexsort((generator.random(len(y)), y))
    blocks = np.tile(np.arange(number), (ceil(len(y) / number), 1))
    if not is_class:
        blocks = generator.permuted(blocks, axis=1)
    folds = np.empty(len(y), np.int64)
    folds[order] = blocks.ravel()[: len(y)]
    return folds


def with_common_baseline(models: Sequence[FittedSource]) -> list[FittedSource]:
    """Return the models with the mean of their baselines, if all are trees.

    The baseline of a model is about the mean of the targets outside of its fold: it is high where
    those of the fold are low, so a GP could learn the targets of a fold from it, with the wrong
    sign. A baseline that all rows have in common tells nothing about any of them.
    """
    trees = [fitted.model for fitted in models if isinstance(fitted.model, Trees)]
    if len(trees) < len(models):
        return list(models)
    baseline: NDArray[Any] = np.mean([model.baseline for model in trees], axis=0)
    return [
        replace(fitted, model=replace(model, baseline=baseline))
        for fitted, model in zip(models, trees, strict=True)
    ]


def _names(source: StackSource, target: Target, labels: Sequence[str]) -> tuple[str, ...]:
    if target.width == 1:
        return (source.name,)
    names = labels or [str(k) for k in range(target.width)]
    return tuple(f"{source.name} {name}" for name in names)
