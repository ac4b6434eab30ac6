"""The page itself."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from directgp.datasets.wording import several
from directgp.metrics import COVERAGE
from directgp.reports.figures.rendering import Drawn, address, dimensions
from directgp.reports.findings import Findings
from directgp.reports.glossary import PAPER, glossary
from directgp.reports.particulars import data_particulars, run_particulars
from directgp.reports.plain import plain
from directgp.reports.scoreboard import CLOSE, heading, scoreboard
from directgp.reports.verdict import Verdict
from directgp.reports.wording import TASKS, asked, called


def page(findings: Findings, verdict: Verdict, pictures: Sequence[Drawn]) -> str:
    """One self-contained document; whatever users named is escaped."""
    data = findings.comparison.plan.data
    script = _file("report.js")
    boards = [scoreboard(found, findings.scores) for found in findings.by_size.values()]
    return _template().render(
        name=plain(data.name, 80),
        question=asked(data.task, plain(data.target, 80)),
        task=TASKS[data.task],
        verdict=verdict,
        boards=boards,
        heading=heading,
        several=several,
        called=called,
        close=CLOSE,
        coverage=COVERAGE,
        pictures=pictures,
        address=address,
        dimensions=dimensions,
        findings=findings,
        comparison=findings.comparison,
        plan=findings.comparison.plan,
        data_particulars=data_particulars(findings),
        run_particulars=run_particulars(findings),
        lost=_lost(findings),
        glossary=glossary(findings.scores),
        paper=PAPER,
        # These two are files of the package, not text of users.
        style=Markup(_file("report.css")),  # nosec
        script=Markup(script),  # nosec
        script_digest=_digest(script),
    )


def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_file("report.html"))


def _file(name: str) -> str:
    return files("directgp.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _lost(findings: Findings) -> list[str]:
    """Candidates that could not be trained within fits that were finished."""
    return [
        f"{run.cell.method}, repeat {run.cell.repeat}, {run.cell.size:,} rows: {words}"
        for run in findings.comparison.runs
        for words in run.outcome.failed
    ]


def _digest(script: str) -> str:
    """By which the page allows this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
