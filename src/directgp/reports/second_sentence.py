"""The second sentence of a verdict: what the uncertainty is worth, and the other score."""

import math

from directgp.experiments.standings import Estimate, Standing, best_of
from directgp.reports.calibration_words import calibration
from directgp.reports.findings import Findings
from directgp.reports.numbers import p_value
from directgp.reports.wording import called

_JUDGED = {"mse": "the mean", "mre": "the mean", "error": "the class"}
"""What each score looks at."""


def second_sentence(findings: Findings, use: Standing) -> str:
    """About the method that is recommended."""
    score = findings.second
    value = findings.value(use, score.name)
    clause = _against_best(findings, use)
    return f"{calibration(findings, use)}, and its {score.label} is {value}{clause}."


def _always_above(mine: Estimate, best: Estimate) -> bool:
    return all(a > b for a, b in zip(mine.values, best.values, strict=True))


def _against_best(findings: Findings, use: Standing) -> str:
    """How its score compares with the lowest."""
    name = findings.second.name
    best, mine = best_of(findings.standings, name), use.scores[name]
    if not math.isfinite(best.scores[name].mean):
        return ""
    if best is use:
        return ", the lowest" if len(findings.standings) > 1 else ""
    value = findings.value(best, name)
    if mine.close and _always_above(mine, best.scores[name]):
        each = (
            f"in each of {len(mine.values)} repeats, too few to be sure ({p_value(mine.p_value)})"
        )
        return f", above the lowest, {value} of {called(best.method)}, {each}"
    if mine.close:
        return f", not to be told from the lowest, {value} of {called(best.method)}"
    lowest = f", where {called(best.method)} has the lowest, {value}"
    if math.isnan(mine.p_value):
        return lowest
    return f"{lowest} ({p_value(mine.p_value)}): take that if only {_JUDGED[name]} counts"
