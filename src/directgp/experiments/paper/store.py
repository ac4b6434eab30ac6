"""Cells that have been run, in one file that several programs share.

Each result is there wholly or not at all, whenever a program is killed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import final

from safetensors.numpy import load, save

from directgp.errors import StoreError
from directgp.experiments.paper.cells import PaperCell, read_cell
from directgp.experiments.paper.merging import Merged, merge_into
from directgp.experiments.paper.results import (
    Circumstances,
    FailedRecord,
    Finished,
    Record,
    read_outcome,
)
from directgp.experiments.paper.store_file import Row, StoreFile
from directgp.experiments.paper.under_way import UnderWay
from directgp.experiments.store_files import telling

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
