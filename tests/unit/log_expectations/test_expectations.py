"""The two public expectations: E_q[log p] against mpmath, gradients by finite differences."""

import pytest
import torch
from torch import Tensor

import directgp
from directgp.likelihoods import Poisson
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature, Rule
from tests.properties.checks import Answer, misses
from tests.properties.tables import (
    DETERMINISTIC,
    LIKELIHOODS,
    REGIMES,
    LikelihoodRow,
    Point,
    RuleRow,
    columns,
    ordinary,
    pairs,
    points,
    single,
)
from tests.properties.test_accuracy import named

PLACES = [REGIMES[i] for i in (0, 4, 7, 8)]


def gibbs(row: LikelihoodRow, some: list[Point], dtype: torch.dtype) -> Answer:
    y, mean, variance = columns(some, dtype)
    marginals = mean.requires_grad_(), variance.requires_grad_()
    value = directgp.expected_log_prob(row.make(), y, *marginals)
    return Answer(value.detach(), *torch.autograd.grad(value.sum(), marginals))


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_expected_log_prob(row: LikelihoodRow) -> None:
    # The first two targets suffice: E_q[log p] is linear in a count, and quadratic in a real y.
    some = [Point(y, place.mean, place.variance) for place in PLACES for y in row.targets[:2]]
    truths = [row.gibbs_truth(point) for point in some]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        assert misses(gibbs(row, some, dtype), some, truths, tolerance) == []


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_expected_log_prob_of_batches(row: LikelihoodRow) -> None:
    arguments = [column.reshape(2, -1) for column in columns(points(row)[:12])]
    together = directgp.expected_log_prob(row.make(), *arguments)
    for i in range(2):
        alone = directgp.expected_log_prob(row.make(), *(column[i] for column in arguments))
        torch.testing.assert_close(together[i], alone, rtol=1e-9, atol=0)


def marginals(row: LikelihoodRow) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, variance = columns(ordinary(row))
    return y, mean.requires_grad_(), variance.requires_grad_()


@pytest.mark.parametrize(("row", "rule"), pairs(DETERMINISTIC), ids=named)
def test_gradcheck_of_rules(row: LikelihoodRow, rule: RuleRow) -> None:
    y, *some = marginals(row)
    likelihood = row.make()
    assert torch.autograd.gradcheck(
        lambda mean, variance, *_: rule.rule(likelihood, y, mean, variance),
        (*some, *likelihood.parameters()),
        eps=1e-6,
        atol=1e-5,
    )


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_gradcheck_of_expected_log_prob(row: LikelihoodRow) -> None:
    y, *some = marginals(row)
    likelihood = row.make()
    assert torch.autograd.gradcheck(
        lambda mean, variance, *_: directgp.expected_log_prob(likelihood, y, mean, variance),
        (*some, *likelihood.parameters()),
        eps=1e-6,
        atol=1e-5,
    )


def test_auto_is_the_closed_form_where_there_is_one() -> None:
    for row in LIKELIHOODS:
        arguments = columns(ordinary(row))
        named_rule = "closed_form" if row.name in ("gaussian", "probit") else "quadrature"
        auto = directgp.log_expectation(row.make(), *arguments)
        assert torch.equal(auto, directgp.log_expectation(row.make(), *arguments, named_rule))
        exact = directgp.log_expectation(row.make(), *arguments, Quadrature())
        torch.testing.assert_close(auto, exact, rtol=1e-9, atol=0)


def test_a_large_count() -> None:
    """y = 300 under q = N(0.5, 0.3): −50.6, where Gauss–Hermite nodes centred on q say −986."""
    row = LIKELIHOODS[3]
    point = Point(300.0, *single(0.5, 0.3))
    value = directgp.log_expectation(row.make(), *columns([point]))
    assert value.item() == pytest.approx(float(row.truth(point).value), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("quadrature", Quadrature()),
        ("bmc", BiasedMonteCarlo(10)),
        ("smooth_bmc", BiasedMonteCarlo(10, nu=1e-4)),
        ("ups", ProductSampling(1)),
    ],
)
def test_rules_by_name(name: str, rule: Rule) -> None:
    y, mean, variance = (torch.tensor([x], dtype=torch.float64) for x in (3.0, 0.5, 0.8))
    by_name, by_rule = (
        directgp.log_expectation(
            Poisson(), y, mean, variance, rule=r, generator=torch.Generator().manual_seed(4)
        )
        for r in (name, rule)
    )
    assert torch.equal(by_name, by_rule)
