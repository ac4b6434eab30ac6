"""Identities of log E_q[p] for any q: Jensen's inequality, probabilities that sum to one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import directgp
from directgp.likelihoods import Likelihood
from directgp.likelihoods.bernoulli import Bernoulli
from directgp.likelihoods.counts import AtLeastOne, CountLikelihood
from directgp.log_expectations import Quadrature
from tests.properties.checks import ask
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, Point, columns

drawn_marginals = st.lists(
    st.tuples(st.floats(-30, 30), st.floats(-8, 2).map(lambda power: 10.0**power)),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("row", LIKELIHOODS, ids=lambda row: row.name)
@given(marginals=drawn_marginals)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_jensen(row: LikelihoodRow, marginals: list[tuple[float, float]]) -> None:
    """log E_q[p] ≥ E_q[log p], up to the tolerance of the rules."""
    arguments = columns([Point(y, *marginal) for y in row.targets for marginal in marginals])
    log_mean = directgp.log_expectation(row.make(), *arguments).detach()
    mean_log = directgp.expected_log_prob(row.make(), *arguments).detach()
    assert torch.isfinite(log_mean).all()
    assert bool((log_mean >= mean_log - 1e-9 * mean_log.abs()).all())


MARGINALS = [(-2.0, 1.0), (1.0, 0.3), (3.0, 0.05), (0.4, 1e-8)]


def support(likelihood: Likelihood) -> torch.Tensor:
    """Every y that matters for `MARGINALS`."""
    return torch.arange(2 if isinstance(likelihood, Bernoulli) else 3000)


DISCRETE = [row for row in LIKELIHOODS if row.discrete]


@pytest.mark.parametrize("row", DISCRETE, ids=lambda row: row.name)
def test_probabilities_sum_to_one(row: LikelihoodRow) -> None:
    likelihood = row.make()
    y = support(likelihood)
    for mean, variance in MARGINALS:
        _, *place = columns([Point(0.0, mean, variance)] * len(y))
        log_p = Quadrature()(likelihood, y, *place)
        assert torch.logsumexp(log_p, 0).abs().item() < 1e-11


def test_control_a_missing_outcome_is_noticed() -> None:
    likelihood = DISCRETE[0].make()
    log_p = Quadrature()(likelihood, torch.tensor([1]), *(torch.ones(1).double(),) * 2)
    assert torch.logsumexp(log_p, 0).abs().item() > 1e-3


RARE = [(-5.0, 0.3), (-8.0, 1.0), (-30.0, 1.0), (-12.0, 1e-8), (-6.0, 10.0)]
"""Where counts are nearly always 0, which is where rules ask for the event of another count."""

COUNTS = [row for row in DISCRETE if isinstance(row.make(), CountLikelihood)]


@pytest.mark.parametrize("row", COUNTS, ids=lambda row: row.name)
def test_at_least_one_is_the_complement_of_zero(row: LikelihoodRow) -> None:
    """P(y ≥ 1) + P(y = 0) = 1, and the gradients of the two are opposite."""
    counts = row.make()
    assert isinstance(counts, CountLikelihood)
    arguments = columns([Point(0.0, *marginal) for marginal in RARE])
    some = ask(Quadrature(), AtLeastOne(counts), *arguments)
    none = ask(Quadrature(), counts, *arguments)
    total = torch.logaddexp(some.value, none.value)
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-12)
    for mine, other in zip(some[1:], none[1:], strict=True):
        balance = torch.exp(some.value - none.value) * mine
        torch.testing.assert_close(balance, -other, rtol=1e-9, atol=0)


@pytest.mark.parametrize("row", COUNTS, ids=lambda row: row.name)
def test_at_least_one_given_f(row: LikelihoodRow) -> None:
    counts = row.make()
    assert isinstance(counts, CountLikelihood)
    event = AtLeastOne(counts)
    f = torch.linspace(-30, 5, 36, dtype=torch.float64, requires_grad=True)
    zero = torch.zeros_like(f)
    kernel = event.log_kernel(zero, f)
    expected = torch.log(-torch.expm1(counts.log_prob(zero, f)))
    torch.testing.assert_close(kernel, expected)
    (first,) = torch.autograd.grad(kernel.sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), f)
    for got, want in zip(event.derivatives(zero, f), (kernel, first, second), strict=True):
        torch.testing.assert_close(got.detach(), want.detach(), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(event.conditional_mean(f), kernel.exp())
    variance = kernel.exp() * counts.log_prob(zero, f).exp()
    torch.testing.assert_close(event.conditional_variance(f), variance, rtol=1e-6, atol=1e-12)
    assert event.take(torch.tensor([0, 1])).derivatives(zero[:2], f[:2]).value.shape == (2,)
