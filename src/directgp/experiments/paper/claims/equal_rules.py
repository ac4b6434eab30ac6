"""C11 and C12: rules that end at the same log loss."""

import math
from dataclasses import dataclass, replace
from typing import final

from directgp.experiments.paper.cells import CurveCell, PaperCell
from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.claims.contests import Compared, equal
from directgp.experiments.paper.claims.counts import SETS, count_sets
from directgp.experiments.paper.claims.curves import AIRLINE, Chosen, Duel
from directgp.experiments.paper.claims.findings import finding
from directgp.experiments.paper.claims.rule_contests import as_contest, is_joint, rule, rule_duels
from directgp.experiments.paper.claims.thresholds import AIRLINE_MARGIN, NLL_MARGIN
from directgp.experiments.paper.results import Results

_RATE = 0.01
"""Of Adam, at which the paper compares uPS with bMC."""

_AIRLINE_BETA = 0.1


@final
@dataclass(frozen=True)
class _Study:
    """A rule that is compared with bMC of as many samples."""

    name: str
    samples: tuple[int, ...]
    of: Chosen
    """The curves of the study."""

    decides: bool = True

    def uses(self, cell: PaperCell) -> bool:
        """Whether a cell belongs to it, on either side."""
        if not isinstance(cell, CurveCell) or not self.of(cell):
            return False
        return cell.rule.name in ("bmc", self.name) and cell.rule.samples in self.samples

    def numbers(self, results: Results, dataset: str) -> tuple[int, ...]:
        """Numbers of samples that the sweep has; all where it has none."""
        own = [cell for cell in _planned(results) if cell.dataset == dataset and self.uses(cell)]
        planned = {cell.rule.samples for cell in own if cell.rule.name == self.name}
        return tuple(n for n in self.samples if n in planned) or self.samples


_SMOOTH = _Study(
    "smooth-bmc",
    (1, 10, 100),
    lambda cell: is_joint(cell, SETS) or is_joint(cell, (AIRLINE,), _AIRLINE_BETA),
)
_UPS = _Study(
    "ups",
    (1, 10),
    lambda cell: is_joint(cell, SETS) and math.isclose(cell.learning_rate, _RATE),
)
_OURS = replace(_UPS, name="ups-mixed", decides=False)


def _judge_smooth(results: Results) -> Finding:
    smooth = [c for c in _planned(results) if _SMOOTH.uses(c) and c.rule.name == _SMOOTH.name]
    airline = [AIRLINE] if any(cell.dataset == AIRLINE for cell in smooth) else []
    return _found(results, [*_count_sets(results), *airline], _SMOOTH)


def _judge_ups(results: Results) -> Finding:
    return _found(results, _count_sets(results), _UPS, _OURS)


def _found(results: Results, datasets: list[str], *studies: _Study) -> Finding:
    return finding(
        [
            each
            for study in studies
            for dataset in datasets
            for number in study.numbers(results, dataset)
            for each in _like_bmc(results, dataset, study, number)
        ]
    )


def _like_bmc(results: Results, dataset: str, study: _Study, number: int) -> list[Compared]:
    """For each learning rate and β that has both."""
    one, other = rule(study.name, number), rule("bmc", number)
    margin = AIRLINE_MARGIN if dataset == AIRLINE else NLL_MARGIN
    duels = rule_duels(results, lambda cell: cell.dataset == dataset and study.of(cell), one, other)
    contests = [as_contest(results, dataset, duel, one, other) for duel in _largest(duels)]
    nothing = as_contest(results, dataset, None, one, other)
    return [equal(each, margin, study.decides) for each in contests or [nothing]]


def _largest(duels: list[Duel]) -> list[Duel]:
    """The first, which is the largest, of each learning rate and β."""
    kept: dict[tuple[float, float], Duel] = {}
    for duel in duels:
        kept.setdefault((duel.cell.learning_rate, duel.cell.beta), duel)
    return list(kept.values())


def _planned(results: Results) -> list[CurveCell]:
    """All curves of the sweep, run or not."""
    run = [record.cell for record in results.records]
    every = [*run, *(failed.cell for failed in results.failed), *results.missing]
    return [cell for cell in every if isinstance(cell, CurveCell)]


def _count_sets(results: Results) -> list[str]:
    return count_sets({cell.dataset for cell in _planned(results)})


_ENDS = (
    "At the last look of the learning curves of joint DLM, with all settings equal but the rule, "
    "paired over the repeats (over the test rows if there is one, and on airline): the 95 % "
    "interval of the difference in NLL from bMC with as many samples must lie within "
)

C11 = Claim(
    id="C11",
    statement="Smooth-bMC ends at the same log loss as bMC with as many samples.",
    where="appendix",
    criterion=f"{_ENDS}±{NLL_MARGIN:g} nats on the count sets, and within ±{AIRLINE_MARGIN:g} on "
    "airline (β = 0.1) if it was run; an interval wholly outside contradicts the claim.",
    figures=("13", "15"),
    uses=_SMOOTH.uses,
    judge=_judge_smooth,
)

C12 = Claim(
    id="C12",
    statement="For counts there is no significant difference in log loss between uPS and bMC.",
    where="text and appendix",
    criterion=f"{_ENDS}±{NLL_MARGIN:g} nats for uPS with the score gradient, both trained with a "
    f"learning rate of {_RATE:g}; an interval wholly outside contradicts the claim. uPS with our "
    "control variates is told beside.",
    figures=("14",),
    uses=lambda cell: _UPS.uses(cell) or _OURS.uses(cell),
    judge=_judge_ups,
)
