"""The command `directgp datasets`: list the data sets that can be named."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from directgp.cli.options import DataDir
from directgp.cli.terminal import Debug, Json, Terminal, plain_table

if TYPE_CHECKING:
    from directgp.datasets.catalogues import Catalogue


def datasets(data_dir: DataDir = None, json: Json = False, debug: Debug = False) -> None:
    """List the data sets that can be named."""
    from directgp.datasets.catalogues import catalogues
    from directgp.datasets.sources import data_folder, embedded, find_in_folder, in_folder

    terminal = Terminal(json=json)
    folder = data_folder(data_dir)
    held = in_folder(folder) if folder is not None else ()
    listed = catalogues()
    files: dict[str, str | None] = {}
    for catalogue in listed:
        for entry in catalogue.entries:
            file = find_in_folder(entry.name, folder)
            files[entry.name] = None if file is None else file.name
    document: dict[str, Any] = {"datasets": [asdict(info) for info in (*embedded(), *held)]}
    for catalogue in listed:
        document[catalogue.name] = [
            {"name": entry.name, **entry.facts, "file": files[entry.name], "where": entry.where}
            for entry in catalogue.entries
        ]
    terminal.answer(document)
    heads = ("name", "task", "rows", "features", "target", "about")
    for title, infos in (("Embedded", embedded()), (f"In {folder}", held)):
        rows = [[_text(getattr(info, head)) for head in heads] for info in infos]
        if rows:
            terminal.show(plain_table(title, heads, rows, ("rows", "features")))
            terminal.show("")
    for catalogue in listed:
        _show(catalogue, files, terminal)
    if not listed:
        terminal.note("The paper's data sets are listed after: pip install 'directgp[paper]'")
    if folder is None:
        terminal.note("Name a folder by --data-dir or DIRECTGP_DATA to see the tables in it.")
    elif not held:
        terminal.note(f"There are no tables in {folder}.")


def _show(catalogue: "Catalogue", files: dict[str, str | None], terminal: Terminal) -> None:
    """Print the table of a catalogue."""
    heads = ("name", *catalogue.entries[0].cells, "where")
    rows = []
    for entry in catalogue.entries:
        file = files[entry.name]
        where = f"in the data folder: {file}" if file else entry.where
        rows.append([entry.name, *entry.cells.values(), where])
    terminal.show(plain_table(catalogue.title, heads, rows, catalogue.numeric))


def _text(value: str | int | None) -> str:
    """Return a cell of the table; a dash for an unknown value."""
    return f"{value:,}" if isinstance(value, int) else value or "–"
