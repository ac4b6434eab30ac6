"""Keep the results of cells in one SQLite file that several programs share."""

import hashlib
import json
import os
import platform
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

from safetensors import SafetensorError
from safetensors.numpy import load, save

from directgp.errors import StoreError
from directgp.experiments.cell import C, Cell, Circumstances, FailedRecord, Record

# The file has no write-ahead log, which needs shared memory: so it works on network file systems.

_SCHEMA = 1002
_APPLICATION = 0x64677073
"""Application id in the header of the file: "dgps"."""

_TIMEOUT = 60.0
"""Seconds to wait for the lock of another program; each program holds it for milliseconds."""

RENEWAL = 20.0
"""Seconds between two renewals of a lease."""

LEASE = 2.5 * RENEWAL
"""Seconds without renewal after which a lease expires: two are missing, and not just late."""

_RETRY = 1.0
"""Seconds after which a renewal that failed is tried again."""

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

_TABLES = {n: f"{c}, sha256 text" if n in _CHECKED else c for n, c in _PLAIN.items()}

_OLD = {"cells": "cell text, outcome text, predictions blob, model blob"}
"""Stores of `compare` up to version 0.5; later versions kept the table beside theirs."""

_LAYOUTS: dict[tuple[int, int], list[dict[str, str]]] = {
    (_APPLICATION, _SCHEMA): [_TABLES],
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
def _store_errors(path: Path) -> Iterator[None]:
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


def _identity(path: Path) -> tuple[int, int]:
    """Return application id and schema of a store, zeros if the file is empty or missing.

    Raise `StoreError` for another file. The header is read without SQLite, which may write to a
    file that it opens.
    """
    if not os.path.lexists(path):
        return 0, 0
    if not path.is_file():
        _refuse(path, "it is not a regular file")
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        what = error.strerror or error
        raise StoreError(f"{path} could not be opened: {what}. Use another folder.") from error
    if not header:
        return 0, 0
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
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


def is_store(path: Path) -> bool:
    """Return whether a file is a store of this or an earlier version, or empty; only read it."""
    try:
        Store(path, read_only=True).close()
    except StoreError as error:
        # What a killed program wrote has to be undone before the tables can be read.
        killed = getattr(error.__cause__, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK"
        return killed and _identity(path) not in ((0, 0), (0, 1))
    return True


def _digest(table: str, row: Sequence[Any]) -> str:
    """Return the sha256 of all columns of a row, whatever their types are."""
    sha = hashlib.sha256(table.encode())
    for value in row:
        data = value if isinstance(value, bytes) else str(value).encode()
        sha.update(f" {type(value).__name__} {len(data)} ".encode() + data)
    return sha.hexdigest()


@cache
def host() -> str:
    """Return the name of the process namespace: the machine, and on Linux the container."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


class MergeCounts(NamedTuple):
    """The result of merging another store."""

    added: int
    known: int
    differing: int
    damaged: int = 0
    """Results that this store did not have; results that both have, of which those of this store
    are kept; those of them that differ in more than times; rows of the other store that are
    damaged, which are not taken."""


class StoreView(NamedTuple):
    """The state of a store, by the keys of the cells."""

    finished: set[str]
    failed: dict[str, tuple[int, str]]
    """Attempts, and the reason of the last one."""

    leased: set[str]
    """Cells that other running programs work on."""


@final
class Store:
    """Results, failures and leases of cells.

    Each change is one transaction: after a kill or a power cut a result is stored wholly or not at
    all. Each row has a checksum: a row that does not match it counts as missing, and its key is
    added to `damaged`. A program leases a cell before it runs it. A lease expires when its program
    dies. The file is created if missing, and that of an earlier version gets checksums; neither is
    done with `read_only`. `timeout` is in seconds, for the lock of another program.
    """

    def __init__(self, path: Path, timeout: float = _TIMEOUT, *, read_only: bool = False) -> None:
        self.path = path
        self.damaged: set[str] = set()
        self._token = uuid.uuid4().hex
        self._renewal: threading.Thread | None = None
        self._closing = threading.Event()
        self._beats: dict[str, tuple[Row, float]] = {}
        """By key, the last renewal of a foreign lease, and the time of our clock at which it was
        first seen."""

        with _store_errors(path):
            identity = _identity(path)
            if identity in ((0, 0), (0, 1)) and path.exists():
                # Databases of other programs have these numbers, too.
                with closing(self._connect("ro", timeout)) as self._file:
                    self._place = self._find()
                    with self._transaction("deferred"):
                        self._tables()
            self._file = self._connect("ro" if read_only else "rwc", timeout)
            try:
                # After the first read: it creates the file.
                self._rows("pragma user_version")
                self._place = self._find()
                self._open(read_only)
            except BaseException:
                self._file.close()
                raise

    def _connect(self, mode: str, timeout: float) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        file = sqlite3.connect(address, uri=True, isolation_level=None, timeout=timeout)
        # A damaged text fails its checksum; its decoding does not fail before that.
        file.text_factory = lambda data: data.decode("utf-8", "replace")
        file.execute("pragma synchronous = full")
        return file

    def _open(self, read_only: bool) -> None:
        with self._transaction("deferred"):
            found = self._tables()
        self._is_checked = found == _TABLES or not read_only
        if found != _TABLES and read_only:
            self._show_earlier(found)
        elif found != _TABLES:
            with self._transaction():
                # Another program may have created the tables meanwhile.
                self._upgrade(self._tables())

    def _tables(self) -> dict[str, str]:
        """Return the columns of the tables; raise `StoreError` if they are not those of a store."""
        ((application,),) = self._rows("pragma application_id")
        ((schema,),) = self._rows("pragma user_version")
        found = {}
        for kind, name in self._rows("select type, name from sqlite_master where sql is not null"):
            columns = self._rows(
                "select name || ' ' || lower(type) from pragma_table_info(?)", name
            )
            text = ", ".join(each for (each,) in columns).removeprefix("key text, ")
            found[name] = text if kind == "table" else kind
        if found not in _LAYOUTS.get((application, schema), []):
            _refuse(self.path, "its tables are not those of directgp")
        return found

    def _show_earlier(self, found: dict[str, str]) -> None:
        """Give a file of an earlier version, which is only read, the tables of today as views."""
        for name, types in _TABLES.items():
            columns = ["key", *(each.split()[0] for each in types.split(", "))]
            parts = [", ".join(f"null as {each}" for each in columns) + " where false"]
            if name in found:
                parts.append(f"*{', null' if name in _CHECKED else ''} from main.{name}")
            if name == "results" and "cells" in found:
                parts.append(_FROM_OLD)
            selects = " union all ".join(f"select {each}" for each in parts)
            self._file.execute(f"create temp view {name} as {selects}")

    def _upgrade(self, found: dict[str, str]) -> None:
        """Create the tables, and give the rows of an earlier version checksums."""
        if found == _TABLES:
            return
        for name, types in _TABLES.items():
            if name not in found:
                columns = ", ".join(f"{each} not null" for each in types.split(", "))
                key = "key text primary key"
                self._file.execute(f"create table {name} ({key}, {columns}) strict")
            elif name in _CHECKED:
                column = "sha256 text not null default ''"
                self._file.execute(f"alter table {name} add column {column}")
        if "cells" in found:
            self._file.execute(f"insert or ignore into results select {_FROM_OLD}")
            self._file.execute("drop table cells")
        for name in _CHECKED:
            for (rowid,) in self._rows_of(name, "select rowid from TABLE"):
                (row,) = self._rows_of(name, "select * from TABLE where rowid = ?", rowid)
                change = "update TABLE set sha256 = ? where rowid = ?"
                self._rows_of(name, change, _digest(name, row[:-1]), rowid)
        self._file.execute(f"pragma application_id = {_APPLICATION}")
        self._file.execute(f"pragma user_version = {_SCHEMA}")

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all leases and close the file."""
        try:
            self.release_all()
        finally:
            self._file.close()

    def _rows(self, query: str, *values: object) -> list[Row]:
        with _store_errors(self.path):
            return self._file.execute(query, values).fetchall()

    def _rows_of(self, table: str, query: str, *values: object) -> list[Row]:
        """Return the rows of a query with TABLE in it, which is one of `_TABLES`."""
        return self._rows(query.replace("TABLE", table), *values)

    @contextmanager
    def _transaction(self, kind: str = "immediate") -> Iterator[None]:
        self.check_in_place()
        with _store_errors(self.path):
            self._file.execute(f"begin {kind}")
            try:
                yield
                self._file.execute("commit")
            except BaseException:
                self._file.rollback()
                raise

    def _find(self) -> tuple[int, int] | None:
        """Return what identifies the file at the path, None if there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def check_in_place(self) -> None:
        """Raise `StoreError` if the file has been deleted, which a process that uses it allows."""
        if self._find() != self._place:
            _refuse_moved(self.path)

    def _is_intact(self, table: str, row: Row) -> bool:
        return not self._is_checked or _digest(table, row[:-1]) == row[-1]

    def _row(self, table: str, key: str) -> Row | None:
        """Return a row without its checksum; None if there is none, or it is damaged."""
        for row in self._rows_of(table, "select * from TABLE where key = ?", key):
            # With the key that is asked for: a damaged index leads to the row of another.
            if self._is_intact(table, (key, *row[1:])):
                return row[:-1]
            self.damaged.add(key)
        return None

    def _write(self, table: str, row: Row) -> None:
        values = (*row, _digest(table, row))
        places = ", ".join("?" * len(values))
        self._rows_of(table, f"insert or replace into TABLE values ({places})", *values)

    def find_damaged(self, discard: bool = False) -> None:
        """Check every row, and add the keys of those that are damaged to `damaged`.

        With `discard` they are deleted, so that their cells run again.
        """
        for table in _CHECKED:
            rowids, keys = self._damaged_rows(table)
            if keys and discard:
                with self._transaction():
                    # Another program may have replaced some meanwhile.
                    rowids, keys = self._damaged_rows(table)
                    self._rows_of(table, "reindex TABLE")
                    for rowid in rowids:
                        self._rows_of(table, "delete from TABLE where rowid = ?", rowid)
                    if any(self._damaged_rows(table)):
                        _refuse(self.path, f"some {table} cannot be removed")
                    # Some were whole, and could only not be found by their keys.
                    keys -= {key for (key,) in self._rows_of(table, "select key from TABLE")}
            self.damaged |= keys

    def _damaged_rows(self, table: str) -> tuple[list[int], set[str]]:
        """Return the numbers of damaged rows, and the keys of rows that cannot be read."""
        rowids, keys = [], dict[Any, int]()
        # A scan of the table itself: its rows need not be those that the index of keys has.
        with _store_errors(self.path):
            for rowid, *row in self._file.execute(_SCANS[table]):
                keys[row[0]] = rowid
                if not self._is_intact(table, tuple(row)):
                    rowids.append(rowid)
        by_key = "select rowid from TABLE where key = ?"
        found = {k for k, rowid in keys.items() if self._rows_of(table, by_key, k) == [(rowid,)]}
        listed = {key for (key,) in self._rows_of(table, "select key from TABLE")}
        bad = {key for key, rowid in keys.items() if rowid in rowids}
        return rowids, {str(key) for key in bad | (listed ^ found) | (keys.keys() - found)}

    def __contains__(self, cell: Cell) -> bool:
        return self._row("results", cell.key) is not None

    def records(self, cells: Iterable[C]) -> list[Record[C, Any]]:
        """Return the records of these cells, as far as they are finished."""
        self.check_in_place()
        found = []
        for cell in cells:
            row = self._row("results", cell.key)
            if row is not None:
                _, _, outcome, circumstances, _, arrays = row
                with _store_errors(self.path):
                    record = Record(
                        cell,
                        cell.outcome_type.model_validate_json(outcome),
                        Circumstances.model_validate_json(circumstances),
                        load(arrays),
                    )
                found.append(record)
        return found

    def failures(self, cells: Iterable[C]) -> list[FailedRecord[C]]:
        """Return those of these cells that failed."""
        rows = ((cell, self._row("failures", cell.key)) for cell in cells)
        return [FailedRecord(cell, *row[2:4]) for cell, row in rows if row is not None]

    def model(self, cell: Cell) -> bytes:
        """Return the trained model of a finished cell."""
        row = self._row("results", cell.key)
        if row is None and cell.key in self.damaged:
            raise StoreError(
                f"{self.path} has been damaged during the run. Run the command again with --resume."
            )
        if row is None:
            raise KeyError(cell.key)
        return bytes(row[4])

    def view(self) -> StoreView:
        """Return what is finished, has failed, and is leased by other programs."""
        self.check_in_place()
        # Leases are read first: a cell that finishes meanwhile is then found finished.
        leases = self._rows("select key, owner, host, pid, beat from claims")
        failed = self._rows("select * from failures")
        # Only keys: the rows themselves are checked when they are read.
        finished = {key for (key,) in self._rows("select key from results")}
        for key in finished & self.damaged:
            if self._row("results", key) is None:
                finished.discard(key)
        return StoreView(
            finished,
            {row[0]: (row[3], row[2]) for row in failed if self._is_intact("failures", row)},
            {key for key, *lease in leases if self._is_foreign(key, *lease)},
        )

    def is_empty(self) -> bool:
        """Return whether there are no results, failures or leases."""
        return not any(self._rows_of(name, "select 1 from TABLE limit 1") for name in _TABLES)

    def is_in_use(self) -> bool:
        """Return whether another program works on a cell.

        One whose clock is wrong, or that has not renewed its lease in time, is watched for a while.
        """
        until = time.monotonic() + LEASE
        while self.view().leased:
            beats = self._rows("select beat from claims where owner != ?", self._token)
            if any(abs(time.time() - beat) < LEASE for (beat,) in beats):
                return True
            if time.monotonic() > until + _RETRY:
                return True
            time.sleep(_RETRY)
        return False

    def _is_foreign(self, key: str, token: str, where: str, pid: int, beat: float) -> bool:
        """Return whether a lease is of another program that lives, as far as can be checked.

        A living program changes the lease. How long it has not is measured by the clock of this
        process, since those of two machines may differ.
        """
        if token == self._token:
            return False
        # Windows has no harmless way to ask whether a process exists.
        if where == host() and os.name != "nt":
            try:
                with suppress(PermissionError):
                    os.kill(pid, 0)
            except (ProcessLookupError, OverflowError, TypeError):
                return False
        now = time.monotonic()
        last, since = self._beats.get(key, ((), now))
        if last != (token, beat):
            self._beats[key] = (token, beat), now
            return True
        return now - since < LEASE

    def lease(self, cell: Cell) -> bool:
        """Lease a cell; return False if it is finished, or leased by another running program."""
        key = cell.key
        with self._transaction():
            leases = self._rows("select owner, host, pid, beat from claims where key = ?", key)
            if cell in self or any(self._is_foreign(key, *lease) for lease in leases):
                return False
            values = (key, self._token, host(), os.getpid(), time.time())
            self._rows("insert or replace into claims values (?, ?, ?, ?, ?)", *values)
        if self._renewal is None:
            self._closing.clear()
            self._renewal = threading.Thread(target=self._renew_leases, name="leases", daemon=True)
            self._renewal.start()
        return True

    def _renew_leases(self) -> None:
        """Renew the leases of this program in a thread, until it has none any more."""
        seconds = RENEWAL
        while not self._closing.wait(seconds):
            try:
                self._renew()
                seconds = RENEWAL
            except StoreError:
                seconds = _RETRY

    def _renew(self) -> None:
        with _store_errors(self.path), closing(self._connect("rw", RENEWAL)) as file:
            query = "update claims set beat = ? where owner = ?"
            file.execute(query, (time.time(), self._token))

    def release_all(self) -> None:
        """Release the leases of this program."""
        if self._renewal is None:
            return
        self._closing.set()
        self._renewal.join()
        self._renewal = None
        with self._transaction():
            self._rows("delete from claims where owner = ?", self._token)

    def put(self, record: Record[Any, Any]) -> None:
        """Store a result and end its lease."""
        key = record.cell.key
        row = (
            key,
            record.cell.model_dump_json(),
            record.outcome.model_dump_json(),
            record.circumstances.model_dump_json(),
            record.model,
            save(record.arrays),
        )
        with self._transaction():
            self._write("results", row)
            self._rows("delete from failures where key = ?", key)
            self._rows("delete from claims where key = ?", key)

    def fail(self, cell: Cell, reason: str) -> None:
        """Store a failure and end its lease; a result that exists is kept."""
        key, now = cell.key, datetime.now(UTC).isoformat(timespec="seconds")
        # Names of files may have characters that cannot be stored.
        reason = reason.encode("utf-8", "replace").decode()
        with self._transaction():
            if cell not in self:
                before = self._row("failures", key)
                attempts = 1 if before is None else before[3] + 1
                self._write("failures", (key, cell.model_dump_json(), reason, attempts, now))
            self._rows("delete from claims where key = ? and owner = ?", key, self._token)

    def merge(self, other: Path) -> MergeCounts:
        """Add the results of another store that this one lacks; the other is only read.

        A result that both have is kept as it is here. A failure is added if neither store has a
        result of its cell. Damaged rows are not added.
        """
        if not other.is_file():
            raise StoreError(
                f"There is no store {other}. Give a file that `reproduce` has written."
            )
        if other.samefile(self.path):
            raise StoreError(f"{other} is the store itself. Give that of another machine.")
        added = known = differing = 0
        with Store(other, read_only=True) as theirs, self._transaction():
            for their_row in theirs._intact_rows("results"):
                our_row = self._row("results", their_row[0])
                if our_row is not None:
                    known += 1
                    differing += _content(our_row) != _content(their_row)
                else:
                    added += 1
                    self._write("results", their_row)
            for failure in theirs._intact_rows("failures"):
                if self._row("failures", failure[0]) is None:
                    self._write("failures", failure)
            self._rows("delete from failures where key in (select key from results)")
        return MergeCounts(added, known, differing, len(theirs.damaged))

    def _intact_rows(self, table: str) -> Iterator[Row]:
        """Yield the rows in the order of their keys; the others are added to `damaged`."""
        for (key,) in self._rows_of(table, "select key from TABLE order by key"):
            row = self._row(table, key)
            if row is None:
                self.damaged.add(str(key))
            else:
                yield row


def _content(row: Row) -> tuple[str, bytes]:
    """Return outcome and arrays of a row of results, without times."""
    _, _, outcome, _, _, arrays = row

    def without_times(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if not name.endswith("seconds")}

    # As text, since NaN is not equal to itself.
    return json.dumps(json.loads(outcome, object_hook=without_times), sort_keys=True), arrays
