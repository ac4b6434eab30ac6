"""Prediction intervals for diabetes: the ELBO and log loss.

Ten measurements of 442 patients predict the progress of their diabetes after a year. The prediction
is more accurate for patients with little progress. A Gaussian likelihood has one noise level:
trained with the ELBO it gives all patients about the same interval. Trained on log loss, the
variance of f depends on the patient. Every patient is predicted by a model trained without them.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold

from directgp import SparseGPRegressor

PICTURE = Path(__file__).resolve().parents[1] / "build/examples/calibrated_regression.png"
METHODS: dict[str, dict[str, Any]] = {
    "ELBO": {"objective": "elbo", "beta": 1.0},
    "log loss": {"objective": "log_loss", "hyperparameters": "joint"},  # β by validation
}
STYLES = {"ELBO": "s--", "log loss": "o-"}
COLOURS = {"ELBO": "#D55E00", "log loss": "#0072B2"}


def predict_unseen(settings: dict[str, Any], folds: int) -> dict[str, Any]:
    """Predict each patient with a model trained on the other folds."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    unseen: dict[str, Any] = {key: np.empty(len(y)) for key in ("mean", "loss", "lower", "upper")}
    for training, test in KFold(folds, shuffle=True, random_state=0).split(X):
        model = SparseGPRegressor(likelihood="gaussian", ard=False, random_state=0, **settings)
        model.fit(X[training], y[training])
        unseen["mean"][test] = model.predict(X[test])
        unseen["loss"][test] = -model.log_density(X[test], y[test])
        unseen["lower"][test], unseen["upper"][test] = model.predict_interval(X[test], 0.9)
    return unseen | {"inside": (unseen["lower"] <= y) & (y <= unseen["upper"])}


def by_fifths(unseen: dict[str, Any]) -> list[float]:
    """Return the coverage in per cent of each fifth, ordered by the prediction."""
    inside = unseen["inside"][unseen["mean"].argsort()]
    return [100 * float(part.mean()) for part in np.array_split(inside, 5)]


def compare(results: dict[str, dict[str, Any]]) -> Table:
    """Return a table with one row per method."""
    table = Table(title="diabetes: 442 patients, each predicted unseen", box=SIMPLE_HEAD)
    for head in ("trained for", "NLL", "in 90 %", "by fifths", "widths"):
        table.add_column(head, no_wrap=True)
    for name, unseen in results.items():
        width = unseen["upper"] - unseen["lower"]
        fifths = " ".join(f"{share:.0f}" for share in by_fifths(unseen))
        share, widths = f"{unseen['inside'].mean():.1%}", f"{width.min():.0f} to {width.max():.0f}"
        table.add_row(name, f"{unseen['loss'].mean():.3f}", share, fifths, widths)
    return table


def draw(results: dict[str, dict[str, Any]]) -> Figure:
    """Draw the coverage of the 90 % interval against the predicted progress."""
    axes = (figure := Figure(figsize=(7, 4), layout="constrained")).subplots()
    chance = 196 * (0.9 * 0.1 / (442 / 5)) ** 0.5
    axes.axhspan(90 - chance, 90 + chance, color="0.92", label="what chance allows, 95 %")
    for name, unseen in results.items():
        axes.plot(range(1, 6), by_fifths(unseen), STYLES[name], color=COLOURS[name], label=name)
    axes.set_xticks(range(1, 6), ["lowest", "2nd", "3rd", "4th", "highest"])
    axes.set(xlabel="fifth of the patients, by predicted progression", ylim=(70, 100.5))
    axes.set_ylabel("% inside their 90 % interval")
    axes.legend(frameon=False, loc="lower left")
    return figure


def main() -> None:
    """Train, print the table and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short settings, rough figures")
    quick = parser.parse_args().quick
    size = {"num_inducing": 10, "max_iter": 40} if quick else {"num_inducing": 20}
    folds = 2 if quick else 5
    results = {name: predict_unseen({**how, **size}, folds) for name, how in METHODS.items()}
    Console().print(compare(results))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(results).savefig(PICTURE, dpi=100)
    print(f"The picture is {PICTURE}.")


if __name__ == "__main__":
    main()
