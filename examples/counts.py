"""Counts with more variance than Poisson: drivers killed on British roads per month.

The counts are those of Harvey and Durbin (1986), 1969 to 1984; the features are time and season.
The variance of a Poisson count equals its mean, and these counts vary more. With the ELBO the
Poisson model is overconfident. Trained on log loss it is calibrated. A likelihood with a dispersion
is the other solution. Every month is predicted by a model trained without it.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.model_selection import KFold

from directgp import SparseGPCountRegressor

PICTURE = Path(__file__).resolve().parents[1] / "build/examples/counts.png"
KILLED = np.array(
    """
    107 97 102 87 119 106 110 106 107 134 147 180 125 134 110 102 103 111 120 129 122 183 169 190
    134 108 104 117 157 148 130 140 136 140 187 150 159 143 114 127 159 156 138 120 117 170 168 198
    144 146 109 131 151 140 153 140 161 168 152 136 113 100 103 103 121 134 133 129 144 154 156 163
    122 92 117 95 96 108 108 106 140 114 158 161 102 127 125 101 97 112 112 113 108 128 154 162
    112 79 82 127 108 110 123 103 97 140 165 183 148 111 116 115 100 106 134 125 117 122 153 178
    114 94 128 119 111 110 114 118 115 132 153 171 115 95 92 100 95 114 102 104 132 136 117 137
    111 106 98 84 94 105 123 109 130 153 134 99 115 104 131 108 103 115 122 122 125 137 138 152
    120 95 100 89 82 89 60 84 113 126 122 118 92 86 81 84 87 90 79 96 122 120 137 154
    """.split(),
    dtype=np.float64,
)
YEARS = 1969 + (np.arange(len(KILLED)) + 0.5) / 12
SEASON = 2 * np.pi * YEARS
FEATURES = np.column_stack([YEARS, np.cos(SEASON), np.sin(SEASON)])
ELBO = {"objective": "elbo", "beta": 1.0}
METHODS: dict[str, dict[str, Any]] = {
    "Poisson, ELBO": {"likelihood": "poisson", **ELBO},
    "Poisson, log loss": {"likelihood": "poisson"},  # β and mode by validation
    "negative binomial, ELBO": {"likelihood": "negative_binomial", **ELBO},
}


def predict_unseen(settings: dict[str, Any], folds: int) -> dict[str, Any]:
    """Predict each month with a model trained on the other folds."""
    unseen: dict[str, Any] = {key: np.empty(len(KILLED)) for key in ("loss", "lower", "upper")}
    for training, test in KFold(folds, shuffle=True, random_state=0).split(FEATURES):
        model = SparseGPCountRegressor(ard=False, random_state=0, **settings)
        model.fit(FEATURES[training], KILLED[training])
        unseen["loss"][test] = -model.log_density(FEATURES[test], KILLED[test])
        unseen["lower"][test], unseen["upper"][test] = model.predict_interval(FEATURES[test], 0.9)
    return unseen | {"inside": (unseen["lower"] <= KILLED) & (KILLED <= unseen["upper"])}


def compare(results: dict[str, dict[str, Any]]) -> Table:
    """Return a table with one row per method."""
    table = Table(title="drivers killed: 192 months, each predicted unseen", box=SIMPLE_HEAD)
    for head in ("model", "NLL", "in 90 %", "mean width"):
        table.add_column(head, no_wrap=True)
    for name, unseen in results.items():
        width = (unseen["upper"] - unseen["lower"]).mean()
        figures = f"{unseen['loss'].mean():.3f}", f"{unseen['inside'].mean():.1%}", f"{width:.0f}"
        table.add_row(name, *figures)
    return table


def draw(results: dict[str, dict[str, Any]]) -> Figure:
    """Draw counts and intervals, one panel per method; mark counts outside."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    strips = figure.subplots(len(results), sharex=True, sharey=True)
    for axes, (name, unseen) in zip(strips, results.items(), strict=True):
        inside, ends = unseen["inside"], (unseen["lower"], unseen["upper"])
        axes.fill_between(YEARS, *ends, step="mid", color="#B5D3EA", label="90 % interval")
        axes.plot(YEARS[inside], KILLED[inside], ".", color="0.35", label="inside")
        axes.plot(YEARS[~inside], KILLED[~inside], "X", color="#D55E00", label="outside")
        axes.set_title(f"{name}: {inside.mean():.0%} inside", fontsize=10, loc="left")
    strips[1].set_ylabel("drivers killed in a month")
    figure.legend(*strips[0].get_legend_handles_labels(), ncols=3, loc="outside lower center")
    return figure


def main() -> None:
    """Train, print the table and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short settings, rough figures")
    quick = parser.parse_args().quick
    size = {"num_inducing": 10, "max_iter": 15} if quick else {"num_inducing": 20}
    folds = 2 if quick else 5
    results = {name: predict_unseen({**how, **size}, folds) for name, how in METHODS.items()}
    Console().print(compare(results))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(results).savefig(PICTURE, dpi=100)
    print(f"The picture is {PICTURE}.")


if __name__ == "__main__":
    main()
