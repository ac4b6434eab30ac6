"""Sparse Gaussian processes trained for the loss they will be judged on.

The names are imported when they are first asked for: the command line answers without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from directgp.estimators.classifier import SparseGPClassifier
    from directgp.estimators.count_regressor import SparseGPCountRegressor
    from directgp.estimators.regressor import SparseGPRegressor
    from directgp.estimators.saving import load
    from directgp.log_expectations.api import expected_log_prob, log_expectation
    from directgp.shapes import Marginals
    from directgp.training.beta_path import beta_path
    from directgp.training.distributed import Processes
    from directgp.training.train import train, train_stream

__all__ = [
    "Marginals",
    "Processes",
    "SparseGPClassifier",
    "SparseGPCountRegressor",
    "SparseGPRegressor",
    "beta_path",
    "expected_log_prob",
    "load",
    "log_expectation",
    "train",
    "train_stream",
]

_HOMES = {
    "Marginals": "directgp.shapes",
    "Processes": "directgp.training.distributed",
    "SparseGPClassifier": "directgp.estimators.classifier",
    "SparseGPCountRegressor": "directgp.estimators.count_regressor",
    "SparseGPRegressor": "directgp.estimators.regressor",
    "beta_path": "directgp.training.beta_path",
    "expected_log_prob": "directgp.log_expectations.api",
    "load": "directgp.estimators.saving",
    "log_expectation": "directgp.log_expectations.api",
    "train": "directgp.training.train",
    "train_stream": "directgp.training.train",
}


_ROOMS = (
    "datasets",
    "diagnostics",
    "errors",
    "estimators",
    "experiments",
    "interop",
    "likelihoods",
    "log_expectations",
    "metrics",
    "objectives",
    "posteriors",
    "predictive",
    "reports",
    "shapes",
    "training",
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"directgp.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'directgp' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
