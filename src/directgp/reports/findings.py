"""A comparison as a report looks at it."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from directgp.experiments.comparison import Comparison
from directgp.experiments.methods import ELBO
from directgp.experiments.results import Run
from directgp.experiments.standings import Standing, standings
from directgp.metrics import SCORES, Score
from directgp.reports.numbers import decimals_of, number


@final
@dataclass(frozen=True)
class Findings:
    """A comparison and the standings at each of its sizes."""

    comparison: Comparison

    @cached_property
    def by_size(self) -> dict[int, tuple[Standing, ...]]:
        """Standings, the largest size first; without the sizes at which there are none."""
        ran = {run.cell.size for run in self.comparison.runs}
        every = {size: standings(self.comparison, size) for size in sorted(ran, reverse=True)}
        return {size: found for size, found in every.items() if found}

    @property
    def size(self) -> int:
        """The largest that has standings, else the largest of the plan."""
        return next(iter(self.by_size), self.comparison.plan.sizes[-1])

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Those at the largest size; none if no repeat was finished by all."""
        return self.by_size.get(self.size, ())

    @property
    def elbo(self) -> Standing | None:
        """The ELBO, with which the others are compared."""
        return next((s for s in self.standings if s.method == ELBO), None)

    @property
    def scores(self) -> tuple[Score, ...]:
        """By which this task is judged, NLL first."""
        return SCORES[self.comparison.plan.data.task]

    @property
    def second(self) -> Score:
        """What users of the task look at beside NLL."""
        return self.scores[1]

    @property
    def num_repeats(self) -> int:
        """Repeats that all methods have finished at the largest size."""
        return len(self.standings[0].betas) if self.standings else 0

    def value(self, standing: Standing, score: str) -> str:
        """A mean with the digits that the table gives it."""
        column = [each.scores[score] for each in self.standings]
        decimals = decimals_of([e.mean for e in column], [e.error for e in column])
        return number(standing.scores[score].mean, decimals)

    def runs(self, method: str) -> list[Run]:
        """Those of a method at the largest size, by repeat."""
        found = [
            run
            for run in self.comparison.runs
            if run.cell.method == method and run.cell.size == self.size
        ]
        return sorted(found, key=lambda run: run.cell.repeat)
