"""Every deterministic rule × likelihood × regime against mpmath: value and both gradients."""

from typing import Any

import pytest
import torch

from directgp.likelihoods import Likelihood
from directgp.log_expectations import ClosedForm, Quadrature
from tests.properties.checks import Answer, ask, misses, relative_error
from tests.properties.tables import (
    DETERMINISTIC,
    LIKELIHOODS,
    LikelihoodRow,
    Point,
    RuleRow,
    columns,
    marked,
    ordinary,
    pairs,
    points,
    single,
)
from tests.reference import log_expectation as reference

FLOAT64, FLOAT32 = torch.float64, torch.float32


def named(value: Any) -> str | None:
    """Ids of rows and dtypes."""
    return getattr(value, "name", None) or (str(value) if isinstance(value, torch.dtype) else None)


COSTLY = {"beta", "ordinal", "tobit"}
"""Likelihoods whose references take seconds: a quarter of the points, and all in a slow test."""


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32], ids=named)
@pytest.mark.parametrize(("row", "rule"), pairs(DETERMINISTIC), ids=named)
@pytest.mark.slow_for("com_poisson", "ordinal")
def test_value_and_gradients(row: LikelihoodRow, rule: RuleRow, dtype: torch.dtype) -> None:
    assert_accurate(row, rule, dtype, 4 if row.name in COSTLY else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "rule"), [pair for pair in pairs(DETERMINISTIC) if pair[0].name in COSTLY], ids=named
)
def test_value_and_gradients_at_every_point(row: LikelihoodRow, rule: RuleRow) -> None:
    assert_accurate(row, rule, FLOAT64, 1)


def assert_accurate(row: LikelihoodRow, rule: RuleRow, dtype: torch.dtype, every: int) -> None:
    some = points(row, rule.max_variance)[::every]
    answer = ask(rule.rule, row.make(), *columns(some, dtype))
    assert all(column.dtype == dtype for column in answer)
    tolerance = rule.tolerance if dtype == FLOAT64 else 1e-4
    absolute = 0.0 if isinstance(rule.rule, ClosedForm) else row.absolute
    truths = [row.truth(point) for point in some]
    assert misses(answer, some, truths, tolerance, absolute) == []


@pytest.mark.parametrize("spoil", ["scale", "zero", "nan"])
def test_control_a_wrong_answer_is_found(spoil: str) -> None:
    row = LIKELIHOODS[0]
    some = points(row)
    truths = [row.truth(point) for point in some]
    answer = ask(ClosedForm(), row.make(), *columns(some))
    assert misses(answer, some, truths, 1e-9) == []
    spoilt = {
        "scale": answer.scaled(1 + 1e-8),
        "zero": answer.scaled(0.0),
        "nan": Answer(answer.value + torch.nan, *answer[1:]),
    }
    assert misses(spoilt[spoil], some, truths, 1e-9)


PARAMETER_POINTS = [Point(*single(*point)) for point in [(3.0, 0.5, 1.0), (2.0, -4.0, 0.01)]]
ABSURD = [Point(*single(*point)) for point in [(400.0, 2.0, 10.0), (0.0, -12.0, 1e-4)]]


WITH_PARAMETERS = [pair for pair in pairs(DETERMINISTIC[:2]) if pair[0].theta]


@pytest.mark.parametrize(("row", "rule"), WITH_PARAMETERS, ids=named)
@pytest.mark.slow_for("com_poisson", "ordinal")
def test_parameter_gradients(row: LikelihoodRow, rule: RuleRow) -> None:
    anywhere = row.target_kind in ("real", "count")
    for point in PARAMETER_POINTS + ABSURD if anywhere else ordinary(row):
        slopes = parameter_slopes(rule, row.make(), point)
        for name in row.theta:
            truth = reference.parameter_slope(row.name, *point, name, **row.theta)
            # A difference of larger terms: each of them is right to 1e-9.
            assert relative_error(slopes[name], truth, 1e-20) <= 1e-7, (name, point)


def parameter_slopes(rule: RuleRow, likelihood: Likelihood, point: Point) -> dict[str, float]:
    """Gradients in the parameters themselves, from those in the raw ones."""
    raw = dict(likelihood.named_parameters())
    value = rule.rule(likelihood, *columns([point])).sum()
    slopes = torch.autograd.grad(value, list(raw.values()))
    return {
        name.removeprefix("raw_"): (
            slope / torch.sigmoid(at) if name.startswith("raw_") else slope
        ).item()
        for (name, at), slope in zip(raw.items(), slopes, strict=True)
    }


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_vanishing_variance_gives_the_log_likelihood(row: LikelihoodRow) -> None:
    """log E_q[p] = ℓ(μ) + ½v(ℓ″ + ℓ′²) + O(v²)."""
    for variance in (1e-16, 1e-20, 1e-30):
        some = [Point(y, mean, variance) for y in row.targets for mean in single(-4.0, 0.3, 1.7)]
        values = Quadrature()(row.make(), *columns(some)).tolist()
        for point, value in zip(some, values, strict=True):
            limit = reference.log_prob(row.name, point.y, point.mean, **row.theta)
            close = abs(value - limit) <= row.absolute
            assert close or relative_error(value, limit) <= 1e-8, point


@pytest.mark.parametrize("rule", DETERMINISTIC, ids=named)
def test_no_examples(rule: RuleRow) -> None:
    none = torch.zeros(0, dtype=FLOAT64)
    for row in LIKELIHOODS:
        if rule.serves(row.make()):
            assert rule.rule(row.make(), none, none, none).shape == (0,)
