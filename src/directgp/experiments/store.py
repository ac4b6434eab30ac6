"""Keep the results of cells in one SQLite file that several programs share."""

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors.numpy import load, save

from directgp.errors import StoreError
from directgp.experiments.cell import C, Cell, Circumstances, FailedRecord, Record
from directgp.experiments.store_file import (
    TABLES,
    TIMEOUT,
    Row,
    StoreFile,
    identity_of,
    store_errors,
)

RENEWAL = 20.0
"""Seconds between two renewals of a lease."""

LEASE = 2.5 * RENEWAL
"""Seconds without renewal after which a lease expires: two are missing, and not just late."""

_RETRY = 1.0
"""Seconds after which a renewal that failed is tried again."""


@cache
def host() -> str:
    """Return the name of the process namespace: the machine, and on Linux the container."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def is_store(path: Path) -> bool:
    """Return whether a file is a store of this or an earlier version, or empty; only read it."""
    try:
        Store(path, read_only=True).close()
    except StoreError as error:
        # What a killed program wrote has to be undone before the tables can be read.
        killed = getattr(error.__cause__, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK"
        return killed and identity_of(path) not in ((0, 0), (0, 1))
    return True


class MergeCounts(NamedTuple):
    """The result of merging another store."""

    added: int
    """Results that this store did not have."""

    shared: int
    """Results that both stores have; this store keeps its own."""

    differing: int
    """Results that both stores have and that differ in more than times."""

    damaged: int = 0
    """Damaged rows of the other store, which are not taken."""


class StoreView(NamedTuple):
    """The state of a store, by the keys of the cells."""

    finished: set[str]
    """Cells that have a result."""

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
    dies. A missing file is created, and a file of an earlier version gets checksums, except with
    `read_only`. `timeout` is the number of seconds to wait for the lock of another program.
    """

    def __init__(self, path: Path, timeout: float = TIMEOUT, *, read_only: bool = False) -> None:
        self.path = path
        self._file = StoreFile(path, timeout, read_only)
        self._token = uuid.uuid4().hex
        self._renewal: threading.Thread | None = None
        self._closing = threading.Event()
        self._beats: dict[str, tuple[Row, float]] = {}
        """For each leased cell: the last renewal that another program wrote, and our monotonic
        time when we first read it."""

    @property
    def damaged(self) -> set[str]:
        """Keys of the rows that did not match their checksums when they were read."""
        return self._file.damaged

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

    def find_damaged(self, discard: bool = False) -> None:
        """Check every row, and add the keys of those that are damaged to `damaged`.

        With `discard` they are deleted, so that their cells run again.
        """
        self._file.find_damaged(discard)

    def __contains__(self, cell: Cell) -> bool:
        return self._file.row("results", cell.key) is not None

    def records(self, cells: Iterable[C]) -> list[Record[C, Any]]:
        """Return the records of these cells, as far as they are finished."""
        self._file.check_in_place()
        records = []
        for cell in cells:
            row = self._file.row("results", cell.key)
            if row is not None:
                _, _, outcome, circumstances, _, arrays = row
                with store_errors(self.path):
                    record = Record(
                        cell,
                        cell.outcome_type.model_validate_json(outcome),
                        Circumstances.model_validate_json(circumstances),
                        load(arrays),
                    )
                records.append(record)
        return records

    def failures(self, cells: Iterable[C]) -> list[FailedRecord[C]]:
        """Return the failures among these cells."""
        rows = ((cell, self._file.row("failures", cell.key)) for cell in cells)
        return [FailedRecord(cell, *row[2:4]) for cell, row in rows if row is not None]

    def model(self, cell: Cell) -> bytes:
        """Return the trained model of a finished cell."""
        row = self._file.row("results", cell.key)
        if row is None and cell.key in self.damaged:
            raise StoreError(
                f"{self.path} has been damaged during the run. Run the command again with --resume."
            )
        if row is None:
            raise KeyError(cell.key)
        return bytes(row[4])

    def view(self) -> StoreView:
        """Return what is finished, has failed, and is leased by other programs."""
        self._file.check_in_place()
        # Leases are read first: a cell that finishes meanwhile is then found finished.
        leases = self._file.rows("select key, owner, host, pid, beat from claims")
        failed = self._file.rows("select * from failures")
        # Only keys: the rows themselves are checked when they are read.
        finished = {key for (key,) in self._file.rows("select key from results")}
        for key in finished & self.damaged:
            if self._file.row("results", key) is None:
                finished.discard(key)
        return StoreView(
            finished,
            {row[0]: (row[3], row[2]) for row in failed if self._file.is_intact("failures", row)},
            {key for key, *lease in leases if self._is_foreign(key, *lease)},
        )

    def is_empty(self) -> bool:
        """Return whether there are no results, failures or leases."""
        return not any(self._file.rows_of(name, "select 1 from TABLE limit 1") for name in TABLES)

    def is_in_use(self) -> bool:
        """Return whether another program works on a cell.

        One whose clock is wrong, or that has not renewed its lease in time, is watched for a while.
        """
        until = time.monotonic() + LEASE + _RETRY
        while leased := self.view().leased:
            beats = self._file.rows("select key, beat from claims")
            near = [key for key, beat in beats if abs(time.time() - float(beat)) < LEASE]
            if leased & set(near) or time.monotonic() > until:
                return True
            time.sleep(_RETRY)
        return False

    def _is_foreign(self, key: str, token: str, where: str, pid: int, beat: float) -> bool:
        """Return whether a lease is of another program that lives, as far as can be checked.

        A living program renews the lease. The time since the last renewal is measured by the clock
        of this process, since clocks of two machines may differ.
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
        with self._file.transaction():
            leases = self._file.rows("select owner, host, pid, beat from claims where key = ?", key)
            if cell in self or any(self._is_foreign(key, *lease) for lease in leases):
                return False
            values = (key, self._token, host(), os.getpid(), time.time())
            self._file.rows("insert or replace into claims values (?, ?, ?, ?, ?)", *values)
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
        with store_errors(self.path), closing(self._file.connect("rw", RENEWAL)) as file:
            query = "update claims set beat = ? where owner = ?"
            file.execute(query, (time.time(), self._token))

    def release_all(self) -> None:
        """Release the leases of this program."""
        if self._renewal is None:
            return
        self._closing.set()
        self._renewal.join()
        self._renewal = None
        with self._file.transaction():
            self._file.rows("delete from claims where owner = ?", self._token)

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
        with self._file.transaction():
            self._file.write("results", row)
            self._file.rows("delete from failures where key = ?", key)
            self._file.rows("delete from claims where key = ?", key)

    def fail(self, cell: Cell, reason: str) -> None:
        """Store a failure and end its lease; a result that exists is kept."""
        key = cell.key
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # Names of files may have characters that cannot be stored.
        reason = reason.encode("utf-8", "replace").decode()
        with self._file.transaction():
            if cell not in self:
                before = self._file.row("failures", key)
                attempts = 1 if before is None else before[3] + 1
                self._file.write("failures", (key, cell.model_dump_json(), reason, attempts, now))
            self._file.rows("delete from claims where key = ? and owner = ?", key, self._token)

    def merge(self, path: Path) -> MergeCounts:
        """Add the results of another store that this one lacks; the other is only read.

        A result that both have is kept as it is here. A failure is added if neither store has a
        result of its cell. Damaged rows are not added.
        """
        if not path.is_file():
            raise StoreError(f"There is no store {path}. Give a file that `reproduce` has written.")
        if path.samefile(self.path):
            raise StoreError(f"{path} is the store itself. Give that of another machine.")
        added = shared = differing = 0
        with Store(path, read_only=True) as theirs, self._file.transaction():
            for their_row in theirs._intact_rows("results"):
                our_row = self._file.row("results", their_row[0])
                if our_row is not None:
                    shared += 1
                    differing += _content(our_row) != _content(their_row)
                else:
                    added += 1
                    self._file.write("results", their_row)
            for failure in theirs._intact_rows("failures"):
                if self._file.row("failures", failure[0]) is None:
                    self._file.write("failures", failure)
            self._file.rows("delete from failures where key in (select key from results)")
        return MergeCounts(added, shared, differing, len(theirs.damaged))

    def _intact_rows(self, table: str) -> Iterator[Row]:
        """Yield the rows in the order of their keys; the others are added to `damaged`."""
        for (key,) in self._file.rows_of(table, "select key from TABLE order by key"):
            row = self._file.row(table, key)
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
