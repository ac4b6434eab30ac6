"""The command `directgp datasets`: list the data sets that can be named."""

from dataclasses import asdict

from directgp.cli.options import DataDir
from directgp.cli.terminal import Debug, Json, Terminal, plain_table

_PAPER_FACTS = (
    *("name", "task", "rows", "features", "num_inducing"),
    *("target", "licence", "source", "url", "differences"),
)


def datasets(data_dir: DataDir = None, json: Json = False, debug: Debug = False) -> None:
    """List the data sets that can be named."""
    from directgp.datasets.paper import PAPER
    from directgp.datasets.sources import data_folder, embedded, find_in_folder, in_folder

    terminal = Terminal(json=json)
    folder = data_folder(data_dir)
    held = in_folder(folder) if folder is not None else ()
    paths = {name: find_in_folder(name, folder) for name in PAPER}
    files = {name: None if file is None else file.name for name, file in paths.items()}
    paper = [
        {fact: getattr(facts, fact) for fact in _PAPER_FACTS}
        | {"file": files[name], "where": facts.where_from}
        for name, facts in PAPER.items()
    ]
    terminal.answer(
        {"datasets": [asdict(dataset) for dataset in (*embedded(), *held)], "paper": paper}
    )
    heads = ("name", "task", "rows", "features", "target", "about")
    for title, listed in (("Embedded", embedded()), (f"In {folder}", held)):
        rows = [[_text(getattr(dataset, head)) for head in heads] for dataset in listed]
        if rows:
            terminal.show(plain_table(title, heads, rows, ("rows", "features")))
            terminal.show("")
    rows = [
        [
            *(name, facts.task, facts.size, str(facts.num_inducing)),
            f"in the data folder: {files[name]}" if files[name] else facts.where_from,
        ]
        for name, facts in PAPER.items()
    ]
    title = "Of the paper: rows × features, M inducing inputs, and where the numbers come from"
    terminal.show(plain_table(title, ("name", "task", "size", "M", "where"), rows, ("size", "M")))
    if folder is None:
        terminal.note("Name a folder by --data-dir or DIRECTGP_DATA to see the tables in it.")
    elif not held:
        terminal.note(f"There are no tables in {folder}.")


def _text(value: str | int | None) -> str:
    """Return a cell of the table; a dash for an unknown value."""
    return f"{value:,}" if isinstance(value, int) else value or "–"
