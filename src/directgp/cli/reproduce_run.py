"""Run experiments of the paper and print their verdicts."""

import json
import math
import platform
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from directgp.cli.compare_run import command_typed, cores
from directgp.cli.output_paths import check_report_place
from directgp.cli.terminal import Terminal, WrongUsageError, console, print_line
from directgp.datasets.paper.download import PaperData, open_paper
from directgp.datasets.paper.sets import PAPER
from directgp.errors import DirectGPError, InvalidInputError, StoreError
from directgp.experiments.paper.cells import (
    CurveOutcome,
    Finished,
    FitOutcome,
    PaperCell,
    ProtocolName,
    Results,
)
from directgp.experiments.paper.claims import CLAIMS
from directgp.experiments.paper.claims.base import Claim
from directgp.experiments.paper.run import DataRow, Reproduction, SweepWatcher, run_sweep
from directgp.experiments.paper.scales import SCALES, Scale
from directgp.experiments.paper.store import SharedStore
from directgp.experiments.paper.sweep import SweepData, chosen, sweep
from directgp.experiments.workers import Activity, InProcess, Pool, Processes, Refused
from directgp.reports.paper import write_reproduction
from directgp.reports.paper_figures import FIGURES
from directgp.text import duration, joined, number, plural, suggestion, time_left

STORE = "cells.sqlite"
_OURS = (STORE, f"{STORE}-journal", "index.html", "verdicts.json", "results.parquet", "figures")
_ANYTHING = "select 1 from results union all select 1 from failures union all select 1 from claims"


def check_place(out: Path, goes_on: bool, force: bool) -> None:
    """Refuse a folder that holds something else, or results that nobody spoke of."""
    check_report_place(out, STORE, goes_on or _is_blank(out / STORE), force)


def begin_anew(out: Path) -> None:
    """Forget the results and the report of an earlier run; what others have put there stays."""
    for path in (out / name for name in _OURS):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def store_in(place: Path) -> Path:
    """The store of a folder, or the file itself."""
    return place / STORE if place.is_dir() else place


def _is_blank(store: Path) -> bool:
    """Whether a run left nothing but the store: it was refused, or ended before its first cell."""
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as file:
            return file.execute(_ANYTHING).fetchone() is None
    except sqlite3.Error:
        return False


@final
@dataclass(frozen=True)
class ReproduceRequest:
    """The options of `directgp reproduce`."""

    claims: tuple[str, ...]
    figures: tuple[str, ...]
    datasets: tuple[str, ...]
    scale: str
    protocol: ProtocolName | None
    data_dir: Path | None
    download: bool
    engine: str
    jobs: int | None
    address: str | None
    cpus: float
    gpus: float
    seed: int
    device: str
    out: Path
    force: bool
    report_only: bool
    merge: tuple[Path, ...]

    @property
    def sizes(self) -> Scale:
        """The scale."""
        return SCALES[self.scale]

    def check(self) -> None:
        """Refuse what can be told to be wrong without the data."""
        for option, given, known in (
            ("--claim", self.claims, CLAIMS),
            ("--figure", self.figures, FIGURES),
            ("--dataset", self.datasets, PAPER),
        ):
            for name in given:
                if name not in known:
                    remedy = suggestion(name, known, "There are")
                    raise WrongUsageError(
                        f"{option} must be one that exists. Got {name!r}. {remedy}"
                    )
        for place in self.merge:
            if not store_in(place).is_file():
                raise WrongUsageError(
                    f"--merge must be a folder with {STORE}, or such a file. Got {str(place)!r}."
                )
            if _is_same(store_in(place), self.out / STORE):
                raise WrongUsageError(
                    f"--merge must be another folder than --out. Got {str(place)!r} for both."
                )

    def wanted(self) -> list[Callable[[PaperCell], bool]]:
        """What chooses cells: any claim or figure that is named, or everything."""
        named = [CLAIMS[name].uses for name in self.claims]
        named += [FIGURES[name].uses for name in self.figures]
        every = named or [lambda cell: True]
        if not self.datasets:
            return every
        return [lambda cell: cell.dataset in self.datasets and any(uses(cell) for uses in every)]


def _is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


_ORIGINS = {
    "folder": "the data folder",
    "fetched": "its public home",
    "generated": "its formula",
}


def cells_of(request: ReproduceRequest, data: Sequence[SweepData]) -> tuple[PaperCell, ...]:
    """What the request means on these data sets."""
    every = sweep(request.sizes, data, request.protocol, request.seed)
    return chosen(every, request.wanted())


def open_all(request: ReproduceRequest, terminal: Terminal) -> dict[str, PaperData]:
    """Every data set that is needed and can be had; one that is named must be."""
    opened: dict[str, PaperData] = {}
    needed = _needed(request)
    if not needed:
        raise WrongUsageError(_nothing_there(request))
    for name in needed:
        try:
            opened[name] = open_paper(name, request.data_dir, request.download)
        except DirectGPError as error:
            if name in request.datasets:
                raise
            terminal.warn(f"Left out: {error}")
    if not opened:
        raise InvalidInputError(
            "At least one data set must be there. Got none. Name the folder that has them by "
            "--data-dir."
        )
    return opened


def _nothing_there(request: ReproduceRequest) -> str:
    named = [f"claim {each}" for each in request.claims]
    named += [f"figure {each}" for each in request.figures]
    on = f" on {joined(request.datasets)}" if request.datasets else ""
    return (
        f"There is no experiment of {joined(named) or 'the paper'}{on} at scale {request.scale}. "
        "Name others, or another scale."
    )


def sweep_data(opened: PaperData) -> SweepData:
    """What cells must know of a data set."""
    problem = opened.problem
    return SweepData(
        name=opened.facts.name,
        task=opened.facts.task,
        num_rows=len(problem.y),
        fingerprint=problem.fingerprint(),
        num_inducing=opened.facts.num_inducing,
    )


def data_row(opened: PaperData) -> DataRow:
    """What the report tells of a data set."""
    facts = opened.facts
    rows, features = opened.problem.X.shape
    return DataRow(
        name=facts.name,
        task=facts.task,
        rows=rows,
        features=features,
        paper_rows=facts.rows,
        paper_features=facts.features,
        num_inducing=facts.num_inducing,
        origin=_ORIGINS[opened.origin],
        licence=facts.licence,
        source=facts.source,
        differences=opened.differences,
    )


def _needed(request: ReproduceRequest) -> list[str]:
    """Names of the data sets that any wanted cell is about, as far as the paper's table tells."""
    table = [
        SweepData(facts.name, facts.task, facts.rows, "", facts.num_inducing)
        for facts in PAPER.values()
    ]
    used = {cell.dataset for cell in cells_of(request, table)}
    return [name for name in PAPER if name in used]


def list_experiments(terminal: Terminal) -> None:
    """Claims, figures and scales."""
    terminal.answer(
        {
            "claims": [
                {"claim": c.id, "statement": c.statement, "where": c.where} for c in CLAIMS.values()
            ],
            "figures": [{"figure": f.name, "title": f.title} for f in FIGURES.values()],
            "scales": [{"scale": s.name, "about": s.about} for s in SCALES.values()],
        }
    )
    claims = [(c.id, c.statement, ", ".join(c.figures)) for c in CLAIMS.values()]
    terminal.show(_table("Claims", ("claim", "what the paper says", "figures"), claims))
    figures = [(f.name, f.title) for f in FIGURES.values()]
    terminal.show(_table("\nFigures", ("figure", "what it shows"), figures))
    scales = [(s.name, s.about) for s in SCALES.values()]
    terminal.show(_table("\nScales", ("scale", "what is run"), scales))


def _table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, no_wrap=i == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


@final
@dataclass(frozen=True)
class Place:
    """Workers, and "cpu" or "cuda" on each."""

    pool: Pool
    device: str


def place_of(request: ReproduceRequest, cells: Sequence[PaperCell]) -> Place:
    """What the request means; nothing is started yet."""
    if request.engine == "ray":
        return _on_ray(request)
    from directgp.estimators.settings import device_of

    device = device_of(request.device, "reproduce", max(cell.size for cell in cells)).type
    if request.engine == "inline":
        return Place(InProcess(), device)
    return Place(Processes(request.jobs or (cores() if device == "cpu" else 1)), device)


def _on_ray(request: ReproduceRequest) -> Place:
    """Its machines need not be like this one: a cell has a GPU where it is given one."""
    from directgp.experiments.ray import RayCluster

    pool = RayCluster(
        address=request.address,
        workers=request.jobs or cores(),
        cpus=request.cpus,
        gpus=request.gpus,
    )
    given = request.gpus > 0 and request.device != "cpu"
    return Place(pool, "cuda" if given else "cpu")


@contextmanager
def watching(terminal: Terminal) -> Iterator[SweepWatcher]:
    """What moves, lines, or nothing."""
    if not terminal.live:
        yield Lines(terminal.say)
        return
    with Live(console=console(err=True), transient=True, refresh_per_second=4) as live:
        yield LiveLines(live, Lines(_above(live) if terminal.talks else terminal.say))


def _above(live: Live) -> Callable[[str], None]:
    """Says lines above what moves: no other console knows where that is."""
    return lambda line: print_line(live.console, line)


@final
@dataclass
class Lines:
    """A line for each cell that is done."""

    say: Callable[[str], None]
    _total: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def begin(self, cells: Sequence[PaperCell], known: int) -> None:
        """Say how much there is to do."""
        self._total = len(cells)
        there = f" {plural(known, 'result')} there already." if known else ""
        self.say(f"{plural(len(cells), 'cell')} to run.{there}")

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        """Say what came of a cell."""
        self._done += 1
        self.say(f"[{self._done}/{self._total}] {cell.title}: {_told(result)}")

    def looking(self, active: Sequence[Activity]) -> None:
        """Nothing: lines are for what is done."""

    @property
    def clock(self) -> str:
        """Cells done, time spent, and time left at that pace."""
        spent = time.monotonic() - self._since
        text = f"{self._done} of {plural(self._total, 'cell')}, {duration(float(round(spent)))}"
        if not self._done:
            return text
        left = spent * (self._total - self._done) / self._done
        return f"{text}, {time_left(left)}"


@final
@dataclass
class LiveLines:
    """Lines, and below them what each worker is at."""

    live: Live
    lines: Lines
    _cells: Sequence[PaperCell] = field(default=(), init=False)

    def begin(self, cells: Sequence[PaperCell], known: int) -> None:
        """Begin."""
        self._cells = cells
        self.lines.begin(cells, known)

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        """A line."""
        self.lines.finished(cell, result)

    def looking(self, active: Sequence[Activity]) -> None:
        """Draw what is going on."""
        now = [Text(self._now(each), no_wrap=True, overflow="ellipsis") for each in active]
        self.live.update(Group(*now, Text(self.lines.clock, style="dim")))

    def _now(self, activity: Activity) -> str:
        title = self._cells[activity.cell].title
        if activity.step == 0:
            return f"{title}: starting"
        now = f"{title}: step {activity.step} of {activity.max_steps}"
        # Studies, which are no training, have none.
        return now if math.isnan(activity.loss) else f"{now}, loss {number(activity.loss, 4)}"


def _told(result: Finished | Refused) -> str:
    if isinstance(result, Refused):
        return f"failed: {result.reason}"
    outcome = result.outcome
    scores: dict[str, float] = {}
    if isinstance(outcome, FitOutcome):
        scores = outcome.scores
    elif isinstance(outcome, CurveOutcome):
        scores = outcome.points[-1].scores
    words = [f"{name} {number(value, 4)}" for name, value in scores.items()]
    return ", ".join([*words, duration(outcome.seconds)])


_STYLES = {"held": "green", "not held": "red", "not decided": "yellow"}


def verdict_table(told: Reproduction) -> Table:
    """A row a claim, with what was seen."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("claim", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was seen", overflow="fold")
    for claim, finding in told.findings:
        verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
        table.add_row(claim.id, verdict, Text(finding.sentence))
    return table


def summary(told: Reproduction) -> str:
    """How many claims held."""
    found = Counter[str](finding.verdict for _, finding in told.findings)
    counts = ", ".join(f"{found[verdict]} {verdict}" for verdict in _STYLES)
    return f"Of {plural(len(told.findings), 'claim')}: {counts}. Scale {told.scale}."


_NOTHING = "The folder must have results of this scale and seed. Got none. Run them first."


def run_and_report(request: ReproduceRequest, terminal: Terminal) -> None:
    """Run everything that is not known yet, judge the claims, write and show what came of it."""
    began, since = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    opened = open_all(request, terminal)
    cells = cells_of(request, [sweep_data(each) for each in opened.values()])
    where = None if request.report_only else place_of(request, cells)
    _prepare(request)
    with SharedStore(request.out / STORE) as store:
        _take_in(request, store, terminal)
        if where is not None:
            _run(where, cells, opened, store, terminal)
        results = _results(store, cells)
    if not results.records:
        raise InvalidInputError(_nothing(results))
    told = Reproduction(
        results=results,
        findings=tuple((claim, claim.judge(results)) for claim in _claims(request)),
        data=tuple(data_row(each) for each in opened.values()),
        scale=request.scale,
        scale_words=request.sizes.about,
        protocol=request.protocol or request.sizes.protocol,
        command=command_typed("--report-only"),
        began=began,
        seconds=time.perf_counter() - since,
        machine=f"{platform.system()} {platform.machine()}",
    )
    _show(told, write_reproduction(told, request.out), terminal)


def _prepare(request: ReproduceRequest) -> None:
    """Make the folder, or empty it; refuse to report from one that has nothing."""
    store = request.out / STORE
    if request.report_only and not request.merge and not store.exists():
        raise InvalidInputError(_NOTHING)
    request.out.mkdir(parents=True, exist_ok=True)
    if request.force:
        _check_alone(store)
        begin_anew(request.out)


def _check_alone(path: Path) -> None:
    """Refuse to delete a store that another program is writing to."""
    if not path.exists():
        return
    try:
        with SharedStore(path) as store:
            shared = bool(store.view().taken)
    except StoreError:
        # Damaged, or of another version: to be deleted all the more.
        return
    if shared:
        raise InvalidInputError(
            f"{path} is in use by another program. End it first, or name another folder by --out."
        )


def _take_in(request: ReproduceRequest, store: SharedStore, terminal: Terminal) -> None:
    for place in request.merge:
        merged = store.merge(store_in(place))
        terminal.say(
            f"{place}: {plural(merged.added, 'result')} taken in, {merged.known} known already, "
            f"{merged.differing} known with another outcome, of which ours is kept."
        )


def _run(
    where: Place,
    cells: Sequence[PaperCell],
    opened: dict[str, PaperData],
    store: SharedStore,
    terminal: Terminal,
) -> None:
    try:
        with watching(terminal) as watcher:
            run_sweep(
                cells,
                lambda name: opened[name].problem,
                store,
                where.pool,
                watcher=watcher,
                device=where.device,
            )
    except KeyboardInterrupt:
        terminal.say("What is finished is kept: the same command with --resume goes on.")
        raise


def _results(store: SharedStore, cells: Sequence[PaperCell]) -> Results:
    by_key = {cell.key: cell for cell in cells}
    records = store.records(by_key)
    failed = [each for each in store.failures() if each.cell.key in by_key]
    known = {record.cell.key for record in records} | {each.cell.key for each in failed}
    missing = tuple(cell for key, cell in by_key.items() if key not in known)
    return Results(tuple(records), tuple(failed), missing)


def _nothing(results: Results) -> str:
    if results.failed:
        return f"No cell could be finished. {results.failed[0].reason}"
    return _NOTHING


def _claims(request: ReproduceRequest) -> list[Claim]:
    """Those named; without any, those that the named figures show; without these, all."""
    if request.claims:
        return [claim for claim in CLAIMS.values() if claim.id in request.claims]
    shown = set(request.figures or FIGURES)
    return [claim for claim in CLAIMS.values() if shown & set(claim.figures)]


def _show(told: Reproduction, index: Path, terminal: Terminal) -> None:
    terminal.show(verdict_table(told))
    for failed in told.results.failed:
        terminal.warn(f"{failed.cell.title}, failed: {failed.reason}")
    if told.results.missing:
        terminal.warn(f"{plural(len(told.results.missing), 'cell')} of this scale not run yet.")
    terminal.show(f"\n{summary(told)}")
    terminal.show(f"Report:    {index}")
    terminal.answer(json.loads((index.parent / "verdicts.json").read_bytes()))
