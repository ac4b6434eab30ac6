"""Write the report of a comparison."""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from directgp.experiments.cell import Method
from directgp.experiments.plan import CompareCell, ComparedFit, Comparison
from directgp.experiments.stats import SIGNIFICANT, Standing
from directgp.io import replace_file
from directgp.metrics import COVERAGE, SCORES
from directgp.reports.drawing import Drawn, Picture, drawn
from directgp.reports.figures import (
    betas_picture,
    calibration_picture,
    learning_picture,
    predicted_picture,
    scores_picture,
    training_picture,
)
from directgp.reports.html import PAPER, digest, glossary, inline, template
from directgp.reports.scoreboard import CLOSE, heading, scoreboard
from directgp.reports.verdict import TASKS, Findings, Verdict, asked, called, steps_allowed, verdict
from directgp.text import duration, number, one_line, plural, strict_json

SCHEMA = 1
"""Raised when a reader of an older document would be misled."""


def report_json(findings: Findings, verdict: Verdict) -> bytes:
    """Strict JSON; what is not finite is null."""
    return strict_json(_document(findings, verdict)).encode()


def _document(findings: Findings, verdict: Verdict) -> dict[str, Any]:
    comparison = findings.comparison
    plan = comparison.plan
    return {
        "schema": SCHEMA,
        "verdict": {**asdict(verdict), "method": verdict.method and verdict.method.name},
        "data": plan.data.model_dump(),
        "methods": [asdict(method) for method in plan.methods],
        "scores": [asdict(score) for score in findings.scores],
        "standings": [_standing(s) for found in findings.by_size.values() for s in found],
        "significance": SIGNIFICANT,
        "repeats": plan.repeats,
        "sizes": plan.sizes,
        "seed": plan.seed,
        "rows": asdict(plan.parts),
        "settings": plan.settings.model_dump(),
        "failed": [{**_place(f.cell), "reason": f.reason} for f in comparison.failed],
        "versions": comparison.versions,
        "machine": comparison.machine,
        "command": comparison.command,
        "began": comparison.began,
        "seconds": comparison.seconds,
    }


def _place(cell: Any) -> dict[str, Any]:
    return {"method": cell.method, "repeat": cell.repeat, "size": cell.size}


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "method": standing.method.name,
        "size": standing.size,
        "beta": standing.beta,
        "betas": standing.betas,
        "seconds": standing.seconds,
        "scores": {name: asdict(each) for name, each in standing.scores.items()},
    }


_MOST_NAMES = 12
"""Of features that are written out."""

_INDUCING = "a quarter of the training rows, from 50 to 100"
_BETAS = "every second of n, n/2, n/4, …, 0.01, and 1"


def data_particulars(findings: Findings) -> dict[str, str]:
    """Of the data."""
    data = findings.comparison.plan.data
    found = {
        "source": one_line(data.source, 200),
        "rows": f"{data.num_rows:,}",
        "features": _features(data.feature_names),
        "target": one_line(data.target, 200),
    }
    if data.classes:
        found["classes"] = f"{one_line(data.classes[0], 40)} and {one_line(data.classes[1], 40)}"
    return {**found, "fingerprint": data.fingerprint}


def run_particulars(findings: Findings) -> dict[str, str]:
    """Of splits, settings and the machine."""
    comparison = findings.comparison
    plan, settings = comparison.plan, comparison.plan.settings
    inducing = settings.num_inducing
    versions = (f"{name} {version}" for name, version in comparison.versions.items())
    return {
        "training rows": ", ".join(f"{size:,}" for size in plan.sizes),
        "validation rows": f"{plan.parts.validation:,}",
        "test rows": f"{plan.parts.test:,}",
        "repeats": f"{plan.repeats}, seed {plan.seed}",
        "likelihood": settings.likelihood,
        "kernel": f"{settings.kernel}, {_lengthscales(settings.ard)}",
        "inducing inputs": _INDUCING if inducing is None else f"{inducing:,}",
        "grid of β": _grid(settings.betas),
        "steps": steps_allowed(plan),
        "precision": f"{settings.dtype} on {settings.device}",
        "versions": ", ".join(versions),
        "machine": comparison.machine,
        "began": comparison.began,
        "fits took": _time(comparison),
    }


def _features(names: tuple[str, ...]) -> str:
    shown = ", ".join(one_line(name, 40) for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{len(names)}: {shown}{f' and {more} more' if more > 0 else ''}"


def _lengthscales(ard: bool) -> str:
    return "one lengthscale a feature" if ard else "one lengthscale for all features"


def _grid(betas: tuple[float, ...] | None) -> str:
    return _BETAS if betas is None else ", ".join(map(number, betas))


def _time(comparison: Comparison) -> str:
    """Of the fits themselves, whichever run of the command they were finished in."""
    where = "one core" if comparison.plan.settings.device == "cpu" else "the GPU"
    seconds = math.fsum(run.outcome.seconds for run in comparison.runs)
    return f"{duration(seconds)} of {where} in all, for {plural(len(comparison.runs), 'fit')}"


def page(findings: Findings, verdict: Verdict, pictures: Sequence[Drawn]) -> str:
    """One self-contained document; whatever users named is escaped."""
    data = findings.comparison.plan.data
    script = inline("report.js")
    boards = [scoreboard(found, findings.scores) for found in findings.by_size.values()]
    return template("report.html").render(
        name=one_line(data.name, 80),
        question=asked(data.task, one_line(data.target, 80)),
        task=TASKS[data.task],
        verdict=verdict,
        boards=boards,
        heading=heading,
        plural=plural,
        called=called,
        close=CLOSE,
        coverage=COVERAGE,
        pictures=pictures,
        findings=findings,
        comparison=findings.comparison,
        plan=findings.comparison.plan,
        data_particulars=data_particulars(findings),
        run_particulars=run_particulars(findings),
        lost=_lost(findings),
        glossary=glossary(findings.scores),
        paper=PAPER,
        style=inline("report.css"),
        script=script,
        script_digest=digest(script),
    )


def _lost(findings: Findings) -> list[str]:
    """Candidates that could not be trained within fits that were finished."""
    return [
        f"{run.cell.method}, repeat {run.cell.repeat}, {run.cell.size:,} rows: {words}"
        for run in findings.comparison.runs
        for words in run.outcome.failed
    ]


def write_pictures(folder: Path, pictures: Sequence[Drawn], names: Iterable[str]) -> None:
    """Write each as PNG and SVG; of all the names a report may have, remove those it has not."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in pictures:
        replace_file(folder / f"{each.picture.name}.png", each.png)
        replace_file(folder / f"{each.picture.name}.svg", each.wide.encode())
    _remove(folder, {*names} - {each.picture.name for each in pictures})


def _remove(folder: Path, names: set[str]) -> None:
    """Those of an earlier report; pictures by other names are not ours."""
    for name in names:
        for kind in ("png", "svg"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)


NAMES = ("scores", "learning", "beta", "calibration", "predicted", "training")
"""Of all pictures that a report may have."""


def gallery(findings: Findings) -> list[Picture]:
    """Those for which there is something to show."""
    if not findings.standings:
        return []
    every = [
        scores_picture(findings),
        learning_picture(findings) if len(findings.by_size) > 1 else None,
        betas_picture(findings),
        calibration_picture(findings),
        predicted_picture(findings),
        training_picture(findings),
    ]
    return [picture for picture in every if picture]


def results_parquet(comparison: Comparison) -> bytes:
    """The file; cells that failed have a status and a reason, and nothing else."""
    labels = {method.name: method for method in comparison.plan.methods}
    rows = [_finished(run, labels) for run in comparison.runs]
    rows += [
        {**_named(each.cell, labels), "status": "failed", "reason": each.reason}
        for each in comparison.failed
    ]
    rows.sort(key=lambda row: (row["size"], row["repeat"], list(labels).index(row["method"])))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_schema(comparison)), buffer)
    return buffer.getvalue()


def _schema(comparison: Comparison) -> Any:
    names, numbers = ("method", "label"), ("repeat", "size", "seed")
    scores = [score.name for score in SCORES[comparison.plan.data.task]]
    return pa.schema(
        [
            *((name, pa.string()) for name in names),
            *((name, pa.int64()) for name in numbers),
            *((name, pa.float64()) for name in ("beta", *scores, "seconds")),
            ("evaluations", pa.int64()),
            ("status", pa.string()),
            ("reason", pa.string()),
            ("num_test", pa.int64()),
        ]
    )


def _named(cell: CompareCell, labels: dict[str, Method]) -> dict[str, Any]:
    return {
        "method": cell.method,
        "label": labels[cell.method].label,
        "repeat": cell.repeat,
        "size": cell.size,
        "seed": cell.seed,
    }


def _finished(run: ComparedFit, labels: dict[str, Method]) -> dict[str, Any]:
    outcome = run.outcome
    return {
        **_named(run.cell, labels),
        **outcome.scores,
        "beta": outcome.beta,
        "seconds": outcome.seconds,
        "evaluations": outcome.evaluations,
        "status": outcome.status,
        "reason": outcome.reason,
        "num_test": outcome.num_test,
    }


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write page, pictures, table and document; the page comes last.

    Parameters
    ----------
    comparison
        What was run, and what came of it.
    folder
        Made where it is missing; files of an earlier report are replaced, one by one, each in one
        step, and its pictures that this one does not have are removed.

    Returns
    -------
    Path
        Of the page, `index.html`, which needs none of the other files.
    """
    findings = Findings(comparison)
    said = verdict(findings)
    pictures = [drawn(picture) for picture in gallery(findings)]
    write_pictures(folder / "figures", pictures, NAMES)
    replace_file(folder / "results.parquet", results_parquet(comparison))
    replace_file(folder / "report.json", report_json(findings, said))
    index = folder / "index.html"
    replace_file(index, page(findings, said, pictures).encode())
    return index
