"""Quadrature nodes: shared by all examples, or grouped by the number needed."""

import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from typing_extensions import override

import directgp
from directgp.errors import NumericalError
from directgp.integration import TrapezoidSums
from directgp.integration.contract import Derivatives, Estimate, FlatExamples
from directgp.integration.gaussian_sums import GaussianSums, _step, common_nodes
from directgp.integration.gibbs import NATS_OF_FLOAT32, gibbs_term
from directgp.integration.nodes import NATS, blocks_by_nodes, trapezoid_step
from directgp.likelihoods import Likelihood, Logistic, NegativeBinomial, Poisson, Probit
from directgp.likelihoods.bernoulli import Bernoulli
from directgp.likelihoods.counts import PoissonSoftplus


def sums_of(likelihood: Likelihood) -> GaussianSums:
    assert isinstance(likelihood.integration, TrapezoidSums)
    return likelihood.integration.gaussian_sums


def assert_partition(needed: Tensor) -> None:
    """Every example is in exactly one block, with as many nodes as it needs."""
    seen = torch.zeros(len(needed), dtype=torch.int64)
    most = needed.max().item() if len(needed) else 0.0
    for number, index in blocks_by_nodes(needed):
        seen[index] += 1
        assert bool((needed[index] <= number).all())
        assert number <= max(16, math.ceil(most))
    assert torch.equal(seen, torch.ones_like(seen))


@given(st.lists(st.floats(1e-3, 4000.0), max_size=200))
@settings(max_examples=100)
def test_blocks_are_a_partition(needed: list[float]) -> None:
    assert_partition(torch.tensor(needed, dtype=torch.float64))


@pytest.mark.parametrize("number", [1, 10, 10_000])
def test_blocks_of_many_alike_and_of_many_kinds(number: int) -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.exp(7 * torch.rand(number, generator=generator, dtype=torch.float64))
    assert_partition(wide)
    assert_partition(torch.full((number,), 30.0, dtype=torch.float64))


def test_more_nodes_than_there_are_serve_the_widest() -> None:
    ((number, index),) = blocks_by_nodes(torch.tensor([1e9], dtype=torch.float64))
    assert number >= 1024 and index.tolist() == [0]


@pytest.mark.parametrize("width", [0.01, 1.0, 30.0])
def test_the_trapezoid_step_is_fine_enough(width: float) -> None:
    """The sum over a Gaussian peak of that width is right to rounding."""
    step = trapezoid_step(torch.tensor([width], dtype=torch.float64), math.pi).item()
    reach = math.ceil(40 * width / step)
    nodes = torch.arange(-reach, reach, dtype=torch.float64) * step + 0.3 * step
    total = step * torch.exp(-0.5 * (nodes / width) ** 2).sum() / (width * math.sqrt(2 * math.pi))
    assert total.item() == pytest.approx(1, abs=1e-11)


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
    for mine, other in zip(got.columns, want.columns, strict=True):
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
    f = nodes.points(mean, variance.sqrt())
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
    assert common_nodes(some[1], some[2].sqrt(), likelihood.integration.strip, NATS) is not None
    sums = sums_of(likelihood)
    with torch.no_grad():
        together = sums.estimate(FlatExamples(likelihood, *some), nats=NATS)
        apart = sums.over_separate_nodes(FlatExamples(likelihood, *some), NATS)
    assert_alike(together, apart, rtol=5e-9)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_as_right_as_float32_can_show(likelihood: Likelihood) -> None:
    some = rows(300)
    sums = sums_of(likelihood)
    with torch.no_grad():
        coarse = sums.estimate(FlatExamples(likelihood, *some), nats=NATS_OF_FLOAT32)
        fine = sums.over_separate_nodes(FlatExamples(likelihood, *some), 40.0)
    assert_alike(coarse, fine, rtol=2e-7)


@pytest.mark.parametrize("variance", [1e6, 1e200, math.nan, math.inf])
def test_none_where_they_would_be_many(variance: float) -> None:
    mean = torch.zeros(2, dtype=torch.float64)
    deviation = torch.tensor([1.0, variance**0.5], dtype=torch.float64)
    assert common_nodes(mean, deviation, math.pi, NATS) is None


def test_none_for_what_is_not_a_number() -> None:
    """So that the nodes of each example's own tell who it is."""
    mean, ones = torch.tensor([0.0, math.nan], dtype=torch.float64), torch.ones(2).double()
    assert common_nodes(mean, ones, math.pi, NATS) is None
    assert common_nodes(ones, 0 * ones, math.pi, NATS) is None
    with pytest.raises(NumericalError, match="met NaN or infinity"):
        gibbs_term(Probit(), ones, mean, ones)


def test_a_variance_near_the_end_of_numbers() -> None:
    """Half of q is on the wrong side: E log Φ ≈ −¼ v."""
    one = torch.ones(1, dtype=torch.float64)
    found = gibbs_term(Probit(), one, 0 * one, 1e160 * one)
    torch.testing.assert_close(found, -0.25 * 1e160 * one, rtol=1e-8, atol=0)


class Steep(Bernoulli):
    """A link with a parameter of its own, as users may write it."""

    def __init__(self) -> None:
        super().__init__()
        self.steepness = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    @override
    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * y - 1) * self.steepness * f)

    @override
    def link_derivatives(self, x: Tensor) -> Derivatives:
        s = self.steepness
        value = torch.nn.functional.logsigmoid(s * x)
        p = torch.sigmoid(-s * x)
        return Derivatives(value, s * p, -s * s * p * (1 - p))

    @override
    def conditional_mean(self, f: Tensor) -> Tensor:
        return torch.sigmoid(self.steepness * f)


def test_a_link_may_have_parameters() -> None:
    steep, (y, mean, variance) = Steep(), rows(20)
    gibbs_term(steep, y, mean, variance).sum().backward()
    found, step = steep.steepness.grad, 1e-5

    def at(steepness: float) -> Tensor:
        with torch.no_grad():
            steep.steepness.fill_(steepness)
            return gibbs_term(steep, y, mean, variance).sum()

    assert found is not None
    difference = (at(1.5 + step) - at(1.5 - step)) / (2 * step)
    torch.testing.assert_close(found, difference, rtol=1e-7, atol=0)


def test_a_wide_example_among_narrow_ones() -> None:
    """It has nodes of its own, and the others are as right as they were."""
    y, mean, variance = rows(40)
    alone = gibbs_term(Probit(), y, mean, variance)
    variance[7] = 1e4
    beside = gibbs_term(Probit(), y, mean, variance)
    others = torch.arange(40) != 7
    torch.testing.assert_close(beside[others], alone[others], rtol=1e-9, atol=0)
    sign = 2 * y[7] - 1
    apart = sums_of(Probit()).over_separate_nodes(
        FlatExamples(Probit(), torch.ones(1).double(), sign * mean[7:8], variance[7:8]), NATS
    )
    torch.testing.assert_close(beside[7:8], apart.value, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("y", "mean", "deviation"),
    [(0.0, 47.0, 5e3), (0.0, -9.0, 189.0), (3.0, 30.0, 600.0), (1000.0, 1005.0, 40.0)],
)
def test_wide_posteriors_of_softplus_counts(
    y: float, mean: float, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a sum with steps of 0.05, where p bends on a scale of 1: few nodes are enough."""
    rows = [torch.tensor([each], dtype=torch.float64) for each in (y, mean, deviation**2)]
    likelihood, seen = Poisson(link="softplus"), list[int]()

    def counted(self: PoissonSoftplus, y: Tensor, f: Tensor) -> Derivatives:
        seen.append(len(f))
        return original(self, y, f)

    original = PoissonSoftplus.derivatives
    monkeypatch.setattr(PoissonSoftplus, "derivatives", counted)
    found = float(directgp.log_expectation(likelihood, rows[0], rows[1], rows[2]))
    step = 0.05
    f = np.arange(mean - 9 * deviation, min(mean + 9 * deviation, y + 800), step)
    rate = np.logaddexp(0, f)
    log_p = np.where(y > 0, y * np.log(np.maximum(rate, 1e-300)), 0) - rate - math.lgamma(y + 1)
    log_q = -0.5 * ((f - mean) / deviation) ** 2 - math.log(math.sqrt(2 * math.pi) * deviation)
    wanted = scipy.special.logsumexp(log_p + log_q) + math.log(step)
    assert found == pytest.approx(wanted, rel=1e-10)
    assert max(seen) < 300
