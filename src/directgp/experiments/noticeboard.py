"""What workers on other machines are doing: they post it, and the program looks."""

import time
from dataclasses import dataclass, field
from typing import Any, final

from typing_extensions import override

from directgp.experiments.board import Activity, Desk

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
