"""C4: which β is chosen on cadata."""

import math
from dataclasses import replace
from statistics import median

import numpy as np

from directgp.datasets.wording import several
from directgp.experiments.paper.cells import FitCell, PaperCell
from directgp.experiments.paper.claims.base import Claim, Finding, Part
from directgp.experiments.paper.claims.contests import Compared, Contest, lower
from directgp.experiments.paper.claims.evidence import over_repeats
from directgp.experiments.paper.claims.findings import finding_of_all
from directgp.experiments.paper.claims.fits import Fit, absence, by_setting
from directgp.experiments.paper.claims.thresholds import LARGE_SIZE, SMALL_FACTOR, SMALL_SIZE
from directgp.experiments.paper.claims.wording import called, figure, in_brackets
from directgp.experiments.paper.results import Results

_SET = "cadata"
_METHODS = ("beta-elbo", "log-joint", "log-fixed")
_UNIT = "log10 β"


def _judge(results: Results) -> Finding:
    others = ("beta-elbo", "log-fixed")
    return finding_of_all(
        [
            *(_chosen(results, method, small=True, above=True) for method in _METHODS),
            _chosen(results, "log-joint", small=False, above=False),
            *(_chosen(results, m, small=False, above=True, decides=False) for m in others),
        ]
    )


def _chosen(
    results: Results, method: str, small: bool, above: bool, decides: bool = True
) -> Compared:
    """Whether a method's β is above 1, or below it; the effect is negative where it is so."""
    fits = _fits(results, method, small)
    judged = lower(_contest(results, fits, method, small, above), decides)
    if not fits:
        return judged
    doubt = in_brackets("undecided") if judged.part.verdict == "not decided" else ""
    clause = f"{called(method)} chose {_in_words(fits)}{doubt}"
    return replace(judged, part=_without_idle_test(judged.part, fits), clause=clause)


def _without_idle_test(part: Part, fits: list[Fit]) -> Part:
    """No p-value for choices that are all equal, which decide by their side of 1."""
    alike = len({outcome.beta for _, outcome in fits}) == 1
    return replace(part, p_value=math.nan) if alike else part


def _contest(results: Results, fits: list[Fit], method: str, small: bool, above: bool) -> Contest:
    question = f"{called(method)} chooses β {'>' if above else '<'} 1"
    if not fits:
        where = f"about {SMALL_SIZE} rows" if small else f"{LARGE_SIZE:,} rows or more"
        why = absence(results, lambda cell: _is_of(cell, method, small))
        return Contest(f"{_SET} with {where}", "", "", "", _UNIT, None, why, question)
    first = fits[0][1]
    logs = np.array([_log(outcome.beta) for _, outcome in fits])
    evidence = over_repeats(-logs if above else logs, first.num_test / first.num_training)
    place = f"{_SET} with {several(fits[0][0].size, 'row')}"
    return Contest(place, "", "", "", _UNIT, evidence, _in_words(fits), question)


def _fits(results: Results, method: str, small: bool) -> list[Fit]:
    """Of the size nearest 691, or of the largest; most repeats first, then the paper's protocol."""
    groups = [
        list(fits.values())
        for fits in by_setting(results, _SET, method).values()
        if _is_of(next(iter(fits.values()))[0], method, small)
    ]

    def place(fits: list[Fit]) -> tuple[float, int, bool]:
        cell = fits[0][0]
        near = -abs(math.log(cell.size / SMALL_SIZE))
        return near if small else float(cell.size), len(fits), cell.protocol == "paper"

    return max(groups, key=place, default=[])


def _is_of(cell: PaperCell, method: str, small: bool) -> bool:
    """Whether a cell belongs to the small or to the large samples of the claim."""
    if not isinstance(cell, FitCell) or (cell.dataset, cell.method) != (_SET, method):
        return False
    near = SMALL_SIZE / SMALL_FACTOR <= cell.size <= SMALL_SIZE * SMALL_FACTOR
    return near if small else cell.size >= LARGE_SIZE


def _uses(cell: PaperCell) -> bool:
    return any(_is_of(cell, method, small) for method in _METHODS for small in (True, False))


def _log(beta: float) -> float:
    return math.log10(beta) if beta > 0 else -math.inf


def _in_words(fits: list[Fit]) -> str:
    betas = [outcome.beta for _, outcome in fits]
    if min(betas) == max(betas):
        return f"β = {figure(betas[0])}{' each time' if len(betas) > 1 else ''}"
    ends = f"{figure(min(betas))} to {figure(max(betas))}"
    return f"β from {ends}, median {figure(median(betas))}"


C4 = Claim(
    id="C4",
    statement="On cadata with 691 training rows the best β is above 1 for all methods; with large "
    "samples joint DLM chooses a β below 1.",
    where="fig. 1c, text and appendix",
    criterion=f"At the training size nearest {SMALL_SIZE} (off by a factor of {SMALL_FACTOR:g} at "
    "most) the mean of log10 β over the repeats must be above 0 with p < 0.05, for the β-ELBO "
    "and both variants of log-loss DLM; at the largest size, of at least "
    f"{LARGE_SIZE:,} rows, below 0 for joint DLM. β that are all equal decide by their side of 1; "
    "the opposite with p < 0.05 contradicts the claim. Other methods with many rows are told "
    "beside.",
    figures=("1c", "2"),
    uses=_uses,
    judge=_judge,
)
