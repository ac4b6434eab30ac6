"""Sparse Gaussian processes trained for the loss by which they are evaluated.

Names are imported at their first use, so that the command line starts without torch.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from directgp.estimators.classifier import SparseGPClassifier
    from directgp.estimators.count_regressor import SparseGPCountRegressor
    from directgp.estimators.regressor import SparseGPRegressor
    from directgp.estimators.saving import load
    from directgp.likelihoods.own import register_likelihood
    from directgp.log_expectations.api import expected_log_prob, log_expectation
    from directgp.shapes import Marginals
    from directgp.training.beta_path import beta_path
    from directgp.training.distributed import Processes
    from directgp.training.train import train, train_stream

__version__ = "0.1.0"

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
    "register_likelihood",
    "train",
    "train_stream",
]

_MODULES = {
    "Marginals": "shapes",
    "Processes": "training.distributed",
    "SparseGPClassifier": "estimators.classifier",
    "SparseGPCountRegressor": "estimators.count_regressor",
    "SparseGPRegressor": "estimators.regressor",
    "beta_path": "training.beta_path",
    "expected_log_prob": "log_expectations.api",
    "load": "estimators.saving",
    "log_expectation": "log_expectations.api",
    "register_likelihood": "likelihoods.own",
    "train": "training.train",
    "train_stream": "training.train",
}

_PACKAGES = (
    "datasets",
    "diagnostics",
    "errors",
    "estimators",
    "experiments",
    "export",
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
    if name in _PACKAGES:
        return _imported(name)
    if name not in _MODULES:
        raise AttributeError(f"module 'directgp' has no attribute {name!r}")
    value = getattr(_imported(_MODULES[name]), name)
    globals()[name] = value
    return value


def _imported(name: str) -> Any:
    # Imports leave no garbage, and collecting it would take 0.6 s of 3.9 s.
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"directgp.{name}")
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
