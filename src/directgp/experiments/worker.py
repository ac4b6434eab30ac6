"""A process that runs jobs, one after another, on one core."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any, final

import torch
from threadpoolctl import threadpool_limits
from typing_extensions import override

from directgp.errors import DirectGPError
from directgp.experiments.board import Activity, Board, BoardDesk, Desk
from directgp.training.monitors import Monitor
from directgp.training.result import Progress

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
