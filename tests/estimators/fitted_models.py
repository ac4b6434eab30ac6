"""Fitted models of every likelihood, in units far from 0 and 1, trained once for many tests."""

import copy
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor

Array = NDArray[np.float64]

RANDOM = np.random.default_rng(3)
X = 700 + 100 * RANDOM.uniform(-3, 3, (90, 1))
F = np.sin((X[:, 0] - 700) / 50)
Y = 10 + 5 * (F + 0.3 * RANDOM.normal(size=90))
LABELS = np.where(F + 0.5 * RANDOM.normal(size=90) > 0, "yes", "no")
HOURS = RANDOM.uniform(0.5, 4, 90)
COUNTS = RANDOM.poisson(3 * HOURS * np.exp(F)).astype(float)
THERE = np.linspace(300, 1100, 17).reshape(-1, 1)
"""New inputs, some beyond the others."""

SPENT = np.linspace(0.3, 5, 17)
LIGHT: dict[str, Any] = {
    "beta": 1.0,
    "hyperparameters": "joint",
    "kernel": "rbf",
    "ard": False,
    "num_inducing": 10,
    "max_iter": 15,
    "random_state": 0,
}

# Trained together with q(u) for log loss, the noise would all but vanish in so small a model.
HELD = {**LIGHT, "hyperparameters": "fixed"}


@cache
def _regressor(likelihood: str, **settings: Any) -> SparseGPRegressor:
    return SparseGPRegressor(likelihood=likelihood, **{**HELD, **settings}).fit(X, Y)


@cache
def _classifier(**settings: Any) -> SparseGPClassifier:
    return SparseGPClassifier(**{**HELD, **settings}).fit(X, LABELS)


@cache
def _counter(likelihood: str, **settings: Any) -> SparseGPCountRegressor:
    model = SparseGPCountRegressor(likelihood=likelihood, **{**HELD, **settings})
    return model.fit(X, COUNTS, exposure=HOURS)


def regressor(likelihood: str = "gaussian", **settings: Any) -> SparseGPRegressor:
    return copy.deepcopy(_regressor(likelihood, **settings))


def classifier(**settings: Any) -> SparseGPClassifier:
    return copy.deepcopy(_classifier(**settings))


def counter(likelihood: str = "poisson", **settings: Any) -> SparseGPCountRegressor:
    return copy.deepcopy(_counter(likelihood, **settings))


def marginals(model: Any, inputs: Array) -> tuple[Array, Array]:
    """Mean and variance of f in the units of training, with the inputs scaled by hand."""
    scaled = (inputs - X.mean(0)) / X.std(0) * np.sign(model.scalings_.inputs.scale)
    # Scaled inputs are multiples of 2⁻³².
    scaled = np.round(scaled * 2.0**32) / 2.0**32
    q = model.posterior_.predict(torch.as_tensor(scaled))
    return q.mean.numpy(), q.variance.numpy()


def parameter(model: Any, name: str) -> float:
    """A parameter of the likelihood, in the units of training."""
    return float(getattr(model.likelihood_, name).detach())
