"""Compare regressions where the noise depends on x: log loss, CRPS, coverage and time.

``python -m benchmarks.heteroscedastic --data FOLDER`` fits every method on every table and appends
the results to build/heteroscedastic.jsonl; a second run does what is missing. The table of means
and standard errors is printed and written beside it. All fits have one thread.

"changing noise" and "crash helmet" are made up. The second has the shape of the motorcycle data
(mcycle): acceleration of a head after a crash, flat and almost without noise at first, then a fall
and a rise with much noise. bike and elevators are tables of the folder uci, with public splits.
The target of bike is the log of the sum of its last two features, up to constants: it has no noise,
only what a model does not fit.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

from benchmarks import repeats
from benchmarks.defaults import peers
from benchmarks.defaults.scores import COVERAGE, interval_scores, normal_scores, unit
from benchmarks.defaults.store import Cell, Store
from benchmarks.defaults.tables import table
from benchmarks.models import facts
from benchmarks.problems import Table
from directgp import SparseGPRegressor

Array = NDArray[np.float64]
Judge = Callable[[], repeats.Scores]

TABLES = ("changing noise", "crash helmet", "bike", "elevators")
ROWS = {"changing noise": 1000, "crash helmet": 133, "bike": 2000, "elevators": 2000}
"""Training rows; mcycle has 133."""

FIGURES = {"nll": 4, "crps": 4, "error": 4, "coverage": 3, "tenths": 2, "width": 3, "seconds": 1}
"""Columns of the table and their decimal places; see `benchmarks.defaults.scores`."""

_TEST_ROWS = 1000
_FOLDS = 5
_SMALL_STEPS = {"learning_rate": 0.05, "max_leaf_nodes": 8, "l2_regularization": 5.0}


def data_of(folder: Path, cell: Cell) -> Table:
    """Return the training and test rows of a split; a made-up table draws new rows."""
    if cell.table == "crash helmet":
        return crash_helmet(ROWS[cell.table], cell.split)
    return table(folder, cell.table, cell.split, ROWS[cell.table])


def crash_helmet(rows: int, seed: int) -> Table:
    """Return made-up acceleration (g) by time (ms) with the shape of the motorcycle data.

    The mean falls to −115 at 21 ms and rises to 40 at 32 ms. The noise has a standard deviation of
    2 until 13 ms, 27 around 30 ms and 12 at the end.
    """
    random = np.random.default_rng(seed)
    x = random.uniform(2.4, 57.6, rows + _TEST_ROWS)
    mean = -115 * np.exp(-0.5 * ((x - 21) / 3.6) ** 2) + 40 * np.exp(-0.5 * ((x - 32) / 4.5) ** 2)
    after = 1 / (1 + np.exp(-(x - 15)))
    noise = 2 + after * (10 + 15 * np.exp(-0.5 * ((x - 30) / 7) ** 2))
    y = mean + noise * random.standard_normal(len(x))
    X = x[:, None]
    return Table("regression", X[:rows], y[:rows], X[rows:], y[rows:])


def ours(data: Table, **settings: Any) -> Judge:
    """Fit an estimator of directgp; all else is at its defaults."""
    model: Any = SparseGPRegressor(random_state=0, **settings).fit(data.X, data.y)

    def judge() -> repeats.Scores:
        nll = float(model.nll(data.X_test, data.y_test)) - float(np.log(unit(data)))
        ends = model.predict_interval(data.X_test, COVERAGE)
        return {"nll": nll, **interval_scores(data, model.predict(data.X_test), *ends)}

    return judge


def peer(method: str, data: Table) -> Judge:
    """Fit a method of `benchmarks.defaults.peers`."""
    judge = peers.fit(method, data, "cpu")
    return lambda: judge()[0]


def two_boostings(data: Table) -> Judge:
    """Boost the mean, then the variance; a substitute where NGBoost is not installed.

    The variance is boosted on the squared residuals r² of rows that were held out of the mean. Its
    gamma deviance r²/σ² + log σ² is twice the log loss of a normal density of variance σ². Both
    stop early on a tenth of the rows.
    """
    make = partial(HistGradientBoostingRegressor, early_stopping=True, random_state=0)
    mean = make(max_iter=500)
    residuals = data.y - cross_val_predict(mean, data.X, data.y, cv=_FOLDS)
    mean.fit(data.X, data.y)
    # Its Newton steps are too long for small r²: with the default settings σ² falls to 0.
    variance = make(max_iter=1000, loss="gamma", **_SMALL_STEPS)
    # Targets of a gamma deviance are positive.
    variance.fit(data.X, np.maximum(residuals**2, 1e-12 * np.mean(residuals**2)))

    def judge() -> repeats.Scores:
        std = np.sqrt(variance.predict(data.X_test))
        return normal_scores(data, mean.predict(data.X_test), std)

    return judge


METHODS: dict[str, Callable[[Table], Judge]] = {
    "directgp Gaussian ELBO": partial(ours, likelihood="gaussian", objective="elbo", beta=1.0),
    "directgp Gaussian log loss": partial(ours, likelihood="gaussian", hyperparameters="joint"),
    "directgp heteroscedastic": partial(ours, likelihood="heteroscedastic"),
    "directgp heteroscedastic ELBO": partial(
        ours, likelihood="heteroscedastic", objective="elbo", beta=1.0
    ),
    "directgp": ours,
    "GPyTorch SVGP": partial(peer, "GPyTorch SVGP"),
    "GPyTorch PPGPR": partial(peer, "GPyTorch PPGPR"),
    "NGBoost": partial(peer, "NGBoost"),
    "boosted mean, then boosted variance": two_boostings,
    "HistGradientBoosting, one noise level": partial(peer, "HistGradientBoosting"),
}


def main() -> None:
    """Run what is missing, then print and write the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.heteroscedastic", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("build/heteroscedastic.jsonl"))
    typed = parser.parse_args()
    torch.set_num_threads(1)
    store = Store(typed.out)
    wanted = repeats.cells(typed.tables, typed.splits, typed.methods)
    repeats.run_missing(wanted, store, lambda cell: METHODS[cell.method](data_of(typed.data, cell)))
    repeats.report(store, wanted, FIGURES, facts("cpu"), typed.out)


if __name__ == "__main__":
    main()
