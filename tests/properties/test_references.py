"""The references, against mpmath's adaptive quadrature and against differences."""

import mpmath
import pytest

from tests.properties.checks import relative_error
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, marked, ordinary
from tests.properties.test_accuracy import named
from tests.reference import log_expectation as reference


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_against_adaptive_quadrature(row: LikelihoodRow) -> None:
    """The definition, ∫ q(f) g(f) df, given to `mpmath.quad` as it stands."""
    y, mean, variance = point = ordinary(row)[0]
    log_prob = reference.bind(row.name, y, **row.theta)
    with mpmath.workdps(15):
        deviation = mpmath.sqrt(variance)
        ends = [mean + deviation * i for i in range(-10, 11, 2)]
        mean_p, mean_log = (
            mpmath.quad(lambda f, g=g: mpmath.npdf(f, mean, deviation) * g(log_prob(f)), ends)
            for g in (mpmath.exp, lambda value: value)
        )
        assert relative_error(row.truth(point).value, mpmath.log(mean_p)) < 1e-12
        assert relative_error(row.gibbs_truth(point).value, mean_log) < 1e-12


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_slopes_against_differences(row: LikelihoodRow) -> None:
    step = 2.0**-30
    y, mean, variance = ordinary(row)[1]
    expectations = [reference.log_expectation]
    if row.name == "logistic":  # one will do: the slopes of both come from the same three lines
        expectations.append(reference.expected_log_prob)
    for expectation in expectations:
        truth = expectation(row.name, y, mean, variance, **row.theta)
        for slope, (dm, dv) in zip(truth[1:], ((step, 0.0), (0.0, step)), strict=True):
            above, below = (
                expectation(row.name, y, mean + s * dm, variance + s * dv, **row.theta).value
                for s in (1, -1)
            )
            assert relative_error(slope, (above - below) / (2 * mpmath.mpf(step))) < 1e-9
