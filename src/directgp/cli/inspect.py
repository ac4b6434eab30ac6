"""The command `directgp inspect`: describe a model, or the columns of a table."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from directgp.cli.options import FileOptions
from directgp.cli.terminal import Debug, Json, Terminal
from directgp.registry import ROW_CONSTANTS
from directgp.text import bullet, command_lines, entry, listed, plural

if TYPE_CHECKING:
    from directgp.datasets.descriptions import ColumnDescription

Inspected = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL|DATA",
        help="The folder of a model; or a file, or the name of a data set.",
        show_default=False,
    ),
]


def inspect(
    model: Inspected, *, file: FileOptions, json: Json = False, debug: Debug = False
) -> None:
    """Show what a model was trained on and how, or what the columns of a table would be."""
    terminal = Terminal(json=json)
    if _is_data(model, file.data_dir):
        _show_columns(str(model), file, terminal)
        return
    from directgp.cli.model_folder import load_folder
    from directgp.estimators.summary import facts_of, summary_text

    fitted, card = load_folder(model, "cpu")
    facts = facts_of(fitted)
    features = list(card.encoding.feature_names)
    terminal.answer({**card.model_dump(mode="json"), "features": features, "fit": asdict(facts)})
    terminal.show("\n\n".join([summary_text(facts), *_card_sections(card)]))


def _is_data(path: Path, data_dir: Path | None) -> bool:
    """Return whether the path is a table in a file, or the name of a data set."""
    if path.exists():
        from directgp.datasets.tables import suffix_of

        return path.is_file() and suffix_of(path) is not None
    from directgp.datasets.embedded import EMBEDDED
    from directgp.datasets.sources import data_folder, find_in_folder

    name = str(path)
    return name in EMBEDDED or find_in_folder(name, data_folder(data_dir)) is not None


def _show_columns(data: str, file: FileOptions, terminal: Terminal) -> None:
    """Print what the columns of a table would be, and the kinds that some may have."""
    from directgp.datasets.descriptions import describe_columns
    from directgp.datasets.sources import open_source

    source = open_source(data, file.data_dir, file.reading)
    opened = source.table
    table = opened.read()
    notes = [*source.notes, *opened.notes]
    if opened.irregular:
        notes.append(opened.rows_left_out())
    for note in notes:
        terminal.note(note)
    columns = describe_columns(table, opened.reading.decimals(opened.decimal))
    document = {
        "source": source.shown,
        "rows": table.num_rows,
        "columns": [asdict(column) for column in columns],
        "notes": notes,
    }
    terminal.answer(document)
    lines = [f"{column.name}: {column.use}{_hint(column)}" for column in columns]
    heading = f"{source.shown}: {plural(table.num_rows, 'row')}"
    terminal.show("\n".join([heading, *map(bullet, lines)]))
    words = _columns_words(columns)
    if words:
        command = command_lines(["directgp", "fit", data, "--target", "COLUMN", *words])
        terminal.show(f"\nKinds of columns are set so:\n{command} --out model", wrap=False)


def _hint(column: "ColumnDescription") -> str:
    """Return the suggestion for a column, after its description."""
    if column.hint is None:
        return ""
    return f" (--columns {column.name}={column.hint}: {column.why})"


def _columns_words(columns: Sequence["ColumnDescription"]) -> list[str]:
    """Return the option --columns of all hints; names with commas have options of their own."""
    pairs = [f"{column.name}={column.hint}" for column in columns if column.hint is not None]
    plain = ",".join(pair for pair in pairs if "," not in pair)
    groups = [plain] if plain else []
    groups += [pair for pair in pairs if "," in pair]
    return [word for group in groups for word in ("--columns", group)]


def _card_sections(card: Any) -> Iterable[str]:
    """Yield the sections of the text: the table, and its columns."""
    task = card.task
    if card.classes is not None:
        two = f"{card.classes[1]!r} against {card.classes[0]!r}"
        task = f"classification: {two if len(card.classes) == 2 else listed(card.classes, 20)}"
    extra = {name: getattr(card, name) for name in (*ROW_CONSTANTS, "weights")}
    lines = {
        "source": f"{card.source}, {plural(card.rows, 'row')}",
        "target": f"{card.target}, {task}",
        **{role: column for role, column in extra.items() if column is not None},
        "fingerprint": card.fingerprint,
        "directgp": card.directgp,
    }
    yield "\n".join(["Trained on", *(entry(name, text) for name, text in lines.items())])
    yield "\n".join(["Columns", *map(bullet, _column_lines(card.encoding.columns))])


def _column_lines(columns: Sequence[Any]) -> Iterable[str]:
    """Yield what the columns are; columns of one kind have one line, but for levels."""
    from directgp.datasets.encoding import CategoryColumn, LevelColumn, PlaceColumn, TimeColumn

    kinds = {"times": TimeColumn, "a place": PlaceColumn}
    special = (*kinds.values(), CategoryColumn, LevelColumn)
    numbers = [column.name for column in columns if not isinstance(column, special)]
    if numbers:
        yield f"{', '.join(numbers)}: {'numbers' if len(numbers) > 1 else 'a number'}"
    for words, kind in kinds.items():
        if names := [column.name for column in columns if isinstance(column, kind)]:
            yield f"{', '.join(names)}: {words}"
    for column in columns:
        if isinstance(column, CategoryColumn):
            levels = ", ".join(column.levels)
            yield f"{column.name}: a category, {column.base} (base), {levels}"
        elif isinstance(column, LevelColumn):
            names = [*map(str, column.levels), *(["(missing)"] if column.gaps else [])]
            more = len(names) - _MAX_SHOWN
            shown = ", ".join(names[:_MAX_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            yield f"{column.name}: a {column.use} of levels, {shown}"


_MAX_SHOWN = 20
"""Levels that are shown of a column of one feature."""
