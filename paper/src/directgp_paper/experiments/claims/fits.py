"""Claims about trained methods: C1 to C6."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.metrics import SCORES
from directgp.text import number, plural, with_error
from directgp_paper.experiments.cells import (
    BETA_METHODS,
    EXACT,
    FITC_OF_ELBO,
    PAPER_METHODS,
    FitCell,
    PaperCell,
    ProtocolName,
    Results,
    RuleFacts,
)
from directgp_paper.experiments.claims import base, runs
from directgp_paper.experiments.claims.base import Finding, Judge, Pair, Part, Relation
from directgp_paper.experiments.claims.runs import AnyRecord
from directgp_paper.experiments.rows import TEST_SHARE, VALIDATION_SHARE
from directgp_paper.experiments.sweep import SMALL_SET, SMALL_SIZE

ERROR_MARGIN = 0.01
"""Increase of the error rate that still counts as equal: ten of the paper's 1,000 test rows."""

MRE_MARGIN = 0.01
"""Increase of the mean relative error that is still competitive: one percent of the count."""

BETA_STEP = 2.0
"""Factor within which β counts as 1: one step of the paper's grid."""

SMALL_FACTOR = 2.0
"""Maximum factor between the training rows of the paper's plot of β and another size."""

LARGE_SIZE = 2000
"""Minimum training rows of a large sample of cadata: three times the small one."""

VARIANTS = ("log-joint", "log-fixed")
BASELINES = ("elbo", "beta-elbo")


def uses_fits(datasets: Iterable[str], methods: Iterable[str]) -> Callable[[PaperCell], bool]:
    """Return a predicate: the cell is a fit of these methods on these data."""
    wanted = frozenset(datasets)
    names = frozenset(methods)
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
    decides: bool = True,
    beside: bool = False,
) -> list[Part]:
    """Compare a score of a method and of each baseline, by the protocol that decides.

    The comparisons by the other protocol may be put beside.
    """
    first, *others = runs.protocols(results, dataset)
    return [
        base.compare(
            fit_pair(results, dataset, method, baseline, score, protocol),
            relation,
            decides and protocol == first,
        )
        for protocol in (first, *(others if beside else ()))
        for baseline in baselines
    ]


def fit_pair(
    results: Results, dataset: str, one: str, reference: str, score: str, protocol: ProtocolName
) -> Pair:
    """Pair two methods at the largest size that both have, with most repeats."""
    labels = {score_type.name: score_type.label for task in SCORES.values() for score_type in task}
    unit = "error rate" if score == "error" else labels[score]
    first_name = PAPER_METHODS[one].name_in_text
    second_name = PAPER_METHODS[reference].name_in_text
    pair = Pair(dataset, first_name, second_name, unit)
    ones, others = (fits_of(results, dataset, method, protocol) for method in (one, reference))
    settings = runs.paired_runs(ones, others, _FREE, _steps)
    if not settings:
        return replace(pair, note=base.absence(results, uses_fits([dataset], (one, reference))))
    cell, pairs, alone = settings[0]
    outcomes = [(first_run.outcome, second_run.outcome) for first_run, second_run in pairs]
    scores = np.array([[a.scores[score], b.scores[score]] for a, b in outcomes])
    first = outcomes[0][0]
    every = [run for records in pairs for run in records]
    difference = runs.over_repeats(
        runs.between(scores[:, 0], scores[:, 1]),
        runs.shared_ratio(every[0]),
        1 / first.num_test if score == "error" else 0.0,
    )
    notes = [_PROTOCOLS[protocol]]
    if alone:
        notes.append(f"{plural(alone, 'repeat')} of only one method left out")
    return replace(
        pair,
        difference=difference,
        note="; ".join(notes),
        setting=plural(cell.size, "row"),
        margin=_share(scores[:, 1]) if score == "mse" else _MARGINS[score],
        convergence=runs.convergence(every),
        seconds=sum(run.outcome.seconds for run in every) / len(pairs),
    )


def _share(scores: NDArray[np.float64]) -> float:
    """Return the margin of the MSE; 0 if a score is not finite."""
    mean = float(scores.mean())
    return runs.MSE_SHARE * mean if math.isfinite(mean) else 0.0


_PROTOCOLS: dict[ProtocolName, str] = {"paper": "the paper's protocol", "best": "our protocol"}
_MARGINS = {"nll": runs.NLL_MARGIN, "error": ERROR_MARGIN, "mre": MRE_MARGIN}

_FREE = {"method", "betas", "rule"}
"""Fields in which fits that are compared may differ."""


def _steps(cell: FitCell) -> int:
    """Return the limit of steps, by which the longer of two runs is taken."""
    return cell.max_steps or 0


def fits_of(results: Results, dataset: str, method: str, protocol: ProtocolName) -> list[AnyRecord]:
    """Return the fits of a method, by the paper's rule if there are such; the longest grid last."""
    wanted = uses_fits([dataset], [method])
    fits = [
        run for run in results.of(FitCell) if wanted(run.cell) and run.cell.protocol == protocol
    ]
    chosen = [run for run in fits if run.cell.rule == _paper_rule(run.cell)] or fits
    return sorted(chosen, key=lambda run: len(run.cell.betas))


def _paper_rule(cell: FitCell) -> RuleFacts:
    """Return bMC with 10 samples for counts; the ELBO needs no rule."""
    sampled = cell.task == "count" and cell.method not in BASELINES
    return RuleFacts(name="bmc", samples=10) if sampled else EXACT


# C1 to C3: regression.

REGRESSION_SETS = ("pol", "cadata", "sarcos", "song")

_OTHERS = ("elbo", "beta-elbo", "fitc")
_SQUARE = ("square-joint", "square-fixed")


def _named(variants: Sequence[str], dataset: str) -> str:
    """Return the variant that the paper has in front: fixed on cadata, else joint."""
    return variants[dataset == "cadata"]


def better_variant(results: Results, dataset: str, variants: Sequence[str]) -> str:
    """Return the variant with the lower mean validation loss, or the only one that was run."""
    protocol = runs.protocols(results, dataset)[0]
    ones, others = (fits_of(results, dataset, method, protocol) for method in variants)
    settings = runs.paired_runs(ones, others, _FREE, _steps)
    pairs = settings[0][1] if settings else []
    losses = [[_validation(run) for run in pair] for pair in pairs]
    first, second = np.mean(losses, axis=0) if losses else (not ones, not others)
    return variants[bool(second < first)]


def _validation(run: AnyRecord) -> float:
    """Return the lowest validation loss of all β."""
    return min((point.validation for point in run.outcome.path), default=math.inf)


def _lower(variants: Sequence[str], others: tuple[str, ...], score: str, validated: bool) -> Judge:
    """Test whether a method has a lower score than others in regression.

    Of two variants the one of lower validation loss decides, or the one that the paper names.
    """

    def judge(results: Results) -> Finding:
        compared: list[Part] = []
        for dataset in REGRESSION_SETS:
            best = _named(variants, dataset) if len(variants) > 1 else variants[0]
            if validated:
                best = better_variant(results, dataset, variants)
            for method in variants:
                compared += against(
                    results, dataset, method, others, score, decides=method == best, beside=True
                )
        return base.finding(compared)

    return judge


_AS_SCRIPT = (*BASELINES, FITC_OF_ELBO.name)

C1 = base.claim(
    "C1",
    uses_fits(REGRESSION_SETS, (*VARIANTS, *_OTHERS, FITC_OF_ELBO.name)),
    {
        "the better variant": _lower(VARIANTS, _OTHERS, "nll", validated=True),
        "strict": _lower(VARIANTS, _OTHERS, "nll", validated=False),
        "FITC as in the authors' script": _lower(VARIANTS, _AS_SCRIPT, "nll", validated=False),
    },
    nll=runs.NLL_MARGIN,
)
C2 = base.claim(
    "C2",
    uses_fits(REGRESSION_SETS, (*_SQUARE, *_OTHERS, *VARIANTS)),
    {
        "the better variant": _lower(_SQUARE, (*_OTHERS, *VARIANTS), "mse", validated=True),
        "strict": _lower(_SQUARE, (*_OTHERS, *VARIANTS), "mse", validated=False),
    },
    mse=100 * runs.MSE_SHARE,
)
C3 = base.claim(
    "C3",
    uses_fits(REGRESSION_SETS, BASELINES),
    {"on every set": _lower(("beta-elbo",), ("elbo",), "nll", validated=False)},
    nll=runs.NLL_MARGIN,
)


# C4: the chosen β.


def _fits_of_size(
    results: Results, method: str, small: bool, protocol: ProtocolName
) -> list[AnyRecord]:
    """Return the fits of the size nearest 691, or of the largest size, with most repeats."""

    def rank(fits: list[AnyRecord]) -> tuple[float, int, int]:
        cell = fits[0].cell
        near = -abs(math.log(cell.size / SMALL_SIZE))
        return near if small else float(cell.size), len(fits), _steps(cell)

    every = fits_of(results, SMALL_SET, method, protocol)
    fits = [fit for fit in every if _has_size(fit.cell, method, small)]
    groups = [list(repeats.values()) for repeats in runs.by_setting(fits, _FREE).values()]
    return max(groups, key=rank, default=[])


Values = Callable[[Sequence[AnyRecord]], tuple[NDArray[np.float64], str]]
"""Returns a number for each fit, negative if β is below 1, and a description."""


def _chosen_betas(fits: Sequence[AnyRecord]) -> tuple[NDArray[np.float64], str]:
    """Return log10 of the chosen β."""
    betas = [fit.outcome.beta for fit in fits]
    text = f"chose β from {number(min(betas))} to {number(max(betas))}"
    if min(betas) == max(betas):
        text = f"chose β = {number(betas[0])}{' each time' if len(betas) > 1 else ''}"
    else:
        text += f", median {number(median(betas))}"
    return np.array([math.log10(beta) if beta > 0 else -math.inf for beta in betas]), text


def _lowest_losses(fits: Sequence[AnyRecord]) -> tuple[NDArray[np.float64], str]:
    """Return the lowest validation loss with β < 1 minus the lowest with β > 1."""

    def lowest(fit: AnyRecord, above: bool) -> float:
        path = [p for p in fit.outcome.path if (p.beta > 1 if above else p.beta < 1)]
        return min((point.validation for point in path), default=math.inf)

    below, above = (np.array([lowest(fit, side) for fit in fits]) for side in (False, True))
    values = runs.between(below, above)
    difference = runs.over_repeats(values, 0.0)
    if not math.isfinite(difference.effect):
        return values, "was trained with β on one side of 1 only"
    side = "below" if difference.effect < 0 else "above"
    size = with_error(abs(difference.effect), difference.error)
    return values, f"has a validation NLL {size} lower with β {side} 1"


def _has_size(cell: PaperCell, method: str, small: bool) -> bool:
    """Return whether a cell is one of the small, or of the large, samples of the claim."""
    if not isinstance(cell, FitCell) or (cell.dataset, cell.method) != (SMALL_SET, method):
        return False
    near = SMALL_SIZE / SMALL_FACTOR <= cell.size <= SMALL_SIZE * SMALL_FACTOR
    return near if small else cell.size >= LARGE_SIZE


def _uses_chosen(cell: PaperCell) -> bool:
    return any(_has_size(cell, method, small) for method in BETA_METHODS for small in (True, False))


@final
@dataclass(frozen=True)
class _Sides:
    """Judges on which side of 1 the best β is."""

    unit: str
    """Unit of the numbers, such as "log10 β"."""

    margin: float
    """Size of a number that counts as 0, in the unit."""

    values: Values
    """Returns a number for each fit."""

    strict: bool = False
    """Whether the other methods decide with many rows, too."""

    def __call__(self, results: Results) -> Finding:
        first, *others = runs.protocols(results, SMALL_SET)
        compared: list[Part] = []
        for protocol in (first, *others):
            test = partial(self._test, results, protocol)
            decides = protocol == first
            compared += [test(method, True, True, decides) for method in BETA_METHODS]
            compared.append(test("log-joint", False, False, decides))
            others_decide = decides and self.strict
            for method in ("beta-elbo", "log-fixed"):
                compared.append(test(method, False, True, others_decide))
        return base.finding(compared, every=True)

    def _test(
        self,
        results: Results,
        protocol: ProtocolName,
        method: str,
        small: bool,
        above: bool,
        decides: bool,
    ) -> Part:
        """Test whether β is on the claimed side of 1; then the effect is negative."""
        fits = _fits_of_size(results, method, small, protocol)
        name = PAPER_METHODS[method].name_in_text
        title = f"{name}, β {'>' if above else '<'} 1, {_PROTOCOLS[protocol]}"
        if not fits:
            where = f"about {SMALL_SIZE} rows" if small else f"{LARGE_SIZE:,} rows or more"
            why = base.absence(results, lambda cell: _has_size(cell, method, small))
            pair = Pair(f"{SMALL_SET} with {where}", "", "", self.unit, note=why, title=title)
            return base.compare(pair, decides=decides)
        numbers, text = self.values(fits)
        # The rows that choose β are those for validation.
        ratio = VALIDATION_SHARE / TEST_SHARE * runs.shared_ratio(fits[0])
        difference = runs.over_repeats(-numbers if above else numbers, ratio)
        place = f"{SMALL_SET} with {plural(fits[0].cell.size, 'row')}"
        pair = Pair(
            dataset=place,
            one="",
            reference="",
            unit=self.unit,
            difference=difference,
            note=text,
            title=title,
            margin=self.margin,
            convergence=runs.convergence(fits),
            seconds=sum(fit.outcome.seconds for fit in fits) / len(fits),
        )
        part = base.compare(pair, decides=decides)
        # Equal values decide by their side of 1; their p-value has no meaning.
        p = math.nan if len(set(numbers.tolist())) == 1 else part.p_value
        doubt = {"not decided": "undecided", "no difference": "no difference"}
        remarks = base.in_brackets(doubt.get(part.verdict, ""))
        return replace(part, p_value=p, clause=f"{name} {text}{remarks}")


C4 = base.claim(
    "C4",
    _uses_chosen,
    {
        "the chosen β": _Sides("log10 β", math.log10(BETA_STEP), _chosen_betas),
        "strict": _Sides("log10 β", math.log10(BETA_STEP), _chosen_betas, strict=True),
        "by loss": _Sides("validation NLL", runs.NLL_MARGIN, _lowest_losses),
    },
    small_size=SMALL_SIZE,
    factor=SMALL_FACTOR,
    large_size=LARGE_SIZE,
    step=BETA_STEP,
    nll=runs.NLL_MARGIN,
)


# C5 and C6: labels and counts, where one of the two variants of DLM has to hold.


def _either_variant(
    results: Results,
    dataset: str,
    title: str,
    joint: list[Part],
    score: str,
    better: str = "log-joint",
    also: Sequence[Part] = (),
) -> list[Part]:
    """Test the NLL of both variants, of which one must hold, and the second score of that one.

    The variant is the only one that holds, or the only one that is not contradicted, else the
    better one.
    """
    fixed = against(results, dataset, "log-fixed", BASELINES, "nll", "not above", False)
    nll = {"log-joint": joint, "log-fixed": fixed}
    verdicts = {
        variant: base.all_of(part.verdict for part in parts) for variant, parts in nll.items()
    }
    held = [variant for variant, verdict in verdicts.items() if verdict == "held"]
    possible = held or [variant for variant in nll if verdicts[variant] != "not held"]
    variant = possible[0] if len(possible) == 1 else better
    contradicted = set(verdicts.values()) == {"not held"}
    return [
        base.combined(title, base.verdict_of(bool(held), contradicted), nll[variant]),
        *also,
        *against(results, dataset, variant, BASELINES, score, "not above"),
        *joint,
        *fixed,
    ]


CLASSIFICATION_SETS = ("banana", "thyroid", "twonorm", "ringnorm")

_DLM_WINS = "ringnorm"
"""Data set on which DLM is better in the paper."""


def _classification(results: Results, dataset: str) -> list[Part]:
    joint = against(results, dataset, "log-joint", BASELINES, "nll", "not above", False)
    better = better_variant(results, dataset, VARIANTS)
    wins = against(results, dataset, better, BASELINES, "nll") if dataset == _DLM_WINS else []
    title = "a variant of log-loss DLM has an NLL comparable to the ELBO's and the β-ELBO's"
    return _either_variant(results, dataset, title, joint, "error", better, wins)


def _judge_classification(results: Results) -> Finding:
    return base.finding(
        [part for dataset in CLASSIFICATION_SETS for part in _classification(results, dataset)]
    )


C5 = base.claim(
    "C5",
    uses_fits(CLASSIFICATION_SETS, (*VARIANTS, *BASELINES)),
    {"taken together": _judge_classification},
    nll=runs.NLL_MARGIN,
    error=ERROR_MARGIN,
)

DIRECTIONS = ("peds1_dir0", "peds1_dir1", "peds1_dir2")

ONE_DIRECTION = "peds1"
"""A data set of one unknown direction."""

COUNT_SETS = ("abalone", *DIRECTIONS, ONE_DIRECTION)


def count_sets(present: set[str]) -> list[str]:
    """Return abalone and the present directions of Peds1; at least one direction."""
    pedestrians = [name for name in (*DIRECTIONS, ONE_DIRECTION) if name in present]
    return ["abalone", *(pedestrians or [ONE_DIRECTION])]


def _judge_counts(results: Results) -> Finding:
    names = count_sets({run.cell.dataset for run in results.of(FitCell)})
    title = "log-loss DLM is lower in NLL (joint), or not above (fixed), than ELBO and β-ELBO"
    compared = []
    verdicts = []
    for name in names:
        joint = against(results, name, "log-joint", BASELINES, "nll", decides=False)
        compared += _either_variant(results, name, title, joint, "mre")
        verdicts.append(base.all_of(part.verdict for part in joint))
    if any(part.clause for part in compared):
        # Joint DLM must be lower on all data sets except at most one.
        needed = len(verdicts) - 1
        won = verdicts.count("held")
        where = "all count sets"
        verdict = base.verdict_of(won >= needed, verdicts.count("not held") > 1)
        lost = verdicts.count("not held")
        open_sets = verdicts.count("not decided")
        if verdict == "not decided" and won + open_sets < needed and lost + open_sets <= 1:
            verdict = "no difference"
        part = Part(
            what=f"{where}: log-loss DLM (joint) is lower than ELBO and β-ELBO on all but one",
            verdict=verdict,
            effect=float(needed - won),
            error=math.nan,
            p_value=math.nan,
            unit="missing",
            dataset=where,
            clause=f"log-loss DLM (joint) below both in NLL on {won} of {len(verdicts)}",
            excess=float(needed - won),
        )
        compared.append(part)
    missing = len(DIRECTIONS) + 1 - len(names)
    directions = ("", "One direction of Peds1 is missing.", "Two directions of Peds1 are missing.")
    return base.finding(compared, directions[max(missing, 0)])


C6 = base.claim(
    "C6",
    uses_fits(COUNT_SETS, (*VARIANTS, *BASELINES)),
    {"all sets but one": _judge_counts},
    nll=runs.NLL_MARGIN,
    mre=MRE_MARGIN,
)
