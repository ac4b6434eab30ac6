"""The page of a reproduction."""

from collections.abc import Mapping

from markupsafe import Markup

from directgp.datasets.wording import joined, several
from directgp.experiments.paper.reproduction import Reproduction
from directgp.reports.figures.rendering import Drawn
from directgp.reports.glossary import PAPER
from directgp.reports.numbers import whole
from directgp.reports.paper.glossary import GLOSSARY
from directgp.reports.paper.sections import sections
from directgp.reports.paper.words import (
    VERDICTS,
    effect_of,
    headline,
    p_of,
    run_facts,
    second_line,
)
from directgp.reports.templating import digest, inline, template

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
        several=several,
        whole=whole,
        signs=SIGNS,
        glossary=GLOSSARY | dict(VERDICTS),
        paper=PAPER,
        style=inline("report.css") + Markup("\n") + inline("reproduction.css"),
        script=script,
        script_digest=digest(script),
    )
