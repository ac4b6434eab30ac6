"""Claims about learning curves: C7 and C9 to C12."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.experiments.paper.cells import (
    EXACT,
    CurveCell,
    CurveOutcome,
    PaperCell,
    Results,
    RuleFacts,
)
from directgp.experiments.paper.claims.base import (
    AIRLINE_MARGIN,
    FIRST_EPOCH,
    NLL_MARGIN,
    RECOVERY_MARGIN,
    Claim,
    Compared,
    Difference,
    Finding,
    Pair,
    absence,
    by_setting,
    compare,
    differences,
    distance,
    finding,
    in_brackets,
    measured,
    over_repeats,
    over_rows,
    shared_splits,
    verdict_of,
)
from directgp.experiments.paper.claims.fits import COUNT_SETS, REGRESSION_SETS, count_sets
from directgp.experiments.stats import SIGNIFICANT
from directgp.text import p_value, plural, with_error

AIRLINE = "airline"
BETAS = (0.1, 1.0, 10.0)

Selection = Callable[[CurveCell], bool]


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """One learning curve."""

    outcome: CurveOutcome
    losses: NDArray[np.float32]

    @property
    def indices(self) -> dict[int, int]:
        """Return the index of each evaluated step; of two at the same step, the later one."""
        return {point.step: index for index, point in enumerate(self.outcome.points)}

    def at(self, step: int) -> tuple[float, NDArray[np.float64]]:
        """Return the mean NLL and the stored NLLs of test rows; ∞ if the curve ended before."""
        index = self.indices.get(step)
        if index is None:
            return math.inf, np.full(self.losses.shape[1], np.inf)
        return self.outcome.points[index].scores["nll"], self.losses[index].astype(np.float64)


@final
@dataclass(frozen=True, eq=False)
class CurvePairs:
    """Pairs of learning curves that differ in one respect, one pair per repeat."""

    cell: CurveCell
    """One of the cells, for the settings that all share."""

    pairs: tuple[tuple[Curve, Curve], ...]

    @property
    def evaluations(self) -> list[tuple[int, float]]:
        """Return the steps and epochs at which all curves that had not ended were evaluated."""
        curves = [(curve, curve.indices) for pair in self.pairs for curve in pair]
        epochs = {p.step: p.epoch for curve, _ in curves for p in curve.outcome.points}
        return sorted(
            (step, epoch)
            for step, epoch in epochs.items()
            if all(step in indices or step > max(indices) for _, indices in curves)
        )

    def rows_at(self, step: int) -> Difference:
        """Test the difference paired over the test rows, averaged over the repeats.

        If only some rows have stored losses, the standard error comes from them, and the mean from
        the scores of all rows.
        """
        points = [(one.at(step), other.at(step)) for one, other in self.pairs]
        stored = [differences(one[1], other[1]) for one, other in points]
        found, all_rows = over_rows(stored), sum(one.outcome.num_test for one, _ in self.pairs)
        count = sum(map(len, stored))
        if count >= all_rows or not math.isfinite(found.effect):
            return found
        mean = float(np.mean([one[0] - other[0] for one, other in points]))
        over = f"{plural(all_rows, 'test row')}, standard error from {count:,} of them"
        return replace(measured(mean, found.error * math.sqrt(count / all_rows)), over=over)

    def at_the_end(self, one: RuleFacts, other: RuleFacts) -> Pair:
        """Compare two rules at the last evaluation, paired over the repeats.

        They are paired over the test rows if there is one repeat, and on airline, which has many.
        """
        cell, last = self.cell, self.evaluations[-1][0]
        if len(self.pairs) == 1 or cell.dataset == AIRLINE:
            found = self.rows_at(last)
        else:
            nll = np.array([[curve.at(last)[0] for curve in pair] for pair in self.pairs])
            outcome = self.pairs[0][0].outcome
            ratio = outcome.num_test / (outcome.num_training or cell.size)
            found = over_repeats(differences(nll[:, 0], nll[:, 1]), ratio)
        how = f"β = {cell.beta:g}, learning rate {cell.learning_rate:g}"
        setting = f"{plural(cell.size, 'row')}, {how}, {plural(last, 'step')}"
        return Pair(cell.dataset, one.label, other.label, "NLL", found, "", setting)


def curve_pairs(
    results: Results, one: Selection, other: Selection, differ: set[str]
) -> list[CurvePairs]:
    """Pair curves whose settings are equal except for some fields, the largest size first."""
    curves = [
        (cell, Curve(outcome, losses))
        for cell, outcome, losses in results.curves()
        if outcome.points
    ]
    ones, others = (
        by_setting([(cell, curve) for cell, curve in curves if selected(cell)], differ)
        for selected in (one, other)
    )
    found = []
    for setting in (each for each in ones if each in others):
        shared = shared_splits(ones[setting], others[setting])
        if shared:
            found.append(CurvePairs(shared[0][0][0], tuple((a[1], b[1]) for a, b in shared)))

    def rank(pairs: CurvePairs) -> tuple[int, int, int, str]:
        cell = pairs.cell
        return cell.size, len(pairs.pairs), cell.steps, cell.model_dump_json()

    return sorted(found, key=rank, reverse=True)


def rule(name: str, samples: int = 0) -> RuleFacts:
    """Return a rule by its name."""
    return RuleFacts.model_validate({"name": name, "samples": samples})


def is_joint(cell: CurveCell, datasets: Collection[str], beta: float | None = None) -> bool:
    """Return whether a curve is joint log-loss DLM on these data sets; for one β if given."""
    joint = (cell.objective, cell.hyperparameters) == ("log_loss", "joint")
    return joint and cell.dataset in datasets and beta in (None, cell.beta)


def uses_curves(of: Selection, rules: Iterable[RuleFacts]) -> Callable[[PaperCell], bool]:
    """Return a function that tells whether a cell is a selected curve with one of the rules."""
    wanted = frozenset(rules)
    return lambda cell: isinstance(cell, CurveCell) and of(cell) and cell.rule in wanted


def rule_pairs(
    results: Results, of: Selection, one: RuleFacts, other: RuleFacts
) -> list[CurvePairs]:
    """Pair curves that differ only in the rule."""
    return curve_pairs(
        results,
        lambda cell: of(cell) and cell.rule == one,
        lambda cell: of(cell) and cell.rule == other,
        {"rule"},
    )


def rule_pair(
    results: Results, dataset: str, beta: float | None, one: RuleFacts, other: RuleFacts
) -> Pair:
    """Compare two rules at the end of the largest curves that differ only in the rule."""

    def selected(cell: CurveCell) -> bool:
        return is_joint(cell, (dataset,), beta)

    found = rule_pairs(results, selected, one, other)
    if found:
        return found[0].at_the_end(one, other)
    why = absence(results, uses_curves(selected, (one, other)))
    setting = "" if beta is None else f"β = {beta:g}"
    return Pair(dataset, one.label, other.label, "NLL", note=why, setting=setting)


# C7: DLM and ELBO on airline.


def _judge_airline_objectives(results: Results) -> Finding:
    variants = ("joint", "fixed")
    same = [_along(results, v, beta, beta) for beta in BETAS for v in variants]
    plain = [_along(results, v, beta, 1.0, False) for beta in (0.1, 10.0) for v in variants]
    return finding([*same, *plain])


def _along(
    results: Results, variant: str, beta: float, elbo_beta: float, decides: bool = True
) -> Compared:
    """Compare DLM with one β and the ELBO with one β at every evaluation after the first epoch.

    The numbers are those of the last evaluation. A contradiction at any evaluation needs a
    significant difference after a Bonferroni correction.
    """
    found = curve_pairs(
        results,
        lambda cell: _is_dlm(cell, variant, beta),
        lambda cell: _is_elbo(cell, elbo_beta),
        {"objective", "hyperparameters", "beta"},
    )
    one, other = f"log-loss DLM ({variant})", f"the ELBO with β = {elbo_beta:g}"
    why = "no evaluation after the first epoch" if found else absence(results, _uses_airline)
    pair = Pair(AIRLINE, one, other, "NLL", note=why, setting=f"β = {beta:g}")
    evaluated = [
        (epoch, found[0].rows_at(step))
        for step, epoch in (found[0].evaluations if found else ())
        if epoch >= FIRST_EPOCH
    ]
    if not evaluated:
        return compare(pair, decides=decides)
    epoch, last = evaluated[-1]
    worst_epoch, worst = max(evaluated, key=lambda each: each[1].effect)
    number, lower = len(evaluated), sum(each.effect < 0 for _, each in evaluated)
    count = f"lower at {lower} of {plural(number, 'evaluation')}"
    least = f"worst after epoch {worst_epoch:.3g} ({with_error(worst.effect, worst.error)})"
    note = f"after epoch {epoch:.3g}; {count}, {least}"
    part = compare(replace(pair, difference=last, note=note), decides=decides).part
    verdict = verdict_of(
        lower == number and last.p_value < SIGNIFICANT,
        any(each.effect > 0 and each.p_value < SIGNIFICANT / number for _, each in evaluated),
    )
    undecided = "undecided" if verdict == "not decided" else ""
    side = "below" if part.effect < 0 else "above"
    clause = (
        f"{one} with {pair.setting} ends {distance(part)} {side} {other} in NLL"
        f"{in_brackets(p_value(part.p_value), count, undecided)}"
    )
    return Compared(AIRLINE, replace(part, verdict=verdict), clause, worst.effect)


def _is_dlm(cell: CurveCell, variant: str, beta: float) -> bool:
    dlm = (cell.objective, cell.hyperparameters) == ("log_loss", variant)
    return cell.dataset == AIRLINE and dlm and cell.rule == EXACT and cell.beta == beta


def _is_elbo(cell: CurveCell, beta: float) -> bool:
    return cell.dataset == AIRLINE and cell.objective == "elbo" and cell.beta == beta


def _uses_airline(cell: PaperCell) -> bool:
    return isinstance(cell, CurveCell) and any(
        _is_elbo(cell, beta) or _is_dlm(cell, "joint", beta) or _is_dlm(cell, "fixed", beta)
        for beta in BETAS
    )


C7 = Claim(
    id="C7",
    statement="On airline both variants of log-loss DLM are better in NLL than the ELBO with the "
    "same β, for every β of 0.1, 1 and 10 and at every epoch.",
    where="fig. 1f, text and appendix",
    criterion="With exact gradients, paired over the test rows (averaged over the repeats): for "
    "each β and both variants the NLL must be lower at every evaluation from the end of the first "
    "epoch on, with p < 0.05 at the last. A higher NLL at any evaluation, with p < 0.05 divided by "
    "the number of evaluations, contradicts the claim. The comparison with the ELBO with β = 1 is "
    "reported, but does not decide.",
    figures=("1f", "8"),
    uses=_uses_airline,
    judge=_judge_airline_objectives,
)


# C9 and C10: recovery of exact gradients.

_BETA = 0.1
"""β of fig. 1i, and of the curves in regression."""

_BMC = {samples: rule("bmc", samples) for samples in (1, 10, 100)}
_UPS = {samples: rule("ups", samples) for samples in (1, 10)}
_OUR_UPS = rule("ups-mixed", 1)


def _airline_rules(results: Results, beta: float) -> list[Compared]:
    """Compare the rules on airline; only the paper's β and numbers of samples decide."""

    def recovers(one: RuleFacts, decides: bool = False) -> Compared:
        pair = rule_pair(results, AIRLINE, beta, one, EXACT)
        return compare(pair, "equal", AIRLINE_MARGIN, decides)

    def beats(one: RuleFacts, decides: bool = False) -> Compared:
        return compare(rule_pair(results, AIRLINE, beta, one, _BMC[10]), decides=decides)

    main = beta == _BETA
    return [
        recovers(_UPS[10], main),
        recovers(_BMC[100], main),
        beats(_UPS[1], main),
        *(recovers(each) for each in (_UPS[1], _BMC[10], _BMC[1], _OUR_UPS)),
        beats(_OUR_UPS),
    ]


def _regression_rules(results: Results, dataset: str) -> list[Compared]:
    enough = (_BMC[10], _BMC[100])
    equal = [rule_pair(results, dataset, _BETA, each, EXACT) for each in enough]
    lower = [rule_pair(results, dataset, _BETA, each, _BMC[1]) for each in (EXACT, *enough)]
    return [*(compare(each, "equal", RECOVERY_MARGIN) for each in equal), *map(compare, lower)]


C9 = Claim(
    id="C9",
    statement="On airline, uPS with 10 samples and bMC with 100 recover the curve of exact "
    "gradients, and uPS with 1 sample is better than bMC with 10.",
    where="fig. 1i, text",
    criterion="With β = 0.1 and joint DLM, at the last evaluation, paired over the test rows: the "
    "95 % intervals of the differences of uPS-10 and of bMC-100 from exact must lie within "
    f"±{AIRLINE_MARGIN:g} nats, and uPS-1 must be lower than bMC-10 with p < 0.05. An interval "
    "entirely outside, or a higher uPS-1 with p < 0.05, contradicts the claim. β = 1 and 10, fewer "
    "samples, and uPS with our control variates are reported, but do not decide.",
    figures=("1i", "10", "11", "12"),
    uses=uses_curves(
        lambda cell: is_joint(cell, (AIRLINE,)) and cell.beta in BETAS,
        (EXACT, *_BMC.values(), *_UPS.values(), _OUR_UPS),
    ),
    judge=lambda results: finding(
        [each for beta in BETAS for each in _airline_rules(results, beta)]
    ),
)

C10 = Claim(
    id="C10",
    statement="In regression, bMC with 10 samples or more recovers the results of exact gradients; "
    "bMC with 1 sample is the worst.",
    where="text and appendix",
    criterion="With β = 0.1 and joint DLM, at the last evaluation, paired over the repeats (over "
    "the test rows if there is one), on each of the four data sets: the 95 % intervals of the "
    f"differences of bMC-10 and of bMC-100 from exact must lie within ±{RECOVERY_MARGIN:g} nats, "
    "and exact, bMC-10 and bMC-100 must be lower than bMC-1 with p < 0.05. An interval entirely "
    "outside, or a lower bMC-1 with p < 0.05, contradicts the claim.",
    figures=("16",),
    uses=uses_curves(lambda cell: is_joint(cell, REGRESSION_SETS, _BETA), (EXACT, *_BMC.values())),
    judge=lambda results: finding(
        [each for dataset in REGRESSION_SETS for each in _regression_rules(results, dataset)]
    ),
)


# C11 and C12: rules that are claimed to equal bMC.

_RATE = 0.01
"""Learning rate of Adam at which the paper compares uPS with bMC."""


def _in_c11(cell: CurveCell) -> bool:
    return is_joint(cell, COUNT_SETS) or is_joint(cell, (AIRLINE,), _BETA)


def _in_c12(cell: CurveCell) -> bool:
    return is_joint(cell, COUNT_SETS) and math.isclose(cell.learning_rate, _RATE)


_SMOOTH_RULES = {samples: rule("smooth-bmc", samples) for samples in (1, 10, 100)}
_OUR_UPS_RULES = {samples: rule("ups-mixed", samples) for samples in (1, 10)}


def _equal_bmc(
    results: Results,
    dataset: str,
    of: Selection,
    rules: dict[int, RuleFacts],
    decides: bool = True,
) -> list[Compared]:
    """Compare each rule with bMC of as many samples, for every learning rate and β.

    Only numbers of samples that the sweep has are compared; all if it has none.
    """
    cells = [cell for cell in _planned(results) if cell.dataset == dataset and of(cell)]
    samples = [n for n in rules if any(cell.rule == rules[n] for cell in cells)] or list(rules)
    margin = AIRLINE_MARGIN if dataset == AIRLINE else NLL_MARGIN
    compared = []
    for one, other in ((rules[n], _BMC[n]) for n in samples):
        found = rule_pairs(results, lambda cell: cell.dataset == dataset and of(cell), one, other)
        largest: dict[tuple[float, float], CurvePairs] = {}
        for each in found:
            largest.setdefault((each.cell.learning_rate, each.cell.beta), each)
        pairs = [each.at_the_end(one, other) for each in largest.values()]
        if not pairs:
            wanted = uses_curves(lambda cell: is_joint(cell, (dataset,)), (one, other))
            why = absence(results, wanted)
            pairs = [Pair(dataset, one.label, other.label, "NLL", note=why)]
        compared += [compare(pair, "equal", margin, decides) for pair in pairs]
    return compared


def _judge_smooth(results: Results) -> Finding:
    planned = [c for c in _planned(results) if _in_c11(c) and c.rule in _SMOOTH_RULES.values()]
    airline = [AIRLINE] if any(cell.dataset == AIRLINE for cell in planned) else []
    names = [*_planned_count_sets(results), *airline]
    return finding(
        [each for name in names for each in _equal_bmc(results, name, _in_c11, _SMOOTH_RULES)]
    )


def _judge_ups(results: Results) -> Finding:
    names = _planned_count_sets(results)
    papers = [each for name in names for each in _equal_bmc(results, name, _in_c12, _UPS)]
    ours = [
        each
        for name in names
        for each in _equal_bmc(results, name, _in_c12, _OUR_UPS_RULES, decides=False)
    ]
    return finding([*papers, *ours])


def _planned(results: Results) -> list[CurveCell]:
    """Return all curves of the sweep, run or not."""
    run = [record.cell for record in results.records]
    every = [*run, *(failed.cell for failed in results.failed), *results.missing]
    return [cell for cell in every if isinstance(cell, CurveCell)]


def _planned_count_sets(results: Results) -> list[str]:
    return count_sets({cell.dataset for cell in _planned(results)})


_ENDS = (
    "At the last evaluation of the learning curves of joint DLM, with all settings equal except "
    "the rule, paired over the repeats (over the test rows if there is one, and on airline): the "
    "95 % interval of the difference in NLL from bMC with as many samples must lie within "
)

C11 = Claim(
    id="C11",
    statement="Smooth-bMC ends at the same log loss as bMC with as many samples.",
    where="appendix",
    criterion=f"{_ENDS}±{NLL_MARGIN:g} nats on the count sets, and within ±{AIRLINE_MARGIN:g} on "
    "airline (β = 0.1) if it was run. An interval entirely outside contradicts the claim.",
    figures=("13", "15"),
    uses=uses_curves(_in_c11, (*_BMC.values(), *_SMOOTH_RULES.values())),
    judge=_judge_smooth,
)

C12 = Claim(
    id="C12",
    statement="For counts there is no significant difference in log loss between uPS and bMC.",
    where="text and appendix",
    criterion=f"{_ENDS}±{NLL_MARGIN:g} nats for uPS with the score gradient, both trained with a "
    f"learning rate of {_RATE:g}. An interval entirely outside contradicts the claim. uPS with our "
    "control variates is reported, but does not decide.",
    figures=("14",),
    uses=uses_curves(_in_c12, (_BMC[1], _BMC[10], *_UPS.values(), *_OUR_UPS_RULES.values())),
    judge=_judge_ups,
)
