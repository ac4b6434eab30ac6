"""The SQLite file of a shared store: its tables, and how it is read and written.

It has no write-ahead log, which needs memory that all programs see: so it works on network file
systems too.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from directgp.experiments.store_files import schema_of, telling

_SCHEMA = 1001
"""Far from the numbers of the store of a comparison: neither is taken for the other."""

_PATIENCE = 60.0
"""Seconds to wait for other programs, which are never long about it."""

_LOCKED = "has been locked by another program for a minute. End that program, or take another file."

_TABLES = (
    """
    create table results (
        key text primary key,
        cell text not null,
        outcome text not null,
        circumstances text not null,
        model blob not null,
        arrays blob not null
    ) strict
    """,
    """
    create table failures (
        key text primary key,
        cell text not null,
        reason text not null,
        attempts integer not null,
        failed text not null
    ) strict
    """,
    """
    create table claims (
        key text primary key,
        owner text not null,
        host text not null,
        pid integer not null,
        beat real not null
    ) strict
    """,
)

Row = tuple[Any, ...]


@final
class StoreFile:
    """A connection that says in words what is wrong.

    Parameters
    ----------
    path : Path
        The file, made where there is none.
    patience : float
        Seconds to wait for other programs.
    """

    def __init__(self, path: Path, patience: float = _PATIENCE) -> None:
        self.path = path
        with telling(path, _LOCKED):
            self._file = sqlite3.connect(path, isolation_level=None, timeout=patience)
            try:
                self._file.execute("pragma synchronous = full")
                self._make_tables()
            except BaseException:
                self._file.close()
                raise

    def _make_tables(self) -> None:
        """Unless they are there: then nothing is written, and nobody waited for."""
        if schema_of(self._file, self.path, _SCHEMA) == _SCHEMA:
            return
        with self.writing():
            # Another program may have been quicker.
            if schema_of(self._file, self.path, _SCHEMA) == 0:
                for table in _TABLES:
                    self._file.execute(table)
                self._file.execute(f"pragma user_version = {_SCHEMA}")

    def rows(self, query: str, *values: object) -> list[Row]:
        """All that a query finds."""
        with telling(self.path, _LOCKED):
            return self._file.execute(query, values).fetchall()

    def row(self, query: str, *values: object) -> Row | None:
        """The first that a query finds."""
        found = self.rows(query, *values)
        return found[0] if found else None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All of the block is written, or nothing; no other program writes meanwhile."""
        with telling(self.path, _LOCKED):
            self._file.execute("begin immediate")
            try:
                yield
                self._file.execute("commit")
            except BaseException:
                self._file.rollback()
                raise

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
