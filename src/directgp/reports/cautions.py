"""What stands in the way of believing a verdict."""

from collections.abc import Iterator

import numpy as np

from directgp.datasets.wording import joined, several
from directgp.reports.findings import Findings
from directgp.reports.training_cautions import betas_at_ends, without_convergence
from directgp.reports.wording import called

_FEW = 4
"""Repeats below which a paired test sees large differences only."""

_RARE = 20
"""Test rows of a class below which they say little about it."""


def cautions(findings: Findings) -> tuple[str, ...]:
    """In sentences; none where all went well."""
    every = (_failures, _few_repeats, _rare_class, without_convergence, betas_at_ends)
    return tuple(sentence for said in every for sentence in said(findings))


def _failures(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    if comparison.failed:
        fits = len(comparison.failed) + len(comparison.runs)
        listed_as = "it is" if len(comparison.failed) == 1 else "they are"
        failed = f"{len(comparison.failed)} of {several(fits, 'fit')} failed"
        yield f"{failed}; {listed_as} listed below."
    yield from _absent(findings)
    if 0 < findings.num_repeats < comparison.plan.repeats:
        kept = f"the {several(findings.num_repeats, 'repeat')} that all methods finished"
        yield f"Only {kept} (of {comparison.plan.repeats}) are compared."


def _absent(findings: Findings) -> Iterator[str]:
    """Of methods that the standings leave out."""
    shown = {standing.method for standing in findings.standings}
    absent = [m for m in findings.comparison.plan.methods if shown and m not in shown]
    none = [called(m) for m in absent if not findings.runs(m.name)]
    few = [called(m) for m in absent if findings.runs(m.name)]
    size = several(findings.size, "training row")
    for names, finished in ((none, "no repeat"), (few, "too few repeats")):
        if names:
            yield f"With {size}, {joined(names)} finished {finished} and cannot be judged."


def _few_repeats(findings: Findings) -> Iterator[str]:
    if 1 < findings.num_repeats < _FEW and len(findings.standings) > 1:
        yield (
            f"With {findings.num_repeats} repeats the paired test sees only large differences; "
            "run 5 or more to separate methods that are close."
        )


def _rare_class(findings: Findings) -> Iterator[str]:
    if findings.comparison.plan.data.task != "classification" or not findings.standings:
        return
    runs = findings.runs(findings.standings[0].method.name)
    labels = np.concatenate([run.predictions.actual for run in runs])
    rows, ones = sum(run.outcome.num_test for run in runs), int(labels.sum())
    # Of many test rows only some are kept.
    rarer = round(min(ones, len(labels) - ones) * rows / max(len(labels), 1))
    if rarer < _RARE:
        yield (
            f"Only {'about ' if len(labels) < rows else ''}{rarer} of {several(rows, 'test row')}, "
            f"over all repeats, {'is' if rarer == 1 else 'are'} of the rarer class: too few to say "
            "how well it is predicted."
        )
