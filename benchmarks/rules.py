"""Measure speed and accuracy of the rules, as ratios within one run.

``python benchmarks/rules.py`` prints three tables and writes them to benchmarks/results/rules.json:
time of a gradient against bMC with 10 samples, time of the sampler against one-example-at-a-time
rejection, and mean squared error of a gradient for each draw.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from scipy.stats import t as student_t
from torch import Tensor

from directgp.likelihoods import Gaussian, Likelihood, Logistic, Poisson, Probit, StudentT
from directgp.likelihoods.base import UnimodalInF
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature, Rule
from directgp.log_expectations.api import resolve_rule

State = tuple[Likelihood, Tensor, Tensor, Tensor]

LIKELIHOODS: dict[str, Likelihood] = {
    "probit": Probit(),
    "logistic": Logistic(),
    "Poisson": Poisson(),
    "Gaussian": Gaussian(noise=0.1).requires_grad_(False),
    "Student's t, ν = 1": StudentT(1.0, 0.3).requires_grad_(False),
    "Student's t, ν = 4": StudentT(4.0, 0.3).requires_grad_(False),
    "Student's t, ν = 30": StudentT(30.0, 0.3).requires_grad_(False),
    "Student's t, outliers": StudentT(4.0, 0.3).requires_grad_(False),
}
OUTLIER = 15.0
"""Fifty noise scales, by which every tenth target is off."""

TIMED: dict[str, Rule] = {
    "bMC-10": BiasedMonteCarlo(10),
    "bMC-100": BiasedMonteCarlo(100),
    "uPS-1": ProductSampling(1),
    "quadrature": Quadrature(),
}

JUDGED: dict[str, Rule] = {
    "uPS-1": ProductSampling(1),
    "uPS-1 score": ProductSampling(1, gradient="score"),
    "bMC-10": BiasedMonteCarlo(10),
    "bMC-100": BiasedMonteCarlo(100),
}


def make_state(name: str, variance: float, n: int, device: str = "cpu") -> State:
    """Return targets drawn from the likelihood at f, and marginals that f is drawn from."""
    likelihood = LIKELIHOODS[name]
    generator = torch.Generator().manual_seed(1)
    likelihood = likelihood.cpu()
    noise = torch.randn(3, n, generator=generator, dtype=torch.float64)
    f = 1 + noise[0] if name == "Poisson" else 1.5 * noise[0]
    expected = likelihood.conditional_mean(f)
    if isinstance(likelihood, StudentT):
        share = torch.special.ndtr(noise[1]).numpy()
        y = f + likelihood.scale * torch.from_numpy(student_t.ppf(share, float(likelihood.df)))
        if "outliers" in name:
            y[::10] += OUTLIER
    elif name == "Poisson":
        y = torch.poisson(expected, generator=generator)
    elif name == "Gaussian":
        y = f + math.sqrt(0.1) * noise[1]
    else:
        y = torch.bernoulli(expected, generator=generator)
    mean = f + math.sqrt(variance) * noise[2]
    spread = torch.full_like(mean, variance)
    return likelihood.to(device), y.to(device), mean.to(device), spread.to(device)


def gradient(rule: Rule, state: State, generator: torch.Generator | None) -> Tensor:
    """Return the slopes in mean and variance, shape (2, n)."""
    likelihood, y, mean, variance = state
    mean, variance = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    value = rule(likelihood, y, mean, variance, generator=generator)
    return torch.stack(torch.autograd.grad(value.sum(), [mean, variance]))


def seconds(task: Callable[[], object], device: str) -> float:
    """Return the time of one call: processor time on a CPU, which other programs affect least."""
    if device == "cpu":
        start = time.process_time()
        task()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    task()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(
    tasks: Mapping[str, Callable[[], object]], rounds: int, device: str
) -> dict[str, list[float]]:
    """Time the tasks in turn after a warm-up."""
    for task in tasks.values():
        task()
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            times[name].append(seconds(task, device))
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> tuple[float, float, float]:
    """Return median and quartiles of the ratio of two tasks within each round."""
    ratios = [a / b for a, b in zip(times[name], times[base], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def reject_one_by_one(state: State, generator: torch.Generator) -> Tensor:
    """Draw from q̃, one example at a time: f ~ q until accepted with p(y given f)/p_max."""
    likelihood, y, mean, variance = state
    assert isinstance(likelihood, UnimodalInF)
    log_max = likelihood.log_max(y)
    draws = torch.empty_like(mean)
    for i in range(len(y)):
        while True:
            noise = torch.randn((), generator=generator, dtype=mean.dtype)
            f = mean[i] + torch.sqrt(variance[i]) * noise
            log_ratio = likelihood.log_prob(y[i], f) - log_max[i]
            uniform = torch.rand((), generator=generator, dtype=mean.dtype)
            if torch.log(uniform) <= log_ratio:
                draws[i] = f
                break
    return draws


def time_rules(n: int, rounds: int, device: str) -> list[dict[str, object]]:
    """Return time ratios of a gradient, and the error of quadrature."""
    rows: list[dict[str, object]] = []
    generator = torch.Generator(device).manual_seed(0)
    for name in ("probit", "logistic", "Poisson"):
        for variance in (0.05, 1.0):
            for dtype in (torch.float64, torch.float32):
                likelihood, y, mean, spread = make_state(name, variance, n, device)
                state = (likelihood, y.to(dtype), mean.to(dtype), spread.to(dtype))
                tasks = {
                    key: partial(gradient, rule, state, generator) for key, rule in TIMED.items()
                }
                times = interleaved(tasks, rounds, device)
                pairs = {
                    "uPS-1 / bMC-10": ratio(times, "uPS-1", "bMC-10"),
                    "uPS-1 / bMC-100": ratio(times, "uPS-1", "bMC-100"),
                    "quadrature / bMC-10": ratio(times, "quadrature", "bMC-10"),
                }
                rows.append(
                    {
                        "likelihood": name,
                        "variance": variance,
                        "dtype": str(dtype).removeprefix("torch."),
                        "bMC-10 ms": 1e3 * statistics.median(times["bMC-10"]),
                        **pairs,
                    }
                )
    return rows


def time_samplers(n: int, some: int, device: str) -> list[dict[str, object]]:
    """Time one-at-a-time rejection, on some of the n examples, against our sampler."""
    rows: list[dict[str, object]] = []
    generator = torch.Generator(device).manual_seed(0)
    slow_generator = torch.Generator().manual_seed(0)
    for name in ("probit", "logistic", "Poisson"):
        state = make_state(name, 1.0, n, device)
        likelihood, y, mean, spread = make_state(name, 1.0, n)
        few = (likelihood, y[:some], mean[:some], spread[:some])
        tasks = {
            "one by one": partial(reject_one_by_one, few, slow_generator),
            "uPS-1": partial(gradient, TIMED["uPS-1"], state, generator),
            "uPS-10": partial(gradient, ProductSampling(10), state, generator),
        }
        times = interleaved(tasks, 15, device)
        slow = [n / some * t for t in times["one by one"]]
        scaled = {**times, "one by one": slow, "ten, one by one": [10 * t for t in slow]}
        rows.append(
            {
                "likelihood": name,
                "uPS-1 ms": 1e3 * statistics.median(times["uPS-1"]),
                "one draw, one by one / uPS-1": ratio(scaled, "one by one", "uPS-1"),
                "ten draws, one by one / uPS-10": ratio(scaled, "ten, one by one", "uPS-10"),
            }
        )
    return rows


def relative_error(rule: Rule, state: State, exact: Tensor, repeats: int) -> list[float]:
    """Return Σ squared error / Σ squared gradient, for the slopes in mean and variance."""
    generator = torch.Generator(state[1].device).manual_seed(2)
    error = torch.zeros(2, dtype=exact.dtype, device=exact.device)
    for _ in range(repeats):
        error += ((gradient(rule, state, generator) - exact) ** 2).sum(1) / repeats
    return (error / (exact**2).sum(1)).tolist()


def judge_rules(n: int, repeats: int, device: str) -> list[dict[str, object]]:
    """Return the relative squared error of one gradient per rule, likelihood and variance."""
    rows: list[dict[str, object]] = []
    for name in LIKELIHOODS:
        for variance in (0.01, 0.1, 1.0, 9.0, 50.0):
            state = make_state(name, variance, n, device)
            exact = gradient(resolve_rule("auto", state[0]), state, None)
            errors = {
                key: relative_error(rule, state, exact, repeats) for key, rule in JUDGED.items()
            }
            rows.append({"likelihood": name, "variance": variance, **errors})
    return rows


def show(title: str, rows: list[dict[str, object]]) -> None:
    """Print rows as a Markdown table."""
    heads = list(rows[0])
    print(f"\n{title}\n\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in rows:
        print("| " + " | ".join(_cell(row[head]) for head in heads) + " |", flush=True)


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        middle, low, high = value
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"
    if isinstance(value, list):
        return "; ".join(f"{number:.1e}" for number in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--examples", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=31)
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "rules.json")
    arguments = parser.parse_args()
    device, n = arguments.device, arguments.examples
    torch.set_num_threads(1)
    tables = {
        "Time of a gradient: median ratio (quartiles)": time_rules(n, arguments.rounds, device),
        "One example at a time": time_samplers(n, min(n, 100), device),
        "Squared error of one gradient, relative: mean; variance": judge_rules(2000, 30, device),
    }
    for title, rows in tables.items():
        show(title, rows)
    where = torch.cuda.get_device_name() if device != "cpu" else f"{platform.machine()}, 1 thread"
    facts = {"device": where, "torch": torch.__version__, "examples": n}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps({**facts, "tables": tables}, indent=1) + "\n")


if __name__ == "__main__":
    main()
