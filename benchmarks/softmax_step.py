"""Measure one training step of a softmax classifier: value and gradient of both objectives.

``python -m benchmarks.softmax_step`` measures on the CPU with one thread, ``--device cuda`` on a
GPU. Models have one function per class, all with own kernels and inducing inputs, and all rows are
one batch. GPyTorch draws 10 samples of f, its default. Times are medians over rounds; each round
runs all tasks in a new random order, and ratios are within a round.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
from gpytorch.settings import num_likelihood_samples
from torch import Tensor

from benchmarks import softmax_svgp
from benchmarks.models import facts, now, write
from benchmarks.peers.rounds import Times, times_per_step
from benchmarks.peers.spread import Spread, ratios
from benchmarks.peers.tables import markdown, spread_text
from directgp.likelihoods import Softmax
from directgp.objectives import GibbsLoss, LogLoss, Objective
from directgp.posteriors import SparsePosterior
from directgp.training.data import Data, Model, Randomness
from directgp.training.graphs import RecordedWork
from directgp.training.problems import FreeProblem

SAMPLES = 10
LIBRARIES = ("directgp", "GPyTorch")
OBJECTIVES = {"ELBO": VariationalELBO, "log loss": PredictiveLogLikelihood}
"""Objectives of GPyTorch; its log loss is that of the mean of the sampled probabilities."""

Step = Callable[[], Tensor]
"""Computes the loss and its gradient, and returns the loss without waiting for the device."""


@dataclass(frozen=True)
class Size:
    """Rows, classes, inducing inputs of each function, and features."""

    n: int = 2000
    classes: int = 10
    inducing: int = 100
    features: int = 8


def data(size: Size, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return inputs, and labels that are the largest of smooth functions with noise."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(size.n, size.features, generator=generator, dtype=dtype)
    directions = torch.randn(size.features, size.classes, generator=generator, dtype=dtype)
    f = torch.sin(X @ directions) + 0.3 * torch.randn(size.n, size.classes, generator=generator)
    return X.to(device), f.argmax(1).to(device)


def gpytorch_step(size: Size, objective: str, device: str, dtype: torch.dtype) -> Step:
    """Return a step of GPyTorch, which ends with the gradient in every parameter."""
    X, y = data(size, device, dtype)
    torch.manual_seed(0)
    model, likelihood = softmax_svgp.starting_model(X, size.classes, size.inducing, seed=0)
    loss = OBJECTIVES[objective](likelihood, model, num_data=len(y))

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        with num_likelihood_samples(SAMPLES):
            value: Tensor = -loss(model(X), y)
        value.backward()
        return value.detach()

    return step


def directgp_step(size: Size, objective: str, device: str, dtype: torch.dtype) -> Step:
    """Return a step of directgp, from the same model; its integrals are exact."""
    X, y = data(size, device, dtype)
    one = SparsePosterior.from_data(
        X,
        num_inducing=size.inducing,
        kernel="matern52",
        ard=True,
        mean="constant",
        generator=torch.Generator().manual_seed(0),
    )
    model = Model(one.with_latents(size.classes), Softmax(size.classes))
    loss = GibbsLoss() if objective == "ELBO" else LogLoss()
    random = Randomness(torch.Generator(device).manual_seed(0), frozen=False)
    problem = FreeProblem(model, Data(X, y.to(X)), Objective(loss, len(y), 1.0), random)

    if problem.recordable():
        problem.prepare()
        graph = RecordedWork(problem, partial(problem.value_and_gradient, 0))

    def step() -> Tensor:
        problem.prepare()
        value, _ = graph.replay() if problem.recordable() else problem.value_and_gradient(0)
        return value

    return step


STEPS = {"directgp": directgp_step, "GPyTorch": gpytorch_step}
"""Each library's function for a step."""


def timed(step: Step, device: str) -> Callable[[int], float]:
    """Return a function that takes a number of steps and returns their seconds."""

    def take(number: int) -> float:
        since = now(device)
        for _ in range(number):
            value = step()
        if not torch.isfinite(value):
            raise ArithmeticError(f"The loss of a step must be finite. Got {float(value)!r}.")
        return now(device) - since

    return take


def measure_steps(
    size: Size, device: str, dtype: torch.dtype, rounds: int, seconds: float
) -> Times:
    """Return the seconds of a step of each library and objective in each round."""
    tasks = {
        f"{library}; {objective}": timed(make(size, objective, device, dtype), device)
        for library, make in STEPS.items()
        for objective in OBJECTIVES
    }
    return times_per_step(tasks, rounds, seconds)


def table(times: Times) -> str:
    """Return milliseconds of a step, and ratios to directgp where it was measured."""
    heads = ["step", *(f"{name}, ms" for name in LIBRARIES), "GPyTorch / directgp"]
    lines = []
    for objective in OBJECTIVES:
        found = [times.get(f"{name}; {objective}") for name in LIBRARIES]
        own, peer = found
        both = None if own is None or peer is None else asdict(ratios(peer, own))
        each = [None if one is None else asdict(Spread.of([1e3 * s for s in one])) for one in found]
        lines.append([objective, *map(spread_text, each), spread_text(both)])
    return markdown(heads, lines)


def main() -> None:
    """Measure, print the table and write the times."""
    parser = argparse.ArgumentParser(prog="benchmarks.softmax_step", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    for name, value in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a task in a round")
    parser.add_argument("--out", type=Path, default=Path("build/softmax_step.json"))
    typed = parser.parse_args()
    torch.set_num_threads(1)
    size = Size(**{name: getattr(typed, name) for name in asdict(Size())})
    dtype = getattr(torch, typed.dtype)
    times = measure_steps(size, typed.device, dtype, typed.rounds, typed.seconds)
    about = {**facts(typed.device), "dtype": typed.dtype, "size": asdict(size)}
    write(typed.out, {**about, "seconds of a step": times})
    print(table(times), flush=True)


if __name__ == "__main__":
    main()
