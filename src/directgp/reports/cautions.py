"""What stands in the way of believing a verdict."""

from collections.abc import Iterator

from directgp.reports.findings import Findings
from directgp.reports.numbers import count, listed
from directgp.reports.wording import called

_FEW = 4
"""Repeats below which a paired test sees large differences only."""


def cautions(findings: Findings) -> tuple[str, ...]:
    """In sentences; none where all went well."""
    return tuple([*_failures(findings), *_few_repeats(findings)])


def _failures(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    if comparison.failed:
        fits = len(comparison.failed) + len(comparison.runs)
        listed_as = "it is" if len(comparison.failed) == 1 else "they are"
        yield f"{len(comparison.failed)} of {count(fits, 'fit')} failed; {listed_as} listed below."
    shown = {standing.method.name for standing in findings.standings}
    absent = [called(m) for m in comparison.plan.methods if m.name not in shown]
    if absent and shown:
        size = count(findings.size, "training row")
        yield f"With {size}, {listed(absent)} finished no repeat and cannot be judged."
    if 0 < findings.num_repeats < comparison.plan.repeats:
        kept = f"the {count(findings.num_repeats, 'repeat')} that all methods finished"
        yield f"Only {kept} (of {comparison.plan.repeats}) are compared."


def _few_repeats(findings: Findings) -> Iterator[str]:
    if 1 < findings.num_repeats < _FEW and len(findings.standings) > 1:
        yield (
            f"With {findings.num_repeats} repeats the paired test sees only large differences; "
            "run 5 or more to separate methods that are close."
        )
