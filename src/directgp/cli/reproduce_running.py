"""What `directgp reproduce` does: open, run, judge, report."""

import json
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from directgp.cli.compare_running import command_typed
from directgp.cli.reproduce_data import cells_of, data_row, open_all, sweep_data
from directgp.cli.reproduce_folder import STORE, begin_anew, store_in
from directgp.cli.reproduce_place import Place, place_of
from directgp.cli.reproduce_progress import watching
from directgp.cli.reproduce_request import ReproduceRequest
from directgp.cli.reproduce_table import summary, verdict_table
from directgp.cli.terminal import Terminal
from directgp.datasets.paper.opening import PaperData
from directgp.datasets.wording import several
from directgp.errors import InvalidInputError, StoreError
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.claims.base import Claim
from directgp.experiments.paper.claims.registry import CLAIMS
from directgp.experiments.paper.reproduction import Reproduction
from directgp.experiments.paper.results import Results
from directgp.experiments.paper.store import SharedStore
from directgp.experiments.paper.sweeping import run_sweep
from directgp.reports.paper.figures.registry import FIGURES
from directgp.reports.paper.writing import write_reproduction

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
            f"{place}: {several(merged.added, 'result')} taken in, {merged.known} known already, "
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
        terminal.warn(f"{several(len(told.results.missing), 'cell')} of this scale not run yet.")
    terminal.show(f"\n{summary(told)}")
    terminal.show(f"Report:    {index}")
    terminal.answer(json.loads((index.parent / "verdicts.json").read_bytes()))
