"""The checks of the property tests."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import NormalDist
from typing import NamedTuple

import mpmath
import torch
from mpmath import mpf
from scipy.stats import chi2
from torch import Tensor

from directgp.likelihoods import Likelihood
from directgp.log_expectations import Rule
from tests.properties.tables import LikelihoodRow, Point, columns
from tests.reference.log_expectation import Truth


class Answer(NamedTuple):
    """Value and gradient of a rule, one of each per example."""

    value: Tensor
    mean_slope: Tensor
    variance_slope: Tensor

    def scaled(self, factor: float) -> "Answer":
        """The same with gradients off by a factor: a wrong answer to try the checks on."""
        return Answer(self.value, factor * self.mean_slope, factor * self.variance_slope)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ask(
    rule: Rule,
    likelihood: Likelihood,
    y: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    seed: int = 0,
    step: int = 0,
) -> Answer:
    """Value and both gradients of a rule."""
    mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
    value = rule(likelihood, y, mean, variance, generator=seeded(seed), step=step)
    slopes = torch.autograd.grad(value.sum(), (mean, variance))
    return Answer(value.detach(), *slopes)


def gradients(
    rule: Rule, row: LikelihoodRow, points: Sequence[Point], repeats: int = 1, seed: int = 0
) -> Tensor:
    """Independent gradients in mean, variance and raw parameters, (repeats, points, kinds)."""
    y, *marginals = (column.repeat(repeats) for column in columns(list(points)))
    likelihood = row.make(torch.ones_like(y))
    wanted = [column.requires_grad_() for column in marginals] + list(likelihood.parameters())
    value = rule(likelihood, y, *marginals, generator=seeded(seed))
    slopes = torch.autograd.grad(value.sum(), wanted)
    return torch.stack(slopes, -1).reshape(repeats, len(points), len(wanted))


def relative_error(got: float, truth: mpf, smallest: float = 0.0) -> float:
    """|got − truth| / |truth|; a truth below the smallest normal number need only be met nearly."""
    if not mpmath.isfinite(got):
        return float("inf")
    if abs(truth) < smallest:
        return 0.0 if abs(got) <= 2 * smallest else float("inf")
    return float(abs((mpmath.mpf(got) - truth) / truth))


def misses(
    answer: Answer,
    points: Sequence[Point],
    truths: Sequence[Truth],
    tolerance: float,
    absolute: float = 0.0,
) -> list[str]:
    """Where a number of the answer is off by more than the tolerance, in words."""
    smallest = torch.finfo(answer.value.dtype).tiny
    found = []
    for name, column, exact in zip(Answer._fields, answer, zip(*truths, strict=True), strict=True):
        for point, got, truth in zip(points, column.tolist(), exact, strict=True):
            error = relative_error(got, truth, smallest)
            if not (error <= tolerance or abs(got - truth) <= absolute):
                found.append(f"{name} at {point}: {got!r}, not {mpmath.nstr(truth, 17)}")
    return found


def z_scores(samples: Tensor, truth: Tensor) -> Tensor:
    """Of the means over the first axis, in standard errors; rounding of the truth is forgiven."""
    error = samples.std(0) / math.sqrt(len(samples))
    gap = samples.mean(0) - truth
    # A parameter that a target does not depend on has a gradient of 0 in every sample.
    return torch.where((gap == 0) & (error == 0), 0.0, gap / (error + 1e-10 * truth.abs()))


def improbable(z: Tensor, tests: int, alpha: float = 1e-3) -> list[str]:
    """What speaks against independent standard normal scores: one too large, or too much in all.

    Each score is judged at level alpha / tests, so that `tests` scores together err at alpha.
    """
    z = z.reshape(-1)
    limit = NormalDist().inv_cdf(1 - alpha / (2 * tests))
    worst, pooled = z.abs().max().item(), chi2.sf(z.square().sum().item(), len(z))
    found = [] if worst <= limit else [f"|z| = {worst:.2f} > {limit:.2f} in {len(z)} scores"]
    return found if pooled >= alpha * len(z) / tests else [*found, f"pooled p = {pooled:.1e}"]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Torch's global default dtype, for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
