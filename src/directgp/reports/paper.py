"""Write the report of a reproduction."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from directgp.experiments.cell import METHODS
from directgp.experiments.paper.cells import (
    CurveCell,
    CurveOutcome,
    FitCell,
    FitOutcome,
    PaperCell,
    PaperRecord,
    ProtocolName,
    Results,
)
from directgp.experiments.paper.claims.base import Part, Verdict
from directgp.experiments.paper.claims.fits import CONVERGED
from directgp.experiments.paper.run import Reproduction
from directgp.metrics import RMSE, SCORES
from directgp.plots.rendering import RenderedPicture, render
from directgp.reports.html import parquet, render_page, write_files
from directgp.reports.paper_figures import FIGURES, method_of
from directgp.text import duration, joined, p_value, plural, with_error

_KINDS = {
    "fit": ("fit",),
    "curve": ("learning curve",),
    "gradients": ("study of gradients", "studies of gradients"),
    "samplers": ("study of samplers", "studies of samplers"),
}
"""Names of the kinds of cells, with irregular plurals."""

_SOURCE = {"not installed": "from its source"}

_PART_FIELDS = ("what", "verdict", "effect", "error", "p_value", "unit", "note", "decides")
_CLAIM_FIELDS = ("id", "statement", "where", "criterion", "figures")

_SCORE_NAMES = dict.fromkeys(s.name for each in SCORES.values() for s in each if s is not RMSE)
"""The scores of the paper's experiments, which have no RMSE."""

_COLUMNS = (
    ("string", ("key", "kind", "dataset", "task")),
    ("int64", ("size", "num_inducing", "repeat", "seed")),
    ("string", ("method", "rule", "protocol")),
    ("float64", ("beta", *_SCORE_NAMES)),
    ("float64", ("seconds",)),
    ("string", ("status", "reason", "machine", "device", "finished", "versions")),
)
"""Columns of results.parquet."""

SCHEMA = 1
"""Version of the JSON document."""

SIGNS = {"held": "✓", "not held": "✗", "not decided": "?"}
"""Signs before the verdicts, so that they differ in more than colour."""

PROTOCOLS: dict[ProtocolName, str] = {
    "paper": (
        "paper: as in the paper. Adam with learning rate 0.1 on all rows and 0.001 on "
        "mini-batches; stopped when the loss has stayed within 0.0001 for 50 steps (20 for classes "
        "and counts), or after 5,000 steps (3,000); every β of the grid, in full n, n/2, n/4, …, "
        "0.01, is trained from the start, and the one with the lowest validation loss is kept. "
        "Smaller scales may have a coarser grid and fewer steps."
    ),
    "best": (
        "best: the same rows, models, losses and scores, trained by the optimisers of directgp, "
        "which start from the solution of the ELBO and go along the grid of β from one solution "
        "to the next."
    ),
}

VERDICTS: dict[Verdict, str] = {
    "held": "Found here too, by the criterion that was fixed beforehand.",
    "not held": "Contradicted by the results, by that criterion.",
    "not decided": (
        "Cells that it needs were not run or failed, or the repeats vary too much to decide."
    ),
}


def write_reproduction(done: Reproduction, folder: Path) -> Path:
    """Write figures, results, verdicts and page of a reproduction, and return the page's path.

    Files of an earlier report in the folder are replaced, and its other figures are removed.
    """
    every = {name: figure.picture(done.results) for name, figure in FIGURES.items()}
    pictures = {name: render(picture) for name, picture in every.items() if picture}
    return write_files(
        folder,
        pictures.values(),
        [figure.file for figure in FIGURES.values()],
        cells_parquet(done.results),
        ("verdicts.json", _document(done)),
        reproduction_page(done, pictures),
    )


def reproduction_page(done: Reproduction, pictures: Mapping[str, RenderedPicture]) -> str:
    """Return the page of a reproduction; each figure is shown by the first claim that has it."""
    left = dict(pictures)
    claims = []
    for claim, finding in done.findings:
        drawn = [name for name in claim.figures if name in pictures]
        here = {name: left.pop(name) for name in drawn if name in left}
        section = {
            "claim": claim,
            "finding": finding,
            "shown": [(FIGURES[name], picture) for name, picture in here.items()],
            "elsewhere": [FIGURES[name] for name in drawn if name not in here],
            "absent": [name for name in claim.figures if name not in pictures],
        }
        claims.append(section)
    return render_page(
        "reproduction.html",
        ["report.css", "reproduction.css"],
        done=done,
        command=done.command,
        headline=headline(done),
        second_line=second_line(done),
        claims=claims,
        others=[(FIGURES[name], each) for name, each in left.items()],
        run_facts=run_facts(done),
        effect_of=effect_of,
        p_value=p_value,
        signs=SIGNS,
        verdicts=VERDICTS,
    )


def headline(done: Reproduction) -> str:
    """Return ``11 of 14 claims held, 1 not held, 2 not decided`` as a sentence."""
    counts = Counter(finding.verdict for _, finding in done.findings)
    others = [f"{counts[v]} {v}" for v in get_args(Verdict)[1:] if counts[v]]
    held = f"{counts['held']} of {plural(len(done.findings), 'claim')} held"
    return f"{', '.join([held, *others])}."


def second_line(done: Reproduction) -> str:
    """Return a sentence about scale, protocol, cells and repeats."""
    results = done.results
    repeats = len({record.cell.repeat for record in results.records})
    parts = [f"{plural(len(results.records), 'cell')} run, {plural(repeats, 'repeat')}"]
    early = len(_stopped(results))
    if early:
        parts.append(f"{early:,} of {plural(len(results.of(FitCell)), 'fit')} stopped unconverged")
    if results.failed:
        parts.append(f"{plural(len(results.failed), 'cell')} failed")
    if results.missing:
        parts.append(f"{plural(len(results.missing), 'cell')} not run")
    return f"Scale {done.scale}, protocol {done.protocol}: {'; '.join(parts)}."


def run_facts(done: Reproduction) -> dict[str, str]:
    """Return the section about the run: values by name."""
    results = done.results
    about = [record.circumstances for record in results.records]
    where = Counter(f"{each.machine} ({each.device})" for each in about)
    versions = Counter(
        ", ".join(f"{name} {_SOURCE.get(each, each)}" for name, each in one.versions.items())
        for one in about
    )
    seconds = math.fsum(record.outcome.seconds for record in results.records)
    return {
        "scale": f"{done.scale}: {done.scale_words}",
        "protocol": PROTOCOLS[done.protocol],
        "cells run": counted_cells(record.cell for record in results.records),
        "cells not run": counted_cells(results.missing),
        "fits not converged": _unconverged(results),
        "β not trained": _not_trained(results),
        "versions": _tallied(versions),
        "machines of the cells": _tallied(where),
        "processor time": f"{duration(seconds)} in all cells together (elapsed time on a GPU)",
        "this run": f"{duration(done.seconds)} elapsed, began {done.began}, {done.machine}",
    }


def counted_cells(cells: Iterable[PaperCell]) -> str:
    """Return ``12 fits (pol, song) and 1 learning curve (airline)``, or "none"."""
    sets: dict[str, list[str]] = {}
    for cell in cells:
        sets.setdefault(cell.kind, []).append(cell.dataset)
    every = [
        f"{plural(len(names), *nouns)} ({', '.join(dict.fromkeys(names))})"
        for kind, nouns in _KINDS.items()
        if (names := sets.get(kind))
    ]
    return joined(every) if every else "none"


def _stopped(results: Results) -> list[str]:
    """Return the methods of the fits that did not converge."""
    return [r.cell.method for r in results.of(FitCell) if r.outcome.status != CONVERGED]


def _unconverged(results: Results) -> str:
    stopped, every = Counter(_stopped(results)), Counter(r.cell.method for r in results.of(FitCell))
    if not stopped:
        return "none"
    named = [f"{METHODS[m].label} {stopped[m]} of {every[m]}" for m in METHODS if stopped[m]]
    total = f"{stopped.total():,} of {plural(every.total(), 'fit')}"
    return f"{total} reached the limit of steps: {'; '.join(named)}"


def _not_trained(results: Results) -> str:
    """Describe the values of β that could not be trained within finished fits."""
    fits = [r.outcome.failed for r in results.of(FitCell) if r.outcome.failed]
    if not fits:
        return "none"
    values = plural(sum(map(len, fits)), "value")
    return f"{values} in {plural(len(fits), 'fit')} could not be trained; the first: {fits[0][0]}"


def _tallied(counts: Counter[str]) -> str:
    """Return a single text as it is, several with their numbers of cells."""
    if len(counts) < 2:
        return "".join(counts) or "none"
    return "; ".join(f"{text}: {plural(n, 'cell')}" for text, n in counts.most_common())


def effect_of(part: Part) -> str:
    """Return ``−0.103 ± 0.012 NLL``; a dash if the part was not run."""
    if math.isnan(part.effect):
        return "–"
    return f"{with_error(part.effect, part.error)} {part.unit}".rstrip()


def _document(done: Reproduction) -> dict[str, Any]:
    """Return the content of verdicts.json."""
    results = done.results
    about = Counter(
        (tuple(each.versions.items()), each.machine, each.device)
        for each in (record.circumstances for record in results.records)
    )
    return {
        "schema": SCHEMA,
        "summary": headline(done),
        "verdicts": Counter(finding.verdict for _, finding in done.findings),
        "claims": [
            {
                **{name: getattr(claim, name) for name in _CLAIM_FIELDS},
                "verdict": finding.verdict,
                "sentence": finding.sentence,
                "parts": [{k: getattr(part, k) for k in _PART_FIELDS} for part in finding.parts],
            }
            for claim, finding in done.findings
        ],
        "data": [asdict(row) for row in done.data],
        "scale": done.scale,
        "protocol": done.protocol,
        "cells": {"finished": len(results.records)}
        | {name: len(getattr(results, name)) for name in ("failed", "missing")},
        "failed": [
            {"cell": each.cell.title, "reason": each.reason, "attempts": each.attempts}
            for each in results.failed
        ],
        **{name: getattr(done, name) for name in ("command", "began", "seconds", "machine")},
        "circumstances": [
            {"versions": dict(versions), "machine": machine, "device": device, "cells": cells}
            for (versions, machine, device), cells in about.most_common()
        ],
    }


def cells_parquet(results: Results) -> bytes:
    """Return results.parquet: one row a cell; cells that failed or were not run have no scores."""
    rows = [_finished(record) for record in results.records]
    rows += [
        {**_cell(each.cell), "status": "failed", "reason": each.reason} for each in results.failed
    ]
    rows += [{**_cell(cell), "status": "not run"} for cell in results.missing]
    return parquet(rows, _COLUMNS)


def _cell(cell: PaperCell) -> dict[str, Any]:
    shared = ("key", "kind", "dataset", "task", "size", "num_inducing", "repeat", "seed")
    row = {name: getattr(cell, name) for name in shared}
    if isinstance(cell, FitCell):
        return row | {"method": cell.method, "rule": cell.rule.label, "protocol": cell.protocol}
    if isinstance(cell, CurveCell):
        row |= {"method": method_of(cell), "rule": cell.rule.label}
    return row | {"beta": cell.beta}


def _finished(record: PaperRecord) -> dict[str, Any]:
    """Return the row of a finished cell; the scores of a curve are those at its end."""
    outcome, about = record.outcome, record.circumstances
    row = _cell(record.cell) | {"status": "finished", "seconds": outcome.seconds}
    row |= {"machine": about.machine, "device": about.device, "finished": about.finished}
    row["versions"] = json.dumps(about.versions)
    if isinstance(outcome, FitOutcome):
        row |= {**outcome.scores, "beta": outcome.beta}
    elif isinstance(outcome, CurveOutcome):
        row |= outcome.points[-1].scores if outcome.points else {}
    if isinstance(outcome, FitOutcome | CurveOutcome):
        row |= {"status": outcome.status, "reason": outcome.reason}
    return row
