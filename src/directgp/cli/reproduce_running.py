"""What `directgp reproduce` does: open, run, judge, report."""

import json
import platform
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from directgp.cli.compare_running import command_typed, cores
from directgp.cli.reproduce_data import cells_of, data_row, open_all, sweep_data
from directgp.cli.reproduce_progress import watching
from directgp.cli.reproduce_request import STORE, ReproduceRequest, store_in
from directgp.cli.reproduce_table import summary, verdict_table
from directgp.cli.terminal import Terminal
from directgp.datasets.paper.opening import PaperData
from directgp.datasets.wording import several
from directgp.errors import InvalidInputError
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.claims.base import Claim
from directgp.experiments.paper.claims.registry import CLAIMS
from directgp.experiments.paper.reproduction import Reproduction
from directgp.experiments.paper.results import Results
from directgp.experiments.paper.store import SharedStore
from directgp.experiments.paper.sweeping import run_sweep
from directgp.experiments.pools import InProcess, Pool, Processes
from directgp.reports.paper.writing import write_reproduction


def run_and_report(request: ReproduceRequest, terminal: Terminal) -> None:
    """Run everything that is not known yet, judge the claims, write and show what came of it."""
    began, since = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    opened = open_all(request, terminal)
    cells = cells_of(request, [sweep_data(each) for each in opened.values()])
    request.out.mkdir(parents=True, exist_ok=True)
    if request.force:
        _begin_anew(request.out)
    with SharedStore(request.out / STORE) as store:
        _take_in(request, store, terminal)
        if not request.report_only:
            _run(request, cells, opened, store, terminal)
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


def _begin_anew(out: Path) -> None:
    """Forget the results and the report of an earlier run."""
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _take_in(request: ReproduceRequest, store: SharedStore, terminal: Terminal) -> None:
    for place in request.merge:
        merged = store.merge(store_in(place))
        terminal.say(
            f"{place}: {several(merged.added, 'result')} taken in, {merged.known} known already, "
            f"{merged.differing} known with another outcome, of which ours is kept."
        )


def _run(
    request: ReproduceRequest,
    cells: Sequence[PaperCell],
    opened: dict[str, PaperData],
    store: SharedStore,
    terminal: Terminal,
) -> None:
    from directgp.estimators.settings import device_of

    device = device_of(request.device, "reproduce", max(cell.size for cell in cells)).type
    try:
        with watching(terminal) as watcher:
            run_sweep(
                cells,
                lambda name: opened[name].problem,
                store,
                _pool(request, device),
                watcher=watcher,
                device=device,
            )
    except KeyboardInterrupt:
        terminal.say("What is finished is kept: the same command with --resume goes on.")
        raise


def _pool(request: ReproduceRequest, device: str) -> Pool:
    if request.engine == "inline":
        return InProcess()
    if request.engine == "local":
        return Processes(request.jobs or (cores() if device == "cpu" else 1))
    from directgp.experiments.ray_pool import RayCluster

    return RayCluster(
        address=request.address, workers=request.jobs, cpus=request.cpus, gpus=request.gpus
    )


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
    return "The folder must have results of this scale and seed. Got none. Run them first."


def _claims(request: ReproduceRequest) -> list[Claim]:
    """Those named, those that named figures show, or all."""
    if not request.claims and not request.figures:
        return list(CLAIMS.values())
    shown = set(request.figures)
    return [c for c in CLAIMS.values() if c.id in request.claims or shown & set(c.figures)]


def _show(told: Reproduction, index: Path, terminal: Terminal) -> None:
    terminal.show(verdict_table(told))
    for failed in told.results.failed:
        terminal.warn(f"{failed.cell.title}, failed: {failed.reason}")
    if told.results.missing:
        terminal.warn(f"{several(len(told.results.missing), 'cell')} of this scale not run yet.")
    terminal.show(f"\n{summary(told)}")
    terminal.show(f"Report:    {index}")
    terminal.answer(json.loads((index.parent / "verdicts.json").read_bytes()))
