"""Model files: the fitted models, and the questions to a loaded one."""

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from tests.frozen.golden import FOLDER

MODELS = FOLDER / "models"
DATA = FOLDER / "data"

_LEVELS = [0.05, 0.5, 0.9]
_COVERAGE = 0.8
_MAX_COUNT = 4


def table(task: str) -> Any:
    """Return the rows of a data file."""
    return pd.read_csv(DATA / f"{task}.csv", float_precision="round_trip")


# Fits, made once by the writer.


def _student_t() -> Any:
    """β, mode, ARD and inducing inputs are chosen; the table has names of columns."""
    rows = table("regression")
    model = SparseGPRegressor(likelihood="student_t", max_iter=30, random_state=0)
    return model.fit(rows[["x", "z"]], rows["y"])


def _gaussian() -> Any:
    """Everything is given; no names of columns; a kernel of its own."""
    rows = table("regression")
    model = SparseGPRegressor(
        objective="square_loss",
        beta=0.5,
        hyperparameters="joint",
        likelihood="gaussian",
        kernel="matern52",
        ard=True,
        mean="constant",
        num_inducing=6,
        max_iter=20,
        random_state=1,
    )
    return model.fit(rows[["x", "z"]].to_numpy(), rows["y"])


def _probit() -> Any:
    """Classes are texts; β and mode are chosen."""
    rows = table("classification")
    model = SparseGPClassifier(likelihood="probit", num_inducing=8, max_iter=20, random_state=0)
    return model.fit(rows[["x", "z"]], rows["label"])


def _negative_binomial() -> Any:
    """Counts with exposure and weights."""
    rows = table("count")
    model = SparseGPCountRegressor(
        likelihood="negative_binomial", num_inducing=8, max_iter=20, random_state=0
    )
    weights = np.where(rows["x"] > 0, 2.0, 1.0)
    return model.fit(rows[["x"]], rows["k"], sample_weight=weights, exposure=rows["hours"])


FITS: dict[str, Callable[[], Any]] = {
    "regressor_student_t": _student_t,
    "regressor_gaussian": _gaussian,
    "classifier_probit": _probit,
    "counts_negative_binomial": _negative_binomial,
}


def fit(name: str) -> Any:
    """Fit the estimator of a model file."""
    with warnings.catch_warnings():
        # So few steps do not converge, and the model says so.
        warnings.simplefilter("ignore")
        return FITS[name]()


# Questions.


def ask(model: Any) -> dict[str, Any]:
    """Return predictions for a few rows as a JSON document."""
    asked: dict[type, Callable[[Any], dict[str, Any]]] = {
        SparseGPRegressor: _ask_regressor,
        SparseGPClassifier: _ask_classifier,
        SparseGPCountRegressor: _ask_counts,
    }
    return {name: np.asarray(value).tolist() for name, value in asked[type(model)](model).items()}


def rows_for(model: Any) -> Any:
    """Return five rows within the data and one far away, with names if the model has them."""
    X = np.array([[-1.5, 0.5], [-0.75, -1.0], [0.0, 0.25], [0.5, 1.0], [1.75, -0.5], [9.0, 9.0]])
    X = X[:, : model.n_features_in_]
    names = getattr(model, "feature_names_in_", None)
    return X if names is None else pd.DataFrame(X, columns=names)


def _ask_regressor(model: Any) -> dict[str, Any]:
    X = rows_for(model)
    mean, std = model.predict(X, return_std=True)
    y = np.linspace(-1.0, 1.0, len(X))
    return {
        "mean": mean,
        "std": std,
        "quantiles": model.predict_quantiles(X, _LEVELS),
        "interval": model.predict_interval(X, _COVERAGE),
        "latent": model.predict_latent(X),
        "log_density": model.log_density(X, y),
        "nll": model.nll(X, y),
        "score": model.score(X, y),
    }


def _ask_classifier(model: Any) -> dict[str, Any]:
    X = rows_for(model)
    y = np.resize(model.classes_, len(X))
    return {
        "classes": model.classes_,
        "label": model.predict(X),
        "proba": model.predict_proba(X),
        "log_proba": model.predict_log_proba(X),
        "decision": model.decision_function(X),
        "latent": model.predict_latent(X),
        "log_density": model.log_density(X, y),
        "nll": model.nll(X, y),
        "score": model.score(X, y),
    }


def _ask_counts(model: Any) -> dict[str, Any]:
    X = rows_for(model)
    exposure = np.linspace(0.5, 3.0, len(X))
    y = np.arange(len(X))
    return {
        "mean": model.predict(X, exposure),
        "mean of exposure 1": model.predict(X),
        "quantiles": model.predict_quantiles(X, _LEVELS, exposure),
        "interval": model.predict_interval(X, _COVERAGE, exposure),
        "pmf": model.predict_pmf(X, _MAX_COUNT, exposure),
        "latent": model.predict_latent(X),
        "log_density": model.log_density(X, y, exposure),
        "nll": model.nll(X, y, exposure=exposure),
        "score": model.score(X, y, exposure=exposure),
    }


def summary(model: Any) -> str:
    """Return what `summary` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model.summary()
    return printed.getvalue()


def attributes(model: Any) -> dict[str, Any]:
    """Return plain fitted attributes, and the parameters, as texts."""
    names = ("beta_", "hyperparameters_", "n_iter_", "num_rows_", "num_merged_", "exposed_")
    found = {name: repr(getattr(model, name)) for name in names}
    params = {name: repr(value) for name, value in model.get_params().items()}
    result = model.training_result_
    return {
        "fitted": found,
        "params": params,
        "stages": [[each.stage, str(each.status), each.steps] for each in result.stages],
        "status": str(result.status),
        "reason": result.reason,
    }


def path_of(name: str) -> Path:
    """Return the path of a model file."""
    return MODELS / f"{name}.safetensors"
