"""What `directgp compare` does: open, run, report, tell.

What needs torch is imported when the data have been opened, so that refusals come at once.
"""

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from directgp.cli.compare_request import CompareRequest
from directgp.cli.opening import Request, open_request
from directgp.cli.terminal import Terminal
from directgp.datasets.problem import Problem
from directgp.datasets.wording import several
from directgp.errors import InvalidInputError
from directgp.experiments.comparison import Comparison, Plan
from directgp.experiments.store import Store

STORE = "fits.sqlite"
_REPORT = ("index.html", "report.json", "results.parquet", "figures")


def compare_and_report(
    request: Request,
    asked: CompareRequest,
    out: Path,
    force: bool,
    terminal: Terminal,
) -> None:
    """Run everything that is not known yet, then write and show what came of it."""
    problem = open_request(request).problem
    for note in problem.notes:
        terminal.say(note)
    from directgp.estimators.settings import device_of

    plan = asked.plan(problem, "cpu", request.words())
    device = device_of(asked.device, "compare", plan.sizes[-1]).type
    plan = replace(plan, settings=plan.settings.model_copy(update={"device": device}))
    tell_plan(plan, problem, asked.sizes is None, terminal)
    out.mkdir(parents=True, exist_ok=True)
    # Held to the end, so that no other run writes to the folder.
    with Store(out / STORE) as store:
        if force:
            begin_anew(out, store)
        workers = _workers(asked.jobs, device, plan)
        comparison = run(plan, problem, store, workers, terminal)
        if not comparison.runs:
            raise InvalidInputError(f"No fit could be finished. {comparison.failed[0].reason}")
        report(comparison, out, terminal)


def begin_anew(out: Path, store: Store) -> None:
    """Forget the fits and the report of an earlier run."""
    store.clear()
    for name in _REPORT:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def tell_plan(plan: Plan, problem: Problem, all_unless_many: bool, terminal: Terminal) -> None:
    """Say what is going to happen."""
    rows = " and ".join(f"{size:,}" for size in plan.sizes)
    n, d = problem.X.shape
    terminal.say(
        f"{plan.data.name}: {several(n, 'row')}, {several(d, 'feature')}. Training on {rows} rows, "
        f"choosing β by {plan.parts.validation:,}, judging by {plan.parts.test:,}; "
        f"{several(plan.repeats, 'split')}, {several(len(plan.methods), 'method')}."
    )
    if all_unless_many and plan.sizes[-1] < plan.parts.training:
        terminal.say(
            f"{plan.parts.training:,} rows could be trained on: --sizes all takes every one."
        )


def run(plan: Plan, problem: Problem, store: Store, workers: int, terminal: Terminal) -> Comparison:
    """Everything that the store does not have yet."""
    from directgp.cli.compare_progress import watcher
    from directgp.experiments.comparing import Comparer

    try:
        with watcher(plan, terminal) as watching:
            return Comparer(problem, plan, store, watching).run(workers, command_typed())
    except KeyboardInterrupt:
        terminal.say("What is finished is kept: the same command with --resume goes on.")
        raise


def report(comparison: Comparison, out: Path, terminal: Terminal) -> None:
    """Write the report, and show the tables."""
    from directgp.cli.compare_table import scores_table, table_notes
    from directgp.reports.findings import Findings
    from directgp.reports.verdict import verdict
    from directgp.reports.writing import write_report

    index = write_report(comparison, out)
    findings = Findings(comparison)
    for size in reversed(comparison.plan.sizes):
        if findings.by_size.get(size):
            terminal.show(scores_table(findings, size))
    terminal.show(table_notes(findings))
    for failed in comparison.failed:
        cell = failed.cell
        terminal.warn(f"{cell.method}, repeat {cell.repeat + 1}, failed: {failed.reason}")
    said = verdict(findings)
    terminal.show("\n" + " ".join(said.sentences))
    for caution in said.cautions:
        terminal.show(caution)
    if said.command:
        terminal.show(f"Train it:  {said.command}")
    terminal.show(f"Report:    {index}")
    terminal.answer(json.loads((out / "report.json").read_bytes()))


def _workers(jobs: int | None, device: str, plan: Plan) -> int:
    """As many as there are cores, and no more than there are fits; one where a GPU works."""
    if jobs is not None:
        return jobs
    if device != "cpu":
        return 1
    return min(cores(), len(plan.cells()))


def cores() -> int:
    """That this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def command_typed(*more_ways: str) -> str:
    """What repeats this run: the command without the ways to look at it or to go on with it."""
    ways = ("--resume", "--force", "--quiet", "-q", "--json", "--debug", *more_ways)
    return shlex.join(["directgp", *(a for a in sys.argv[1:] if a not in ways)])
