"""Describe a saved model or list data sets."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from directgp.cli.model_folder import ModelCard, load_folder
from directgp.cli.terminal import Terminal
from directgp.datasets.columns import CategoryColumn
from directgp.estimators.summary import count, entry, facts_of, item, summary_text


def show_model(path: Path, terminal: Terminal) -> None:
    """Show what was trained, on which columns of which table."""
    model, card = load_folder(path, "cpu")
    facts = facts_of(model)
    terminal.answer({**_plain(card), "fit": asdict(facts)})
    terminal.show("\n\n".join([summary_text(facts), _table(card), _columns(card)]))


def _plain(card: ModelCard) -> dict[str, Any]:
    return {**card.model_dump(mode="json"), "features": list(card.encoding.feature_names)}


def _table(card: ModelCard) -> str:
    lines = [
        entry("source", f"{card.source}, {count(card.rows, 'row')}"),
        entry("target", f"{card.target}, {_task(card)}"),
    ]
    lines += [
        entry(role, column)
        for role, column in (("exposure", card.exposure), ("weights", card.weights))
        if column is not None
    ]
    lines += [entry("fingerprint", card.fingerprint), entry("directgp", card.directgp)]
    return "\n".join(["Trained on", *lines])


def _task(card: ModelCard) -> str:
    if card.classes is None:
        return card.task
    return f"classification: {card.classes[1]!r} against {card.classes[0]!r}"


def _columns(card: ModelCard) -> str:
    columns = card.encoding.columns
    numbers = [each.name for each in columns if not isinstance(each, CategoryColumn)]
    lines = [item(f"{', '.join(numbers)}: {'numbers' if len(numbers) > 1 else 'a number'}")]
    lines = lines if numbers else []
    lines += [item(_levels(each)) for each in columns if isinstance(each, CategoryColumn)]
    return "\n".join(["Columns", *lines])


def _levels(column: CategoryColumn) -> str:
    return f"{column.name}: a category, {column.base} (base), {', '.join(column.levels)}"
