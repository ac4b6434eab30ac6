"""A process that runs cells, one after another, on one core."""

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any, final

import torch
from threadpoolctl import threadpool_limits
from typing_extensions import override

from directgp.errors import DirectGPError
from directgp.experiments.board import Activity, Board
from directgp.experiments.cells import Cell
from directgp.experiments.results import Finished
from directgp.experiments.running import run_cell
from directgp.experiments.training_rows import CellData
from directgp.training.monitors import Monitor
from directgp.training.result import Progress

_BETWEEN_LOOKS = 0.2
"""Seconds between two looks at whether anybody still waits for the result."""


@final
class StoppedError(DirectGPError):
    """The comparison was interrupted."""


@final
@dataclass(frozen=True)
class Refused:
    """A cell that could not be run, and why."""

    reason: str


@final
@dataclass(frozen=True)
class Desk:
    """Where a worker writes, and what it listens to."""

    board: Board
    place: int
    stop: Event | None = None


@final
@dataclass(eq=False)
class Watch(Monitor):
    """Shows each step on the board; ends the work when the comparison was interrupted."""

    desk: Desk
    cell: int
    _run: int = field(default=0, init=False)
    _last: float = field(default=-1.0, init=False)

    @override
    def __call__(self, progress: Progress) -> None:
        """Show the step."""
        here = Activity(self.cell, self._run, progress.step, progress.max_steps, progress.loss)
        self.desk.board.show(self.desk.place, here)
        if time.monotonic() - self._last > _BETWEEN_LOOKS:
            self._last = time.monotonic()
            self._look()

    @override
    def reset(self) -> None:
        """Another run of the cell begins."""
        self._run += 1

    def _look(self) -> None:
        if self.desk.stop is not None and self.desk.stop.is_set():
            raise StoppedError("The comparison was interrupted.")


_desk: list[Desk] = []
"""Of this process, set when it begins."""


def begin(board: Board, next_place: Any, stop: Event, parent: int) -> None:
    """Set a process up: one thread, a place on the board, and Ctrl-C left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    # numpy and scipy have threads of their own, which wait by spinning.
    threadpool_limits(1)
    with next_place.get_lock():
        place, next_place.value = next_place.value, next_place.value + 1
    _desk[:] = [Desk(board, place % board.places, stop)]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent was killed: nobody is left to hand anything to."""
    while os.getppid() == parent:
        time.sleep(_BETWEEN_LOOKS)
    os._exit(1)


def work(cell: Cell, number: int, data: CellData, elbo: bytes) -> Finished | Refused:
    """Run a cell in this process."""
    return work_at(_desk[0], cell, number, data, elbo)


def work_at(desk: Desk, cell: Cell, number: int, data: CellData, elbo: bytes) -> Finished | Refused:
    """Run a cell at a desk."""
    desk.board.show(desk.place, Activity(number, 1, 0, 0, float("nan")))
    try:
        return run_cell(cell, data, elbo, (Watch(desk, number),))
    except StoppedError:
        raise
    except DirectGPError as error:
        return Refused(str(error))
    except Exception as error:
        # One fit that fails unexpectedly must not take the others with it.
        return Refused(f"{type(error).__name__}: {error}")
    finally:
        desk.board.clear(desk.place)
