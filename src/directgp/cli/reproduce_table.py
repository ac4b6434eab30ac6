"""The verdicts on a terminal."""

from collections import Counter

from rich.table import Table
from rich.text import Text

from directgp.datasets.wording import several
from directgp.experiments.paper.reproduction import Reproduction

_STYLES = {"held": "green", "not held": "red", "not decided": "yellow"}


def verdict_table(told: Reproduction) -> Table:
    """A row a claim, with what was seen."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("claim", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was seen", overflow="fold")
    for claim, finding in told.findings:
        verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
        table.add_row(claim.id, verdict, Text(finding.sentence))
    return table


def summary(told: Reproduction) -> str:
    """How many claims held."""
    found = Counter[str](finding.verdict for _, finding in told.findings)
    counts = ", ".join(f"{found[verdict]} {verdict}" for verdict in _STYLES)
    return f"Of {several(len(told.findings), 'claim')}: {counts}. Scale {told.scale}."
