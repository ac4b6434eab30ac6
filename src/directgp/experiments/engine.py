"""Run cells on a pool of workers and store their results."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, final

import torch

from directgp.datasets.problem import Problem
from directgp.errors import DirectGPError, StoreError
from directgp.experiments.cell import C, Record, versions
from directgp.experiments.fit import CellData, compare_rows, run_compare_cell
from directgp.experiments.plan import ComparedFit, Comparison, Plan, Predictions
from directgp.experiments.store import Store, StoreView
from directgp.experiments.workers import (
    Call,
    FailedJob,
    OpenPool,
    Pool,
    Shared,
    WorkerStatus,
    local_pool,
)

_TICK = 0.25
"""Seconds between two updates of the callback."""

_VIEW_INTERVAL = 1.0
"""Seconds between two reads of what other programs have done."""


class RunCallback:
    """Receives the progress of a run; the methods of this base class do nothing."""

    def begin(self, cells: Sequence[Any], known: int) -> None:
        """Receive the cells to run, and the number of those that are finished already."""

    def finished(self, cell: Any, result: Record[Any, Any] | FailedJob) -> None:
        """Receive the result of a cell, run here or by another program."""

    def update(self, statuses: Sequence[WorkerStatus]) -> None:
        """Receive the worker statuses, a few times a second; jobs count as in `begin`."""


@final
@dataclass(frozen=True, eq=False)
class _Job(Generic[C]):
    """A cell to run; keys are kept because they take time to compute."""

    number: int
    cell: C
    key: str
    start: str | None
    """Key of the cell that it starts from."""


@final
@dataclass
class Runner(Generic[C]):
    """Runs cells in the order of their dependencies.

    Parameters
    ----------
    store : Store
        Finished cells are not run again. Cells that another program has leased are waited for, and
        taken over if that program dies.
    problem_of : callable
        Returns the problem of a cell.
    rows : callable
        Returns the `CellData` of a problem and a cell.
    function : callable
        Runs a cell: called with cell, data, the model of the cell's `start`, and `monitors`. Like
        `rows` it is defined at the top level of a module, to be sent to workers.
    callback : RunCallback
        Receives the progress.
    """

    store: Store
    problem_of: Callable[[C], Problem]
    rows: Callable[[C, Problem], CellData]
    function: Callable[..., Record[C, Any]]
    callback: RunCallback = field(default_factory=RunCallback)
    _waiting: list[_Job[C]] = field(default_factory=list, init=False)
    _open: dict[str, _Job[C]] = field(default_factory=dict, init=False)
    _ours: set[str] = field(default_factory=set, init=False)
    _finished: set[str] = field(default_factory=set, init=False)
    _failed: dict[str, str] = field(default_factory=dict, init=False)
    _leased: set[str] = field(default_factory=set, init=False)
    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    _retried: set[str] = field(default_factory=set, init=False)
    _last_view: float = field(default=0.0, init=False)

    def run(self, cells: Sequence[C], pool: Pool) -> None:
        """Run cells, and the cells they start from, until each has a result or a failure.

        When the system kills a worker, the interrupted jobs are retried once.
        """
        view = self.store.view()
        self._finished, self._leased = view.finished, view.leased
        self._attempts = {key: attempts for key, (attempts, _) in view.failed.items()}
        wanted = {cell.key: cell for cell in _with_starts(cells)}
        todo = [(key, cell) for key, cell in wanted.items() if key not in self._finished]
        self._waiting = [
            _Job(number, cell, key, None if cell.start is None else cell.start.key)
            for number, (key, cell) in enumerate(todo)
        ]
        self._open = {job.key: job for job in self._waiting}
        self.callback.begin([cell for _, cell in todo], len(wanted) - len(todo))
        try:
            while self._waiting:
                with pool.open() as workers:
                    lost = self._run(workers)
                self._retry(lost)
                pool = pool.after_loss()
        finally:
            self.store.release_all()

    def _run(self, pool: OpenPool) -> list[_Job[C]]:
        """Run until no job waits, or until a worker is lost; return the interrupted jobs."""
        running: dict[Future[Any], _Job[C]] = {}
        submitting: list[_Job[C]] = []
        try:
            while self._waiting or running:
                while len(running) < pool.capacity() and (job := self._next()) is not None:
                    submitting = [job]
                    if (future := self._submit(pool, job)) is not None:
                        running[future] = job
                    submitting = []
                for future in _wait(running):
                    self._finish(running[future], future.result())
                    del running[future]
                self._update(pool)
        except BrokenProcessPool:
            return submitting + list(running.values())
        return []

    def _next(self) -> _Job[C] | None:
        """Return the first job that is ready; drop those that are done or cannot be run."""
        for job in list(self._waiting):
            if job.key not in self._open:
                self._waiting.remove(job)
            elif job.start in self._failed:
                self._waiting.remove(job)
                reason = self._failed[job.start]
                self._finish(job, FailedJob(f"The run that it starts from failed: {reason}"))
            elif self._is_ready(job):
                self._waiting.remove(job)
                return job
        return None

    def _is_ready(self, job: _Job[C]) -> bool:
        """Lease the cell if its start is finished and no other program has it."""
        if job.key in self._leased or (job.start is not None and job.start not in self._finished):
            return False
        if not self.store.lease(job.cell):
            self._leased.add(job.key)
            return False
        self._ours.add(job.key)
        return True

    def _submit(self, pool: OpenPool, job: _Job[C]) -> Future[Any] | None:
        """Start a job; one whose data cannot be loaded fails."""
        try:
            return pool.submit(job.number, self._call(job.cell))
        except StoreError:
            raise
        except DirectGPError as error:
            self._finish(job, FailedJob(str(error)))
            return None

    def _call(self, cell: C) -> Call:
        model = b"" if cell.start is None else self.store.model(cell.start)
        data = Shared(self.problem_of(cell), partial(self.rows, cell))
        return self.function, (cell, data, model)

    def _finish(self, job: _Job[C], result: Record[C, Any] | FailedJob) -> None:
        if isinstance(result, FailedJob):
            self.store.fail(job.cell, result.reason)
        else:
            self.store.put(result)
        self._ours.discard(job.key)
        self._report(job, result)

    def _report(self, job: _Job[C], result: Record[C, Any] | FailedJob) -> None:
        if isinstance(result, FailedJob):
            self._failed[job.key] = result.reason
        else:
            self._finished.add(job.key)
        del self._open[job.key]
        self.callback.finished(job.cell, result)

    def _update(self, pool: OpenPool) -> None:
        self.callback.update(pool.statuses())
        if time.monotonic() - self._last_view > _VIEW_INTERVAL:
            self._take_over(self.store.view())
            self._last_view = time.monotonic()

    def _take_over(self, view: StoreView) -> None:
        """Report the cells that other programs have finished since the last view."""
        self._leased = view.leased
        for job in [job for job in self._open.values() if job.key not in self._ours]:
            attempts, reason = view.failed.get(job.key, (0, ""))
            if job.key in view.finished:
                (record,) = self.store.records([job.cell])
                self._report(job, record)
            elif attempts > self._attempts.get(job.key, 0):
                self._report(job, FailedJob(reason))

    def _retry(self, lost: Sequence[_Job[C]]) -> None:
        again = [job for job in lost if job.key not in self._retried]
        for job in lost:
            if job not in again:
                reason = "The system ended its process twice, perhaps for lack of memory."
                self._finish(job, FailedJob(reason))
        self._retried |= {job.key for job in again}
        self._waiting = again + self._waiting


def _with_starts(cells: Iterable[C]) -> Iterator[C]:
    """Yield each cell after the one that it starts from."""
    for cell in cells:
        start: Any = cell.start
        if start is not None:
            yield from _with_starts([start])
        yield cell


def _wait(running: dict[Future[Any], Any]) -> list[Future[Any]]:
    """Return the jobs that finish within a tick."""
    if not running:
        time.sleep(_TICK)
        return []
    return list(wait(running, timeout=_TICK, return_when=FIRST_COMPLETED).done)


def compare(
    problem: Problem,
    plan: Plan,
    store: str | os.PathLike[str],
    *,
    workers: int = 0,
    callback: RunCallback | None = None,
    command: str = "",
) -> Comparison:
    """Run the cells of a plan that the store does not have, and return all results.

    Parameters
    ----------
    problem : Problem
        The data of the plan.
    plan : Plan
        The cells.
    store : path
        The file of finished fits, created if missing. Several programs may share it.
    workers : int
        Number of processes, each on one core; 0 runs everything in this process.
    callback : RunCallback
        Receives the progress.
    command : str
        The command that repeats the comparison, for the report.
    """
    since, began = time.perf_counter(), datetime.now(UTC)
    cells = plan.cells()
    with Store(Path(store)) as opened:
        runner = Runner(
            opened,
            lambda cell: problem,
            compare_rows,
            run_compare_cell,
            callback or RunCallback(),
        )
        runner.run(cells, local_pool(workers))
        records, failed = opened.records(cells), opened.failures(cells)
    return Comparison(
        plan=plan,
        runs=tuple(ComparedFit(r.cell, r.outcome, Predictions(**r.arrays)) for r in records),
        failed=tuple(failed),
        versions=versions(),
        machine=_machine(plan.settings.device, workers),
        command=command,
        began=began.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - since,
    )


def _machine(device: str, workers: int) -> str:
    """Describe the machine and the number of workers."""
    fits = "one fit at a time" if workers <= 1 else f"{workers} fits at once"
    where = f"{platform.system()} {platform.machine()}, {fits}"
    if device == "cpu":
        return f"{where}, one core each" if workers > 1 else where
    return f"{where} on {torch.cuda.get_device_name()}"
