"""Runs jobs side by side, each when what it starts from is there."""

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, final, runtime_checkable

from directgp.errors import DirectGPError, StoreError
from directgp.experiments.board import Activity
from directgp.experiments.pools import Call, OpenPool, Pool
from directgp.experiments.worker import Refused

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
