"""Build the table of scores of a comparison, and write its report."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from directgp.experiments.cell import ELBO, Method
from directgp.experiments.plan import Comparison, Plan
from directgp.experiments.stats import SIGNIFICANT, RankingRow, ScoreEstimate, scores_of
from directgp.metrics import COVERAGE, Score
from directgp.plots.rendering import RenderedPicture, render
from directgp.reports.figures import make_pictures
from directgp.reports.findings import Findings
from directgp.reports.html import damaged_sentence, parquet, render_page, write_files
from directgp.reports.verdict import Verdict, members_in_words, steps_allowed, verdict
from directgp.text import (
    decimals_for,
    duration,
    fixed,
    joined,
    listed,
    number,
    one_line,
    percent,
    plural,
)

CLOSE = "≈"
"""Mark of a value that is not significantly different from the best."""

SCHEMA = 2
"""Version of the JSON document."""

_MAX_NAMES = 12
"""Features whose names are listed."""

_KINDS = {"regression": "a number", "classification": "one of {} classes", "count": "a count"}
"""What each task predicts."""


class Entry(NamedTuple):
    """A cell of the table of scores."""

    text: str
    """Text of the cell."""

    rank: float | None
    """Value by which the column is sorted; None comes last."""

    error: str = ""
    """Standard error, as text."""

    unit: str = ""
    """Unit after the text."""

    best: bool = False
    """Whether the value is the best of its column."""

    close: bool = False
    """Whether the value cannot be distinguished from the best."""

    note: str = ""
    """Remark after the text."""


class ScoreTable(NamedTuple):
    """The table of scores at one size of training set."""

    size: int
    """Number of training rows."""

    heading: str
    """Heading of the table."""

    columns: dict[str, str]
    """Maps the title of a column to its explanation."""

    rows: dict[Method, tuple[Entry, ...]]
    """Maps a method to its cells."""

    @property
    def shown_on_phones(self) -> list[bool]:
        """Whether a small screen shows each column: two scores, and the last one."""
        last = len(self.columns) - 2
        return [place in (1, 2, last) for place in range(len(self.columns))]


def score_table(ranking: Sequence[RankingRow], scores: Sequence[Score], plan: Plan) -> ScoreTable:
    """Return the table of β, scores and seconds; methods are in table order."""
    repeats = len(ranking[0].betas)
    of = f"mean ± standard error of {repeats} repeats" if repeats > 1 else "one repeat"
    columns = {"β": [_beta(row) for row in ranking]}
    about = {"β": "Weight of the KL term, median over the repeats."}
    for score in scores:
        nominal = f" of {percent(COVERAGE, 0)}" if score.better == "nominal" else ""
        about[score.label + nominal] = score.about
        columns[score.label] = _scores([s.scores[score.name] for s in ranking], score)
    columns["seconds"] = [Entry(number(s.seconds, 2), _rank(s.seconds)) for s in ranking]
    about["seconds"] = (
        f"Computing time of one repeat on {_device(plan)}: the runs for all values of β, without "
        "the ELBO run from which they start."
    )
    rows = zip(*columns.values(), strict=True)
    return ScoreTable(
        size=ranking[0].size,
        heading=f"{ranking[0].size:,} training rows, {of}",
        columns=about,
        rows={ranked.method: row for ranked, row in zip(ranking, rows, strict=True)},
    )


def _scores(estimates: Sequence[ScoreEstimate], score: Score) -> list[Entry]:
    """Return one column; a single method is not marked as the best."""
    nominal = score.better == "nominal"
    factor = 100.0 if nominal else 1.0
    means = [factor * e.mean for e in estimates]
    errors = [factor * e.error for e in estimates]
    decimals = min(decimals_for(means, errors), 1 if nominal else 20)
    return [
        Entry(
            text=fixed(mean, decimals),
            error=fixed(error, decimals) if math.isfinite(error + mean) else "",
            unit=" %" if nominal else "",
            rank=_rank(abs(estimate.mean - COVERAGE) if nominal else estimate.mean),
            best=estimate.best and len(estimates) > 1 and math.isfinite(mean),
            close=estimate.close and not estimate.best,
        )
        for estimate, mean, error in zip(estimates, means, errors, strict=True)
    ]


def _beta(row: RankingRow) -> Entry:
    """Return the median, and the range if repeats chose different values."""
    if row.method.objective == "fitc" or math.isnan(row.beta):
        return Entry("–", None)
    low = min(row.betas)
    high = max(row.betas)
    note = f"{number(low, 2)} to {number(high, 2)}" if low != high else ""
    return Entry(number(row.beta), _rank(row.beta), note=note)


def _rank(value: float) -> float | None:
    return value if math.isfinite(value) else None


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write page, pictures, results and JSON document, and return the path of the page.

    Files of an earlier report in the folder are replaced, and its other pictures are removed.
    """
    findings = Findings(comparison)
    judgement = verdict(findings)
    pictures = [render(picture) for picture in make_pictures(findings, judgement.method)]
    return write_files(
        folder,
        pictures,
        results_parquet(comparison),
        ("report.json", report_document(findings, judgement)),
        page(findings, judgement, pictures),
    )


def page(findings: Findings, verdict: Verdict, pictures: Sequence[RenderedPicture]) -> str:
    """Return the page of a comparison."""
    data = findings.comparison.plan.data
    many = "two" if len(data.classes or ()) == 2 else len(data.classes or ())
    lost = [
        f"{run.cell.method}, repeat {run.cell.repeat}, {run.cell.size:,} rows: {reason}"
        for run in findings.comparison.runs
        for reason in run.outcome.failed
    ]
    return render_page(
        "report.html",
        ["report.css"],
        name=one_line(data.name, 80),
        question=f"Predicting {one_line(data.target, 80)}, {_KINDS[data.task].format(many)}",
        task=data.task,
        verdict=verdict,
        tables=[
            score_table(ranking, findings.scores, findings.comparison.plan)
            for ranking in findings.by_size.values()
        ],
        close=CLOSE,
        coverage=COVERAGE,
        pictures=pictures,
        num_repeats=findings.num_repeats,
        comparison=findings.comparison,
        command=findings.comparison.command,
        plan=findings.comparison.plan,
        data_facts=data_facts(findings),
        run_facts=run_facts(findings),
        lost=lost,
        scored=findings.scores,
        significant=percent(SIGNIFICANT, 0),
    )


def data_facts(findings: Findings) -> dict[str, str]:
    """Return the section about the data: values by name."""
    data = findings.comparison.plan.data
    names = [one_line(name, 40) for name in data.feature_names]
    facts = {
        "source": one_line(data.source, 200),
        "rows": f"{data.num_rows:,}",
        "features": f"{len(names)}: {listed(names, _MAX_NAMES)}",
        "target": one_line(data.target, 200),
    }
    if data.classes:
        facts["classes"] = joined([one_line(name, 40) for name in data.classes])
    return {**facts, "fingerprint": data.fingerprint}


def run_facts(findings: Findings) -> dict[str, str]:
    """Return the section about splits, settings and the machine: values by name."""
    comparison = findings.comparison
    plan = comparison.plan
    settings = comparison.plan.settings
    inducing = settings.num_inducing
    betas = settings.betas
    chosen = "chosen by the validation rows of each split"
    lengthscales = "one for all features"
    if settings.ard:
        lengthscales = chosen if settings.ard == "auto" else "one a feature"
    seconds = math.fsum(run.outcome.seconds for run in comparison.runs)
    members = members_in_words(findings.mixtures)
    mixture = {"directgp fit": members} if members else {}
    damaged = {"damaged": damaged_sentence(comparison.damaged)} if comparison.damaged else {}
    return {
        "training rows": ", ".join(f"{size:,}" for size in plan.sizes),
        "validation rows": f"{plan.parts.validation:,}",
        "test rows": f"{plan.parts.test:,}",
        "repeats": f"{plan.repeats}, seed {plan.seed}",
        "likelihood": chosen if settings.likelihood == "auto" else settings.likelihood,
        "kernel": chosen if settings.kernel == "auto" else settings.kernel,
        "lengthscales": lengthscales,
        "models chosen": _models(findings),
        **mixture,
        "inducing inputs": "a quarter of the training rows, from 50 to 100"
        + ("; directgp fit may take more" if members else "")
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
        "fits took": f"{duration(seconds)} of {_device(plan)} in all, for "
        f"{plural(len(comparison.runs), 'fit')}",
        **damaged,
    }


def _device(plan: Plan) -> str:
    """Return the device whose computing time is reported."""
    return "one core" if plan.settings.device == "cpu" else "the GPU"


def _models(findings: Findings) -> str:
    """Format which models the ELBO was trained with, and how often."""
    counts = Counter(map(str, findings.models(ELBO.name)))
    return "; ".join(f"{model} ({times})" for model, times in counts.most_common()) or "–"


def report_document(findings: Findings, verdict: Verdict) -> dict[str, Any]:
    """Return the content of report.json."""
    comparison = findings.comparison
    plan = comparison.plan
    same = ("versions", "machine", "command", "began", "seconds")
    method = "" if verdict.method is None else verdict.method.name
    return {
        "schema": SCHEMA,
        "verdict": {**asdict(verdict), "method": method or None},
        "data": plan.data.model_dump(),
        "methods": [asdict(method) for method in plan.methods],
        "scores": [asdict(score) for score in findings.scores],
        "standings": [
            {**asdict(row), "method": row.method.name, "beta": row.beta}
            for ranking in findings.by_size.values()
            for row in ranking
        ],
        "mixtures": [[m.model_dump() for m in members] for members in findings.mixtures],
        "features": [asdict(entry) for entry in findings.importance(method)],
        "significance": SIGNIFICANT,
        **{name: getattr(plan, name) for name in ("repeats", "sizes", "seed")},
        "rows": asdict(plan.parts),
        "settings": plan.settings.model_dump(),
        "failed": [
            {name: getattr(entry.cell, name) for name in ("method", "repeat", "size")}
            | {"reason": entry.reason}
            for entry in comparison.failed
        ],
        "damaged": comparison.damaged,
        **{name: getattr(comparison, name) for name in same},
    }


def results_parquet(comparison: Comparison) -> bytes:
    """Return results.parquet: one row a cell; failed cells have a reason and no scores."""
    labels = {method.name: method.label for method in comparison.plan.methods}
    shared = ("method", "repeat", "size", "seed")
    outcomes = ("beta", "seconds", "evaluations", "status", "reason", "num_test")
    cell_outcomes: list[tuple[Any, dict[str, Any]]] = [
        (run.cell, run.outcome.scores | {name: getattr(run.outcome, name) for name in outcomes})
        for run in comparison.runs
    ]
    cell_outcomes += [(f.cell, {"status": "failed", "reason": f.reason}) for f in comparison.failed]
    cell_outcomes.sort(
        key=lambda entry: (entry[0].size, entry[0].repeat, list(labels).index(entry[0].method))
    )
    rows = [
        {name: getattr(cell, name) for name in shared} | {"label": labels[cell.method]} | outcome
        for cell, outcome in cell_outcomes
    ]
    scores = [score.name for score in scores_of(comparison)]
    columns = (
        ("string", ("method", "label")),
        ("int64", ("repeat", "size", "seed")),
        ("float64", ("beta", *scores, "seconds")),
        ("int64", ("evaluations",)),
        ("string", ("status", "reason")),
        ("int64", ("num_test",)),
    )
    return parquet(rows, columns)
