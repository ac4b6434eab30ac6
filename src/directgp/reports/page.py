"""The page itself."""

from collections.abc import Sequence

from directgp.datasets.wording import several
from directgp.metrics import COVERAGE
from directgp.reports.figures.rendering import Drawn
from directgp.reports.findings import Findings
from directgp.reports.glossary import PAPER, glossary
from directgp.reports.particulars import data_particulars, run_particulars
from directgp.reports.plain import plain
from directgp.reports.scoreboard import CLOSE, heading, scoreboard
from directgp.reports.templating import digest, inline, template
from directgp.reports.verdict import Verdict
from directgp.reports.wording import TASKS, asked, called


def page(findings: Findings, verdict: Verdict, pictures: Sequence[Drawn]) -> str:
    """One self-contained document; whatever users named is escaped."""
    data = findings.comparison.plan.data
    script = inline("report.js")
    boards = [scoreboard(found, findings.scores) for found in findings.by_size.values()]
    return template("report.html").render(
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
