"""Measure the error of each rule against mpmath."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import torch
from mpmath.calculus.quadrature import GaussLegendre
from numpy.typing import NDArray

from directgp.diagnostics.bounds import text_table
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
from directgp.likelihoods.poisson import PoissonExp, PoissonSoftplus
from directgp.log_expectations import (
    BiasedMonteCarlo,
    ClosedForm,
    ProductSampling,
    Quadrature,
    Rule,
)

# Plain definitions of the densities in mpmath and plain sums, sharing no code with the rules: slow
# and obvious. The gradient is E_q̃[ℓ′] in the mean and ½E_q̃[ℓ″ + ℓ′²] in the variance.


_DIGITS = 40
_DROP = 140
"""How far, in nats, the log density falls to the ends of the sum."""


class Exact(NamedTuple):
    """log E_q[p], its derivative in the mean and in the variance, as mpmath numbers."""

    value: Any
    mean_slope: Any
    variance_slope: Any


Density = Callable[[Any], tuple[Any, Any, Any]]
"""f → ℓ, ℓ′, ℓ″."""


def exact_log_expectation(likelihood: Likelihood, y: float, mean: float, variance: float) -> Exact:
    """log E_q[p(y given f)] for q(f) = N(mean, variance), and its two derivatives."""
    with mp.workdps(_DIGITS):
        y, mean, variance = mp.mpf(y), mp.mpf(mean), mp.mpf(variance)
        match likelihood:
            case Gaussian():
                return _gaussian(y, mean, variance, mp.mpf(likelihood.noise.item()))
            case Probit():
                return _probit(y, mean, variance)
            case StudentT():
                df, scale = mp.mpf(likelihood.df.item()), mp.mpf(likelihood.scale.item())
                return _piecewise(_student_t(y, df, scale), y, mean, variance, scale)
            case _:
                return _trapezoid(_density(likelihood, y), mean, variance)


def _gaussian(y: Any, mean: Any, variance: Any, noise: Any) -> Exact:
    total, residual = variance + noise, y - mean
    value = -mp.log(2 * mp.pi * total) / 2 - residual**2 / (2 * total)
    return Exact(value, residual / total, (residual**2 / total - 1) / (2 * total))


def _probit(y: Any, mean: Any, variance: Any) -> Exact:
    root = mp.sqrt(1 + variance)
    x = (2 * y - 1) * mean / root
    # The smaller tail, so that no digit of 1 − Φ is lost however near Φ is to 1.
    below, above = mp.erfc(-x / mp.sqrt(2)) / 2, mp.erfc(x / mp.sqrt(2)) / 2
    value = mp.log(below) if x < 0 else mp.log1p(-above)
    slope = mp.npdf(x) / below * (2 * y - 1) / root
    return Exact(value, slope, -slope * mean / (2 * (1 + variance)))


def _density(likelihood: Likelihood, y: Any) -> Density:
    """ℓ, ℓ′, ℓ″ of a log-concave likelihood without a closed form."""
    match likelihood:
        case Logistic():
            return _logistic(y)
        case PoissonExp(log_exposure=None):
            return _poisson_exp(y)
        case PoissonSoftplus(log_exposure=None):
            return _poisson_softplus(y)
        case NegativeBinomial(log_exposure=None):
            return _negative_binomial(y, mp.mpf(likelihood.dispersion.item()))
        case _:
            name = type(likelihood).__name__
            raise UnsupportedError(f"No exact reference for {name} as given (no exposure).")


def _logistic(y: Any) -> Density:
    sign = 2 * y - 1

    def density(f: Any) -> tuple[Any, Any, Any]:
        odds = mp.exp(-sign * f)
        miss = odds / (1 + odds)
        return -mp.log1p(odds), sign * miss, -miss / (1 + odds)

    return density


def _poisson_exp(y: Any) -> Density:
    base = -mp.loggamma(y + 1)

    def density(f: Any) -> tuple[Any, Any, Any]:
        rate = mp.exp(f)
        return y * f - rate + base, y - rate, -rate

    return density


def _poisson_softplus(y: Any) -> Density:
    base = -mp.loggamma(y + 1)

    def density(f: Any) -> tuple[Any, Any, Any]:
        odds = mp.exp(f)
        rate, slope = mp.log1p(odds), odds / (1 + odds)
        bend = slope / (1 + odds)
        log_prob = y * mp.log(rate) - rate + base
        ratio = slope / rate
        return log_prob, y * ratio - slope, y * (bend / rate - ratio**2) - bend

    return density


def _negative_binomial(y: Any, r: Any) -> Density:
    base = mp.loggamma(y + r) - mp.loggamma(r) - mp.loggamma(y + 1)

    def density(f: Any) -> tuple[Any, Any, Any]:
        share = mp.exp(f) / (r + mp.exp(f))
        rest = r / (r + mp.exp(f))
        log_prob = base + r * mp.log(rest) + y * (f - mp.log(r + mp.exp(f)))
        return log_prob, y * rest - r * share, -(y + r) * share * rest

    return density


def _student_t(y: Any, df: Any, scale: Any) -> Density:
    base = mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2) - mp.log(df * mp.pi * scale**2) / 2
    width = df * scale**2

    def density(f: Any) -> tuple[Any, Any, Any]:
        residual = y - f
        total = width + residual**2
        log_prob = base - (df + 1) / 2 * mp.log1p(residual**2 / width)
        bend = (df + 1) * (residual**2 - width) / total**2
        return log_prob, (df + 1) * residual / total, bend

    return density


def _trapezoid(density: Density, mean: Any, variance: Any) -> Exact:
    """Sum over equal steps between the ends of the peak: exponentially accurate there."""
    mode = _mode(density, mean, variance)
    bend = 1 / variance - density(mode)[2]
    top = _height(density, mean, variance, mode)
    left = _end(density, mean, variance, mode, top, -1)
    right = _end(density, mean, variance, mode, top, +1)
    step = min(mp.mpf("0.45") / mp.sqrt(bend), mp.mpf("0.15"))
    nodes = [left + step * i for i in range(int((right - left) / step) + 2)]
    return _moments([(f, step) for f in nodes], density, mean, variance)


def _piecewise(density: Density, y: Any, mean: Any, variance: Any, scale: Any) -> Exact:
    """Gauss–Legendre on pieces that are fine around the mean of q and around y."""
    deviation = mp.sqrt(variance)
    ends = (mean - 17 * deviation, mean + 17 * deviation)
    cuts = [mean + deviation * i for i in range(-17, 18)]
    for i in range(-4, 60):
        cuts += [y - scale * mp.mpf(2) ** i, y + scale * mp.mpf(2) ** i]
    cuts = sorted({*(c for c in [*cuts, y] if ends[0] <= c <= ends[1]), *ends})
    rule = [(mp.mpf(x), mp.mpf(w)) for x, w in _legendre()]
    nodes = [
        ((b + a) / 2 + (b - a) / 2 * x, (b - a) / 2 * w) for a, b in pairwise(cuts) for x, w in rule
    ]
    return _moments(nodes, density, mean, variance)


def _legendre() -> list[tuple[Any, Any]]:
    nodes: list[tuple[Any, Any]] = GaussLegendre(mp.mp).calc_nodes(4, mp.mp.prec)
    return nodes


def _moments(nodes: list[tuple[Any, Any]], density: Density, mean: Any, variance: Any) -> Exact:
    """log Σ w·q·p, and Σ w·q·p·(ℓ′, ½(ℓ″ + ℓ′²)) divided by Σ w·q·p."""
    total = first_sum = second_sum = mp.mpf(0)
    for f, weight in nodes:
        value, first, second = density(f)
        prior = weight * mp.npdf(f, mean, mp.sqrt(variance))
        mass = prior * mp.exp(value)
        total += mass
        first_sum += mass * first
        second_sum += mass * (second + first**2)
    return Exact(mp.log(total), first_sum / total, second_sum / total / 2)


def _height(density: Density, mean: Any, variance: Any, f: Any) -> Any:
    return density(f)[0] - (f - mean) ** 2 / (2 * variance)


def _mode(density: Density, mean: Any, variance: Any) -> Any:
    """Bisection on h′ between μ and μ + v·ℓ′(μ), to a part in 10⁶ of the deviation."""
    pull = variance * density(mean)[1]
    low, high = sorted([mean, mean + pull])
    while high - low > mp.mpf(10) ** -6 * min(mp.sqrt(variance), 1):
        middle = (low + high) / 2
        if density(middle)[1] - (middle - mean) / variance > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _end(density: Density, mean: Any, variance: Any, mode: Any, top: Any, side: int) -> Any:
    """Where h, tilted by 2 for the growth of ℓ′², has fallen by `_DROP` on one side."""
    near, far = mp.mpf(0), mp.sqrt(variance) / 1000
    while top - _height(density, mean, variance, mode + side * far) < _DROP + 2 * far:
        near, far = far, 2 * far
    while far - near > far / 100:
        middle = (near + far) / 2
        if top - _height(density, mean, variance, mode + side * middle) < _DROP + 2 * middle:
            near = middle
        else:
            far = middle
    return mode + side * far


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
