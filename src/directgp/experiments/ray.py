"""Run jobs on a Ray cluster."""

import importlib
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final
from urllib.parse import urlsplit

from typing_extensions import override

from directgp.errors import InvalidInputError, refuse, require
from directgp.experiments.workers import (
    Activity,
    Call,
    Desk,
    OpenPool,
    Pool,
    Refused,
    Shared,
    on_one_thread,
    work_at,
)

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # What Ray has to say of workers that are lost would fill the terminal.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # A job that asks for too much memory is not tried for ever.
    "RAY_task_oom_retries": "3",
}

_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}

_SECONDS_TO_ANSWER = 5.0


def import_ray() -> Any:
    """The package, which is no dependency of directgp."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            "The engine 'ray' needs Ray: pip install 'directgp[cluster]'."
        ) from error


@contextmanager
def connected(address: str | None, num_cpus: int) -> Iterator[Any]:
    """Ray, with a cluster: that of this program, that of an address, or one that is started.

    What was started is ended, and what was connected to is left, at the end of the block.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if address is None:
        _start(ray, num_cpus)
    else:
        _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, num_cpus: int) -> None:
    with _same_path():
        try:
            # Not None, which would join a cluster that happens to be there.
            ray.init("local", num_cpus=num_cpus, include_dashboard=False, **_QUIET)
        except Exception as error:
            raise InvalidInputError(
                f"Ray could not be started on this machine: {_first_line(error)}. Use the engine "
                "'local', or give the address of a cluster."
            ) from error


@contextmanager
def _same_path() -> Iterator[None]:
    """Processes that are started in this block find the modules that this one finds."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part or os.getcwd() for part in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _connect(ray: Any, address: str) -> None:
    try:
        if address != "auto":
            _knock(address)
        ray.init(address, **_QUIET)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The Ray cluster {address} could not be reached: {_first_line(error)}. "
            f"{_remedy(error)}"
        ) from error


def _remedy(error: BaseException | None) -> str:
    """What to do: Ray says only in a cause that it was not let in."""
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__} {error}":
            return "It asks for a token: set RAY_AUTH_MODE=token, and see Ray's documentation."
        error = error.__cause__
    return "Start one with 'ray start --head', or leave the address out for one of this machine."


def _knock(address: str) -> None:
    """See that somebody answers: Ray itself would wait for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        where = parts.hostname, parts.port
    except ValueError:
        where = None, None
    if where[0] is None or where[1] is None:
        refuse("address", "'auto' or host:port of a Ray cluster", repr(address))
    socket.create_connection((where[0], where[1]), timeout=_SECONDS_TO_ANSWER).close()


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


_BETWEEN_NOTICES = 0.5
"""Seconds between two notices of a worker."""


@final
class Noticeboard:
    """One notice a cell; lives in a process of its own."""

    def __init__(self) -> None:
        self._notices: dict[int, Activity] = {}

    def show(self, activity: Activity) -> None:
        """Post where the worker of a cell is."""
        self._notices[activity.cell] = activity

    def clear(self, cell: int) -> None:
        """Take the notice of a cell down."""
        self._notices.pop(cell, None)

    def read(self) -> list[Activity]:
        """All notices."""
        return list(self._notices.values())


@final
@dataclass
class PostingDesk(Desk):
    """Posts to the noticeboard now and then, and waits for no answer."""

    board: Any
    """Ray's handle of a `Noticeboard`."""

    cell: int
    _last: float = field(default=-1.0, init=False)

    @override
    def show(self, activity: Activity) -> None:
        if time.monotonic() - self._last > _BETWEEN_NOTICES:
            self._last = time.monotonic()
            self.board.show.remote(activity)

    @override
    def clear(self) -> None:
        self.board.clear.remote(self.cell)

    @override
    def interrupted(self) -> bool:
        """Never: Ray ends the workers of a program that is gone."""
        return False


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
