"""File of results: one JSON object per line, so that a stopped run keeps every finished fit."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]

DEFAULT_PATH = Path(__file__).resolve().parents[1] / "results/defaults.jsonl"


@dataclass(frozen=True)
class Cell:
    """A fit: its table, split, maximum number of training rows (None is all) and method."""

    table: str
    split: int
    rows: int | None
    method: str
    settings: int
    """Version of the settings."""


Results = dict[Cell, Record]


class Store:
    """Results by cell; a later line replaces an earlier one of the same cell."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Results:
        """Return all results; an incomplete last line, of a stopped run, is left out."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        records = [record for line in lines if (record := _parsed(line)) is not None]
        return {Cell(**record.pop("cell")): record for record in records}

    def append(self, cell: Cell, record: Record) -> None:
        """Add a result, on a new line also after an incomplete one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            file.seek(max(0, file.tell() - 1))
            start = "" if file.read() in (b"", b"\n") else "\n"
            file.write((start + _line(cell, record)).encode("utf-8"))

    def remove(self, cells: Iterable[Cell]) -> None:
        """Remove the results of the cells, and lines that were replaced."""
        dropped = set(cells)
        kept = {cell: record for cell, record in self.read().items() if cell not in dropped}
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(_line(*each) for each in kept.items()), encoding="utf-8")
        os.replace(draft, self.path)


def _line(cell: Cell, record: Record) -> str:
    return json.dumps({"cell": asdict(cell), **record}, ensure_ascii=False) + "\n"


def _parsed(line: str) -> Record | None:
    try:
        record: Record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record
