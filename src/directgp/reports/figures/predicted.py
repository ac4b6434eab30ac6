"""Predicted against actual, for the best method and another."""

from directgp.experiments.methods import Method
from directgp.experiments.standings import best_of
from directgp.reports.figures.picture import Picture
from directgp.reports.figures.predicted_labels import predicted_labels
from directgp.reports.figures.predicted_numbers import predicted_numbers
from directgp.reports.findings import Findings
from directgp.reports.plain import plain
from directgp.reports.pooled import pooled

_SHORT = 24
"""Letters of a class in a legend."""


def predicted_picture(findings: Findings) -> Picture | None:
    """The first repeat of the best method in NLL, and of the ELBO or, if that is it, the next."""
    every = {method: pooled(findings.runs(method.name)[:1]) for method in _shown(findings)}
    found = {method: each for method, each in every.items() if len(each.actual)}
    if not found:
        return None
    data = findings.comparison.plan.data
    if data.classes:
        return predicted_labels(found, *(plain(name, _SHORT) for name in data.classes))
    return predicted_numbers(found, plain(data.target), counts=data.task == "count")


def _shown(findings: Findings) -> list[Method]:
    best, elbo = best_of(findings.standings, "nll"), findings.elbo
    others = [standing for standing in findings.standings if standing is not best]
    others.sort(key=lambda standing: (standing is not elbo, standing.scores["nll"].mean))
    return [best.method, *(standing.method for standing in others[:1])]
