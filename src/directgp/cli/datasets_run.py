"""List the data sets."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from directgp.cli.terminal import Terminal
from directgp.datasets.embedded import DatasetInfo
from directgp.datasets.paper import PAPER
from directgp.datasets.sources import data_folder, embedded, find_in_folder, in_folder

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


_SIDES: dict[str, Literal["left", "right"]] = {"rows": "right", "features": "right"}


def list_data_sets(data_dir: Path | None, terminal: Terminal) -> None:
    """Show every data set that DATA may name."""
    folder = data_folder(data_dir)
    held = in_folder(folder) if folder is not None else ()
    terminal.answer(
        {
            "datasets": [asdict(each) for each in (*embedded(), *held)],
            "paper": paper_facts(folder),
        }
    )
    terminal.show(_table(embedded(), "Embedded"))
    if held:
        terminal.show("")
        terminal.show(_table(held, f"In {folder}"))
    terminal.show("")
    terminal.show(paper_table(folder))
    if folder is None:
        terminal.say("Name a folder by --data-dir or DIRECTGP_DATA to see the tables in it.")
    elif not held:
        terminal.say(f"There are no tables in {folder}.")


def _table(found: Sequence[DatasetInfo], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("name", "task", "rows", "features", "target", "about"):
        table.add_column(
            name, justify=_SIDES.get(name, "left"), no_wrap=name != "about", overflow="fold"
        )
    for each in found:
        sizes = (_size(each.rows), _size(each.features))
        cells = (each.name, each.task or "–", *sizes, each.target or "–", each.about)
        table.add_row(*map(Text, cells))
    return table


def _size(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"
