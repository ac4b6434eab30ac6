"""Keep finished cells in one SQLite file."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, final

from safetensors import SafetensorError
from safetensors.numpy import load, save

from directgp.errors import StoreError
from directgp.experiments.cell import Cell, Finished, Outcome, Predictions, Run


def schema_of(file: sqlite3.Connection, path: Path, reads: int) -> int:
    """The schema of a store, 0 for a new one; refused unless it is the one that is read."""
    (schema,) = file.execute("pragma user_version").fetchone()
    if schema not in (0, reads):
        raise StoreError(
            f"{path} is a store of schema {schema}, and this version of directgp reads "
            f"schema {reads}. Use the version that wrote it, or another folder."
        )
    return int(schema)


@contextmanager
def telling(path: Path, when_locked: str) -> Iterator[None]:
    """Say in words what is wrong with the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StoreError(f"{path} {when_locked}") from error
        raise StoreError(
            f"{path} could not be opened or written: {error}. Give a folder that can be "
            "written to and has space."
        ) from error
    except (sqlite3.DatabaseError, SafetensorError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged or not a store of directgp ({_first_line(error)}). "
            "Delete it, or take another folder."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_SCHEMA = 1

_TABLE = """
create table if not exists cells (
    key text primary key,
    cell text not null,
    outcome text not null,
    predictions blob not null,
    model blob not null
) strict
"""


@final
class Store:
    """Cells by their keys; one program at a time has it open.

    Parameters
    ----------
    path : Path
        The file, made where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._telling():
            self._file = sqlite3.connect(path, isolation_level=None, timeout=1.0)
            try:
                self._open()
            except BaseException:
                self._file.close()
                raise

    def _open(self) -> None:
        self._file.execute("pragma locking_mode = exclusive")
        self._file.execute("pragma synchronous = full")
        self._file.execute("begin exclusive")
        schema_of(self._file, self._path, _SCHEMA)
        self._file.execute(_TABLE)
        self._file.execute(f"pragma user_version = {_SCHEMA}")
        self._file.execute("commit")

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def __contains__(self, cell: Cell) -> bool:
        return self._row("select 1 from cells where key = ?", cell) is not None

    def clear(self) -> None:
        """Forget every cell."""
        with self._telling():
            self._file.execute("delete from cells")

    def put(self, cell: Cell, finished: Finished) -> None:
        """Keep a cell; it survives a power cut from here on."""
        arrays = {f.name: getattr(finished.predictions, f.name) for f in fields(Predictions)}
        row = (
            cell.key,
            cell.model_dump_json(),
            finished.outcome.model_dump_json(),
            save(arrays),
            finished.model,
        )
        with self._telling():
            self._file.execute("insert or replace into cells values (?, ?, ?, ?, ?)", row)

    def run(self, cell: Cell) -> Run:
        """What is known of a cell that is there."""
        row = self._row("select outcome, predictions from cells where key = ?", cell)
        if row is None:
            raise KeyError(cell.key)
        with self._telling():
            outcome, predictions = row
            return Run(cell, Outcome.model_validate_json(outcome), Predictions(**load(predictions)))

    def model(self, cell: Cell) -> bytes:
        """The model that a cell left behind."""
        row = self._row("select model from cells where key = ?", cell)
        if row is None:
            raise KeyError(cell.key)
        return bytes(row[0])

    def _row(self, query: str, cell: Cell) -> tuple[Any, ...] | None:
        with self._telling():
            found: tuple[Any, ...] | None = self._file.execute(query, (cell.key,)).fetchone()
            return found

    def _telling(self) -> AbstractContextManager[None]:
        return telling(self._path, "is in use by another run. Wait for it, or take another folder.")
