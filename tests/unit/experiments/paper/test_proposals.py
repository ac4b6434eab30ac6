"""Proposals of the samplers, counted and computed."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from directgp.experiments.paper import studies
from directgp.experiments.paper.studies import (
    SampledExamples,
    expected_proposals,
    our_proposals,
    seen_proposals,
)
from directgp.likelihoods import Poisson, Probit
from directgp.log_expectations.api import log_expectation
from directgp.log_expectations.quadrature import peak_of
from directgp.log_expectations.rule import FlatExamples
from directgp.log_expectations.samplers import build_hat, propose_from_hat

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def a_state(n: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """Counts, means and variances, a few of the counts unlikely."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 9, (n,), generator=generator).double()
    mean = torch.log(y + 1) + 0.8 * torch.randn(n, generator=generator, dtype=torch.float64)
    return y, mean, 0.1 + torch.rand(n, generator=generator, dtype=torch.float64)


def expected_at(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    log_z = log_expectation(Poisson(), y, mean, variance)
    return expected_proposals(SampledExamples.of(Poisson(), y, mean, variance), log_z)


def test_expected_proposals_by_integration() -> None:
    y, mean, variance = a_state(8)
    found = expected_at(y, mean, variance)
    for i in range(8):
        target, q = float(y[i]), stats.norm(float(mean[i]), float(variance[i]) ** 0.5)

        def product(f: float, target: float = target, q: stats.norm = q) -> float:
            return float(q.pdf(f) * stats.poisson.pmf(target, np.exp(f)))

        mass = integrate.quad(product, q.mean() - 9, q.mean() + 9, limit=200)[0]
        assert float(found[i]) == pytest.approx(stats.poisson.pmf(target, target) / mass, rel=1e-6)


def test_a_coin_needs_two() -> None:
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    log_z = log_expectation(Probit(), one, zero, 3 * one)
    assert float(
        expected_proposals(SampledExamples.of(Probit(), one, zero, 3 * one), log_z)
    ) == pytest.approx(2.0)


@pytest.mark.parametrize("widen", [True, False])
def test_what_is_seen_is_what_theory_says(widen: bool) -> None:
    state = a_state()
    expected = expected_at(*state)
    generator = torch.Generator().manual_seed(1)
    found = seen_proposals(SampledExamples.of(Poisson(), *state), expected, generator, widen=widen)
    assert found.value == pytest.approx(float(expected.mean()), abs=4 * found.error)
    assert 0 < found.error < 0.05 * found.value


def test_the_error_is_that_of_counting() -> None:
    state = a_state(5)
    expected = expected_at(*state)
    generator = torch.Generator().manual_seed(2)
    found = [
        seen_proposals(SampledExamples.of(Poisson(), *state), expected, generator, widen=True)
        for _ in range(100)
    ]
    spread = np.std([each.value for each in found], ddof=1)
    assert np.mean([each.error for each in found]) == pytest.approx(spread, rel=0.3)


def test_an_example_that_is_hardly_served_counts_as_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(studies, "_ROUNDS", 2)
    y, mean, variance = torch.tensor([60.0, -1.0, 0.2], dtype=torch.float64).split(1)
    expected = expected_at(y, mean, variance)
    generator = torch.Generator().manual_seed(3)
    examples = SampledExamples.of(Poisson(), y, mean, variance)
    found = seen_proposals(examples, expected, generator, widen=True)
    assert found.value == float(expected[0]) > 1e6 and found.error == 0.0


def test_our_proposals_are_those_of_the_hat() -> None:
    y, mean, variance = a_state()
    log_z = log_expectation(Poisson(), y, mean, variance)
    found = our_proposals(SampledExamples.of(Poisson(), y, mean, variance), log_z)
    examples = FlatExamples(Poisson(), y, mean, variance)
    hat = build_hat(examples, peak_of(*examples))
    generator = torch.Generator().manual_seed(4)
    _, hits = propose_from_hat(examples, hat, 20_000, generator)
    assert found.value == pytest.approx(float((1 / hits.double().mean(0)).mean()), rel=2e-3)
    assert 1.1 < found.value < 1.2


def test_a_sampler_without_rejection_needs_one() -> None:
    one = torch.ones(3).double()
    assert our_proposals(SampledExamples.of(Probit(), one, one, one), one).value == 1.0
