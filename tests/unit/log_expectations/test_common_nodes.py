"""Nodes over q that all examples share: how right they are, and when there are none."""

import math

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import Likelihood, Logistic, NegativeBinomial, Poisson, Probit
from directgp.log_expectations.common_nodes import _step, common_nodes
from directgp.log_expectations.estimate import Estimate
from directgp.log_expectations.gibbs import NATS_OF_FLOAT32, _integrate, gibbs_term
from directgp.log_expectations.nodes import NATS, trapezoid_step
from directgp.log_expectations.own_nodes import sum_apart

LIKELIHOODS: list[Likelihood] = [
    Probit(),
    Logistic(),
    Poisson(link="softplus"),
    NegativeBinomial(2.0),
]


def rows(number: int, widest: float = 1.5) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, means and variances of some examples in float64."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(3, number, generator=generator, dtype=torch.float64)
    return uniform[0].round(), 8 * uniform[1] - 4, widest * uniform[2] + 1e-6


def assert_alike(got: Estimate, want: Estimate, rtol: float) -> None:
    for mine, other in zip(got._columns(), want._columns(), strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=0)


@pytest.mark.parametrize("widest", [1e-3, 0.7, 1.0, 3.0, 40.0])
@pytest.mark.parametrize("nats", [NATS_OF_FLOAT32, NATS])
def test_the_step_is_that_of_the_trapezoid_rule(widest: float, nats: float) -> None:
    width = torch.tensor(widest, dtype=torch.float64)
    expected = trapezoid_step(width, math.pi, nats - NATS) / width
    assert _step(widest, math.pi, nats) == pytest.approx(expected.item(), rel=1e-14)


@pytest.mark.parametrize("nats", [NATS_OF_FLOAT32, NATS])
def test_moments_of_q(nats: float) -> None:
    _, mean, variance = rows(50)
    nodes = common_nodes(mean, variance.sqrt(), math.pi, nats)
    assert nodes is not None
    f = nodes.places(mean, variance.sqrt())
    tolerance = 100 * math.exp(-nats)
    torch.testing.assert_close(nodes.weights @ f, mean, rtol=0, atol=tolerance)
    second = nodes.weights @ (f - mean) ** 2
    torch.testing.assert_close(second, variance, rtol=tolerance, atol=0)
    cosine = torch.cos(mean) * torch.exp(-0.5 * variance)
    torch.testing.assert_close(nodes.weights @ torch.cos(f), cosine, rtol=0, atol=tolerance)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("number", [1, 300, 5000])
def test_the_same_integral_as_with_nodes_of_their_own(likelihood: Likelihood, number: int) -> None:
    """Also for more examples than one block holds."""
    some = rows(number, 0.5)
    assert common_nodes(some[1], some[2].sqrt(), likelihood.strip, NATS) is not None
    with torch.no_grad():
        together = _integrate(likelihood, *some, nats=NATS)
        apart = sum_apart(likelihood, *some, nats=NATS)
    assert_alike(together, apart, rtol=5e-9)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_as_right_as_float32_can_show(likelihood: Likelihood) -> None:
    some = rows(300)
    with torch.no_grad():
        coarse = _integrate(likelihood, *some, nats=NATS_OF_FLOAT32)
        fine = sum_apart(likelihood, *some, nats=40.0)
    assert_alike(coarse, fine, rtol=2e-7)


@pytest.mark.parametrize("variance", [1e6, math.nan, math.inf])
def test_none_where_they_would_be_many(variance: float) -> None:
    mean = torch.zeros(2, dtype=torch.float64)
    deviation = torch.tensor([1.0, variance**0.5], dtype=torch.float64)
    assert common_nodes(mean, deviation, math.pi, NATS) is None


def test_a_wide_example_among_narrow_ones() -> None:
    """It has nodes of its own, and the others are as right as they were."""
    y, mean, variance = rows(40)
    alone = gibbs_term(Probit(), y, mean, variance)
    variance[7] = 1e4
    beside = gibbs_term(Probit(), y, mean, variance)
    others = torch.arange(40) != 7
    torch.testing.assert_close(beside[others], alone[others], rtol=1e-9, atol=0)
    sign = 2 * y[7] - 1
    apart = sum_apart(Probit(), torch.ones(1).double(), sign * mean[7:8], variance[7:8], NATS)
    torch.testing.assert_close(beside[7:8], apart.value, rtol=1e-9, atol=0)
