"""Run the cells of the experiments of the paper."""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, final, runtime_checkable

from directgp.datasets.problem import Problem, Task
from directgp.errors import DirectGPError
from directgp.experiments.cell import versions
from directgp.experiments.engine import Engine
from directgp.experiments.fit import CellData
from directgp.experiments.paper.cells import (
    Circumstances,
    CurveCell,
    Finished,
    FitCell,
    GradientCell,
    PaperCell,
    ProtocolName,
    Results,
    SamplerCell,
)
from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.curves import run_curve
from directgp.experiments.paper.fits import rows_of, run_fit
from directgp.experiments.paper.gradients import run_gradients
from directgp.experiments.paper.samplers import run_samplers
from directgp.experiments.paper.store import SharedStore, View
from directgp.experiments.workers import Activity, Call, Pool, Refused, Shared
from directgp.training.callbacks import Monitor


def run_paper_cell(
    cell: PaperCell,
    data: CellData,
    start: bytes = b"",
    device: str = "cpu",
    monitors: Sequence[Monitor] = (),
) -> Finished:
    """Run it.

    Parameters
    ----------
    cell : PaperCell
        What to run.
    data : CellData
        Its rows.
    start : bytes
        The model that `cell.start` has left behind.
    device : str
        "cpu" or "cuda"; studies of gradients and samplers are always run on the CPU.
    monitors : sequence of Monitor
        See every step.
    """
    match cell:
        case FitCell():
            fit, model = run_fit(cell, data, start, device, monitors)
            return Finished(fit, circumstances(device), model)
        case CurveCell():
            curve, model, losses = run_curve(cell, data, start, device, monitors)
            return Finished(curve, circumstances(device), model, {"losses": losses})
        case GradientCell():
            gradients, draws = run_gradients(cell, data, monitors)
            return Finished(gradients, circumstances("cpu"), arrays=draws)
        case SamplerCell():
            return Finished(run_samplers(cell, data, monitors), circumstances("cpu"))


def circumstances(device: str) -> Circumstances:
    """Where this process runs, and by what."""
    return Circumstances(
        versions=versions(),
        machine=f"{platform.system()} {platform.machine()}",
        device="CPU" if device == "cpu" else _name_of(device),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _name_of(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device)


_KEPT = 3


@final
@dataclass
class Problems:
    """Data sets by name: the last few are kept, and those that cannot be had remembered."""

    problem_of: Callable[[str], Problem]
    _kept: dict[str, Shared] = field(default_factory=dict, init=False)
    _missing: dict[str, str] = field(default_factory=dict, init=False)

    def get(self, name: str) -> Shared:
        """A data set, for many cells."""
        found = self._kept.pop(name, None) or self._read(name)
        self._kept[name] = found
        for oldest in list(self._kept)[:-_KEPT]:
            del self._kept[oldest]
        return found

    def obstacle(self, name: str) -> str | None:
        """Why a data set could not be had, if so."""
        return self._missing.get(name)

    def _read(self, name: str) -> Shared:
        try:
            return Shared(self.problem_of(name))
        except DirectGPError as error:
            self._missing[name] = str(error)
            raise


_BETWEEN_VIEWS = 1.0
"""Seconds between two looks at what other programs have done."""


@runtime_checkable
class SweepWatcher(Protocol):
    """Sees a sweep go on."""

    def begin(self, cells: Sequence[PaperCell], known: int) -> None:
        """These are to be run; so many more are known already."""

    def finished(self, cell: PaperCell, result: Finished | Refused) -> None:
        """A cell is done, here or by another program."""

    def looking(self, active: Sequence[Activity]) -> None:
        """What is going on here, a few times a second; cells by their places in `begin`."""


@final
@dataclass(frozen=True)
class CellTask:
    """What is done with a cell."""

    function: Callable[..., Finished]
    """As `run_paper_cell`."""

    rows: Callable[[Problem, PaperCell], CellData]
    """As `rows_of`."""

    device: str


def run_task(
    task: CellTask,
    cell: PaperCell,
    problem: Problem,
    start: bytes,
    monitors: Sequence[Monitor] = (),
) -> Finished:
    """What a worker does: the rows of a cell are found where it is run."""
    return task.function(cell, task.rows(problem, cell), start, task.device, monitors)


@final
@dataclass(frozen=True, eq=False)
class SweepJob:
    """A cell with its keys, which take time to compute."""

    cell: PaperCell
    key: str
    start: str | None
    """Key of the cell that it starts from."""

    @classmethod
    def of(cls, cell: PaperCell) -> "SweepJob":
        """A cell as a job."""
        start: PaperCell | None = cell.start
        return cls(cell, cell.key, None if start is None else start.key)


@final
@dataclass
class Sweeper:
    """Claims cells, has them run, keeps what comes of them."""

    store: SharedStore
    problems: Problems
    watcher: SweepWatcher
    task: CellTask
    _open: dict[str, SweepJob] = field(default_factory=dict, init=False)
    _ours: set[str] = field(default_factory=set, init=False)
    _finished: set[str] = field(default_factory=set, init=False)
    _taken: set[str] = field(default_factory=set, init=False)
    _failed: dict[str, str] = field(default_factory=dict, init=False)
    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    _last_view: float = field(default=0.0, init=False)

    def run(self, cells: Sequence[PaperCell], pool: Pool, again: bool) -> None:
        """Run what is not known; what failed before only if it is to be tried again."""
        view = self.store.view()
        self._finished, self._taken = view.finished, view.taken
        self._attempts = {key: failing.attempts for key, failing in view.failing.items()}
        if not again:
            self._failed = {key: failing.reason for key, failing in view.failing.items()}
        jobs = [SweepJob.of(cell) for cell in dict.fromkeys(_with_starts(cells))]
        self._open = {job.key: job for job in jobs if not self.known(job)}
        known = sum(job.key in self._finished for job in jobs)
        self.watcher.begin([job.cell for job in self._open.values()], known)
        Engine(self, pool).run(list(self._open.values()))

    def known(self, job: SweepJob) -> bool:
        """Whether it was finished, or failed, with another program."""
        return job.key in self._finished or job.key in self._failed

    def obstacle(self, job: SweepJob) -> str | None:
        """Why its data or the cell it starts from cannot be had, if so."""
        if job.start is not None and job.start in self._failed:
            return f"The run that it starts from failed: {self._failed[job.start]}"
        return self.problems.obstacle(job.cell.dataset)

    def ready(self, job: SweepJob) -> bool:
        """Whether the cell it starts from is there, and this one could be claimed."""
        if job.key in self._taken or (job.start is not None and job.start not in self._finished):
            return False
        if not self.store.claim(job.cell):
            self._taken.add(job.key)
            return False
        self._ours.add(job.key)
        return True

    def call(self, job: SweepJob) -> Call:
        """The task, with the data set and the model that the cell starts from."""
        start: PaperCell | None = job.cell.start
        model = b"" if start is None else self.store.model(start)
        return run_task, (self.task, job.cell, self.problems.get(job.cell.dataset), model)

    def finished(self, job: SweepJob, result: Finished | Refused) -> None:
        """Keep a result, or why there is none."""
        if isinstance(result, Refused):
            self.store.fail(job.cell, result.reason)
            self._failed[job.key] = result.reason
        else:
            self.store.put(job.cell, result)
            self._finished.add(job.key)
        self._ours.discard(job.key)
        self._told(job, result)

    def looking(self, active: Sequence[Activity]) -> None:
        """Pass it on, and see now and then what other programs have done."""
        self.watcher.looking(active)
        if time.monotonic() - self._last_view > _BETWEEN_VIEWS:
            self._take_in(self.store.view())
            self._last_view = time.monotonic()

    def _take_in(self, view: View) -> None:
        self._finished |= view.finished
        self._taken = view.taken
        elsewhere = [job for job in self._open.values() if job.key not in self._ours]
        for job in elsewhere:
            failing = view.failing.get(job.key)
            if job.key in view.finished:
                (record,) = self.store.records([job.key])
                found = Finished(record.outcome, record.circumstances, b"", record.arrays)
                self._told(job, found)
            elif failing is not None and failing.attempts > self._attempts.get(job.key, 0):
                self._failed[job.key] = failing.reason
                self._told(job, Refused(failing.reason))

    def _told(self, job: SweepJob, result: Finished | Refused) -> None:
        del self._open[job.key]
        self.watcher.finished(job.cell, result)


def _with_starts(cells: Iterable[PaperCell]) -> Iterator[PaperCell]:
    """Each after the one that it starts from."""
    for cell in cells:
        start: PaperCell | None = cell.start
        if start is not None:
            yield from _with_starts([start])
        yield cell


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
    task = CellTask(function, rows, device)
    sweeper = Sweeper(store, Problems(problem_of), watcher or Silent(), task)
    try:
        sweeper.run(cells, pool, again)
    finally:
        store.release_all()


@final
@dataclass(frozen=True)
class DataRow:
    """One data set, as it is here and as it is in the paper's table."""

    name: str
    task: Task
    rows: int
    features: int
    paper_rows: int
    paper_features: int
    num_inducing: int
    origin: str
    """Where these rows came from: a file, an address, the generator."""

    licence: str
    source: str
    """Its public home."""

    differences: str
    """From the paper's; empty where there are none."""


@final
@dataclass(frozen=True, eq=False)
class Reproduction:
    """Results, what they say of each claim, and how they were come by."""

    results: Results
    findings: tuple[tuple[Claim, Finding], ...]
    data: tuple[DataRow, ...]
    scale: str
    """Its name: "smoke", "small" or "full"."""

    scale_words: str
    """What the scale means, in one sentence."""

    protocol: ProtocolName
    command: str
    began: str
    """Date and time, UTC."""

    seconds: float
    """By the clock, of this run of the command."""

    machine: str
    """In words; other cells may have been run elsewhere."""
