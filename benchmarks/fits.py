"""Compute test losses of every method of the paper on its data sets.

``python benchmarks/fits.py --data FOLDER`` trains ELBO, β-ELBO, FITC and the direct losses, joint
and fixed, prints a table for each data set and a summary, and writes all results to
benchmarks/results/fits.json. Losses are in units of the normalised target.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import directgp
from benchmarks.datasets import TASKS, Part, Split, Task, load, split
from benchmarks.models import evaluations, facts, starting_model, write
from benchmarks.rules import show
from directgp.errors import DirectGPError
from directgp.predictive import predictive_mean
from directgp.training import BetaPath, Given, Status, TrainingResult

Row = dict[str, object]


@dataclass(frozen=True)
class Method:
    """An objective, with β chosen by validation or equal to 1."""

    objective: str
    hyperparameters: Literal["joint", "fixed"] = "joint"
    chooses_beta: bool = True
    regression_only: bool = False


METHODS = {
    "elbo": Method("elbo", chooses_beta=False),
    "beta-elbo": Method("elbo"),
    "fitc": Method("fitc", chooses_beta=False, regression_only=True),
    "log-joint": Method("log_loss"),
    "log-fixed": Method("log_loss", "fixed"),
    "square-joint": Method("square_loss", regression_only=True),
    "square-fixed": Method("square_loss", "fixed", regression_only=True),
}

SECOND = {"regression": "MSE", "classification": "error", "counts": "MRE"}

SHORT = [10.0, 1.0, 0.1, 0.01]


def scores(task: Task, result: TrainingResult, test: Part) -> Row:
    """Return exact NLL, and MSE, error rate or MRE: means over the test examples."""
    marginals = result.posterior.predict(test.X)
    mean, variance = marginals.mean, marginals.variance
    with torch.no_grad():
        log_density = directgp.log_expectation(result.likelihood, test.y, mean, variance)
        expected = predictive_mean(result.likelihood, marginals)
    if task.kind == "regression":
        second = (expected - test.y).square()
    elif task.kind == "classification":
        second = ((expected > 0.5) != (test.y > 0.5)).double()
    else:
        second = (expected - test.y).abs() / test.y.clamp(min=1)
    return {"NLL": -float(log_density.mean()), SECOND[task.kind]: float(second.mean())}


def fit(
    method: Method,
    task: Task,
    parts: Split,
    betas: list[float] | None,
    steps: int | None,
    seed: int,
) -> tuple[list[TrainingResult], BetaPath | None]:
    """Train a method; return its results and the path it chooses from."""
    posterior, likelihood = starting_model(task, parts.training, seed)
    generator = torch.Generator(parts.training.X.device).manual_seed(seed)
    if not method.chooses_beta:
        result = directgp.train(
            posterior,
            likelihood,
            *parts.training,
            objective=method.objective,
            max_steps=steps,
            generator=generator,
        )
        return [result], None
    path = directgp.beta_path(
        posterior,
        likelihood,
        *parts.training,
        betas=betas,
        validation=Given(*parts.validation),
        objective=method.objective,
        hyperparameters=method.hyperparameters,
        max_steps=steps,
        generator=generator,
    )
    return [point.trained for point in path.points], path


def judge(
    name: str, method: str, parts: Split, betas: list[float] | None, steps: int | None, seed: int
) -> Row:
    """Train one method and score it on the test examples."""
    task = TASKS[name]
    row: Row = {"data": name, "method": method}
    since = time.perf_counter()
    try:
        results, path = fit(METHODS[method], task, parts, betas, steps, seed)
    except DirectGPError as error:
        return {**row, "status": f"failed: {error}"}
    seconds = time.perf_counter() - since
    best = results[0] if path is None else path.best
    row |= scores(task, best, parts.test)
    row |= {"beta": best.beta, "seconds": seconds, "evaluations": evaluations(results)}
    row["status"] = _status(best, results)
    if path is not None:
        row["path"] = [
            {
                "beta": point.beta,
                "validation": point.validation_loss,
                "difference": point.difference,
                "difference_error": point.difference_error,
                "status": point.trained.status,
                **scores(task, point.trained, parts.test),
            }
            for point in path.points
        ]
    return row


def _status(best: TrainingResult, results: list[TrainingResult]) -> str:
    """Describe why the chosen run stopped and how many runs of a path converged."""
    converged = sum(result.status == Status.CONVERGED for result in results)
    of_path = f"; {converged} of {len(results)} converged" if len(results) > 1 else ""
    return f"{best.status}{of_path}"


def table(kind: str, rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return the rows to print, with enough digits to show differences."""
    heads = ("method", "NLL", SECOND[kind], "beta", "seconds", "evaluations", "status")
    return [{head: _cell(head, row.get(head)) for head in heads} for row in rows]


def _cell(head: str, value: object) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if head in ("NLL", *SECOND.values()) else f"{value:.3g}"


def summary(rows: list[Row], methods: list[str]) -> list[dict[str, object]]:
    """Return one line per data set with one column per method."""
    lines: dict[str, Row] = {}
    for row in rows:
        name, method = str(row["data"]), str(row["method"])
        second = SECOND[TASKS[name].kind]
        empty: Row = {"data": f"{name}: NLL; {second}; β", **dict.fromkeys(methods, "")}
        cells = (_cell(head, row.get(head)) for head in ("NLL", second, "beta"))
        lines.setdefault(name, empty)[method] = "; ".join(cells)
    return list(lines.values())


def main() -> None:
    """Run the requested fits and write the results after each fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--names", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--betas", choices=("grid", "short"), default="grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-rows", type=int, help="train on so many rows at most")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--threads", type=int, default=1)
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "fits.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = ("seed", "betas", "dtype", "train_rows", "max_steps")
    about = facts(arguments.device) | {key: getattr(arguments, key) for key in settings}
    betas = SHORT if arguments.betas == "short" else None
    rows: list[Row] = []
    for name in arguments.names:
        kind, since = TASKS[name].kind, len(rows)
        X, y = load(arguments.data, name)
        parts = split(name, X, y, arguments.seed, arguments.train_rows)
        parts = parts.to(arguments.device, getattr(torch, arguments.dtype))
        for method in arguments.methods:
            if kind == "regression" or not METHODS[method].regression_only:
                row = judge(name, method, parts, betas, arguments.max_steps, arguments.seed)
                rows.append({"n": len(parts.training.y), **row})
                write(arguments.out, {**about, "fits": rows})
        n = len(parts.training.y)
        show(f"{name}: {kind}, n = {n}, M = {TASKS[name].num_inducing}", table(kind, rows[since:]))
    show("Summary", summary(rows, arguments.methods))


if __name__ == "__main__":
    main()
