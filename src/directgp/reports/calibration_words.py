"""Whether intervals and probabilities are about right, in words."""

import math

from directgp.experiments.standings import Standing
from directgp.metrics import COVERAGE
from directgp.reports.calibration import reliability
from directgp.reports.findings import Findings
from directgp.reports.numbers import percent
from directgp.reports.pooled import pooled
from directgp.reports.wording import called

_ABOUT = 0.02
"""Coverage this near is about right, whatever the number of test rows."""

_SOMEWHAT = 0.05
"""Coverage this near is not badly wrong."""

_NEAR = 0.03
"""Probabilities that miss by this much on average are near the shares that came."""


def calibration(findings: Findings, standing: Standing) -> str:
    """How far the uncertainty of a method may be believed."""
    if "coverage" in standing.scores:
        return _coverage(findings, standing)
    return _probabilities(findings, standing)


def _probabilities(findings: Findings, standing: Standing) -> str:
    runs, name = findings.runs(standing.method.name), called(standing.method)
    predictions = pooled(runs)
    if not len(predictions.mean):
        return f"The probabilities of {name} are not finite"
    found = reliability(predictions.actual, predictions.mean)
    error, rows = found.expected_error, len(predictions.mean)
    # A row is in the test rows of any other repeat with this share of the table for probability.
    times = 1 + (rows - rows / len(runs)) / findings.comparison.plan.data.num_rows
    judged = _judged(error, found.error_by_chance(times))
    return f"The probabilities of {name} are {judged}, off by {percent(error)} on average"


def _judged(error: float, chance: float) -> str:
    if error <= _NEAR:
        return "near the shares that came"
    if error <= chance:
        return "as near the shares that came as so few rows can show"
    return "not to be taken literally"


def _coverage(findings: Findings, standing: Standing) -> str:
    share = standing.scores["coverage"].mean
    rows = sum(run.outcome.num_test for run in findings.runs(standing.method.name))
    chance = 2 * math.sqrt(COVERAGE * (1 - COVERAGE) / max(rows, 1))
    if abs(share - COVERAGE) <= max(_ABOUT, chance):
        judged = "about as they should"
    else:
        much = "somewhat too" if abs(share - COVERAGE) <= _SOMEWHAT else "too"
        judged = f"so they are {much} {'wide' if share > COVERAGE else 'narrow'}"
    intervals = f"The {percent(COVERAGE, 0)} intervals of {called(standing.method)}"
    return f"{intervals} hold {percent(share)} of the test rows, {judged}"
