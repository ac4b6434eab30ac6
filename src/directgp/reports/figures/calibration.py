"""Calibration: PIT histograms, or reliability of class probabilities."""

from directgp.reports.figures.picture import Picture
from directgp.reports.figures.pit import pit_picture
from directgp.reports.figures.reliability import reliability_picture
from directgp.reports.findings import Findings
from directgp.reports.pooled import pooled


def calibration_picture(findings: Findings) -> Picture | None:
    """A panel a method, repeats pooled; none where no prediction is finite."""
    methods = [standing.method for standing in findings.standings]
    every = {method: pooled(findings.runs(method.name)) for method in methods}
    found = {method: each for method, each in every.items() if len(each.actual)}
    if not found:
        return None
    if findings.comparison.plan.data.task == "classification":
        return reliability_picture(found)
    return pit_picture(found, findings.num_repeats)
