"""The two variants of log-loss DLM taken together, against the ELBO and the β-ELBO."""

from collections.abc import Sequence
from dataclasses import replace

from directgp.experiments.paper.claims.base import Verdict
from directgp.experiments.paper.claims.contests import Compared, Contest, absent, not_above
from directgp.experiments.paper.claims.fits import contest
from directgp.experiments.paper.claims.verdicts import all_of, hardest
from directgp.experiments.paper.results import Results

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
