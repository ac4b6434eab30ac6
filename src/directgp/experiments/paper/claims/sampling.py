"""Judge the claims about gradients and samplers: C8, C13, C14."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.experiments.paper.cells import (
    GradientCell,
    GradientOutcome,
    GradientRow,
    Measured,
    PaperCell,
    Results,
    RuleFacts,
    SamplerCell,
    SamplerLook,
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
    Contest,
    Evidence,
    Finding,
    Verdict,
    absent,
    all_of,
    differences,
    finding,
    finding_of_all,
    in_brackets,
    lower,
    measured,
    worst,
)
from directgp.experiments.paper.claims.curves import rule
from directgp.experiments.paper.claims.fits import absence, summary
from directgp.text import number, plural, with_error

SAMPLER_SETS = ("abalone", "banana")
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
    return isinstance(cell, SamplerCell) and cell.dataset in SAMPLER_SETS


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
    note = f"{_range(every)} at {plural(len(every), 'look')}"
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
    return f"less than {TINY:.4f}" if 0 <= ratio < TINY else number(ratio, 2)


_SET = "abalone"
_BLOCKS = ("u_mean", "u_chol")
_BIAS, _ERROR = "squared bias over ‖g*‖²", "squared error over ‖g*‖²"
_STATISTICS = {_BIAS: "squared_bias", _ERROR: "squared_error"}


def _judge_bias(results: Results) -> Finding:
    rows = [row for outcome in _outcomes(results) for row in outcome.rows]
    samples = sorted({row.rule.samples for row in rows if row.rule.name == "ups"}) or [1]
    why = absence(results, _uses)
    compared = [each for block in _BLOCKS for each in _bias(rows, block, samples, why)]
    plotted = [_contest(rows, b, "ups", "bmc", n, _ERROR, why) for b in _BLOCKS for n in samples]
    lumped = [lower(each, decides=False) for each in plotted]
    told = lumped[0].clause.replace(f" in {_ERROR}", "", 1)
    closing = f"In the squared error of one draw, which the paper plots: {told}."
    return finding([*compared, *lumped], closing if lumped[0].was_run else "")


def _bias(rows: list[GradientRow], block: str, samples: list[int], why: str) -> list[Compared]:
    """The block of the paper's figure decides; ours, and the other block, are told beside."""
    decides = block == _BLOCKS[0]

    def below(one: str, other: str, decides: bool) -> list[Compared]:
        contests = [_contest(rows, block, one, other, n, _BIAS, why) for n in samples]
        return [lower(each, decides) for each in contests]

    above_ups, below_bmc = below("ups", "smooth-bmc", False), below("smooth-bmc", "bmc", False)
    return [
        *below("ups", "bmc", decides),
        *([_between(above_ups, below_bmc)] if decides else []),
        *above_ups,
        *below_bmc,
        *below("ups-mixed", "bmc", False),
    ]


def _between(above_ups: list[Compared], below_bmc: list[Compared]) -> Compared:
    """Whether smooth-bMC is between the two for some number of samples, and beyond for none."""
    pairs = list(zip(above_ups, below_bmc, strict=True))
    verdicts = [all_of(each.part.verdict for each in pair) for pair in pairs]
    told: Verdict = "held" if "held" in verdicts else "not decided"
    verdict: Verdict = "not held" if "not held" in verdicts else told
    of = [each for pair, v in zip(pairs, verdicts, strict=True) if v == verdict for each in pair]
    question = "the squared bias of smooth-bMC is between those of uPS and bMC"
    return summary(_SET, question, verdict, of)


def _contest(
    rows: list[GradientRow], block: str, one: str, other: str, samples: int, unit: str, why: str
) -> Contest:
    rules = rule(one, samples), rule(other, samples)
    labels = rules[0].label, rules[1].label
    first, second = (_mean_bias(rows, block, each, unit) for each in rules)
    setting = f"gradient in {block}"
    if first is None or second is None:
        return Contest(_SET, setting, *labels, unit, None, why)
    effect = differences(np.array([first[0]]), np.array([second[0]]))
    evidence = measured(float(effect[0]), math.hypot(first[1], second[1]))
    return Contest(_SET, setting, *labels, unit, evidence, "")


def _mean_bias(
    rows: list[GradientRow], block: str, of: RuleFacts, unit: str
) -> tuple[float, float] | None:
    """Over the repeats, and its standard error; None where there is none."""
    found = [
        getattr(row, _STATISTICS[unit]) for row in rows if (row.rule, row.block) == (of, block)
    ]
    if not found:
        return None
    error = math.hypot(*(each.error for each in found)) / len(found)
    return float(np.mean([each.value for each in found])), error


def _outcomes(results: Results) -> list[GradientOutcome]:
    """Of the largest study, all repeats."""
    studies: dict[tuple[int, str], list[GradientOutcome]] = {}
    for cell, outcome, _ in results.gradients():
        if _uses(cell):
            setting = cell.model_dump_json(exclude={"repeat", "seed"})
            studies.setdefault((cell.size * cell.draws, setting), []).append(outcome)
    return studies[max(studies)] if studies else []


def _uses(cell: PaperCell) -> bool:
    return isinstance(cell, GradientCell) and cell.dataset == _SET


C8 = Claim(
    id="C8",
    statement="The gradient of uPS has a lower bias than that of bMC, and smooth-bMC lies between "
    "(abalone, right after initialisation).",
    where="fig. 1g and 1h, text and appendix",
    criterion="For the gradient in the mean of q(u), and each number of samples, the squared bias "
    "(its Monte Carlo floor removed, the exact gradient as truth) of uPS must be below that of bMC "
    "with p < 0.05 by the standard error of their difference; that of smooth-bMC must be above "
    "uPS's and below bMC's, both with p < 0.05, for at least one number of samples, and beyond "
    "neither for any. The opposite with p < 0.05 contradicts the claim. The gradient in the "
    "Cholesky factor, our uPS, and the squared error of one draw, which the paper plots as bias "
    "and in which uPS need not be lower, are told beside.",
    figures=("1g", "1h", "9"),
    uses=_uses,
    judge=_judge_bias,
)


_UNIT = "proposals a draw"

_VECTORISING = Asked(
    question=f"vectorising leaves at most {VECTORISED:g} of the time",
    unit=f"share of the time beyond {VECTORISED:g}",
    told="vectorising leaves {} of its time",
    ratio=lambda look: look.vectorised_seconds / look.one_by_one_seconds,
    beyond=lambda share: share - VECTORISED,
)


def _judge_sampler(results: Results) -> Finding:
    return finding_of_all(
        [
            *(_rejections(results, name) for name in SAMPLER_SETS),
            *(at_every_look(results, name, _VECTORISING) for name in SAMPLER_SETS),
            *(_width(results, name) for name in SAMPLER_SETS),
            *(_fewer(results, name) for name in SAMPLER_SETS),
        ]
    )


def _rejections(results: Results, name: str) -> Compared:
    """Whether the mean number of rejected draws is about 2: its 95 % interval."""
    least, most = REJECTIONS
    question = f"the paper's sampler rejects {least:g} to {most:g} draws on average"
    nothing = not_looked(results, name, question, f"rejected draws beyond {least:g} to {most:g}")
    looks = _looks(results, name)
    if not looks:
        return nothing
    draws = _mean_rejections([look.proposals for look in looks])
    found = measured(draws.value - 1, draws.error)
    inside = least <= found.low and found.high <= most
    outside = found.high < least or found.low > most
    verdict: Verdict = "held" if inside else "not held" if outside else "not decided"
    effect = max(least - found.effect, found.effect - most)
    note = f"{with_error(found.effect, found.error)} rejected draws"
    part = replace(nothing.part, verdict=verdict, effect=effect, error=found.error, note=note)
    told = f"the paper's sampler rejects {number(found.effect, 2)} draws on average"
    return Compared(name, part, told + _against_the_paper(found, verdict))


def _against_the_paper(found: Evidence, verdict: Verdict) -> str:
    """Whether that is about 2, and else on which side."""
    least, most = REJECTIONS
    if verdict == "held":
        return ""
    if verdict == "not decided":
        return f" (undecided whether within {least:g} to {most:g})"
    return f', {"fewer" if found.effect < least else "more"} than the paper\'s "approximately 2"'


def _width(results: Results, name: str) -> Compared:
    """Whether the widened proposal needs as many draws as the narrow one, at every look."""
    question = "the width of the proposal has no effect on its number"
    nothing = not_looked(results, name, question, _UNIT)
    looks = _looks(results, name)
    if not looks:
        return nothing
    found = _difference([x.proposals for x in looks], [x.proposals_narrow for x in looks])
    verdict = all_of(_same(look) for look in looks)
    told = f"its width changes the number of proposals by {with_error(found.effect, found.error)}"
    doubt = {"held": "", "not held": "not as claimed", "not decided": "undecided"}[verdict]
    part = replace(
        nothing.part,
        verdict=verdict,
        effect=found.effect,
        error=found.error,
        p_value=found.p_value,
        note=plural(len(looks), "look"),
    )
    return Compared(name, part, told + in_brackets(doubt))


def _same(look: SamplerLook) -> Verdict:
    """Within three errors and 5 %: held; beyond both: not held."""
    apart = abs(look.proposals.value - look.proposals_narrow.value)
    errors = SAME_ERRORS * math.hypot(look.proposals.error, look.proposals_narrow.error)
    share = SAME_SHARE * look.proposals_narrow.value
    if apart <= errors and apart <= share:
        return "held"
    return "not held" if apart > errors and apart > share else "not decided"


def _fewer(results: Results, name: str) -> Compared:
    """Whether our sampler needs fewer proposals."""
    looks = _looks(results, name)
    ours, papers = [x.proposals_ours for x in looks], [x.proposals for x in looks]
    found = _difference(ours, papers) if looks else None
    contest = Contest(name, "", "our sampler", "the paper's", _UNIT, found, "")
    return lower(contest, decides=False)


def _looks(results: Results, name: str) -> list[SamplerLook]:
    return [look for repeat in looks_of(results, name) for look in repeat]


def _mean_rejections(values: list[Measured]) -> Measured:
    error = math.hypot(*(each.error for each in values)) / len(values)
    return Measured(value=float(np.mean([each.value for each in values])), error=error)


def _difference(ones: list[Measured], others: list[Measured]) -> Evidence:
    one, other = _mean_rejections(ones), _mean_rejections(others)
    return measured(one.value - other.value, math.hypot(one.error, other.error))


C13 = Claim(
    id="C13",
    statement="The paper: after the first iterations its product sampler rejects about 2 draws on "
    "average, and vectorising takes at least half of the time away. Ours: the width of its "
    "proposal, chosen at some cost, has no effect.",
    where="appendix, efficient implementation of product sampling",
    criterion=f"On abalone and banana, at looks after {FIRST_STEPS} steps or more: the 95 % "
    "interval of the mean number of rejected draws must lie within "
    f"{REJECTIONS[0]:g} and {REJECTIONS[1]:g}; vectorised sampling must take at most "
    f"{VECTORISED:g} of the time of one example after another, at every look; and (ours) widened "
    f"and narrow proposals must differ by at most {SAME_ERRORS:g} standard errors and "
    f"{100 * SAME_SHARE:g} % at every look. An interval wholly outside, more time at every look, "
    "or a difference beyond both at any look contradict the claim. The proposals of our sampler "
    "are told beside.",
    figures=("S1",),
    uses=uses_samplers,
    judge=_judge_sampler,
)


def _merit(look: SamplerLook) -> float:
    """Time at equal error, ours over bMC's: errors fall as 1/samples, times grow as samples.

    That is generous to bMC, whose bias does not fall so.
    """
    ours = look.our_ups_seconds * look.our_ups_error
    return ours / (look.bmc_seconds * look.bmc_error)


def _papers_merit(look: SamplerLook) -> float:
    """The same of the paper's uPS."""
    papers = look.paper_ups_seconds * look.paper_ups_error
    return papers / (look.bmc_seconds * look.bmc_error)


_PAPERS = Asked(
    question=f"the paper's uPS costs at least {SLOWER:g} times the time of bMC",
    unit=f"times the time of bMC short of {SLOWER:g}",
    told="the paper's uPS takes {} times as long as bMC with as many samples",
    ratio=lambda look: look.paper_ups_seconds / look.bmc_seconds,
    beyond=lambda times: SLOWER - times,
)

_OURS = Asked(
    question="at equal squared error our uPS costs less time than bMC",
    unit="times the time of bMC beyond 1",
    told="ours takes {} times as long as bMC for the same squared error",
    ratio=_merit,
    beyond=lambda times: times - 1,
)


_BETTER = Asked(
    question="at equal squared error the paper's uPS costs more time than bMC",
    unit="times the time of bMC short of 1",
    told="the paper's uPS takes {} times as long as bMC for the same squared error",
    ratio=_papers_merit,
    beyond=lambda times: 1 - times,
)


def _judge_cost(results: Results) -> Finding:
    return finding_of_all(
        [
            *(at_every_look(results, name, _PAPERS) for name in SAMPLER_SETS),
            *(at_every_look(results, name, _OURS) for name in SAMPLER_SETS),
            *(at_every_look(results, name, _BETTER, decides=False) for name in SAMPLER_SETS),
        ]
    )


C14 = Claim(
    id="C14",
    statement="The paper: uPS is significantly slower than bMC, which is the better trade-off in "
    "practice. Ours: with our sampler and control variates this is overturned.",
    where="fig. 1, text; appendix",
    criterion=f"On abalone and banana, at every look after {FIRST_STEPS} steps or more: a gradient "
    f"by the paper's uPS must take at least {SLOWER:g} times as long as by bMC with as many "
    "samples; and (ours) time × squared error of a gradient must be lower by our uPS than by bMC. "
    "Every look to the contrary contradicts the claim; looks that disagree decide nothing. Time × "
    "squared error of the paper's uPS is told beside.",
    figures=("S1",),
    uses=uses_samplers,
    judge=_judge_cost,
)
