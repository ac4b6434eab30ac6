"""Build the table of scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from directgp.experiments.cell import Method
from directgp.experiments.stats import RankingRow, ScoreEstimate
from directgp.metrics import COVERAGE, Score
from directgp.text import decimals_for, fixed, number, percent

CLOSE = "≈"
"""After a value that not significantly different from the best."""


@final
@dataclass(frozen=True)
class Entry:
    """A cell of the table."""

    text: str
    rank: float | None
    """By which the column is sorted; None comes last."""

    error: str = ""
    unit: str = ""
    best: bool = False
    close: bool = False
    note: str = ""
    """Said more quietly below."""


@final
@dataclass(frozen=True)
class Column:
    """Its heading, and what it means."""

    title: str
    about: str


@final
@dataclass(frozen=True)
class Scoreboard:
    """The table at one size of training set."""

    size: int
    repeats: int
    columns: tuple[Column, ...]
    rows: tuple[tuple[Method, tuple[Entry, ...]], ...]


def scoreboard(ranking: Sequence[RankingRow], scores: Sequence[Score]) -> Scoreboard:
    """Methods in table order: β, the scores, seconds."""
    columns = [[_beta(row) for row in ranking]]
    columns += [_scores([s.scores[score.name] for s in ranking], score) for score in scores]
    columns += [[_seconds(row) for row in ranking]]
    rows = zip(*columns, strict=True)
    return Scoreboard(
        size=ranking[0].size,
        repeats=len(ranking[0].betas),
        columns=(
            Column("β", "Weight of the KL term, median over the repeats."),
            *(Column(_title(score), score.about) for score in scores),
            Column(
                "seconds",
                "Of one core for one repeat: every β, but not the ELBO run from which it starts.",
            ),
        ),
        rows=tuple((s.method, row) for s, row in zip(ranking, rows, strict=True)),
    )


def _title(score: Score) -> str:
    return f"{score.label} of {percent(COVERAGE, 0)}" if score.better == "nominal" else score.label


def _scores(estimates: Sequence[ScoreEstimate], score: Score) -> list[Entry]:
    """One column; alone, a method is not called the best."""
    nominal = score.better == "nominal"
    factor = 100.0 if nominal else 1.0
    means, errors = ([factor * v for v in vs] for vs in _means_and_errors(estimates))
    decimals = min(decimals_for(means, errors), 1 if nominal else 20)
    contest = len(estimates) > 1
    return [
        Entry(
            text=fixed(mean, decimals),
            error=fixed(error, decimals) if math.isfinite(error + mean) else "",
            unit=" %" if nominal else "",
            rank=_rank(abs(each.mean - COVERAGE) if nominal else each.mean),
            best=each.best and contest and math.isfinite(mean),
            close=each.close and not each.best,
        )
        for each, mean, error in zip(estimates, means, errors, strict=True)
    ]


def _means_and_errors(estimates: Sequence[ScoreEstimate]) -> tuple[list[float], list[float]]:
    return [each.mean for each in estimates], [each.error for each in estimates]


def _beta(row: RankingRow) -> Entry:
    """The median, and the range where repeats chose differently."""
    if row.method.objective == "fitc":
        return Entry("–", None)
    low, high = min(row.betas), max(row.betas)
    note = f"{number(low, 2)} to {number(high, 2)}" if low != high else ""
    return Entry(number(row.beta), _rank(row.beta), note=note)


def _seconds(row: RankingRow) -> Entry:
    return Entry(number(row.seconds, 2), _rank(row.seconds))


def _rank(value: float) -> float | None:
    return value if math.isfinite(value) else None


def heading(board: Scoreboard) -> str:
    """What the table is of."""
    repeats = f"mean ± standard error of {board.repeats} repeats"
    return f"{board.size:,} training rows, " + (repeats if board.repeats > 1 else "one repeat")
