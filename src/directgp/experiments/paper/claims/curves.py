"""Pairs of learning curves: equal in all settings but one, on the same splits."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.wording import several
from directgp.experiments.paper.cells import CurveCell
from directgp.experiments.paper.claims.evidence import (
    Evidence,
    differences,
    measured,
    over_repeats,
    over_rows,
)
from directgp.experiments.paper.results import CurveOutcome, Results

AIRLINE = "airline"

Chosen = Callable[[CurveCell], bool]


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """One learning curve."""

    cell: CurveCell
    outcome: CurveOutcome
    losses: NDArray[np.float32]

    @property
    def places(self) -> dict[int, int]:
        """Of its looks, by their steps; the later of two at the same step."""
        return {point.step: place for place, point in enumerate(self.outcome.points)}

    def is_told(self, step: int) -> bool:
        """Whether it was looked at then, or had ended before."""
        return step in self.places or step > max(self.places)

    def rows_at(self, step: int) -> NDArray[np.float64]:
        """NLL of the test rows; a curve that has ended before is infinitely bad."""
        if step not in self.places:
            return np.full(self.losses.shape[1], np.inf)
        return np.asarray(self.losses[self.places[step]], dtype=np.float64)

    def nll_at(self, step: int) -> float:
        """Mean over the test rows, likewise."""
        if step not in self.places:
            return math.inf
        return self.outcome.points[self.places[step]].scores["nll"]


@final
@dataclass(frozen=True, eq=False)
class Duel:
    """Pairs of curves, one a repeat."""

    pairs: tuple[tuple[Curve, Curve], ...]

    @property
    def cell(self) -> CurveCell:
        """One of them, for what all share."""
        return self.pairs[0][0].cell

    @property
    def looks(self) -> list[tuple[int, float]]:
        """Steps and epochs at which all were looked at that had not ended."""
        curves = [curve for pair in self.pairs for curve in pair]
        points = {point.step: point.epoch for curve in curves for point in curve.outcome.points}
        return sorted((s, e) for s, e in points.items() if all(c.is_told(s) for c in curves))

    def rows_at(self, step: int) -> Evidence:
        """Paired over the test rows, averaged over the repeats.

        Where only some rows have their losses kept, their scatter gives the error, and the scores
        of all rows the mean.
        """
        kept = [differences(a.rows_at(step), b.rows_at(step)) for a, b in self.pairs]
        found, all_rows = over_rows(kept), sum(one.outcome.num_test for one, _ in self.pairs)
        mean = float(np.mean([a.nll_at(step) - b.nll_at(step) for a, b in self.pairs]))
        number = sum(map(len, kept))
        if number >= all_rows or not math.isfinite(found.effect):
            return found
        over = f"{several(all_rows, 'test row')}, their scatter by {number:,} of them"
        return replace(measured(mean, found.error * math.sqrt(number / all_rows)), over=over)

    def repeats_at(self, step: int) -> Evidence:
        """Paired over the repeats."""
        ones = np.array([one.nll_at(step) for one, _ in self.pairs])
        others = np.array([other.nll_at(step) for _, other in self.pairs])
        outcome = self.pairs[0][0].outcome
        ratio = outcome.num_test / (outcome.num_training or self.cell.size)
        return over_repeats(differences(ones, others), ratio)

    @property
    def setting(self) -> str:
        """In words."""
        cell, (last, _) = self.cell, self.looks[-1]
        how = f"β = {cell.beta:g}, learning rate {cell.learning_rate:g}"
        return f"{several(cell.size, 'row')}, {how}, {several(last, 'step')}"

    def at_the_end(self) -> Evidence:
        """At the last look, over the repeats.

        Over the test rows where there is one repeat, and on airline, which has so many of them.
        """
        last = self.looks[-1][0]
        by_rows = len(self.pairs) == 1 or self.cell.dataset == AIRLINE
        return self.rows_at(last) if by_rows else self.repeats_at(last)


def duels(results: Results, one: Chosen, other: Chosen, differ: set[str]) -> list[Duel]:
    """All settings in which there are both, the largest first; they may differ in these fields."""
    free = differ | {"repeat", "seed"}
    ones, others = _by_setting(results, one, free), _by_setting(results, other, free)
    found = [_duel(ones[setting], others[setting]) for setting in ones if setting in others]
    return sorted((duel for duel in found if duel.pairs), key=_rank, reverse=True)


def _by_setting(
    results: Results, chosen: Chosen, free: set[str]
) -> dict[str, dict[tuple[int, int], Curve]]:
    settings: dict[str, dict[tuple[int, int], Curve]] = {}
    for cell, outcome, losses in results.curves():
        if chosen(cell) and outcome.points:
            setting = cell.model_dump_json(exclude=free)
            curve = Curve(cell, outcome, losses)
            settings.setdefault(setting, {})[cell.repeat, cell.seed] = curve
    return settings


def _duel(ones: dict[tuple[int, int], Curve], others: dict[tuple[int, int], Curve]) -> Duel:
    return Duel(
        tuple((ones[split], others[split]) for split in sorted(ones.keys() & others.keys()))
    )


def _rank(duel: Duel) -> tuple[int, int, int, str]:
    return duel.cell.size, len(duel.pairs), duel.cell.steps, duel.cell.model_dump_json()
