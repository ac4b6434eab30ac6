"""Run a comparison and print its result."""

import json
import os
import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from rich.console import Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from directgp.cli.data import Request, open_request
from directgp.cli.options import naming_options
from directgp.cli.terminal import Terminal, WrongUsageError, console
from directgp.datasets.problem import Problem, Task
from directgp.errors import InvalidInputError
from directgp.experiments.cell import Cell, Finished
from directgp.experiments.engine import Watcher
from directgp.experiments.plan import (
    METHODS,
    Comparison,
    Plan,
    chosen_likelihood,
    line_up,
    make_plan,
)
from directgp.experiments.store import Store
from directgp.experiments.workers import Activity, Refused
from directgp.reports.scoreboard import CLOSE, Entry, Scoreboard, heading, scoreboard
from directgp.reports.verdict import Findings
from directgp.text import duration, fixed, number, plural, time_left


@final
@dataclass(frozen=True)
class CompareRequest:
    """The options of `directgp compare`; None leaves the choice to the data."""

    methods: tuple[str, ...] | None
    repeats: int
    sizes: tuple[int | None, ...] | None
    """None among them is all rows."""

    betas: tuple[float, ...] | None
    jobs: int | None
    likelihood: str | None
    kernel: str
    ard: bool
    num_inducing: int | None
    max_steps: int | None
    seed: int
    device: str

    def check(self, task: Task | None) -> None:
        """Refuse what can be told to be wrong without the data."""
        for option in ("methods", "sizes", "betas"):
            if getattr(self, option) == ():
                raise WrongUsageError(f"--{option} must name at least one. Got none.")
        for name in self.methods or ():
            if name not in METHODS:
                allowed = ", ".join(METHODS)
                raise WrongUsageError(f"--methods must be of {allowed}. Got {name!r}.")
        if task is not None:
            with naming_options():
                line_up(task, self.methods, chosen_likelihood(task, self.likelihood))

    def plan(self, problem: Problem, device: str, arguments: Sequence[str]) -> Plan:
        """What is to be run on a problem."""
        with naming_options():
            return make_plan(
                problem,
                methods=self.methods,
                repeats=self.repeats,
                sizes=self.sizes,
                betas=self.betas,
                likelihood=self.likelihood,
                kernel=self.kernel,
                ard=self.ard,
                num_inducing=self.num_inducing,
                max_steps=self.max_steps,
                seed=self.seed,
                device=device,
                arguments=arguments,
            )


DONE, FAILED, RUNNING, WAITING = "●", "✗", "◐", "·"

_GAP, _NLL, _LEAST, _ROOMY = 2, 9, 12, 50
"""Widths: between columns, of the NLL, the least of what is going on, and that of long names."""


@final
@dataclass(frozen=True)
class ProgressRow:
    """What is known of a method."""

    name: str
    label: str
    """Longer than the name."""

    signs: str
    """One a fit."""

    mean: str
    """NLL of what is done."""

    now: str
    """What is going on."""


def progress_table(rows: Sequence[ProgressRow], width: int) -> Table:
    """What is going on gives way first, then signs give way to a count."""
    labels = [row.label if width >= _ROOMY else row.name for row in rows]
    means = [row.mean for row in rows]
    left = width - _widest(labels) - max(_NLL, _widest(means)) - 2 * _GAP
    fits = [row.signs for row in rows]
    if _widest(fits) > left:
        fits = [_counted(row.signs) for row in rows]
    table = _empty_table()
    columns = [labels, fits, means]
    left -= max(_widest(fits), len("fits")) + _GAP
    if left >= _LEAST:
        table.add_column("now", no_wrap=True)
        columns.append([_cut(row.now, left) for row in rows])
    for cells in zip(*columns, strict=True):
        table.add_row(*cells)
    return table


def _empty_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("NLL", no_wrap=True, justify="right", min_width=_NLL)
    return table


def _counted(signs: str) -> str:
    """``9/20``, and how many failed."""
    failed = signs.count(FAILED)
    return f"{signs.count(DONE)}/{len(signs)}" + (f" {failed}{FAILED}" if failed else "")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _widest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)


@contextmanager
def watcher(plan: Plan, terminal: Terminal) -> Iterator[Watcher]:
    """The board, lines, or nothing."""
    if not terminal.live:
        yield Lines(plan, terminal)
        return
    with Live(console=console(err=True), transient=True, refresh_per_second=4) as live:
        yield LiveBoard(live)


@final
@dataclass
class Lines:
    """A line for each fit that is done."""

    plan: Plan
    terminal: Terminal
    _total: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """Say how much there is to do."""
        self._total = len(cells)
        self.terminal.say(_announcement(len(cells), known))

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Say what came of a fit."""
        self._done += 1
        place = f"{METHODS[cell.method].label}, split {cell.repeat + 1}"
        size = f", {cell.size:,} rows" if len(self.plan.sizes) > 1 else ""
        self.terminal.say(f"[{self._done}/{self._total}] {place}{size}: {_told(result)}")

    def looking(self, active: Sequence[Activity]) -> None:
        """Nothing: lines are for what is done."""


@final
@dataclass
class LiveBoard:
    """Methods × splits, what is known of them, and what each worker is at."""

    live: Live
    _cells: Sequence[Cell] = field(default=(), init=False)
    _results: dict[str, Finished | Refused] = field(default_factory=dict, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """Draw the empty board."""
        self._cells = cells
        self.live.console.print(_announcement(len(cells), known), highlight=False)
        self.looking(())

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Fill a place."""
        self._results[cell.key] = result

    def looking(self, active: Sequence[Activity]) -> None:
        """Draw what is known now."""
        self.live.update(Group(self._table(active), Text(self._clock(), style="dim")))

    def _table(self, active: Sequence[Activity]) -> Table:
        running = {self._cells[each.cell].key: each for each in active}
        by_method = defaultdict(list)
        for cell in self._cells:
            by_method[cell.method].append(cell)
        rows = [self._row(name, cells, running) for name, cells in by_method.items()]
        return progress_table(rows, self.live.console.width)

    def _row(self, name: str, cells: Sequence[Cell], running: dict[str, Activity]) -> ProgressRow:
        signs = "".join(self._sign(cell, running) for cell in cells)
        now = next((_now(running[cell.key]) for cell in cells if cell.key in running), "")
        return ProgressRow(name, METHODS[name].label, signs, self._mean(cells), now)

    def _sign(self, cell: Cell, running: dict[str, Activity]) -> str:
        result = self._results.get(cell.key)
        if result is None:
            return RUNNING if cell.key in running else WAITING
        return DONE if isinstance(result, Finished) else FAILED

    def _mean(self, cells: Sequence[Cell]) -> str:
        """Mean NLL of what is done, at the largest size that has any."""
        by_size = defaultdict(list)
        for cell in cells:
            if isinstance(result := self._results.get(cell.key), Finished):
                by_size[cell.size].append(result.outcome.scores["nll"])
        if not by_size:
            return ""
        values = by_size[max(by_size)]
        return fixed(sum(values) / len(values), 3)

    def _clock(self) -> str:
        """Fits done, time spent, time left."""
        spent = time.monotonic() - self._since
        text = f"{len(self._results)} of {len(self._cells)} fits, {duration(float(round(spent)))}"
        left = self._left(spent)
        return text if left is None else f"{text}, {time_left(left)}"

    def _left(self, spent: float) -> float | None:
        """What is to be done, at the pace of what was done: each method has its own."""
        seconds = defaultdict(list)
        for cell in self._cells:
            if isinstance(result := self._results.get(cell.key), Finished):
                seconds[cell.method].append(result.outcome.seconds / cell.size)
        every = [each for some in seconds.values() for each in some]
        if not every:
            return None
        pace = {name: sum(some) / len(some) for name, some in seconds.items()}
        usual = sum(every) / len(every)
        work = {True: 0.0, False: 0.0}
        for cell in self._cells:
            work[cell.key in self._results] += pace.get(cell.method, usual) * cell.size
        return spent * work[False] / work[True] if work[True] else None


def _announcement(to_run: int, known: int) -> str:
    there = f" {known} {'is' if known == 1 else 'are'} there already." if known else ""
    return f"{to_run} {'fit' if to_run == 1 else 'fits'} to run.{there}"


def _told(result: Finished | Refused) -> str:
    if isinstance(result, Refused):
        return f"failed: {result.reason}"
    outcome = result.outcome
    scores = ", ".join(f"{name} {number(value, 4)}" for name, value in outcome.scores.items())
    return f"{scores}, β {number(outcome.beta)}, {duration(outcome.seconds)}"


def _now(activity: Activity) -> str:
    if activity.step == 0:
        return "starting"
    loss = number(activity.loss, 4)
    return f"run {activity.run}, step {activity.step} of {activity.max_steps}, loss {loss}"


_BEST = "*"
"""After the best value: bold is not seen in a file."""


@final
@dataclass(frozen=True)
class _Layout:
    """How much room a table takes."""

    labels: bool
    """Long names of the methods."""

    errors: int
    """Columns, β first, that have their errors."""

    padding: int

    all_columns: bool = True
    """Else the first two scores alone."""


_LAYOUTS = (
    _Layout(True, 9, 2),
    _Layout(False, 9, 1),
    _Layout(False, 3, 1),
    _Layout(False, 2, 1),
    _Layout(False, 0, 1),
    _Layout(False, 0, 1, all_columns=False),
)
"""The first that fits is taken, or the last."""


def scores_table(findings: Findings, size: int) -> Table:
    """Methods and their scores at one size; the best in bold, those close to it marked."""
    board = scoreboard(findings.by_size[size], findings.scores)
    title = f"{findings.comparison.plan.data.name}: {heading(board)}"
    tables = [_table(board, title, layout) for layout in _LAYOUTS]
    screen = console()
    # Measured as if there were room for anything.
    room = screen.options.update(width=1000)
    fits = (t for t in tables if Measurement.get(screen, room, t).maximum <= screen.width)
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
    """What the marks mean."""
    if len(findings.standings) < 2:
        return ""
    if findings.num_repeats < 2:
        return f"{_BEST} best. One repeat: no test of the differences is possible."
    return (
        f"{_BEST} best   {CLOSE} cannot be told from the best "
        f"(paired test over {findings.num_repeats} repeats, 5 %)"
    )


def _cell(entry: Entry, with_error: bool) -> Text:
    """Value, error and mark, the marks below each other."""
    error = f" ± {entry.error}" if entry.error and with_error else ""
    mark = _BEST if entry.best else CLOSE if entry.close else " "
    text = Text(f"{entry.text}{error}{entry.unit}", style="bold" if entry.best else "")
    return text.append(f" {mark}", style="bold" if entry.best else "dim")


# What needs torch is imported when the data have been opened, so that refusals come at once.


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
        f"{plan.data.name}: {plural(n, 'row')}, {plural(d, 'feature')}. Training on {rows} rows, "
        f"choosing β by {plan.parts.validation:,}, judging by {plan.parts.test:,}; "
        f"{plural(plan.repeats, 'split')}, {plural(len(plan.methods), 'method')}."
    )
    if all_unless_many and plan.sizes[-1] < plan.parts.training:
        terminal.say(
            f"{plan.parts.training:,} rows could be trained on: --sizes all takes every one."
        )


def run(plan: Plan, problem: Problem, store: Store, workers: int, terminal: Terminal) -> Comparison:
    """Everything that the store does not have yet."""
    from directgp.experiments.engine import Comparer

    try:
        with watcher(plan, terminal) as watching:
            return Comparer(problem, plan, store, watching).run(workers, command_typed())
    except KeyboardInterrupt:
        terminal.say("What is finished is kept: the same command with --resume goes on.")
        raise


def report(comparison: Comparison, out: Path, terminal: Terminal) -> None:
    """Write the report, and show the tables."""
    from directgp.reports.compare import write_report
    from directgp.reports.verdict import Findings, verdict

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
