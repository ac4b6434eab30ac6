"""Model files: the fitted models, and the questions to a loaded one."""

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


_GIVEN: dict[str, Any] = {
    "beta": 1.0,
    "hyperparameters": "joint",
    "num_inducing": 8,
    "max_iter": 20,
    "random_state": 0,
}


def _outputs() -> Any:
    """Two outputs, with names."""
    rows = table("regression")
    targets = pd.DataFrame({"first": rows["y"], "second": rows["x"] - rows["y"]})
    return SparseGPRegressor(**_GIVEN).fit(rows[["x", "z"]], targets)


def _heteroscedastic() -> Any:
    """Two latent functions, of which one is the noise."""
    rows = table("regression")
    model = SparseGPRegressor(likelihood="heteroscedastic", **_GIVEN)
    return model.fit(rows[["x", "z"]], rows["y"])


def _classes(rows: Any) -> Any:
    return np.digitize(rows["y"], [-0.5, 0.5])


def _softmax() -> Any:
    """Three classes, with a latent function each."""
    rows = table("regression")
    labels = np.array(["low", "middle", "top"])[_classes(rows)]
    return SparseGPClassifier(likelihood="softmax", **_GIVEN).fit(rows[["x", "z"]], labels)


def _ordinal() -> Any:
    """Three classes with an order."""
    rows = table("regression")
    model = SparseGPClassifier(likelihood="ordinal", **_GIVEN)
    return model.fit(rows[["x", "z"]], _classes(rows))


def _binomial() -> Any:
    """Counts out of a number of trials."""
    rows = table("count")
    model = SparseGPCountRegressor(likelihood="binomial", **_GIVEN)
    return model.fit(rows[["x"]], rows["k"], trials=rows["k"] + 2)


def _mixture() -> Any:
    """Several members, some with the columns of boosted trees; the table has gaps."""
    rows = table("regression")
    X = rows[["x", "z"]].mask(rows["z"] > 1.2)
    model = SparseGPRegressor(
        num_inducing=8, max_iter=10, random_state=0, stack=["trees", "trees"], missing="impute"
    )
    return model.fit(X, rows["y"])


def _mixture_of_counts() -> Any:
    """Several members without trees, with exposure."""
    rows = table("count")
    model = SparseGPCountRegressor(num_inducing=8, max_iter=10, random_state=0, stack=None)
    return model.fit(rows[["x"]], rows["k"], exposure=rows["hours"])


def _columns() -> Any:
    """Columns of levels with a gap, dates and a place."""
    rows = table("regression")
    model = SparseGPRegressor(
        **_GIVEN,
        kernel="rbf",
        likelihood="gaussian",
        ard=True,
        missing="impute",
        columns={"shop": "group"},
    )
    return model.fit(rows_of_kinds(rows["x"], rows["z"]), rows["y"])


def rows_of_kinds(x: Any, z: Any) -> Any:
    """Return a table with a column of each kind."""
    halves = pd.Series(np.where(np.asarray(x) > 0, "right", "left"), dtype=object)
    return pd.DataFrame(
        {
            "x": x,
            "half": halves.mask(np.asarray(z) > 1.2, None),
            "shop": np.digitize(z, [-1.0, 0.0, 0.5]),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(z, 2), unit="D"),
            "lat": 46 + np.asarray(x),
            "lon": 8 + np.asarray(z),
        }
    )


FITS: dict[str, Callable[[], Any]] = {
    "regressor_student_t": _student_t,
    "regressor_gaussian": _gaussian,
    "classifier_probit": _probit,
    "counts_negative_binomial": _negative_binomial,
    "regressor_outputs": _outputs,
    "regressor_heteroscedastic": _heteroscedastic,
    "classifier_softmax": _softmax,
    "classifier_ordinal": _ordinal,
    "counts_binomial": _binomial,
    "regressor_mixture": _mixture,
    "counts_mixture": _mixture_of_counts,
    "regressor_columns": _columns,
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
    if getattr(model, "columns_", None) is not None:
        return rows_of_kinds(X[:, 0], X[:, 1])
    X = X[:, : model.n_features_in_]
    names = getattr(model, "feature_names_in_", None)
    return X if names is None else pd.DataFrame(X, columns=names)


def _ask_regressor(model: Any) -> dict[str, Any]:
    X = rows_for(model)
    mean, std = model.predict(X, return_std=True)
    y = np.linspace(-1.0, 1.0, mean.size).reshape(mean.shape)
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
    y = np.arange(len(X))
    rows: dict[str, Any] = {"exposure": np.linspace(0.5, 3.0, len(X))}
    without: dict[str, Any] = {}
    if model.likelihood == "binomial":
        rows = {"trials": y + 1}
    else:
        without["mean of exposure 1"] = model.predict(X)
    return without | {
        "mean": model.predict(X, **rows),
        "quantiles": model.predict_quantiles(X, _LEVELS, **rows),
        "interval": model.predict_interval(X, _COVERAGE, **rows),
        "pmf": model.predict_pmf(X, _MAX_COUNT, **rows),
        "latent": model.predict_latent(X),
        "log_density": model.log_density(X, y, **rows),
        "nll": model.nll(X, y, **rows),
        "score": model.score(X, y, **rows),
    }


def summary(model: Any) -> str:
    """Return the summary, as `print` writes it."""
    return f"{model.summary()}\n"


def attributes(model: Any) -> dict[str, Any]:
    """Return plain fitted attributes, and the parameters, as texts; those of each output."""
    params = {name: repr(value) for name, value in model.get_params().items()}
    if hasattr(model, "outputs_"):
        return {"params": params, "outputs": [attributes(each) for each in model.outputs_]}
    names = ("beta_", "hyperparameters_", "n_iter_", "num_rows_", "num_merged_", "exposed_")
    found = {name: repr(getattr(model, name)) for name in names}
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
