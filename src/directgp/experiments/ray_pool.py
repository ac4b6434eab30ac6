"""Jobs on a Ray cluster: one of this machine, or one that is there."""

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from typing_extensions import override

from directgp.errors import InvalidInputError, require
from directgp.experiments.board import Activity
from directgp.experiments.noticeboard import Noticeboard, PostingDesk
from directgp.experiments.pools import Call, OpenPool, Pool, Shared
from directgp.experiments.ray_connection import connected
from directgp.experiments.worker import Refused, on_one_thread, work_at

_BETWEEN_COUNTS = 5.0
"""Seconds between two looks at how large the cluster is."""

_SHARED_KEPT = 3


@final
@dataclass(frozen=True)
class RayCluster(Pool):
    """Workers of a Ray cluster.

    A job whose worker or machine is lost is run again elsewhere. Each job has one thread, as with
    local processes, and the same result.

    Parameters
    ----------
    address : str
        host:port of the head, or "auto"; None starts a cluster on this machine, unless this
        program is connected to one.
    workers : int
        Jobs at once on a cluster that is started; None is one a core.
    cpus : float
        Cores that a job needs.
    gpus : float
        GPUs that a job needs: 0.25 lets four share one.
    retries : int
        How often a job that was lost is run again.
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        require(self.cpus > 0, "cpus", "more than 0", self.cpus)
        require(self.gpus >= 0, "gpus", "at least 0", self.gpus)
        require(self.retries >= 0, "retries", "at least 0", self.retries)
        require(self.workers is None or self.workers >= 1, "workers", "at least 1", self.workers)

    @override
    @contextmanager
    def open(self) -> Iterator[OpenPool]:
        with connected(self.address, self._cores()) as ray:
            pool = _OnRay(ray, self)
            try:
                yield pool
            finally:
                pool.cancel()

    def _cores(self) -> int:
        """Of a cluster that is started."""
        workers = self.workers or os.cpu_count() or 1
        return math.ceil(workers * self.cpus)


@final
@dataclass
class _OnRay(OpenPool):
    """Hands jobs to Ray, as many as the cluster has room for."""

    ray: Any
    needs: RayCluster
    _work: Any = field(init=False)
    _board: Any = field(init=False)
    _running: dict[int, Any] = field(default_factory=dict, init=False)
    _shared: dict[int, tuple[Shared, Any]] = field(default_factory=dict, init=False)
    _places: int = field(default=0, init=False)
    _counted: float = field(default=-math.inf, init=False)
    _reading: Future[Any] | None = field(default=None, init=False)
    _read: list[Activity] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        needs = self.needs
        self._work = self.ray.remote(
            num_cpus=needs.cpus, num_gpus=needs.gpus, max_retries=needs.retries
        )(work_posted)
        self._board = self.ray.remote(num_cpus=0, max_restarts=-1)(Noticeboard).remote()
        if self._room() < 1:
            has = self.ray.cluster_resources()
            raise InvalidInputError(
                f"The Ray cluster has no room for a cell: it needs cpus={needs.cpus:g} and "
                f"gpus={needs.gpus:g}, and there are {has.get('CPU', 0):g} and "
                f"{has.get('GPU', 0):g} in all. Ask for less, or add machines."
            )

    @override
    def places(self) -> int:
        """Looked up again from time to time: machines come and go."""
        if time.monotonic() - self._counted > _BETWEEN_COUNTS:
            self._places, self._counted = max(1, self._room()), time.monotonic()
        return self._places

    def _room(self) -> int:
        has = self.ray.cluster_resources()
        needed = {"CPU": self.needs.cpus, "GPU": self.needs.gpus}
        # A little more, so that ten tenths are one.
        rooms = (has.get(kind, 0.0) / much + 1e-9 for kind, much in needed.items() if much > 0)
        return int(min(rooms))

    @override
    def submit(self, number: int, call: Call) -> Future[Any]:
        function, arguments = call
        sent = (self._sent(each) for each in arguments)
        task = self._work.remote(self._board, number, function, *sent)
        self._running[number] = task
        answer: Future[Any] = Future()
        task.future().add_done_callback(lambda done: self._hand_on(number, done, answer))
        return answer

    def _sent(self, argument: Any) -> Any:
        """What many jobs share goes to the cluster once; the last few are remembered."""
        if not isinstance(argument, Shared):
            return argument
        key = id(argument.value)
        known = self._shared.pop(key, None)
        self._shared[key] = known or (argument, self.ray.put(argument.value))
        for oldest in list(self._shared)[:-_SHARED_KEPT]:
            del self._shared[oldest]
        return self._shared[key][1]

    def _hand_on(self, number: int, done: Future[Any], answer: Future[Any]) -> None:
        self._running.pop(number, None)
        error = done.exception()
        answer.set_result(done.result() if error is None else Refused(self._reason(error)))

    def _reason(self, error: BaseException) -> str:
        last = (str(error).strip().splitlines() or [""])[-1].strip()
        if isinstance(error, self.ray.exceptions.RayTaskError):
            return last
        times = "once" if self.needs.retries == 0 else f"{self.needs.retries + 1} times"
        return f"Its worker was lost {times}, perhaps for lack of memory. Ray says: {last}"

    @override
    def activities(self) -> list[Activity]:
        """As they were a moment ago."""
        if self._reading is not None and self._reading.done():
            self._read = [] if self._reading.exception() else self._reading.result()
            self._reading = None
        if self._reading is None:
            self._reading = self._board.read.remote().future()
        return [each for each in self._read if each.cell in self._running]

    def cancel(self) -> None:
        """End what is under way, and the noticeboard."""
        for task in list(self._running.values()):
            self.ray.cancel(task, force=True)
        self.ray.kill(self._board)


def work_posted(board: Any, number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a job in a process of Ray's, on one thread."""
    on_one_thread()
    return work_at(PostingDesk(board, number), number, function, arguments)
