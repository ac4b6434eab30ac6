"""The command `directgp compare`: compare training objectives on a table."""

import json as json_format
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from directgp.cli import options
from directgp.cli.terminal import (
    HELP,
    Terminal,
    WrongUsageError,
    console,
    output_option,
    panel,
    plain_table,
)
from directgp.processes import start_server
from directgp.registry import LIKELIHOODS
from directgp.text import listed, plural

if TYPE_CHECKING:
    from directgp.datasets.problem import Problem
    from directgp.experiments.plan import Comparison, Plan
    from directgp.reports.compare import Entry, ScoreTable

run_option = panel("Comparison")

_HELP = HELP["compare"]

_check_repeats = options.count_checked("--repeats", options.MAX_REPEATS)

STORE = "fits.sqlite"
"""File of the results."""

DOCUMENT = "report.json"
"""File of the report, for programs."""


def compare(
    data: options.DataOptions,
    *,
    methods: Annotated[str | None, run_option("NAME,…", _HELP["methods"])] = None,
    repeats: Annotated[int, run_option("NUMBER", _HELP["repeats"], callback=_check_repeats)] = 5,
    sizes: Annotated[str | None, run_option("NUMBER,…", _HELP["sizes"])] = None,
    betas: Annotated[str | None, run_option("NUMBER,…", _HELP["betas"])] = None,
    time_budget: Annotated[
        float | None, options.time_budget_option(run_option, _HELP["time_budget"])
    ] = None,
    jobs: Annotated[int | None, options.jobs_option(run_option, _HELP["jobs"])] = None,
    likelihood: Annotated[
        str | None,
        options.model_option(
            "NAME", f"{options.LIKELIHOOD_NAMES}; by default chosen on each split."
        ),
    ] = None,
    kernel: options.Kernel = "auto",
    ard: Annotated[bool | None, options.model_option("", _HELP["ard"], "--ard/--no-ard")] = None,
    inducing: options.Inducing = "auto",
    max_iter: options.MaxIter = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: Annotated[Path, output_option("FOLDER", "Folder of the report.")] = Path("report"),
    resume: Annotated[bool, output_option("", _HELP["resume"], "--resume")] = False,
    force: options.Force = False,
    terminal: Terminal,
) -> None:
    """Find out which training objective predicts best, and write a report.

    Trains each method on random splits, chooses β on validation rows, and scores test rows.
    """
    if resume and force:
        raise WrongUsageError("--resume and --force cannot be given together. Leave one out.")
    options.check_name("--likelihood", likelihood, tuple(LIKELIHOODS))
    options.check_task(data)
    automatic = inducing == "auto"
    settings = {
        "methods": options.listed("--methods", methods, lambda _, name: name) or None,
        "repeats": repeats,
        "sizes": options.listed("--sizes", sizes, _size) or None,
        "betas": options.listed("--betas", betas, _beta) or None,
        "likelihood": likelihood,
        "kernel": kernel,
        "ard": ard,
        "num_inducing": None if automatic else options.whole_number("--inducing", inducing),
        "max_steps": max_iter,
        "seed": seed,
    }
    start_server()
    from directgp.cli.column_options import check_kernel
    from directgp.cli.experiment import check_run_folder

    check_run_folder(out, STORE, DOCUMENT, resume, force)
    check_kernel(kernel, ard)
    _compare_and_report(data, settings, jobs, device, time_budget, out, force, terminal)


_beta = partial(options.weight, allowed="numbers")


def _size(option: str, text: str) -> int | None:
    """Return a number of rows; None for all."""
    allowed = "'all' or whole numbers"
    return None if text == "all" else options.whole_number(option, text, allowed)


def _compare_and_report(
    data: options.DataOptions,
    settings: Mapping[str, Any],
    jobs: int | None,
    device: str,
    time_budget: float | None,
    out: Path,
    force: bool,
    terminal: Terminal,
) -> None:
    """Run the cells that are not finished, write the report, and print the scores.

    The settings are arguments of `make_plan`.
    """
    from directgp.cli.data import open_data
    from directgp.cli.experiment import command_typed, open_run_folder, show_progress
    from directgp.errors import InvalidInputError
    from directgp.estimators.settings import device_of
    from directgp.experiments.comparison import compare as run_comparison
    from directgp.experiments.plan import make_plan

    problem = _with_note_on_levels(open_data(data, "compare", settings["kernel"]).problem)
    for note in problem.notes:
        terminal.note(note)
    with options.usage_errors():
        plan = make_plan(problem, **settings, arguments=data.words())
    kind = device_of(device, "compare", plan.sizes[-1]).type
    plan = replace(plan, settings=plan.settings.model_copy(update={"device": kind}))
    rows = " and ".join(f"{size:,}" for size in plan.sizes)
    n, d = problem.X.shape
    terminal.note(
        f"{plan.data.name}: {plural(n, 'row')}, {plural(d, 'feature')}. Training on {rows} rows, "
        f"choosing β on {plan.parts.validation:,} rows, testing on {plan.parts.test:,}; "
        f"{plural(plan.repeats, 'split')}, {plural(len(plan.methods), 'method')}."
    )
    available = plan.parts.training
    if settings["sizes"] is None and plan.sizes[-1] < available:
        terminal.note(f"{available:,} rows are available for training; --sizes all uses every one.")
    open_run_folder(out, STORE, force)
    workers = _workers(jobs, kind, plan)
    with show_progress(terminal, "fit", max(workers, 1)) as callback:
        comparison = run_comparison(
            problem,
            plan,
            out / STORE,
            workers=workers,
            callback=callback,
            command=command_typed(),
            time_budget=time_budget,
        )
    if not comparison.runs:
        reason = "The time budget was spent. Give a larger one, or fewer rows by --sizes."
        if comparison.failed:
            reason = comparison.failed[0].reason
        raise InvalidInputError(f"No fit could be finished. {reason}")
    _report(comparison, out, terminal)


def _with_note_on_levels(problem: "Problem") -> "Problem":
    """Return the problem with a note on levels in methods without a Gaussian process."""
    from directgp.datasets.encoding import LEVEL_KINDS

    names = [name for name, kind in problem.kinds.items() if kind in LEVEL_KINDS]
    if not names:
        return problem
    note = (
        f"Methods without a Gaussian process get the codes of levels as numbers: {listed(names)}."
    )
    return replace(problem, notes=(*problem.notes, note))


def _workers(jobs: int | None, device: str, plan: "Plan") -> int:
    """Return the number of processes: by default one per core, and one on a GPU."""
    from directgp.environment import cores

    return jobs or (min(cores(), len(plan.cells())) if device == "cpu" else 1)


def _report(comparison: "Comparison", out: Path, terminal: Terminal) -> None:
    """Write the report and print the tables."""
    from directgp.cli.experiment import check_kept
    from directgp.reports.compare import CLOSE, score_table, write_report
    from directgp.reports.findings import Findings
    from directgp.reports.html import damaged_sentence
    from directgp.reports.verdict import verdict

    index = write_report(comparison, out)
    check_kept(out, STORE)
    if comparison.damaged:
        terminal.warn(damaged_sentence(comparison.damaged))
    findings = Findings(comparison)
    judgement = verdict(findings)
    for question, answer in (("Is it good?", judgement.quality), ("Which one?", judgement.choice)):
        if answer:
            terminal.show(f"\n{question}\n{answer}")
    for term in judgement.terms:
        terminal.show(f"  {term}")
    if judgement.command:
        terminal.show(f"\nWhat next?\n{judgement.command}\n", wrap=False)
    for size in reversed(comparison.plan.sizes):
        if findings.by_size.get(size):
            table = score_table(findings.by_size[size], findings.scores, comparison.plan)
            title = f"{comparison.plan.data.name}: {table.heading}"
            terminal.show(_scores_table(table, title))
    if len(findings.ranking) > 1:
        several = f"(paired test over {findings.num_repeats} repeats, 5 %)"
        terminal.show(
            f"{_BEST} best   {CLOSE} not significantly different from the best {several}"
            if findings.num_repeats > 1
            else f"{_BEST} best. One repeat: no test of the differences is possible."
        )
    for failed in comparison.failed:
        cell = failed.cell
        terminal.warn(f"{cell.method}, repeat {cell.repeat + 1}, failed: {failed.reason}")
    for sentence in (*judgement.details, *judgement.cautions):
        terminal.show(f"- {sentence}")
    terminal.show(f"\nReport: {index}")
    terminal.answer(json_format.loads((out / DOCUMENT).read_bytes()))


_BEST = "*"
"""Mark of the best value, since a file has no bold."""

_EVERY = slice(None)
"""All columns: β, scores and seconds."""

_FIRST_TWO = slice(1, 3)
"""The first two scores."""

_LAYOUTS = (
    (True, 9, 2, _EVERY),
    (False, 9, 1, _EVERY),
    (False, 3, 1, _EVERY),
    (False, 2, 1, _EVERY),
    (False, 0, 1, _EVERY),
    (False, 0, 1, _FIRST_TWO),
)
"""Whether methods have their long names, number of columns with errors, padding, and columns.

From wide to narrow; the first that fits is used, or the last.
"""


def _scores_table(table: "ScoreTable", title: str) -> Table:
    """Return the table of scores, with marks for the best and for scores as good as the best."""
    tables = [_table(table, title, *layout) for layout in _LAYOUTS]
    screen = console()
    # The natural width of a table is measured on a very wide screen.
    wide = screen.options.update(width=1000)
    fits = (t for t in tables if Measurement.get(screen, wide, t).maximum <= screen.width)
    return next(fits, tables[-1])


def _table(
    table: "ScoreTable", title: str, labels: bool, errors: int, padding: int, shown: slice
) -> Table:
    names = [name.replace("coverage of ", "in ") for name in table.columns]
    numeric = [name if labels else name.replace("seconds", "s") for name in names][shown]
    rows: list[list[str | Text]] = []
    for method, entries in table.rows.items():
        cells = [_cell(entry, place < errors) for place, entry in enumerate(entries)]
        rows.append([method.label if labels else method.name, *cells[shown]])
    return plain_table(title, ("method", *numeric), rows, numeric, padding)


def _cell(entry: "Entry", with_error: bool) -> Text:
    """Return value, error and mark; the marks are aligned."""
    from directgp.reports.compare import CLOSE

    error = f" ± {entry.error}" if entry.error and with_error else ""
    mark = _BEST if entry.best else CLOSE if entry.close else " "
    text = Text(f"{entry.text}{error}{entry.unit}", style="bold" if entry.best else "")
    return text.append(f" {mark}", style="bold" if entry.best else "dim")
