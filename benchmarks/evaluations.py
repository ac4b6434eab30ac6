"""Measure one L-BFGS evaluation in float64, value and flat gradient, against its floor.

``python -m benchmarks.evaluations`` measures on the CPU with one thread, ``--device cuda`` on a
GPU. The floor is the time of 5 M²n multiply-adds at the rate of a large matrix product, which is
measured before and after each size. Times are medians over rounds; each round runs all cells of a
size in a new random order.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.cases import NUGGET, Case, latent, parameters
from benchmarks.peers.ours import sparse_posterior
from benchmarks.peers.process import ROOT, Process
from benchmarks.peers.protocol import Message, serve
from benchmarks.peers.rounds import Times, steps_of, times_per_step
from benchmarks.peers.spread import Spread, ratios
from benchmarks.peers.tables import markdown, spread_text, write_tables
from directgp.errors import NumericalError
from directgp.likelihoods import Gaussian, Likelihood, NegativeBinomial, Poisson, Probit, StudentT
from directgp.objectives import GibbsLoss, LogLoss
from directgp.objectives.base import Objective
from directgp.training.beta_path import repeated
from directgp.training.curvature import FlatParameters
from directgp.training.data import Data, Model, Randomness
from directgp.training.graphs import RecordedWork
from directgp.training.problems import FreeProblem, ModelProblem
from directgp.training.profiled import ProfiledProblem

Row = dict[str, Any]
Size = tuple[int, int]

FEATURES = 9
SIZES = [(n, m) for n in (200, 1000, 5000, 20000) for m in (50, 100, 500) if m <= n / 2]
LARGEST_ON_CPU = 2e9
"""M²n above which a run on a CPU skips a size unless asked: an evaluation takes seconds."""

PRODUCTS = 5
"""Of M²n multiply-adds each: L⁻¹K_uf, SᵀA, S(SᵀA), A diag(g) Aᵀ and L⁻ᵀdA."""

LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "Gaussian": partial(Gaussian, 0.2),
    "Student-t": partial(StudentT, 4.0, 0.3),
    "probit": Probit,
    "Poisson": Poisson,
    "negative binomial": partial(NegativeBinomial, 2.0),
}
LOSSES = ("log loss", "ELBO")
COLLAPSED = "Gaussian; collapsed VFE"
CELLS = [*(f"{name}; {loss}" for loss in LOSSES for name in LIKELIHOODS), COLLAPSED]
OVER_GAUSSIAN = ("Student-t", "Poisson", "negative binomial")
MODELS, BATCHED = 5, "Gaussian; log loss"
"""Models that one evaluation of a batch computes, and their problem."""

WITH_THREADS = ("Gaussian; log loss", "Poisson; log loss")

PAUSE = 0.1
"""Seconds before a time with threads: idle threads of the other process spin for a while."""


def problem_of(size: Size, cell: str, device: str, models: int = 1) -> ModelProblem:
    """Return the problem of a partly trained model, with targets drawn from its likelihood.

    With several models they are a batch, each with its own parameters and β.
    """
    n, m = size
    name, loss = cell.split("; ")
    arrays = parameters(Case("gaussian", n, FEATURES, m))
    t = {key: torch.as_tensor(value).to(device) for key, value in arrays.items()}
    likelihood = LIKELIHOODS[name]().double()
    f = torch.as_tensor(latent(arrays["X"]))
    y = torch.as_tensor(likelihood.sample(f, np.random.RandomState(0)), dtype=torch.float64)
    model = Model(sparse_posterior(t, NUGGET["float64"]), likelihood.to(device))
    beta: float | torch.Tensor = 1.0
    if models > 1:
        posterior = model.posterior.repeated(models, shared_prior=False)
        model = Model(posterior, repeated(model.likelihood, models))
        beta = torch.logspace(-1, 1, models, dtype=torch.float64, device=device)
    objective = Objective(LogLoss() if loss == "log loss" else GibbsLoss(), n, beta)
    randomness = Randomness(torch.Generator(device), frozen=True)
    common = model, Data(t["X"], y.to(device)), objective, randomness
    if cell == COLLAPSED:
        return ProfiledProblem(*common, "vfe", held=False)
    return FreeProblem(*common)


class Evaluation:
    """Value and flat gradient of a problem as L-BFGS computes them, on a GPU from a CUDA graph."""

    def __init__(self, problem: ModelProblem, clock: Callable[[], float]) -> None:
        self._problem, self._clock = problem, clock
        self._flat = FlatParameters(problem.parameters)
        self._x = self._flat.read()
        self._run: Callable[[], Any] = self._work
        expected = self.value()
        self.recorded = problem.recordable() and problem.jitter == 0
        if self.recorded:
            self._run = RecordedWork(problem, self._work).replay
        found = self.value()
        if not math.isclose(found, expected, rel_tol=1e-8):
            raise NumericalError(f"The value must be {expected!r} each time. Got {found!r}.")

    def _work(self) -> tuple[Any, Any]:
        self._flat.write(self._x)
        value, gradient = self._problem.value_and_gradient(0)
        return value, self._flat.packed(gradient)

    def value(self) -> float:
        """Evaluate once; the host reads the value, and so waits for a GPU."""
        self._problem.prepare()
        return float(self._run()[0].sum())

    def __call__(self, number: int) -> float:
        """Return the seconds of a number of evaluations."""
        with self._problem.threads():
            since = self._clock()
            for _ in range(number):
                self.value()
            return self._clock() - since


def clock_of(device: str) -> Callable[[], float]:
    """Return processor time for a CPU, which other programs affect least; else wall time."""
    return time.process_time if device == "cpu" else time.perf_counter


def matmul_rate(device: str) -> float:
    """Return the multiply-adds per second of a large float64 product, the median of five."""
    size, clock, seconds = 1024 if device == "cpu" else 4096, clock_of(device), []
    a = torch.rand(size, size, dtype=torch.float64, device=device)
    for _ in range(6):
        since = clock()
        float((a @ a)[0, 0])
        seconds.append(clock() - since)
    return size**3 / statistics.median(seconds[1:])


def measure_size(size: Size, device: str, rounds: int, seconds: float) -> Row:
    """Return the times of all cells of a size, and the rates of products before and after."""
    tasks = {cell: Evaluation(problem_of(size, cell, device), clock_of(device)) for cell in CELLS}
    batch = problem_of(size, BATCHED, device, MODELS)
    tasks[f"{BATCHED}; {MODELS} models"] = Evaluation(batch, clock_of(device))
    before = matmul_rate(device)
    times = times_per_step(tasks, rounds, seconds)
    eager = [cell for cell, task in tasks.items() if device != "cpu" and not task.recorded]
    return {**size_row(size, times, [before, matmul_rate(device)]), "eager": eager}


def size_row(size: Size, times: Times, rates: list[float]) -> Row:
    """Return medians, floor and ratios from the seconds of each cell in each round."""
    (n, m), gaussian = size, times["Gaussian; ELBO"]
    floor = 1e3 * PRODUCTS * m**2 * n / statistics.mean(rates)
    ms = _milliseconds(times)
    one_by_one = [MODELS * seconds for seconds in times[BATCHED]]
    pairs = {name: ratios(times[f"{name}; ELBO"], gaussian) for name in OVER_GAUSSIAN}
    return {
        "n": n,
        "m": m,
        "matmul_rates": rates,
        "floor_ms": floor,
        "ms": ms,
        "over_floor": {cell: spread["median"] / floor for cell, spread in ms.items()},
        "over_gaussian": {name: asdict(spread) for name, spread in pairs.items()},
        "batch": asdict(ratios(one_by_one, times[f"{BATCHED}; {MODELS} models"])),
    }


def _milliseconds(times: Times) -> dict[str, dict[str, float]]:
    return {name: asdict(Spread.of([1e3 * s for s in t])) for name, t in times.items()}


def measure_threads(sizes: list[Size], rounds: int, seconds: float) -> Iterator[Row]:
    """Yield wall times of a process with one thread and of one without OMP_NUM_THREADS."""

    def start(one_thread: bool) -> Process:
        module = "benchmarks.evaluations"
        return Process("directgp", sys.executable, module, ["--serve"], one_thread)

    with start(True) as one, start(False) as unset:
        tasks = {"one": steps_of(one), "unset": steps_of(unset)}
        for (n, m), cell in [(size, cell) for size in sizes for cell in WITH_THREADS]:
            one.ask("set_up", size=[n, m], cell=cell)
            threads = unset.ask("set_up", size=[n, m], cell=cell)["threads"]
            times = times_per_step(tasks, rounds, seconds)
            yield {
                "n": n,
                "m": m,
                "cell": cell,
                "threads_unset": threads,
                "ms": _milliseconds(times),
                "ratio": asdict(ratios(times["unset"], times["one"])),
            }


class Server:
    """Evaluations in a process of their own, by wall time."""

    def __call__(self, message: Message) -> Message:
        if message["do"] == "set_up":
            n, m = message["size"]
            problem = problem_of((n, m), message["cell"], "cpu")
            self._evaluation = Evaluation(problem, time.perf_counter)
            return {"threads": torch.get_num_threads()}
        time.sleep(PAUSE)
        return {"seconds": self._evaluation(message["number"])}


def all_tables(results: Row) -> dict[str, str]:
    """Return every table by name; the main table has the empty name."""
    rows, skipped = results["evaluations"], ", ".join(map(_label, results["skipped"]))
    heads = ["", "floor, ms", *LIKELIHOODS, "collapsed VFE"]
    main = markdown(heads, (_line(row, loss) for row in rows for loss in LOSSES))
    note = f"\nSkipped, because an evaluation takes seconds: {skipped}.\n" if skipped else ""
    ratio_lines = ([_label(row), *map(spread_text, row["over_gaussian"].values())] for row in rows)
    tables = {"": main + note, "likelihoods": markdown(["ELBO", *OVER_GAUSSIAN], ratio_lines)}
    heads = ["", "one model, ms", f"{MODELS} models, ms", "one by one / batch"]
    tables["batches"] = markdown(heads, map(_batch_line, rows))
    if results["threads"]:
        heads = ["", "one thread, ms", "unset, ms", "unset / one thread"]
        tables["threads"] = markdown(heads, map(_thread_line, results["threads"]))
    return tables


def _label(row: Row) -> str:
    return f"n {row['n']}, M {row['m']}"


def _line(row: Row, loss: str) -> list[str]:
    cells = [*(f"{name}; {loss}" for name in LIKELIHOODS), COLLAPSED]
    texts = [
        f"{row['ms'][cell]['median']:.3g} (×{_ratio(row['over_floor'][cell])}"
        f"{', eager' if cell in row['eager'] else ''})"
        for cell in cells
    ]
    # The collapsed ELBO is no log loss.
    texts[-1] = texts[-1] if loss == "ELBO" else "–"
    return [f"{_label(row)}; {loss}", f"{row['floor_ms']:.3g}", *texts]


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _batch_line(row: Row) -> list[str]:
    cells = BATCHED, f"{BATCHED}; {MODELS} models"
    medians = [f"{row['ms'][cell]['median']:.3g}" for cell in cells]
    return [_label(row), *medians, spread_text(row["batch"])]


def _thread_line(row: Row) -> list[str]:
    medians = [f"{row['ms'][key]['median']:.3g}" for key in ("one", "unset")]
    return [f"{_label(row)}; {row['cell']}", *medians, spread_text(row["ratio"])]


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments, with defaults that depend on the device."""
    parser = argparse.ArgumentParser(prog="benchmarks.evaluations", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", nargs="+", type=_size, metavar="NxM", help="such as 1000x100")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a cell in a round")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path, help="folder for the tables of the documentation")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    typed = parser.parse_args(arguments)
    on_cpu = typed.device == "cpu"
    fast = [(n, m) for n, m in SIZES if not on_cpu or m**2 * n <= LARGEST_ON_CPU]
    typed.skipped = [] if typed.sizes else [size for size in SIZES if size not in fast]
    typed.sizes = typed.sizes or fast
    name = f"evaluations{'' if on_cpu else '_gpu'}.json"
    typed.out = typed.out or ROOT / "benchmarks/results" / name
    return typed


def _size(text: str) -> Size:
    n, m = map(int, text.split("x"))
    return n, m


def main() -> None:
    """Measure everything, print the tables and write the results."""
    typed = parsed()
    if typed.serve:
        serve(Server())
        return
    torch.set_num_threads(1)
    on_cpu, repeats = typed.device == "cpu", (typed.rounds, typed.seconds)
    machine = f"{platform.machine()}, one thread" if on_cpu else torch.cuda.get_device_name()
    results: Row = {"machine": machine, "torch": torch.__version__, "rounds": typed.rounds}
    results |= {"features": FEATURES, "skipped": [{"n": n, "m": m} for n, m in typed.skipped]}
    results |= {"evaluations": [], "threads": []}
    for size in typed.sizes:
        results["evaluations"].append(measure_size(size, typed.device, *repeats))
        print(" | ".join(_line(results["evaluations"][-1], "ELBO")), flush=True)
    if on_cpu:
        results["threads"] += measure_threads(typed.sizes, *repeats)
    typed.out.parent.mkdir(parents=True, exist_ok=True)
    typed.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    tables = all_tables(results)
    for name, text in tables.items():
        print(f"\n{name or 'evaluations'}\n\n{text}", flush=True)
    if typed.tables is not None:
        write_tables(typed.tables, typed.out.stem, tables)


if __name__ == "__main__":
    main()
