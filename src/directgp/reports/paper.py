"""Write the report of a reproduction."""

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from directgp.experiments.cell import METHODS
from directgp.experiments.paper.cells import (
    CurveCell,
    CurveOutcome,
    FitCell,
    FitOutcome,
    PaperCell,
    PaperOutcome,
    PaperRecord,
    ProtocolName,
    Results,
)
from directgp.experiments.paper.claims.base import Claim, Finding, Part, Verdict
from directgp.experiments.paper.claims.fits import CONVERGED
from directgp.experiments.paper.run import Reproduction
from directgp.io import replace_file
from directgp.metrics import SCORES
from directgp.reports.compare import write_pictures
from directgp.reports.drawing import Drawn, drawn
from directgp.reports.html import PAPER, digest, inline, template
from directgp.reports.paper_figures import FIGURES, Figure, method_of
from directgp.text import duration, joined, p_value, plural, strict_json, with_error

GLOSSARY = {
    "ELBO, β-ELBO": (
        "Training by the evidence lower bound; β-ELBO weighs its KL term by a β that is chosen by "
        "validation rows."
    ),
    "FITC": "The fully independent training conditional, by its own marginal likelihood.",
    "DLM": (
        "Direct loss minimization: the log loss (or square loss) of predictions plus β·KL. Joint "
        "trains everything, fixed keeps kernel, noise and inducing inputs of the ELBO."
    ),
    "exact, bMC, smooth-bMC, uPS": (
        "Ways to the gradient of the log loss: by a formula or quadrature; by samples of f inside "
        "the logarithm, which is biased; the same with a small constant added; and by samples of "
        "the product of q(f) and the likelihood, which is not biased. The number of samples "
        "follows the name."
    ),
    "NLL": "Mean negative log probability (or density) of test rows, of normalised targets.",
    "effect": (
        "The first minus the second, a mean over the repeats (or over test rows or draws, as its "
        "note says) with its standard error; or how much is lacking of what is claimed. Where the "
        "first has to be lower, negative is as claimed. p is two-sided, of no difference; where "
        "two have to be equal, the interval and the margin decide, not p."
    ),
    "repeat": "One random split into training, validation and test rows, shared by all methods.",
    "cell": "One training or one study: data, size, method, rule, β or grid, and repeat.",
}
"""Each word, and what it means."""


KINDS = {
    "fit": "fit",
    "curve": "learning curve",
    "gradients": "study of gradients",
    "samplers": "study of samplers",
}
"""Kinds of cells, in words."""

_SOURCE = {"not installed": "from its source"}

_MANY = {"study of gradients": "studies of gradients", "study of samplers": "studies of samplers"}

PROTOCOLS: dict[ProtocolName, str] = {
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
    total = plural(len(told.findings), "claim")
    others = [f"{counts[v]} {v}" for v in get_args(Verdict)[1:] if counts[v]]
    held = f"{counts['held']} of {total} held"
    return f"{', '.join([held, *others])}."


def second_line(told: Reproduction) -> str:
    """Scale, protocol, cells and repeats."""
    results = told.results
    repeats = len({record.cell.repeat for record in results.records})
    parts = [f"{plural(len(results.records), 'cell')} run, {plural(repeats, 'repeat')}"]
    early = len(_stopped(results))
    if early:
        parts.append(f"{early:,} of {plural(len(results.fits()), 'fit')} stopped unconverged")
    if results.failed:
        parts.append(f"{plural(len(results.failed), 'cell')} failed")
    if results.missing:
        parts.append(f"{plural(len(results.missing), 'cell')} not run")
    return f"Scale {told.scale}, protocol {told.protocol}: {'; '.join(parts)}."


def counted_cells(cells: Iterable[PaperCell]) -> str:
    """``12 fits (pol, song) and 1 learning curve (airline)``; "none" if there is none."""
    sets: dict[str, list[str]] = {}
    for cell in cells:
        sets.setdefault(cell.kind, []).append(cell.dataset)
    every = [
        f"{plural(len(names), noun, _MANY.get(noun, ''))} ({', '.join(dict.fromkeys(names))})"
        for kind, noun in KINDS.items()
        if (names := sets.get(kind))
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
    total = f"{stopped.total():,} of {plural(every.total(), 'fit')}"
    return f"{total} ended at their limit of steps: {'; '.join(named)}"


def _passed_over(told: Reproduction) -> str:
    """Values of β that could not be trained within fits that were finished."""
    fits = [outcome.failed for _, outcome in told.results.fits() if outcome.failed]
    if not fits:
        return "none"
    values = plural(sum(map(len, fits)), "value")
    return f"{values} in {plural(len(fits), 'fit')} could not be trained; the first: {fits[0][0]}"


def effect_of(part: Part) -> str:
    """``−0.103 ± 0.012 NLL``; a dash where it was not run."""
    if math.isnan(part.effect):
        return "–"
    return f"{with_error(part.effect, part.error)} {part.unit}".rstrip()


def p_of(part: Part) -> str:
    """``p = 0.012``; a dash where there is no test."""
    return p_value(part.p_value) or "–"


def _versions(versions: dict[str, str]) -> str:
    """``python 3.12.3, torch 2.13.0``; what is not installed was run from its source."""
    return ", ".join(f"{name} {_SOURCE.get(each, each)}" for name, each in versions.items())


def _tallied(counts: Counter[str]) -> str:
    """One alone as it is, several with their numbers of cells."""
    if len(counts) < 2:
        return "".join(counts) or "none"
    return "; ".join(f"{text}: {plural(n, 'cell')}" for text, n in counts.most_common())


@final
@dataclass(frozen=True)
class Shown:
    """A figure that was drawn."""

    figure: Figure
    drawn: Drawn


@final
@dataclass(frozen=True)
class Section:
    """A claim, what was found, and its figures."""

    claim: Claim
    finding: Finding
    shown: tuple[Shown, ...]
    elsewhere: tuple[Figure, ...]
    """Figures that an earlier claim has shown."""

    absent: tuple[str, ...]
    """Figures of which nothing was run."""

    @property
    def deciding(self) -> list[Part]:
        """Comparisons on which the verdict hangs."""
        return [part for part in self.finding.parts if part.decides]

    @property
    def beside(self) -> list[Part]:
        """Comparisons that are only told."""
        return [part for part in self.finding.parts if not part.decides]

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return f"claim-{self.claim.id.lower()}"


def sections(
    findings: Sequence[tuple[Claim, Finding]], pictures: Mapping[str, Drawn]
) -> tuple[list[Section], list[Shown]]:
    """Every claim with the figures that no earlier one has shown; and the remaining figures."""
    left = dict(pictures)
    found = []
    for claim, finding in findings:
        drawn = [name for name in claim.figures if name in pictures]
        here = tuple(Shown(FIGURES[name], left.pop(name)) for name in drawn if name in left)
        new = {each.figure.name for each in here}
        elsewhere = tuple(FIGURES[name] for name in drawn if name not in new)
        absent = tuple(name for name in claim.figures if name not in pictures)
        found.append(Section(claim, finding, here, elsewhere, absent))
    return found, [Shown(FIGURES[name], each) for name, each in left.items()]


_NAMES = tuple(dict.fromkeys(score.name for every in SCORES.values() for score in every))

_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "kind", "dataset", "task")),
        *((name, pa.int64()) for name in ("size", "num_inducing", "repeat", "seed")),
        *((name, pa.string()) for name in ("method", "rule", "protocol")),
        *((name, pa.float64()) for name in ("beta", *_NAMES, "seconds")),
        *((name, pa.string()) for name in ("status", "reason")),
        *((name, pa.string()) for name in ("machine", "device", "finished", "versions")),
    ]
)


def cells_parquet(results: Results) -> bytes:
    """The file; cells that failed or were not run have a status, and no scores."""
    rows = [_finished(record) for record in results.records]
    rows += [
        {**_named(each.cell), "status": "failed", "reason": each.reason} for each in results.failed
    ]
    rows += [{**_named(cell), "status": "not run"} for cell in results.missing]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), buffer)
    return buffer.getvalue()


def _named(cell: PaperCell) -> dict[str, Any]:
    shared = ("key", "kind", "dataset", "task", "size", "num_inducing", "repeat", "seed")
    return {name: getattr(cell, name) for name in shared} | _particular(cell)


def _particular(cell: PaperCell) -> dict[str, Any]:
    """What only some kinds have; a curve is called as the method of the line-up."""
    if isinstance(cell, FitCell):
        return {"method": cell.method, "rule": cell.rule.label, "protocol": cell.protocol}
    if isinstance(cell, CurveCell):
        return {"method": method_of(cell), "rule": cell.rule.label, "beta": cell.beta}
    return {"beta": cell.beta}


def _finished(record: PaperRecord) -> dict[str, Any]:
    about = record.circumstances
    return {
        **_named(record.cell),
        "status": "finished",
        **_found(record.outcome),
        "seconds": record.outcome.seconds,
        "machine": about.machine,
        "device": about.device,
        "finished": about.finished,
        "versions": json.dumps(about.versions),
    }


def _found(outcome: PaperOutcome) -> dict[str, Any]:
    """Scores of test rows; of a curve, those at its end."""
    if isinstance(outcome, FitOutcome):
        ended = {"status": outcome.status, "reason": outcome.reason}
        return {**_known(outcome.scores), "beta": outcome.beta, **ended}
    if isinstance(outcome, CurveOutcome):
        scores = outcome.points[-1].scores if outcome.points else {}
        return {**_known(scores), "status": outcome.status, "reason": outcome.reason}
    return {}


def _known(scores: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if name in _NAMES}


SCHEMA = 1
"""Raised when a reader of an older document would be misled."""


def verdicts_json(told: Reproduction) -> bytes:
    """Strict JSON; what is not finite is null."""
    results = told.results
    text = strict_json(
        {
            "schema": SCHEMA,
            "summary": headline(told),
            "verdicts": Counter(finding.verdict for _, finding in told.findings),
            "claims": [_claim(claim, finding) for claim, finding in told.findings],
            "data": [asdict(row) for row in told.data],
            "scale": told.scale,
            "protocol": told.protocol,
            "cells": {
                "finished": len(results.records),
                "failed": len(results.failed),
                "missing": len(results.missing),
            },
            "failed": [
                {"cell": each.cell.title, "reason": each.reason, "attempts": each.attempts}
                for each in results.failed
            ],
            "command": told.command,
            "began": told.began,
            "seconds": told.seconds,
            "machine": told.machine,
            "circumstances": _circumstances(results),
        }
    )
    return text.encode()


def _circumstances(results: Results) -> list[dict[str, Any]]:
    """Versions and machines of the finished cells, those of most cells first."""
    kinds = Counter(
        (tuple(about.versions.items()), about.machine, about.device)
        for about in (record.circumstances for record in results.records)
    )
    return [
        {"versions": dict(versions), "machine": machine, "device": device, "cells": number}
        for (versions, machine, device), number in kinds.most_common()
    ]


def _claim(claim: Claim, finding: Finding) -> dict[str, Any]:
    return {
        "id": claim.id,
        "statement": claim.statement,
        "where": claim.where,
        "criterion": claim.criterion,
        "figures": claim.figures,
        **asdict(finding),
    }


SIGNS = {"held": "✓", "not held": "✗", "not decided": "?"}
"""Before the word, so that no verdict is told by colour alone."""


def reproduction_page(told: Reproduction, pictures: Mapping[str, Drawn]) -> str:
    """One self-contained document; pictures by the names of figures."""
    claims, others = sections(told.findings, pictures)
    script = inline("report.js")
    return template("reproduction.html").render(
        told=told,
        headline=headline(told),
        second_line=second_line(told),
        claims=claims,
        others=others,
        facts_of_run=run_facts(told),
        effect_of=effect_of,
        p_of=p_of,
        joined=joined,
        plural=plural,
        signs=SIGNS,
        glossary=GLOSSARY | dict(VERDICTS),
        paper=PAPER,
        style=inline("report.css") + Markup("\n") + inline("reproduction.css"),
        script=script,
        script_digest=digest(script),
    )


def write_reproduction(told: Reproduction, folder: Path) -> Path:
    """Write figures, table, verdicts and page; the page comes last.

    Parameters
    ----------
    told
        What was run, and what came of it.
    folder
        Made where it is missing; files of an earlier report are replaced, one by one, each in one
        step, and its figures that this one does not have are removed.

    Returns
    -------
    Path
        Of the page, `index.html`, which needs none of the other files.
    """
    pictures = _pictures(told)
    names = [figure.file for figure in FIGURES.values()]
    write_pictures(folder / "figures", list(pictures.values()), names)
    replace_file(folder / "results.parquet", cells_parquet(told.results))
    replace_file(folder / "verdicts.json", verdicts_json(told))
    index = folder / "index.html"
    replace_file(index, reproduction_page(told, pictures).encode())
    return index


def _pictures(told: Reproduction) -> dict[str, Drawn]:
    """By the names of figures, those for which there is something to show."""
    every = {name: figure.picture(told.results) for name, figure in FIGURES.items()}
    return {name: drawn(picture) for name, picture in every.items() if picture}
