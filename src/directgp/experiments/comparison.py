"""A comparison: what is asked, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from directgp.datasets.problem import Problem, Task
from directgp.experiments.cells import Cell, Frozen, Settings
from directgp.experiments.methods import ELBO, Method
from directgp.experiments.results import Run
from directgp.experiments.splits import Parts


@final
class DataFacts(Frozen):
    """A problem without its numbers."""

    name: str
    source: str
    task: Task
    target: str
    classes: tuple[str, str] | None
    num_rows: int
    feature_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    """What names the data on the command line."""

    @classmethod
    def of(cls, problem: Problem, arguments: Sequence[str] = ()) -> "DataFacts":
        """What there is to say of a problem."""
        return cls(
            name=problem.name,
            source=problem.source,
            task=problem.task,
            target=problem.target,
            classes=problem.classes,
            num_rows=len(problem.y),
            feature_names=problem.feature_names,
            fingerprint=problem.fingerprint(),
            notes=problem.notes,
            arguments=tuple(arguments),
        )


@final
@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    data: DataFacts
    methods: tuple[Method, ...]
    repeats: int
    sizes: tuple[int, ...]
    """Rising."""

    seed: int
    settings: Settings
    parts: Parts

    def cells(self) -> tuple[Cell, ...]:
        """Every cell, in the order in which they are best run: small sizes and the ELBO first."""
        return tuple(
            self.cell(method, repeat, size)
            for size in self.sizes
            for repeat in range(self.repeats)
            for method in sorted(self.methods, key=lambda method: method != ELBO)
        )

    def cell(self, method: Method, repeat: int, size: int) -> Cell:
        """One of the cells."""
        return Cell(
            data=self.data.fingerprint,
            task=self.data.task,
            method=method.name,
            repeat=repeat,
            size=size,
            seed=self.seed,
            settings=self.settings,
        )


@final
@dataclass(frozen=True)
class FailedCell:
    """A cell that could not be run."""

    cell: Cell
    reason: str


@final
@dataclass(frozen=True)
class Comparison:
    """All that a report tells."""

    plan: Plan
    runs: tuple[Run, ...]
    failed: tuple[FailedCell, ...]
    versions: dict[str, str]
    """Of directgp, Python and the libraries that decide the numbers."""

    machine: str
    """Processor, number of cores and device, in words."""

    command: str
    """What repeats it."""

    began: str
    """Date and time, UTC."""

    seconds: float
    """Wall time of this run; what was finished in earlier ones is not in it."""
