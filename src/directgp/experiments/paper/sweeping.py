"""Runs the cells that a store does not have yet, alone or beside other programs."""

from collections.abc import Callable, Sequence
from typing import final

from directgp.datasets.problem import Problem
from directgp.experiments.board import Activity
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.problems import Problems
from directgp.experiments.paper.results import Finished
from directgp.experiments.paper.rows import rows_of
from directgp.experiments.paper.running import run_paper_cell
from directgp.experiments.paper.store import SharedStore
from directgp.experiments.paper.sweeper import Sweeper, SweepWatcher, Task
from directgp.experiments.pools import Pool
from directgp.experiments.training_rows import CellData
from directgp.experiments.worker import Refused


@final
class Silent:
    """Sees a sweep, and says nothing."""

    def begin(self, cells: Sequence[PaperCell], known: int) -> None:
        """Nothing."""

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        """Nothing."""

    def looking(self, active: Sequence[Activity]) -> None:
        """Nothing."""


def run_sweep(
    cells: Sequence[PaperCell],
    problem_of: Callable[[str], Problem],
    store: SharedStore,
    pool: Pool,
    *,
    watcher: SweepWatcher | None = None,
    device: str = "cpu",
    again: bool = True,
    function: Callable[..., Finished] = run_paper_cell,
    rows: Callable[[Problem, PaperCell], CellData] = rows_of,
) -> None:
    """Run cells until each has a result or a failure in the store.

    Parameters
    ----------
    cells : sequence of PaperCell
        What is wanted; the cells that these start from are added.
    problem_of : callable
        The data set of a name; asked when the first of its cells is to be run.
    store : SharedStore
        What it has is not run again. What other programs have under way is waited for, and taken
        over if they end before it is done.
    pool : Pool
        Where cells are run: `InProcess()`, `Processes(4)`, `RayCluster()`.
    watcher : SweepWatcher
        Sees it go on.
    device : str
        "cpu" or "cuda".
    again : bool
        Whether cells are tried that failed in an earlier run.
    function : callable
        Runs a cell; of the top level of a module, as `rows`.
    rows : callable
        The rows of a cell.
    """
    task = Task(function, rows, device)
    sweeper = Sweeper(store, Problems(problem_of), watcher or Silent(), task)
    try:
        sweeper.run(cells, pool, again)
    finally:
        store.release_all()
