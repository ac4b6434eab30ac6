"""The samplers at the moments of training that claims speak of."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.wording import several
from directgp.experiments.paper.cells import PaperCell, SamplerCell
from directgp.experiments.paper.claims.base import Verdict
from directgp.experiments.paper.claims.contests import Compared, Contest, absent
from directgp.experiments.paper.claims.evidence import worst
from directgp.experiments.paper.claims.fits import absence
from directgp.experiments.paper.claims.thresholds import FIRST_STEPS
from directgp.experiments.paper.claims.wording import TINY, figure, in_brackets
from directgp.experiments.paper.results import Results, SamplerLook

SETS = ("abalone", "banana")
"""Counts, and labels."""

Looks = list[SamplerLook]

_DOUBTS: dict[Verdict, str] = {
    "held": "",
    "not held": "not as claimed",
    "not decided": "looks disagree",
}


def looks_of(results: Results, dataset: str) -> list[Looks]:
    """After the first steps, of each repeat."""
    found = [
        [look for look in outcome.looks if look.step >= FIRST_STEPS]
        for cell, outcome in results.samplers()
        if cell.dataset == dataset
    ]
    return [looks for looks in found if looks]


def uses_samplers(cell: PaperCell) -> bool:
    """Whether a cell is a study of samplers on one of the two data sets."""
    return isinstance(cell, SamplerCell) and cell.dataset in SETS


@final
@dataclass(frozen=True)
class Asked:
    """A ratio of what was measured at a look, and where it is claimed to be."""

    question: str
    unit: str
    told: str
    """A clause with a place {} for the range of the ratio."""

    ratio: Callable[[SamplerLook], float]
    beyond: Callable[[float], float]
    """How far a ratio is from what is claimed; negative where it is as claimed."""


def not_looked(
    results: Results, dataset: str, question: str, unit: str, decides: bool = True
) -> Compared:
    """Where there are no such looks."""
    why = absence(results, lambda cell: uses_samplers(cell) and cell.dataset == dataset)
    return absent(Contest(dataset, "", "", "", unit, None, why, question), decides)


def at_every_look(results: Results, dataset: str, asked: Asked, decides: bool = True) -> Compared:
    """All looks have to say the same, or nothing is decided; times have no test of their own.

    The effect is a mean over the looks, its error over the repeats.
    """
    repeats = looks_of(results, dataset)
    nothing = not_looked(results, dataset, asked.question, asked.unit, decides)
    if not repeats:
        return nothing
    ratios = [[asked.ratio(look) for look in looks] for looks in repeats]
    beyond = [worst(np.array([asked.beyond(ratio) for ratio in each])) for each in ratios]
    effect, error = _over_repeats([float(each.mean()) for each in beyond])
    every = [ratio for each in ratios for ratio in each]
    note = f"{_range(every)} at {several(len(every), 'look')}"
    verdict = _verdict(np.concatenate(beyond))
    clause = asked.told.format(_range(every)) + in_brackets(_DOUBTS[verdict])
    part = replace(nothing.part, verdict=verdict, effect=effect, error=error, note=note)
    return Compared(dataset, part, clause)


def _verdict(beyond: NDArray[np.float64]) -> Verdict:
    if (beyond <= 0).all():
        return "held"
    return "not held" if (beyond > 0).all() else "not decided"


def _over_repeats(means: list[float]) -> tuple[float, float]:
    """Mean and its standard error; NaN for one repeat, or where it is infinite."""
    effect = float(np.mean(means))
    if len(means) < 2 or not math.isfinite(effect):
        return effect, math.nan
    return effect, float(np.std(means, ddof=1)) / math.sqrt(len(means))


def _range(ratios: list[float]) -> str:
    low, high = _ratio(min(ratios)), _ratio(max(ratios))
    return low if low == high else f"{low} to {high}"


def _ratio(ratio: float) -> str:
    """Of two digits; a tiny one is told as such."""
    return f"less than {TINY:.4f}" if 0 <= ratio < TINY else figure(ratio, 2)
