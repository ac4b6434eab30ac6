"""Run cells on a pool of workers and store their results."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, final

from directgp.datasets.problem import Problem
from directgp.errors import DirectGPError, StoreError
from directgp.experiments.cell import C, Record, with_starts
from directgp.experiments.store import Store, StoreView
from directgp.experiments.workers import (
    Call,
    FailedJob,
    OpenPool,
    Pool,
    StoppedError,
    WorkerStatus,
)

_TICK = 0.25
"""Seconds between two updates of the callback."""

_VIEW_INTERVAL = 1.0
"""Seconds between two reads of what other programs have done."""


class RunCallback:
    """Receives the progress of a run; the methods of this base class do nothing."""

    def begin(self, cells: Sequence[Any], num_finished: int) -> None:
        """Receive the cells to run, and the number of those that are finished already."""

    def finished(self, cell: Any, result: Record[Any, Any] | FailedJob) -> None:
        """Receive the result of a cell, run here or by another program."""

    def update(self, statuses: Sequence[WorkerStatus]) -> None:
        """Receive the worker statuses, a few times a second; jobs count as in `begin`."""


@final
@dataclass(eq=False)
class _Job(Generic[C]):
    """A cell without a result; keys are kept because they take time to compute."""

    number: int
    """Position among the cells to run."""

    cell: C
    """The cell to run."""

    key: str
    """Key of the cell."""

    start: str | None
    """Key of the cell that it starts from."""

    retried: bool = False
    """Whether the job was interrupted once, and runs again."""


@final
@dataclass
class Runner(Generic[C]):
    """Runs cells in the order of their dependencies.

    Finished cells are not run again. Cells that another program has leased are waited for, and
    taken over if that program dies.
    """

    store: Store
    """Where results, failures and leases are."""

    problem_of: Callable[[C], Problem]
    """Returns the problem of a cell."""

    rows: Callable[[C, Problem], Any]
    """Returns the data of a cell, as `function` takes them."""

    function: Callable[..., Record[C, Any]]
    """Runs a cell: called with cell, data, the model of the cell's `start`, and `monitors`. Like
    `rows` it is defined at the top level of a module, to be sent to workers."""

    callback: RunCallback = field(default_factory=RunCallback)
    """Receives the progress."""

    _waiting: list[_Job[C]] = field(default_factory=list, init=False)
    """Jobs that are not running here; other programs may run them."""

    _failed: dict[str, str] = field(default_factory=dict, init=False)
    """Reasons of the failures since the start of the run, by key."""

    _view: StoreView = field(init=False)
    """What the store has."""

    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    """Numbers of failures before the start of the run, by key."""

    _last_view: float = field(default=0.0, init=False)
    """Time at which the store was last read, by the monotonic clock."""

    _deadline: float = field(default=math.inf, init=False)
    """Time at which the run ends, by the monotonic clock."""

    _dropped: list[_Job[C]] = field(default_factory=list, init=False)
    """Jobs that were running at the deadline."""

    def run(self, cells: Sequence[C], pool: Pool, time_budget: float | None = None) -> bool:
        """Run cells, and the cells they start from, until each has a result or a failure.

        Results that are damaged are discarded first. When the system kills a worker, the
        interrupted jobs are retried once, on the pool's `after_loss`; then the others continue.
        Returns False if the seconds of the budget were spent before; fits that were running then
        are dropped.
        """
        self._deadline = math.inf if time_budget is None else time.monotonic() + time_budget
        self.store.find_damaged(discard=True)
        self._view = self.store.view()
        self._attempts = {key: attempts for key, (attempts, _) in self._view.failed.items()}
        wanted = {cell.key: cell for cell in with_starts(cells)}
        todo = [(key, cell) for key, cell in wanted.items() if key not in self._view.finished]
        self._waiting = [
            _Job(number, cell, key, None if cell.start is None else cell.start.key)
            for number, (key, cell) in enumerate(todo)
        ]
        self.callback.begin([cell for _, cell in todo], len(wanted) - len(todo))
        try:
            while self._waiting and not self._is_late():
                retrying = any(job.retried for job in self._waiting)
                current = pool.after_loss() if retrying else pool
                with current.open(self._deadline) as workers:
                    lost = self._run(workers, retrying)
                again = [job for job in lost if not job.retried]
                for job in lost:
                    if job.retried:
                        reason = "The system ended its process twice, perhaps for lack of memory."
                        self._finish(job, FailedJob(reason))
                    job.retried = True
                self._waiting = again + self._waiting
        finally:
            self.store.release_all()
        return not (self._waiting or self._dropped)

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _candidates(self, retrying: bool) -> list[_Job[C]]:
        """Return the waiting jobs; while retrying, those that were interrupted."""
        return [job for job in self._waiting if job.retried or not retrying]

    def _run(self, pool: OpenPool, retrying: bool) -> list[_Job[C]]:
        """Run until no job waits, or until a worker is lost; return the interrupted jobs.

        While retrying, run only the jobs that were interrupted before.
        """
        running: dict[Future[Any], _Job[C]] = {}
        submitting: list[_Job[C]] = []
        try:
            while (self._candidates(retrying) or running) and not self._is_late():
                while len(running) < pool.capacity():
                    job = self._next(retrying)
                    if job is None:
                        break
                    submitting = [job]
                    cell = job.cell
                    model = b"" if cell.start is None else self.store.model(cell.start)
                    try:
                        call = Call(self.function, cell, self.rows, self.problem_of(cell), model)
                        running[pool.submit(job.number, call)] = job
                    except StoreError:
                        raise
                    except DirectGPError as error:
                        # Its data could not be loaded.
                        self._finish(job, FailedJob(str(error)))
                    submitting = []
                if not running:
                    time.sleep(_TICK)
                for future in wait(running, _TICK, FIRST_COMPLETED).done:
                    with suppress(StoppedError):
                        # Jobs stopped at the deadline stay among the running ones.
                        self._finish(running[future], future.result())
                        del running[future]
                self.callback.update(pool.statuses())
                if time.monotonic() - self._last_view > _VIEW_INTERVAL:
                    self._read_results_of_others()
        except BrokenProcessPool:
            return submitting + list(running.values())
        self._dropped = list(running.values())
        return []

    def _next(self, retrying: bool) -> _Job[C] | None:
        """Lease and return the first job that is ready; drop those that cannot be run."""
        for job in self._candidates(retrying):
            if job.start in self._failed:
                self._waiting.remove(job)
                reason = f"The run that it starts from failed: {self._failed[job.start]}"
                self._finish(job, FailedJob(reason))
            elif job.key not in self._view.leased and (
                job.start is None or job.start in self._view.finished
            ):
                if self.store.lease(job.cell):
                    self._waiting.remove(job)
                    return job
                self._view.leased.add(job.key)
        return None

    def _finish(
        self, job: _Job[C], result: Record[C, Any] | FailedJob, stored: bool = False
    ) -> None:
        """Report a result; store it unless another program has."""
        if isinstance(result, FailedJob):
            self._failed[job.key] = result.reason
            if not stored:
                self.store.fail(job.cell, result.reason)
        else:
            self._view.finished.add(job.key)
            if not stored:
                self.store.put(result)
        self.callback.finished(job.cell, result)

    def _read_results_of_others(self) -> None:
        """Report the cells that other programs have finished since the last view."""
        self._view = self.store.view()
        self._last_view = time.monotonic()
        for job in list(self._waiting):
            attempts, reason = self._view.failed.get(job.key, (0, ""))
            result: Record[C, Any] | FailedJob
            records = self.store.records([job.cell]) if job.key in self._view.finished else []
            if records:
                result = records[0]
            elif attempts > self._attempts.get(job.key, 0):
                result = FailedJob(reason)
            else:
                continue
            self._waiting.remove(job)
            self._finish(job, result, stored=True)
