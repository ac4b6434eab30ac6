"""Compare the default estimators with their variants and with scikit-learn's estimators.

``python benchmarks/estimators.py --data FOLDER`` fits every data set (a permutation, 75 % to train
on) and every synthetic problem at 200, 1000 and 5000 rows, several at a time, and writes each row
to benchmarks/results/estimators.json. The NLL of regressions is that of the target divided by its
training standard deviation.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Several fits at a time, each on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from scipy.stats import norm, poisson
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import accuracy_score, d2_tweedie_score, log_loss, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.datasets import TASKS, load
from benchmarks.models import write
from benchmarks.problems import PROBLEMS, Array, Kind, Table, problem
from benchmarks.rules import show
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor

Row = dict[str, Any]

OURS: dict[str, dict[str, Any]] = {
    "default": {},
    "elbo, β = 1": {"objective": "elbo", "beta": 1.0},
    "elbo": {"objective": "elbo"},
    "log loss, joint": {"hyperparameters": "joint"},
    "log loss, fixed": {"hyperparameters": "fixed"},
    "simplest likelihood": {},
}

SIMPLEST = {"regression": "gaussian", "counts": "poisson"}
PEERS = ("GP of scikit-learn, 1000 rows", "gradient boosting", "linear model")
ROWS_OF_EXACT_GP = 1000
COVERAGE = 0.9


def table(name: str, rows: int | None, folder: Path, seed: int) -> Table:
    """Return a synthetic problem, or a permuted data set split 75 to 25."""
    if name in PROBLEMS:
        return problem(name, rows or 1000, seed)
    X, y = load(folder, name)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.split(order, [round(0.75 * len(y))])
    train = train[:rows]
    return Table(TASKS[name].kind, X[train], y[train], X[test], y[test])


def ours(data: Table, variant: str, device: str) -> Row:
    """Fit a directgp estimator and return NLL, score, coverage and the choices."""
    kinds: dict[Kind, Any] = {
        "regression": SparseGPRegressor,
        "classification": SparseGPClassifier,
        "counts": SparseGPCountRegressor,
    }
    settings = dict(OURS[variant], random_state=0, device=device)
    if variant == "simplest likelihood":
        settings["likelihood"] = SIMPLEST[data.kind]
    since = time.perf_counter()
    model = kinds[data.kind](**settings).fit(data.X, data.y)
    row: Row = {"seconds": time.perf_counter() - since}
    row["NLL"] = model.nll(data.X_test, data.y_test) - _log_unit(data)
    row["score"] = float(model.score(data.X_test, data.y_test))
    if data.kind != "classification":
        lower, upper = model.predict_interval(data.X_test, COVERAGE)
        row["coverage"] = float(np.mean((lower <= data.y_test) & (data.y_test <= upper)))
    row |= {"beta": model.beta_, "mode": model.hyperparameters_}
    row["likelihood"] = type(model.likelihood_).__name__
    kernel = model.posterior_.prior.kernel
    row["ard"] = bool(kernel.ard_num_dims)
    return row


def peer(data: Table, name: str) -> Row:
    """Fit a scikit-learn estimator and return its scores."""
    since = time.perf_counter()
    found = {PEERS[0]: _exact_gp, PEERS[1]: _boosting, PEERS[2]: _linear}[name](data)
    return {"seconds": time.perf_counter() - since, **found}


def _exact_gp(data: Table) -> Row:
    X, y = data.X[:ROWS_OF_EXACT_GP], data.y[:ROWS_OF_EXACT_GP]
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1]))
    if data.kind == "counts":
        return {}
    if data.kind == "classification":
        gpc = make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=0))
        probability = gpc.fit(X, y).predict_proba(data.X_test)
        return _of_labels(data, probability)
    gpr = GaussianProcessRegressor(kernel + WhiteKernel(), normalize_y=True, random_state=0)
    mean, std = (model := make_pipeline(StandardScaler(), gpr).fit(X, y)).predict(
        data.X_test, return_std=True
    )
    del model
    z = norm.ppf(0.5 + COVERAGE / 2)
    return {
        "NLL": -float(norm.logpdf(data.y_test, mean, std).mean()) - _log_unit(data),
        "score": float(r2_score(data.y_test, mean)),
        "coverage": float(np.mean(np.abs(data.y_test - mean) <= z * std)),
    }


def _boosting(data: Table) -> Row:
    if data.kind == "classification":
        trees = HistGradientBoostingClassifier(random_state=0).fit(data.X, data.y)
        return _of_labels(data, trees.predict_proba(data.X_test))
    if data.kind == "counts":
        trees = HistGradientBoostingRegressor(loss="poisson", random_state=0)
        return _of_counts(data, trees.fit(data.X, data.y).predict(data.X_test))
    trees = HistGradientBoostingRegressor(random_state=0).fit(data.X, data.y)
    return {"score": float(trees.score(data.X_test, data.y_test))}


def _linear(data: Table) -> Row:
    if data.kind == "classification":
        logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        return _of_labels(data, logistic.fit(data.X, data.y).predict_proba(data.X_test))
    if data.kind == "counts":
        glm = make_pipeline(StandardScaler(), PoissonRegressor(alpha=1e-6, max_iter=1000))
        return _of_counts(data, glm.fit(data.X, data.y).predict(data.X_test))
    return {}


def _of_labels(data: Table, probability: Array) -> Row:
    labels = np.unique(data.y)[probability.argmax(1)]
    score = float(accuracy_score(data.y_test, labels))
    return {"NLL": float(log_loss(data.y_test, probability)), "score": score}


def _of_counts(data: Table, mean: Array) -> Row:
    score = float(d2_tweedie_score(data.y_test, mean, power=1))
    return {"NLL": -float(poisson.logpmf(data.y_test, mean).mean()), "score": score}


def _log_unit(data: Table) -> float:
    """Return the log of the training standard deviation of a regression target."""
    return float(np.log(data.y.std())) if data.kind == "regression" else 0.0


def job(name: str, rows: int | None, method: str, folder: Path, device: str, seed: int) -> Row:
    """Compute one cell of the table."""
    data = table(name, rows, folder, seed)
    row: Row = {"data": name, "rows": len(data.y), "kind": data.kind, "method": method}
    if method == "simplest likelihood" and data.kind not in SIMPLEST:
        return row
    fit: Callable[[], Row] = (
        (lambda: ours(data, method, device)) if method in OURS else (lambda: peer(data, method))
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row |= fit()
    row["warnings"] = sorted({str(each.message) for each in caught})
    return row


def summary(rows: list[Row], figure: str, digits: int) -> list[dict[str, object]]:
    """Return one line per table with one column per method."""
    lines: dict[str, dict[str, object]] = {}
    methods = [*OURS, *PEERS]
    for row in sorted(rows, key=lambda row: (row["kind"], row["data"], row["rows"])):
        name = f"{row['data']}, {row['rows']}"
        line = lines.setdefault(name, {"data": name, **dict.fromkeys(methods, "")})
        if figure in row:
            line[row["method"]] = f"{row[figure]:.{digits}f}"
    return list(lines.values())


def main() -> None:
    """Run the requested fits and write the results after each fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    names = [*TASKS, *PROBLEMS]
    parser.add_argument("--names", nargs="+", choices=names, default=names)
    parser.add_argument("--methods", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    parser.add_argument("--rows", nargs="+", type=int, default=[200, 1000, 5000])
    parser.add_argument("--train-rows", type=int, help="of the data sets, so many at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "estimators.json")
    arguments = parser.parse_args()
    cells = [
        (name, rows, method)
        for name in arguments.names
        for rows in (arguments.rows if name in PROBLEMS else [arguments.train_rows])
        for method in arguments.methods
    ]
    rows: list[Row] = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        where = arguments.data, arguments.device, arguments.seed
        waiting = {pool.submit(job, *cell, *where): cell for cell in cells}
        for done in as_completed(waiting):
            rows.append(done.result())
            write(arguments.out, {"seed": arguments.seed, "fits": rows})
            print({key: rows[-1][key] for key in rows[-1] if key != "warnings"}, flush=True)
    show("NLL", summary(rows, "NLL", 4))
    show("R², accuracy or D²", summary(rows, "score", 4))
    show("Coverage of 90 % intervals", summary(rows, "coverage", 3))
    show("Seconds", summary(rows, "seconds", 1))


if __name__ == "__main__":
    main()
