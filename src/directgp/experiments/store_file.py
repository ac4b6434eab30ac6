"""Read and write the SQLite file of a store, whose rows have checksums."""

import hashlib
import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, final

from safetensors import SafetensorError

from directgp.errors import StoreError

# The file has no write-ahead log, which needs shared memory: so it works on network file systems.

_SCHEMA = 1002
"""Version of the tables."""

_HEADER = 100
"""Bytes of the header of a database."""

_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""First bytes of a rollback journal."""

_APPLICATION = 0x64677073
"""Application id in the header of the file: "dgps"."""

TIMEOUT = 60.0
"""Seconds to wait for the lock of another program; each program holds it for milliseconds."""

_PLAIN = {
    "results": "cell text, outcome text, circumstances text, model blob, arrays blob",
    "failures": "cell text, reason text, attempts integer, failed text",
    "claims": "owner text, host text, pid integer, beat real",
}
"""Columns after the key; none may be null."""

_CHECKED = ("results", "failures")
"""Tables whose rows end with a checksum."""

_SCANS = {
    "results": "select rowid, * from results not indexed",
    "failures": "select rowid, * from failures not indexed",
}
"""Queries that read every row of a table without its index."""

TABLES = {
    name: f"{columns}, sha256 text" if name in _CHECKED else columns
    for name, columns in _PLAIN.items()
}
"""Columns after the key, with the checksum."""

_OLD = {"cells": "cell text, outcome text, predictions blob, model blob"}
"""Stores of `compare` up to version 0.5; later versions kept the table beside theirs."""

_LAYOUTS: dict[tuple[int, int], list[dict[str, str]]] = {
    (_APPLICATION, _SCHEMA): [TABLES],
    (0, 1001): [_PLAIN, _PLAIN | _OLD],
    (0, 1): [_OLD],
    (0, 0): [{}],
}
"""The tables that a store may have, by application id and schema; an empty file has none."""

_FROM_OLD = """
key, cell, outcome,
    '{"versions": {}, "machine": "", "device": "", "finished": ""}', model, predictions, ''
from cells
"""

Row = tuple[Any, ...]


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Raise `StoreError` for errors of the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if "locked" in str(error):
            raise StoreError(
                f"{path} has been locked by another program for a minute. End that program, or "
                "use another file."
            ) from error
        if name == "SQLITE_READONLY_DBMOVED":
            _refuse_moved(path, error)
        if name == "SQLITE_READONLY_ROLLBACK":
            raise StoreError(
                f"{path} belongs to a program that was killed while it wrote. Run that command "
                "again with --resume first."
            ) from error
        raise StoreError(
            f"{path} could not be opened or written: {error}. Give a folder that can be "
            "written to and has space."
        ) from error
    except (sqlite3.DatabaseError, SafetensorError, ValueError) as error:
        _refuse(path, (str(error).splitlines() or [type(error).__name__])[0], error)


def _refuse(path: Path, what: str, cause: Exception | None = None) -> NoReturn:
    raise StoreError(
        f"{path} is damaged or not a store of directgp ({what}). Delete it, or use another folder."
    ) from cause


def _refuse_moved(path: Path, cause: Exception | None = None) -> NoReturn:
    raise StoreError(
        f"{path} was deleted or replaced while directgp used it, and its results are gone. Run the "
        "command again."
    ) from cause


def _header_in_journal(path: Path) -> bytes | None:
    """Return the header of a database as its rollback journal has it; None if it does not.

    A power cut may have torn the header itself. SQLite then restores it from the journal.
    """
    journal = path.with_name(f"{path.name}-journal")
    if not journal.is_file():
        return None
    try:
        file = journal.open("rb")
    except FileNotFoundError:
        # Another program has ended its transaction since the last line.
        return None
    with file:
        start = file.read(28)
        if len(start) < 28 or not start.startswith(_JOURNAL):
            return None
        _, _, pages, sector, page = struct.unpack(">5I", start[8:])
        if not pages:
            return b""
        # Each record is the number of a page, the page as it was, and a checksum.
        for at in range(sector, os.fstat(file.fileno()).st_size, page + 8):
            file.seek(at)
            if file.read(4) == b"\0\0\0\1":
                return file.read(_HEADER)
    return None


def _header_of(path: Path) -> bytes:
    """Return the header of a database; empty if the file is empty, missing or being created."""
    if not os.path.lexists(path):
        return b""
    if not path.is_file():
        _refuse(path, "it is not a regular file")
    try:
        before = _header_in_journal(path)
        with path.open("rb") as file:
            return file.read(_HEADER) if before is None else before
    except OSError as error:
        what = error.strerror or error
        raise StoreError(f"{path} could not be opened: {what}. Use another folder.") from error


def identity_of(path: Path) -> tuple[int, int]:
    """Return application id and schema of a store, zeros if the file is empty or missing.

    Raise `StoreError` for another file. The header is read without SQLite, which may write to a
    file that it opens.
    """
    header = _header_of(path)
    if not header:
        return 0, 0
    if len(header) < _HEADER or not header.startswith(b"SQLite format 3\0"):
        _refuse(path, "file is not a database")
    application, schema = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
    if application == _APPLICATION and schema != _SCHEMA:
        raise StoreError(
            f"{path} is a store of schema {schema}, and this version of directgp reads schema "
            f"{_SCHEMA}. Use the version that wrote it, or another folder."
        )
    # Version 2 of the format has a write-ahead log.
    if (application, schema) not in _LAYOUTS or header[18:20] != b"\1\1":
        _refuse(path, "it is a database of another program")
    return application, schema


def _digest(table: str, row: Sequence[Any]) -> str:
    """Return the sha256 of all columns of a row, whatever their types are."""
    sha = hashlib.sha256(table.encode())
    for value in row:
        data = value if isinstance(value, bytes) else str(value).encode()
        sha.update(f" {type(value).__name__} {len(data)} ".encode() + data)
    return sha.hexdigest()


@final
class StoreFile:
    """The tables of a store.

    A file of an earlier version gets checksums, unless it is only read. A row that does not match
    its checksum counts as missing, and its key is added to `damaged`.
    """

    def __init__(self, path: Path, timeout: float, read_only: bool) -> None:
        self.path = path
        self.damaged: set[str] = set()
        with store_errors(path):
            identity = identity_of(path)
            if identity in ((0, 0), (0, 1)) and _header_of(path):
                # Databases of other programs have these numbers, too.
                with closing(self.connect("ro", timeout)) as self._connection:
                    self._place = self._find()
                    with self.transaction("deferred"):
                        self._tables()
            self._connection = self.connect("ro" if read_only else "rwc", timeout)
            try:
                # After the first read: it creates the file.
                self.rows("pragma user_version")
                self._place = self._find()
                self._open(read_only)
            except BaseException:
                self._connection.close()
                raise

    def connect(self, mode: str, timeout: float) -> sqlite3.Connection:
        """Return another connection: "ro" only reads, "rw" writes, "rwc" also creates the file."""
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        file = sqlite3.connect(address, uri=True, isolation_level=None, timeout=timeout)
        # A damaged text fails its checksum; its decoding does not fail before that.
        file.text_factory = lambda data: data.decode("utf-8", "replace")
        # The journal's end is on the disk, too, when a result counts as stored.
        file.execute("pragma synchronous = extra")
        return file

    def _open(self, read_only: bool) -> None:
        with self.transaction("deferred"):
            tables = self._tables()
        self._is_checked = tables == TABLES or not read_only
        if tables != TABLES and read_only:
            self._show_earlier(tables)
        elif tables != TABLES:
            with self.transaction():
                # Another program may have created the tables meanwhile.
                self._upgrade(self._tables())

    def _tables(self) -> dict[str, str]:
        """Return the columns of the tables; raise `StoreError` if a store has others."""
        ((application,),) = self.rows("pragma application_id")
        ((schema,),) = self.rows("pragma user_version")
        tables = {}
        for kind, name in self.rows("select type, name from sqlite_master where sql is not null"):
            columns = self.rows("select name || ' ' || lower(type) from pragma_table_info(?)", name)
            text = ", ".join(column for (column,) in columns).removeprefix("key text, ")
            tables[name] = text if kind == "table" else kind
        if tables not in _LAYOUTS.get((application, schema), []):
            _refuse(self.path, "its tables are not those of directgp")
        return tables

    def _show_earlier(self, tables: dict[str, str]) -> None:
        """Give a file of an earlier version, which is only read, the tables of today as views."""
        for name, types in TABLES.items():
            columns = ["key", *(column.split()[0] for column in types.split(", "))]
            parts = [", ".join(f"null as {column}" for column in columns) + " where false"]
            if name in tables:
                parts.append(f"*{', null' if name in _CHECKED else ''} from main.{name}")
            if name == "results" and "cells" in tables:
                parts.append(_FROM_OLD)
            selects = " union all ".join(f"select {part}" for part in parts)
            self._connection.execute(f"create temp view {name} as {selects}")

    def _upgrade(self, tables: dict[str, str]) -> None:
        """Create the tables, and give the rows of an earlier version checksums."""
        if tables == TABLES:
            return
        for name, types in TABLES.items():
            if name not in tables:
                columns = ", ".join(f"{column} not null" for column in types.split(", "))
                key = "key text primary key"
                self._connection.execute(f"create table {name} ({key}, {columns}) strict")
            elif name in _CHECKED:
                column = "sha256 text not null default ''"
                self._connection.execute(f"alter table {name} add column {column}")
        if "cells" in tables:
            self._connection.execute(f"insert or ignore into results select {_FROM_OLD}")
            self._connection.execute("drop table cells")
        for name in _CHECKED:
            for (rowid,) in self.rows_of(name, "select rowid from TABLE"):
                (row,) = self.rows_of(name, "select * from TABLE where rowid = ?", rowid)
                change = "update TABLE set sha256 = ? where rowid = ?"
                self.rows_of(name, change, _digest(name, row[:-1]), rowid)
        self._connection.execute(f"pragma application_id = {_APPLICATION}")
        self._connection.execute(f"pragma user_version = {_SCHEMA}")

    def rows(self, query: str, *values: object) -> list[Row]:
        """Return the rows of a query, which may also write."""
        with store_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    def rows_of(self, table: str, query: str, *values: object) -> list[Row]:
        """Return the rows of a query with TABLE in it, which is one of `TABLES`."""
        return self.rows(query.replace("TABLE", table), *values)

    @contextmanager
    def transaction(self, kind: str = "immediate") -> Iterator[None]:
        """Make what is done in the block one change, or with "deferred" one view of the file."""
        self.check_in_place()
        with store_errors(self.path):
            self._connection.execute(f"begin {kind}")
            try:
                yield
                self._connection.execute("commit")
            except BaseException:
                self._connection.rollback()
                raise

    def _find(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the path; None if the file is missing."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def check_in_place(self) -> None:
        """Raise `StoreError` if the file was deleted or replaced.

        POSIX allows that while it is open.
        """
        if self._find() != self._place:
            _refuse_moved(self.path)

    def is_intact(self, table: str, row: Row) -> bool:
        """Return whether a whole row matches the checksum at its end."""
        return not self._is_checked or _digest(table, row[:-1]) == row[-1]

    def row(self, table: str, key: str) -> Row | None:
        """Return a row without its checksum; None if there is none, or it is damaged."""
        for row in self.rows_of(table, "select * from TABLE where key = ?", key):
            # With the key that is asked for: a damaged index leads to the row of another.
            if self.is_intact(table, (key, *row[1:])):
                return row[:-1]
            self.damaged.add(key)
        return None

    def write(self, table: str, row: Row) -> None:
        """Add or replace a row, with its checksum."""
        values = (*row, _digest(table, row))
        places = ", ".join("?" * len(values))
        self.rows_of(table, f"insert or replace into TABLE values ({places})", *values)

    def find_damaged(self, discard: bool = False) -> None:
        """Check every row, and add the keys of those that are damaged to `damaged`.

        With `discard` they are deleted, so that their cells run again.
        """
        for table in _CHECKED if self._is_checked else ():
            with self.transaction("deferred"):
                rowids, keys = self._damaged_rows(table)
            if keys and discard:
                with self.transaction():
                    # Another program may have replaced some meanwhile.
                    rowids, keys = self._damaged_rows(table)
                    self.rows_of(table, "reindex TABLE")
                    for rowid in rowids:
                        self.rows_of(table, "delete from TABLE where rowid = ?", rowid)
                    if any(self._damaged_rows(table)):
                        _refuse(self.path, f"some {table} cannot be removed")
                    # Some were whole, and could only not be found by their keys.
                    keys -= {key for (key,) in self.rows_of(table, "select key from TABLE")}
            self.damaged |= keys

    def _damaged_rows(self, table: str) -> tuple[list[int], set[str]]:
        """Return the numbers of damaged rows, and the keys of rows that cannot be read."""
        rowids = []
        keys = dict[Any, int]()
        # A scan of the table itself: its rows need not be those that the index of keys has.
        with store_errors(self.path):
            for rowid, *row in self._connection.execute(_SCANS[table]):
                keys[row[0]] = rowid
                if not self.is_intact(table, tuple(row)):
                    rowids.append(rowid)
        by_key = "select rowid from TABLE where key = ?"
        indexed = {k for k, rowid in keys.items() if self.rows_of(table, by_key, k) == [(rowid,)]}
        listed = {key for (key,) in self.rows_of(table, "select key from TABLE")}
        bad = {key for key, rowid in keys.items() if rowid in rowids}
        return rowids, {str(key) for key in bad | (listed ^ indexed) | (keys.keys() - indexed)}

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
