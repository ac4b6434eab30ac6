"""Write the report of a comparison."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from directgp.experiments.plan import Comparison
from directgp.experiments.stats import SIGNIFICANT, RankingRow
from directgp.metrics import COVERAGE, SCORES, Score
from directgp.plots.rendering import RenderedPicture, render
from directgp.reports.figures import PICTURES, gallery
from directgp.reports.html import parquet, render_page, write_files
from directgp.reports.scoreboard import CLOSE, heading, scoreboard
from directgp.reports.verdict import Findings, Verdict, called, steps_allowed, verdict
from directgp.text import duration, number, one_line, percent, plural

SCHEMA = 1
"""Version of the JSON document."""

_MAX_NAMES = 12
"""Features whose names are listed."""

_TASKS = {
    "regression": ("regression", "a number"),
    "classification": ("classification", "one of two classes"),
    "count": ("counts", "a count"),
}
"""Name of each task, and what it predicts."""

_GLOSSARY = {
    "β": (
        "The weight of the KL term, which keeps q(u) near the prior. The ELBO has β = 1; the "
        "other methods are trained for every β of a grid, and the one with the lowest loss on the "
        "validation rows is chosen."
    ),
    "DLM": (
        "Direct loss minimization: training for the loss of the predictions themselves, such as "
        "the log loss, instead of a bound on the marginal likelihood."
    ),
    "joint, fixed": (
        "Joint trains kernel, noise and inducing inputs with q(u); fixed keeps those of the ELBO "
        "and trains q(u) alone."
    ),
    "repeat": (
        "One random split into training, validation and test rows. All methods of a repeat have "
        "the same rows."
    ),
    f"bold, {CLOSE}": (
        f"Bold is the best mean of a column. {CLOSE} marks values that are not significantly "
        f"different: the paired test over the repeats has p ≥ {percent(SIGNIFICANT, 0)}. It is the "
        "corrected resampled t-test of Nadeau and Bengio (2003), which allows for splits that "
        "share rows. Many comparisons are made, so a single p just below the level is weak "
        "evidence."
    ),
}

_SCORES = {
    "nll": (
        "Negative log-likelihood: the mean of −log of the predicted probability (or density) of "
        "the actual value, in nats. Lower is better; it evaluates the mean and the uncertainty "
        "together, and a difference of 0.1 is a factor of 1.1 in probability."
    ),
    "crps": (
        "Continuous ranked probability score: the distance of the predicted distribution from the "
        "actual value, in the units of the target. Lower is better; it is less sensitive to "
        "outliers than NLL."
    ),
    "coverage": (
        "The share of test rows inside their central 90 % interval. It should be near 90 %; more "
        "means that the intervals are too wide, less that they are too narrow."
    ),
}
"""Explanations of scores that need more than a sentence."""


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write page, pictures, results and JSON document of a comparison.

    Parameters
    ----------
    comparison
        The plan and its results.
    folder
        Created if it is missing. Files of an earlier report are replaced, each in one step, and
        its pictures that this report does not have are removed.

    Returns
    -------
    Path
        The page, `index.html`, which needs none of the other files.
    """
    findings = Findings(comparison)
    found = verdict(findings)
    pictures = [render(picture) for picture in gallery(findings)]
    results = results_parquet(comparison)
    document = "report.json", report_document(findings, found)
    return write_files(
        folder, pictures, PICTURES, results, document, page(findings, found, pictures)
    )


def page(findings: Findings, verdict: Verdict, pictures: Sequence[RenderedPicture]) -> str:
    """Return the page of a comparison."""
    data = findings.comparison.plan.data
    task, kind = _TASKS[data.task]
    lost = [
        f"{run.cell.method}, repeat {run.cell.repeat}, {run.cell.size:,} rows: {reason}"
        for run in findings.comparison.runs
        for reason in run.outcome.failed
    ]
    return render_page(
        "report.html",
        ["report.css"],
        name=one_line(data.name, 80),
        question=f"Predicting {one_line(data.target, 80)}, {kind}",
        task=task,
        verdict=verdict,
        boards=[scoreboard(found, findings.scores) for found in findings.by_size.values()],
        heading=heading,
        called=called,
        close=CLOSE,
        coverage=COVERAGE,
        pictures=pictures,
        comparison=findings.comparison,
        plan=findings.comparison.plan,
        data_facts=data_facts(findings),
        run_facts=run_facts(findings),
        lost=lost,
        glossary=_glossary(findings.scores),
    )


def _glossary(scores: tuple[Score, ...]) -> dict[str, str]:
    return {score.label: _SCORES.get(score.name, score.about) for score in scores} | _GLOSSARY


def data_facts(findings: Findings) -> dict[str, str]:
    """Return the section about the data: values by name."""
    data = findings.comparison.plan.data
    names = data.feature_names
    more = len(names) - _MAX_NAMES
    listed = ", ".join(one_line(name, 40) for name in names[:_MAX_NAMES])
    found = {
        "source": one_line(data.source, 200),
        "rows": f"{data.num_rows:,}",
        "features": f"{len(names)}: {listed}{f' and {more} more' if more > 0 else ''}",
        "target": one_line(data.target, 200),
    }
    if data.classes:
        found["classes"] = " and ".join(one_line(name, 40) for name in data.classes)
    return {**found, "fingerprint": data.fingerprint}


def run_facts(findings: Findings) -> dict[str, str]:
    """Return the section about splits, settings and the machine: values by name."""
    comparison = findings.comparison
    plan, settings = comparison.plan, comparison.plan.settings
    inducing, betas = settings.num_inducing, settings.betas
    lengthscales = "one lengthscale " + ("a feature" if settings.ard else "for all features")
    where = "one core" if settings.device == "cpu" else "the GPU"
    seconds = math.fsum(run.outcome.seconds for run in comparison.runs)
    return {
        "training rows": ", ".join(f"{size:,}" for size in plan.sizes),
        "validation rows": f"{plan.parts.validation:,}",
        "test rows": f"{plan.parts.test:,}",
        "repeats": f"{plan.repeats}, seed {plan.seed}",
        "likelihood": settings.likelihood,
        "kernel": f"{settings.kernel}, {lengthscales}",
        "inducing inputs": "a quarter of the training rows, from 50 to 100"
        if inducing is None
        else f"{inducing:,}",
        "grid of β": "every second of n, n/2, n/4, …, 0.01, and 1"
        if betas is None
        else ", ".join(map(number, betas)),
        "steps": steps_allowed(plan),
        "precision": f"{settings.dtype} on {settings.device}",
        "versions": ", ".join(f"{name} {value}" for name, value in comparison.versions.items()),
        "machine": comparison.machine,
        "began": comparison.began,
        "fits took": f"{duration(seconds)} of {where} in all, for "
        f"{plural(len(comparison.runs), 'fit')}",
    }


def report_document(findings: Findings, verdict: Verdict) -> dict[str, Any]:
    """Return the content of report.json."""
    comparison = findings.comparison
    plan = comparison.plan
    return {
        "schema": SCHEMA,
        "verdict": {**asdict(verdict), "method": verdict.method and verdict.method.name},
        "data": plan.data.model_dump(),
        "methods": [asdict(method) for method in plan.methods],
        "scores": [asdict(score) for score in findings.scores],
        "standings": [_ranking_row(s) for found in findings.by_size.values() for s in found],
        "significance": SIGNIFICANT,
        "repeats": plan.repeats,
        "sizes": plan.sizes,
        "seed": plan.seed,
        "rows": asdict(plan.parts),
        "settings": plan.settings.model_dump(),
        "failed": [
            {name: getattr(each.cell, name) for name in ("method", "repeat", "size")}
            | {"reason": each.reason}
            for each in comparison.failed
        ],
        "versions": comparison.versions,
        "machine": comparison.machine,
        "command": comparison.command,
        "began": comparison.began,
        "seconds": comparison.seconds,
    }


def _ranking_row(row: RankingRow) -> dict[str, Any]:
    return {**asdict(row), "method": row.method.name, "beta": row.beta}


def results_parquet(comparison: Comparison) -> bytes:
    """Return results.parquet: one row a cell; failed cells have a reason and no scores."""
    labels = {method.name: method.label for method in comparison.plan.methods}
    outcomes = ("beta", "seconds", "evaluations", "status", "reason", "num_test")
    rows: list[dict[str, Any]] = [
        {
            **{name: getattr(run.cell, name) for name in ("method", "repeat", "size", "seed")},
            **run.outcome.scores,
            **{name: getattr(run.outcome, name) for name in outcomes},
        }
        for run in comparison.runs
    ]
    rows += [
        {
            **{name: getattr(each.cell, name) for name in ("method", "repeat", "size", "seed")},
            "status": "failed",
            "reason": each.reason,
        }
        for each in comparison.failed
    ]
    order = list(labels)
    rows.sort(key=lambda row: (row["size"], row["repeat"], order.index(row["method"])))
    scores = [score.name for score in SCORES[comparison.plan.data.task]]
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("method", "label")),
            *((name, pa.int64()) for name in ("repeat", "size", "seed")),
            *((name, pa.float64()) for name in ("beta", *scores, "seconds")),
            ("evaluations", pa.int64()),
            *((name, pa.string()) for name in ("status", "reason")),
            ("num_test", pa.int64()),
        ]
    )
    return parquet([{**row, "label": labels[row["method"]]} for row in rows], schema)
