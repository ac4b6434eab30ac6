"""Compare L-BFGS with Adam and the paper's settings, as ratios within one run.

``python benchmarks/optimizers.py --data FOLDER`` starts both from one state and reports the
time that each needs to come within 0.001 nats per example of the best objective that either finds.
It writes the results to benchmarks/results/optimizers.json. Adam: learning rate 0.1, all examples
at once, until the paper's stopping rule or 5000 (regression) or 3000 steps.
"""

import argparse
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, final

import torch
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import directgp
from benchmarks.datasets import TASKS, Part, Task, load, split
from benchmarks.models import facts, now, starting_model, write
from benchmarks.rules import show
from directgp.training import LossRange, Monitor, Progress, TrainingResult
from directgp.training.data import Data, Model
from directgp.training.run import Recipe
from directgp.training.trainer import Trainer, fixed_run, joint_run

NAMES = ("abalone", "banana", "pol")
ROWS = {"pol": 3000}
"""Rows to train on, where not all."""

BETA = 0.1

NEAR = 1e-3
"""Nats per example within which an objective counts as reached."""

SHORT_RUN = 50
"""Steps of the ELBO run that both optimisers start a joint run from."""


class Moment(NamedTuple):
    """Objective after a step, with its time and number of evaluations."""

    loss: float
    step: int
    evaluations: int
    seconds: float


@final
@dataclass(eq=False)
class Clock(Monitor):
    """Record the moments of a run; the time starts at construction."""

    device: str
    moments: list[Moment] = field(default_factory=list)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._since = now(self.device)

    @override
    def __call__(self, progress: Progress) -> None:
        """Record the time of a step."""
        seconds = now(self.device) - self._since
        self.moments.append(Moment(progress.loss, progress.step, progress.evaluations, seconds))

    @override
    def reset(self) -> None:
        """Do nothing: there is one stage."""


@dataclass(frozen=True)
class Descent:
    """Objective of an optimiser over time."""

    moments: list[Moment]
    status: str

    @property
    def objective(self) -> float:
        """Return the lowest objective."""
        return min(moment.loss for moment in self.moments)

    def reached(self, target: float) -> Moment | None:
        """Return the first moment at or below a target."""
        return next((moment for moment in self.moments if moment.loss <= target), None)

    def time_text(self, target: float) -> str:
        """Describe the time and evaluations to a target, or that it was not reached."""
        moment = self.reached(target)
        if moment is None:
            last = self.moments[-1]
            return f"not within its {last.step} steps ({self.status}; {last.seconds:.3g} s)"
        return f"{moment.seconds:.3g} s, {moment.evaluations} evaluations"

    def to_dict(self, target: float) -> dict[str, object]:
        """Return the values for the result file."""
        reached = self.reached(target)
        return {
            "objective": self.objective,
            "status": self.status,
            "total": self.moments[-1]._asdict(),
            "reached": None if reached is None else reached._asdict(),
        }


@dataclass(frozen=True)
class Match:
    """Results of both optimisers on one problem."""

    name: str
    num_data: int
    mode: str
    lbfgs: Descent
    adam: Descent

    @property
    def target(self) -> float:
        """Return the objective that counts as reached."""
        return min(self.lbfgs.objective, self.adam.objective) + NEAR

    def ratio(self, cost: Literal["seconds", "evaluations"]) -> str:
        """Return the cost ratio Adam / L-BFGS; a bound if one did not reach the target."""
        adam, lbfgs = self.adam.reached(self.target), self.lbfgs.reached(self.target)
        above = getattr(adam or self.adam.moments[-1], cost)
        below = getattr(lbfgs or self.lbfgs.moments[-1], cost)
        sign = "≥ " if adam is None else "≤ " if lbfgs is None else ""
        return f"{sign}{above / below:.3g}"

    def to_dict(self) -> dict[str, object]:
        """Return the values for the result file."""
        return {
            "data": self.name,
            "n": self.num_data,
            "hyperparameters": self.mode,
            "target": self.target,
            "lbfgs": self.lbfgs.to_dict(self.target),
            "adam": self.adam.to_dict(self.target),
            "time ratio": self.ratio("seconds"),
            "evaluations ratio": self.ratio("evaluations"),
        }

    def line(self) -> dict[str, object]:
        """Return the line to print."""
        return {
            "data": f"{self.name}, n = {self.num_data}",
            "hyperparameters": self.mode,
            "objective of L-BFGS": f"{self.lbfgs.objective:.5f}",
            "of Adam": f"{self.adam.objective:.5f}",
            "L-BFGS to target": self.lbfgs.time_text(self.target),
            "Adam to target": self.adam.time_text(self.target),
            "time, Adam / L-BFGS": self.ratio("seconds"),
            "evaluations": self.ratio("evaluations"),
        }


def paper_adam(task: Task, steps: int | None) -> Recipe:
    """Return Adam with the paper's settings."""
    window, most = (50, 5000) if task.kind == "regression" else (20, 3000)
    return Recipe(
        optimizer="adam",
        learning_rate=0.1,
        max_steps=min(most, steps or most),
        stopping=LossRange(window, 1e-4),
    )


def descend(recipe: Recipe, mode: str, base: TrainingResult, training: Part) -> Descent:
    """Minimise log loss with β = 0.1 from the base state, optionally with fixed hyperparameters."""
    generator = torch.Generator(training.X.device).manual_seed(0)
    trainer = Trainer(Data(*training), generator)
    clock = Clock(training.X.device.type)
    watched = replace(recipe, monitors=(clock,))
    if mode == "fixed":
        result = fixed_run(trainer, watched, base, BETA)
    else:
        result = joint_run(trainer, watched, Model(base.posterior, base.likelihood), BETA)
    return Descent(clock.moments, result.status)


def match(name: str, mode: str, training: Part, seed: int, steps: int | None) -> Match:
    """Run both optimisers from the same state."""
    task = TASKS[name]
    elbo_steps = steps if mode == "fixed" else SHORT_RUN
    base = directgp.train(
        *starting_model(task, training, seed), *training, objective="elbo", max_steps=elbo_steps
    )
    recipes = (Recipe(optimizer="lbfgs", max_steps=steps), paper_adam(task, steps))
    for recipe in recipes:
        # Warm up: the first run in a process is slower.
        descend(replace(recipe, max_steps=2), mode, base, training)
    lbfgs, adam = (descend(recipe, mode, base, training) for recipe in recipes)
    return Match(name, len(training.y), mode, lbfgs, adam)


def main() -> None:
    """Run every match and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--names", nargs="+", choices=TASKS, default=list(NAMES))
    parser.add_argument("--full", action="store_true", help="all training rows of pol")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-rows", type=int, help="train on so many rows at most")
    parser.add_argument("--max-steps", type=int, help="of every run, for a quick look")
    parser.add_argument("--device", default="cpu")
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "optimizers.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    about = {**facts(arguments.device), "beta": BETA, "near": NEAR, "seed": arguments.seed}
    matches: list[Match] = []
    for name in arguments.names:
        rows = arguments.train_rows or (None if arguments.full else ROWS.get(name))
        parts = split(name, *load(arguments.data, name), arguments.seed, rows)
        training = parts.training.to(arguments.device, torch.float64)
        for mode in ("joint", "fixed"):
            matches.append(match(name, mode, training, arguments.seed, arguments.max_steps))
            write(arguments.out, {**about, "matches": [found.to_dict() for found in matches]})
    show("L-BFGS and Adam, log loss, β = 0.1", [found.line() for found in matches])


if __name__ == "__main__":
    main()
