"""What `directgp reproduce --list` does."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from directgp.cli.terminal import Terminal
from directgp.experiments.paper.claims.registry import CLAIMS
from directgp.experiments.paper.scales import SCALES
from directgp.reports.paper.figures.registry import FIGURES


def list_experiments(terminal: Terminal) -> None:
    """Claims, figures and scales."""
    terminal.answer(
        {
            "claims": [
                {"claim": c.id, "statement": c.statement, "where": c.where} for c in CLAIMS.values()
            ],
            "figures": [{"figure": f.name, "title": f.title} for f in FIGURES.values()],
            "scales": [{"scale": s.name, "about": s.about} for s in SCALES.values()],
        }
    )
    claims = [(c.id, c.statement, ", ".join(c.figures)) for c in CLAIMS.values()]
    terminal.show(_table("Claims", ("claim", "what the paper says", "figures"), claims))
    figures = [(f.name, f.title) for f in FIGURES.values()]
    terminal.show(_table("\nFigures", ("figure", "what it shows"), figures))
    scales = [(s.name, s.about) for s in SCALES.values()]
    terminal.show(_table("\nScales", ("scale", "what is run"), scales))


def _table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, no_wrap=i == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
