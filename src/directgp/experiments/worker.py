"""A process that runs cells, one after another, on one core."""

import os
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any, final

from typing_extensions import override

from directgp.errors import DirectGPError
from directgp.experiments.board import Activity, Board
from directgp.experiments.cells import Cell
from directgp.experiments.running import Finished, run_cell
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
    parent: int | None = None
    """Process that waits for the results; None for the same one."""


@final
@dataclass(eq=False)
class Watch(Monitor):
    """Shows each step on the board; ends the work when nobody waits for it any more."""

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
        if self.desk.parent is not None and os.getppid() != self.desk.parent:
            # Killed: nobody is left to hand anything to.
            os._exit(1)
        if self.desk.stop is not None and self.desk.stop.is_set():
            raise StoppedError("The comparison was interrupted.")


_desk: list[Desk] = []
"""Of this process, set when it begins."""


def begin(board: Board, next_place: Any, stop: Event, parent: int) -> None:
    """Set a process up: one thread, a place on the board, and Ctrl-C left to the parent."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with next_place.get_lock():
        place, next_place.value = next_place.value, next_place.value + 1
    _desk[:] = [Desk(board, place % board.places, stop, parent)]


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
    finally:
        desk.board.clear(desk.place)
