"""Student's t over many decades of residual, variance and ν, against sums that are much finer."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from directgp.integration.gibbs import gibbs_term
from directgp.likelihoods import StudentT
from directgp.log_expectations import Quadrature, Rule
from tests.properties.checks import Answer, seeded

NUMBER = 400
DF = [0.1, 0.5, 1.0, 4.0, 20.0, 100.0, 1000.0]


class Sample(NamedTuple):
    """Residuals and variances in units of the scale."""

    residual: Tensor
    variance: Tensor


def decades(low: float, high: float, seed: int) -> Tensor:
    """Random numbers whose logs are uniform."""
    share = torch.rand(NUMBER, generator=seeded(seed), dtype=torch.float64)
    return 10 ** (low + (high - low) * share)


def sample() -> Sample:
    """Residuals of any size, and of some standard deviations of the prediction or of q alone."""
    variance = decades(-12, 8, 0)
    kinds = [
        decades(-3, 8, 1),
        torch.sqrt(1 + variance) * decades(-1, 1.3, 2),
        torch.sqrt(variance) * decades(-1, 1.5, 3),
    ]
    return Sample(torch.cat(kinds), variance.repeat(3))


def fine_log_loss(df: float, some: Sample) -> Answer:
    """log Σ_k h·N(r; 0, v + e^−t)·π(t) over equal steps in t, far finer and wider than needed."""
    half, square, v = 0.5 * df, some.residual**2, some.variance
    turn = -torch.log(torch.stack([square, v, torch.ones_like(v)]).amax(0))
    lowest = turn - (46 + half) / (0.5 + half)
    highest = min(math.sqrt(100 / half), math.log1p(50 / half + 9))
    coarse = torch.lerp(lowest, lowest.new_tensor(highest), grid(4000))
    # The coarse sum finds where the terms are not negligible.
    near = log_terms(half, square, v, coarse)
    near = near > near.amax(0) - 45
    step = (highest - lowest) / 3999
    first = lowest + (near.to(torch.int8).argmax(0) - 1) * step
    last = highest - (near.flip(0).to(torch.int8).argmax(0) - 1) * step
    t = torch.lerp(first, last, grid(1500))
    terms = log_terms(half, square, v, t)
    weights, p = torch.softmax(terms, 0), 1 / (v + torch.exp(-t))
    constant = half * math.log(half) - math.lgamma(half) - 0.5 * math.log(2 * math.pi)
    value = torch.logsumexp(terms, 0) + torch.log(t[1] - t[0]) + constant
    once, twice = (weights * p).sum(0), (weights * p * p).sum(0)
    return Answer(value, some.residual * once, 0.5 * (square * twice - once))


def grid(number: int) -> Tensor:
    return torch.linspace(0, 1, number, dtype=torch.float64)[:, None]


def log_terms(half: float, square: Tensor, v: Tensor, t: Tensor) -> Tensor:
    total = v + torch.exp(-t)
    return half * (t - torch.exp(t)) - 0.5 * (square / total + torch.log(total))


def fine_elbo(df: float, some: Sample) -> Answer:
    """E[log p] by Frullani's integral over log t, with equal steps far down its slow left tail."""
    size = df + some.residual**2 + some.variance
    c, m, v = df / size, some.residual**2 / size, some.variance / size
    step = 0.15
    log_t = torch.arange(-38.0, math.log(50 / float(c.min())), step, dtype=torch.float64)
    t = torch.exp(log_t)[:, None]
    p = 1 / (1 + 2 * t * v)
    decay = torch.exp(-t * (c + m * p)) * torch.sqrt(p)
    power = 0.5 * (df + 1)
    mean_log = torch.log(size / df) + step * (torch.exp(-t) - decay).sum(0)
    constant = math.lgamma(power) - math.lgamma(0.5 * df) - 0.5 * math.log(math.pi * df)
    by_square = step * (t * p * decay).sum(0) / size
    bend = step * ((t * p) ** 2 * decay).sum(0) / size
    return Answer(
        constant - power * mean_log,
        2 * power * some.residual * by_square,
        -power * (by_square - 2 * m * bend),
    )


def answer(rule: Rule | None, df: float, some: Sample) -> Answer:
    """Of the rule, or of the ELBO's term."""
    likelihood = StudentT(df=df, scale=1.0).requires_grad_(False)
    mean = torch.zeros_like(some.residual).requires_grad_()
    variance = some.variance.clone().requires_grad_()
    term = gibbs_term if rule is None else rule
    value = term(likelihood, some.residual, mean, variance)
    return Answer(value.detach(), *torch.autograd.grad(value.sum(), (mean, variance)))


def worst_errors(found: Answer, truth: Answer, some: Sample) -> list[float]:
    """Of the value; of the slopes relative to the sizes of their terms, which may cancel."""
    curvature = truth.mean_slope / some.residual
    scales = [
        1 + 1e-6 * truth.value.abs(),
        truth.mean_slope,
        torch.maximum(curvature, truth.mean_slope**2),
    ]
    columns = zip(found, truth, scales, strict=True)
    return [float(((got - want).abs() / scale).max()) for got, want, scale in columns]


@pytest.mark.parametrize("df", DF)
def test_log_loss(df: float) -> None:
    some = sample()
    errors = worst_errors(answer(Quadrature(), df, some), fine_log_loss(df, some), some)
    assert max(errors) < 5e-10, errors


@pytest.mark.parametrize("df", DF)
def test_elbo(df: float) -> None:
    some = sample()
    errors = worst_errors(answer(None, df, some), fine_elbo(df, some), some)
    assert max(errors) < 5e-10, errors


def test_control_too_few_nodes_are_found() -> None:
    some = sample()
    errors = worst_errors(
        answer(Quadrature(num_nodes=20), 4.0, some), fine_log_loss(4.0, some), some
    )
    assert min(errors) > 1e-8, errors


def test_degrees_of_freedom_for_each_example() -> None:
    """Nodes common to all examples serve the smallest and the largest ν."""
    df = torch.tensor([0.2, 3.0, 500.0]).double().repeat(4)
    y = torch.tensor([0.1, 2.0, 50.0, 1e5]).double().repeat_interleave(3)
    mean, variance = torch.zeros_like(y), torch.full_like(y, 0.7)
    together = Quadrature()(StudentT(df=df, scale=1.0), y, mean, variance)
    apart = [
        Quadrature()(StudentT(df=float(nu), scale=1.0), *(x[None] for x in row))
        for nu, *row in zip(df, y, mean, variance, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(apart), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", [Quadrature(), None], ids=["log_loss", "elbo"])
@pytest.mark.parametrize("unit", [1e-150, 1e-8, 1e8, 1e149])
def test_units_do_not_matter(rule: Rule | None, unit: float) -> None:
    """No product of small or large numbers leaves the range of float64."""
    some = Sample(*torch.tensor([[0.5, 1.0, 30.0], [1e-9, 0.7, 1.0]]).double())
    plain = answer(rule, 4.0, some)
    term = gibbs_term if rule is None else rule
    likelihood = StudentT(df=4.0, scale=unit).requires_grad_(False)
    mean = torch.zeros_like(some.residual).requires_grad_()
    variance = (unit**2 * some.variance).requires_grad_()
    value = term(likelihood, unit * some.residual, mean, variance)
    by_mean, by_variance = torch.autograd.grad(value.sum(), (mean, variance))
    found = Answer(value.detach() + math.log(unit), unit * by_mean, unit**2 * by_variance)
    for got, want in zip(found, plain, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=0)
