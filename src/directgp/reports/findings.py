"""Rank the methods of a comparison, and collect the contents of its report."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import final

import numpy as np

from directgp.experiments.cell import DEFAULT, ELBO
from directgp.experiments.compare_cell import (
    ComparedFit,
    ModelFacts,
    Predictions,
    StoredMember,
)
from directgp.experiments.plan import Comparison
from directgp.experiments.stats import (
    Paired,
    RankingRow,
    common_repeats,
    paired,
    ranking,
    scores_of,
)
from directgp.metrics import Score
from directgp.text import decimals_for, fixed


@final
@dataclass(frozen=True)
class Importance:
    """How much a method needs a feature, in each repeat."""

    feature: str
    """Name of the feature."""

    increases: tuple[float, ...]
    """Increase of the mean NLL of test rows, when the feature is shuffled."""

    relevance: tuple[float, ...]
    """Share in the sum of 1 / lengthscale; empty if the model of a repeat has no ARD."""


@final
@dataclass(frozen=True)
class Findings:
    """A comparison and its ranking at each size."""

    comparison: Comparison
    """The results of all methods."""

    @cached_property
    def by_size(self) -> dict[int, tuple[RankingRow, ...]]:
        """Rankings by size, the largest first; sizes without a ranking are left out."""
        ran = {run.cell.size for run in self.comparison.runs}
        every = {size: ranking(self.comparison, size) for size in sorted(ran, reverse=True)}
        return {size: rows for size, rows in every.items() if rows}

    @property
    def size(self) -> int:
        """The largest size with a ranking, else the largest of the plan."""
        return next(iter(self.by_size), self.comparison.plan.sizes[-1])

    @property
    def ranking(self) -> tuple[RankingRow, ...]:
        """Ranking at the largest size; empty if no repeat was finished by all methods."""
        return self.by_size.get(self.size, ())

    @property
    def elbo(self) -> RankingRow | None:
        """Row of the ELBO, the reference of the comparison."""
        return self.row(ELBO.name)

    def row(self, method: str) -> RankingRow | None:
        """Return the row of a method in the ranking, or None."""
        return next((row for row in self.ranking if row.method.name == method), None)

    @property
    def objectives(self) -> list[RankingRow]:
        """Rows of the objectives, without baselines and other choices of the model."""
        return [row for row in self.ranking if row.method.kind == "objective"]

    @property
    def baseline(self) -> RankingRow | None:
        """The best method without a Gaussian process."""
        rows = [row for row in self.ranking if row.method.kind == "baseline"]
        return min(rows, key=lambda row: row.scores["nll"].mean, default=None)

    def paired(self, mine: RankingRow, rival: RankingRow) -> Paired:
        """Compare the NLL of two methods."""
        parts = self.comparison.plan.parts
        return paired(mine.scores["nll"], rival.scores["nll"], parts)

    @property
    def scores(self) -> tuple[Score, ...]:
        """Scores of this task, NLL first."""
        return scores_of(self.comparison)

    @property
    def num_repeats(self) -> int:
        """Number of repeats that all methods have finished at the largest size."""
        return len(self.ranking[0].betas) if self.ranking else 0

    def value(self, row: RankingRow, score: str) -> str:
        """Format a mean with the decimals of its column of the table."""
        column = [ranked.scores[score] for ranked in self.ranking]
        decimals = decimals_for([e.mean for e in column], [e.error for e in column])
        return fixed(row.scores[score].mean, decimals)

    @cached_property
    def _repeats(self) -> list[int]:
        """The repeats of the ranking; all, if there is none."""
        ranked = [row.method for row in self.ranking]
        return common_repeats(self.comparison, self.size, ranked)

    def finished(self, method: str) -> list[ComparedFit]:
        """Return all finished runs of a method at the largest size, by repeat."""
        runs = sorted(self.comparison.runs, key=lambda run: run.cell.repeat)
        return [r for r in runs if r.cell.method == method and r.cell.size == self.size]

    def runs(self, method: str) -> list[ComparedFit]:
        """Return the runs of a method in the repeats of the ranking."""
        return [run for run in self.finished(method) if run.cell.repeat in self._repeats]

    def models(self, method: str) -> list[ModelFacts]:
        """Return the models of a method in the repeats of the ranking."""
        return [run.outcome.model for run in self.runs(method) if run.outcome.model]

    @property
    def mixtures(self) -> list[tuple[StoredMember, ...]]:
        """Members of the mixture of `directgp fit` in each repeat of the ranking."""
        return [run.outcome.members for run in self.runs(DEFAULT.name) if run.outcome.members]

    def importance(self, method: str) -> list[Importance]:
        """Return the importance of each feature for a method, the largest first."""
        explanations = [run.explanation for run in self.runs(method) if run.explanation is not None]
        if not explanations:
            return []
        ard = all(len(explanation.relevance) for explanation in explanations)
        names = self.comparison.plan.data.feature_names
        every = [
            Importance(
                name,
                tuple(float(explanation.importance[j]) for explanation in explanations),
                tuple(float(explanation.relevance[j]) for explanation in explanations)
                if ard
                else (),
            )
            for j, name in enumerate(names)
        ]
        return sorted(every, key=lambda explanation: -math.fsum(explanation.increases))


def pooled(runs: Sequence[ComparedFit]) -> Predictions:
    """Return the test rows of all runs, without predictions that are not finite."""
    columns = zip(*(astuple(run.predictions) for run in runs), strict=True)
    # Only three or more classes have their probabilities.
    rows = Predictions(*(np.concatenate(column) for column in columns if column[0] is not None))
    finite = np.isfinite([rows.actual, rows.mean, rows.below, rows.up_to]).all(0)
    usable = finite & ~np.isnan([rows.lower, rows.upper]).any(0)
    return Predictions(*(column[usable] for column in astuple(rows) if column is not None))
