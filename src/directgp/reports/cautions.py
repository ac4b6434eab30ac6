"""State what limits the verdict on a comparison."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from directgp.experiments.comparison import coarse_grid
from directgp.experiments.plan import ComparedFit
from directgp.reports.findings import Findings
from directgp.text import joined, plural
from directgp.training.result import Status

_FEW_REPEATS = 4
"""Number of repeats below which a paired test detects large differences only."""

_RARE = 20
"""Number of test rows of a class below which they say little about it."""


def cautions(findings: Findings) -> tuple[str, ...]:
    """Return sentences about what limits the verdict."""
    every = (_out_of_time, _failures, _few_repeats, _rare_class, _not_converged, _betas_at_ends)
    return tuple(sentence for caution in every for sentence in caution(findings))


def _out_of_time(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    asked, plan = comparison.repeats_asked, comparison.plan
    if asked is not None:
        ended = len(comparison.runs) + len(comparison.failed)
        when = f"after {plan.repeats}" if ended == len(plan.cells()) else "in the first"
        yield (
            f"The time budget ended the comparison {when} of {plural(asked, 'repeat')}. The same "
            "command with --resume continues."
        )


def _failures(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    if comparison.failed:
        fits = plural(len(comparison.failed) + len(comparison.runs), "fit")
        listed = "it is" if len(comparison.failed) == 1 else "they are"
        yield f"{len(comparison.failed)} of {fits} failed; {listed} listed below."
    shown = {row.method for row in findings.ranking}
    absent = [m for m in comparison.plan.methods if shown and m not in shown]
    none = [m.name_in_text for m in absent if not findings.runs(m.name)]
    few = [m.name_in_text for m in absent if findings.runs(m.name)]
    size = plural(findings.size, "training row")
    for names, finished in ((none, "no repeat"), (few, "too few repeats")):
        if names:
            yield f"With {size}, {joined(names)} finished {finished} and cannot be compared."
    if 0 < findings.num_repeats < comparison.plan.repeats:
        kept = f"the {plural(findings.num_repeats, 'repeat')} that all methods finished"
        yield f"Only {kept} (of {comparison.plan.repeats}) are compared."


def _few_repeats(findings: Findings) -> Iterator[str]:
    if 1 < findings.num_repeats < _FEW_REPEATS and len(findings.ranking) > 1:
        yield (
            f"With {findings.num_repeats} repeats the paired test detects only large differences; "
            "run 5 or more to separate methods that are close."
        )


def _rare_class(findings: Findings) -> Iterator[str]:
    if findings.comparison.plan.data.task != "classification" or not findings.ranking:
        return
    runs = findings.runs(findings.ranking[0].method.name)
    labels = np.concatenate([run.predictions.actual for run in runs])
    rows, ones = sum(run.outcome.num_test for run in runs), int(labels.sum())
    # Of many test rows only a part is stored.
    rarer = round(min(ones, len(labels) - ones) * rows / max(len(labels), 1))
    if rarer < _RARE:
        yield (
            f"Only {'about ' if len(labels) < rows else ''}{rarer} of {plural(rows, 'test row')}, "
            f"over all repeats, {'is' if rarer == 1 else 'are'} of the rarer class: too few to "
            "judge how well it is predicted."
        )


def _not_converged(findings: Findings) -> Iterator[str]:
    plan, runs = findings.comparison.plan, findings.comparison.runs
    ended = Counter(run.cell.method for run in runs if run.outcome.status == Status.BUDGET)
    if ended:
        whose = [f"{ended[m.name]} of {m.name_in_text}" for m in plan.methods if m.name in ended]
        yield (
            f"{ended.total():,} of {plural(len(runs), 'fit')} reached the limit of steps "
            f"before convergence: {joined(whose)}; a larger --max-iter may change the scores."
        )


def _betas_at_ends(findings: Findings) -> Iterator[str]:
    """Yield a sentence about methods whose β is an end of its grid in most repeats."""
    where = " in most repeats" if findings.num_repeats > 1 else ""
    for which, end, other in (("smallest", min, "smaller"), ("largest", max, "larger")):
        names = [
            row.method.name_in_text
            for row in findings.ranking
            if row.method.chooses_beta and _mostly_at(end, findings.runs(row.method.name))
        ]
        if names:
            yield (
                f"Validation chose the {which} β of the grid{where} for {joined(names)}: --betas "
                f"with {other} values may do better."
            )


def _mostly_at(end: Callable[[Sequence[float]], float], runs: Sequence[ComparedFit]) -> bool:
    """Return whether most runs chose this end of the grid; β = 0 is no end."""
    grids = [run.cell.settings.betas or coarse_grid(run.cell.size) for run in runs]
    at_end = [
        run.outcome.beta == end(grid) > 0 and len(set(grid)) > 1
        for run, grid in zip(runs, grids, strict=True)
    ]
    return 2 * sum(at_end) > len(runs)
