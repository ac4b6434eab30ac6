"""Compare classifiers of several classes: log loss, errors, calibration and time.

``python -m benchmarks.multiclass --data FOLDER`` fits every method on stratified splits of each
table and appends the results to build/multiclass.jsonl; a second run does what is missing. The
table of means and standard errors is printed and written beside it. Tables are those of the folder
classes and three of scikit-learn. All fits have one thread.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.mlls import VariationalELBO
from gpytorch.settings import num_likelihood_samples
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import repeats, softmax_svgp
from benchmarks.datasets import load
from benchmarks.defaults.store import Cell, Store
from benchmarks.models import facts
from directgp import SparseGPClassifier

Array = NDArray[np.float64]

CLASSES = ("contraceptive", "segment", "vehicle", "vowel")
EMBEDDED: dict[str, Callable[..., Any]] = {
    "digits": load_digits,
    "wine": load_wine,
    "iris": load_iris,
}
TABLES = (*CLASSES, *EMBEDDED)

FIGURES = {"NLL": 4, "error": 4, "Brier": 4, "ECE": 4, "seconds": 1}
"""Columns of the table and their decimal places."""

TEST_SHARE = 0.25
BINS = 15
"""Bins of equal width of the expected calibration error."""

INDUCING, BATCH, SAMPLES, TEST_SAMPLES = 100, 256, 10, 2000
"""Of GPyTorch: 10 samples of f in training are its default; probabilities have 2000."""

STEPS = 4000
"""Of GPyTorch. On vehicle the training loss falls from 0.544 to 0.522 between 1500 and 4000."""


def split(folder: Path, table: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return X, X_test, y and y_test; classes are 0 … K−1, with equal shares in both parts."""
    X, y = (
        EMBEDDED[table](return_X_y=True) if table in EMBEDDED else load(folder, f"classes/{table}")
    )
    parts: list[Array] = train_test_split(
        X, y.astype(int), test_size=TEST_SHARE, stratify=y, random_state=seed
    )
    return parts[0], parts[1], parts[2], parts[3]


def scores(probability: Array, y: Array) -> repeats.Scores:
    """Return the log loss, share of errors, Brier score and top-label calibration error.

    Brier: mean of Σ_k (p_k − 1{y = k})². ECE: mean over rows of |accuracy − mean confidence| of the
    row's bin.
    """
    rows = np.arange(len(y))
    with np.errstate(divide="ignore"):
        nll = -float(np.log(probability[rows, y]).mean())
    target = np.zeros_like(probability)
    target[rows, y] = 1
    chosen, confidence = probability.argmax(1), probability.max(1)
    bins = np.minimum((BINS * confidence).astype(int), BINS - 1)
    gaps = np.bincount(bins, (chosen == y) - confidence, BINS)
    return {
        "NLL": nll,
        "error": float(np.mean(chosen != y)),
        "Brier": float(np.mean(np.sum((probability - target) ** 2, 1))),
        "ECE": float(np.abs(gaps).sum() / len(y)),
    }


class SoftmaxSVGP:
    """GPyTorch's sparse GP with a softmax likelihood, trained by the ELBO and Adam."""

    def __init__(self, device: str, steps: int) -> None:
        self._device, self._steps = device, steps

    def fit(self, X: Array, y: Array) -> "SoftmaxSVGP":
        """Train on standardised features."""
        torch.manual_seed(0)
        self._scaler = StandardScaler().fit(X)
        inputs, labels = self._inputs(X), torch.as_tensor(y).to(self._device)
        number = int(labels.max()) + 1
        self._model, likelihood = softmax_svgp.starting_model(inputs, number, INDUCING, seed=0)
        objective = VariationalELBO(likelihood, self._model, num_data=len(labels))
        with num_likelihood_samples(SAMPLES):
            softmax_svgp.train(
                self._model, objective, inputs, labels, steps=self._steps, batch=BATCH
            )
        return self

    def predict_proba(self, X: Array) -> Array:
        """Return the probabilities of the classes."""
        found = softmax_svgp.predict_proba(self._model, self._inputs(X), TEST_SAMPLES)
        return found.cpu().numpy()

    def _inputs(self, X: Array) -> torch.Tensor:
        return torch.as_tensor(self._scaler.transform(X)).to(self._device)


def boosting() -> Any:
    """Return gradient boosting that stops early on a tenth of the rows."""
    return HistGradientBoostingClassifier(early_stopping=True, max_iter=500, random_state=0)


def ours(device: str, **settings: Any) -> Any:
    """Return our estimator; all else is at its defaults."""
    return SparseGPClassifier(random_state=0, device=device, **settings)


SVGP = "GPyTorch softmax SVGP"
METHODS: dict[str, Callable[[str, int], Any]] = {
    "directgp": lambda device, _: ours(device),
    "directgp ELBO": lambda device, _: ours(device, objective="elbo", beta=1.0),
    "directgp one-vs-rest": lambda device, _: OneVsRestClassifier(ours(device)),
    SVGP: SoftmaxSVGP,
    "HistGradientBoosting": lambda *_: boosting(),
    "HistGradientBoosting, calibrated": lambda *_: CalibratedClassifierCV(
        boosting(), method="temperature"
    ),
    "logistic regression": lambda *_: make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=2000)
    ),
}
"""Models by device and version of the settings, which is the number of steps of GPyTorch."""

PEERS = tuple(name for name in METHODS if not name.startswith("directgp"))


def fit(folder: Path, device: str, cell: Cell) -> Callable[[], repeats.Scores]:
    """Fit a method on the training rows; return a function for its scores."""
    X, X_test, y, y_test = split(folder, cell.table, cell.split)
    model = METHODS[cell.method](device, cell.settings).fit(X, y)
    return lambda: scores(model.predict_proba(X_test), y_test)


def main() -> None:
    """Run what is missing, then print and write the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.multiclass", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--peers", action="store_true", help="only the other libraries")
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=STEPS, help="of GPyTorch")
    parser.add_argument("--device", default="cpu", help="of directgp and GPyTorch")
    parser.add_argument("--out", type=Path, default=Path("build/multiclass.jsonl"))
    typed = parser.parse_args()
    torch.set_num_threads(1)
    store, methods = Store(typed.out), PEERS if typed.peers else typed.methods
    wanted = repeats.cells(typed.tables, typed.splits, methods, {SVGP: typed.steps})
    repeats.run_missing(
        wanted, store, lambda cell: fit(typed.data, typed.device, cell), typed.device
    )
    repeats.report(store, wanted, FIGURES, facts(typed.device), typed.out)


if __name__ == "__main__":
    main()
