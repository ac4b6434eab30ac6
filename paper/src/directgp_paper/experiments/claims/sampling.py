"""Claims about gradients and samplers: C8, C13, C14."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from directgp.text import duration, number, plural, with_error
from directgp_paper.experiments.cells import (
    AIRLINE,
    GradientCell,
    GradientRow,
    Measured,
    PaperCell,
    Results,
    SamplerCell,
    SamplerPoint,
    rules,
)
from directgp_paper.experiments.claims import base, runs
from directgp_paper.experiments.claims.base import (
    Finding,
    Judge,
    Pair,
    Part,
    Verdict,
)
from directgp_paper.experiments.claims.curves import time_ratios, uses_times
from directgp_paper.experiments.claims.runs import AnyRecord, Difference, Split

FIRST_STEPS = 50
"""Steps of Adam after which "an initial set of learning iterations" is over."""

PROPOSALS = (1.5, 2.5)
"""Range of proposals that counts as "approximately 2"."""

REJECTIONS = (1.0, 3.0)
"""Range of rejected draws that counts as "approximately 2"."""

VECTORISED = 0.6
"""Maximum share of the time after vectorising; the paper says 0.5, and timings vary."""

SAME_ERRORS = 3.0
"""Standard errors within which two numbers of proposals are equal; allows for many evaluations."""

SAME_SHARE = 0.05
"""Share within which two numbers of proposals are equal; ignores unimportant differences."""

SLOWER = 3.0
"""Time ratio that counts as "significantly slower in practice"."""


def _mean(values: list[Measured]) -> Measured:
    error = math.hypot(*(measured.error for measured in values)) / len(values)
    return Measured(value=float(np.mean([measured.value for measured in values])), error=error)


def _difference(ones: list[Measured], others: list[Measured]) -> Difference:
    """Test the difference of two means."""
    one = _mean(ones)
    reference = _mean(others)
    effect = runs.between(np.array([one.value]), np.array([reference.value]))
    return runs.measured(float(effect[0]), math.hypot(one.error, reference.error))


# C8: bias of the gradients.

_GRADIENT_SET = "abalone"
_BLOCKS = ("u_mean", "u_chol")
_BIAS = "squared bias over ‖g*‖²"
_ERROR = "squared error over ‖g*‖²"
_STATISTICS = {_BIAS: "squared_bias", _ERROR: "squared_error"}


def _uses_gradients(cell: PaperCell) -> bool:
    return isinstance(cell, GradientCell) and cell.dataset == _GRADIENT_SET


def _largest_study(results: Results) -> list[GradientRow]:
    """Return the rows of all repeats of the largest study."""
    studies = [r for r in results.of(GradientCell) if _uses_gradients(r.cell)]

    def rank(study: tuple[str, dict[Split, AnyRecord]]) -> tuple[int, str]:
        cell = next(iter(study[1].values())).cell
        return cell.size * cell.draws, study[0]

    _, repeats = max(runs.by_setting(studies, set()).items(), key=rank, default=("", {}))
    return [row for run in repeats.values() for row in run.outcome.rows]


def _judge_bias(results: Results) -> Finding:
    rows = _largest_study(results)
    why = base.absence(results, _uses_gradients)
    samples = sorted({row.rule.samples for row in rows if row.rule.name == "ups"}) or [1]

    def below(
        block: str, one: str, reference: str, decides: bool = False, unit: str = _BIAS
    ) -> list[Part]:
        compared = []
        for n in samples:
            (first,) = rules(one, n)
            (second,) = rules(reference, n)
            values = [
                [getattr(row, _STATISTICS[unit]) for row in rows if (row.rule, row.block) == key]
                for key in ((first, block), (second, block))
            ]
            difference = _difference(*values) if all(values) else None
            note = "" if difference else why
            where = f"gradient in {block}"
            pair = Pair(_GRADIENT_SET, first.label, second.label, unit, difference, note, where)
            compared.append(base.compare(pair, decides=decides))
        return compared

    compared = []
    for block in _BLOCKS:
        # The block of the paper's figure decides.
        decides = block == "u_mean"
        above_ups = below(block, "ups", "smooth-bmc")
        below_bmc = below(block, "smooth-bmc", "bmc")
        compared += [
            *below(block, "ups", "bmc", decides),
            *([_between(above_ups, below_bmc)] if decides else []),
            *above_ups,
            *below_bmc,
            *below(block, "ups-mixed", "bmc"),
        ]
    errors = [part for block in _BLOCKS for part in below(block, "ups", "bmc", unit=_ERROR)]
    clause = errors[0].clause.replace(f" in {_ERROR}", "", 1)
    closing = f"In the squared error of one draw, which the paper plots: {clause}."
    return base.finding([*compared, *errors], closing if clause else "")


def _between(above_ups: list[Part], below_bmc: list[Part]) -> Part:
    """Test whether smooth-bMC is between uPS and bMC for a number of samples, and never outside."""
    pairs = list(zip(above_ups, below_bmc, strict=True))
    verdicts = [base.all_of(part.verdict for part in pair) for pair in pairs]
    contradicted = "not held" in verdicts
    verdict = base.verdict_of("held" in verdicts and not contradicted, contradicted)
    of = [part for pair, v in zip(pairs, verdicts, strict=True) if v == verdict for part in pair]
    title = "the squared bias of smooth-bMC is between those of uPS and bMC"
    return base.combined(title, verdict, of)


C8 = base.claim("C8", _uses_gradients, {"squared bias": _judge_bias})


# C13 and C14: samplers during training.

SAMPLER_SETS = ("abalone", "banana", AIRLINE)
"""Counts and labels."""

Repeats = list[list[SamplerPoint]]
"""Evaluations after the first steps, for each repeat."""

Measure = Callable[[Repeats], dict[str, Any]]
"""Returns fields of the `Part`."""

_NOT_AS_CLAIMED = "not as claimed"


def _uses_samplers(cell: PaperCell) -> bool:
    return isinstance(cell, SamplerCell) and cell.dataset in SAMPLER_SETS


def _extent(repeats: dict[Split, AnyRecord]) -> tuple[int, int, int]:
    cell = next(iter(repeats.values())).cell
    return cell.size, max(cell.looks), len(repeats)


def _sampler_test(
    title: str, unit: str, measure: Measure, decides: bool = True
) -> Callable[[Results, str], Part]:
    """Return a test of the evaluations on one data set."""

    def test(results: Results, dataset: str) -> Part:
        studies = [run for run in results.of(SamplerCell) if run.cell.dataset == dataset]
        groups = runs.by_setting(studies, set()).values()
        largest = max(groups, key=_extent, default={})
        evaluations = [
            [point for point in run.outcome.looks if point.step >= FIRST_STEPS]
            for run in largest.values()
        ]
        why = base.absence(results, lambda cell: _uses_samplers(cell) and cell.dataset == dataset)
        part = base.compare(Pair(dataset, "", "", unit, note=why, title=title), decides=decides)
        repeats = [points for points in evaluations if points]
        if not repeats:
            return part
        measured = measure(repeats)
        cost = duration(sum(run.outcome.seconds for run in largest.values()))
        more = f"A study with other draws may decide it, {cost}: --seed."
        remedy = more if measured["verdict"] == "not decided" else ""
        return replace(part, **measured, remedy=remedy)

    return test


def _ratio(
    clause: str, ratio: Callable[[SamplerPoint], float], excess: Callable[[float], float]
) -> Measure:
    """Return a measurement of a ratio, which has its distance from the claimed range as effect.

    The distance is negative inside. The effect is a mean over the evaluations, its error a
    standard error over the repeats. If the evaluations disagree, the test is not decided.
    """

    def measure(repeats: Repeats) -> dict[str, Any]:
        ratios = [[ratio(point) for point in repeat] for repeat in repeats]
        beyond = [runs.finite_or_infinite(np.array([*map(excess, repeat)])) for repeat in ratios]
        means = [float(distances.mean()) for distances in beyond]
        effect = float(np.mean(means))
        error = math.nan
        if len(means) > 1 and math.isfinite(effect):
            error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
        every = np.concatenate(ratios)
        outside = np.concatenate(beyond) > 0
        ends = [
            f"less than {base.TINY:.4f}" if 0 <= end < base.TINY else number(float(end), 2)
            for end in (every.min(), every.max())
        ]
        text = ends[0] if ends[0] == ends[1] else " to ".join(ends)
        verdict = base.verdict_of(not outside.any(), bool(outside.all()))
        note = f"{text} at {plural(len(every), 'evaluation')}"
        doubts = {"not held": _NOT_AS_CLAIMED, "not decided": "evaluations disagree"}
        result = clause.format(text) + base.in_brackets(doubts.get(verdict, ""))
        return dict(verdict=verdict, effect=effect, error=error, note=note, clause=result)

    return measure


def _cost(name: str) -> Callable[[SamplerPoint], float]:
    """Return the ratio to bMC of time at equal error.

    Errors fall as 1/samples and times grow as samples. This favours bMC, whose bias does not fall
    in this way.
    """

    def cost(point: SamplerPoint, name: str) -> float:
        return float(getattr(point, f"{name}_seconds") * getattr(point, f"{name}_error"))

    return lambda point: cost(point, name) / cost(point, "bmc")


def _number_of_draws(repeats: Repeats, rejected: bool) -> dict[str, Any]:
    """Test whether the mean number of proposals, or of rejected ones, is about 2."""
    low, high = REJECTIONS if rejected else PROPOSALS
    draws = _mean([point.proposals for repeat in repeats for point in repeat])
    difference = runs.measured(draws.value - rejected, draws.error)
    outside = difference.high < low or difference.low > high
    verdict = base.verdict_of(low <= difference.low and difference.high <= high, outside)
    effect = max(low - difference.effect, difference.effect - high)
    what = "rejected draws" if rejected else "proposals"
    note = f"{with_error(difference.effect, difference.error)} {what}"
    side = "fewer" if difference.effect < low else "more"
    remarks = {
        "held": "",
        "not held": f', {side} than the paper\'s "approximately 2"',
        "not decided": f" (undecided whether within {low:g} to {high:g})",
    }
    number_of = number(difference.effect)
    clause = f"the paper's sampler needs {number_of} proposals for a draw"
    if rejected:
        clause = f"the paper's sampler rejects {number_of} draws on average"
    result = clause + remarks[verdict]
    return dict(verdict=verdict, effect=effect, error=difference.error, note=note, clause=result)


def _width(repeats: Repeats) -> dict[str, Any]:
    """Test whether the wide and the narrow proposal need equally many draws at every evaluation."""
    every = [point for repeat in repeats for point in repeat]
    wide = [point.proposals for point in every]
    narrow = [point.proposals_narrow for point in every]
    difference = _difference(wide, narrow)
    verdict = base.all_of(map(_same_proposals, wide, narrow))
    doubts = {"not held": _NOT_AS_CLAIMED, "not decided": "undecided"}
    percent = number(100 * difference.effect / _mean(narrow).value, 2)
    change = f"{with_error(difference.effect, difference.error)}, {percent} %"
    clause = f"its width changes the number of proposals by {change}"
    # The criterion has tolerances; a p-value would be for none.
    tested = {"effect": difference.effect, "error": difference.error, "p_value": math.nan}
    note = plural(len(every), "evaluation")
    result = clause + base.in_brackets(doubts.get(verdict, ""))
    return dict(verdict=verdict, note=note, clause=result, **tested)


def _same_proposals(wide: Measured, narrow: Measured) -> Verdict:
    """Compare numbers of proposals: within both tolerances is held, beyond both is not held."""
    apart = abs(wide.value - narrow.value)
    errors = SAME_ERRORS * math.hypot(wide.error, narrow.error)
    share = SAME_SHARE * narrow.value
    return base.verdict_of(apart <= errors and apart <= share, apart > errors and apart > share)


def _fewer(repeats: Repeats) -> dict[str, Any]:
    """Test whether our sampler needs fewer proposals."""
    every = [point for repeat in repeats for point in repeat]
    difference = _difference(
        [point.proposals_ours for point in every], [e.proposals for e in every]
    )
    pair = Pair("", "our sampler", "the paper's", "proposals per draw", difference, "")
    fields = ("verdict", "effect", "error", "p_value", "note", "clause", "excess")
    return {name: getattr(base.compare(pair), name) for name in fields}


def _for_sets(*tests: tuple[Callable[[Results, str], Part], Sequence[str]]) -> Judge:
    """Judge by some tests, each on some data sets."""
    return lambda results: base.finding(
        [test(results, name) for test, names in tests for name in names], every=True
    )


def _draws_test(rejected: bool) -> Callable[[Results, str], Part]:
    (low, high), what = (REJECTIONS, "rejected draws") if rejected else (PROPOSALS, "proposals")
    return _sampler_test(
        f"the paper's sampler has {low:g} to {high:g} {what} on average",
        f"{what} outside {low:g} to {high:g}",
        partial(_number_of_draws, rejected=rejected),
    )


_VECTORISED_TEST = _sampler_test(
    f"vectorising leaves at most {VECTORISED:g} of the time",
    f"share of the time minus {VECTORISED:g}",
    _ratio(
        "vectorising leaves {} of its time",
        lambda point: point.vectorised_seconds / point.one_by_one_seconds,
        lambda share: share - VECTORISED,
    ),
)
_WIDTH_TEST = _sampler_test(
    "the width of the proposal has no effect on the number of proposals",
    "proposals per draw",
    _width,
)
_FEWER_TEST = _sampler_test(
    "our sampler against the paper's", "proposals per draw", _fewer, decides=False
)

C13 = base.claim(
    "C13",
    _uses_samplers,
    {
        "proposals": _for_sets((_draws_test(False), (AIRLINE,)), (_VECTORISED_TEST, SAMPLER_SETS)),
        "strict": _for_sets((_draws_test(True), SAMPLER_SETS), (_VECTORISED_TEST, SAMPLER_SETS)),
        "the width has no effect": _for_sets(
            (_WIDTH_TEST, SAMPLER_SETS), (_FEWER_TEST, SAMPLER_SETS)
        ),
    },
    steps=FIRST_STEPS,
    few=PROPOSALS[0],
    many=PROPOSALS[1],
    low=REJECTIONS[0],
    high=REJECTIONS[1],
    share=VECTORISED,
    errors=SAME_ERRORS,
    percent=100 * SAME_SHARE,
)

_OUR_COST = _sampler_test(
    "at equal squared error our uPS takes less time than bMC",
    "time ratio to bMC minus 1",
    _ratio(
        "ours takes {} times as long as bMC for the same squared error",
        _cost("our_ups"),
        lambda times: times - 1,
    ),
)
_PAPER_COST = _sampler_test(
    "at equal squared error the paper's uPS takes more time than bMC",
    "1 minus the time ratio to bMC",
    _ratio(
        "the paper's uPS takes {} times as long as bMC for the same squared error",
        _cost("paper_ups"),
        lambda times: 1 - times,
    ),
    decides=False,
)
_PAPER_TIME = _sampler_test(
    "a gradient of the paper's uPS takes more time than one of bMC",
    "1 minus the time ratio to bMC",
    _ratio(
        "a gradient of the paper's uPS takes {} times as long as one of bMC",
        lambda point: point.paper_ups_seconds / point.bmc_seconds,
        lambda times: 1 - times,
    ),
    decides=False,
)


def _is_slower(difference: Difference) -> Verdict:
    """Judge whether a time is at least `SLOWER` times as long; below 1 contradicts."""
    least = math.log10(SLOWER)
    verdict = base.verdict_of(difference.low >= least, difference.high < 0)
    equal = -least <= difference.inner_low and difference.inner_high <= least
    return "no difference" if verdict == "not decided" and equal else verdict


def _slower(pair: Pair) -> Part:
    part = base.compare(pair, rule=_is_slower)
    difference = pair.difference
    if difference is None:
        return part
    times = f"{number(10**difference.effect, 2)} times as long as"
    clause = f"{pair.one} takes {times} {pair.reference} to converge"
    doubt = {"not decided": "undecided", "no difference": f"less than {SLOWER:g} times"}
    remarks = base.in_brackets(doubt.get(part.verdict, ""))
    excess = math.log10(SLOWER) - difference.effect
    # The p-value would be for a ratio of 1, and the claim is about another one.
    return replace(part, clause=clause + remarks, excess=excess, p_value=math.nan)


def _judge_time(results: Results) -> Finding:
    (rule,) = rules("ups-paper", 10)
    return base.finding([_slower(pair) for pair in time_ratios(results, rule)], every=True)


def _judge_our_time(results: Results) -> Finding:
    (rule,) = rules("ups-mixed", 1)
    pairs = [replace(pair, margin=math.log10(SLOWER)) for pair in time_ratios(results, rule)]
    return base.finding([base.compare(pair, "not above") for pair in pairs], every=True)


C14 = base.claim(
    "C14",
    lambda cell: uses_times(cell) or _uses_samplers(cell),
    {
        "time to converge": _judge_time,
        "ours is not much slower": _judge_our_time,
        "ours is cheaper for the same error": _for_sets(
            *((test, SAMPLER_SETS) for test in (_OUR_COST, _PAPER_COST, _PAPER_TIME))
        ),
    },
    steps=FIRST_STEPS,
    slower=SLOWER,
    nll=runs.NLL_MARGIN,
)
