"""Run jobs in this process or in worker processes."""

import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any, Protocol, final, runtime_checkable

import torch
from threadpoolctl import threadpool_limits
from typing_extensions import override

from directgp.errors import DirectGPError, require
from directgp.training.callbacks import Monitor
from directgp.training.result import Progress

_FIELDS = 5


@final
@dataclass(frozen=True)
class Activity:
    """Where a worker is."""

    cell: int
    """Number of the cell among those to be run."""

    run: int
    """Number of the run in it: the ELBO has one, a path of β many."""

    step: int
    max_steps: int
    loss: float
    """Objective, as a mean over the examples."""


@final
class Board:
    """One place a worker. What is read may be a step old, or in part a step older."""

    def __init__(self, places: int, context: SpawnContext | None = None) -> None:
        context = context or multiprocessing.get_context("spawn")
        self._values: MutableSequence[float] = context.RawArray("d", [-1.0] * (places * _FIELDS))
        self.places = places

    def show(self, place: int, activity: Activity) -> None:
        """Say where the worker of a place is."""
        at = place * _FIELDS
        for offset, value in enumerate(
            (activity.cell, activity.run, activity.step, activity.max_steps, activity.loss)
        ):
            self._values[at + offset] = float(value)

    def clear(self, place: int) -> None:
        """Say that the worker of a place has nothing to do."""
        self._values[place * _FIELDS] = -1.0

    def read(self) -> list[Activity]:
        """The workers that have something to do."""
        found = []
        for at in range(0, self.places * _FIELDS, _FIELDS):
            cell, run, step, most, loss = self._values[at : at + _FIELDS]
            if cell >= 0:
                found.append(Activity(int(cell), int(run), int(step), int(most), loss))
        return found


@runtime_checkable
class Wish(Protocol):
    """That work should end; an event of processes or threads is one."""

    def is_set(self) -> bool:
        """Whether somebody has it."""


class Desk(ABC):
    """Where a worker says what it is at, and hears whether it should end."""

    @abstractmethod
    def show(self, activity: Activity) -> None:
        """Say where the worker is."""

    @abstractmethod
    def clear(self) -> None:
        """Say that it has nothing to do."""

    @abstractmethod
    def interrupted(self) -> bool:
        """Whether nobody waits for the result any more."""


@final
@dataclass(frozen=True)
class BoardDesk(Desk):
    """A place on a board in memory."""

    board: Board
    place: int
    stop: Wish | None = None

    @override
    def show(self, activity: Activity) -> None:
        self.board.show(self.place, activity)

    @override
    def clear(self) -> None:
        self.board.clear(self.place)

    @override
    def interrupted(self) -> bool:
        return self.stop is not None and self.stop.is_set()


_BETWEEN_LOOKS = 0.2
"""Seconds between two looks at whether anybody still waits for the result."""

_GRACE = 3.0
"""Seconds in which work may end by itself."""


@final
class StoppedError(DirectGPError):
    """The program that waited for the result was interrupted."""


@final
@dataclass(frozen=True)
class Refused:
    """A job that could not be run, and why."""

    reason: str


@final
@dataclass(eq=False)
class Watch(Monitor):
    """Shows each step at the desk; ends the work when nobody waits for it any more."""

    desk: Desk
    cell: int
    _run: int = field(default=0, init=False)
    _last: float = field(default=-1.0, init=False)

    @override
    def __call__(self, progress: Progress) -> None:
        """Show the step."""
        here = Activity(self.cell, self._run, progress.step, progress.max_steps, progress.loss)
        self.desk.show(here)
        if time.monotonic() - self._last > _BETWEEN_LOOKS:
            self._last = time.monotonic()
            self._look()

    @override
    def reset(self) -> None:
        """Another run of the cell begins."""
        self._run += 1

    def _look(self) -> None:
        if self.desk.interrupted():
            raise StoppedError("The run was interrupted.")


_desk: list[Desk] = []
"""Of this process, set when it begins."""


def begin(board: Board, next_place: Any, stop: Event, parent: int) -> None:
    """Set a process up: one thread, a place on the board, and Ctrl-C left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    on_one_thread()
    with next_place.get_lock():
        place, next_place.value = next_place.value, next_place.value + 1
    _desk[:] = [BoardDesk(board, place % board.places, stop)]
    threading.Thread(target=_end_with, args=(parent, stop), daemon=True).start()


def on_one_thread() -> None:
    """Leave the other cores to the other workers; results do not depend on how many there are."""
    torch.set_num_threads(1)
    # numpy and scipy have threads of their own, which wait by spinning.
    threadpool_limits(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """The same for a while, in a process that has other things to do as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _end_with(parent: int, stop: Event) -> None:
    """End this process when its parent was killed, or does not want the result any more.

    Work that looks up sees that by itself; work that does not is given a few seconds.
    """
    while os.getppid() == parent and not stop.is_set():
        time.sleep(_BETWEEN_LOOKS)
    if os.getppid() == parent:
        time.sleep(_GRACE)
    os._exit(1)


def work(number: int, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run a job in this process."""
    return work_at(_desk[0], number, function, arguments)


def work_at(desk: Desk, number: int, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What the function returns, or `Refused`."""
    desk.show(Activity(number, 1, 0, 0, float("nan")))
    try:
        return function(*arguments, monitors=(Watch(desk, number),))
    except StoppedError:
        raise
    except DirectGPError as error:
        return Refused(str(error))
    except Exception as error:
        # One fit that fails unexpectedly must not take the others with it.
        return Refused(f"{type(error).__name__}: {error}")
    finally:
        desk.clear()


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that begin in this block do not hear Ctrl-C, not even before they ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@final
@dataclass
class CtrlC:
    """Whether it was pressed."""

    pressed: bool = False

    def is_set(self) -> bool:
        """Whether work should end."""
        return self.pressed

    def press(self, number: int, frame: FrameType | None) -> None:
        """Ask work to end; who presses twice does not want to wait."""
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


@contextmanager
def hearing_ctrl_c() -> Iterator[CtrlC]:
    """Ctrl-C asks the work in this block to end, and is raised at its end.

    Raised at once, a training would take it for a wish to end early with what it has.
    """
    heard = CtrlC()
    # Only the main thread hears signals, and what was told to ignore them goes on doing so.
    hears = threading.current_thread() is threading.main_thread()
    if not hears or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield heard
        return
    signal.signal(signal.SIGINT, heard.press)
    try:
        yield heard
    except StoppedError as error:
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if heard.pressed:
        raise KeyboardInterrupt


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of the top level of a module, and its arguments but for `monitors`."""


@final
@dataclass(frozen=True, eq=False)
class Shared:
    """An argument that many jobs have in common: it travels to each machine once."""

    value: Any


def plain(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments as the function takes them."""
    return tuple(each.value if isinstance(each, Shared) else each for each in arguments)


class OpenPool(ABC):
    """Workers that are there."""

    @abstractmethod
    def places(self) -> int:
        """Jobs that can be under way at once, as things are now."""

    @abstractmethod
    def submit(self, number: int, call: Call) -> Future[Any]:
        """Begin a job; its result is that of the function, or `Refused`."""

    @abstractmethod
    def activities(self) -> list[Activity]:
        """What the workers are at."""


class Pool(ABC):
    """A choice of workers."""

    @abstractmethod
    def open(self) -> AbstractContextManager[OpenPool]:
        """Have them there, and let them go at the end of the block."""

    def after_a_loss(self) -> "Pool":
        """What to go on with when the system has ended a worker."""
        return self


@final
@dataclass(frozen=True)
class InProcess(Pool):
    """No workers but this process: for tests, for a debugger, and where nothing else can be."""

    @override
    @contextmanager
    def open(self) -> Iterator[OpenPool]:
        # As in a process of its own, so that results do not depend on where they come from.
        with one_thread():
            yield _Here(Board(1))


@final
@dataclass(frozen=True)
class Processes(Pool):
    """Processes of this machine, each on one core.

    Parameters
    ----------
    workers : int
        How many.
    """

    workers: int

    def __post_init__(self) -> None:
        require(self.workers >= 1, "workers", "at least 1", self.workers)

    @override
    @contextmanager
    def open(self) -> Iterator[OpenPool]:
        context = multiprocessing.get_context("spawn")
        board, stop = Board(self.workers, context), context.Event()
        settings = (board, context.Value("i", 0), stop, os.getpid())
        executor = ProcessPoolExecutor(self.workers, context, initializer=begin, initargs=settings)
        try:
            yield _Executed(executor, board)
        finally:
            stop.set()
            executor.shutdown(wait=True, cancel_futures=True)

    @override
    def after_a_loss(self) -> "Processes":
        """One at a time, so that the one that asks too much is found."""
        return Processes(1)


def local(workers: int) -> Pool:
    """So many processes; 0 is none but this one."""
    return InProcess() if workers == 0 else Processes(workers)


@final
@dataclass(frozen=True)
class _Here(OpenPool):
    """Runs what is submitted at once."""

    board: Board

    @override
    def places(self) -> int:
        return 1

    @override
    def submit(self, number: int, call: Call) -> Future[Any]:
        """Ctrl-C ends the work; its result, of a training that was cut short, is let go."""
        future: Future[Any] = Future()
        with hearing_ctrl_c() as stop:
            desk = BoardDesk(self.board, 0, stop)
            future.set_result(work_at(desk, number, call[0], plain(call[1])))
        return future

    @override
    def activities(self) -> list[Activity]:
        return self.board.read()


@final
@dataclass(frozen=True)
class _Executed(OpenPool):
    """Hands jobs to processes, which write on a board in memory."""

    executor: ProcessPoolExecutor
    board: Board

    @override
    def places(self) -> int:
        return self.board.places

    @override
    def submit(self, number: int, call: Call) -> Future[Any]:
        with deaf_to_ctrl_c():
            return self.executor.submit(work, number, call[0], plain(call[1]))

    @override
    def activities(self) -> list[Activity]:
        return self.board.read()
