"""Run a comparison and print its result."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from directgp.cli.data import Request, open_request
from directgp.cli.experiment import clear_run_folder, command_typed, cores, show_progress
from directgp.cli.options import usage_errors
from directgp.cli.terminal import Terminal, WrongUsageError, console
from directgp.datasets.problem import Problem, Task
from directgp.errors import InvalidInputError
from directgp.estimators.settings import device_of
from directgp.experiments.cell import METHODS, select_methods
from directgp.experiments.engine import compare
from directgp.experiments.plan import Comparison, Plan, make_plan
from directgp.registry import chosen_likelihood
from directgp.reports.compare import write_report
from directgp.reports.scoreboard import CLOSE, Entry, Scoreboard, heading, scoreboard
from directgp.reports.verdict import Findings, verdict
from directgp.text import plural

STORE, DOCUMENT = "fits.sqlite", "report.json"


def check_settings(settings: Mapping[str, Any], task: Task | None) -> None:
    """Raise `WrongUsageError` for arguments of `make_plan` that are wrong for any data."""
    for name in ("methods", "sizes", "betas"):
        if settings[name] == ():
            raise WrongUsageError(f"--{name} must name at least one. Got none.")
    for name in settings["methods"] or ():
        if name not in METHODS:
            raise WrongUsageError(f"--methods must be of {', '.join(METHODS)}. Got {name!r}.")
    if task is not None:
        with usage_errors():
            select_methods(
                task, settings["methods"], chosen_likelihood(task, settings["likelihood"])
            )


def compare_and_report(
    request: Request,
    settings: Mapping[str, Any],
    *,
    jobs: int | None,
    device: str,
    out: Path,
    force: bool,
    terminal: Terminal,
) -> None:
    """Run the cells that are not finished, write the report, and print the scores.

    Parameters
    ----------
    request : Request
        The data.
    settings : mapping
        Arguments of `make_plan`.
    jobs, device, out, force, terminal
        Options of the command.
    """
    problem = open_request(request).problem
    for note in problem.notes:
        terminal.note(note)
    with usage_errors():
        plan = make_plan(problem, **settings, arguments=request.words())
    kind = device_of(device, "compare", plan.sizes[-1]).type
    plan = replace(plan, settings=plan.settings.model_copy(update={"device": kind}))
    _announce(plan, problem, settings["sizes"] is None, terminal)
    out.mkdir(parents=True, exist_ok=True)
    if force:
        clear_run_folder(out, STORE, DOCUMENT)
    with show_progress(terminal, "fit") as callback:
        comparison = compare(
            problem,
            plan,
            out / STORE,
            workers=_workers(jobs, kind, plan),
            callback=callback,
            command=command_typed(),
        )
    if not comparison.runs:
        raise InvalidInputError(f"No fit could be finished. {comparison.failed[0].reason}")
    _report(comparison, out, terminal)


def _announce(plan: Plan, problem: Problem, default_sizes: bool, terminal: Terminal) -> None:
    rows = " and ".join(f"{size:,}" for size in plan.sizes)
    n, d = problem.X.shape
    terminal.note(
        f"{plan.data.name}: {plural(n, 'row')}, {plural(d, 'feature')}. Training on {rows} rows, "
        f"choosing β by {plan.parts.validation:,}, judging by {plan.parts.test:,}; "
        f"{plural(plan.repeats, 'split')}, {plural(len(plan.methods), 'method')}."
    )
    if default_sizes and plan.sizes[-1] < plan.parts.training:
        terminal.note(
            f"{plan.parts.training:,} rows could be trained on: --sizes all takes every one."
        )


def _workers(jobs: int | None, device: str, plan: Plan) -> int:
    """Return the number of processes: by default one per core, and one on a GPU."""
    if jobs is not None:
        return jobs
    return min(cores(), len(plan.cells())) if device == "cpu" else 1


def _report(comparison: Comparison, out: Path, terminal: Terminal) -> None:
    """Write the report and print the tables."""
    index = write_report(comparison, out)
    findings = Findings(comparison)
    for size in reversed(comparison.plan.sizes):
        if findings.by_size.get(size):
            terminal.show(scores_table(findings, size))
    terminal.show(table_notes(findings))
    for failed in comparison.failed:
        cell = failed.cell
        terminal.warn(f"{cell.method}, repeat {cell.repeat + 1}, failed: {failed.reason}")
    found = verdict(findings)
    terminal.show("\n" + " ".join(found.sentences))
    for caution in found.cautions:
        terminal.show(caution)
    if found.command:
        terminal.show(f"Train it:  {found.command}")
    terminal.show(f"Report:    {index}")
    terminal.answer(json.loads((out / DOCUMENT).read_bytes()))


_BEST = "*"
"""Mark of the best value, since a file has no bold."""


@final
@dataclass(frozen=True)
class _Layout:
    """A width of the table."""

    labels: bool
    """Whether methods have their long names."""

    errors: int
    """Number of columns, β first, that show errors."""

    padding: int
    all_columns: bool = True
    """Whether all scores are shown, or the first two."""


_LAYOUTS = (
    _Layout(True, 9, 2),
    _Layout(False, 9, 1),
    _Layout(False, 3, 1),
    _Layout(False, 2, 1),
    _Layout(False, 0, 1),
    _Layout(False, 0, 1, all_columns=False),
)
"""From wide to narrow; the first that fits is used, or the last."""


def scores_table(findings: Findings, size: int) -> Table:
    """Return the scores of the methods at one size; the best and those close to it are marked."""
    board = scoreboard(findings.by_size[size], findings.scores)
    title = f"{findings.comparison.plan.data.name}: {heading(board)}"
    tables = [_table(board, title, layout) for layout in _LAYOUTS]
    screen = console()
    # The natural width of a table is measured on a very wide screen.
    wide = screen.options.update(width=1000)
    fits = (t for t in tables if Measurement.get(screen, wide, t).maximum <= screen.width)
    return next(fits, tables[-1])


def _table(board: Scoreboard, title: str, layout: _Layout) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, layout.padding),
    )
    table.add_column("method", no_wrap=True)
    # β comes before the scores.
    shown = slice(None) if layout.all_columns else slice(1, 3)
    for column in board.columns[shown]:
        name = column.title.replace("coverage of ", "in ")
        short = name if layout.labels else name.replace("seconds", "s")
        table.add_column(short, justify="right", no_wrap=True)
    for method, entries in board.rows:
        cells = [_cell(entry, i < layout.errors) for i, entry in enumerate(entries)]
        name = method.label if layout.labels else method.name
        table.add_row(name, *cells[shown])
    return table


def table_notes(findings: Findings) -> str:
    """Return the explanation of the marks."""
    if len(findings.ranking) < 2:
        return ""
    if findings.num_repeats < 2:
        return f"{_BEST} best. One repeat: no test of the differences is possible."
    return (
        f"{_BEST} best   {CLOSE} not significantly different from the best "
        f"(paired test over {findings.num_repeats} repeats, 5 %)"
    )


def _cell(entry: Entry, with_error: bool) -> Text:
    """Return value, error and mark; the marks are aligned."""
    error = f" ± {entry.error}" if entry.error and with_error else ""
    mark = _BEST if entry.best else CLOSE if entry.close else " "
    text = Text(f"{entry.text}{error}{entry.unit}", style="bold" if entry.best else "")
    return text.append(f" {mark}", style="bold" if entry.best else "dim")
