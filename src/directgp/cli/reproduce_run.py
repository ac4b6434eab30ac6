"""Run experiments of the paper and print their verdicts."""

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from rich.table import Table
from rich.text import Text

from directgp.cli.experiment import (
    clear_run_folder,
    command_typed,
    cores,
    plain_table,
    show_progress,
)
from directgp.cli.terminal import Terminal, WrongUsageError
from directgp.datasets.paper.download import PaperData, open_paper
from directgp.datasets.paper.sets import PAPER
from directgp.errors import DirectGPError, InvalidInputError
from directgp.estimators.settings import device_of
from directgp.experiments.paper.cells import PaperCell, ProtocolName, Results
from directgp.experiments.paper.claims import CLAIMS
from directgp.experiments.paper.claims.base import Claim
from directgp.experiments.paper.run import DataRow, Reproduction, run_sweep
from directgp.experiments.paper.sweep import SCALES, Scale, SweepData, chosen, sweep
from directgp.experiments.ray import RayCluster
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers, Pool
from directgp.reports.paper import write_reproduction
from directgp.reports.paper_figures import FIGURES
from directgp.text import joined, plural, suggestion

STORE, DOCUMENT = "cells.sqlite", "verdicts.json"


def store_in(place: Path) -> Path:
    """Return the store of a folder, or the file itself."""
    return place / STORE if place.is_dir() else place


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
        """Raise `WrongUsageError` for options that are wrong for any data."""
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
            if (self.out / STORE).exists() and store_in(place).samefile(self.out / STORE):
                raise WrongUsageError(
                    f"--merge must be another folder than --out. Got {str(place)!r} for both."
                )

    def wanted(self) -> list[Callable[[PaperCell], bool]]:
        """Return the predicates of the named claims and figures; by default, all cells."""
        named = [CLAIMS[name].uses for name in self.claims]
        named += [FIGURES[name].uses for name in self.figures]
        every = named or [lambda cell: True]
        if not self.datasets:
            return every
        return [lambda cell: cell.dataset in self.datasets and any(uses(cell) for uses in every)]


_ORIGINS = {
    "folder": "the data folder",
    "fetched": "its public home",
    "generated": "its formula",
}


def cells_of(request: ReproduceRequest, data: Sequence[SweepData]) -> tuple[PaperCell, ...]:
    """Return the cells of the request on these data sets."""
    every = sweep(request.sizes, data, request.protocol, request.seed)
    return chosen(every, request.wanted())


def open_all(request: ReproduceRequest, terminal: Terminal) -> dict[str, PaperData]:
    """Open the data sets of the request; those that are missing are left out unless named."""
    table = [SweepData(f.name, f.task, f.rows, "", f.num_inducing) for f in PAPER.values()]
    used = {cell.dataset for cell in cells_of(request, table)}
    if not used:
        named = [f"claim {each}" for each in request.claims]
        named += [f"figure {each}" for each in request.figures]
        on = f" on {joined(request.datasets)}" if request.datasets else ""
        raise WrongUsageError(
            f"There is no experiment of {joined(named) or 'the paper'}{on} at scale "
            f"{request.scale}. Name others, or another scale."
        )
    opened: dict[str, PaperData] = {}
    for name in (name for name in PAPER if name in used):
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


def _sweep_data(opened: PaperData) -> SweepData:
    facts, problem = opened.facts, opened.problem
    return SweepData(
        facts.name, facts.task, len(problem.y), problem.fingerprint(), facts.num_inducing
    )


def _data_row(opened: PaperData) -> DataRow:
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


def list_experiments(terminal: Terminal) -> None:
    """Print claims, figures and scales."""
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
    terminal.show(plain_table(("claim", "what the paper says", "figures"), claims, "Claims"))
    figures = [(f.name, f.title) for f in FIGURES.values()]
    terminal.show(plain_table(("figure", "what it shows"), figures, "\nFigures"))
    scales = [(s.name, s.about) for s in SCALES.values()]
    terminal.show(plain_table(("scale", "what is run"), scales, "\nScales"))


def workers_of(request: ReproduceRequest, cells: Sequence[PaperCell]) -> tuple[Pool, str]:
    """Return the pool of the request, and "cpu" or "cuda"; nothing is started yet."""
    if request.engine == "ray":
        pool = RayCluster(request.address, request.jobs or cores(), request.cpus, request.gpus)
        # The machines of a cluster may differ from this one: a cell uses the GPU it is given.
        return pool, "cuda" if request.gpus > 0 and request.device != "cpu" else "cpu"
    device = device_of(request.device, "reproduce", max(cell.size for cell in cells)).type
    if request.engine == "inline":
        return InProcess(), device
    return LocalWorkers(request.jobs or (cores() if device == "cpu" else 1)), device


_STYLES = {"held": "green", "not held": "red", "not decided": "yellow"}


def verdict_table(found: Reproduction) -> Table:
    """Return the verdict and the evidence of each claim."""
    rows = [
        (claim.id, Text(finding.verdict, style=_STYLES[finding.verdict]), finding.sentence)
        for claim, finding in found.findings
    ]
    return plain_table(("claim", "verdict", "what was seen"), rows)


def summary(found: Reproduction) -> str:
    """Return the number of claims with each verdict."""
    verdicts = Counter[str](finding.verdict for _, finding in found.findings)
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in _STYLES)
    return f"Of {plural(len(found.findings), 'claim')}: {counts}. Scale {found.scale}."


_NO_RESULTS = "The folder must have results of this scale and seed. Got none. Run them first."


def run_and_report(request: ReproduceRequest, terminal: Terminal) -> None:
    """Run the cells that are not finished, judge the claims, and write and print the report."""
    began, since = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    opened = open_all(request, terminal)
    cells = cells_of(request, [_sweep_data(each) for each in opened.values()])
    workers = None if request.report_only else workers_of(request, cells)
    if request.report_only and not request.merge and not (request.out / STORE).exists():
        raise InvalidInputError(_NO_RESULTS)
    request.out.mkdir(parents=True, exist_ok=True)
    if request.force:
        clear_run_folder(request.out, STORE, DOCUMENT)
    with Store(request.out / STORE) as store:
        _merge(request, store, terminal)
        if workers is not None:
            pool, device = workers
            with show_progress(terminal, "cell") as callback:
                run_sweep(
                    cells,
                    lambda name: opened[name].problem,
                    store,
                    pool,
                    callback=callback,
                    device=device,
                )
        results = _results(store, cells)
    if not results.records:
        failed = results.failed
        raise InvalidInputError(
            f"No cell could be finished. {failed[0].reason}" if failed else _NO_RESULTS
        )
    found = Reproduction(
        results=results,
        findings=tuple((claim, claim.judge(results)) for claim in _claims(request)),
        data=tuple(_data_row(each) for each in opened.values()),
        scale=request.scale,
        scale_words=request.sizes.about,
        protocol=request.protocol or request.sizes.protocol,
        command=command_typed("--report-only"),
        began=began,
        seconds=time.perf_counter() - since,
        machine=f"{platform.system()} {platform.machine()}",
    )
    _print(found, write_reproduction(found, request.out), terminal)


def _merge(request: ReproduceRequest, store: Store, terminal: Terminal) -> None:
    for place in request.merge:
        merged = store.merge(store_in(place))
        terminal.note(
            f"{place}: {plural(merged.added, 'result')} added, {merged.known} known already, "
            f"{merged.differing} known with another outcome, of which ours is kept."
        )


def _results(store: Store, cells: Sequence[PaperCell]) -> Results:
    records, failed = store.records(cells), store.failures(cells)
    known = {each.cell for each in records} | {each.cell for each in failed}
    missing = tuple(cell for cell in cells if cell not in known)
    return Results(tuple(records), tuple(failed), missing)


def _claims(request: ReproduceRequest) -> list[Claim]:
    """Return the named claims, or those that the figures show; by default all."""
    if request.claims:
        return [claim for claim in CLAIMS.values() if claim.id in request.claims]
    shown = set(request.figures or FIGURES)
    return [claim for claim in CLAIMS.values() if shown & set(claim.figures)]


def _print(found: Reproduction, index: Path, terminal: Terminal) -> None:
    terminal.show(verdict_table(found))
    for failed in found.results.failed:
        terminal.warn(f"{failed.cell.title}, failed: {failed.reason}")
    if found.results.missing:
        terminal.warn(f"{plural(len(found.results.missing), 'cell')} of this scale not run yet.")
    terminal.show(f"\n{summary(found)}")
    terminal.show(f"Report:    {index}")
    terminal.answer(json.loads((index.parent / DOCUMENT).read_bytes()))
