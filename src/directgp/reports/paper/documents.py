"""All verdicts, for machines: `verdicts.json`."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.reproduction import Reproduction
from directgp.experiments.paper.results import Results
from directgp.reports.paper.words import headline
from directgp.reports.strict_json import strict_json

SCHEMA = 1
"""Raised when a reader of an older document would be misled."""


def verdicts_json(told: Reproduction) -> bytes:
    """Strict JSON; what is not finite is null."""
    results = told.results
    return strict_json(
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
