"""Claims about learning curves: C7 and C9 to C12."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from directgp.experiments import SIGNIFICANT
from directgp.text import number, p_value, plural, with_error
from directgp_paper.experiments.cells import (
    AIRLINE,
    AIRLINE_BETAS,
    BMC,
    EXACT,
    SMOOTH_BMC,
    UPS,
    CurveCell,
    PaperCell,
    Results,
    RuleFacts,
    rules,
)
from directgp_paper.experiments.claims import base, runs
from directgp_paper.experiments.claims.base import (
    Finding,
    Judge,
    Pair,
    Part,
    Relation,
)
from directgp_paper.experiments.claims.fits import COUNT_SETS, REGRESSION_SETS, count_sets
from directgp_paper.experiments.claims.runs import AnyRecord, Difference

FIRST_EPOCH = 0.999
"""First epoch that counts on airline, in steps of full batches; earlier points show the start."""

VARIANTS = ("joint", "fixed")

Selection = Callable[[CurveCell], bool]


def _indices(curve: AnyRecord) -> dict[int, int]:
    """Return the index of each evaluated step; of two at the same step, the later one."""
    return {point.step: index for index, point in enumerate(curve.outcome.points)}


def _nll_at(curve: AnyRecord, step: int) -> tuple[float, NDArray[np.float64]]:
    """Return the mean NLL and the stored NLLs of test rows; ∞ if the curve ended before."""
    index = _indices(curve).get(step)
    losses = curve.arrays["losses"]
    points = curve.outcome.points
    if index is None:
        return math.inf, np.full(losses.shape[1], np.inf)
    # The array has the losses of the last points alone.
    return points[index].scores["nll"], losses[index - len(points)].astype(np.float64)


class CurvePairs(NamedTuple):
    """Pairs of learning curves that differ in one respect, one pair per repeat."""

    cell: CurveCell
    """One of the cells, for the settings that all share."""

    pairs: list[tuple[AnyRecord, AnyRecord]]
    """Two curves for each repeat."""

    @property
    def evaluations(self) -> list[tuple[int, float]]:
        """Return the steps and epochs at which all curves that had not ended were evaluated."""
        curves = [(curve, _indices(curve)) for pair in self.pairs for curve in pair]
        epochs = {p.step: p.epoch for curve, _ in curves for p in curve.outcome.points}
        return sorted(
            (step, epoch)
            for step, epoch in epochs.items()
            if all(step in indices or step > max(indices) for _, indices in curves)
        )

    def rows_at(self, step: int) -> Difference:
        """Test the difference paired over the test rows, averaged over the repeats.

        If only some rows have stored losses, the standard error comes from them, and the mean from
        the scores of all rows. Training is noisy: the difference is tested over the repeats if that
        gives the wider interval. One repeat decides nothing.
        """
        points = [(_nll_at(one, step), _nll_at(reference, step)) for one, reference in self.pairs]
        stored = [runs.between(one[1], reference[1]) for one, reference in points]
        over_rows = runs.over_rows(stored)
        all_rows = sum(one.outcome.num_test for one, _ in self.pairs)
        count = sum(map(len, stored))
        if not math.isfinite(over_rows.effect):
            return over_rows
        if count < all_rows:
            mean = float(np.mean([one[0] - reference[0] for one, reference in points]))
            over = f"{plural(all_rows, 'test row')}, standard error from {count:,} of them"
            error = over_rows.error * math.sqrt(count / all_rows)
            over_rows = replace(runs.measured(mean, error), over=over)
        means = np.array([[one[0], reference[0]] for one, reference in points])
        ratio = runs.shared_ratio(self.pairs[0][0])
        repeats = runs.over_repeats(runs.between(means[:, 0], means[:, 1]), ratio)
        if len(points) == 1:
            return replace(repeats, error=over_rows.error, over="1 repeat")
        if not math.isfinite(repeats.effect):
            return repeats
        return max(repeats, over_rows, key=lambda difference: difference.high - difference.low)

    def at_the_end(self, one: RuleFacts, reference: RuleFacts) -> Pair:
        """Compare two rules at the last evaluation, paired over the repeats.

        On airline, which has many test rows, they are paired over these.
        """
        cell = self.cell
        last = self.evaluations[-1][0]
        if cell.dataset == AIRLINE:
            difference = self.rows_at(last)
        else:
            nll = np.array([[_nll_at(curve, last)[0] for curve in pair] for pair in self.pairs])
            ratio = runs.shared_ratio(self.pairs[0][0])
            difference = runs.over_repeats(runs.between(nll[:, 0], nll[:, 1]), ratio)
        how = f"β = {cell.beta:g}, learning rate {cell.learning_rate:g}"
        every = [run for pair in self.pairs for run in pair]
        return Pair(
            dataset=cell.dataset,
            one=one.label,
            reference=reference.label,
            unit="NLL",
            difference=difference,
            note="",
            setting=f"{plural(cell.size, 'row')}, {how}, {plural(last, 'step')}",
            margin=runs.curve_margin(cell),
            convergence=runs.convergence(every),
            seconds=sum(run.outcome.seconds for run in every) / len(self.pairs),
        )


def curve_pairs(
    results: Results, one: Selection, reference: Selection, differ: set[str]
) -> list[CurvePairs]:
    """Pair curves whose settings are equal except for some fields, the largest size first."""
    run = [curve for curve in results.of(CurveCell) if curve.outcome.points]
    ones = [curve for curve in run if one(curve.cell)]
    references = [curve for curve in run if reference(curve.cell)]
    settings = runs.paired_runs(ones, references, differ, lambda cell: cell.steps)
    return [CurvePairs(cell, pairs) for cell, pairs, _ in settings]


def is_joint(cell: CurveCell, whitened: bool = True) -> bool:
    """Return whether a curve is of joint log-loss DLM, with q(u) in these parameters."""
    kind = cell.objective, cell.hyperparameters, cell.whitened
    return kind == ("log_loss", "joint", whitened)


def uses_curves(of: Selection, rules: Iterable[RuleFacts]) -> Callable[[PaperCell], bool]:
    """Return a predicate: the cell is a selected curve with one of the rules."""
    wanted = frozenset(rules)
    return lambda cell: isinstance(cell, CurveCell) and of(cell) and cell.rule in wanted


def compare_rules(
    results: Results,
    dataset: str,
    of: Selection,
    rules: tuple[RuleFacts, RuleFacts],
    relation: Relation,
    decides: bool = True,
    beta: float | None = None,
) -> list[Part]:
    """Compare two rules at the end of the largest selected curves, per learning rate and β."""

    def selected(cell: CurveCell, rule: RuleFacts) -> bool:
        chosen = cell.dataset == dataset and of(cell) and beta in (None, cell.beta)
        return chosen and cell.rule == rule

    one, reference = (partial(selected, rule=rule) for rule in rules)
    largest: dict[tuple[float, float], CurvePairs] = {}
    for group in curve_pairs(results, one, reference, {"rule"}):
        largest.setdefault((group.cell.learning_rate, group.cell.beta), group)
    pairs = [group.at_the_end(*rules) for group in largest.values()]
    if not pairs:

        def concerns(cell: PaperCell) -> bool:
            return isinstance(cell, CurveCell) and (one(cell) or reference(cell))

        why = base.absence(results, concerns)
        setting = "" if beta is None else f"β = {beta:g}"
        first, second = rules
        pairs = [Pair(dataset, first.label, second.label, "NLL", note=why, setting=setting)]
    return [base.compare(pair, relation, decides) for pair in pairs]


# C7: DLM and ELBO on airline.


def _along(results: Results, variant: str, beta: float, elbo_beta: float) -> Part:
    """Compare DLM with one β and the ELBO with one β at every evaluation after the first epoch.

    The part has the numbers of the last evaluation. A contradiction at any evaluation needs a
    significant difference after a Bonferroni correction.
    """
    groups = curve_pairs(
        results,
        lambda cell: _is_airline(cell, "log_loss", variant, beta),
        lambda cell: _is_airline(cell, "elbo", "joint", elbo_beta),
        {"objective", "hyperparameters", "beta"},
    )
    one = f"log-loss DLM ({variant})"
    baseline = f"the ELBO with β = {elbo_beta:g}"
    why = "no evaluation after the first epoch" if groups else base.absence(results, _uses_airline)
    pair = Pair(AIRLINE, one, baseline, "NLL", note=why, setting=f"β = {beta:g}")
    evaluated = [
        (epoch, groups[0].rows_at(step))
        for step, epoch in (groups[0].evaluations if groups else ())
        if epoch >= FIRST_EPOCH
    ]
    if not evaluated:
        return base.compare(pair)
    epoch, last = evaluated[-1]
    worst_epoch, worst = max(evaluated, key=lambda evaluation: evaluation[1].effect)
    number = len(evaluated)
    lower = sum(difference.effect < 0 for _, difference in evaluated)
    count = f"lower at {lower} of {plural(number, 'evaluation')}"
    least = f"worst after epoch {worst_epoch:.3g} ({with_error(worst.effect, worst.error)})"
    note = f"after epoch {epoch:.3g}; {count}, {least}"
    part = base.compare(replace(pair, difference=last, note=note))
    verdict = base.verdict_of(
        lower == number and last.p_value < SIGNIFICANT,
        any(d.effect > 0 and d.p_value < SIGNIFICANT / number for _, d in evaluated),
    )
    undecided = "undecided" if verdict == "not decided" else ""
    side = "below" if part.effect < 0 else "above"
    clause = (
        f"{one} with {pair.setting} ends {base.distance(part)} {side} {baseline} in NLL"
        f"{base.in_brackets(p_value(part.p_value), count, undecided)}"
    )
    remedy = part.remedy or "More repeats may decide it: --repeats." if undecided else ""
    return replace(part, verdict=verdict, clause=clause, excess=worst.effect, remedy=remedy)


def _is_airline(cell: CurveCell, objective: str, variant: str, beta: float) -> bool:
    """Return whether a cell is an exact curve of airline with this objective, variant and β."""
    kind = (cell.objective, cell.hyperparameters, cell.beta) == (objective, variant, beta)
    return kind and cell.dataset == AIRLINE and cell.rule == EXACT and cell.whitened


def _uses_airline(cell: PaperCell) -> bool:
    kinds = [("elbo", "joint"), *(("log_loss", variant) for variant in VARIANTS)]
    return isinstance(cell, CurveCell) and any(
        _is_airline(cell, *kind, beta) for kind in kinds for beta in AIRLINE_BETAS
    )


def _judge_airline(results: Results) -> Finding:
    betas = [*((beta, beta) for beta in AIRLINE_BETAS), (0.1, 1.0), (10.0, 1.0)]
    return base.finding([_along(results, variant, *pair) for pair in betas for variant in VARIANTS])


C7 = base.claim("C7", _uses_airline, {"at every epoch": _judge_airline})


# C9 and C10: recovery of exact gradients.

_BETA = 0.1
"""β of fig. 1i, and of the curves in regression."""

_OUR_UPS = rules("ups-mixed", 1, 10)
_BMC_1, _BMC_10, _BMC_100 = BMC


RulePair = tuple[RuleFacts, RuleFacts, bool]
"""Two rules, and whether their comparison decides."""


def _recovery(
    datasets: tuple[str, ...],
    betas: tuple[float, ...],
    pairs: Sequence[RulePair],
    whitened: bool = True,
) -> Judge:
    """Test whether rules recover the exact one, and are lower than others.

    The paper's β decides.
    """
    of = partial(is_joint, whitened=whitened)

    def judge(results: Results) -> Finding:
        compared: list[Part] = []
        for name, beta, (one, reference, decides) in itertools.product(datasets, betas, pairs):
            relation: Relation = "equal" if reference == EXACT else "lower"
            counts = decides and beta == _BETA
            compared += compare_rules(results, name, of, (one, reference), relation, counts, beta)
        return base.finding(compared)

    return judge


def _uses_rules(
    datasets: tuple[str, ...],
    betas: tuple[float, ...],
    pairs: Sequence[RulePair],
    whitened: bool = True,
) -> Callable[[PaperCell], bool]:
    def selected(cell: CurveCell) -> bool:
        return is_joint(cell, whitened) and cell.dataset in datasets and cell.beta in betas

    return uses_curves(selected, (rule for pair in pairs for rule in pair[:2]))


_AIRLINE_PAIRS: tuple[RulePair, ...] = (
    (UPS[1], EXACT, True),
    (_BMC_100, EXACT, True),
    (UPS[0], _BMC_10, True),
    *((rule, EXACT, False) for rule in (UPS[0], _BMC_10, _BMC_1, _OUR_UPS[0])),
    (_OUR_UPS[0], _BMC_10, False),
)
_REGRESSION_PAIRS: tuple[RulePair, ...] = (
    *((rule, EXACT, True) for rule in (_BMC_10, _BMC_100)),
    *((rule, _BMC_1, True) for rule in (EXACT, _BMC_10, _BMC_100)),
)

_WHITENED = (AIRLINE,), AIRLINE_BETAS, _AIRLINE_PAIRS
_UNWHITENED = (AIRLINE,), (_BETA,), _AIRLINE_PAIRS[:3], False
_REGRESSION = REGRESSION_SETS, (_BETA,), _REGRESSION_PAIRS

C9 = base.claim(
    "C9",
    lambda cell: _uses_rules(*_WHITENED)(cell) or _uses_rules(*_UNWHITENED)(cell),
    {"whitened": _recovery(*_WHITENED), "unwhitened": _recovery(*_UNWHITENED)},
    margin=runs.AIRLINE_MARGIN,
)
C10 = base.claim(
    "C10",
    _uses_rules(*_REGRESSION),
    {"at the end": _recovery(*_REGRESSION)},
    margin=runs.REGRESSION_MARGIN,
)


# C11 and C12: rules that are claimed to equal bMC.

_RATE = 0.01
"""Learning rate of Adam at which the paper compares uPS with bMC."""


def _in_c11(cell: CurveCell) -> bool:
    on_airline = (cell.dataset, cell.beta) == (AIRLINE, _BETA)
    return is_joint(cell) and (cell.dataset in COUNT_SETS or on_airline)


def _in_c12(cell: CurveCell) -> bool:
    in_counts = is_joint(cell) and cell.dataset in COUNT_SETS
    return in_counts and math.isclose(cell.learning_rate, _RATE)


def _equal_bmc(
    results: Results, of: Selection, tested: tuple[RuleFacts, ...], decides: bool = True
) -> list[Part]:
    """Compare rules with bMC of as many samples, for every β of the sweep and the paper's.

    Only data sets and numbers of samples that the sweep has are compared; all if it has none.
    """
    curves = [cell for cell in results.cells if isinstance(cell, CurveCell) and of(cell)]
    swept = {(cell.dataset, cell.rule) for cell in curves}
    names = count_sets({cell.dataset for cell in curves})
    if any((AIRLINE, rule) in swept for rule in tested):
        names.append(AIRLINE)
    compared: list[Part] = []
    for name in names:
        betas = sorted({_BETA, *(cell.beta for cell in curves if cell.dataset == name)})
        rules = [rule for rule in tested if (name, rule) in swept] or tested
        for rule, beta in itertools.product(rules, betas):
            pair = rule, RuleFacts(name="bmc", samples=rule.samples)
            compared += compare_rules(results, name, of, pair, "equal", decides, beta)
    return compared


def _judge_smooth(results: Results) -> Finding:
    return base.finding(_equal_bmc(results, _in_c11, SMOOTH_BMC))


def _judge_product(results: Results) -> Finding:
    ours = _equal_bmc(results, _in_c12, _OUR_UPS, decides=False)
    return base.finding([*_equal_bmc(results, _in_c12, UPS), *ours])


C11 = base.claim(
    "C11",
    uses_curves(_in_c11, (*BMC, *SMOOTH_BMC)),
    {"at the end": _judge_smooth},
    nll=runs.NLL_MARGIN,
    airline=runs.AIRLINE_MARGIN,
)
C12 = base.claim(
    "C12",
    uses_curves(_in_c12, (_BMC_1, _BMC_10, *UPS, *_OUR_UPS)),
    {"at the end": _judge_product},
    nll=runs.NLL_MARGIN,
    rate=_RATE,
)


# Time to converge, for C14.

_TIMED = *rules("ups-paper", 10), _OUR_UPS[0], _BMC_10


def _is_timed(cell: CurveCell) -> bool:
    return _in_c12(cell) and cell.beta == _BETA


uses_times = uses_curves(_is_timed, _TIMED)


def _seconds_to(curve: AnyRecord, target: float) -> float:
    """Return the training time until the NLL reaches a target; ∞ if never."""
    points = curve.outcome.points
    return next((p.seconds for p in points if p.scores["nll"] <= target), math.inf)


def _end(curve: AnyRecord) -> float:
    """Return the mean NLL over the last fifth of the evaluations; ∞ if it is not finite."""
    nll = [point.scores["nll"] for point in curve.outcome.points]
    mean = float(np.mean(nll[-max(1, len(nll) // 5) :]))
    return mean if math.isfinite(mean) else math.inf


def time_ratios(results: Results, rule: RuleFacts) -> Iterator[Pair]:
    """Yield log10(time of a rule / time of bMC-10) to converge, for each count set.

    Converged is within the margin of the lower end of the two curves. Only curves of one machine
    are compared.
    """
    timed = [run for run in results.of(CurveCell) if _is_timed(run.cell) and run.outcome.points]
    for name in count_sets({run.cell.dataset for run in timed}):
        here = [run for run in timed if run.cell.dataset == name]
        ones = [run for run in here if run.cell.rule == rule]
        references = [run for run in here if run.cell.rule == _BMC_10]
        settings = runs.paired_runs(ones, references, {"rule"}, lambda cell: cell.steps)
        pairs = settings[0][1] if settings else []
        pair = Pair(name, rule.label, _BMC_10.label, "log10 of the time to converge")
        same = [curves for curves in pairs if len({runs.place(run) for run in curves}) == 1]
        if same:
            yield _time_ratio(pair, same)
        else:
            why = "on different machines" if pairs else base.absence(results, uses_times)
            yield replace(pair, note=why)


def _time_ratio(pair: Pair, pairs: Sequence[tuple[AnyRecord, AnyRecord]]) -> Pair:
    """Return the pair with the ratio of times of two curves of each repeat."""
    first = pairs[0][0]
    every = [run for curves in pairs for run in curves]
    cell = first.cell
    margin = runs.curve_margin(first.cell)
    times = np.array(
        [[_seconds_to(run, min(map(_end, curves)) + margin) for run in curves] for curves in pairs]
    )
    logs = np.log10(times)
    medians = [number(float(seconds), 2) for seconds in np.median(times, axis=0)]
    ratio = runs.shared_ratio(first)
    return replace(
        pair,
        difference=runs.over_repeats(runs.between(logs[:, 0], logs[:, 1]), ratio),
        note=f"medians {medians[0]} s and {medians[1]} s",
        setting=f"β = {_BETA:g}, {plural(cell.steps, 'step')}",
        convergence=runs.convergence(every),
        seconds=sum(run.outcome.seconds for run in every) / len(pairs),
    )
