"""The three estimators on small tables, judged on held-back rows.

Two tables come with scikit-learn, diabetes for regression and breast cancer for classification;
the counts are simulated. Beside each model trained for log loss stand the ELBO and a linear
baseline, and the figures are printed as they come out, whichever wins. So that it ends in half a
minute the kernel has one length scale, inducing inputs are few and likelihoods named; β and mode
are chosen by validation, as by default. Run it with OMP_NUM_THREADS=1, as `make demo` does.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy.stats import norm, poisson
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import BayesianRidge, LogisticRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import directgp
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPWarning

SEED = 0
FOLDER = Path(__file__).resolve().parents[1] / "build" / "demo"
LIGHT = {"ard": False, "num_inducing": 20, "max_iter": 120, "random_state": SEED}
ELBO = {"objective": "elbo", "beta": 1.0}

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """A table and its targets, the first rows to train on and the others to judge by."""

    X: Numbers
    y: NDArray[Any]
    num_training: int

    @property
    def training(self) -> tuple[Numbers, NDArray[Any]]:
        """What is trained on."""
        return self.X[: self.num_training], self.y[: self.num_training]

    @property
    def test(self) -> tuple[Numbers, NDArray[Any]]:
        """What is judged by."""
        return self.X[self.num_training :], self.y[self.num_training :]


@dataclass(frozen=True)
class Line:
    """One model: losses of the test rows, and how often what it foresaw came true."""

    name: str
    nll: float
    calibration: str
    seconds: float
    chosen: str = ""


def shuffled(X: Numbers, y: NDArray[Any], num_training: int) -> Rows:
    """Rows in an order that says nothing."""
    order = np.random.default_rng(SEED).permutation(len(y))
    return Rows(X[order], y[order], num_training)


def counts() -> tuple[Rows, Numbers]:
    """Counts whose rate depends on two features, and for how long each was counted."""
    random = np.random.default_rng(SEED)
    X = random.uniform(0, 3, (400, 2))
    exposure = random.uniform(1, 5, 400)
    y = random.poisson(np.exp(np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]) * exposure)
    return Rows(X, y.astype(np.float64), 250), exposure


def fitted(model: Any, rows: Rows, **given: Numbers) -> tuple[Any, float]:
    """The model trained, and the seconds that took; what it warns of is in its summary."""
    since = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DirectGPWarning)
        model.fit(*rows.training, **given)
    return model, time.perf_counter() - since


def coverage(lower: Numbers, y: Numbers, upper: Numbers) -> str:
    """Share of targets inside their 90 % interval."""
    return f"{np.mean((lower <= y) & (y <= upper)):.0%}"


def calibration_error(probability: Numbers, label: Numbers) -> str:
    """Distance of frequency from probability, mean over ten bins weighted by their rows."""
    bins = np.minimum((10 * probability).astype(int), 9)
    gaps = [abs(np.sum((label - probability)[bins == k])) for k in range(10)]
    return f"{np.sum(gaps) / len(label):.3f}"


def choice(model: Any) -> str:
    """Mode and β."""
    return f"{model.hyperparameters_}, β = {model.beta_:.3g}"


def regression() -> tuple[list[Line], SparseGPRegressor, Rows]:
    """Diabetes: ten measurements of a patient, and how far the disease had come a year later."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    rows = shuffled(X, y, 300)
    X, y = rows.test
    lines = []
    for name, settings in (("log loss", {}), ("ELBO", ELBO)):
        model, seconds = fitted(SparseGPRegressor(likelihood="gaussian", **settings, **LIGHT), rows)
        lower, upper = model.predict_interval(X, 0.9)
        lines.append(Line(name, model.nll(X, y), coverage(lower, y, upper), seconds, choice(model)))
        if name == "log loss":
            best = model
    ridge, seconds = fitted(make_pipeline(StandardScaler(), BayesianRidge()), rows)
    mean, std = ridge.predict(X, return_std=True)
    nll = -float(norm.logpdf(y, mean, std).mean())
    inside = coverage(norm.ppf(0.05, mean, std), y, norm.ppf(0.95, mean, std))
    return [*lines, Line("Bayesian ridge", nll, inside, seconds)], best, rows


def classification() -> tuple[list[Line], SparseGPClassifier, Rows]:
    """Breast cancer: thirty measurements of cells, malignant or benign."""
    X, y = load_breast_cancer(return_X_y=True)
    rows = shuffled(X, y, 300)
    X, y = rows.test
    lines = []
    for name, settings in (("log loss", {}), ("ELBO", ELBO)):
        model, seconds = fitted(SparseGPClassifier(**settings, **LIGHT), rows)
        error = calibration_error(model.predict_proba(X)[:, 1], y)
        lines.append(Line(name, model.nll(X, y), error, seconds, choice(model)))
        if name == "log loss":
            best = model
    linear, seconds = fitted(make_pipeline(StandardScaler(), LogisticRegression()), rows)
    log_proba = linear.predict_log_proba(X)
    nll = -float(np.take_along_axis(log_proba, y[:, None], axis=1).mean())
    error = calibration_error(np.exp(log_proba[:, 1]), y)
    return [*lines, Line("logistic regression", nll, error, seconds)], best, rows


def counting() -> tuple[list[Line], SparseGPCountRegressor, Rows, Numbers]:
    """Simulated counts, each over its own time."""
    rows, exposure = counts()
    (X, y), n = rows.test, rows.num_training
    lines = []
    for name, settings in (("log loss", {}), ("ELBO", ELBO)):
        model, seconds = fitted(
            SparseGPCountRegressor(likelihood="poisson", **settings, **LIGHT),
            rows,
            exposure=exposure[:n],
        )
        lower, upper = model.predict_interval(X, 0.9, exposure=exposure[n:])
        nll = model.nll(X, y, exposure=exposure[n:])
        lines.append(Line(name, nll, coverage(lower, y, upper), seconds, choice(model)))
        if name == "log loss":
            best = model
    since = time.perf_counter()
    scaled = StandardScaler().fit(rows.training[0])
    glm = PoissonRegressor(alpha=0).fit(
        scaled.transform(rows.training[0]), rows.training[1] / exposure[:n], exposure[:n]
    )
    mean = glm.predict(scaled.transform(X)) * exposure[n:]
    seconds = time.perf_counter() - since
    nll = -float(poisson.logpmf(y, mean).mean())
    inside = coverage(poisson.ppf(0.05, mean), y, poisson.ppf(0.95, mean))
    return [*lines, Line("Poisson regression", nll, inside, seconds)], best, rows, exposure[n:]


def table(title: str, rows: Rows, calibration: str, lines: Sequence[Line]) -> Table:
    """The figures of one data set."""
    sizes = f"{rows.num_training} rows to train on, {len(rows.test[1])} to judge by"
    shown = Table(title=f"{title}: {sizes}", box=SIMPLE_HEAD)
    shown.add_column("trained for", no_wrap=True)
    for head in ("NLL", calibration, "s"):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("chosen", no_wrap=True)
    for line in lines:
        figures = f"{line.nll:.3f}", line.calibration, f"{line.seconds:.1f}"
        shown.add_row(line.name, *figures, line.chosen)
    return shown


def keep(axes: Any, name: str) -> None:
    """Write a picture."""
    axes.figure.savefig(FOLDER / f"{name}.png", dpi=120)


def main() -> None:
    """Train, judge, save, load and draw."""
    matplotlib.use("agg")
    FOLDER.mkdir(parents=True, exist_ok=True)
    console = Console()
    with console.status("diabetes …"):
        lines, regressor, rows = regression()
    console.print(table("diabetes", rows, "in 90 %", lines))
    keep(regressor.plot_beta_path(), "diabetes_beta_path")
    keep(regressor.plot_predictions(*rows.test), "diabetes_predictions")
    keep(regressor.plot_calibration(*rows.test), "diabetes_calibration")

    file = FOLDER / "diabetes.safetensors"
    regressor.save(file)
    again = directgp.load(file)
    same = np.array_equal(again.predict(rows.X), regressor.predict(rows.X))
    console.print(f"Saved and loaded: {file.stat().st_size / 1e3:.0f} kB, ", end="")
    console.print("the same predictions." if same else "OTHER PREDICTIONS.")

    with console.status("breast cancer …"):
        lines, classifier, rows = classification()
    console.print(table("breast cancer", rows, "calibration error", lines))
    keep(classifier.plot_calibration(*rows.test), "breast_cancer_calibration")

    with console.status("counts …"):
        lines, counter, rows, exposure = counting()
    console.print(table("simulated counts", rows, "in 90 %", lines))
    keep(counter.plot_calibration(*rows.test, exposure), "counts_calibration")

    console.print("\nThe regression on diabetes, in words:\n")
    regressor.summary()
    console.print(f"\nModel and pictures are in {FOLDER}.", soft_wrap=True)


if __name__ == "__main__":
    main()
