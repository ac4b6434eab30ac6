"""What the constructor of an estimator takes, as scikit-learn states and checks it."""

from numbers import Integral, Real
from typing import Any

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.utils._param_validation import Interval, Options, StrOptions

from directgp.estimators.families import Family
from directgp.log_expectations.base import Rule
from directgp.objectives.base import PointLoss

OBJECTIVES = (
    "absolute_loss",
    "crps",
    "elbo",
    "fitc",
    "log_loss",
    "pinball_loss",
    "square_loss",
    "vfe",
    "zero_one_cost",
)

_POSITIVE = Interval(Integral, 1, None, closed="left")

_CONSTRAINTS: dict[str, list[Any]] = {
    "objective": [StrOptions(set(OBJECTIVES)), PointLoss],
    "beta": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
    "hyperparameters": [StrOptions({"auto", "joint", "fixed"})],
    "kernel": [StrOptions({"rbf", "matern12", "matern32", "matern52"}), Kernel],
    "ard": [StrOptions({"auto"}), "boolean"],
    "mean": [StrOptions({"auto", "zero", "constant"})],
    "num_inducing": [StrOptions({"auto"}), _POSITIVE],
    "inducing": [StrOptions({"kmeans++", "random"}), "array-like"],
    "rule": [
        StrOptions({"auto", "closed_form", "quadrature", "bmc", "smooth_bmc", "ups"}),
        Rule,
    ],
    "num_samples": [_POSITIVE],
    "optimizer": [StrOptions({"auto", "lbfgs", "adam"})],
    "batch_size": [StrOptions({"auto"}), _POSITIVE],
    "max_iter": [_POSITIVE, None],
    "tol": [Interval(Real, 0, None, closed="neither"), None],
    "validation_fraction": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="neither")],
    "standardize": ["boolean"],
    "dtype": [StrOptions({"float32", "float64"}), Options(type, {np.float32, np.float64})],
    "device": [str],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "warm_start": ["boolean"],
}


def constraints(family: Family) -> dict[str, list[Any]]:
    """The constraints of an estimator whose targets are of this family."""
    return {**_CONSTRAINTS, "likelihood": [StrOptions({"auto", *family.makers}), family.base]}
