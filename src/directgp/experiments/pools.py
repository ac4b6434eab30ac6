"""Where jobs are run: in this process, or in processes of their own."""

import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from directgp.errors import require
from directgp.experiments.board import Activity, Board, BoardDesk
from directgp.experiments.interrupts import deaf_to_ctrl_c, hearing_ctrl_c
from directgp.experiments.worker import begin, one_thread, work, work_at

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
