"""Measure the error of every rule against mpmath.

``python -m benchmarks.accuracy`` prints the worst relative error of log E_q[p(y given f)] and of
its gradient, for each likelihood, rule and dtype. It takes a few minutes.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rules import show
from directgp.errors import UnsupportedError
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.log_expectations import (
    BiasedMonteCarlo,
    ClosedForm,
    ProductSampling,
    Quadrature,
    Rule,
)
from tests.reference.log_expectation import log_expectation

Array = NDArray[np.float64]

MEANS = (-30.0, -12.0, -5.0, -1.5, -0.3, 0.7, 3.0, 8.0, 30.0)
VARIANCES = (1e-8, 1e-4, 1e-2, 1.0, 10.0, 100.0)
COUNTS = (0.0, 1.0, 5.0, 40.0, 300.0, 5000.0)
LABELS = (0.0, 1.0)
DTYPES = (torch.float64, torch.float32)

RULES: dict[str, Rule] = {
    "closed form": ClosedForm(),
    "quadrature": Quadrature(),
    "bMC-10": BiasedMonteCarlo(10),
    "smooth-bMC-10": BiasedMonteCarlo(10, nu=1e-4),
    "uPS-1": ProductSampling(1),
    "uPS-1 as published": ProductSampling(1, sampler="paper", gradient="score"),
}


@dataclass(frozen=True)
class Case:
    """A likelihood with targets from certain to very improbable."""

    name: str
    """Its name in `tests.reference.log_expectation`."""

    likelihood: Likelihood
    targets: tuple[float, ...]
    parameters: tuple[str, ...] = ()
    residuals: bool = False
    """Whether the targets are distances from the mean."""

    def grid(self) -> Array:
        """Return rows (y, mean, variance) of float32 numbers, exact in both dtypes."""
        rows = [
            (mean + target if self.residuals else target, mean, variance)
            for target, mean, variance in product(self.targets, MEANS, VARIANCES)
        ]
        return np.array(rows, dtype=np.float32).astype(np.float64)


CASES = (
    Case("gaussian", Gaussian(0.1), (0.01, 0.3, 3.0, 30.0, 3162.0), ("noise",), residuals=True),
    Case("probit", Probit(), LABELS),
    Case("logistic", Logistic(), LABELS),
    Case("poisson_exp", Poisson(link="exp"), COUNTS),
    Case("poisson_softplus", Poisson(link="softplus"), COUNTS),
    Case("negative_binomial", NegativeBinomial(dispersion=2.0), COUNTS, ("dispersion",)),
    Case(
        "student_t",
        StudentT(df=4.0, scale=0.3),
        (0.01, 0.3, 3.0, 30.0, 3e3),
        ("df", "scale"),
        residuals=True,
    ),
)


def truth_of(name: str, theta: dict[str, float], grid: Array) -> Array:
    """Return rows (value, slope in the mean, slope in the variance)."""
    exact = (log_expectation(name, *row, **theta) for row in grid.tolist())
    return np.array([[float(number) for number in row] for row in exact])


def truths() -> list[Array]:
    """Return `truth_of` on the grid of each case, computed on all processors."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        tasks = []
        for case in CASES:
            theta = {key: getattr(case.likelihood, key).item() for key in case.parameters}
            grid = case.grid()
            parts = np.array_split(grid, max(1, len(grid) // 16))
            tasks.append([pool.submit(truth_of, case.name, theta, part) for part in parts])
        return [np.concatenate([task.result() for task in row]) for row in tasks]


def measure(case: Case, rule: str, dtype: torch.dtype, truth: Array) -> dict[str, object]:
    """Return the accuracy of one rule on one likelihood; the draws are seeded."""
    y, mean, variance = torch.tensor(case.grid().T, dtype=dtype)
    mean, variance = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    value = RULES[rule](case.likelihood, y, mean, variance, generator=generator)
    slopes = torch.autograd.grad(value.sum(), [mean, variance])
    found = torch.stack([value.detach(), *slopes], 1).double().numpy()
    normal = np.abs(truth) >= torch.finfo(dtype).tiny
    errors = np.abs(found - truth) / np.where(normal, np.abs(truth), np.inf)
    worst = (f"{error:.1e}" for error in errors.max(0))
    return {
        "likelihood": case.name,
        "rule": rule,
        "dtype": str(dtype).removeprefix("torch."),
        **dict(zip(("value", "slope in mean", "slope in variance"), worst, strict=True)),
        "not finite": int((~np.isfinite(found)).sum()),
        "slopes of 0 where the truth is not": int((normal & (found == 0))[:, 1:].sum()),
    }


def main() -> None:
    """Print a row for each likelihood, for each rule that supports it, and for each dtype."""
    rows = []
    for case, truth in zip(CASES, truths(), strict=True):
        for rule, dtype in product(RULES, DTYPES):
            try:
                rows.append(measure(case, rule, dtype, truth))
            except UnsupportedError:
                continue
    points = sum(len(case.grid()) for case in CASES)
    show(f"Worst relative error at {points} points; Monte Carlo rules by one draw", rows)


if __name__ == "__main__":
    main()
