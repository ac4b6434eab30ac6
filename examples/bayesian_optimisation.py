"""Bayesian optimisation with BoTorch: the settings of a support vector machine.

The function to minimise is real: the cross-validated error of a support vector machine on
scikit-learn's breast cancer data, over log C and log γ. A sparse GP trained on log loss models
the log of the error, BoTorch chooses the next settings, and random search starts from the same
points for comparison. The results are printed whichever method wins. Run it with
OMP_NUM_THREADS=1; `--quick` makes one short run.
"""

import argparse
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.optim.optimize import optimize_acqf
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from directgp import SparseGPRegressor
from directgp.errors import DirectGPWarning
from directgp.interop.botorch import DirectModel

PICTURE = Path(__file__).resolve().parents[1] / "build/examples/bayesian_optimisation.png"
LOWER, UPPER = (-3.0, -6.0), (4.0, 1.0)
"""Bounds of log₁₀ C and log₁₀ γ."""

DATA = load_breast_cancer(return_X_y=True)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """Size of the experiment."""

    first: int
    further: int
    runs: int

    @property
    def evaluations(self) -> int:
        """Return the number of evaluations of one run."""
        return self.first + self.further


FULL, QUICK = Plan(first=8, further=12, runs=3), Plan(first=5, further=3, runs=1)


def error(settings: Numbers) -> float:
    """Return the error of five-fold cross-validation in per cent."""
    C, gamma = (10**settings).tolist()
    machine = make_pipeline(StandardScaler(), SVC(C=C, gamma=gamma))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    scores = cross_val_score(machine, *DATA, cv=folds)
    return 100 * (1 - float(scores.mean()))


def errors(settings: Numbers) -> Numbers:
    """Return the error of each row of settings."""
    return np.array([error(row) for row in settings])


def next_settings(settings: Numbers, found: Numbers) -> Numbers:
    """Return the next settings to try, given the errors so far."""
    model = SparseGPRegressor(
        objective="log_loss",
        beta=1.0,
        hyperparameters="fixed",
        likelihood="gaussian",
        ard=False,
        random_state=0,
    )
    with warnings.catch_warnings():
        # Ignore warnings about few rows.
        warnings.simplefilter("ignore", DirectGPWarning)
        model.fit(settings, -np.log(found))
    wanted = qLogNoisyExpectedImprovement(DirectModel(model), torch.as_tensor(settings))
    bounds = torch.tensor([LOWER, UPPER], dtype=torch.float64)
    chosen, _ = optimize_acqf(wanted, bounds, q=1, num_restarts=4, raw_samples=64)
    return chosen.numpy()


def one_run(seed: int, plan: Plan) -> tuple[Numbers, Numbers]:
    """Return the errors of the model and of random search, in order of evaluation."""
    torch.manual_seed(seed)
    settings = np.random.default_rng(seed).uniform(LOWER, UPPER, (plan.evaluations, 2))
    by_chance = errors(settings)
    settings, found = settings[: plan.first], by_chance[: plan.first]
    for _ in range(plan.further):
        row = next_settings(settings, found)
        settings, found = np.vstack([settings, row]), np.append(found, errors(row))
    return found, by_chance


def best_so_far(runs: list[Numbers]) -> Numbers:
    """Return the smallest error up to each evaluation, one row per run."""
    return np.minimum.accumulate(np.stack(runs), axis=1)


def table(plan: Plan, by_model: Numbers, by_chance: Numbers) -> Table:
    """Return a table of the smallest error after some evaluations, mean over the runs."""
    shown = Table(title=f"smallest error in %, mean of {plan.runs} run(s)", box=SIMPLE_HEAD)
    shown.add_column("evaluations", justify="right")
    for name in ("random search", "directgp and BoTorch"):
        shown.add_column(name, justify="right")
    for number in np.linspace(plan.first, plan.evaluations, 4).astype(int).tolist():
        figures = [each[:, number - 1].mean() for each in (by_chance, by_model)]
        shown.add_row(str(number), *(f"{each:.2f}" for each in figures))
    return shown


def draw(plan: Plan, by_model: Numbers, by_chance: Numbers) -> None:
    """Draw every run as a thin line and their mean as a thick line."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    number = np.arange(plan.first, plan.evaluations + 1)
    kinds = ((by_chance, "#777777", "--", "random search"), (by_model, "#0072b2", "-", "directgp"))
    for runs, colour, dashes, name in kinds:
        late = runs[:, plan.first - 1 :]
        axes.plot(number, late.T, dashes, color=colour, linewidth=0.8, alpha=0.6)
        axes.plot(number, late.mean(0), dashes, color=colour, linewidth=2.5, label=name)
    axes.set_xticks(number[::2])
    axes.set_xlabel(f"evaluations, the first {plan.first} the same for both")
    axes.set_ylabel("smallest error so far, %")
    axes.set_title("Cross-validated error of a support vector machine", fontsize=11)
    axes.legend(frameon=False, loc="upper right")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    """Optimise, compare and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run")
    plan = QUICK if parser.parse_args().quick else FULL
    matplotlib.use("agg")
    console, since = Console(), time.perf_counter()
    with console.status("support vector machines …"):
        runs = [one_run(seed, plan) for seed in range(plan.runs)]
    by_model, by_chance = (best_so_far(list(each)) for each in zip(*runs, strict=True))
    console.print(table(plan, by_model, by_chance))
    draw(plan, by_model, by_chance)
    console.print(f"{time.perf_counter() - since:.0f} s. The picture is {PICTURE}.", soft_wrap=True)


if __name__ == "__main__":
    main()
