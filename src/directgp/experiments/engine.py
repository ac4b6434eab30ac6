"""Runs cells side by side, each after the one it starts from."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

from typing_extensions import override

from directgp.experiments.board import Activity, Board
from directgp.experiments.cells import Cell
from directgp.experiments.results import Finished
from directgp.experiments.training_rows import CellData
from directgp.experiments.worker import Desk, Refused, begin, work, work_at

_TICK = 0.25
"""Seconds between two looks at the board."""

Work = Callable[[Cell, int, CellData, bytes], Finished | Refused]


@runtime_checkable
class Client(Protocol):
    """Knows the cells: what they need, and what to do with their results."""

    def ready(self, cell: Cell) -> bool:
        """Whether the cell it starts from is there."""

    def inputs(self, cell: Cell) -> tuple[CellData, bytes]:
        """Its rows, and the ELBO solution that it starts from."""

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Take a result."""

    def obstacle(self, cell: Cell) -> str | None:
        """Why it can never be run, if so."""

    def looking(self, active: Sequence[Activity]) -> None:
        """See what is going on, a few times a second."""


@final
class Inline(Executor):
    """Runs what is submitted at once, in this process: for tests, and for a debugger."""

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@final
@dataclass
class _Pool:
    """Workers, and the board they write on."""

    executor: Executor
    board: Board
    work: Work


@contextmanager
def _pool(workers: int) -> Iterator[_Pool]:
    """Processes that are told to stop, and waited for, when the block is left by an error."""
    if workers == 0:
        board = Board(1)
        yield _Pool(Inline(), board, lambda *job: work_at(Desk(board, 0), *job))
        return
    context = multiprocessing.get_context("spawn")
    board, stop = Board(workers, context), context.Event()
    settings = (board, context.Value("i", 0), stop, os.getpid())
    executor = ProcessPoolExecutor(workers, context, initializer=begin, initargs=settings)
    try:
        yield _Pool(executor, board, work)
    finally:
        stop.set()
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
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
class Engine:
    """Runs what a client has to be run.

    Parameters
    ----------
    client : Client
        Whose cells they are.
    workers : int
        Processes, each on one core; 0 is none but this one.
    """

    client: Client
    workers: int
    _waiting: list[tuple[int, Cell]] = field(default_factory=list, init=False)
    _tried: set[str] = field(default_factory=set, init=False)

    def run(self, cells: Sequence[Cell]) -> None:
        """Run cells until each has a result.

        Where the system ends a worker, as it does for lack of memory, what was under way is tried
        once more, one at a time.
        """
        self._waiting = list(enumerate(cells))
        workers = self.workers
        while self._waiting:
            with _pool(workers) as pool:
                lost = self._run(pool, max(1, workers))
            self._waiting = self._once_more(lost) + self._waiting
            workers = min(workers, 1)

    def _run(self, pool: _Pool, places: int) -> list[tuple[int, Cell]]:
        """Run until nothing waits; or until a worker is lost, and then say what was under way."""
        running: dict[Future[Finished | Refused], tuple[int, Cell]] = {}
        begun: list[tuple[int, Cell]] = []
        try:
            while self._waiting or running:
                while len(running) < places and (job := self._next()) is not None:
                    begun = [job]
                    running[self._submit(pool, *job)] = job
                    begun = []
                done, _ = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED)
                for future in done:
                    self.client.finished(running[future][1], future.result())
                    del running[future]
                self.client.looking(pool.board.read())
        except BrokenProcessPool:
            return begun + list(running.values())
        return []

    def _submit(self, pool: _Pool, number: int, cell: Cell) -> Future[Finished | Refused]:
        inputs = self.client.inputs(cell)
        with _deaf_to_ctrl_c():
            return pool.executor.submit(pool.work, cell, number, *inputs)

    def _next(self) -> tuple[int, Cell] | None:
        """The first cell that can be run now; those that never can are handed back."""
        for job in list(self._waiting):
            obstacle = self.client.obstacle(job[1])
            if obstacle is not None:
                self._waiting.remove(job)
                self.client.finished(job[1], Refused(obstacle))
            elif self.client.ready(job[1]):
                self._waiting.remove(job)
                return job
        return None

    def _once_more(self, lost: Sequence[tuple[int, Cell]]) -> list[tuple[int, Cell]]:
        again = [job for job in lost if job[1].key not in self._tried]
        for _, cell in (job for job in lost if job not in again):
            reason = "Its process was ended by the system twice, perhaps for lack of memory."
            self.client.finished(cell, Refused(reason))
        self._tried |= {cell.key for _, cell in again}
        return again
