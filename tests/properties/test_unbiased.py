"""The mean of many gradients of an unbiased rule is the gradient of log E_q[p]."""

import pytest
import torch

from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature, Rule
from tests.properties.checks import gradients, improbable, z_scores
from tests.properties.tables import (
    LIKELIHOODS,
    UNBIASED,
    LikelihoodRow,
    RuleRow,
    columns,
    marked,
    ordinary,
    pairs,
    points,
)
from tests.properties.test_accuracy import named

REPEATS = 1500
TESTS = sum(len(ordinary(row)) * (2 + len(row.theta)) for row, _ in pairs(UNBIASED))


def bias(rule: Rule, row: LikelihoodRow, factor: float = 1.0, repeats: int = REPEATS) -> list[str]:
    """What speaks against `factor` times the rule's gradient being unbiased."""
    some = ordinary(row)
    truth = gradients(Quadrature(), row, some)[0]
    z = z_scores(factor * gradients(rule, row, some, repeats, seed=1), truth)
    return [found for kind in z.unbind(-1) for found in improbable(kind, TESTS)]


@pytest.mark.parametrize(("row", "rule"), pairs(UNBIASED), ids=named)
@pytest.mark.slow_for("_score", "_pathwise")
def test_gradients_are_unbiased(row: LikelihoodRow, rule: RuleRow) -> None:
    assert bias(rule.rule, row) == []


@pytest.mark.slow
@pytest.mark.parametrize(("row", "rule"), pairs(UNBIASED), ids=named)
def test_gradients_are_unbiased_in_very_many_draws(row: LikelihoodRow, rule: RuleRow) -> None:
    assert bias(rule.rule, row, repeats=40_000) == []


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_control_two_percent_of_bias_are_found(row: LikelihoodRow) -> None:
    assert bias(ProductSampling(), row, factor=1.02)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_control_biased_monte_carlo_is_found(row: LikelihoodRow) -> None:
    assert bias(BiasedMonteCarlo(num_samples=2), row)


def test_the_mixed_gradient_of_a_gaussian_likelihood_does_not_vary() -> None:
    row = LIKELIHOODS[0]
    some = points(row)
    draws = gradients(ProductSampling(), row, some, repeats=20)[..., :2]
    truth = gradients(Quadrature(), row, some)[0, :, :2]
    assert bool((draws.var(0) <= 1e-20 * truth.square()).all())
    torch.testing.assert_close(draws.mean(0), truth, rtol=1e-9, atol=0)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_the_value_can_be_exact(row: LikelihoodRow) -> None:
    arguments = columns(points(row))
    exact = Quadrature()(row.make(), *arguments)
    asked = ProductSampling(exact_value=True)(row.make(), *arguments)
    torch.testing.assert_close(asked, exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_the_value_is_near_when_nobody_asks(row: LikelihoodRow) -> None:
    arguments = columns(ordinary(row))
    exact = Quadrature()(row.make(), *arguments)
    torch.testing.assert_close(ProductSampling()(row.make(), *arguments), exact, rtol=0, atol=1e-2)
