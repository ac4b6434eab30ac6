"""Run jobs on a Ray cluster."""

import importlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final
from urllib.parse import urlsplit

from typing_extensions import override

from directgp.environment import cores
from directgp.errors import InvalidInputError, refuse, require, require_extra
from directgp.experiments.workers import (
    Call,
    FailedJob,
    OpenPool,
    Pool,
    WorkerStatus,
    limit_threads,
    run_job,
)

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Messages about lost workers would fill the terminal.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # A job that needs too much memory is not retried without end.
    "RAY_task_oom_retries": "3",
}

_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Options of Ray for no output on the terminal."""

_CONNECT_TIMEOUT = 5.0
"""Seconds to wait for the head of a cluster."""


def import_ray() -> Any:
    """Import Ray, an optional dependency."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    require_extra("The engine 'ray'", "cluster", "ray")
    return importlib.import_module("ray")


@contextmanager
def connected(address: str | None, num_cpus: int) -> Iterator[Any]:
    """Yield Ray, connected to the cluster of this program, of an address, or to a new one.

    After the block a connection is closed, and a cluster that was started here is shut down.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        if address is None:
            with _same_path(), _same_termination():
                # None would join any cluster that runs on this machine.
                ray.init("local", num_cpus=num_cpus, include_dashboard=False, **_QUIET)
        else:
            if address != "auto":
                check_address(address)
            with _same_termination():
                ray.init(address, **_QUIET)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(_connection_error(address, error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _same_path() -> Iterator[None]:
    """Give processes started in this block the import path of this process."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part or os.getcwd() for part in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _same_termination() -> Iterator[None]:
    """Restore what SIGTERM does: Ray's own handler prints its stack and aborts."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Signals belong to the main thread, and None is a handler of another language.
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def _connection_error(address: str | None, error: Exception) -> str:
    """Return an error message: why there is no cluster, and what to do."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    what = getattr(error, "strerror", None) or lines[0].rstrip(".")
    if address is None:
        return (
            f"Ray could not be started on this machine: {what}. Use the engine 'local', or give "
            "the address of a cluster."
        )
    remedy = "Start one with 'ray start --head', or leave the address out for one of this machine."
    # Ray names an authentication error as a cause only.
    cause: BaseException | None = error
    while cause is not None:
        if "AuthenticationError" in f"{type(cause).__name__} {cause}":
            remedy = "It asks for a token: set RAY_AUTH_MODE=token, and see Ray's documentation."
        cause = cause.__cause__
    return f"The Ray cluster {address} could not be reached: {what}. {remedy}"


def check_address(address: str) -> None:
    """Raise unless the address accepts connections: Ray itself would wait for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        where = parts.hostname, parts.port
    except ValueError:
        where = None, None
    if where[0] is None or where[1] is None:
        refuse("address", "'auto' or host:port of a Ray cluster", repr(address))
    socket.create_connection((where[0], where[1]), timeout=_CONNECT_TIMEOUT).close()


_REPORT_INTERVAL = 0.5
"""Seconds between two reports of a worker."""

_RESOURCE_INTERVAL = 5.0
"""Seconds between two reads of the size of the cluster."""

_SHARED_KEPT = 3
"""Problems kept in the object store of the cluster."""


@final
class StatusActor:
    """A Ray actor that holds the statuses of all workers."""

    def __init__(self) -> None:
        self._statuses: dict[int, WorkerStatus | None] = {}

    def write(self, job: int, status: WorkerStatus | None) -> None:
        """Store the status of a job; None at its end."""
        self._statuses[job] = status

    def read(self) -> list[WorkerStatus]:
        """Return the statuses of the running jobs."""
        return [status for status in self._statuses.values() if status is not None]


@final
@dataclass(frozen=True)
class RayCluster(Pool):
    """Workers of a Ray cluster.

    A job whose worker or machine is lost is run again elsewhere. Each job has one thread and the
    same result as in a local process.

    Parameters
    ----------
    address : str
        host:port of the head, or "auto"; None starts a cluster on this machine, unless this
        program is connected to one.
    workers : int
        Number of jobs at once on a cluster that is started; None is one per core.
    cpus : float
        Cores per job.
    gpus : float
        GPUs per job: 0.25 lets four jobs share one.
    retries : int
        Number of retries of a job whose worker was lost.
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
    def open(self, deadline: float = math.inf) -> Iterator[OpenPool]:
        # Cores of a cluster that is started here.
        num_cpus = math.ceil((self.workers or cores()) * self.cpus)
        with connected(self.address, num_cpus) as ray:
            pool = _OpenCluster(ray, self)
            try:
                yield pool
            finally:
                pool.cancel()


@final
class _OpenCluster(OpenPool):
    """Submits as many jobs to Ray as the cluster has resources for."""

    def __init__(self, ray: Any, needs: RayCluster) -> None:
        self.ray = ray
        self.needs = needs
        resources = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": needs.retries}
        self._run_job = ray.remote(**resources)(run_ray_job)
        # A problem is sent once while its reference is kept.
        self._reference = lru_cache(_SHARED_KEPT)(ray.put)
        self._actor = ray.remote(num_cpus=0, max_restarts=-1)(StatusActor).remote()
        self._running: dict[int, Any] = {}
        self._capacity = 0
        self._capacity_read = -math.inf
        self._reading: Future[Any] | None = None
        self._statuses: list[WorkerStatus] = []
        if self._read_capacity() < 1:
            has = ray.cluster_resources()
            raise InvalidInputError(
                f"The Ray cluster has no resources for a cell: it needs cpus={needs.cpus:g} and "
                f"gpus={needs.gpus:g}, and there are {has.get('CPU', 0):g} and "
                f"{has.get('GPU', 0):g} in all. Ask for less, or add machines."
            )

    @override
    def capacity(self) -> int:
        """Return the number of jobs at once; it is read again, since machines come and go."""
        if time.monotonic() - self._capacity_read > _RESOURCE_INTERVAL:
            self._capacity = max(1, self._read_capacity())
            self._capacity_read = time.monotonic()
        return self._capacity

    def _read_capacity(self) -> int:
        has = self.ray.cluster_resources()
        needed = {"CPU": self.needs.cpus, "GPU": self.needs.gpus}
        # Add a little, so that rounding does not make ten tenths less than 1.
        jobs = (has.get(kind, 0.0) / much + 1e-9 for kind, much in needed.items() if much > 0)
        return int(min(jobs))

    @override
    def submit(self, number: int, call: Call) -> Future[Any]:
        problem = self._reference(call.problem)
        task = self._run_job.remote(self._actor, number, replace(call, problem=None), problem)
        self._running[number] = task
        answer: Future[Any] = Future()
        task.future().add_done_callback(lambda done: self._resolve(number, done, answer))
        return answer

    def _resolve(self, number: int, done: Future[Any], answer: Future[Any]) -> None:
        self._running.pop(number, None)
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
            return
        reason = (str(error).strip().splitlines() or [""])[-1].strip()
        if not isinstance(error, self.ray.exceptions.RayTaskError):
            times = "once" if self.needs.retries == 0 else f"{self.needs.retries + 1} times"
            lost = f"Its worker was lost {times}, perhaps for lack of memory."
            reason = f"{lost} Ray says: {reason}"
        answer.set_result(FailedJob(reason))

    @override
    def statuses(self) -> list[WorkerStatus]:
        """Return the statuses of the last read, which is repeated without waiting."""
        if self._reading is not None and self._reading.done():
            self._statuses = [] if self._reading.exception() else self._reading.result()
            self._reading = None
        if self._reading is None:
            self._reading = self._actor.read.remote().future()
        return [status for status in self._statuses if status.job in self._running]

    def cancel(self) -> None:
        """Cancel the running jobs and end the actor."""
        for task in list(self._running.values()):
            self.ray.cancel(task, force=True)
        self.ray.kill(self._actor)


def run_ray_job(actor: Any, number: int, call: Call, problem: Any) -> Any:
    """Run a job in a Ray worker, on one thread."""
    limit_threads()
    last = -math.inf

    def publish(status: WorkerStatus | None) -> None:
        # From time to time, without waiting for the actor.
        nonlocal last
        if status is None or time.monotonic() - last > _REPORT_INTERVAL:
            last = time.monotonic()
            actor.write.remote(number, status)

    # Ray itself ends the workers of a program that is gone.
    return run_job(number, call.function, replace(call, problem=problem).arguments, publish)
