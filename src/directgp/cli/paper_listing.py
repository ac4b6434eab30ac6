"""The part of `directgp datasets` on the data sets of the paper."""

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from directgp.datasets.paper import PAPER
from directgp.datasets.sources import find_in_folder

_TITLE = "Of the paper: its rows × features and M inducing inputs, and where the numbers come from"

_FACTS = (
    "name",
    "task",
    "rows",
    "features",
    "num_inducing",
    "target",
    "licence",
    "source",
    "url",
    "differences",
)


def paper_facts(folder: Path | None) -> list[dict[str, Any]]:
    """What is known of each, the file in the data folder, or where else it comes from."""
    return [
        {fact: getattr(facts, fact) for fact in _FACTS}
        | {"file": _file(name, folder), "where": facts.where_from}
        for name, facts in PAPER.items()
    ]


def paper_table(folder: Path | None) -> Table:
    """One row each: its size in the paper, and where its numbers come from."""
    table = Table(title=_TITLE, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("name", "task"):
        table.add_column(name, no_wrap=True)
    for name in ("size", "M"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for name, facts in PAPER.items():
        file = _file(name, folder)
        where = f"in the data folder: {file}" if file else facts.where_from
        cells = (name, facts.task, facts.size, str(facts.num_inducing), where)
        table.add_row(*map(Text, cells))
    return table


def _file(name: str, folder: Path | None) -> str | None:
    """Name of the file with the data set in the data folder, if it has one."""
    found = find_in_folder(name, folder)
    return found.name if found else None
