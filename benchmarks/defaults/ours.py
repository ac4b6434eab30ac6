"""Default estimators of directgp."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.defaults.scores import (
    COVERAGE,
    Array,
    Scores,
    central_share,
    interval_scores,
    label_scores,
    unit,
)
from benchmarks.problems import Kind, Table
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.estimators.summary import facts_of
from directgp.predictive.mixture import PredictiveMixture

ESTIMATORS: dict[Kind, Any] = {
    "regression": SparseGPRegressor,
    "classification": SparseGPClassifier,
    "counts": SparseGPCountRegressor,
}

_COUNT_ROWS = 1000
"""Test rows for the CRPS of counts."""

SETTINGS: dict[str, dict[str, Any]] = {
    "directgp": {},
    "directgp without trees": {"stack": None},
    "directgp one GP": {"stack": None, "combine": "best"},
    "directgp ELBO": {"objective": "elbo", "beta": 1.0},
}


def fit(method: str, data: Table, device: str) -> Callable[[], tuple[Scores, dict[str, Any]]]:
    """Fit an estimator; return a function for its scores and its choices."""
    settings = {**SETTINGS[method], "random_state": 0, "device": device}
    model = ESTIMATORS[data.kind](**settings).fit(data.X, data.y)
    return lambda: (_scores(model, data), _choices(model))


def _scores(model: Any, data: Table) -> Scores:
    if data.kind == "classification":
        scores = label_scores(data, model.predict_proba(data.X_test)[:, 1])
        return scores | {"nll": float(model.nll(data.X_test, data.y_test))}
    log_unit = np.log(unit(data)) if data.kind == "regression" else 0.0
    lower, upper = model.predict_interval(data.X_test, COVERAGE)
    inside = _central(model, data) if data.kind == "counts" else None
    return {
        "nll": float(model.nll(data.X_test, data.y_test) - log_unit),
        "crps": _crps(model, data) / unit(data),
        **interval_scores(data, model.predict(data.X_test), lower, upper, inside),
    }


def _central(model: Any, data: Table) -> Array:
    """Return the share of the probability of each test count that is central."""
    y = torch.as_tensor(data.y_test)

    def ends(mixture: PredictiveMixture, block: slice) -> tuple[torch.Tensor, ...]:
        target = y[block].to(mixture.device)
        return mixture.cdf(target - 1), mixture.cdf(target)

    below, up_to = model._over_blocks(data.X_test, "coverage", ends)
    return central_share(np.asarray(below), np.asarray(up_to))


def _crps(model: Any, data: Table) -> float:
    """Compute the mean CRPS in the units of y; of counts on the first test rows, to save time."""
    rows = _COUNT_ROWS if data.kind == "counts" else None
    X, targets = data.X_test[:rows], data.y_test[:rows]
    scaling = model.scalings_.targets
    shift, scale = float(scaling.shift[0]), float(scaling.scale[0])
    y = torch.as_tensor((targets - shift) / scale)

    def crps(mixture: PredictiveMixture, block: slice) -> tuple[torch.Tensor]:
        return (mixture.crps(y[block].to(mixture.device)),)

    (values,) = model._over_blocks(X, "crps", crps)
    return abs(scale) * float(values.mean())


def _choices(model: Any) -> dict[str, Any]:
    """Return what the search chose, and why training ended."""
    facts = facts_of(model)
    return {
        "mode": facts.hyperparameters,
        "beta": facts.beta,
        "likelihood": facts.likelihood,
        "kernel": facts.kernel,
        "num_inducing": facts.num_inducing,
        "status": facts.status,
        "reason": facts.reason,
        "evaluations": facts.evaluations,
        "warnings": list(facts.warnings),
    }
