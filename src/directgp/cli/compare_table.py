"""The table of scores on a terminal."""

from rich.table import Table
from rich.text import Text

from directgp.cli.terminal import console
from directgp.experiments.methods import Method
from directgp.reports.findings import Findings
from directgp.reports.scoreboard import CLOSE, Entry, heading, scoreboard

_BEST = "*"
"""After the best value: bold is not seen in a file."""

_WIDE = 104
"""Columns from which methods have their long names, and every score its error."""


def scores_table(findings: Findings, size: int) -> Table:
    """Methods and their scores at one size; the best in bold, those close to it marked."""
    wide = console().width >= _WIDE
    board = scoreboard(findings.by_size[size], findings.scores)
    table = Table(
        title=f"{findings.comparison.plan.data.name}: {heading(board)}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2 if wide else 1),
    )
    table.add_column("method", no_wrap=True)
    for column in board.columns:
        table.add_column(_short(column.title), justify="right", no_wrap=True)
    for method, entries in board.rows:
        cells = [_cell(entry, wide or i <= 2) for i, entry in enumerate(entries)]
        table.add_row(_name(method, wide), *cells)
    return table


def table_notes(findings: Findings) -> str:
    """What the marks mean."""
    if len(findings.standings) < 2:
        return ""
    if findings.num_repeats < 2:
        return f"{_BEST} best. One repeat: no test of the differences is possible."
    return (
        f"{_BEST} best   {CLOSE} cannot be told from the best "
        f"(paired test over {findings.num_repeats} repeats, 5 %)"
    )


def _name(method: Method, wide: bool) -> str:
    return method.label if wide else method.name


def _short(title: str) -> str:
    return title.replace("coverage of ", "in ")


def _cell(entry: Entry, with_error: bool) -> Text:
    """Value, error and mark, the marks below each other."""
    error = f" ± {entry.error}" if entry.error and with_error else ""
    mark = _BEST if entry.best else CLOSE if entry.close else " "
    text = Text(f"{entry.text}{error}{entry.unit}", style="bold" if entry.best else "")
    return text.append(f" {mark}", style="bold" if entry.best else "dim")
