"""Runs a plan: what the store has is taken from it, the rest is run and kept."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, final, runtime_checkable

from directgp.datasets.problem import Problem
from directgp.experiments.board import Activity
from directgp.experiments.cells import Cell
from directgp.experiments.comparison import Comparison, FailedCell, Plan
from directgp.experiments.engine import Engine
from directgp.experiments.methods import ELBO, METHODS
from directgp.experiments.pools import Call, local
from directgp.experiments.results import Finished
from directgp.experiments.running import needs_elbo, run_cell
from directgp.experiments.store import Store
from directgp.experiments.training_rows import CellData
from directgp.experiments.versions import versions
from directgp.experiments.worker import Refused


@runtime_checkable
class Watcher(Protocol):
    """Sees a comparison go on."""

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """These are to be run; so many more are known already."""

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """A cell is done."""

    def looking(self, active: Sequence[Activity]) -> None:
        """What is going on, a few times a second."""


@final
class Silent:
    """Sees it, and says nothing."""

    def begin(self, cells: Sequence[Cell], known: int) -> None:
        """Nothing."""

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Nothing."""

    def looking(self, active: Sequence[Activity]) -> None:
        """Nothing."""


def compare(
    problem: Problem,
    plan: Plan,
    store: str | os.PathLike[str],
    *,
    workers: int = 0,
    watcher: Watcher | None = None,
    command: str = "",
) -> Comparison:
    """Run what the store does not have yet, and put everything together.

    Parameters
    ----------
    problem : Problem
        The data of the plan.
    plan : Plan
        What is to be run.
    store : path
        The file in which finished fits are kept, and from which they are taken.
    workers : int
        Processes, each on one core; 0 is none but this one.
    watcher : Watcher
        Sees it go on.
    command : str
        What repeats it.
    """
    with Store(Path(store)) as kept:
        return Comparer(problem, plan, kept, watcher or Silent()).run(workers, command)


@final
@dataclass
class Comparer:
    """The client of the engine for one plan."""

    problem: Problem
    plan: Plan
    store: Store
    watcher: Watcher
    _failed: dict[str, FailedCell] = field(default_factory=dict, init=False)

    def run(self, workers: int, command: str = "") -> Comparison:
        """Run what is not known yet, and put everything together."""
        since, began = time.perf_counter(), datetime.now(UTC)
        cells = self.plan.cells()
        wanted = dict.fromkeys((*(self._start(cell) for cell in cells), *cells))
        waiting = sorted(
            (cell for cell in wanted if cell not in self.store),
            key=lambda cell: (cell.size, cell.repeat, cell.method != ELBO.name),
        )
        self.watcher.begin(waiting, len(wanted) - len(waiting))
        Engine(self, local(workers)).run(waiting)
        return Comparison(
            plan=self.plan,
            runs=tuple(self.store.run(cell) for cell in cells if cell in self.store),
            failed=tuple(f for f in self._failed.values() if f.cell in cells),
            versions=versions(),
            machine=_machine(self.plan.settings.device, workers),
            command=command,
            began=began.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - since,
        )

    def ready(self, cell: Cell) -> bool:
        """Whether its ELBO solution is there."""
        start = self._start(cell)
        return start == cell or start in self.store

    def obstacle(self, cell: Cell) -> str | None:
        """Why its ELBO solution could not be had, if so."""
        start = self._start(cell)
        if start == cell or start.key not in self._failed:
            return None
        return f"The ELBO run that it starts from failed: {self._failed[start.key].reason}"

    def known(self, cell: Cell) -> bool:
        """Never: nobody else has the store open."""
        return False

    def call(self, cell: Cell) -> Call:
        """Train on its rows, from the ELBO solution that it starts from."""
        start = self._start(cell)
        elbo = b"" if start == cell else self.store.model(start)
        return run_cell, (cell, CellData.of(self.problem, cell), elbo)

    def finished(self, cell: Cell, result: Finished | Refused) -> None:
        """Keep a result, or remember that there is none."""
        if isinstance(result, Finished):
            self.store.put(cell, result)
        else:
            self._failed[cell.key] = FailedCell(cell, result.reason)
        self.watcher.finished(cell, result)

    def looking(self, active: Sequence[Activity]) -> None:
        """Pass it on."""
        self.watcher.looking(active)

    def _start(self, cell: Cell) -> Cell:
        """The cell that this one starts from: the ELBO of its split, or itself."""
        if not needs_elbo(METHODS[cell.method]):
            return cell
        return self.plan.cell(ELBO, cell.repeat, cell.size)


def _machine(device: str, workers: int) -> str:
    """Where it was run, in words."""
    fits = "one fit at a time" if workers <= 1 else f"{workers} fits at once"
    where = f"{platform.system()} {platform.machine()}, {fits}"
    if device == "cpu":
        return f"{where}, one core each" if workers > 1 else where
    import torch

    return f"{where} on {torch.cuda.get_device_name()}"
