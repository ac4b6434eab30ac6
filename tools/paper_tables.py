"""Write the tables of the page "The paper, rerun" from the results that are kept beside it.

``python tools/paper_tables.py`` reads ``paper/docs/reproduction/results.parquet``, and writes
``paper/docs/tables/reproduction_*.md``.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from directgp.text import number, with_error
from directgp_paper.experiments.cells import (
    AIRLINE,
    EXACT,
    PAPER_METHODS,
    CurveCell,
    FitCell,
    Results,
)
from directgp_paper.experiments.claims import CLAIMS
from directgp_paper.experiments.claims.base import Assessment, ClaimReading
from directgp_paper.experiments.claims.fits import (
    CLASSIFICATION_SETS,
    COUNT_SETS,
    REGRESSION_SETS,
)
from directgp_paper.experiments.claims.runs import AnyRecord, over_repeats
from directgp_paper.experiments.run import read_parquet
from directgp_paper.experiments.sweep import SMALL_SET
from directgp_paper.reports.page import evidence

DOCS = Path(__file__).parents[1] / "paper" / "docs"
ARCHIVE = DOCS / "reproduction" / "results.parquet"

_PROTOCOLS = ("paper", "best")

BEFORE = {
    **dict.fromkeys(("C7", "C8", "C14"), "held"),
    **dict.fromkeys(("C1", "C9", "C10", "C11", "C12", "C13"), "not held"),
    **dict.fromkeys(("C2", "C3", "C4", "C5", "C6"), "not decided"),
}
"""Verdicts by the first version of the criteria, on results of the scale small."""


def main() -> None:
    """Write every table."""
    results = read_parquet(ARCHIVE).results
    assessed = [claim.assess(results) for claim in CLAIMS.values()]
    for name, text in tables(results, assessed).items():
        (DOCS / "tables" / f"reproduction_{name}.md").write_text(text, encoding="utf-8")


def tables(results: Results, assessed: Sequence[Assessment]) -> dict[str, str]:
    """Return the tables by their names."""
    regression = list(PAPER_METHODS)
    others = ["elbo", "beta-elbo", "log-joint", "log-fixed"]
    return {
        "claims": _table(
            ("claim", "the paper's words", "before", "now", "found here, and by how many runs"),
            map(_claim, assessed),
        ),
        "readings": _table(
            ("claim", "reading", "verdict", "found"),
            (
                (assessment.claim.id, _name(reading), finding.verdict, finding.sentence)
                for assessment in assessed
                for reading, finding in assessment.judged[1:]
            ),
        ),
        "protocols": _protocols(results, regression),
        "nll": _scores(results, REGRESSION_SETS, regression, "nll"),
        "mse": _scores(results, REGRESSION_SETS, regression, "mse"),
        "labels": _scores(results, CLASSIFICATION_SETS, others, "nll"),
        "counts": _scores(results, COUNT_SETS, others, "nll"),
        "airline": _airline(results),
    }


def _claim(assessment: Assessment) -> tuple[str, ...]:
    claim = assessment.claim
    finding = assessment.finding
    text = finding.sentence
    if assessment.runs:
        text += f" *{evidence(assessment)}.*"
    return claim.id, f"“{claim.quote}”", BEFORE[claim.id], f"**{finding.verdict}**", text


def _name(reading: ClaimReading) -> str:
    return f"ours: {reading.name}" if reading.of == "ours" else reading.name


def _scores(results: Results, datasets: Sequence[str], methods: Sequence[str], score: str) -> str:
    """Return mean ± standard error at the largest size of each data set; the best is bold."""
    fits = [run for run in results.of(FitCell) if run.cell.protocol == "best"]
    columns = {"method": _labels(methods)}
    for dataset in datasets:
        own = [run for run in fits if run.cell.dataset == dataset]
        largest = max((run.cell.size for run in own), default=0)
        runs = [run for run in own if run.cell.size == largest]
        if runs:
            columns[f"{dataset}, {largest:,} rows"] = _means(runs, methods, score)
    return _table([*columns], zip(*columns.values(), strict=True))


def _protocols(results: Results, methods: Sequence[str]) -> str:
    """Return scores and chosen β on the data set that was run by both protocols."""
    every = [run for run in results.of(FitCell) if run.cell.dataset == SMALL_SET]
    # Only splits that a method has by both protocols are compared.
    seen = Counter((run.cell.size, run.cell.method, run.cell.repeat) for run in every)
    fits = [run for run in every if seen[run.cell.size, run.cell.method, run.cell.repeat] > 1]
    header = [f"{what}, {name}" for what in ("NLL", "MSE", "median β") for name in _PROTOCOLS]
    rows: list[Sequence[str]] = []
    for size in sorted({run.cell.size for run in fits}):
        own = [[r for r in fits if (r.cell.size, r.cell.protocol) == (size, p)] for p in _PROTOCOLS]
        scores = [_means(runs, methods, score) for score in ("nll", "mse") for runs in own]
        counts = [str(sum(r.cell.method == m for r in own[0])) for m in methods]
        labels = [f"{label}, {size:,} rows" for label in _labels(methods)]
        betas = [_betas(runs, methods) for runs in own]
        rows += zip(labels, *scores, *betas, counts, strict=True)
    return _table(("method", *header, "repeats"), rows)


def _labels(methods: Sequence[str]) -> list[str]:
    return [PAPER_METHODS[method].label for method in methods]


def _means(fits: Sequence[AnyRecord], methods: Sequence[str], score: str) -> list[str]:
    """Return mean ± standard error of each method; the best is bold."""
    values = [[r.outcome.scores[score] for r in fits if r.cell.method == m] for m in methods]
    means = [float(np.mean(of_method)) if of_method else math.inf for of_method in values]
    errors = [over_repeats(np.array(of_method), 0.0).error for of_method in values]
    texts = [
        with_error(mean, error) if math.isfinite(mean) else "–"
        for mean, error in zip(means, errors, strict=True)
    ]
    best = min(means)
    return [f"**{t}**" if mean == best else t for t, mean in zip(texts, means, strict=True)]


def _betas(fits: Sequence[AnyRecord], methods: Sequence[str]) -> list[str]:
    """Return the median of the chosen β."""
    values = [
        [r.outcome.beta for r in fits if r.cell.method == m and len(r.cell.betas) > 1]
        for m in methods
    ]
    return [number(float(np.median(betas)), 2) if betas else "–" for betas in values]


_EPOCHS = (1, 6, 11, 16, 20)
_SHOWN_BETA = 0.1
"""The β at which rules are shown."""


def _airline(results: Results) -> str:
    """Return the mean NLL of each kind of curve after some epochs."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for run in results.of(CurveCell):
        cell = run.cell
        if cell.dataset == AIRLINE and (cell.rule == EXACT or cell.beta == _SHOWN_BETA):
            key = (cell.whitened, cell.method, cell.beta, cell.rule)
            groups.setdefault(key, []).append(run)
    rows = []
    for (whitened, method, beta, rule), runs in groups.items():
        name = f"{PAPER_METHODS[method].label}, β = {number(beta)}"
        name += "" if method.endswith("elbo") else f", {rule.label}"
        means = []
        for epoch in _EPOCHS:
            seen = [
                point.scores["nll"]
                for run in runs
                for point in run.outcome.points
                if round(point.epoch) == epoch
            ]
            means.append(f"{np.mean(seen):.4f}" if seen else "–")
        rows.append((name + ("" if whitened else ", unwhitened"), *means, str(len(runs))))
    header = [f"epoch {epoch}" for epoch in _EPOCHS]
    return _table(("run", *header, "repeats"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_escaped(line))} |\n" for line in lines)


def _escaped(line: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in line]


if __name__ == "__main__":
    main()
