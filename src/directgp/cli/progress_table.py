"""The board of a comparison as a table that fits the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rich.table import Table

DONE, FAILED, RUNNING, WAITING = "●", "✗", "◐", "·"

_GAP, _NLL, _LEAST, _ROOMY = 2, 9, 12, 50
"""Widths: between columns, of the NLL, the least of what is going on, and that of long names."""


@final
@dataclass(frozen=True)
class ProgressRow:
    """What is known of a method."""

    name: str
    label: str
    """Longer than the name."""

    signs: str
    """One a fit."""

    mean: str
    """NLL of what is done."""

    now: str
    """What is going on."""


def progress_table(rows: Sequence[ProgressRow], width: int) -> Table:
    """What is going on gives way first, then signs give way to a count."""
    labels = [row.label if width >= _ROOMY else row.name for row in rows]
    means = [row.mean for row in rows]
    left = width - _widest(labels) - max(_NLL, _widest(means)) - 2 * _GAP
    fits = [row.signs for row in rows]
    if _widest(fits) > left:
        fits = [_counted(row.signs) for row in rows]
    table = _empty_table()
    columns = [labels, fits, means]
    left -= max(_widest(fits), len("fits")) + _GAP
    if left >= _LEAST:
        table.add_column("now", no_wrap=True)
        columns.append([_cut(row.now, left) for row in rows])
    for cells in zip(*columns, strict=True):
        table.add_row(*cells)
    return table


def _empty_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("NLL", no_wrap=True, justify="right", min_width=_NLL)
    return table


def _counted(signs: str) -> str:
    """``9/20``, and how many failed."""
    failed = signs.count(FAILED)
    return f"{signs.count(DONE)}/{len(signs)}" + (f" {failed}{FAILED}" if failed else "")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _widest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)
