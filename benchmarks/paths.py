"""Compare the cost of a path of 15 β with one fit, as ratios within one run.

``python benchmarks/paths.py --data FOLDER`` prints the table and writes it to
benchmarks/results/paths.json. The objective is log loss. The limits are 4 for fixed
hyperparameters and 6 for joint ones.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import directgp
from benchmarks.datasets import TASKS, Split, load, split
from benchmarks.models import evaluations, facts, now, starting_model, write
from benchmarks.rules import show
from directgp.likelihoods import Likelihood
from directgp.posteriors import SparsePosterior
from directgp.training import Given, TrainingResult
from directgp.training.beta_path import train_grid
from directgp.training.data import Data, Model
from directgp.training.run import Recipe
from directgp.training.trainer import Trainer, elbo_run, fixed_run

Fits = Callable[[], list[TrainingResult]]
Mode = Literal["joint", "fixed"]

ROWS = {"cadata": 3000, "pol": 3000, "banana": None}
"""Rows to train on; None is all."""

BETAS = [*(100 / 2**k for k in range(14)), 0.01]


class Pair(NamedTuple):
    """One fit, a path, and the maximum ratio of their times."""

    one: Fits
    path: Fits
    bar: float
    base: TrainingResult | None = None
    """The finished run that both start from."""


class Subject:
    """An untrained model with its data."""

    def __init__(self, name: str, parts: Split, seed: int, steps: int | None) -> None:
        self.parts, self.steps = parts, steps
        self.posterior: SparsePosterior
        self.likelihood: Likelihood
        self.posterior, self.likelihood = starting_model(TASKS[name], parts.training, seed)

    def one(self, mode: Mode) -> list[TrainingResult]:
        """Train one fit with β = 1 from the start."""
        model = (self.posterior, self.likelihood, *self.parts.training)
        return [directgp.train(*model, beta=1.0, hyperparameters=mode, max_steps=self.steps)]

    def path(self, mode: Mode) -> list[TrainingResult]:
        """Train every β from the start."""
        path = directgp.beta_path(
            self.posterior,
            self.likelihood,
            *self.parts.training,
            betas=BETAS,
            validation=Given(*self.parts.validation),
            hyperparameters=mode,
            max_steps=self.steps,
        )
        return [point.trained for point in path.points]

    def q_alone(self) -> Pair:
        """Time one fit of q(u) with β = 1 and every β, given the finished ELBO run."""
        training = self.parts.training
        generator = torch.Generator(training.X.device).manual_seed(0)
        trainer = Trainer(Data(*training), generator)
        recipe = Recipe(max_steps=self.steps)
        model = Model(self.posterior, self.likelihood)
        base = elbo_run(trainer, recipe, model)
        return Pair(
            lambda: [fixed_run(trainer, recipe, base, 1.0)],
            lambda: train_grid(trainer, recipe, model, BETAS, base, held=True),
            4.0,
            base,
        )


def pairs(subject: Subject) -> dict[str, Pair]:
    """Return the pairs to time: fixed, its q(u) alone, and joint."""
    return {
        "fixed": Pair(partial(subject.one, "fixed"), partial(subject.path, "fixed"), 4.0),
        "fixed, q(u) alone": subject.q_alone(),
        "joint": Pair(partial(subject.one, "joint"), partial(subject.path, "joint"), 6.0),
    }


def compare(pair: Pair, rounds: int, device: str) -> dict[str, object]:
    """Return time and evaluations of both, and the median ratio of the times."""
    seconds: list[tuple[float, float]] = []
    for _ in range(rounds):
        begun = now(device)
        fit = pair.one()
        between = now(device)
        fits = pair.path()
        seconds.append((between - begun, now(device) - between))
    ratio = statistics.median(second / first for first, second in seconds)
    return {
        "one fit s": statistics.median(first for first, _ in seconds),
        "path s": statistics.median(second for _, second in seconds),
        "one fit evaluations": evaluations(fit, pair.base),
        "path evaluations": evaluations(fits, pair.base),
        "time ratio": ratio,
        "bar": pair.bar,
        "held": "yes" if ratio <= pair.bar else "no",
    }


def main() -> None:
    """Time every path and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--names", nargs="+", choices=TASKS, default=list(ROWS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-rows", type=int, help="train on so many rows at most")
    parser.add_argument("--max-steps", type=int, help="of every run, for a quick look")
    parser.add_argument("--rounds", type=int, default=1, help="times that each pair is timed")
    parser.add_argument("--device", default="cpu")
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "paths.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    about = {**facts(arguments.device), "betas": BETAS, "seed": arguments.seed}
    rows: list[dict[str, object]] = []
    for name in arguments.names:
        most = arguments.train_rows or ROWS.get(name)
        parts = split(name, *load(arguments.data, name), arguments.seed, most)
        parts = parts.to(arguments.device, torch.float64)
        # Warm up: the first run in a process is slower.
        Subject(name, parts, arguments.seed, 2).one("fixed")
        subject = Subject(name, parts, arguments.seed, arguments.max_steps)
        for what, pair in pairs(subject).items():
            row = {"data": name, "n": len(parts.training.y), "hyperparameters": what}
            rows.append(row | compare(pair, arguments.rounds, arguments.device))
            write(arguments.out, {**about, "rows": rows})
    show(f"A path of {len(BETAS)} β against one fit, time", rows)


if __name__ == "__main__":
    main()
