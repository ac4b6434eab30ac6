"""A small table for each kind of target, and settings for a short fit."""

from typing import Any

import numpy as np

_RANDOM = np.random.default_rng(0)

X = _RANDOM.normal(size=(24, 2))
Y = np.sin(X[:, 0]) + 0.1 * _RANDOM.normal(size=24)
LABELS = np.where(Y > 0, "yes", "no")
COUNTS = _RANDOM.poisson(np.exp(1 + Y)).astype(float)

LIGHT: dict[str, Any] = {
    "beta": 1.0,
    "hyperparameters": "joint",
    "kernel": "rbf",
    "ard": False,
    "num_inducing": 4,
    "max_iter": 3,
    "random_state": 0,
}
REGRESSION: dict[str, Any] = {**LIGHT, "likelihood": "gaussian"}
COUNTING: dict[str, Any] = {**LIGHT, "likelihood": "poisson"}
