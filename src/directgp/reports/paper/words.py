"""What the page says of a whole reproduction."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import get_args

from directgp.datasets.wording import joined, several
from directgp.experiments.methods import METHODS
from directgp.experiments.paper.cells import PaperCell, Protocol
from directgp.experiments.paper.claims.base import Part, Verdict
from directgp.experiments.paper.claims.fits import CONVERGED
from directgp.experiments.paper.claims.wording import amount, p_text
from directgp.experiments.paper.reproduction import Reproduction
from directgp.experiments.paper.results import Results
from directgp.reports.numbers import duration

KINDS = {
    "fit": "fit",
    "curve": "learning curve",
    "gradients": "study of gradients",
    "samplers": "study of samplers",
}
"""Kinds of cells, in words."""

_SOURCE = {"not installed": "from its source"}

_MANY = {"study of gradients": "studies of gradients", "study of samplers": "studies of samplers"}

PROTOCOLS: dict[Protocol, str] = {
    "paper": (
        "paper: as the paper says. Adam with learning rate 0.1 on all rows and 0.001 on "
        "mini-batches; stopped when the loss has stayed within 0.0001 for 50 steps (20 for classes "
        "and counts), or after 5,000 steps (3,000); every β of the grid, in full n, n/2, n/4, …, "
        "0.01, is trained from the start, and the one with the lowest validation loss is kept. "
        "Smaller scales may have a coarser grid and fewer steps."
    ),
    "best": (
        "best: the same rows, models, losses and scores, trained by the optimisers of directgp, "
        "which begin at the solution of the ELBO and go down the grid of β from one solution to "
        "the next."
    ),
}

VERDICTS: dict[Verdict, str] = {
    "held": "Found here too, by the criterion that was fixed beforehand.",
    "not held": "Contradicted by what was run, by that criterion.",
    "not decided": (
        "Cells that it needs were not run or failed, or the repeats scatter too much to tell."
    ),
}


def headline(told: Reproduction) -> str:
    """``11 of 14 claims held, 1 not held, 2 not decided``, as a sentence."""
    counts = Counter(finding.verdict for _, finding in told.findings)
    total = several(len(told.findings), "claim")
    others = [f"{counts[v]} {v}" for v in get_args(Verdict)[1:] if counts[v]]
    held = f"{counts['held']} of {total} held"
    return f"{', '.join([held, *others])}."


def second_line(told: Reproduction) -> str:
    """Scale, protocol, cells and repeats."""
    results = told.results
    repeats = len({record.cell.repeat for record in results.records})
    parts = [f"{several(len(results.records), 'cell')} run, {several(repeats, 'repeat')}"]
    early = len(_stopped(results))
    if early:
        parts.append(f"{early:,} of {several(len(results.fits()), 'fit')} stopped unconverged")
    if results.failed:
        parts.append(f"{several(len(results.failed), 'cell')} failed")
    if results.missing:
        parts.append(f"{several(len(results.missing), 'cell')} not run")
    return f"Scale {told.scale}, protocol {told.protocol}: {'; '.join(parts)}."


def counted_cells(cells: Iterable[PaperCell]) -> str:
    """``12 fits (pol, song) and 1 learning curve (airline)``; "none" if there is none."""
    sets: dict[str, list[str]] = {}
    for cell in cells:
        sets.setdefault(cell.kind, []).append(cell.dataset)
    every = [
        f"{_several(len(sets[kind]), noun)} ({', '.join(dict.fromkeys(sets[kind]))})"
        for kind, noun in KINDS.items()
        if kind in sets
    ]
    return joined(every) if every else "none"


def run_facts(told: Reproduction) -> dict[str, str]:
    """How it was run, as pairs of a name and what there is to say."""
    records = told.results.records
    seconds = math.fsum(record.outcome.seconds for record in records)
    where = Counter(f"{r.circumstances.machine} ({r.circumstances.device})" for r in records)
    by = Counter(_versions(record.circumstances.versions) for record in records)
    return {
        "scale": f"{told.scale}: {told.scale_words}",
        "protocol": PROTOCOLS[told.protocol],
        "cells run": counted_cells(record.cell for record in records),
        "cells not run": counted_cells(told.results.missing),
        "fits not converged": _unconverged(told.results),
        "β passed over": _passed_over(told),
        "versions": _tallied(by),
        "machines of the cells": _tallied(where),
        "processor time": f"{duration(seconds)} in all cells together (by the clock on a GPU)",
        "this run": f"{duration(told.seconds)} by the clock, began {told.began}, {told.machine}",
    }


def _stopped(results: Results) -> list[str]:
    """Methods of the fits that ended at a limit of steps, or otherwise early."""
    return [cell.method for cell, outcome in results.fits() if outcome.status != CONVERGED]


def _unconverged(results: Results) -> str:
    """``2 of 10 fits ended at their limit of steps: FITC 2 of 5``, so that nobody is misled."""
    stopped, every = Counter(_stopped(results)), Counter(cell.method for cell, _ in results.fits())
    if not stopped:
        return "none"
    named = [f"{METHODS[m].label} {stopped[m]} of {every[m]}" for m in METHODS if stopped[m]]
    total = f"{stopped.total():,} of {several(every.total(), 'fit')}"
    return f"{total} ended at their limit of steps: {'; '.join(named)}"


def _passed_over(told: Reproduction) -> str:
    """Values of β that could not be trained within fits that were finished."""
    fits = [outcome.failed for _, outcome in told.results.fits() if outcome.failed]
    if not fits:
        return "none"
    values = several(sum(map(len, fits)), "value")
    return f"{values} in {several(len(fits), 'fit')} could not be trained; the first: {fits[0][0]}"


def effect_of(part: Part) -> str:
    """``−0.103 ± 0.012 NLL``; a dash where it was not run."""
    if math.isnan(part.effect):
        return "–"
    return f"{amount(part.effect, part.error)} {part.unit}".rstrip()


def p_of(part: Part) -> str:
    """``p = 0.012``; a dash where there is no test."""
    return p_text(part.p_value) or "–"


def _several(number: int, noun: str) -> str:
    plural = _MANY.get(noun)
    return f"{number:,} {plural}" if plural and number != 1 else several(number, noun)


def _versions(versions: dict[str, str]) -> str:
    """``python 3.12.3, torch 2.13.0``; what is not installed was run from its source."""
    return ", ".join(f"{name} {_SOURCE.get(each, each)}" for name, each in versions.items())


def _tallied(counts: Counter[str]) -> str:
    """One alone as it is, several with their numbers of cells."""
    if len(counts) < 2:
        return "".join(counts) or "none"
    return "; ".join(f"{text}: {several(n, 'cell')}" for text, n in counts.most_common())
