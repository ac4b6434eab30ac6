"""How far each rule is from the truth, for every likelihood, from certain to absurd targets."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import torch
from numpy.typing import NDArray

from directgp.diagnostics.exact import exact_log_expectation
from directgp.diagnostics.text_table import text_table
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

Array = NDArray[np.float64]

MEANS = (-30.0, -12.0, -5.0, -1.5, -0.3, 0.7, 3.0, 8.0, 30.0)
VARIANCES = (1e-8, 1e-4, 1e-2, 1.0, 10.0, 100.0)

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
    """A likelihood with targets from certain to absurd."""

    name: str
    likelihood: Likelihood
    targets: tuple[float, ...]
    residuals: bool = False
    """Whether the targets are distances from the mean."""


_COUNTS = (0.0, 1.0, 5.0, 40.0, 300.0, 5000.0)

CASES = (
    Case("Gaussian", Gaussian(noise=0.1), (0.01, 0.3, 3.0, 30.0, 3162.0), residuals=True),
    Case("probit", Probit(), (0.0, 1.0)),
    Case("logistic", Logistic(), (0.0, 1.0)),
    Case("Poisson, exp", Poisson(link="exp"), _COUNTS),
    Case("Poisson, softplus", Poisson(link="softplus"), _COUNTS),
    Case("negative binomial", NegativeBinomial(dispersion=2.0), _COUNTS),
    Case("Student's t", StudentT(df=4.0, scale=0.3), (0.01, 0.3, 3.0, 30.0, 3e3), residuals=True),
)


@dataclass(frozen=True)
class Accuracy:
    """The worst of one rule on one likelihood, in one dtype, over the whole grid."""

    likelihood: str
    rule: str
    dtype: str
    errors: tuple[float, float, float]
    """Largest |estimate − truth| / |truth| of value, slope in the mean, slope in the variance."""

    not_finite: int
    """Estimates that are NaN or infinite."""

    vanished: int
    """Slopes of exactly 0 where the truth is a normal number of the dtype."""


def grid_of(
    case: Case, means: Sequence[float] = MEANS, variances: Sequence[float] = VARIANCES
) -> Array:
    """Rows (y, mean, variance), numbers of float32 so that both dtypes have one truth."""
    rows = [
        (mean + target if case.residuals else target, mean, variance)
        for target in case.targets
        for mean in means
        for variance in variances
    ]
    return np.array(rows, dtype=np.float32).astype(np.float64)


def truth_of(case: Case, grid: Array) -> Array:
    """Rows (value, slope in the mean, slope in the variance) by `exact_log_expectation`."""
    exact = (exact_log_expectation(case.likelihood, *row) for row in grid.tolist())
    return np.array([[float(number) for number in row] for row in exact])


def truths_of(cases: Sequence[Case], grids: Sequence[Array]) -> list[Array]:
    """`truth_of` for several cases, on all processors."""
    pieces = [np.array_split(grid, max(1, len(grid) // 16)) for grid in grids]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        tasks = [
            [pool.submit(truth_of, case, piece) for piece in parts]
            for case, parts in zip(cases, pieces, strict=True)
        ]
        return [np.concatenate([task.result() for task in row]) for row in tasks]


def measure(case: Case, rule_name: str, dtype: torch.dtype, grid: Array, truth: Array) -> Accuracy:
    """The accuracy of one rule on one likelihood; the randomness of rules is seeded."""
    y, mean, variance = torch.tensor(grid.T, dtype=dtype)
    mean, variance = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    value = RULES[rule_name](case.likelihood, y, mean, variance, generator=generator)
    slopes = torch.autograd.grad(value.sum(), [mean, variance])
    found = torch.stack([value.detach(), *slopes], 1).double().numpy()
    normal = np.abs(truth) >= torch.finfo(dtype).tiny
    errors = np.abs(found - truth) / np.where(normal, np.abs(truth), np.inf)
    value_error, mean_error, variance_error = errors.max(0).tolist()
    return Accuracy(
        case.name,
        rule_name,
        str(dtype).removeprefix("torch."),
        (value_error, mean_error, variance_error),
        int((~np.isfinite(found)).sum()),
        int((normal & (found == 0))[:, 1:].sum()),
    )


def measure_all(cases: Sequence[Case], grids: Sequence[Array]) -> list[Accuracy]:
    """Every rule that serves each likelihood, in float64 and float32."""
    rows = []
    for case, grid, truth in zip(cases, grids, truths_of(cases, grids), strict=True):
        for rule_name in RULES:
            for dtype in (torch.float64, torch.float32):
                try:
                    rows.append(measure(case, rule_name, dtype, grid, truth))
                except UnsupportedError:
                    break
    return rows


def format_accuracy(rows: Sequence[Accuracy]) -> str:
    """A line for each likelihood, rule and dtype."""
    head = ("likelihood", "rule", "dtype", "value", "∂mean", "∂variance", "not finite", "vanished")
    body = [
        (
            row.likelihood,
            row.rule,
            row.dtype,
            *(f"{error:.1e}" for error in row.errors),
            str(row.not_finite),
            str(row.vanished),
        )
        for row in rows
    ]
    return text_table([head, *body])
