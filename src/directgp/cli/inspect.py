"""The commands `directgp inspect` and `directgp datasets`: describe models and data sets."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from directgp.cli.options import DataDir, Debug, Json, ModelArgument
from directgp.cli.terminal import Terminal
from directgp.text import bullet, entry, plural

_PAPER_FACTS = (
    *("name", "task", "rows", "features", "num_inducing"),
    *("target", "licence", "source", "url", "differences"),
)


def inspect(model: ModelArgument, json: Json = False, debug: Debug = False) -> None:
    """Show what a model was trained on and how."""
    from directgp.cli.model_folder import load_folder
    from directgp.estimators.summary import facts_of, summary_text

    terminal = Terminal(json=json)
    found, card = load_folder(model, "cpu")
    facts = facts_of(found)
    features = list(card.encoding.feature_names)
    terminal.answer({**card.model_dump(mode="json"), "features": features, "fit": asdict(facts)})
    terminal.show("\n\n".join([summary_text(facts), *_card_sections(card)]))


def _card_sections(card: Any) -> Iterable[str]:
    """Yield the sections of the text: the table, and its columns."""
    from directgp.datasets.encoding import CategoryColumn

    task = card.task
    if card.classes is not None:
        task = f"classification: {card.classes[1]!r} against {card.classes[0]!r}"
    extra = {"exposure": card.exposure, "weights": card.weights}
    lines = {
        "source": f"{card.source}, {plural(card.rows, 'row')}",
        "target": f"{card.target}, {task}",
        **{role: column for role, column in extra.items() if column is not None},
        "fingerprint": card.fingerprint,
        "directgp": card.directgp,
    }
    yield "\n".join(["Trained on", *(entry(name, text) for name, text in lines.items())])
    columns = card.encoding.columns
    numbers = [each.name for each in columns if not isinstance(each, CategoryColumn)]
    items = [f"{', '.join(numbers)}: {'numbers' if len(numbers) > 1 else 'a number'}"]
    items = items if numbers else []
    items += [
        f"{each.name}: a category, {each.base} (base), {', '.join(each.levels)}"
        for each in columns
        if isinstance(each, CategoryColumn)
    ]
    yield "\n".join(["Columns", *map(bullet, items)])


def datasets(data_dir: DataDir = None, json: Json = False, debug: Debug = False) -> None:
    """List the data sets that can be named."""
    from directgp.datasets.paper import PAPER
    from directgp.datasets.sources import data_folder, embedded, find_in_folder, in_folder

    terminal = Terminal(json=json)
    folder = data_folder(data_dir)
    held = in_folder(folder) if folder is not None else ()
    files = {name: find_in_folder(name, folder) for name in PAPER}
    paper = [
        {fact: getattr(facts, fact) for fact in _PAPER_FACTS}
        | {"file": _file_name(files[name]), "where": facts.where_from}
        for name, facts in PAPER.items()
    ]
    terminal.answer({"datasets": [asdict(each) for each in (*embedded(), *held)], "paper": paper})
    terminal.show(_info_table(embedded(), "Embedded"))
    if held:
        terminal.show("")
        terminal.show(_info_table(held, f"In {folder}"))
    terminal.show("")
    terminal.show(_paper_table(PAPER.values(), files))
    if folder is None:
        terminal.note("Name a folder by --data-dir or DIRECTGP_DATA to see the tables in it.")
    elif not held:
        terminal.note(f"There are no tables in {folder}.")


def _info_table(found: Iterable[Any], title: str) -> Table:
    rows = [
        (
            *(each.name, each.task or "–", _size(each.rows), _size(each.features)),
            *(each.target or "–", each.about),
        )
        for each in found
    ]
    return _table(title, ("name", "task", "rows", "features", "target", "about"), rows)


def _paper_table(sets: Iterable[Any], files: dict[str, Path | None]) -> Table:
    title = "Of the paper: rows × features, M inducing inputs, and where the numbers come from"
    rows = []
    for facts in sets:
        file = _file_name(files[facts.name])
        where = f"in the data folder: {file}" if file else facts.where_from
        rows.append((facts.name, facts.task, facts.size, str(facts.num_inducing), where))
    return _table(title, ("name", "task", "size", "M", "where"), rows)


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table without lines; only its last column may be wrapped."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in names:
        numeric = name in ("rows", "features", "size", "M")
        last = name == names[-1]
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=not last, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _file_name(file: Path | None) -> str | None:
    return None if file is None else file.name


def _size(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"
