"""Judge the claims about trained methods: C1 to C6."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import final

import numpy as np

from directgp.experiments.paper.cells import (
    EXACT,
    FitCell,
    FitOutcome,
    PaperCell,
    Results,
    RuleFacts,
)
from directgp.experiments.paper.claims.base import (
    ERROR_MARGIN,
    LARGE_SIZE,
    MRE_MARGIN,
    NLL_MARGIN,
    NOT_RUN,
    SMALL_FACTOR,
    SMALL_SIZE,
    Claim,
    Compared,
    Contest,
    Evidence,
    Finding,
    Part,
    Verdict,
    absent,
    all_of,
    any_of,
    called,
    differences,
    finding,
    finding_of_all,
    hardest,
    in_brackets,
    lower,
    not_above,
    over_repeats,
)
from directgp.metrics import SCORES
from directgp.text import number, plural

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
        left = f"{plural(self.alone, 'repeat')} of one alone left out" if self.alone else ""
        return "; ".join(note for note in (protocol, stopped, left) if note)


def contest(results: Results, dataset: str, one: str, other: str, score: str) -> Contest:
    """Of two methods by their names, and a score by its name in `directgp.metrics`."""
    unit = _unit(score)
    found = meeting(results, dataset, one, other)
    if found is None:
        why = absence(results, lambda cell: _is_fit(cell, dataset, (one, other)))
        return Contest(dataset, "", called(one), called(other), unit, None, why)
    evidence = _evidence(found, score)
    size = plural(found.cell.size, "row")
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


VARIANTS = ("log-joint", "log-fixed")
RIVALS = ("elbo", "beta-elbo")


def verdict_of(compared: Sequence[Compared]) -> Verdict:
    """Of all of them."""
    return all_of(each.part.verdict for each in compared)


def better(results: Results, dataset: str) -> str:
    """The variant with the lower mean NLL; the joint one where they are not both there."""
    evidence = contest(results, dataset, *VARIANTS, "nll").evidence
    return VARIANTS[evidence is not None and evidence.effect > 0]


def not_sacrificed(
    results: Results, dataset: str, variant: str, score: str, margin: float
) -> list[Compared]:
    """Whether a score of a variant is not above its rivals'."""
    return [not_above(contest(results, dataset, variant, rival, score), margin) for rival in RIVALS]


def summary(place: str, question: str, verdict: Verdict, of: Sequence[Compared]) -> Compared:
    """A comparison that decides, with the figures of the closest of those it is made of."""
    run = [each for each in of if each.was_run]
    if not run:
        why = of[0].part.note
        return absent(Contest(place, "", "", "", of[0].part.unit, None, why, question), True)
    least = hardest(run)
    where, _, what = least.part.what.partition(": ")
    note = f"the closest: {what}; {least.part.note}"
    part = replace(
        least.part, what=f"{where}: {question}", verdict=verdict, note=note, decides=True
    )
    return Compared(place, part, least.clause, least.excess)


REGRESSION_SETS = ("pol", "cadata", "sarcos", "song")

_VARIATIONAL = ("elbo", "beta-elbo", "fitc")
_LOG = ("log-joint", "log-fixed")
_SQUARE = ("square-joint", "square-fixed")

_PAIRED = (
    "On every data set, at the largest training size that both have, the mean difference over the "
    "repeats must be negative with p < 0.05 in a paired t-test (variance corrected for splits "
    "that share rows); a positive one with p < 0.05 contradicts the claim, anything else decides "
    "nothing."
)


def _best(
    results: Results, variants: tuple[str, str], rivals: tuple[str, ...], score: str
) -> Finding:
    return finding(
        [
            each
            for dataset in REGRESSION_SETS
            for variant in variants
            for each in _against(results, dataset, variant, rivals, score)
        ]
    )


def _against(
    results: Results, dataset: str, variant: str, rivals: tuple[str, ...], score: str
) -> list[Compared]:
    """The variant that the paper has in front on the data set decides; the other is told."""
    decides = variant.endswith("-fixed") == (dataset == "cadata")
    return [lower(contest(results, dataset, variant, rival, score), decides) for rival in rivals]


def _beta_helps(results: Results) -> Finding:
    return finding(
        [lower(contest(results, name, "beta-elbo", "elbo", "nll")) for name in REGRESSION_SETS]
    )


C1 = Claim(
    id="C1",
    statement="In regression, log-loss DLM has a lower test NLL than the ELBO, the β-ELBO and "
    "FITC: joint on pol, sarcos and song, fixed on cadata.",
    where="fig. 1a, text and appendix",
    criterion=f"{_PAIRED} The other variant of DLM is told beside.",
    figures=("1a", "2"),
    uses=uses_fits(REGRESSION_SETS, (*_LOG, *_VARIATIONAL)),
    judge=lambda results: _best(results, _LOG, _VARIATIONAL, "nll"),
)

C2 = Claim(
    id="C2",
    statement="Square-loss DLM has a lower test MSE than all others, log-loss DLM included: joint "
    "on pol, sarcos and song, fixed on cadata.",
    where="fig. 1b, text and appendix",
    criterion=f"{_PAIRED} The other variant of DLM is told beside.",
    figures=("1b", "3"),
    uses=uses_fits(REGRESSION_SETS, (*_SQUARE, *_VARIATIONAL, *_LOG)),
    judge=lambda results: _best(results, _SQUARE, (*_VARIATIONAL, *_LOG), "mse"),
)

C3 = Claim(
    id="C3",
    statement="The β-ELBO has a lower test NLL than the ELBO in regression.",
    where="fig. 1a, text",
    criterion=_PAIRED,
    figures=("1a", "2"),
    uses=uses_fits(REGRESSION_SETS, ("elbo", "beta-elbo")),
    judge=_beta_helps,
)


_SET = "cadata"
_METHODS = ("beta-elbo", "log-joint", "log-fixed")
_UNIT = "log10 β"


def _judge_chosen_beta(results: Results) -> Finding:
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
    fits = _fits_on_cadata(results, method, small)
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
    place = f"{_SET} with {plural(fits[0][0].size, 'row')}"
    return Contest(place, "", "", "", _UNIT, evidence, _in_words(fits), question)


def _fits_on_cadata(results: Results, method: str, small: bool) -> list[Fit]:
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
        return f"β = {number(betas[0])}{' each time' if len(betas) > 1 else ''}"
    ends = f"{number(min(betas))} to {number(max(betas))}"
    return f"β from {ends}, median {number(median(betas))}"


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
    judge=_judge_chosen_beta,
)


CLASSIFICATION_SETS = ("banana", "thyroid", "twonorm", "ringnorm")

_WON = "ringnorm"
"""Where the paper has DLM in front."""


def _judge_classification(results: Results) -> Finding:
    return finding(
        [each for dataset in CLASSIFICATION_SETS for each in _classification_on(results, dataset)]
    )


def _classification_on(results: Results, dataset: str) -> list[Compared]:
    nll = {variant: _comparable(results, dataset, variant) for variant in VARIANTS}
    verdicts = {variant: verdict_of(nll[variant]) for variant in VARIANTS}
    held = [variant for variant in VARIANTS if verdicts[variant] == "held"]
    variant = held[0] if len(held) == 1 else better(results, dataset)
    question = "a variant of log-loss DLM has an NLL comparable to the ELBO's and the β-ELBO's"
    return [
        summary(dataset, question, any_of(verdicts.values()), nll[variant]),
        *(_won(results) if dataset == _WON else []),
        *not_sacrificed(results, dataset, variant, "error", ERROR_MARGIN),
        *(each for variant in VARIANTS for each in nll[variant]),
    ]


def _comparable(results: Results, dataset: str, variant: str) -> list[Compared]:
    return [
        not_above(contest(results, dataset, variant, rival, "nll"), NLL_MARGIN, decides=False)
        for rival in RIVALS
    ]


def _won(results: Results) -> list[Compared]:
    variant = better(results, _WON)
    return [lower(contest(results, _WON, variant, rival, "nll")) for rival in RIVALS]


C5 = Claim(
    id="C5",
    statement="In classification, log-loss DLM is comparable to or better than the ELBO and the "
    "β-ELBO in NLL (better on ringnorm), without sacrificing classification error.",
    where="fig. 1d, text and appendix",
    criterion="On banana, thyroid, twonorm and ringnorm, at the largest training size, the 95 % "
    "interval of the mean difference in NLL must end below "
    f"{NLL_MARGIN:g} against both the ELBO and the β-ELBO, for at least one variant of DLM, and "
    f"that of its error rate below {ERROR_MARGIN:g}; on ringnorm the better variant must be lower "
    "than both with p < 0.05. Intervals wholly above the margin, or higher with p < 0.05, "
    "contradict the claim.",
    figures=("1d", "4", "5"),
    uses=uses_fits(CLASSIFICATION_SETS, (*VARIANTS, *RIVALS)),
    judge=_judge_classification,
)


DIRECTIONS = ("peds1_dir0", "peds1_dir1", "peds1_dir2")

ONE_DIRECTION = "peds1"
"""One of the three; which is not known."""

COUNT_SETS = ("abalone", *DIRECTIONS, ONE_DIRECTION)


def _judge_counts(results: Results) -> Finding:
    names = count_sets({cell.dataset for cell, _ in results.fits()})
    joint = {name: _lower(results, name) for name in names}
    compared = [each for name in names for each in _counts_on(results, name, joint[name])]
    was_run = any(each.was_run for each in compared)
    overall = [_all_but_one([verdict_of(joint[name]) for name in names])] if was_run else []
    return finding([*compared, *overall], directions_missing(names))


def count_sets(present: set[str]) -> list[str]:
    """Abalone and at least one direction of Peds1, whether they are there or not."""
    pedestrians = [name for name in (*DIRECTIONS, ONE_DIRECTION) if name in present]
    return ["abalone", *(pedestrians or [ONE_DIRECTION])]


def directions_missing(names: list[str]) -> str:
    """A sentence, where the paper had more directions of Peds1."""
    missing = len(DIRECTIONS) + 1 - len(names)
    if missing <= 0:
        return ""
    return f"{('One direction of Peds1 is', 'Two directions of Peds1 are')[missing - 1]} missing."


def _counts_on(results: Results, name: str, joint: list[Compared]) -> list[Compared]:
    fixed = [
        not_above(contest(results, name, "log-fixed", rival, "nll"), NLL_MARGIN, decides=False)
        for rival in RIVALS
    ]
    verdicts = {"log-joint": verdict_of(joint), "log-fixed": verdict_of(fixed)}
    by_fixed = verdicts["log-joint"] != "held" and verdicts["log-fixed"] == "held"
    variant, of = ("log-fixed", fixed) if by_fixed else ("log-joint", joint)
    question = "log-loss DLM is lower in NLL (joint), or not above (fixed), than ELBO and β-ELBO"
    return [
        summary(name, question, any_of(verdicts.values()), of),
        *not_sacrificed(results, name, variant, "mre", MRE_MARGIN),
        *joint,
        *fixed,
    ]


def _lower(results: Results, name: str) -> list[Compared]:
    contests = [contest(results, name, "log-joint", rival, "nll") for rival in RIVALS]
    return [lower(each, decides=False) for each in contests]


def _all_but_one(verdicts: list[Verdict]) -> Compared:
    """Whether joint DLM is lower on all data sets but one."""
    needed, won = len(verdicts) - 1, verdicts.count("held")
    verdict: Verdict = "not held" if verdicts.count("not held") > 1 else "not decided"
    part = Part(
        what="all count sets: log-loss DLM (joint) is lower than ELBO and β-ELBO on all but one",
        verdict="held" if won >= needed else verdict,
        effect=float(needed - won),
        error=math.nan,
        p_value=math.nan,
        unit="data sets short of it",
    )
    told = f"log-loss DLM (joint) below both in NLL on {won} of {len(verdicts)}"
    return Compared("all count sets", part, told, part.effect)


C6 = Claim(
    id="C6",
    statement="For counts, joint log-loss DLM dominates the ELBO and the β-ELBO in NLL on three "
    "data sets and fixed DLM is equal or better on the fourth; the mean relative error stays "
    "competitive.",
    where="fig. 1e, text and appendix",
    criterion="On each count set that can be had, at the largest training size, joint DLM must be "
    "lower in NLL than both with p < 0.05 (paired, corrected), or the 95 % interval of fixed DLM "
    f"must end below {NLL_MARGIN:g} above both; joint must be lower on all sets but one; the "
    f"interval of the mean relative error of that variant must end below {MRE_MARGIN:g}. "
    "Both variants contradicted on a set, joint higher with p < 0.05 on two, or an interval of the "
    "relative error wholly above the margin contradict the claim.",
    figures=("1e", "6", "7"),
    uses=uses_fits(COUNT_SETS, (*VARIANTS, *RIVALS)),
    judge=_judge_counts,
)
