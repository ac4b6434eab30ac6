"""What `directgp datasets` does: list what is embedded, in a folder, and of the paper."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from directgp.cli.paper_listing import paper_facts, paper_table
from directgp.cli.terminal import Terminal
from directgp.datasets.embedding import DatasetInfo
from directgp.datasets.registry import embedded, in_folder
from directgp.datasets.sources import data_folder

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
