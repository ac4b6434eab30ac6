"""What there is to say of training that may not have found its best."""

from collections import Counter
from collections.abc import Iterator

from directgp.datasets.wording import joined, several
from directgp.experiments.results import Run
from directgp.experiments.running import coarse_grid
from directgp.reports.findings import Findings
from directgp.reports.numbers import whole
from directgp.reports.steps import most_steps
from directgp.reports.wording import called
from directgp.training.result import Status


def without_convergence(findings: Findings) -> Iterator[str]:
    """Of fits that took all the steps they were allowed."""
    plan, runs = findings.comparison.plan, findings.comparison.runs
    ended = Counter(run.cell.method for run in runs if run.outcome.status == Status.BUDGET)
    if ended:
        whose = [f"{ended[m.name]} of {called(m)}" for m in plan.methods if m.name in ended]
        yield (
            f"{whole(ended.total())} of {several(len(runs), 'fit')} ended at the last step "
            f"allowed, not by convergence: {joined(whose)}; --max-iter above "
            f"{whole(most_steps(plan))} may change the scores."
        )


def betas_at_ends(findings: Findings) -> Iterator[str]:
    """Of methods whose β is an end of its grid in most repeats."""
    where = " in most repeats" if findings.num_repeats > 1 else ""
    for which, other in (("smallest", "smaller"), ("largest", "larger")):
        names = [
            called(standing.method)
            for standing in findings.standings
            if standing.method.chooses_beta
            and _mostly_at(which, findings.runs(standing.method.name))
        ]
        if names:
            yield (
                f"Validation chose the {which} β of the grid{where} for {joined(names)}: --betas "
                f"with {other} values may do better."
            )


def _mostly_at(which: str, runs: list[Run]) -> bool:
    return 2 * sum(run.outcome.beta == _end(which, run) for run in runs) > len(runs)


def _end(which: str, run: Run) -> float | None:
    """Of the grid as it was asked for; none where nothing lies beyond."""
    grid = run.cell.settings.betas or coarse_grid(run.cell.size)
    end = min(grid) if which == "smallest" else max(grid)
    return end if len(set(grid)) > 1 and end > 0 else None
