"""Run jobs in this process or in worker processes."""

import math
import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any, NamedTuple, final

import torch
from threadpoolctl import threadpool_limits
from typing_extensions import override

from directgp.errors import DirectGPError, require
from directgp.numerics.arrays import one_thread, require_buffers
from directgp.processes import block_interrupt, interrupt, start_server, worker_context
from directgp.training.result import Progress
from directgp.training.run import Monitor

_POLL = 0.2
"""Seconds between two checks of the stop event."""

_GRACE = 3.0
"""Seconds in which a worker may end by itself after the stop event."""


class WorkerStatus(NamedTuple):
    """The progress of one worker."""

    job: int
    """Number of the job."""

    run: int
    """Number of the training run within the job; a path of β has many."""

    step: int
    """Steps of the run so far."""

    max_steps: int
    """Steps after which the run ends."""

    loss: float
    """Objective, as a mean over the examples."""


_IDLE = (-1.0,) * 5
"""Numbers of an idle worker."""

_FIELDS = len(_IDLE)
"""Numbers of one worker."""

Slots = Any
"""Shared memory, an array of floats with `_FIELDS` numbers per worker."""


def status_slots(workers: int) -> Slots:
    """Return slots for idle workers."""
    return worker_context().RawArray("d", _IDLE * workers)


def read_statuses(slots: Slots) -> list[WorkerStatus]:
    """Return the statuses of the busy workers; one may be a step old."""
    rows = (slots[at : at + _FIELDS] for at in range(0, len(slots), _FIELDS))
    return [
        WorkerStatus(int(job), int(run), int(step), int(max_steps), loss)
        for job, run, step, max_steps, loss in rows
        if job >= 0
    ]


def write_status(slots: Slots, slot: int, status: WorkerStatus | None) -> None:
    """Write the status of a worker to its slot; None means idle."""
    at = slot * _FIELDS
    slots[at : at + _FIELDS] = _IDLE if status is None else status


@final
class StoppedError(DirectGPError):
    """The program that waits for the result was interrupted, or its time was spent."""


class FailedJob(NamedTuple):
    """The result of a job that failed."""

    reason: str
    """Why it failed."""


Publish = Callable[[WorkerStatus | None], None]
"""Receives the status of a job; None at its end."""


@final
@dataclass(eq=False)
class StatusMonitor(Monitor):
    """Publishes each training step; raises `StoppedError` when the job is to stop."""

    job: int
    """Number of the job."""

    publish: Publish
    """Receives the status after every step."""

    is_stopped: Callable[[], bool]
    """Whether the job is to stop."""

    _run: int = field(default=0, init=False)
    """Number of the training run."""

    _last_check: float = field(default=-1.0, init=False)
    """Time of the last call of `is_stopped`."""

    @override
    def __call__(self, progress: Progress) -> None:
        self.publish(
            WorkerStatus(self.job, self._run, progress.step, progress.max_steps, progress.loss)
        )
        if time.monotonic() - self._last_check > _POLL:
            self._last_check = time.monotonic()
            if self.is_stopped():
                raise StoppedError("The run was stopped.")

    @override
    def reset(self) -> None:
        self._run += 1


@final
@dataclass(frozen=True, eq=False)
class Call:
    """The call of a job: ``function(cell, rows(cell, problem), model, monitors=...)``.

    Worker processes receive only their rows; a cluster receives the problem once per machine. The
    functions are defined at the top level of a module.
    """

    function: Callable[..., Any]
    """Runs the cell."""

    cell: Any
    """The cell."""

    rows: Callable[[Any, Any], Any]
    """Returns the rows of the cell, given cell and problem."""

    problem: Any
    """The data."""

    model: bytes = b""
    """The trained model that the cell starts from."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments without `monitors`."""
        return self.cell, self.rows(self.cell, self.problem), self.model


def run_job(
    number: int,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    publish: Publish,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Any:
    """Return the result of the function, or `FailedJob`."""
    publish(WorkerStatus(number, 1, 0, 0, float("nan")))
    try:
        return function(*arguments, monitors=(StatusMonitor(number, publish, is_stopped),))
    except StoppedError:
        raise
    except DirectGPError as error:
        return FailedJob(str(error))
    except Exception as error:
        # An unexpected error fails this job and leaves the others running.
        return FailedJob(f"{type(error).__name__}: {error}")
    finally:
        publish(None)


_worker: dict[str, Callable[..., Any]] = {}
"""`publish` and `is_stopped` of this worker process, set when it starts."""


def _start_worker(slots: Slots, next_slot: Any, stop: Event) -> None:
    """Set up a worker process: one thread, a status slot, Ctrl-C left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_threads()
    with next_slot.get_lock():
        slot = next_slot.value
        next_slot.value += 1
    publish = partial(write_status, slots, slot % (len(slots) // _FIELDS))
    _worker.update(publish=publish, is_stopped=stop.is_set)
    threading.Thread(target=_exit_with_parent, args=(stop,), daemon=True).start()


def _exit_with_parent(stop: Event) -> None:
    """End this process when its parent was killed, or a few seconds after the stop event."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    while not stop.is_set():
        parent.join(_POLL)
        if not parent.is_alive():
            os._exit(1)
    parent.join(_GRACE)
    os._exit(1)


def _run_in_worker(number: int, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return run_job(number, function, arguments, **_worker)


def limit_threads() -> None:
    """Use one thread in this process; so results do not depend on the number of workers."""
    torch.set_num_threads(1)
    # numpy and scipy have their own threads, which wait by spinning.
    threadpool_limits(1)


@contextmanager
def defer_interrupt() -> Iterator[threading.Event]:
    """Set the event on Ctrl-C, and raise `KeyboardInterrupt` at the end of the block.

    Training would take an immediate `KeyboardInterrupt` as a request to end early with its current
    result. A second Ctrl-C raises at once.
    """
    stop = threading.Event()
    # Signals arrive in the main thread only, and a handler set by others is left in place.
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not in_main or before not in (signal.default_int_handler, interrupt):
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    except StoppedError as error:
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGINT, before)
    if stop.is_set():
        raise KeyboardInterrupt


class OpenPool(ABC):
    """Running workers."""

    @abstractmethod
    def capacity(self) -> int:
        """Return the number of jobs that can run at once."""

    @abstractmethod
    def submit(self, number: int, call: Call) -> Future[Any]:
        """Start a job; return a future with the result of the function, or `FailedJob`."""

    @abstractmethod
    def statuses(self) -> list[WorkerStatus]:
        """Return the statuses of the busy workers."""


class Pool(ABC):
    """A choice of workers."""

    @abstractmethod
    def open(self, deadline: float = math.inf) -> AbstractContextManager[OpenPool]:
        """Start the workers, and end them after the block.

        A job in this process stops at the deadline, by the monotonic clock, with `StoppedError`;
        workers elsewhere are ended by leaving the block.
        """

    def after_loss(self) -> "Pool":
        """Return the pool that retries the jobs interrupted when the system killed a worker."""
        return self


@final
@dataclass(frozen=True)
class InProcess(Pool):
    """Run cells one after another in this process; the default of `compare`."""

    @override
    @contextmanager
    def open(self, deadline: float = math.inf) -> Iterator[OpenPool]:
        with one_thread():
            yield _LocalPool(status_slots(1), deadline=deadline)


@final
@dataclass(frozen=True)
class LocalWorkers(Pool):
    """Processes of this machine, each on one core."""

    workers: int
    """Number of processes."""

    def __post_init__(self) -> None:
        require(self.workers >= 1, "workers", "at least 1", self.workers)

    @override
    @contextmanager
    def open(self, deadline: float = math.inf) -> Iterator[OpenPool]:
        # An executor waits for ever for threads that cannot be started.
        require_buffers()
        start_server()
        context = worker_context()
        slots = status_slots(self.workers)
        stop = context.Event()
        settings = (slots, context.Value("i", 0), stop)
        executor = ProcessPoolExecutor(
            self.workers, context, initializer=_start_worker, initargs=settings
        )
        try:
            yield _LocalPool(slots, executor)
        finally:
            try:
                stop.set()
                executor.shutdown(wait=True, cancel_futures=True)
            except BaseException:
                # Kill: a worker that is being started would print that its arguments are gone.
                for worker in list((executor._processes or {}).values()):
                    worker.kill()
                raise

    @override
    def after_loss(self) -> "LocalWorkers":
        """Return a single worker, so that the job that needs too much memory is identified."""
        return LocalWorkers(1)


@final
@dataclass(frozen=True)
class _LocalPool(OpenPool):
    """Passes jobs to processes, or runs each in this process when it is submitted."""

    slots: Slots
    """Statuses of the workers."""

    executor: ProcessPoolExecutor | None = None
    """The processes; None for this process."""

    deadline: float = math.inf
    """Time at which a job in this process stops, by the monotonic clock."""

    @override
    def capacity(self) -> int:
        return len(self.slots) // _FIELDS

    @override
    def statuses(self) -> list[WorkerStatus]:
        return read_statuses(self.slots)

    @override
    def submit(self, number: int, call: Call) -> Future[Any]:
        function = call.function
        arguments = call.arguments
        if self.executor is not None:
            # Block Ctrl-C, which another thread may receive: the executor must list the worker.
            with block_interrupt(), defer_interrupt():
                return self.executor.submit(_run_in_worker, number, function, arguments)
        future: Future[Any] = Future()
        publish = partial(write_status, self.slots, 0)
        with defer_interrupt() as stop:

            def is_stopped() -> bool:
                return stop.is_set() or time.monotonic() > self.deadline

            try:
                future.set_result(run_job(number, function, arguments, publish, is_stopped))
            except StoppedError as error:
                if stop.is_set():
                    raise
                future.set_exception(error)
        return future
