"""Pairs of fits: two methods on the same splits, at the largest size that both have."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from directgp.datasets.wording import several
from directgp.experiments.paper.cells import FitCell, PaperCell
from directgp.experiments.paper.claims.contests import NOT_RUN, Contest
from directgp.experiments.paper.claims.evidence import Evidence, differences, over_repeats
from directgp.experiments.paper.claims.wording import called
from directgp.experiments.paper.results import FitOutcome, Results
from directgp.experiments.paper.rules import EXACT, RuleFacts
from directgp.metrics import SCORES

CONVERGED = "converged"
"""Status of a fit that did not stop at a limit."""

_OF_THE_METHOD = {"method", "betas", "rule", "repeat", "seed"}
"""Fields that do not say where two methods meet, or which repeat it is."""

Fit = tuple[FitCell, FitOutcome]

_Split = tuple[int, int]
"""Repeat and seed."""


@final
@dataclass(frozen=True)
class Meeting:
    """Where two methods were trained on the same splits."""

    cell: FitCell
    """One of the cells, for what they share."""

    pairs: tuple[tuple[FitOutcome, FitOutcome], ...]
    alone: int
    """Repeats that only one of the two has."""

    @property
    def note(self) -> str:
        """The protocol, fits that were stopped early, and what was left out."""
        protocol = "the paper's protocol" if self.cell.protocol == "paper" else "our protocol"
        every = [outcome for pair in self.pairs for outcome in pair]
        early = sum(outcome.status != CONVERGED for outcome in every)
        stopped = f"{early} of {len(every)} fits not converged" if early else ""
        left = f"{several(self.alone, 'repeat')} of one alone left out" if self.alone else ""
        return "; ".join(note for note in (protocol, stopped, left) if note)


def contest(results: Results, dataset: str, one: str, other: str, score: str) -> Contest:
    """Of two methods by their names, and a score by its name in `directgp.metrics`."""
    unit = _unit(score)
    found = meeting(results, dataset, one, other)
    if found is None:
        why = absence(results, lambda cell: _is_fit(cell, dataset, (one, other)))
        return Contest(dataset, "", called(one), called(other), unit, None, why)
    evidence = _evidence(found, score)
    size = several(found.cell.size, "row")
    return Contest(dataset, size, called(one), called(other), unit, evidence, found.note)


def meeting(results: Results, dataset: str, one: str, other: str) -> Meeting | None:
    """At the largest size; there, with most repeats; of two protocols, the paper's."""
    ones, others = by_setting(results, dataset, one), by_setting(results, dataset, other)
    met = [_meeting(ones[setting], others[setting]) for setting in ones if setting in others]
    return max((m for m in met if m.pairs), key=_rank, default=None)


def by_setting(results: Results, dataset: str, method: str) -> dict[str, dict[_Split, Fit]]:
    """Fits that differ in nothing but the split, by that."""
    settings: dict[str, dict[_Split, Fit]] = {}
    # The longest grid of β comes last, and stays.
    for cell, outcome in sorted(_fits(results, dataset, method), key=lambda f: len(f[0].betas)):
        setting = cell.model_dump_json(exclude=_OF_THE_METHOD)
        settings.setdefault(setting, {})[cell.repeat, cell.seed] = (cell, outcome)
    return settings


def absence(results: Results, concerns: Callable[[PaperCell], bool]) -> str:
    """Why there is nothing: not run, or a failure and its reason."""
    reasons = [failed.reason for failed in results.failed if concerns(failed.cell)]
    return f"failed: {reasons[0]}" if reasons else NOT_RUN


def uses_fits(datasets: Iterable[str], methods: Iterable[str]) -> Callable[[PaperCell], bool]:
    """Whether a cell is a fit of one of these methods on one of these data sets."""
    wanted, names = frozenset(datasets), tuple(methods)
    return lambda cell: cell.dataset in wanted and _is_fit(cell, cell.dataset, names)


def _fits(results: Results, dataset: str, method: str) -> list[Fit]:
    """By the rule that the paper has for the task, where there are such."""
    found = [
        (cell, outcome)
        for cell, outcome in results.fits()
        if cell.dataset == dataset and cell.method == method
    ]
    by_paper = [(cell, outcome) for cell, outcome in found if cell.rule == _paper_rule(cell)]
    return by_paper or found


def _is_fit(cell: PaperCell, dataset: str, methods: tuple[str, ...]) -> bool:
    return isinstance(cell, FitCell) and cell.dataset == dataset and cell.method in methods


def _paper_rule(cell: FitCell) -> RuleFacts:
    """Counts by bMC with 10 samples; no rule is needed for the ELBO."""
    sampled = cell.task == "count" and cell.method not in ("elbo", "beta-elbo")
    return RuleFacts(name="bmc", samples=10) if sampled else EXACT


def _meeting(ones: dict[_Split, Fit], others: dict[_Split, Fit]) -> Meeting:
    both = sorted(ones.keys() & others.keys())
    pairs = tuple((ones[split][1], others[split][1]) for split in both)
    return Meeting(next(iter(ones.values()))[0], pairs, len(ones.keys() ^ others.keys()))


def _rank(found: Meeting) -> tuple[int, int, bool, str]:
    paper = found.cell.protocol == "paper"
    return found.cell.size, len(found.pairs), paper, found.cell.model_dump_json()


def _evidence(found: Meeting, score: str) -> Evidence:
    scores = np.array([[one.scores[score], other.scores[score]] for one, other in found.pairs])
    first = found.pairs[0][0]
    resolution = 1 / first.num_test if score == "error" else 0.0
    ratio = first.num_test / first.num_training
    return over_repeats(differences(scores[:, 0], scores[:, 1]), ratio, resolution)


def _unit(score: str) -> str:
    """``NLL``, as tables call it; the error rate is written out."""
    if score == "error":
        return "error rate"
    return next(each.label for task in SCORES.values() for each in task if each.name == score)
