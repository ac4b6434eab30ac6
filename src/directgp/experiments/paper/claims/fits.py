"""Claims about trained methods: C1 to C6."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from directgp.experiments.cell import METHODS
from directgp.experiments.paper.cells import (
    BETA_METHODS,
    EXACT,
    FitCell,
    PaperCell,
    Results,
    RuleFacts,
)
from directgp.experiments.paper.claims import base
from directgp.experiments.paper.claims.base import AnyRecord, Finding, Pair, Part, Relation, Test
from directgp.metrics import SCORES
from directgp.text import number, plural

ERROR_MARGIN = 0.01
"""Increase of the error rate that still counts as equal: ten of the paper's 1,000 test rows."""

MRE_MARGIN = 0.01
"""Increase of the mean relative error that is still competitive: one percent of the count."""

SMALL_SIZE, SMALL_FACTOR = 691, 2.0
"""Training rows of the paper's plot of β on cadata, and the maximum factor to another size."""

LARGE_SIZE = 2000
"""Minimum training rows of a large sample of cadata: three times the small one."""

CONVERGED = "converged"
"""Status of a fit that did not stop at a limit."""

VARIANTS = ("log-joint", "log-fixed")
BASELINES = ("elbo", "beta-elbo")


def uses_fits(datasets: Iterable[str], methods: Iterable[str]) -> Callable[[PaperCell], bool]:
    """Return a predicate: the cell is a fit of these methods on these data."""
    wanted, names = frozenset(datasets), frozenset(methods)
    return lambda cell: (
        isinstance(cell, FitCell) and cell.dataset in wanted and cell.method in names
    )


def against(
    results: Results,
    dataset: str,
    method: str,
    baselines: Iterable[str],
    score: str,
    relation: Relation = "lower",
    margin: float = 0.0,
    decides: bool = True,
) -> list[Part]:
    """Compare a score of a method with that of each baseline."""
    pairs = [fit_pair(results, dataset, method, baseline, score) for baseline in baselines]
    return [base.compare(pair, relation, margin, decides) for pair in pairs]


def fit_pair(results: Results, dataset: str, one: str, other: str, score: str) -> Pair:
    """Pair two methods at the largest size that both have.

    Of the same size, take the setting with most repeats; of two protocols, the paper's.
    """
    labels = {each.name: each.label for task in SCORES.values() for each in task}
    unit = "error rate" if score == "error" else labels[score]
    pair = Pair(dataset, METHODS[one].name_in_text, METHODS[other].name_in_text, unit)
    ones, others = (fits_of(results, dataset, method) for method in (one, other))
    settings = base.paired_runs(ones, others, _FREE, lambda cell: cell.protocol == "paper")
    if not settings:
        return replace(pair, note=base.absence(results, uses_fits([dataset], (one, other))))
    cell, runs, alone = settings[0]
    outcomes = [(one.outcome, other.outcome) for one, other in runs]
    scores = np.array([[a.scores[score], b.scores[score]] for a, b in outcomes])
    first, every = outcomes[0][0], [outcome for pair in outcomes for outcome in pair]
    found = base.over_repeats(
        base.differences(scores[:, 0], scores[:, 1]),
        first.num_test / first.num_training,
        1 / first.num_test if score == "error" else 0.0,
    )
    notes = ["the paper's protocol" if cell.protocol == "paper" else "our protocol"]
    if early := sum(outcome.status != CONVERGED for outcome in every):
        notes.append(f"{early} of {len(every)} fits not converged")
    if alone:
        notes.append(f"{plural(alone, 'repeat')} of only one method left out")
    size = plural(cell.size, "row")
    return replace(pair, difference=found, note="; ".join(notes), setting=size)


_FREE = {"method", "betas", "rule"}
"""Fields in which fits that are compared may differ."""


def fits_of(results: Results, dataset: str, method: str) -> list[AnyRecord]:
    """Return the fits of a method, by the paper's rule if there are such; the longest grid last."""
    wanted = uses_fits([dataset], [method])
    found = [run for run in results.of(FitCell) if wanted(run.cell)]
    chosen = [run for run in found if run.cell.rule == _paper_rule(run.cell)] or found
    return sorted(chosen, key=lambda run: len(run.cell.betas))


def _paper_rule(cell: FitCell) -> RuleFacts:
    """Return bMC with 10 samples for counts; the ELBO needs no rule."""
    sampled = cell.task == "count" and cell.method not in BASELINES
    return RuleFacts(name="bmc", samples=10) if sampled else EXACT


# C1 to C3: regression.

REGRESSION_SETS = ("pol", "cadata", "sarcos", "song")

_VARIATIONAL = ("elbo", "beta-elbo", "fitc")


def _lower(methods: tuple[str, ...], baselines: tuple[str, ...], score: str) -> Test:
    """Test whether methods have a lower score than all baselines in regression.

    Of two variants the one that the paper has in front decides: fixed on cadata, else joint.
    """

    def decides(method: str, dataset: str) -> bool:
        return len(methods) == 1 or method.endswith("-fixed") == (dataset == "cadata")

    return uses_fits(REGRESSION_SETS, (*methods, *baselines)), lambda results: base.finding(
        [
            each
            for dataset in REGRESSION_SETS
            for method in methods
            for each in against(
                results, dataset, method, baselines, score, decides=decides(method, dataset)
            )
        ]
    )


_SQUARE = ("square-joint", "square-fixed")

C1 = base.claim("C1", _lower(VARIANTS, _VARIATIONAL, "nll"))
C2 = base.claim("C2", _lower(_SQUARE, (*_VARIATIONAL, *VARIANTS), "mse"))
C3 = base.claim("C3", _lower(("beta-elbo",), ("elbo",), "nll"))


# C4: the chosen β.

_BETA_SET = "cadata"


def _chosen(results: Results, method: str, small: bool, above: bool, decides: bool = True) -> Part:
    """Test whether the β of a method is above or below 1; the effect is negative if it is.

    The fits are those of the size nearest 691, or of the largest size. Of the same size, take the
    setting with most repeats, then the paper's protocol.
    """

    def rank(fits: list[AnyRecord]) -> tuple[float, int, bool]:
        cell = fits[0].cell
        near = -abs(math.log(cell.size / SMALL_SIZE))
        return near if small else float(cell.size), len(fits), cell.protocol == "paper"

    fits = [f for f in fits_of(results, _BETA_SET, method) if _has_size(f.cell, method, small)]
    groups = [list(each.values()) for each in base.by_setting(fits, _FREE).values()]
    title = f"{METHODS[method].name_in_text} chooses β {'>' if above else '<'} 1"
    if not groups:
        where = f"about {SMALL_SIZE} rows" if small else f"{LARGE_SIZE:,} rows or more"
        why = base.absence(results, lambda cell: _has_size(cell, method, small))
        pair = Pair(f"{_BETA_SET} with {where}", "", "", "log10 β", note=why, title=title)
        return base.compare(pair, decides=decides)
    fits = max(groups, key=rank)
    first, betas = fits[0].outcome, [fit.outcome.beta for fit in fits]
    logs = np.array([math.log10(beta) if beta > 0 else -math.inf for beta in betas])
    found = base.over_repeats(-logs if above else logs, first.num_test / first.num_training)
    place = f"{_BETA_SET} with {plural(fits[0].cell.size, 'row')}"
    text = f"β from {number(min(betas))} to {number(max(betas))}, median {number(median(betas))}"
    if equal := min(betas) == max(betas):
        text = f"β = {number(betas[0])}{' each time' if len(betas) > 1 else ''}"
    part = base.compare(Pair(place, "", "", "log10 β", found, text, title=title), decides=decides)
    # Equal values decide by their side of 1; their p-value has no meaning.
    p = math.nan if equal else part.p_value
    undecided = base.in_brackets("undecided" if part.verdict == "not decided" else "")
    return replace(
        part, p_value=p, clause=f"{METHODS[method].name_in_text} chose {text}{undecided}"
    )


def _has_size(cell: PaperCell, method: str, small: bool) -> bool:
    """Return whether a cell is one of the small, or of the large, samples of the claim."""
    if not isinstance(cell, FitCell) or (cell.dataset, cell.method) != (_BETA_SET, method):
        return False
    near = SMALL_SIZE / SMALL_FACTOR <= cell.size <= SMALL_SIZE * SMALL_FACTOR
    return near if small else cell.size >= LARGE_SIZE


def _uses_chosen(cell: PaperCell) -> bool:
    return any(_has_size(cell, method, small) for method in BETA_METHODS for small in (True, False))


def _judge_chosen(results: Results) -> Finding:
    compared = [_chosen(results, method, small=True, above=True) for method in BETA_METHODS]
    compared.append(_chosen(results, "log-joint", small=False, above=False))
    for method in ("beta-elbo", "log-fixed"):
        compared.append(_chosen(results, method, small=False, above=True, decides=False))
    return base.finding(compared, every=True)


C4 = base.claim(
    "C4",
    (_uses_chosen, _judge_chosen),
    small_size=SMALL_SIZE,
    factor=SMALL_FACTOR,
    large_size=LARGE_SIZE,
)


# C5 and C6: labels and counts, where one of the two variants of DLM has to hold.


def _either_variant(
    results: Results,
    dataset: str,
    title: str,
    joint: list[Part],
    second: tuple[str, float],
    better: str = "log-joint",
    also: Sequence[Part] = (),
) -> list[Part]:
    """Test the NLL of both variants, of which one must hold, and the second score of that one.

    The variant is the only one that holds, else the better one. `second` is a score and its margin.
    """
    fixed = against(
        results, dataset, "log-fixed", BASELINES, "nll", "not above", base.NLL_MARGIN, False
    )
    nll = {"log-joint": joint, "log-fixed": fixed}
    verdicts = {
        variant: base.all_of(each.verdict for each in parts) for variant, parts in nll.items()
    }
    held = [variant for variant, verdict in verdicts.items() if verdict == "held"]
    variant, (score, margin) = held[0] if len(held) == 1 else better, second
    contradicted = set(verdicts.values()) == {"not held"}
    return [
        base.combined(title, base.verdict_of(bool(held), contradicted), nll[variant]),
        *also,
        *against(results, dataset, variant, BASELINES, score, "not above", margin),
        *joint,
        *fixed,
    ]


CLASSIFICATION_SETS = ("banana", "thyroid", "twonorm", "ringnorm")

_DLM_WINS = "ringnorm"
"""Data set on which DLM is better in the paper."""


def _classification(results: Results, dataset: str) -> list[Part]:
    joint = against(
        results, dataset, "log-joint", BASELINES, "nll", "not above", base.NLL_MARGIN, False
    )
    # The variant with the lower mean NLL; joint if one of them was not run.
    found = fit_pair(results, dataset, *VARIANTS, "nll").difference
    better = VARIANTS[found is not None and found.effect > 0]
    wins = against(results, dataset, better, BASELINES, "nll") if dataset == _DLM_WINS else []
    title = "a variant of log-loss DLM has an NLL comparable to the ELBO's and the β-ELBO's"
    return _either_variant(results, dataset, title, joint, ("error", ERROR_MARGIN), better, wins)


def _judge_classification(results: Results) -> Finding:
    return base.finding(
        [each for dataset in CLASSIFICATION_SETS for each in _classification(results, dataset)]
    )


_USES_CLASSIFICATION = uses_fits(CLASSIFICATION_SETS, (*VARIANTS, *BASELINES))
_CLASSIFICATION_TEST = _USES_CLASSIFICATION, _judge_classification

C5 = base.claim("C5", _CLASSIFICATION_TEST, nll=base.NLL_MARGIN, error=ERROR_MARGIN)

DIRECTIONS = ("peds1_dir0", "peds1_dir1", "peds1_dir2")

ONE_DIRECTION = "peds1"
"""One of the three directions; it is not known which."""

COUNT_SETS = ("abalone", *DIRECTIONS, ONE_DIRECTION)


def count_sets(present: set[str]) -> list[str]:
    """Return abalone and the present directions of Peds1; at least one direction."""
    pedestrians = [name for name in (*DIRECTIONS, ONE_DIRECTION) if name in present]
    return ["abalone", *(pedestrians or [ONE_DIRECTION])]


def _judge_counts(results: Results) -> Finding:
    names = count_sets({run.cell.dataset for run in results.of(FitCell)})
    title = "log-loss DLM is lower in NLL (joint), or not above (fixed), than ELBO and β-ELBO"
    compared, verdicts = [], []
    for name in names:
        joint = against(results, name, "log-joint", BASELINES, "nll", decides=False)
        compared += _either_variant(results, name, title, joint, ("mre", MRE_MARGIN))
        verdicts.append(base.all_of(each.verdict for each in joint))
    if any(each.clause for each in compared):
        # Joint DLM must be lower on all data sets except at most one.
        needed, won, where = len(verdicts) - 1, verdicts.count("held"), "all count sets"
        part = Part(
            what=f"{where}: log-loss DLM (joint) is lower than ELBO and β-ELBO on all but one",
            verdict=base.verdict_of(won >= needed, verdicts.count("not held") > 1),
            effect=float(needed - won),
            error=math.nan,
            p_value=math.nan,
            unit="missing data sets",
            dataset=where,
            clause=f"log-loss DLM (joint) below both in NLL on {won} of {len(verdicts)}",
            excess=float(needed - won),
        )
        compared.append(part)
    missing = len(DIRECTIONS) + 1 - len(names)
    directions = ("", "One direction of Peds1 is missing.", "Two directions of Peds1 are missing.")
    return base.finding(compared, directions[max(missing, 0)])


_COUNT_TEST = uses_fits(COUNT_SETS, (*VARIANTS, *BASELINES)), _judge_counts

C6 = base.claim("C6", _COUNT_TEST, nll=base.NLL_MARGIN, mre=MRE_MARGIN)
