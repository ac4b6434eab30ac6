"""Keep the results of cells in one SQLite file that several programs share."""

import json
import os
import platform
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError
from safetensors.numpy import load, save

from directgp.errors import StoreError
from directgp.experiments.cell import C, Cell, Circumstances, FailedRecord, Record

# The file has no write-ahead log, which needs shared memory: so it works on network file systems.

_SCHEMA = 1001
_OLD_SCHEMA = 1
"""Stores of `compare` up to version 0.5: one table `cells`, which is read and never written."""

_TIMEOUT = 60.0
"""Seconds to wait for the lock of another program; each program holds it for milliseconds."""

LEASE = 120.0
"""Seconds without renewal after which a lease expires."""

RENEWAL = LEASE / 6
"""Seconds between two renewals."""

_TABLES = {
    "results": "cell text, outcome text, circumstances text, model blob, arrays blob",
    "failures": "cell text, reason text, attempts integer, failed text",
    "claims": "owner text, host text, pid integer, beat real",
}
"""Columns after the key; none may be null."""

_ALL_RESULTS = "create temp view all_results as select * from results"
_OLD_RESULTS = """
union all select key, cell, outcome,
    '{"versions": {}, "machine": "", "device": "", "finished": ""}', model, predictions from cells
"""

_FAIL = """
insert into failures values (?, ?, ?, 1, ?)
on conflict (key) do update
set reason = excluded.reason, attempts = attempts + 1, failed = excluded.failed
"""

Row = tuple[Any, ...]


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Raise `StoreError` for errors of the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StoreError(
                f"{path} has been locked by another program for a minute. End that program, or "
                "use another file."
            ) from error
        raise StoreError(
            f"{path} could not be opened or written: {error}. Give a folder that can be "
            "written to and has space."
        ) from error
    except (sqlite3.DatabaseError, SafetensorError, ValueError) as error:
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(
            f"{path} is damaged or not a store of directgp ({what}). Delete it, or use another "
            "folder."
        ) from error


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
    """Results that this store did not have; results that both have, of which those of this store
    are kept; and those of them that differ in more than times."""


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
    all. A program leases a cell before it runs it. A lease expires when its program dies. The file
    is created if missing; `timeout` is in seconds, for the lock of another program.
    """

    def __init__(self, path: Path, timeout: float = _TIMEOUT) -> None:
        self.path = path
        self._token = uuid.uuid4().hex
        self._renewal: threading.Thread | None = None
        self._closing = threading.Event()
        with _store_errors(path):
            self._file = sqlite3.connect(path, isolation_level=None, timeout=timeout)
            try:
                self._open()
            except BaseException:
                self._file.close()
                raise

    def _open(self) -> None:
        self._file.execute("pragma synchronous = extra")
        if self._schema() != _SCHEMA:
            with self._transaction():
                # Another program may have created the tables meanwhile.
                if self._schema() != _SCHEMA:
                    for name, types in _TABLES.items():
                        columns = ", ".join(f"{each} not null" for each in types.split(", "))
                        key = "key text primary key"
                        self._file.execute(f"create table {name} ({key}, {columns}) strict")
                    self._file.execute(f"pragma user_version = {_SCHEMA}")
        self._old = bool(self._rows("select 1 from sqlite_master where name = 'cells'"))
        self._file.execute(_ALL_RESULTS + (_OLD_RESULTS if self._old else ""))

    def _schema(self) -> int:
        ((schema,),) = self._rows("pragma user_version")
        if schema not in (0, _OLD_SCHEMA, _SCHEMA):
            raise StoreError(
                f"{self.path} is a store of schema {schema}, and this version of directgp reads "
                f"schema {_SCHEMA}. Use the version that wrote it, or another folder."
            )
        return int(schema)

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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _store_errors(self.path):
            self._file.execute("begin immediate")
            try:
                yield
                self._file.execute("commit")
            except BaseException:
                self._file.rollback()
                raise

    def __contains__(self, cell: Cell) -> bool:
        return bool(self._rows("select 1 from all_results where key = ?", cell.key))

    def records(self, cells: Iterable[C]) -> list[Record[C, Any]]:
        """Return the records of these cells, as far as they are finished."""
        query = "select outcome, circumstances, arrays from all_results where key = ?"
        found = []
        for cell in cells:
            for outcome, circumstances, arrays in self._rows(query, cell.key):
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
        query = "select reason, attempts from failures where key = ?"
        return [FailedRecord(cell, *row) for cell in cells for row in self._rows(query, cell.key)]

    def model(self, cell: Cell) -> bytes:
        """Return the trained model of a finished cell."""
        rows = self._rows("select model from all_results where key = ?", cell.key)
        if not rows:
            raise KeyError(cell.key)
        return bytes(rows[0][0])

    def view(self) -> StoreView:
        """Return what is finished, has failed, and is leased by other programs."""
        # Leases are read first: a cell that finishes meanwhile is then found finished.
        leases = self._rows("select key, owner, host, pid, beat from claims")
        failed = self._rows("select key, attempts, reason from failures")
        finished = self._rows("select key from all_results")
        return StoreView(
            {key for (key,) in finished},
            {key: (attempts, reason) for key, attempts, reason in failed},
            {key for key, *lease in leases if self._is_foreign(*lease)},
        )

    def is_empty(self) -> bool:
        """Return whether there are no results, failures or leases."""
        view = self.view()
        return not (view.finished or view.failed or self._rows("select 1 from claims"))

    def _is_foreign(self, token: str, where: str, pid: int, renewed: float) -> bool:
        """Return whether a lease is of another program that lives, as far as can be checked."""
        if token == self._token or time.time() - renewed > LEASE:
            return False
        # Windows has no harmless way to ask whether a process exists.
        if where == host() and os.name != "nt":
            try:
                with suppress(PermissionError):
                    os.kill(pid, 0)
            except ProcessLookupError:
                return False
        return True

    def lease(self, cell: Cell) -> bool:
        """Lease a cell; return False if it is finished, or leased by another running program."""
        key = cell.key
        with self._transaction():
            leases = self._rows("select owner, host, pid, beat from claims where key = ?", key)
            if cell in self or any(self._is_foreign(*lease) for lease in leases):
                return False
            values = (key, self._token, host(), os.getpid(), time.time())
            self._rows("insert or replace into claims values (?, ?, ?, ?, ?)", *values)
        if self._renewal is None:
            self._closing.clear()
            self._renewal = threading.Thread(target=self._renew, name="leases", daemon=True)
            self._renewal.start()
        return True

    def _renew(self) -> None:
        """Renew the leases of this program in a thread, with a connection of its own."""
        while not self._closing.wait(RENEWAL):
            # After an error the next renewal is in time: a lease lasts six intervals.
            with suppress(StoreError), Store(self.path, RENEWAL) as store, store._transaction():
                query = "update claims set beat = ? where owner = ?"
                store._rows(query, time.time(), self._token)

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
            self._rows("insert or replace into results values (?, ?, ?, ?, ?, ?)", *row)
            self._rows("delete from failures where key = ?", key)
            self._rows("delete from claims where key = ?", key)

    def fail(self, cell: Cell, reason: str) -> None:
        """Store a failure and end its lease; a result that exists is kept."""
        key, now = cell.key, datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction():
            if cell not in self:
                self._rows(_FAIL, key, cell.model_dump_json(), reason, now)
            self._rows("delete from claims where key = ? and owner = ?", key, self._token)

    def merge(self, other: Path) -> MergeCounts:
        """Add the results of another store that this one lacks.

        A result that both have is kept as it is here. A failure is added if neither store has a
        result of its cell.
        """
        if not other.is_file():
            raise StoreError(
                f"There is no store {other}. Give a file that `reproduce` has written."
            )
        if other.samefile(self.path):
            raise StoreError(f"{other} is the store itself. Give that of another machine.")
        query = "select * from all_results where key = ?"
        added = known = differing = 0
        with Store(other) as theirs, self._transaction():
            for (key,) in theirs._rows("select key from all_results order by key"):
                (their_row,), our_rows = theirs._rows(query, key), self._rows(query, key)
                if our_rows:
                    known += 1
                    differing += _content(our_rows[0]) != _content(their_row)
                else:
                    added += 1
                    self._rows("insert into results values (?, ?, ?, ?, ?, ?)", *their_row)
            for failure in theirs._rows("select * from failures order by key"):
                self._rows("insert or ignore into failures values (?, ?, ?, ?, ?)", *failure)
            self._rows("delete from failures where key in (select key from all_results)")
        return MergeCounts(added, known, differing)


def _content(row: Row) -> tuple[str, bytes]:
    """Return outcome and arrays of a row of results, without times."""
    _, _, outcome, _, _, arrays = row

    def without_times(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if not name.endswith("seconds")}

    # As text, since NaN is not equal to itself.
    return json.dumps(json.loads(outcome, object_hook=without_times), sort_keys=True), arrays
