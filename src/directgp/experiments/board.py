"""What the workers are doing, in memory that they share: no lock, so none can be left held."""

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import MutableSequence
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from typing import Protocol, final, runtime_checkable

from typing_extensions import override

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
