"""The command `directgp inspect`: describe a model."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from directgp.cli.options import ModelArgument
from directgp.cli.terminal import Debug, Json, Terminal
from directgp.registry import ROW_CONSTANTS
from directgp.text import bullet, entry, listed, plural


def inspect(model: ModelArgument, json: Json = False, debug: Debug = False) -> None:
    """Show what a model was trained on and how."""
    from directgp.cli.model_folder import load_folder
    from directgp.estimators.summary import facts_of, summary_text

    terminal = Terminal(json=json)
    fitted, card = load_folder(model, "cpu")
    facts = facts_of(fitted)
    features = list(card.encoding.feature_names)
    terminal.answer({**card.model_dump(mode="json"), "features": features, "fit": asdict(facts)})
    terminal.show("\n\n".join([summary_text(facts), *_card_sections(card)]))


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
            known = [*map(str, column.levels), *(["(missing)"] if column.gaps else [])]
            more = len(known) - _MAX_SHOWN
            shown = ", ".join(known[:_MAX_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            yield f"{column.name}: a {column.use} of levels, {shown}"


_MAX_SHOWN = 20
"""Levels that are shown of a column of one feature."""
