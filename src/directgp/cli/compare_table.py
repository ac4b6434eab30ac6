"""The table of scores on a terminal."""

from dataclasses import dataclass
from typing import final

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from directgp.cli.terminal import console
from directgp.reports.findings import Findings
from directgp.reports.scoreboard import CLOSE, Entry, Scoreboard, heading, scoreboard

_BEST = "*"
"""After the best value: bold is not seen in a file."""


@final
@dataclass(frozen=True)
class _Layout:
    """How much room a table takes."""

    labels: bool
    """Long names of the methods."""

    errors: int
    """Columns, β first, that have their errors."""

    padding: int

    all_columns: bool = True
    """Else the first two scores alone."""


_LAYOUTS = (
    _Layout(True, 9, 2),
    _Layout(False, 9, 1),
    _Layout(False, 3, 1),
    _Layout(False, 2, 1),
    _Layout(False, 0, 1),
    _Layout(False, 0, 1, all_columns=False),
)
"""The first that fits is taken, or the last."""


def scores_table(findings: Findings, size: int) -> Table:
    """Methods and their scores at one size; the best in bold, those close to it marked."""
    board = scoreboard(findings.by_size[size], findings.scores)
    title = f"{findings.comparison.plan.data.name}: {heading(board)}"
    tables = [_table(board, title, layout) for layout in _LAYOUTS]
    screen = console()
    # Measured as if there were room for anything.
    room = screen.options.update(width=1000)
    fits = (t for t in tables if Measurement.get(screen, room, t).maximum <= screen.width)
    return next(fits, tables[-1])


def _table(board: Scoreboard, title: str, layout: _Layout) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, layout.padding),
    )
    table.add_column("method", no_wrap=True)
    # β comes before the scores.
    shown = slice(None) if layout.all_columns else slice(1, 3)
    for column in board.columns[shown]:
        name = column.title.replace("coverage of ", "in ")
        short = name if layout.labels else name.replace("seconds", "s")
        table.add_column(short, justify="right", no_wrap=True)
    for method, entries in board.rows:
        cells = [_cell(entry, i < layout.errors) for i, entry in enumerate(entries)]
        name = method.label if layout.labels else method.name
        table.add_row(name, *cells[shown])
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


def _cell(entry: Entry, with_error: bool) -> Text:
    """Value, error and mark, the marks below each other."""
    error = f" ± {entry.error}" if entry.error and with_error else ""
    mark = _BEST if entry.best else CLOSE if entry.close else " "
    text = Text(f"{entry.text}{error}{entry.unit}", style="bold" if entry.best else "")
    return text.append(f" {mark}", style="bold" if entry.best else "dim")
