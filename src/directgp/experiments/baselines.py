"""Predict test rows without a Gaussian process: the mean, a linear model, gradient boosting."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logit
from scipy.stats import nbinom, poisson

from directgp.experiments.splits import ScaledParts
from directgp.likelihoods import Gaussian, Logistic, NegativeBinomial, Poisson, Softmax
from directgp.likelihoods.base import Likelihood
from directgp.registry import Task
from directgp.shapes import Marginals

Column = NDArray[np.float64]

_CERTAIN = 1e-12
"""Variance of a prediction f that has no uncertainty of its own."""

_PENALTIES = tuple(10.0**k for k in range(-4, 4))
"""Penalties of linear models, of which validation chooses one."""

_MAX_TREES = 300
"""Trees of which validation chooses how many are used."""

_SMALLEST = 1e-6
"""Distance of probabilities from 0 and 1, and smallest rate."""


def predict_baseline(
    name: str, task: Task, rows: ScaledParts, seed: int
) -> tuple[Likelihood, Marginals]:
    """Return the predictive distribution of the test rows by "mean", "linear" or "boosting".

    It is the distribution of a likelihood with known f; linear regression adds its uncertainty.
    """
    X, y = rows.train
    Xv, yv = rows.validation
    Xt, _ = rows.test
    if task == "regression" and name == "linear":
        from sklearn.linear_model import BayesianRidge

        model = BayesianRidge().fit(X, y)
        mean, sd = model.predict(Xt, return_std=True)
        noise = 1 / model.alpha_
        return Gaussian(noise), _marginals(mean, np.maximum(sd**2 - noise, _CERTAIN))
    number = rows.num_classes
    train = (X, y)
    if name == "mean" or len(np.unique(y)) == 1:
        share = y.mean() if number == 2 else np.bincount(y.astype(int), minlength=number) / len(y)
        valid, test = (np.full((len(part), *np.shape(share)), share) for part in (Xv, Xt))
    elif name == "linear":
        valid, test = _linear(task, train, (Xv, yv), Xt, number)
    else:
        valid, test = _boosting(task, train, (Xv, yv), Xt, seed, number)
    if task == "regression":
        residuals = y - y.mean() if name == "mean" else yv - valid
        return Gaussian(float(np.mean(residuals**2)) + _CERTAIN), _marginals(test)
    if number > 2:
        return Softmax(number), _marginals(np.log(np.maximum(test, _SMALLEST)).T.copy())
    if task == "classification":
        return Logistic(), _marginals(logit(np.clip(test, _SMALLEST, 1 - _SMALLEST)))
    return _count_likelihood(yv, valid), _marginals(np.log(np.maximum(test, _SMALLEST)))


def _marginals(mean: Column, variance: Column | None = None) -> Marginals:
    spread = np.full(mean.shape, _CERTAIN) if variance is None else variance
    return Marginals(torch.as_tensor(mean), torch.as_tensor(spread))


def _linear(
    task: Task,
    train: tuple[Column, Column],
    valid: tuple[Column, Column],
    Xt: Column,
    num_classes: int,
) -> tuple[Column, Column]:
    """Return predictions of validation and test rows by a GLM whose penalty validation chooses."""
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    def model(penalty: float) -> Any:
        if task == "count":
            return PoissonRegressor(alpha=penalty, max_iter=1000).fit(*train)
        return LogisticRegression(C=1 / (penalty * len(train[1])), max_iter=1000).fit(*train)

    def means(model: Any, X: Column) -> Column:
        if task == "count":
            return np.asarray(model.predict(X), dtype=np.float64)
        return _chances(model, model.predict_proba(X), num_classes)

    fitted = [model(penalty) for penalty in _PENALTIES]
    return _best(task, [(means(model, valid[0]), means(model, Xt)) for model in fitted], valid[1])


def _boosting(
    task: Task,
    train: tuple[Column, Column],
    valid: tuple[Column, Column],
    Xt: Column,
    seed: int,
    num_classes: int,
) -> tuple[Column, Column]:
    """Return predictions of validation and test rows with as many trees as validation chooses."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    options = {"max_iter": _MAX_TREES, "early_stopping": False, "random_state": seed}
    if task == "classification":
        model: Any = HistGradientBoostingClassifier(**options).fit(*train)
        every = [model.staged_predict_proba(X) for X in (valid[0], Xt)]
        staged = [[_chances(model, stage, num_classes) for stage in stages] for stages in every]
    else:
        loss = "squared_error" if task == "regression" else "poisson"
        model = HistGradientBoostingRegressor(loss=loss, **options).fit(*train)
        staged = [list(model.staged_predict(X)) for X in (valid[0], Xt)]
    return _best(task, list(zip(*staged, strict=True)), valid[1])


def _chances(model: Any, probabilities: Column, num_classes: int) -> Column:
    """Return P(class 1) of two classes, or all probabilities; 0 for a class not in training."""
    every = np.zeros((len(probabilities), num_classes))
    every[:, model.classes_.astype(int)] = probabilities
    return every[:, 1] if num_classes == 2 else every


def _best(
    task: Task, candidates: Sequence[tuple[Column, Column]], y: Column
) -> tuple[Column, Column]:
    """Return the candidate with the lowest validation loss."""
    return candidates[int(np.nanargmin([_loss(task, y, valid) for valid, _ in candidates]))]


def _loss(task: Task, y: Column, mean: Column) -> float:
    """Return the mean squared error of numbers, or the mean negative log probability.

    Counts have Poisson noise.
    """
    if task == "regression":
        return float(np.mean((y - mean) ** 2))
    if mean.ndim > 1:
        chances = mean[np.arange(len(y)), y.astype(int)]
        return -float(np.log(np.maximum(chances, _SMALLEST)).mean())
    if task == "classification":
        p = np.clip(mean, _SMALLEST, 1 - _SMALLEST)
        return -float(np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))
    return -float(poisson.logpmf(y, np.maximum(mean, _SMALLEST)).mean())


def _count_likelihood(y: Column, mean: Column) -> Likelihood:
    """Return Poisson noise, or negative-binomial noise if it makes the counts more probable."""
    rate = np.maximum(mean, _SMALLEST)

    def loss(log_dispersion: float) -> float:
        r = math.exp(log_dispersion)
        return -float(nbinom.logpmf(y, r, r / (r + rate)).mean())

    optimum = minimize_scalar(loss, bounds=(-5.0, 10.0), method="bounded")
    if optimum.fun < _loss("count", y, mean) - 1 / len(y):
        return NegativeBinomial(math.exp(optimum.x))
    return Poisson()
