"""Validate constructor parameters and convert them to a recipe, a device and a dtype."""

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils._param_validation import Interval, Options, StrOptions

from directgp.errors import refuse
from directgp.estimators.progress import FitProgress
from directgp.log_expectations.api import check_device, named_rule
from directgp.registry import KernelName
from directgp.training.callbacks import TimeBudget
from directgp.training.race import EFFORTS
from directgp.training.run import LossRange, Monitor, Recipe, RelativeDecrease

_POSITIVE = Interval(Integral, 1, None, closed="left")

CONSTRAINTS: dict[str, list[Any]] = {
    "beta": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
    "hyperparameters": [StrOptions({"auto", "joint", "fixed"})],
    "kernel": [StrOptions({"auto", *get_args(KernelName)}), Kernel],
    "ard": [StrOptions({"auto"}), "boolean"],
    "mean": [StrOptions({"auto", "zero", "constant"})],
    "num_inducing": [StrOptions({"auto"}), _POSITIVE],
    "inducing": [StrOptions({"kmeans++", "random"}), "array-like"],
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
    "effort": [StrOptions(set(EFFORTS))],
    "time_budget": [Interval(Real, 0, None, closed="neither"), None],
    "n_jobs": [Integral, None],
    "missing": [StrOptions({"error", "impute"})],
}
"""Constraints on the parameters of all estimators but the likelihood."""

_ROWS_FOR_CUDA = 3000
"""Rows from which CUDA is faster than the CPU."""

_WINDOW = 10
"""Steps of L-BFGS whose decrease of the mean loss decides whether it has converged."""

_NATS, _MIN_TOLERANCE = 0.005, 5e-6
"""Default tolerance of the decrease of the sum over all rows, and the smallest of their mean."""


def recipe_of(params: Mapping[str, Any], num_rows: int, num_inducing: int) -> Recipe:
    """Return objective, rule, optimiser and stopping rule."""
    rule = params["rule"]
    if isinstance(rule, str) and rule != "auto":
        rule = named_rule(rule).with_num_samples(int(params["num_samples"]))
    monitors: list[Monitor] = []
    if params["verbose"]:
        monitors.append(FitProgress(int(params["verbose"])))
    if params["time_budget"] is not None:
        monitors.append(TimeBudget(float(params["time_budget"])))
    recipe = Recipe(
        objective=params["objective"],
        rule=rule,
        optimizer=params["optimizer"],
        batch_size=None if params["batch_size"] == "auto" else int(params["batch_size"]),
        max_steps=None if params["max_iter"] is None else int(params["max_iter"]),
        monitors=monitors,
    )
    optimizer = recipe.chosen_optimizer(num_rows, num_inducing)
    batches = recipe.chosen_batch_size(num_rows, num_inducing) is not None
    noisy = batches or not recipe.point_loss().deterministic
    tol = params["tol"]
    stopping: Monitor | None = None
    if optimizer == "lbfgs":
        default = max(_MIN_TOLERANCE, _NATS / num_rows)
        stopping = RelativeDecrease(_WINDOW, default if tol is None else tol)
    elif tol is not None:
        stopping = LossRange(50, tol, smoothing=0.98 if noisy else 0.0)
    return replace(recipe, stopping=stopping)


def device_of(name: str, who: str, num_rows: int | None = None) -> torch.device:
    """Return the device of that name; "auto" is CUDA if available, for many rows."""
    if name == "auto":
        gains = num_rows is None or num_rows >= _ROWS_FOR_CUDA
        return torch.device("cuda" if gains and torch.cuda.is_available() else "cpu")
    owner, remedy = f"device of {who}", "Use device='auto' or 'cpu'."
    try:
        device = torch.device(name)
    except RuntimeError:
        refuse(owner, "'auto', 'cpu' or 'cuda'", repr(name), remedy)
    if device.type == "cuda" and not torch.cuda.is_available():
        got = f"{name!r}, and no CUDA device can be used here"
        refuse(owner, "one that this machine has", got, remedy)
    check_device(owner, device)
    return device
