"""The command `directgp reproduce`: run the experiments of the paper and judge its claims."""

import json as json_format
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

from rich.text import Text

from directgp.cli import (
    DataDir,
    Device,
    Force,
    Seed,
    Terminal,
    WrongUsageError,
    check_name,
    count_checked,
    jobs_option,
    output_option,
    panel,
    plain_table,
    split_names,
)
from directgp.errors import DirectGPError, InvalidInputError
from directgp.processes import start_server
from directgp.text import joined, plural

if TYPE_CHECKING:
    from directgp.experiments import Pool
    from directgp_paper.datasets.download import PaperData
    from directgp_paper.experiments.cells import PaperCell, Results
    from directgp_paper.experiments.claims.base import Claim
    from directgp_paper.experiments.run import Archive, DataRow, Reproduction
    from directgp_paper.experiments.sweep import Scale, SweepData
    from directgp_paper.reports.figures import PaperFigure

what_option = panel("What")
run_option = panel("How it is run")

_HELP: dict[str, str] = tomllib.loads(
    files("directgp_paper").joinpath("help.toml").read_text(encoding="utf-8")
)
"""The help of the options."""

_MAX_REPEATS = 1_000
_MAX_STEPS = 10**9

STORE = "cells.sqlite"
DOCUMENT = "verdicts.json"
RESULTS = "results.parquet"


def _names_option(text: str, name: str) -> Any:
    return what_option("NAME,…", text, name, callback=lambda value: split_names(value))


@final
@dataclass(frozen=True)
class Selection:
    """The options that select experiments."""

    claims: Annotated[list[str] | None, _names_option(_HELP["claim"], "--claim")] = None
    figures: Annotated[list[str] | None, _names_option(_HELP["figure"], "--figure")] = None
    datasets: Annotated[list[str] | None, _names_option(_HELP["dataset"], "--dataset")] = None
    scale: Annotated[
        Literal["smoke", "small", "full"] | None, what_option("NAME", _HELP["scale"])
    ] = None
    protocol: Annotated[Literal["paper", "best"] | None, what_option("NAME", _HELP["protocol"])] = (
        None
    )
    repeats: Annotated[
        int | None,
        what_option(
            "NUMBER",
            _HELP["repeats"],
            callback=count_checked("--repeats", _MAX_REPEATS),
        ),
    ] = None
    max_steps: Annotated[
        int | None,
        what_option(
            "NUMBER",
            _HELP["max_steps"],
            callback=count_checked("--max-steps", _MAX_STEPS),
        ),
    ] = None
    largest_only: Annotated[bool, what_option("", _HELP["largest_only"], "--largest-only")] = False
    seed: Seed = 0

    def check(self) -> None:
        """Raise `WrongUsageError` for an unknown claim, figure or data set."""
        from directgp_paper.datasets.sets import PAPER

        claims, figures = _claims_and_figures()
        for option, names, choices in (
            ("--claim", self.claims, tuple(claims)),
            ("--figure", self.figures, tuple(figures)),
            ("--dataset", self.datasets, tuple(PAPER)),
        ):
            for name in names or ():
                check_name(option, name, choices)

    def sizes(self) -> "Scale":
        """Return the scale, with the repeats, steps and sizes that are given."""
        from directgp_paper.experiments.sweep import SCALES

        return SCALES[self.scale or "smoke"].changed(
            self.max_steps, self.repeats, self.largest_only
        )

    def wants(self, cell: "PaperCell") -> bool:
        """Return whether a cell belongs to the claims, figures and data sets, by default all."""
        claims, figures = _claims_and_figures()
        uses = [claims[name].uses for name in self.claims or ()]
        uses += [figures[name].uses for name in self.figures or ()]
        named = not self.datasets or cell.dataset in self.datasets
        return named and (not uses or any(needs(cell) for needs in uses))

    def cells(self, data: "Sequence[SweepData]") -> "tuple[PaperCell, ...]":
        """Return the wanted cells of the scale on these data sets."""
        from directgp_paper.experiments.sweep import chosen, sweep

        return chosen(sweep(self.sizes(), data, self.protocol, self.seed), self.wants)

    def judged(self, cells: "Sequence[PaperCell]") -> "list[Claim]":
        """Return the named claims, or those of the figures or data sets; by default all."""
        claims, figures = _claims_and_figures()
        if self.claims:
            return [claim for claim in claims.values() if claim.id in self.claims]
        shown = set(self.figures or figures)
        related = [claim for claim in claims.values() if shown & set(claim.figures)]
        return [claim for claim in related if not self.datasets or any(map(claim.uses, cells))]

    def check_file(self, with_stores: bool) -> None:
        """Raise `WrongUsageError` for options that files of results cannot follow."""
        options = {
            "--scale": self.scale,
            "--protocol": self.protocol,
            "--repeats": self.repeats,
            "--max-steps": self.max_steps,
            "--largest-only": self.largest_only,
        }
        names = [name for name, value in options.items() if value]
        if names and not with_stores:
            raise WrongUsageError(
                f"{names[0]} selects what is run, and a file of results has been run. Leave it out."
            )


def _claims_and_figures() -> "tuple[dict[str, Claim], dict[str, PaperFigure]]":
    from directgp_paper.experiments.claims import CLAIMS
    from directgp_paper.reports.figures import FIGURES

    return CLAIMS, FIGURES


@final
@dataclass(frozen=True)
class Engine:
    """The options that say where cells are run."""

    engine: Annotated[Literal["local", "inline", "ray"], run_option("NAME", _HELP["engine"])] = (
        "local"
    )
    jobs: Annotated[int | None, jobs_option(run_option, _HELP["jobs"])] = None
    address: Annotated[str | None, run_option("ADDRESS", _HELP["address"])] = None
    cpus: Annotated[float | None, run_option("NUMBER", _HELP["cpus"])] = None
    gpus: Annotated[float | None, run_option("NUMBER", _HELP["gpus"])] = None
    device: Device = "cpu"

    def check(self) -> None:
        """Raise `WrongUsageError` for options that do not belong to the engine."""
        cpus = self.cpus
        gpus = self.gpus
        engine = self.engine
        if cpus is not None and not 0 < cpus < float("inf"):
            raise WrongUsageError(f"--cpus must be more than 0 and finite. Got {cpus:g}.")
        if gpus is not None and not 0 <= gpus < float("inf"):
            raise WrongUsageError(f"--gpus must be at least 0 and finite. Got {gpus:g}.")
        for name, value in (("--address", self.address), ("--cpus", cpus), ("--gpus", gpus)):
            if value is not None and engine != "ray":
                raise WrongUsageError(f"{name} is for --engine ray. Give it, or leave {name} out.")
        if self.jobs is not None and (engine == "inline" or self.address is not None):
            why = "--engine inline has one" if engine == "inline" else "the cluster has its own"
            raise WrongUsageError(
                f"--jobs is for workers that are started, and {why}. Leave it out."
            )
        if engine == "ray" and self.device == "cuda" and not gpus:
            raise WrongUsageError(
                "--device cuda needs --gpus with --engine ray. Give the GPUs of a cell, such as "
                "0.25."
            )

    def pool(self, cells: "Sequence[PaperCell]") -> "tuple[Pool, str]":
        """Return the pool of workers, and "cpu" or "cuda"; nothing is started yet."""
        from directgp.estimators import device_of
        from directgp.experiments import InProcess, LocalWorkers, RayCluster, cores

        if self.engine == "ray":
            gpus = self.gpus or 0.0
            pool = RayCluster(self.address, self.jobs or cores(), self.cpus or 1.0, gpus)
            # The machines of a cluster may differ from this one: a cell uses the GPU it is given.
            return pool, "cuda" if gpus > 0 and self.device != "cpu" else "cpu"
        kind = device_of(self.device, "reproduce", max(cell.size for cell in cells)).type
        if self.engine == "inline":
            return InProcess(), kind
        return LocalWorkers(self.jobs or (cores() if kind == "cpu" else 1)), kind


def reproduce(
    *,
    listed: Annotated[bool, what_option("", _HELP["list"], "--list")] = False,
    selected: Selection,
    data_dir: DataDir = None,
    download: Annotated[
        bool, what_option("", _HELP["download"], "--download/--no-download")
    ] = True,
    engine: Engine,
    out: Annotated[Path, output_option("FOLDER", _HELP["out"])] = Path("reproduction"),
    resume: Annotated[bool, output_option("", _HELP["resume"], "--resume")] = False,
    force: Force = False,
    report_only: Annotated[bool, output_option("", _HELP["report_only"], "--report-only")] = False,
    merge: Annotated[list[Path] | None, output_option("PATH", _HELP["merge"])] = None,
    terminal: Terminal,
) -> None:
    """Run the experiments of the paper, and report which of its claims hold.

    By default all experiments of the scale; claims, figures and data sets select some.
    """
    if listed:
        _list_experiments(terminal)
        return
    ways = {"--resume": resume, "--force": force, "--report-only": report_only}
    switches = [name for name, value in ways.items() if value]
    if force and len(switches) > 1:
        raise WrongUsageError(f"{' and '.join(switches)} cannot be given together. Leave one out.")
    engine.check()
    if engine.engine == "local" and not report_only:
        start_server()
    from directgp.cli import check_run_folder, command_typed
    from directgp.experiments import machine
    from directgp_paper.experiments.run import Reproduction

    check_run_folder(out, STORE, DOCUMENT, resume or report_only, force)
    selected = replace(selected, claims=[name.upper() for name in selected.claims or ()])
    selected.check()
    stores, archives = _merged(merge or (), out, report_only)
    if archives:
        # What was run is recorded in the file.
        selected.check_file(bool(stores))
        scale: Any = selected.scale or archives[0].scale
        protocol = selected.protocol or archives[0].protocol
        selected = replace(selected, scale=scale, protocol=protocol)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    since = time.perf_counter()
    opened = _open_all(selected, data_dir, download, bool(archives), terminal)
    rows = {row.name: row for archive in archives[::-1] for row in archive.data}
    rows |= {name: _data_row(data) for name, data in opened.items()}
    archived = _of_interest(archives, selected)
    cells = archived.cells
    if stores or not archives:
        swept = selected.cells([_sweep_data(row) for row in rows.values()])
        cells = [*dict.fromkeys([*swept, *cells])]
    workers = None if report_only else engine.pool(cells)
    if report_only and not stores and not archives and not (out / STORE).exists():
        raise InvalidInputError(_NO_RESULTS)
    results, damaged = _run(cells, opened, workers, out, force, (stores, archived), terminal)
    sizes = selected.sizes()
    used = {cell.dataset for cell in results.cells}
    reproduction = Reproduction(
        results=results,
        claims=tuple(claim.assess(results) for claim in selected.judged(results.cells)),
        data=tuple(row for row in rows.values() if row.name in used),
        scale=sizes,
        protocol=selected.protocol or sizes.protocol,
        # Results without models cannot be continued: that command is of a report again.
        command=command_typed(*(() if archives else ("--report-only",))),
        began=began,
        seconds=time.perf_counter() - since,
        machine=machine(),
        damaged=damaged,
    )
    _write_and_print(reproduction, out, terminal)


def _merged(
    places: Sequence[Path], out: Path, report_only: bool
) -> "tuple[dict[str, Path], list[Archive]]":
    """Return the stores to merge, and the content of files of results.

    Files of results have no models, from which other cells start: they are for reports alone.
    """
    from directgp_paper.experiments.run import read_parquet

    tables = [place for place in places if place.suffix == ".parquet"]
    if tables and not report_only:
        raise WrongUsageError(
            f"--merge with {tables[0].name} needs --report-only: the file has no trained models. "
            f"Give --report-only, or merge {STORE}."
        )
    for place in tables:
        if not place.is_file():
            raise WrongUsageError(f"--merge must be a file that exists. Got {str(place)!r}.")
        if (out / RESULTS).exists() and place.samefile(out / RESULTS):
            raise WrongUsageError(
                f"--out must be another folder than that of {place}, which would be overwritten."
            )
    stores = {str(place): _checked_store(place, out) for place in places if place not in tables}
    return stores, [read_parquet(place) for place in tables]


def _of_interest(archives: "Sequence[Archive]", selected: Selection) -> "Results":
    """Return the archived results that are selected, of any scale; of equal cells the first."""
    from directgp_paper.experiments.cells import Results

    records = {
        record.cell: record for archive in archives[::-1] for record in archive.results.records
    }
    failed = {
        failure.cell: failure for archive in archives[::-1] for failure in archive.results.failed
    }
    missing = dict.fromkeys(cell for archive in archives for cell in archive.results.missing)
    return Results(
        tuple(record for cell, record in records.items() if selected.wants(cell)),
        tuple(failure for cell, failure in failed.items() if selected.wants(cell)),
        tuple(filter(selected.wants, missing)),
    )


def _checked_store(place: Path, out: Path) -> Path:
    """Return the store to merge, given itself or its folder; raise `WrongUsageError` if wrong."""
    from directgp.experiments import is_store

    path = place / STORE if place.is_dir() else place
    if not (path.is_file() and is_store(path)):
        raise WrongUsageError(
            f"--merge must be a folder with {STORE}, such a file, or a {RESULTS}. Got "
            f"{str(place)!r}."
        )
    if (out / STORE).exists() and path.samefile(out / STORE):
        raise WrongUsageError(
            f"--merge must be another folder than --out. Got {str(place)!r} for both."
        )
    return path


def _open_all(
    selected: Selection, data_dir: Path | None, download: bool, archived: bool, terminal: Terminal
) -> "dict[str, PaperData]":
    """Open the selected data sets, without missing ones unless they are named.

    None is opened if there are archived results, which have the facts of their data sets.
    """
    from directgp_paper.datasets.download import open_paper
    from directgp_paper.datasets.sets import PAPER
    from directgp_paper.experiments.sweep import SweepData

    if archived:
        return {}
    table = [
        SweepData(facts.name, facts.task, facts.rows, "", facts.num_inducing)
        for facts in PAPER.values()
    ]
    used = {cell.dataset for cell in selected.cells(table)}
    if not used:
        named = [f"claim {claim}" for claim in selected.claims or ()]
        named += [f"figure {figure}" for figure in selected.figures or ()]
        on = f" on {joined(selected.datasets)}" if selected.datasets else ""
        raise WrongUsageError(
            f"There is no experiment of {joined(named) or 'the paper'}{on} at scale "
            f"{selected.sizes().name}. Name others, or another scale."
        )
    opened = {}
    for name in (name for name in PAPER if name in used):
        try:
            opened[name] = open_paper(name, data_dir, download)
        except DirectGPError as error:
            if name in (selected.datasets or ()):
                raise
            terminal.warn(f"Left out: {error}")
    if not opened:
        raise InvalidInputError(
            "At least one data set must be there. Got none. Name the folder that has them by "
            "--data-dir."
        )
    return opened


def _sweep_data(row: "DataRow") -> "SweepData":
    from directgp_paper.experiments.sweep import SweepData

    return SweepData(row.name, row.task, row.rows, row.fingerprint, row.num_inducing)


_ORIGINS = {"folder": "the data folder", "fetched": "its public source", "generated": "its formula"}


def _data_row(opened: "PaperData") -> "DataRow":
    from directgp_paper.experiments.run import DataRow

    facts = opened.facts
    rows, features = opened.problem.X.shape
    same = ("name", "task", "num_inducing", "licence", "source")
    return DataRow(
        **{name: getattr(facts, name) for name in same},
        rows=rows,
        features=features,
        fingerprint=opened.problem.fingerprint(),
        paper_rows=facts.rows,
        paper_features=facts.features,
        origin=_ORIGINS[opened.origin],
        differences=opened.differences,
    )


_NO_RESULTS = "The folder must have results of this scale and seed. Got none. Run them first."


def _run(
    cells: "Sequence[PaperCell]",
    opened: "dict[str, PaperData]",
    workers: "tuple[Pool, str] | None",
    out: Path,
    force: bool,
    merged: "tuple[dict[str, Path], Results]",
    terminal: Terminal,
) -> "tuple[Results, int]":
    """Merge other stores, run the cells that are not finished, and return all results.

    Results in memory are added to the results of the store. The number of damaged results in the
    store is returned, too.
    """
    from directgp.cli import open_run_folder, show_progress
    from directgp.experiments import Store
    from directgp.reports import damaged_sentence
    from directgp_paper.experiments.cells import Results
    from directgp_paper.experiments.run import run_sweep

    open_run_folder(out, STORE, force)
    with Store(out / STORE) as store:
        for place, path in merged[0].items():
            counts = store.merge(path)
            terminal.note(
                f"{place}: {plural(counts.added, 'result')} added, {counts.shared} known already, "
                f"{counts.differing} known with another outcome, which is not taken."
            )
            if counts.damaged:
                terminal.warn(f"{place}: {damaged_sentence(counts.damaged)}")
        if workers is not None:
            pool, device = workers
            with show_progress(terminal, "cell") as callback:
                run = partial(run_sweep, callback=callback, device=device)
                run(cells, lambda name: opened[name].problem, store, pool)
        else:
            store.find_damaged()
        records = store.records(cells)
        failed = store.failures(cells)
    stored = {record.cell for record in records}
    records += [record for record in merged[1].records if record.cell not in stored]
    concluded = {record.cell for record in records}
    tried = {failure.cell for failure in failed}
    failed += [failure for failure in merged[1].failed if failure.cell not in tried]
    failed = [failure for failure in failed if failure.cell not in concluded]
    if not records:
        reason = f"No cell could be finished. {failed[0].reason}" if failed else _NO_RESULTS
        raise InvalidInputError(reason)
    concluded |= {failure.cell for failure in failed}
    missing = tuple(cell for cell in cells if cell not in concluded)
    return Results(tuple(records), tuple(failed), missing), len(store.damaged)


_STYLES = {"held": "green", "no difference": "cyan", "not held": "red", "not decided": "yellow"}


def _write_and_print(done: "Reproduction", out: Path, terminal: Terminal) -> None:
    from directgp.cli import check_kept
    from directgp.reports import damaged_sentence
    from directgp_paper.reports.page import headline, write_reproduction

    index = write_reproduction(done, out)
    check_kept(out, STORE)
    if done.damaged:
        terminal.warn(damaged_sentence(done.damaged))
    if done.scale.judged:
        rows = [
            (
                assessment.claim.id,
                Text(assessment.finding.verdict, style=_STYLES[assessment.finding.verdict]),
                assessment.finding.sentence,
            )
            for assessment in done.claims
        ]
        terminal.show(plain_table("", ("claim", "verdict", "found here"), rows))
    for failed in done.results.failed:
        terminal.warn(f"{failed.cell.title}, failed: {failed.reason}")
    if done.results.missing:
        terminal.warn(f"{plural(len(done.results.missing), 'cell')} of this scale not run yet.")
    scale = f" Scale {done.scale.name}." if done.scale.judged else ""
    terminal.show(f"\n{headline(done)}{scale}")
    terminal.show(f"Report:    {index}")
    terminal.answer(json_format.loads((out / DOCUMENT).read_bytes()))


def _list_experiments(terminal: Terminal) -> None:
    """Print claims, figures and scales."""
    from directgp_paper.experiments.sweep import SCALES

    claims_by_id, figures_by_name = _claims_and_figures()
    claims = claims_by_id.values()
    figures = figures_by_name.values()
    scales = SCALES.values()
    terminal.answer(
        {
            "claims": [{"claim": c.id, "statement": c.statement, "where": c.where} for c in claims],
            "figures": [{"figure": f.name, "title": f.title} for f in figures],
            "scales": [{"scale": s.name, "about": s.about} for s in scales],
        }
    )
    rows = [(c.id, ", ".join(c.figures), c.statement) for c in claims]
    terminal.show(plain_table("Claims", ("claim", "figures", "what the paper says"), rows))
    shown = [(f.name, f.title) for f in figures]
    run = [(s.name, s.about) for s in scales]
    terminal.show(plain_table("\nFigures", ("figure", "what it shows"), shown))
    terminal.show(plain_table("\nScales", ("scale", "what is run"), run))
