"""All that the page says, for machines: `report.json`."""

from dataclasses import asdict
from typing import Any

from directgp.experiments.standings import SIGNIFICANT, Standing
from directgp.reports.findings import Findings
from directgp.reports.strict_json import strict_json
from directgp.reports.verdict import Verdict

SCHEMA = 1
"""Raised when a reader of an older document would be misled."""


def report_json(findings: Findings, verdict: Verdict) -> bytes:
    """Strict JSON; what is not finite is null."""
    return strict_json(_document(findings, verdict))


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
