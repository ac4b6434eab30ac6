"""Run jobs in dependency order and keep their results."""

import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, final, runtime_checkable

from directgp.datasets.problem import Problem
from directgp.errors import DirectGPError, StoreError
from directgp.experiments.cell import Cell, Finished, versions
from directgp.experiments.fit import CellData, needs_elbo, run_cell
from directgp.experiments.plan import ELBO, METHODS, Comparison, FailedCell, Plan
from directgp.experiments.store import Store
from directgp.experiments.workers import Activity, Call, OpenPool, Pool, Refused, local

_TICK = 0.25
"""Seconds between two looks at the board."""


@runtime_checkable
class Job(Protocol):
    """Something to be run."""

    @property
    def key(self) -> str:
        """Equal for equal jobs only."""


J = TypeVar("J", bound=Job)
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)


@runtime_checkable
class Client(Protocol[J_contra]):
    """Knows the jobs: what they need, and what to do with their results."""

    def known(self, job: J_contra) -> bool:
        """Whether somebody else has finished it, so that it need not be run."""

    def obstacle(self, job: J_contra) -> str | None:
        """Why it can never be run, if so."""

    def ready(self, job: J_contra) -> bool:
        """Whether it can be run now; a job of which this is said is run at once."""

    def call(self, job: J_contra) -> Call:
        """The function that runs it, and its arguments."""

    def finished(self, job: J_contra, result: Any) -> None:
        """Take what the function returned, or `Refused`."""

    def looking(self, active: Sequence[Activity]) -> None:
        """See what is going on, a few times a second."""


@final
@dataclass
class Engine(Generic[J]):
    """Runs what a client has to be run.

    Parameters
    ----------
    client : Client
        Whose jobs they are.
    pool : Pool
        Where they are run.
    """

    client: Client[J]
    pool: Pool
    _waiting: list[tuple[int, J]] = field(default_factory=list, init=False)
    _tried: set[str] = field(default_factory=set, init=False)

    def run(self, jobs: Sequence[J]) -> None:
        """Run jobs until each has a result.

        Where the system ends a worker, as it does for lack of memory, what was under way is tried
        once more, one at a time.
        """
        self._waiting = list(enumerate(jobs))
        pool = self.pool
        while self._waiting:
            with pool.open() as workers:
                lost = self._run(workers)
            self._waiting = self._once_more(lost) + self._waiting
            pool = pool.after_a_loss()

    def _run(self, pool: OpenPool) -> list[tuple[int, J]]:
        """Run until nothing waits; or until a worker is lost, and then say what was under way."""
        running: dict[Future[Any], tuple[int, J]] = {}
        begun: list[tuple[int, J]] = []
        try:
            while self._waiting or running:
                while len(running) < pool.places() and (job := self._next()) is not None:
                    begun = [job]
                    if (future := self._submit(pool, *job)) is not None:
                        running[future] = job
                    begun = []
                for future in _some_done(running):
                    self.client.finished(running[future][1], future.result())
                    del running[future]
                self.client.looking(pool.activities())
        except BrokenProcessPool:
            return begun + list(running.values())
        return []

    def _submit(self, pool: OpenPool, number: int, job: J) -> Future[Any] | None:
        """Begin a job; one whose arguments cannot be had is handed back."""
        try:
            call = self.client.call(job)
        except StoreError:
            raise
        except DirectGPError as error:
            self.client.finished(job, Refused(str(error)))
            return None
        return pool.submit(number, call)

    def _next(self) -> tuple[int, J] | None:
        """The first job that can be run now; those that need not or cannot be are let go."""
        for job in list(self._waiting):
            if self.client.known(job[1]):
                self._waiting.remove(job)
            elif (obstacle := self.client.obstacle(job[1])) is not None:
                self._waiting.remove(job)
                self.client.finished(job[1], Refused(obstacle))
            elif self.client.ready(job[1]):
                self._waiting.remove(job)
                return job
        return None

    def _once_more(self, lost: Sequence[tuple[int, J]]) -> list[tuple[int, J]]:
        again = [job for job in lost if job[1].key not in self._tried]
        for _, job in (each for each in lost if each not in again):
            reason = "Its process was ended by the system twice, perhaps for lack of memory."
            self.client.finished(job, Refused(reason))
        self._tried |= {job.key for _, job in again}
        return again


def _some_done(running: dict[Future[Any], Any]) -> list[Future[Any]]:
    """Those that end within a tick; with nothing to wait for, nothing happens for that time."""
    if not running:
        time.sleep(_TICK)
        return []
    return list(wait(running, timeout=_TICK, return_when=FIRST_COMPLETED).done)


@runtime_checkable
class Watcher(Protocol):
    """Sees a comparison go on."""

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """These are to be run; so many more are known already."""

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """A cell is done."""

    def looking(self, active: Sequence[Activity]) -> None:
        """What is going on, a few times a second."""


@final
class Silent:
    """Sees it, and says nothing."""

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """Nothing."""

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Nothing."""

    def looking(self, active: Sequence[Activity]) -> None:
        """Nothing."""


def compare(
    problem: Problem,
    plan: Plan,
    store: str | os.PathLike[str],
    *,
    workers: int = 0,
    watcher: Watcher | None = None,
    command: str = "",
) -> Comparison:
    """Run what the store does not have yet, and put everything together.

    Parameters
    ----------
    problem : Problem
        The data of the plan.
    plan : Plan
        What is to be run.
    store : path
        The file in which finished fits are kept, and from which they are taken.
    workers : int
        Processes, each on one core; 0 is none but this one.
    watcher : Watcher
        Sees it go on.
    command : str
        What repeats it.
    """
    with Store(Path(store)) as kept:
        return Comparer(problem, plan, kept, watcher or Silent()).run(workers, command)


@final
@dataclass
class Comparer:
    """The client of the engine for one plan."""

    problem: Problem
    plan: Plan
    store: Store
    watcher: Watcher
    _failed: dict[str, FailedCell] = field(default_factory=dict, init=False)

    def run(self, workers: int, command: str = "") -> Comparison:
        """Run what is not known yet, and put everything together."""
        since, began = time.perf_counter(), datetime.now(UTC)
        cells = self.plan.cells()
        wanted = dict.fromkeys((*(self._start(cell) for cell in cells), *cells))
        waiting = sorted(
            (cell for cell in wanted if cell not in self.store),
            key=lambda cell: (cell.size, cell.repeat, cell.method != ELBO.name),
        )
        self.watcher.begin(waiting, len(wanted) - len(waiting))
        Engine(self, local(workers)).run(waiting)
        return Comparison(
            plan=self.plan,
            runs=tuple(self.store.run(cell) for cell in cells if cell in self.store),
            failed=tuple(f for f in self._failed.values() if f.cell in cells),
            versions=versions(),
            machine=_machine(self.plan.settings.device, workers),
            command=command,
            began=began.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - since,
        )

    def ready(self, cell: Cell) -> bool:
        """Whether its ELBO solution is there."""
        start = self._start(cell)
        return start == cell or start in self.store

    def obstacle(self, cell: Cell) -> str | None:
        """Why its ELBO solution could not be had, if so."""
        start = self._start(cell)
        if start == cell or start.key not in self._failed:
            return None
        return f"The ELBO run that it starts from failed: {self._failed[start.key].reason}"

    def known(self, cell: Cell) -> bool:
        """Never: nobody else has the store open."""
        return False

    def call(self, cell: Cell) -> Call:
        """Train on its rows, from the ELBO solution that it starts from."""
        start = self._start(cell)
        elbo = b"" if start == cell else self.store.model(start)
        return run_cell, (cell, CellData.of(self.problem, cell), elbo)

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Keep a result, or remember that there is none."""
        if isinstance(result, Finished):
            self.store.put(cell, result)
        else:
            self._failed[cell.key] = FailedCell(cell, result.reason)
        self.watcher.finished(cell, result)

    def looking(self, active: Sequence[Activity]) -> None:
        """Pass it on."""
        self.watcher.looking(active)

    def _start(self, cell: Cell) -> Cell:
        """The cell that this one starts from: the ELBO of its split, or itself."""
        if not needs_elbo(METHODS[cell.method]):
            return cell
        return self.plan.cell(ELBO, cell.repeat, cell.size)


def _machine(device: str, workers: int) -> str:
    """Where it was run, in words."""
    fits = "one fit at a time" if workers <= 1 else f"{workers} fits at once"
    where = f"{platform.system()} {platform.machine()}, {fits}"
    if device == "cpu":
        return f"{where}, one core each" if workers > 1 else where
    import torch

    return f"{where} on {torch.cuda.get_device_name()}"
