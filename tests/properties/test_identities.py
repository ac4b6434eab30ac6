"""Identities of log E_q[p] for any q: Jensen's inequality, probabilities that sum to one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import directgp
from directgp.likelihoods.counts import CountLikelihood
from directgp.log_expectations import Quadrature
from tests.properties.checks import ask, misses
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, Point, columns, marked, single

drawn_marginals = st.lists(
    st.tuples(st.floats(-30, 30), st.floats(-8, 2).map(lambda power: 10.0**power)),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=lambda row: row.name)
@given(marginals=drawn_marginals)
@settings(max_examples=20, derandomize=True, deadline=None)
@pytest.mark.slow_for("negative_binomial", "softplus", "zero_inflated")
def test_jensen(row: LikelihoodRow, marginals: list[tuple[float, float]]) -> None:
    """log E_q[p] ≥ E_q[log p], up to the tolerance of the rules."""
    arguments = columns([Point(y, *marginal) for y in row.targets for marginal in marginals])
    log_mean = directgp.log_expectation(row.make(), *arguments).detach()
    mean_log = directgp.expected_log_prob(row.make(), *arguments).detach()
    assert torch.isfinite(log_mean).all()
    tolerance = row.absolute + 1e-9 * mean_log.abs()
    assert bool((log_mean >= mean_log - tolerance).all())


MARGINALS = [(-2.0, 1.0), (1.0, 0.3), (3.0, 0.05), (0.4, 1e-8)]


def support(row: LikelihoodRow) -> torch.Tensor:
    """Every y that matters for `MARGINALS`."""
    return torch.arange({"label": 2, "class": 4}.get(row.target_kind, 3000))


DISCRETE = [row for row in LIKELIHOODS if row.discrete]


@pytest.mark.parametrize("row", DISCRETE, ids=lambda row: row.name)
def test_probabilities_sum_to_one(row: LikelihoodRow) -> None:
    likelihood = row.make()
    y = support(row)
    for mean, variance in MARGINALS:
        _, *place = columns([Point(0.0, mean, variance)] * len(y))
        log_p = Quadrature()(likelihood, y, *place)
        assert torch.logsumexp(log_p, 0).abs().item() < 1e-11


def test_control_a_missing_outcome_is_noticed() -> None:
    likelihood = DISCRETE[0].make()
    log_p = Quadrature()(likelihood, torch.tensor([1]), *(torch.ones(1).double(),) * 2)
    assert torch.logsumexp(log_p, 0).abs().item() > 1e-3


RARE = [(-5.0, 0.3), (-8.0, 1.0), (-30.0, 1.0), (-12.0, 1e-8), (-6.0, 10.0)]
"""Where counts are nearly always 0; a loss may be as small as 1e-13."""

COUNTS = [row for row in DISCRETE if isinstance(row.make(), CountLikelihood)]


@pytest.mark.parametrize("row", marked(COUNTS), ids=lambda row: row.name)
def test_zeros_that_are_nearly_certain_keep_their_digits(row: LikelihoodRow) -> None:
    some = [Point(0.0, *single(*marginal)) for marginal in RARE]
    answer = ask(Quadrature(), row.make(), *columns(some))
    assert misses(answer, some, [row.truth(point) for point in some], 1e-9) == []
