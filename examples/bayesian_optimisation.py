"""Bayesian optimisation with BoTorch: the settings of a support vector machine.

The function to minimise is real: the cross-validated error of a support vector machine on
scikit-learn's breast cancer data, over log C and log γ. A sparse GP trained for log loss models
the log of the error, BoTorch says where to look next, and random search from the same first points
stands beside it. The figures are printed as they come out, whichever wins. Run it with
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
"""Of log₁₀ C and log₁₀ γ."""

DATA = load_breast_cancer(return_X_y=True)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    first: int
    further: int
    runs: int

    @property
    def evaluations(self) -> int:
        """Of one run."""
        return self.first + self.further


FULL, QUICK = Plan(first=8, further=12, runs=3), Plan(first=5, further=3, runs=1)


def error(settings: Numbers) -> float:
    """Per cent of the rows that five-fold cross-validation gets wrong."""
    C, gamma = (10**settings).tolist()
    machine = make_pipeline(StandardScaler(), SVC(C=C, gamma=gamma))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    scores = cross_val_score(machine, *DATA, cv=folds)
    return 100 * (1 - float(scores.mean()))


def errors(settings: Numbers) -> Numbers:
    """The error of each row."""
    return np.array([error(row) for row in settings])


def next_settings(settings: Numbers, found: Numbers) -> Numbers:
    """Where to look next, given the errors found so far."""
    model = SparseGPRegressor(
        objective="log_loss",
        beta=1.0,
        hyperparameters="fixed",
        likelihood="gaussian",
        ard=False,
        random_state=0,
    )
    with warnings.catch_warnings():
        # That few rows are few.
        warnings.simplefilter("ignore", DirectGPWarning)
        model.fit(settings, -np.log(found))
    wanted = qLogNoisyExpectedImprovement(DirectModel(model), torch.as_tensor(settings))
    bounds = torch.tensor([LOWER, UPPER], dtype=torch.float64)
    chosen, _ = optimize_acqf(wanted, bounds, q=1, num_restarts=4, raw_samples=64)
    return chosen.numpy()


def one_run(seed: int, plan: Plan) -> tuple[Numbers, Numbers]:
    """Errors in the order they were found, by the model and by random search."""
    torch.manual_seed(seed)
    settings = np.random.default_rng(seed).uniform(LOWER, UPPER, (plan.evaluations, 2))
    by_chance = errors(settings)
    settings, found = settings[: plan.first], by_chance[: plan.first]
    for _ in range(plan.further):
        row = next_settings(settings, found)
        settings, found = np.vstack([settings, row]), np.append(found, errors(row))
    return found, by_chance


def best_so_far(runs: list[Numbers]) -> Numbers:
    """The smallest error up to each evaluation, a row for each run."""
    return np.minimum.accumulate(np.stack(runs), axis=1)


def table(plan: Plan, by_model: Numbers, by_chance: Numbers) -> Table:
    """The smallest error after some numbers of evaluations, mean over the runs."""
    shown = Table(title=f"smallest error in %, mean of {plan.runs} run(s)", box=SIMPLE_HEAD)
    shown.add_column("evaluations", justify="right")
    for name in ("random search", "directgp and BoTorch"):
        shown.add_column(name, justify="right")
    for number in np.linspace(plan.first, plan.evaluations, 4).astype(int).tolist():
        figures = [each[:, number - 1].mean() for each in (by_chance, by_model)]
        shown.add_row(str(number), *(f"{each:.2f}" for each in figures))
    return shown


def draw(plan: Plan, by_model: Numbers, by_chance: Numbers) -> None:
    """Every run as a thin line, their mean as a thick one."""
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
