"""Points where a naive rule hangs or returns NaN."""

from itertools import product
from math import isnan

import pytest
import torch

from directgp.errors import DirectGPError
from directgp.likelihoods.counts import CountLikelihood
from directgp.log_expectations import ProductSampling, Quadrature
from tests.properties.checks import ask, misses
from tests.properties.tables import (
    LIKELIHOODS,
    ONE_OF_EACH,
    RULES,
    LikelihoodRow,
    Point,
    RuleRow,
    columns,
    marked,
    pairs,
    points,
    single,
)
from tests.properties.test_accuracy import named

pytestmark = pytest.mark.timeout(60)

LABELLED = [pair for pair in pairs(RULES) if pair[0].name in ("probit", "logistic")]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=named)
@pytest.mark.parametrize(("row", "rule"), LABELLED, ids=named)
def test_certain_labels_have_finite_values_and_gradients(
    row: LikelihoodRow, rule: RuleRow, dtype: torch.dtype
) -> None:
    """ℓ′(μ) underflows to 0, so that a bracket for the mode has no width."""
    certain = [(y, (2 * y - 1) * mean) for y in (0.0, 1.0) for mean in (13.0, 38.6, 300.0, 1e4)]
    some = [Point(y, mean, v) for y, mean in certain for v in (1e-8, 1.0, 100.0)]
    answer = ask(rule.rule, row.make(), *columns(some, dtype))
    for column in answer:
        assert torch.isfinite(column).all()
    # smooth-bMC adds ν to a likelihood of 1.
    assert bool((answer.value <= 0.02).all())


@pytest.mark.parametrize(("row", "rule"), marked(pairs(RULES)), ids=named)
def test_everything_is_finite(row: LikelihoodRow, rule: RuleRow) -> None:
    """From certain to absurd, no value and no gradient is infinite or NaN, even in float32."""
    answer = ask(rule.rule, row.make(), *columns(points(row), torch.float32))
    for column in answer:
        assert torch.isfinite(column).all()


@pytest.mark.parametrize(("row", "rule"), marked(pairs(ONE_OF_EACH)), ids=named)
@pytest.mark.slow_for("ups_paper")
def test_nan_and_infinity_end_in_an_error_or_are_passed_on(
    row: LikelihoodRow, rule: RuleRow
) -> None:
    """Rules do not check their arguments; they must end all the same, and NaN is no number."""
    for place, bad in product(range(3), (torch.nan, torch.inf)):
        arguments = columns(points(row)[:4])
        arguments[place][1] = bad
        try:
            answer = ask(rule.rule, row.make(), *arguments)
        except DirectGPError:
            continue
        finite = all(bool(torch.isfinite(column[1])) for column in answer)
        assert not (finite and isnan(bad)), Point._fields[place]


REACH = [
    *[Point(0.0, -9.0, 1e3), Point(0.0, *single(50.0, 1e-8))],
    *[Point(1e6, 50.0, 1e3), Point(1e6, *single(-50.0, 1e-8))],
]
COUNTS = [row for row in LIKELIHOODS if isinstance(row.make(), CountLikelihood)]


@pytest.mark.parametrize("row", marked(COUNTS), ids=named)
def test_the_ends_of_the_promised_range(row: LikelihoodRow) -> None:
    """Counts to 10⁶, |μ| to 50, v to 10³: right to 1e-8."""
    truths = [row.truth(point) for point in REACH]
    assert misses(ask(Quadrature(), row.make(), *columns(REACH)), REACH, truths, 1e-8) == []


@pytest.mark.parametrize("row", marked(COUNTS), ids=named)
def test_draws_at_the_ends_of_the_promised_range(row: LikelihoodRow) -> None:
    for column in ask(ProductSampling(num_samples=100), row.make(), *columns(REACH)):
        assert torch.isfinite(column).all()


def test_a_batch_of_nothing_but_certain_zeros() -> None:
    """They are integrated through their complement, and leave nothing for the usual way."""
    for row in COUNTS:
        some = [Point(0.0, -20.0, 0.25)] * 3
        truths = [row.truth(point) for point in some]
        assert misses(ask(Quadrature(), row.make(), *columns(some)), some, truths, 1e-9) == []
