"""Fitted mixtures of three members, of which one sees the columns of boosted trees."""

import copy
from functools import cache
from typing import Any

import numpy as np

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.estimators.members import set_members

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(90, 2)) * [1.0, 30.0] + [0.0, 500.0]
F = np.sin(2 * X[:, 0]) + 0.5 * (X[:, 1] > 510)
NUMBERS = 100 + 20 * (F + 0.2 * RANDOM.standard_t(4, len(X)))
POSITIVE = np.exp(F) * RANDOM.gamma(4, 0.25, len(X))
COUNTS = RANDOM.poisson(3 * np.exp(F)).astype(float)
LABELS = np.where(F + 0.3 * RANDOM.normal(size=len(X)) > 0.3, "yes", "no")
KINDS = np.array(["a", "b", "c"])[np.digitize(F, [-0.3, 0.6])]
NEW = np.random.default_rng(6).normal(size=(40, 2)) * [2.0, 60.0] + [0.0, 500.0]
"""Rows some of which are far from those of training."""

WEIGHTS = (0.5, 0.3, 0.2)
"""Weights of the members."""

QUICK: dict[str, Any] = {
    "objective": "elbo",
    "beta": 1.0,
    "ard": True,
    "num_inducing": 8,
    "max_iter": 10,
    "random_state": 0,
}

Member = tuple[str, str, Any]
"""Likelihood, kernel and stack of a member."""

PLANS: dict[str, tuple[Any, Any, tuple[Member, ...]]] = {
    "numbers": (
        SparseGPRegressor,
        NUMBERS,
        (
            ("gaussian", "rbf", "trees"),
            ("student_t", "matern32", None),
            ("gaussian", "matern12", None),
        ),
    ),
    "changing noise": (
        SparseGPRegressor,
        NUMBERS,
        (
            ("gaussian", "matern52", None),
            ("heteroscedastic", "rbf", "trees"),
            ("student_t", "rbf", None),
        ),
    ),
    "positive": (
        SparseGPRegressor,
        POSITIVE,
        (("gamma", "rbf", None), ("log_normal", "rbf", "trees"), ("gaussian", "rbf", None)),
    ),
    "labels": (
        SparseGPClassifier,
        LABELS,
        (("probit", "rbf", "trees"), ("logistic", "rbf", None), ("probit", "matern32", None)),
    ),
    "kinds": (
        SparseGPClassifier,
        KINDS,
        (("softmax", "rbf", "trees"), ("softmax", "matern32", None), ("softmax", "rbf", None)),
    ),
    "counts": (
        SparseGPCountRegressor,
        COUNTS,
        (
            ("poisson", "rbf", None),
            ("negative_binomial", "rbf", "trees"),
            ("poisson", "matern32", None),
        ),
    ),
}
"""Estimator, targets and members, the heaviest first, by name."""


def mixture(name: str, **settings: Any) -> Any:
    """Return a copy of the fitted mixture."""
    return copy.deepcopy(_fitted(name, **settings))


@cache
def _fitted(name: str, **settings: Any) -> Any:
    make, y, members = PLANS[name]
    models = [
        make(**QUICK | {"likelihood": likelihood, "kernel": kernel, "stack": stack} | settings)
        for likelihood, kernel, stack in members
    ]
    for model in models:
        model.fit(X, y)
    return assembled(models, WEIGHTS)


def assembled(models: list[Any], weights: tuple[float, ...]) -> Any:
    """Return a model with the members of models that were fitted to the same rows."""
    stacked = [model for model in models if model.stack_ is not None]
    mixed = copy.deepcopy(stacked[0] if stacked else models[0])
    stack = mixed.stack_
    set_members(mixed, [model.members_[0] for model in models], weights)
    mixed.stack_ = stack
    mixed.beta_ = models[0].beta_
    mixed.hyperparameters_ = models[0].hyperparameters_
    mixed.training_result_ = models[0].training_result_
    return mixed


def scaled_rows(model: Any, member: Any, new: Any) -> Any:
    """Return the inputs of a member, by hand."""
    inputs = model.scalings_.scaled_inputs(new)
    if not member.stacked:
        return inputs
    columns = model.scalings_.sources.forward(model.stack_.columns(inputs))
    return np.column_stack([inputs, columns])
