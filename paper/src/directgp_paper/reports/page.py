"""Write the report of a reproduction."""

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from directgp.plots import RenderedPicture, render
from directgp.reports import damaged_sentence, render_page, write_files
from directgp.text import duration, joined, number, p_value, plural, with_error
from directgp_paper.diagnostics.bounds import BOUND_NAMES, MISPRINTS, bounds_table
from directgp_paper.experiments.cells import (
    PAPER_METHODS,
    FitCell,
    PaperCell,
    ProtocolName,
    Results,
)
from directgp_paper.experiments.claims.base import Assessment, ClaimReading, Finding, Part, Verdict
from directgp_paper.experiments.claims.runs import CONVERGED
from directgp_paper.experiments.run import Reproduction, to_parquet
from directgp_paper.reports.figures import FIGURES

_KINDS = {
    "fit": ("fit",),
    "curve": ("learning curve",),
    "gradients": ("study of gradients", "studies of gradients"),
    "samplers": ("study of samplers", "studies of samplers"),
}
"""Names of the kinds of cells, with irregular plurals."""

_SOURCE = {"not installed": "from its source"}

_PART_FIELDS = (
    *("what", "verdict", "effect", "error", "p_value", "unit", "note", "decides", "remedy"),
)
_CLAIM_FIELDS = ("id", "statement", "quote", "where", "figures")
_EVIDENCE_FIELDS = ("runs", "trained", "converged", "moved", "seconds")
_READING_FIELDS = ("name", "of", "criterion", "why")

ERRATA: list[dict[str, str]] = tomllib.loads(
    files("directgp_paper.experiments").joinpath("errata.toml").read_text(encoding="utf-8")
)["erratum"]
"""Errors of the paper: where, what is wrong, its effect, and what is done here."""

SCHEMA = 2
"""Version of the JSON document."""

SIGNS = {"held": "✓", "no difference": "=", "not held": "✗", "not decided": "?"}
"""Signs before the verdicts, so that they differ in more than colour."""

PROTOCOLS: dict[ProtocolName, str] = {
    "paper": (
        "paper: as in the paper. Adam with learning rate 0.1, in regression on batches of 6,000 "
        "rows where there are more; stopped when the loss has stayed within 0.0001 for 50 steps "
        "(20 for classes and counts), or after 5,000 steps (3,000); every β of the grid, in full "
        "n, n/2, n/4, …, 0.01, is trained from the start, and the one with the lowest validation "
        "loss is kept. "
        "Smaller scales may have a coarser grid and fewer steps."
    ),
    "best": (
        "best: the same rows, models, losses and scores, trained by the optimisers of directgp, "
        "which start from the solution of the ELBO and go along the grid of β from one solution "
        "to the next."
    ),
}

VERDICTS: dict[Verdict, str] = {
    "held": "Found here too, by the criterion of the reading.",
    "no difference": (
        "Nothing contradicts the claim, but two things that it calls different are the same within "
        "the margin, by two one-sided tests at 5 %."
    ),
    "not held": "Contradicted by the results, by that criterion.",
    "not decided": (
        "Cells that it needs were not run, failed or did not converge, or the repeats vary too "
        "much to decide; the comparisons say what would decide them."
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
        to_parquet(done.results, done.data, done.scale.name, done.protocol),
        ("verdicts.json", _document(done)),
        reproduction_page(done, pictures),
    )


def reproduction_page(done: Reproduction, pictures: Mapping[str, RenderedPicture]) -> str:
    """Return the page of a reproduction; each figure is shown by the first claim that has it."""
    left = dict(pictures)
    claims = []
    for assessment in done.claims:
        drawn = [name for name in assessment.claim.figures if name in pictures]
        here = {name: left.pop(name) for name in drawn if name in left}
        section = {
            "claim": assessment.claim,
            "judged": assessment.judged,
            "finding": assessment.finding,
            "evidence": evidence(assessment),
            "remedies": remedies(assessment.finding) if done.scale.judged else [],
            "shown": [(FIGURES[name], picture) for name, picture in here.items()],
            "elsewhere": [FIGURES[name] for name in drawn if name not in here],
            "absent": [name for name in assessment.claim.figures if name not in pictures],
        }
        claims.append(section)
    return render_page(
        "reproduction.html",
        ["report.css", "reproduction.css"],
        package="directgp_paper.reports",
        done=done,
        command=done.command,
        protocol=_named_protocols(done),
        headline=headline(done),
        second_line=second_line(done),
        claims=claims,
        others=[(FIGURES[name], picture) for name, picture in left.items()],
        run_facts=run_facts(done),
        effect_of=effect_of,
        p_value=p_value,
        signs=SIGNS,
        verdicts=VERDICTS,
        errata=ERRATA,
        misprints=MISPRINTS,
        bound_names=BOUND_NAMES,
        bounds=bounds(),
    )


def bounds() -> list[tuple[str, str, list[tuple[str, list[str]]]]]:
    """Return likelihood, targets, and each published bound with remarks, for every case."""
    cases: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
    for check in bounds_table():
        targets = ", ".join(f"{target:g}" for target in check.targets)
        remarks = [check.verdict]
        if check.verdict != "tight":
            remarks.insert(0, f"true {number(check.extremum)}")
        case = cases.setdefault((check.likelihood, targets), [])
        case.append((number(check.published), remarks))
    return [(*names, row) for names, row in cases.items()]


def headline(done: Reproduction) -> str:
    """Return ``11 of 14 claims held, 1 not held, 2 not decided`` as a sentence."""
    if not done.scale.judged:
        cells = plural(len(done.results.records), "cell")
        return f"{cells} ran. Scale {done.scale.name} is too small to judge a claim."
    counts = Counter(assessment.finding.verdict for assessment in done.claims)
    others = [f"{counts[v]} {v}" for v in get_args(Verdict)[1:] if counts[v]]
    held = f"{counts['held']} of {plural(len(done.claims), 'claim')} held"
    return f"{', '.join([held, *others])}."


def evidence(assessment: Assessment) -> str:
    """Return ``120 runs, 97 % converged, 2 h 1 min of processor time``.

    Curves that count as converged may still move.
    """
    if not assessment.runs:
        return "no runs"
    parts = [plural(assessment.runs, "run")]
    if assessment.trained:
        parts.append(f"{100 * assessment.converged // assessment.trained} % converged")
    if assessment.moved:
        parts[-1] += (
            f" (at most {number(assessment.moved, 2)} nats in the last fifth of their steps)"
        )
    return f"{', '.join(parts)}, {duration(assessment.seconds)} of processor or GPU time"


def remedies(finding: Finding) -> list[str]:
    """Return what would decide the comparisons that are not decided, each with its comparison.

    Those that were not run have one line a data set. There are none if the claim is decided.
    """
    undecided = finding.verdict == "not decided"
    parts = [part for part in finding.parts if undecided and part.decides and part.remedy]
    names = [(not part.clause and part.dataset) or part.what for part in parts]
    texts = [f"{name}: {part.remedy}" for name, part in zip(names, parts, strict=True)]
    return [*dict.fromkeys(texts)]


def second_line(done: Reproduction) -> str:
    """Return a sentence about scale, protocol, cells and repeats."""
    results = done.results
    repeats = plural(len({record.cell.repeat for record in results.records}), "repeat")
    parts = [f"{plural(len(results.records), 'cell')} run, up to {repeats}"]
    early = len(_stopped(results))
    if early:
        parts.append(f"{early:,} of {plural(len(results.of(FitCell)), 'fit')} stopped unconverged")
    if results.failed:
        parts.append(f"{plural(len(results.failed), 'cell')} failed")
    if results.missing:
        parts.append(f"{plural(len(results.missing), 'cell')} not run")
    return f"Scale {done.scale.name}, {_named_protocols(done)}: {'; '.join(parts)}."


def _named_protocols(done: Reproduction) -> str:
    """Return ``protocol best`` or ``protocols paper and best``."""
    names = _protocols(done)
    return f"{'protocol' if len(names) == 1 else 'protocols'} {joined(names)}"


def _protocols(done: Reproduction) -> list[ProtocolName]:
    """Return the protocols of the fits; without fits, the protocol of the run."""
    run = {record.cell.protocol for record in done.results.of(FitCell)} or {done.protocol}
    return [name for name in PROTOCOLS if name in run]


def run_facts(done: Reproduction) -> dict[str, str]:
    """Return the section about the run: values by name."""
    results = done.results
    about = [record.circumstances for record in results.records]
    where = Counter(f"{circumstances.machine} ({circumstances.device})" for circumstances in about)
    versions = Counter(
        ", ".join(
            f"{name} {_SOURCE.get(version, version)}" for name, version in one.versions.items()
        )
        for one in about
    )
    seconds = math.fsum(record.outcome.seconds for record in results.records)
    damaged = {"damaged": damaged_sentence(done.damaged)} if done.damaged else {}
    return {
        "scale": f"{done.scale.name}: {done.scale.about}",
        "protocol": " ".join(PROTOCOLS[name] for name in _protocols(done)),
        "cells run": counted_cells(record.cell for record in results.records),
        "cells not run": counted_cells(results.missing),
        "fits not converged": _unconverged(results),
        "β not trained": _not_trained(results),
        "versions": _tallied(versions),
        "machines of the cells": _tallied(where),
        "processor time": f"{duration(seconds)} in all cells together (elapsed time on a GPU)",
        "this run": f"{duration(done.seconds)} elapsed, began {done.began}, {done.machine}",
        **damaged,
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
    stopped = Counter(_stopped(results))
    every = Counter(r.cell.method for r in results.of(FitCell))
    if not stopped:
        return "none"
    methods = PAPER_METHODS.items()
    named = [f"{method.label} {stopped[m]} of {every[m]}" for m, method in methods if stopped[m]]
    total = f"{stopped.total():,} of {plural(every.total(), 'fit')}"
    return f"{total} stopped unconverged: {'; '.join(named)}"


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
        (tuple(about_run.versions.items()), about_run.machine, about_run.device)
        for about_run in (record.circumstances for record in results.records)
    )
    return {
        "schema": SCHEMA,
        "summary": headline(done),
        "judged": done.scale.judged,
        "verdicts": Counter(assessment.finding.verdict for assessment in done.claims),
        "claims": [
            {
                **{name: getattr(assessment.claim, name) for name in _CLAIM_FIELDS},
                "verdict": assessment.finding.verdict,
                "sentence": assessment.finding.sentence,
                **{name: getattr(assessment, name) for name in _EVIDENCE_FIELDS},
                "readings": [_reading(*judged) for judged in assessment.judged],
            }
            for assessment in done.claims
        ],
        "errata": ERRATA,
        "data": [row.model_dump() for row in done.data],
        "scale": done.scale.name,
        "protocol": done.protocol,
        "cells": {"finished": len(results.records)}
        | {name: len(getattr(results, name)) for name in ("failed", "missing")},
        "failed": [
            {"cell": failure.cell.title, "reason": failure.reason, "attempts": failure.attempts}
            for failure in results.failed
        ],
        "damaged": done.damaged,
        **{name: getattr(done, name) for name in ("command", "began", "seconds", "machine")},
        "circumstances": [
            {"versions": dict(versions), "machine": machine, "device": device, "cells": cells}
            for (versions, machine, device), cells in about.most_common()
        ],
    }


def _reading(reading: ClaimReading, finding: Finding) -> dict[str, Any]:
    return {
        **{name: getattr(reading, name) for name in _READING_FIELDS},
        "verdict": finding.verdict,
        "sentence": finding.sentence,
        "parts": [{k: getattr(part, k) for k in _PART_FIELDS} for part in finding.parts],
    }
