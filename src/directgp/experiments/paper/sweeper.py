"""The client of the engine for a sweep: what is run here, and what others have done meanwhile."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

from directgp.datasets.problem import Problem
from directgp.experiments.board import Activity
from directgp.experiments.engine import Engine
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.problems import Problems
from directgp.experiments.paper.results import Finished
from directgp.experiments.paper.store import SharedStore, View
from directgp.experiments.pools import Call, Pool
from directgp.experiments.training_rows import CellData
from directgp.experiments.worker import Refused
from directgp.training.monitors import Monitor

_BETWEEN_VIEWS = 1.0
"""Seconds between two looks at what other programs have done."""


@runtime_checkable
class SweepWatcher(Protocol):
    """Sees a sweep go on."""

    def begin(self, cells: Sequence[PaperCell], known: int) -> None:
        """These are to be run; so many more are known already."""

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        """A cell is done, here or by another program."""

    def looking(self, active: Sequence[Activity]) -> None:
        """What is going on here, a few times a second; cells by their places in `begin`."""


@final
@dataclass(frozen=True)
class Task:
    """What is done with a cell."""

    function: Callable[..., Finished]
    """As `run_paper_cell`."""

    rows: Callable[[Problem, PaperCell], CellData]
    """As `rows_of`."""

    device: str


def run_task(
    task: Task,
    cell: PaperCell,
    problem: Problem,
    start: bytes,
    monitors: Sequence[Monitor] = (),
) -> Finished:
    """What a worker does: the rows of a cell are found where it is run."""
    return task.function(cell, task.rows(problem, cell), start, task.device, monitors)


@final
@dataclass(frozen=True, eq=False)
class SweepJob:
    """A cell with its keys, which take time to compute."""

    cell: PaperCell
    key: str
    start: str | None
    """Key of the cell that it starts from."""

    @classmethod
    def of(cls, cell: PaperCell) -> "SweepJob":
        """A cell as a job."""
        start: PaperCell | None = cell.start
        return cls(cell, cell.key, None if start is None else start.key)


@final
@dataclass
class Sweeper:
    """Claims cells, has them run, keeps what comes of them."""

    store: SharedStore
    problems: Problems
    watcher: SweepWatcher
    task: Task
    _open: dict[str, SweepJob] = field(default_factory=dict, init=False)
    _ours: set[str] = field(default_factory=set, init=False)
    _finished: set[str] = field(default_factory=set, init=False)
    _taken: set[str] = field(default_factory=set, init=False)
    _failed: dict[str, str] = field(default_factory=dict, init=False)
    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    _last_view: float = field(default=0.0, init=False)

    def run(self, cells: Sequence[PaperCell], pool: Pool, again: bool) -> None:
        """Run what is not known; what failed before only if it is to be tried again."""
        view = self.store.view()
        self._finished, self._taken = view.finished, view.taken
        self._attempts = {key: failing.attempts for key, failing in view.failing.items()}
        if not again:
            self._failed = {key: failing.reason for key, failing in view.failing.items()}
        jobs = [SweepJob.of(cell) for cell in dict.fromkeys(_with_starts(cells))]
        self._open = {job.key: job for job in jobs if not self.known(job)}
        known = sum(job.key in self._finished for job in jobs)
        self.watcher.begin([job.cell for job in self._open.values()], known)
        Engine(self, pool).run(list(self._open.values()))

    def known(self, job: SweepJob) -> bool:
        """Whether it was finished, or failed, with another program."""
        return job.key in self._finished or job.key in self._failed

    def obstacle(self, job: SweepJob) -> str | None:
        """Why its data or the cell it starts from cannot be had, if so."""
        if job.start is not None and job.start in self._failed:
            return f"The run that it starts from failed: {self._failed[job.start]}"
        return self.problems.obstacle(job.cell.dataset)

    def ready(self, job: SweepJob) -> bool:
        """Whether the cell it starts from is there, and this one could be claimed."""
        if job.key in self._taken or (job.start is not None and job.start not in self._finished):
            return False
        if not self.store.claim(job.cell):
            self._taken.add(job.key)
            return False
        self._ours.add(job.key)
        return True

    def call(self, job: SweepJob) -> Call:
        """The task, with the data set and the model that the cell starts from."""
        start: PaperCell | None = job.cell.start
        model = b"" if start is None else self.store.model(start)
        return run_task, (self.task, job.cell, self.problems.get(job.cell.dataset), model)

    def finished(self, job: SweepJob, result: Finished | Refused) -> None:
        """Keep a result, or why there is none."""
        if isinstance(result, Refused):
            self.store.fail(job.cell, result.reason)
            self._failed[job.key] = result.reason
        else:
            self.store.put(job.cell, result)
            self._finished.add(job.key)
        self._ours.discard(job.key)
        self._told(job, result)

    def looking(self, active: Sequence[Activity]) -> None:
        """Pass it on, and see now and then what other programs have done."""
        self.watcher.looking(active)
        if time.monotonic() - self._last_view > _BETWEEN_VIEWS:
            self._take_in(self.store.view())
            self._last_view = time.monotonic()

    def _take_in(self, view: View) -> None:
        self._finished |= view.finished
        self._taken = view.taken
        elsewhere = [job for job in self._open.values() if job.key not in self._ours]
        for job in elsewhere:
            failing = view.failing.get(job.key)
            if job.key in view.finished:
                (record,) = self.store.records([job.key])
                found = Finished(record.outcome, record.circumstances, b"", record.arrays)
                self._told(job, found)
            elif failing is not None and failing.attempts > self._attempts.get(job.key, 0):
                self._failed[job.key] = failing.reason
                self._told(job, Refused(failing.reason))

    def _told(self, job: SweepJob, result: Finished | Refused) -> None:
        del self._open[job.key]
        self.watcher.finished(job.cell, result)


def _with_starts(cells: Iterable[PaperCell]) -> Iterator[PaperCell]:
    """Each after the one that it starts from."""
    for cell in cells:
        start: PaperCell | None = cell.start
        if start is not None:
            yield from _with_starts([start])
        yield cell
