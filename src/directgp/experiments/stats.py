"""Rank methods by paired tests over the repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from directgp.experiments.cell import Method
from directgp.experiments.compare_cell import CompareOutcome
from directgp.experiments.plan import Comparison
from directgp.experiments.splits import Parts
from directgp.metrics import COVERAGE, ECE, SCORES, Score

SIGNIFICANT = 0.05
"""Level of the paired test against the best method."""


@final
@dataclass(frozen=True)
class ScoreEstimate:
    """A score of a method over the repeats."""

    values: tuple[float, ...]
    """One value per repeat."""

    mean: float
    """Mean over the repeats."""

    error: float
    """Standard error of the mean; NaN for one repeat."""

    best: bool
    """Whether no method has a better mean."""

    close: bool
    """Whether the difference from the best is not significant; with one repeat, only for the
    best."""

    p_value: float
    """Of the paired test against the best; NaN for the best and for one repeat."""


@final
@dataclass(frozen=True)
class RankingRow:
    """The scores of a method at one training size."""

    method: Method
    """The method."""

    size: int
    """Training rows."""

    scores: dict[str, ScoreEstimate]
    """Scores by name."""

    betas: tuple[float, ...]
    """β of each repeat."""

    seconds: float
    """Mean time over the repeats."""

    @property
    def beta(self) -> float:
        """The median of the chosen values; the lower of two."""
        return sorted(self.betas)[(len(self.betas) - 1) // 2]


def ranking(comparison: Comparison, size: int) -> tuple[RankingRow, ...]:
    """Return the scores of each method, in table order, over the repeats that all have finished.

    The paired test has the correction for the largest training size. Smaller training sets share
    fewer rows, so the test is conservative there.
    """
    plan = comparison.plan
    runs = {
        (run.cell.method, run.cell.repeat): run for run in comparison.runs if run.cell.size == size
    }
    finished = {m: sum((m.name, r) in runs for r in range(plan.repeats)) for m in plan.methods}
    # A method that failed in most repeats is left out: too few common repeats would remain.
    methods = [m for m, n in finished.items() if n and 2 * n >= max(finished.values())]
    repeats = common_repeats(comparison, size, methods)
    if not methods or not repeats:
        return ()
    tables = {
        score.name: estimates(
            score,
            np.array(
                [[_mean(runs[m.name, r].outcome, score.name) for r in repeats] for m in methods]
            ),
            plan.parts,
        )
        for score in scores_of(comparison)
    }
    return tuple(
        RankingRow(
            method=method,
            size=size,
            scores={name: table[i] for name, table in tables.items()},
            betas=tuple(runs[method.name, r].outcome.beta for r in repeats),
            seconds=float(np.mean([runs[method.name, r].outcome.seconds for r in repeats])),
        )
        for i, method in enumerate(methods)
    )


def common_repeats(comparison: Comparison, size: int, methods: Sequence[Method]) -> list[int]:
    """Return the repeats that all of these methods have finished at one training size."""
    finished = {
        (run.cell.method, run.cell.repeat) for run in comparison.runs if run.cell.size == size
    }
    every = range(comparison.plan.repeats)
    return [repeat for repeat in every if all((m.name, repeat) in finished for m in methods)]


def scores_of(comparison: Comparison) -> tuple[Score, ...]:
    """Return the scores of the task, NLL first; earlier versions have stored no ECE."""
    old = any(ECE.name not in run.outcome.scores for run in comparison.runs)
    return tuple(s for s in SCORES[comparison.plan.data.task] if s is not ECE or not old)


def _mean(outcome: CompareOutcome, score: str) -> float:
    """Return a score; earlier versions have stored no RMSE."""
    if score == "rmse" and score not in outcome.scores:
        return math.sqrt(outcome.scores.get("mse", math.nan))
    return outcome.scores[score]


def estimates(score: Score, values: NDArray[np.float64], parts: Parts) -> list[ScoreEstimate]:
    """Return the estimate of each method; values have shape (methods, repeats)."""
    repeats = values.shape[1]
    ratio = parts.test / parts.training
    resolution = 1 / parts.test if score.share else 0.0
    means = values.mean(1)
    cost = np.abs(means - COVERAGE) if score.better == "nominal" else means
    best = int(np.where(np.isnan(cost), np.inf, cost).argmin())
    with np.errstate(invalid="ignore", over="ignore"):
        errors = values.std(1, ddof=1) / math.sqrt(repeats) if repeats > 1 else np.nan * means
        p_values = [corrected_p_value(row - values[best], ratio, resolution) for row in values]
    return [
        ScoreEstimate(
            values=tuple(row.tolist()),
            mean=float(row.mean()),
            error=float(errors[i]),
            best=i == best,
            close=i == best or p_values[i] >= SIGNIFICANT,
            p_value=math.nan if i == best else p_values[i],
        )
        for i, row in enumerate(values)
    ]


class Paired(NamedTuple):
    """A paired comparison of the scores of two methods, repeat by repeat."""

    gap: float
    """Mean score of the other method minus the mean score of this one."""

    p_value: float
    """Of the paired test; NaN for one repeat."""

    wins: int
    """Number of repeats in which the score is lower."""

    error: float
    """Standard error of the gap, by which it is tested; NaN for one repeat."""

    @property
    def significant(self) -> bool:
        """Whether the difference is unlikely to be chance; never with one repeat."""
        return self.p_value < SIGNIFICANT


def paired(mine: ScoreEstimate, theirs: ScoreEstimate, parts: Parts) -> Paired:
    """Compare two methods by the same test as the table."""
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.array(theirs.values) - np.array(mine.values)
        ratio = parts.test / parts.training
        p_value = corrected_p_value(gaps, ratio)
        deviation = float(gaps.std(ddof=1)) if len(gaps) > 1 else math.nan
        error = deviation * math.sqrt(1 / len(gaps) + ratio)
        return Paired(float(gaps.mean()), p_value, int((gaps > 0).sum()), error)


def corrected_p_value(
    differences: NDArray[np.float64], test_over_training: float, resolution: float = 0.0
) -> float:
    """Return the two-sided p-value of a paired t-test, corrected for splits that share rows.

    Random splits of one table are not independent. With J repeats, the variance of the mean is
    therefore (1/J + n_test/n_train) times the variance of a difference (Nadeau and Bengio, 2003).
    Error rates of few rows often differ by the same amount; their deviation is at least one row,
    the resolution.
    """
    repeats = len(differences)
    if repeats < 2:
        return math.nan
    mean = float(differences.mean())
    deviation = max(float(differences.std(ddof=1)), resolution)
    if not math.isfinite(mean):
        return math.nan
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    # t = d̄ / (s √(1/J + n_test/n_train)), with J − 1 degrees of freedom
    t = mean / (deviation * math.sqrt(1 / repeats + test_over_training))
    return float(2 * stats.t.sf(abs(t), repeats - 1))


def best_of(ranking: Sequence[RankingRow], score: str) -> RankingRow:
    """Return the method with the best mean."""
    return next(row for row in ranking if row.scores[score].best)
