"""Keep finished cells in one SQLite file that several programs share."""

import json
import os
import platform
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, final

from safetensors.numpy import load, save

from directgp.errors import StoreError
from directgp.experiments.paper.cells import (
    Circumstances,
    FailedRecord,
    Finished,
    PaperCell,
    Record,
    read_cell,
    read_outcome,
)
from directgp.experiments.store import schema_of, telling

# It has no write-ahead log, which needs memory that all programs see: so it works on network file
# systems too.


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


LEASE = 120.0
"""Seconds after which a program that gave no sign of life has lost what it had under way."""


@final
@dataclass(frozen=True)
class Owner:
    """One program that has a store open."""

    token: str
    host: str
    pid: int

    @classmethod
    def here(cls) -> "Owner":
        """This one; each time another."""
        return cls(uuid.uuid4().hex, host(), os.getpid())


@cache
def host() -> str:
    """Where process numbers mean the same: the machine, and on Linux the container."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def is_living(where: str, pid: int, beat: float) -> bool:
    """Whether a program gave a sign of life of late, and is there as far as one can see."""
    return time.time() - beat <= LEASE and (where != host() or _runs(pid))


def _runs(pid: int) -> bool:
    """Whether a process of this machine is there; Windows has no way to ask that does no harm."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@final
class Heart:
    """Beats in a thread of its own until it is stopped, however busy the program is.

    Parameters
    ----------
    path : Path
        The store.
    owner : Owner
        Whose claims are kept alive.
    seconds : float
        Between two beats.
    """

    def __init__(self, path: Path, owner: Owner, seconds: float = LEASE / 6) -> None:
        self._path, self._owner, self._seconds = path, owner, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more beats."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._beat()
            except StoreError:
                # The next one makes up for it.
                continue

    def _beat(self) -> None:
        file = StoreFile(self._path, patience=self._seconds)
        try:
            with file.writing():
                token = self._owner.token
                file.rows("update claims set beat = ? where owner = ?", time.time(), token)
        finally:
            file.close()


@final
@dataclass
class UnderWay:
    """The claims of a store."""

    file: StoreFile
    owner: Owner = field(default_factory=Owner.here)
    _heart: Heart | None = field(default=None, init=False)

    def claim(self, key: str) -> bool:
        """Take a cell, unless it is finished or a living program has it."""
        with self.file.writing():
            if self.file.row("select 1 from results where key = ?", key) or self._is_taken(key):
                return False
            owner = self.owner
            values = (key, owner.token, owner.host, owner.pid, time.time())
            self.file.rows("insert or replace into claims values (?, ?, ?, ?, ?)", *values)
        self._heart = self._heart or Heart(self.file.path, owner)
        return True

    def taken(self) -> set[str]:
        """What other programs that live have under way."""
        rows = self.file.rows("select key, owner, host, pid, beat from claims")
        return {key for key, *claim in rows if self._is_anothers(*claim)}

    def release(self, key: str) -> None:
        """Leave a cell to others, if it is ours."""
        ours = (key, self.owner.token)
        with self.file.writing():
            self.file.rows("delete from claims where key = ? and owner = ?", *ours)

    def release_all(self) -> None:
        """Leave all that is ours to others."""
        if self._heart is None:
            return
        self._heart.stop()
        self._heart = None
        with self.file.writing():
            self.file.rows("delete from claims where owner = ?", self.owner.token)

    def _is_taken(self, key: str) -> bool:
        claim = self.file.row("select owner, host, pid, beat from claims where key = ?", key)
        return claim is not None and self._is_anothers(*claim)

    def _is_anothers(self, token: str, where: str, pid: int, beat: float) -> bool:
        return token != self.owner.token and is_living(where, pid, beat)


_RESULT = "select * from results where key = ?"
_TAKE = "insert into results values (?, ?, ?, ?, ?, ?)"
_FAILURES = "select * from failures order by key"
_TAKE_FAILURE = "insert or ignore into failures values (?, ?, ?, ?, ?)"
_SETTLED = "delete from failures where key in (select key from results)"
_OUTCOME, _ARRAYS = 2, 5


@final
@dataclass(frozen=True)
class Merged:
    """What came of taking over the results of another store."""

    added: int
    """Results that this one did not have."""

    known: int
    """Results that both have; ours are kept."""

    differing: int
    """Of the known, those that are not the same but for times."""


def merge_into(ours: StoreFile, theirs: StoreFile) -> Merged:
    """Results that we lack; failures where neither has a result."""
    keys = [key for (key,) in theirs.rows("select key from results order by key")]
    added = known = differing = 0
    with ours.writing():
        for key in keys:
            (their_row,), our_rows = theirs.rows(_RESULT, key), ours.rows(_RESULT, key)
            if our_rows:
                known += 1
                differing += not _same(our_rows[0], their_row)
            else:
                added += 1
                ours.rows(_TAKE, *their_row)
        for failure in theirs.rows(_FAILURES):
            ours.rows(_TAKE_FAILURE, *failure)
        ours.rows(_SETTLED)
    return Merged(added, known, differing)


def _same(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    outcomes = (_without_times(json.loads(row[_OUTCOME])) for row in (ours, theirs))
    # As text: NaN is not equal to itself.
    return len({json.dumps(each) for each in outcomes}) == 1 and ours[_ARRAYS] == theirs[_ARRAYS]


def _without_times(facts: Any) -> Any:
    """Facts without those that are called seconds, however deep."""
    if isinstance(facts, list):
        return [_without_times(each) for each in facts]
    if isinstance(facts, dict):
        kept = (name for name in facts if not name.endswith("seconds"))
        return {name: _without_times(facts[name]) for name in kept}
    return facts


# Each result is there wholly or not at all, whenever a program is killed.


_ALL = "select cell, outcome, circumstances, arrays from results order by key"
_ONE = "select cell, outcome, circumstances, arrays from results where key = ?"
_FAIL = """
insert into failures values (?, ?, ?, 1, ?)
on conflict (key) do update
set reason = excluded.reason, attempts = attempts + 1, failed = excluded.failed
"""


@final
@dataclass(frozen=True)
class Failing:
    """How often a cell has failed, and why the last time."""

    attempts: int
    reason: str


@final
@dataclass(frozen=True)
class View:
    """Where things stand, by the keys of the cells."""

    finished: set[str]
    failing: dict[str, Failing]
    taken: set[str]
    """Under way with other programs that live."""


@final
class SharedStore:
    """Results, failures, and what is under way.

    Parameters
    ----------
    path : Path
        The file, made where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._file = StoreFile(path)
        self._under_way = UnderWay(self._file)

    def __enter__(self) -> "SharedStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave to others what is under way here, and let the file go."""
        try:
            self.release_all()
        finally:
            self._file.close()

    def __contains__(self, cell: PaperCell) -> bool:
        return self._file.row("select 1 from results where key = ?", cell.key) is not None

    def records(self, keys: Iterable[str] | None = None) -> list[Record]:
        """Of the cells with these keys, as far as they are there; of all cells unless given."""
        if keys is None:
            return [self._record(row) for row in self._file.rows(_ALL)]
        return [self._record(row) for key in keys for row in self._file.rows(_ONE, key)]

    def failures(self) -> list[FailedRecord]:
        """Cells that could not be run, and why."""
        rows = self._file.rows("select cell, reason, attempts from failures order by key")
        with telling(self._file.path, ""):
            return [FailedRecord(read_cell(cell), *others) for cell, *others in rows]

    def model(self, cell: PaperCell) -> bytes:
        """The model that a cell left behind."""
        row = self._file.row("select model from results where key = ?", cell.key)
        if row is None:
            raise KeyError(cell.key)
        return bytes(row[0])

    def view(self) -> View:
        """What is finished, has failed, and is under way elsewhere."""
        # What ends between two questions is found finished by the later one: claims come first.
        taken = self._under_way.taken()
        failing = self._file.rows("select key, attempts, reason from failures")
        finished = self._file.rows("select key from results")
        return View(
            {key for (key,) in finished},
            {key: Failing(*others) for key, *others in failing},
            taken,
        )

    def claim(self, cell: PaperCell) -> bool:
        """Take a cell to be run here; not one that is finished, or that a living program has."""
        return self._under_way.claim(cell.key)

    def release(self, cell: PaperCell) -> None:
        """Leave a cell to others, if it was claimed here."""
        self._under_way.release(cell.key)

    def release_all(self) -> None:
        """Leave to others all that was claimed here."""
        self._under_way.release_all()

    def put(self, cell: PaperCell, finished: Finished) -> None:
        """Keep a result; it survives a power cut from here on."""
        row = (
            cell.key,
            cell.model_dump_json(),
            finished.outcome.model_dump_json(),
            finished.circumstances.model_dump_json(),
            finished.model,
            save(finished.arrays),
        )
        with self._file.writing():
            self._file.rows("insert or replace into results values (?, ?, ?, ?, ?, ?)", *row)
            self._file.rows("delete from failures where key = ?", cell.key)
            self._file.rows("delete from claims where key = ?", cell.key)

    def fail(self, cell: PaperCell, reason: str) -> None:
        """Remember that a cell could not be run, and why; a result that is there stays."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        ours = (cell.key, self._under_way.owner.token)
        with self._file.writing():
            if cell not in self:
                self._file.rows(_FAIL, cell.key, cell.model_dump_json(), reason, now)
            self._file.rows("delete from claims where key = ? and owner = ?", *ours)

    def merge(self, other: Path) -> Merged:
        """Take over what the store of another machine has and this one lacks.

        A result that both have stays as it is here; a failure is taken over where neither has a
        result.
        """
        if not other.is_file():
            raise StoreError(
                f"There is no store {other}. Give a file that `reproduce` has written."
            )
        if other.samefile(self._file.path):
            raise StoreError(f"{other} is the store itself. Give that of another machine.")
        theirs = StoreFile(other)
        try:
            return merge_into(self._file, theirs)
        finally:
            theirs.close()

    def _record(self, row: Row) -> Record:
        with telling(self._file.path, ""):
            cell, outcome, circumstances, arrays = row
            return Record(
                read_cell(cell),
                read_outcome(outcome),
                Circumstances.model_validate_json(circumstances),
                load(arrays),
            )
