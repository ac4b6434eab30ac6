"""Claims about gradients and samplers: C8, C13, C14."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from directgp.experiments.paper.cells import (
    GradientCell,
    GradientRow,
    Measured,
    PaperCell,
    Results,
    SamplerCell,
    SamplerPoint,
)
from directgp.experiments.paper.claims.base import (
    FIRST_STEPS,
    REJECTIONS,
    SAME_ERRORS,
    SAME_SHARE,
    SLOWER,
    TINY,
    VECTORISED,
    Claim,
    Compared,
    Difference,
    Finding,
    Pair,
    Verdict,
    absence,
    all_held,
    all_of,
    by_setting,
    combined,
    compare,
    differences,
    finding,
    finite_or_infinite,
    in_brackets,
    measured,
    verdict_of,
)
from directgp.experiments.paper.claims.curves import rule
from directgp.text import number, plural, with_error

# C8: bias of the gradients.

_GRADIENT_SET = "abalone"
_BLOCKS = ("u_mean", "u_chol")
_BIAS, _ERROR = "squared bias over ‖g*‖²", "squared error over ‖g*‖²"
_STATISTICS = {_BIAS: "squared_bias", _ERROR: "squared_error"}


def _uses_gradients(cell: PaperCell) -> bool:
    return isinstance(cell, GradientCell) and cell.dataset == _GRADIENT_SET


def _judge_bias(results: Results) -> Finding:
    rows = _largest_study(results)
    samples = sorted({row.rule.samples for row in rows if row.rule.name == "ups"}) or [1]
    why = absence(results, _uses_gradients)

    def below(block: str, one: str, other: str, decides: bool, unit: str = _BIAS) -> list[Compared]:
        pairs = [_gradient_pair(rows, block, one, other, n, unit, why) for n in samples]
        return [compare(pair, decides=decides) for pair in pairs]

    compared = []
    for block in _BLOCKS:
        # The block of the paper's figure decides.
        decides = block == "u_mean"
        above_ups = below(block, "ups", "smooth-bmc", False)
        below_bmc = below(block, "smooth-bmc", "bmc", False)
        compared += [
            *below(block, "ups", "bmc", decides),
            *([_between(above_ups, below_bmc)] if decides else []),
            *above_ups,
            *below_bmc,
            *below(block, "ups-mixed", "bmc", False),
        ]
    errors = [each for block in _BLOCKS for each in below(block, "ups", "bmc", False, _ERROR)]
    clause = errors[0].clause.replace(f" in {_ERROR}", "", 1)
    closing = f"In the squared error of one draw, which the paper plots: {clause}."
    return finding([*compared, *errors], closing if clause else "")


def _between(above_ups: list[Compared], below_bmc: list[Compared]) -> Compared:
    """Test whether smooth-bMC lies between the two for some samples and outside for none."""
    pairs = list(zip(above_ups, below_bmc, strict=True))
    verdicts = [all_held(pair) for pair in pairs]
    contradicted = "not held" in verdicts
    verdict = verdict_of("held" in verdicts and not contradicted, contradicted)
    of = [each for pair, v in zip(pairs, verdicts, strict=True) if v == verdict for each in pair]
    title = "the squared bias of smooth-bMC is between those of uPS and bMC"
    return combined(title, verdict, of)


def _gradient_pair(
    rows: list[GradientRow], block: str, one: str, other: str, samples: int, unit: str, why: str
) -> Pair:
    """Compare a statistic of two rules, averaged over the repeats."""
    rules = rule(one, samples), rule(other, samples)
    found = [
        [getattr(row, _STATISTICS[unit]) for row in rows if (row.rule, row.block) == (each, block)]
        for each in rules
    ]
    pair = Pair(
        _GRADIENT_SET,
        rules[0].label,
        rules[1].label,
        unit,
        note=why,
        setting=f"gradient in {block}",
    )
    if not all(found):
        return pair
    first, second = map(_mean, found)
    effect = differences(np.array([first.value]), np.array([second.value]))
    difference = measured(float(effect[0]), math.hypot(first.error, second.error))
    return replace(pair, difference=difference, note="")


def _mean(values: list[Measured]) -> Measured:
    error = math.hypot(*(each.error for each in values)) / len(values)
    return Measured(value=float(np.mean([each.value for each in values])), error=error)


def _largest_study(results: Results) -> list[GradientRow]:
    """Return the rows of all repeats of the largest study."""
    runs = [(cell, outcome) for cell, outcome, _ in results.gradients() if _uses_gradients(cell)]
    studies = [
        (run[0].size * run[0].draws, setting, list(repeats.values()))
        for setting, repeats in by_setting(runs, set()).items()
        for run in [next(iter(repeats.values()))]
    ]
    if not studies:
        return []
    *_, largest = max(studies, key=lambda study: study[:2])
    return [row for _, outcome in largest for row in outcome.rows]


C8 = Claim(
    id="C8",
    statement="The gradient of uPS has a lower bias than that of bMC, and smooth-bMC lies between "
    "(abalone, right after initialisation).",
    where="fig. 1g and 1h, text and appendix",
    criterion="For the gradient in the mean of q(u), and each number of samples, the squared bias "
    "(without its Monte Carlo floor, relative to the exact gradient) of uPS must be below that of "
    "bMC with p < 0.05 by the standard error of their difference. That of smooth-bMC must be above "
    "uPS's and below bMC's, both with p < 0.05, for at least one number of samples, and outside "
    "for none. The opposite with p < 0.05 contradicts the claim. The gradient in the Cholesky "
    "factor, our uPS, and the squared error of one draw are reported, but do not decide. The paper "
    "plots this squared error as bias, and uPS need not be lower in it.",
    figures=("1g", "1h", "9"),
    uses=_uses_gradients,
    judge=_judge_bias,
)


# C13 and C14: samplers during training.

SAMPLER_SETS = ("abalone", "banana")
"""A count and a classification data set."""


def _uses_samplers(cell: PaperCell) -> bool:
    return isinstance(cell, SamplerCell) and cell.dataset in SAMPLER_SETS


def _evaluations(results: Results, dataset: str) -> list[list[SamplerPoint]]:
    """Return the evaluations after the first steps, for each repeat."""
    found = [
        [each for each in outcome.looks if each.step >= FIRST_STEPS]
        for cell, outcome in results.samplers()
        if cell.dataset == dataset
    ]
    return [each for each in found if each]


def _not_run(results: Results, dataset: str, title: str, unit: str, decides: bool) -> Compared:
    why = absence(results, lambda cell: _uses_samplers(cell) and cell.dataset == dataset)
    return compare(Pair(dataset, "", "", unit, note=why, title=title), decides=decides)


@final
@dataclass(frozen=True)
class SamplerRatio:
    """A ratio of two measurements, and its claimed range."""

    title: str
    unit: str
    clause: str
    """The result in words, with {} for the range of the ratio."""

    ratio: Callable[[SamplerPoint], float]
    excess: Callable[[float], float]
    """Distance of a ratio from the claimed range; negative inside."""

    decides: bool = True

    def compare(self, results: Results, dataset: str) -> Compared:
        """Test the ratio at every evaluation; if they disagree, it is not decided.

        The effect is a mean over the evaluations, its error a standard error over the repeats.
        """
        repeats = _evaluations(results, dataset)
        nothing = _not_run(results, dataset, self.title, self.unit, self.decides)
        if not repeats:
            return nothing
        ratios = [[self.ratio(each) for each in repeat] for repeat in repeats]
        excess = [finite_or_infinite(np.array([*map(self.excess, each)])) for each in ratios]
        means = [float(each.mean()) for each in excess]
        effect, error = float(np.mean(means)), math.nan
        if len(means) > 1 and math.isfinite(effect):
            error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
        every, outside = np.concatenate(ratios), np.concatenate(excess) > 0
        ends = [_ratio_text(float(end)) for end in (every.min(), every.max())]
        text = ends[0] if ends[0] == ends[1] else " to ".join(ends)
        verdict = verdict_of(not outside.any(), bool(outside.all()))
        note = f"{text} at {plural(len(every), 'evaluation')}"
        part = replace(nothing.part, verdict=verdict, effect=effect, error=error, note=note)
        doubts = {"held": "", "not held": "not as claimed", "not decided": "evaluations disagree"}
        return Compared(dataset, part, self.clause.format(text) + in_brackets(doubts[verdict]))


def _ratio_text(ratio: float) -> str:
    return f"less than {TINY:.4f}" if 0 <= ratio < TINY else number(ratio, 2)


_VECTORISING = SamplerRatio(
    title=f"vectorising leaves at most {VECTORISED:g} of the time",
    unit=f"share of the time minus {VECTORISED:g}",
    clause="vectorising leaves {} of its time",
    ratio=lambda each: each.vectorised_seconds / each.one_by_one_seconds,
    excess=lambda share: share - VECTORISED,
)

_PAPERS_TIME = SamplerRatio(
    title=f"the paper's uPS takes at least {SLOWER:g} times as long as bMC",
    unit=f"{SLOWER:g} minus the time ratio to bMC",
    clause="the paper's uPS takes {} times as long as bMC with as many samples",
    ratio=lambda each: each.paper_ups_seconds / each.bmc_seconds,
    excess=lambda times: SLOWER - times,
)

# Time at equal error: errors fall as 1/samples and times grow as samples. This favours bMC, whose
# bias does not fall in this way.
_OUR_COST = SamplerRatio(
    title="at equal squared error our uPS takes less time than bMC",
    unit="time ratio to bMC minus 1",
    clause="ours takes {} times as long as bMC for the same squared error",
    ratio=lambda each: (
        each.our_ups_seconds * each.our_ups_error / (each.bmc_seconds * each.bmc_error)
    ),
    excess=lambda times: times - 1,
)

_PAPERS_COST = SamplerRatio(
    title="at equal squared error the paper's uPS takes more time than bMC",
    unit="1 minus the time ratio to bMC",
    clause="the paper's uPS takes {} times as long as bMC for the same squared error",
    ratio=lambda each: (
        each.paper_ups_seconds * each.paper_ups_error / (each.bmc_seconds * each.bmc_error)
    ),
    excess=lambda times: 1 - times,
    decides=False,
)


def _rejections(results: Results, name: str) -> Compared:
    """Test whether the mean number of rejected draws is about 2."""
    low, high = REJECTIONS
    title = f"the paper's sampler rejects {low:g} to {high:g} draws on average"
    nothing = _not_run(results, name, title, f"rejected draws outside {low:g} to {high:g}", True)
    evaluations = [each for repeat in _evaluations(results, name) for each in repeat]
    if not evaluations:
        return nothing
    draws = _mean([each.proposals for each in evaluations])
    found = measured(draws.value - 1, draws.error)
    outside = found.high < low or found.low > high
    verdict = verdict_of(low <= found.low and found.high <= high, outside)
    effect = max(low - found.effect, found.effect - high)
    note = f"{with_error(found.effect, found.error)} rejected draws"
    part = replace(nothing.part, verdict=verdict, effect=effect, error=found.error, note=note)
    side = "fewer" if found.effect < low else "more"
    remarks = {
        "held": "",
        "not held": f', {side} than the paper\'s "approximately 2"',
        "not decided": f" (undecided whether within {low:g} to {high:g})",
    }
    clause = f"the paper's sampler rejects {number(found.effect, 2)} draws on average"
    return Compared(name, part, clause + remarks[verdict])


def _width(results: Results, name: str) -> Compared:
    """Test whether the wide and the narrow proposal need equally many draws at every evaluation."""
    title = "the width of the proposal has no effect on the number of proposals"
    nothing = _not_run(results, name, title, "proposals per draw", True)
    evaluations = [each for repeat in _evaluations(results, name) for each in repeat]
    if not evaluations:
        return nothing
    found = _difference(
        [each.proposals for each in evaluations], [each.proposals_narrow for each in evaluations]
    )
    verdict = all_of(_same_proposals(each) for each in evaluations)
    doubt = {"held": "", "not held": "not as claimed", "not decided": "undecided"}[verdict]
    clause = f"its width changes the number of proposals by {with_error(found.effect, found.error)}"
    part = replace(
        nothing.part,
        verdict=verdict,
        effect=found.effect,
        error=found.error,
        p_value=found.p_value,
        note=plural(len(evaluations), "evaluation"),
    )
    return Compared(name, part, clause + in_brackets(doubt))


def _same_proposals(each: SamplerPoint) -> Verdict:
    """Compare wide and narrow: within both tolerances is held, beyond both is not held."""
    apart = abs(each.proposals.value - each.proposals_narrow.value)
    errors = SAME_ERRORS * math.hypot(each.proposals.error, each.proposals_narrow.error)
    share = SAME_SHARE * each.proposals_narrow.value
    return verdict_of(apart <= errors and apart <= share, apart > errors and apart > share)


def _fewer(results: Results, name: str) -> Compared:
    """Test whether our sampler needs fewer proposals; this does not decide."""
    evaluations = [each for repeat in _evaluations(results, name) for each in repeat]
    ours = [each.proposals_ours for each in evaluations]
    found = _difference(ours, [each.proposals for each in evaluations]) if evaluations else None
    pair = Pair(name, "our sampler", "the paper's", "proposals per draw", found, note="")
    return compare(pair, decides=False)


def _difference(ones: list[Measured], others: list[Measured]) -> Difference:
    one, other = _mean(ones), _mean(others)
    return measured(one.value - other.value, math.hypot(one.error, other.error))


def _for_each_set(*tests: Callable[[Results, str], Compared]) -> Callable[[Results], Finding]:
    """Return a function that judges a claim by some tests on both data sets."""
    return lambda results: finding(
        [test(results, name) for test in tests for name in SAMPLER_SETS], every=True
    )


C13 = Claim(
    id="C13",
    statement="The paper: after the first iterations its product sampler rejects about 2 draws on "
    "average, and vectorising saves at least half of the time. Ours: the width of its proposal, "
    "which costs time to choose, has no effect.",
    where="appendix, efficient implementation of product sampling",
    criterion=f"On abalone and banana, at evaluations after {FIRST_STEPS} steps or more: the 95 % "
    "interval of the mean number of rejected draws must lie within "
    f"{REJECTIONS[0]:g} and {REJECTIONS[1]:g}; vectorised sampling must take at most "
    f"{VECTORISED:g} of the time of one example after another, at every evaluation; and (ours) "
    f"wide and narrow proposals must differ by at most {SAME_ERRORS:g} standard errors and "
    f"{100 * SAME_SHARE:g} % at every evaluation. An interval entirely outside, more time at every "
    "evaluation, or a difference beyond both tolerances at any evaluation contradicts the claim. "
    "The proposals of our sampler are reported, but do not decide.",
    figures=("S1",),
    uses=_uses_samplers,
    judge=_for_each_set(_rejections, _VECTORISING.compare, _width, _fewer),
)

C14 = Claim(
    id="C14",
    statement="The paper: uPS is significantly slower than bMC, which is the better trade-off in "
    "practice. Ours: with our sampler and control variates this is no longer true.",
    where="fig. 1, text; appendix",
    criterion=f"On abalone and banana, at every evaluation after {FIRST_STEPS} steps or more: a "
    f"gradient by the paper's uPS must take at least {SLOWER:g} times as long as by bMC with as "
    "many samples; and (ours) time × squared error of a gradient must be lower by our uPS than by "
    "bMC. The opposite at every evaluation contradicts the claim; if evaluations disagree, it is "
    "not decided. Time × squared error of the paper's uPS is reported, but does not decide.",
    figures=("S1",),
    uses=_uses_samplers,
    judge=_for_each_set(_PAPERS_TIME.compare, _OUR_COST.compare, _PAPERS_COST.compare),
)
