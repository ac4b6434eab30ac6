"""Calibrated probabilities: handwritten digits, odd or even.

A small model trained with the ELBO, the same model trained on log loss, and logistic regression
predict for 1,797 images the probability that the digit is odd. Each image is predicted by a model
that was trained on the other half. The table and the figure show how well each is calibrated.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from directgp import SparseGPClassifier

PICTURE = Path(__file__).resolve().parents[1] / "build/examples/classifier.png"
STYLES = {"ELBO": "s--", "log loss": "o-", "logistic regression": "^:"}
COLOURS = {"ELBO": "#D55E00", "log loss": "#0072B2", "logistic regression": "#009E73"}

Numbers = NDArray[np.float64]


def models(quick: bool) -> dict[str, Any]:
    """Return the models; β and mode of log loss are chosen by validation."""
    size = {"num_inducing": 10, "max_iter": 10} if quick else {"num_inducing": 20}
    common: dict[str, Any] = {"ard": False, "random_state": 0, **size}
    return {
        "ELBO": SparseGPClassifier(objective="elbo", beta=1.0, **common),
        "log loss": SparseGPClassifier(objective="log_loss", **common),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    }


def reliability(odds: Numbers, y: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return image share, mean confidence and accuracy of five bins from 50 to 100 %."""
    sure, right = odds.max(1), odds.argmax(1) == y
    bins = np.minimum((10 * sure - 5).astype(int), 4)
    share, said, came = (np.bincount(bins, each, 5) / len(y) for each in (sure**0, sure, right))
    return share, said / share, came / share


def compare(predicted: dict[str, Numbers], y: Numbers) -> Table:
    """Return a table with one row per model."""
    table = Table(title=f"digits, odd or even: {len(y)} images, unseen", box=SIMPLE_HEAD)
    for head in ("trained for", "NLL", "calibration error", "wrong"):
        table.add_column(head, no_wrap=True)
    for name, odds in predicted.items():
        share, said, came = reliability(odds, y)
        nll = -np.log(odds[np.arange(len(y)), y]).mean()
        error, wrong = share @ abs(said - came), (odds.argmax(1) != y).mean()
        table.add_row(name, f"{nll:.3f}", f"{error:.3f}", f"{wrong:.1%}")
    return table


def draw(predicted: dict[str, Numbers], y: Numbers) -> Figure:
    """Draw accuracy against confidence; on the diagonal they are equal."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([50, 100], [50, 100], color="0.5", linewidth=1, label="right as often as they say")
    for name, odds in predicted.items():
        _, said, came = reliability(odds, y)
        axes.plot(100 * said, 100 * came, STYLES[name], color=COLOURS[name], label=name)
    axes.set(xlabel="how sure, %", ylabel="how often right, %")
    axes.legend(frameon=False, loc="lower right")
    return figure


def main() -> None:
    """Train, print the table and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short settings, rough figures")
    quick = parser.parse_args().quick
    pixels, digit = load_digits(return_X_y=True)
    X, y = pixels[:, (pixels > 0).mean(0) > 0.01], digit % 2  # without pixels that are always blank
    halves = StratifiedKFold(2, shuffle=True, random_state=0)
    predicted = {
        name: cross_val_predict(model, X, y, cv=halves, method="predict_proba")
        for name, model in models(quick).items()
    }
    Console().print(compare(predicted, y))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(predicted, y).savefig(PICTURE, dpi=100)
    print(f"The picture is {PICTURE}.")


if __name__ == "__main__":
    main()
