"""Measure the time to the optimum and β selection against other libraries.

``python -m benchmarks.optimum --data FOLDER`` runs both; results go to benchmarks/results, tables
to docs/tables. Libraries run in separate environments with one thread each. Times are processor
times; set-up and compilation count, imports and reading of data do not.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from sys import executable

import torch

from benchmarks.models import facts, write
from benchmarks.optimum.descent import NEAR
from benchmarks.optimum.problems import LIBRARIES, PROBLEMS, ROWS
from benchmarks.optimum.rounds import Limits, ProblemRounds, Round
from benchmarks.optimum.selection import BETAS, Choice, select
from benchmarks.optimum.tables import optimum_rows, selection_rows, write_table

_ROOT = Path(__file__).resolve().parents[2]

_PYTHONS = {
    "directgp": Path(executable),
    "gpytorch": _ROOT / ".venv-peers/bin/python",
    "gpflow": _ROOT / ".venv-peers/bin/python",
    "gpjax": _ROOT / ".venv-gpjax/bin/python",
}


def optimum(arguments: argparse.Namespace, pythons: dict[str, Path]) -> None:
    """Run every problem in rounds and write the results after each round."""
    limits = Limits(
        arguments.screening, arguments.patience, most=arguments.most, longer=arguments.longer
    )
    wanted = [problem for problem in PROBLEMS if problem.data in arguments.names]
    problems = [ProblemRounds(problem, pythons, limits) for problem in wanted]
    rounds: list[list[Round]] = [[] for _ in problems]
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.rounds):
        for problem, found in zip(problems, rounds, strict=True):
            found.append(problem.round(arguments.data, seed, arguments.train_rows))
            _say(found[-1])
            kept = [round.to_dict() for same in rounds for round in same]
            screened = [row for each in problems for row in each.screened]
            about = {**facts("cpu"), "near": NEAR, **asdict(limits)}
            content = {**about, "screened": screened, "rounds": kept}
            write(arguments.results / "optimum.json", content)
    write_table(arguments.tables / "optimum.md", optimum_rows(rounds, list(pythons)))


def selection(arguments: argparse.Namespace, pythons: dict[str, Path]) -> None:
    """Run every data set in rounds and write the results after each."""
    choices: dict[tuple[str, int], list[Choice]] = {}
    first = arguments.first_seed
    for seed in range(first, first + arguments.selection_rounds):
        for name in arguments.names:
            patience, rows = arguments.selection_patience, arguments.train_rows
            found = select(arguments.data, name, pythons["gpytorch"], seed, patience, rows)
            choices[name, seed] = found
            for choice in found:
                what = f"{name}, seed {seed}: {choice.library}, {choice.seconds:.3g} s"
                print(f"{what}, β = {choice.beta:.3g}, NLL {choice.nll:.4f}", flush=True)
            kept = [
                {"data": name, "seed": seed, **asdict(choice)}
                for (name, seed), found in choices.items()
                for choice in found
            ]
            content = {**facts("cpu"), "betas": BETAS, "choices": kept}
            write(arguments.results / "selection.json", content)
    write_table(arguments.tables / "selection.md", selection_rows(dict(choices)))


def _say(found: Round) -> None:
    problem = found.problem
    print(f"{problem.data}, {problem.name}, seed {found.seed}: target {found.target:.5f}")
    for descent in found.descents:
        reached = descent.reached(found.target)
        when = "not reached" if reached is None else f"reached after {reached:.3g} s"
        what = f"  {descent.library}: best {descent.best:.5f} of {descent.total:.3g} s, {when}"
        how = "its defaults" if descent.library == "directgp" else descent.settings.name
        print(f"{what} ({descent.steps} steps; {how})", flush=True)


def _named_path(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in LIBRARIES or not path:
        raise argparse.ArgumentTypeError(f"must be NAME=PATH with NAME of {LIBRARIES}")
    # Do not resolve symbolic links: a resolved interpreter loses its environment.
    return name, Path(path).absolute()


def main() -> None:
    """Run the requested benchmarks."""
    parser = argparse.ArgumentParser(prog="benchmarks.optimum", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--suites", nargs="+", choices=("optimum", "selection"))
    parser.add_argument("--names", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--peers", nargs="*", choices=LIBRARIES[1:], default=LIBRARIES[1:])
    parser.add_argument("--python", nargs="+", type=_named_path, default=[], metavar="NAME=PATH")
    help_first = "of splits and starts; 0 was looked at while our defaults were chosen"
    parser.add_argument("--first-seed", type=int, default=1, help=help_first)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--selection-rounds", type=int, default=1)
    parser.add_argument("--screening", type=float, default=0.4)
    parser.add_argument("--patience", type=float, default=6.0)
    parser.add_argument("--selection-patience", type=float, default=5.0)
    parser.add_argument("--most", type=float, default=120.0, help="seconds of any run")
    help_longer = "seconds of a peer's best way at least, after a screening as short as before"
    parser.add_argument("--longer", type=float, default=0.0, help=help_longer)
    parser.add_argument("--train-rows", type=int, help="train on so many rows at most")
    parser.add_argument("--results", type=Path, default=_ROOT / "benchmarks/results")
    parser.add_argument("--tables", type=Path, default=_ROOT / "docs/tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = ("directgp", *arguments.peers)
    pythons = {name: (_PYTHONS | dict(arguments.python))[name] for name in wanted}
    for name, suite in {"optimum": optimum, "selection": selection}.items():
        if arguments.suites is None or name in arguments.suites:
            suite(arguments, pythons)


if __name__ == "__main__":
    main()
