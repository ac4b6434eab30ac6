"""C6: DLM for counts."""

import math

from directgp.experiments.paper.claims.base import Claim, Finding, Part, Verdict
from directgp.experiments.paper.claims.contests import Compared, lower, not_above
from directgp.experiments.paper.claims.findings import finding
from directgp.experiments.paper.claims.fits import contest, uses_fits
from directgp.experiments.paper.claims.thresholds import MRE_MARGIN, NLL_MARGIN
from directgp.experiments.paper.claims.variants import (
    RIVALS,
    VARIANTS,
    not_sacrificed,
    summary,
    verdict_of,
)
from directgp.experiments.paper.claims.verdicts import any_of
from directgp.experiments.paper.results import Results

DIRECTIONS = ("peds1_dir0", "peds1_dir1", "peds1_dir2")

ONE_DIRECTION = "peds1"
"""One of the three; which is not known."""

SETS = ("abalone", *DIRECTIONS, ONE_DIRECTION)


def _judge(results: Results) -> Finding:
    names = count_sets({cell.dataset for cell, _ in results.fits()})
    joint = {name: _lower(results, name) for name in names}
    compared = [each for name in names for each in _on(results, name, joint[name])]
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


def _on(results: Results, name: str, joint: list[Compared]) -> list[Compared]:
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
    uses=uses_fits(SETS, (*VARIANTS, *RIVALS)),
    judge=_judge,
)
