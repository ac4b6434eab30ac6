"""C13: what the paper's product sampler rejects, and what its devices are worth."""

import math
from dataclasses import replace

import numpy as np

from directgp.datasets.wording import several
from directgp.experiments.paper.claims.base import Claim, Finding, Verdict
from directgp.experiments.paper.claims.contests import Compared, Contest, lower
from directgp.experiments.paper.claims.evidence import Evidence, measured
from directgp.experiments.paper.claims.findings import finding_of_all
from directgp.experiments.paper.claims.looks import (
    SETS,
    Asked,
    at_every_look,
    looks_of,
    not_looked,
    uses_samplers,
)
from directgp.experiments.paper.claims.thresholds import (
    FIRST_STEPS,
    REJECTIONS,
    SAME_ERRORS,
    SAME_SHARE,
    VECTORISED,
)
from directgp.experiments.paper.claims.verdicts import all_of
from directgp.experiments.paper.claims.wording import amount, figure, in_brackets
from directgp.experiments.paper.results import Measured, Results, SamplerLook

_UNIT = "proposals a draw"

_VECTORISING = Asked(
    question=f"vectorising leaves at most {VECTORISED:g} of the time",
    unit=f"share of the time beyond {VECTORISED:g}",
    told="vectorising leaves {} of its time",
    ratio=lambda look: look.vectorised_seconds / look.one_by_one_seconds,
    beyond=lambda share: share - VECTORISED,
)


def _judge(results: Results) -> Finding:
    return finding_of_all(
        [
            *(_rejections(results, name) for name in SETS),
            *(at_every_look(results, name, _VECTORISING) for name in SETS),
            *(_width(results, name) for name in SETS),
            *(_fewer(results, name) for name in SETS),
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
    draws = _mean([look.proposals for look in looks])
    found = measured(draws.value - 1, draws.error)
    inside = least <= found.low and found.high <= most
    outside = found.high < least or found.low > most
    verdict: Verdict = "held" if inside else "not held" if outside else "not decided"
    effect = max(least - found.effect, found.effect - most)
    note = f"{amount(found.effect, found.error)} rejected draws"
    part = replace(nothing.part, verdict=verdict, effect=effect, error=found.error, note=note)
    told = f"the paper's sampler rejects {figure(found.effect, 2)} draws on average"
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
    told = f"its width changes the number of proposals by {amount(found.effect, found.error)}"
    doubt = {"held": "", "not held": "not as claimed", "not decided": "undecided"}[verdict]
    part = replace(
        nothing.part,
        verdict=verdict,
        effect=found.effect,
        error=found.error,
        p_value=found.p_value,
        note=several(len(looks), "look"),
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


def _mean(values: list[Measured]) -> Measured:
    error = math.hypot(*(each.error for each in values)) / len(values)
    return Measured(value=float(np.mean([each.value for each in values])), error=error)


def _difference(ones: list[Measured], others: list[Measured]) -> Evidence:
    one, other = _mean(ones), _mean(others)
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
    judge=_judge,
)
