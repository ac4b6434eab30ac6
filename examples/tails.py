"""log E[p(y|f)] in the tails: the standard estimate against directgp, in both precisions.

The standard estimate averages p(y|f) over 20 Gauss-Hermite nodes of q(f) and takes the log. For
targets far from the mean of q it is first inaccurate, then infinite. So is its gradient.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

import directgp
from directgp.likelihoods import Likelihood, Logistic, Poisson, Probit, StudentT
from directgp.numerics.gaussian import gauss_hermite

PICTURE = Path(__file__).resolve().parents[1] / "build/examples/tails.png"
LogProb = Callable[[Any, Any], Any]
"""y and f as mpmath numbers → log p(y|f), for the truth."""


def log_poisson(y: Any, f: Any) -> Any:
    """Compute y f − e^f − log y!."""
    return y * f - mp.exp(f) - mp.loggamma(y + 1)


def log_probit(y: Any, f: Any) -> Any:
    """Compute log Φ(f) for y = 1."""
    return mp.log(mp.erfc(-f / mp.sqrt(2)) / 2)


def log_logistic(y: Any, f: Any) -> Any:
    """Compute −log(1 + e^−f) for y = 1."""
    return -mp.log1p(mp.exp(-f))


def log_student_t(y: Any, f: Any) -> Any:
    """Compute the log density of y with ν = 4 and scale 0.3."""
    base = mp.loggamma(2.5) - mp.loggamma(2) - mp.log(4 * mp.pi * 0.3**2) / 2
    return base - 2.5 * mp.log1p(((y - f) / 0.3) ** 2 / 4)


CASES: list[tuple[str, Likelihood, LogProb, float, float, float]] = [
    ("Poisson", Poisson(), log_poisson, 300.0, 0.5, 0.3),
    ("Poisson", Poisson(), log_poisson, 5000.0, 2.0, 1.0),
    ("probit", Probit(), log_probit, 1.0, -20.0, 0.5),
    ("logistic", Logistic(), log_logistic, 1.0, -120.0, 4.0),
    ("logistic", Logistic(), log_logistic, 1.0, 40.0, 4.0),
    ("Student's t", StudentT(df=4.0, scale=0.3), log_student_t, 60.0, 0.0, 100.0),
]


def exact(log_prob: LogProb, y: float, mean: float, variance: float) -> tuple[float, float]:
    """Return log E[p(y|f)] and its slope in the mean, E[p(y|f)(f − μ)/v] / E[p(y|f)], by mpmath."""
    with mp.workdps(30):
        deviation = mp.sqrt(variance)
        ends = [mean + deviation * i / 8 for i in range(-160, 161)]

        def height(f: Any) -> Any:
            return log_prob(y, f) + mp.log(mp.npdf(f, mean, deviation))

        top = max(height(f) for f in ends)
        ends = [f for f in ends if height(f) > top - 250]

        def mass_and_slope(f: Any) -> Any:
            return mp.exp(height(f) - top) * mp.mpc(1, (f - mean) / variance)

        total = mp.quad(mass_and_slope, ends, method="gauss-legendre", maxdegree=3)
        return float(mp.log(total.real) + top), float(total.imag / total.real)


def usual(likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the standard estimate: exponentiate, average, take the log."""
    nodes, log_weights = gauss_hermite(20, mean.dtype)
    f = mean + torch.sqrt(variance) * nodes[:, None]
    return torch.log((torch.exp(log_weights)[:, None] * likelihood.log_prob(y, f).exp()).sum(0))


def describe(value: Tensor, mean: Tensor) -> str:
    """Return the value and its gradient in the mean."""
    (slope,) = torch.autograd.grad(value.sum(), mean)
    return f"{value.item():.5g} ({slope.item():.5g})"


def compare() -> Table:
    """Return two rows for each case: values, and gradients in the mean of q."""
    table = Table(title=r"log E\[p(y|f)] (and its gradient in the mean of q)", box=SIMPLE_HEAD)
    for head in ("likelihood", "y", "q(f)", "bits", "usual recipe", "directgp", "truth"):
        table.add_column(head, no_wrap=True)
    for name, likelihood, log_prob, y, mean, variance in CASES:
        value, slope = exact(log_prob, y, mean, variance)
        truth = f"{value:.5g} ({slope:.5g})"
        for dtype in (torch.float32, torch.float64):
            target, m, v = (torch.tensor([x], dtype=dtype) for x in (y, mean, variance))
            recipe = describe(usual(likelihood, target, m.requires_grad_(), v), m)
            ours = describe(directgp.log_expectation(likelihood, target, m, v), m)
            bits = f"{8 * dtype.itemsize}"
            table.add_row(name, f"{y:g}", f"N({mean:g}, {variance:g})", bits, recipe, ours, truth)
    return table


def draw(points: int) -> Figure:
    """Draw Poisson counts up to 320 with mean 1.9, where the standard estimate fails."""
    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).subplots()
    y = torch.arange(0.0, 321.0)
    for dtype, colour, width in ((torch.float32, "#F0C27B", 6), (torch.float64, "#D55E00", 2)):
        value = usual(Poisson(), y.to(dtype), *torch.tensor([[0.5], [0.3]], dtype=dtype))
        bits, end = 8 * dtype.itemsize, int(y[value.isfinite()].max())
        label = f"usual recipe, {bits} bits" + (f": −∞ beyond {end}" if end < 320 else "")
        axes.plot(y, value, color=colour, linewidth=width, label=label)
    ours = directgp.log_expectation(Poisson(), y, torch.full((321,), 0.5), torch.full((321,), 0.3))
    axes.plot(y, ours, color="#0072B2", linewidth=2, label="directgp, 32 bits")
    at = np.linspace(0, 320, points).round()
    truth = [exact(log_poisson, each, 0.5, 0.3)[0] for each in at.tolist()]
    axes.plot(at, truth, "o", color="black", markersize=4, label="truth")
    axes.set(xlabel="count y, under q(f) = N(0.5, 0.3)", ylabel="log E[p(y|f)]")
    axes.legend(frameon=False, loc="lower left")
    return figure


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer points of truth")
    points = 5 if parser.parse_args().quick else 17
    Console().print(compare())
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(points).savefig(PICTURE, dpi=100)
    print(f"The picture is {PICTURE}.")


if __name__ == "__main__":
    main()
