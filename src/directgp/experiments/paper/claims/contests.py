"""Two that are compared, and the three questions that are asked of them."""

import math
from dataclasses import dataclass
from typing import final

from directgp.experiments.paper.claims.base import Part, Verdict
from directgp.experiments.paper.claims.evidence import Evidence
from directgp.experiments.paper.claims.wording import (
    amount,
    at_most_tiny,
    figure,
    in_brackets,
    p_text,
)
from directgp.experiments.standings import SIGNIFICANT

NOT_RUN = "not run"

_KEPT: dict[Verdict, str] = {
    "held": "margin {} kept",
    "not held": "margin {} exceeded",
    "not decided": "undecided, margin {}",
}


@final
@dataclass(frozen=True)
class Contest:
    """One against another, where lower is better."""

    place: str
    """The data set."""

    setting: str
    """What else is to be said of where: "2,000 rows"; may be empty."""

    one: str
    other: str
    unit: str
    evidence: Evidence | None
    """Of one minus other; None where there is none."""

    note: str = NOT_RUN
    """What should be known besides, or why there is nothing."""

    question: str = ""
    """What is asked, if it is not one against the other."""

    @property
    def what(self) -> str:
        """``pol, 2,000 rows: log-loss DLM (joint) against the ELBO``."""
        where = f"{self.place}, {self.setting}" if self.setting else self.place
        return f"{where}: {self.question or f'{self.one} against {self.other}'}"


@final
@dataclass(frozen=True)
class Compared:
    """A contest that was judged."""

    place: str
    part: Part
    clause: str
    """The same in words, to stand in a sentence after "pol: "."""

    excess: float = math.nan
    """How far the effect is from what is allowed; negative where it is as claimed."""

    @property
    def was_run(self) -> bool:
        """Whether there was anything to judge."""
        return bool(self.clause)


def lower(contest: Contest, decides: bool = True) -> Compared:
    """Whether one is lower: a test at 5 %."""
    evidence = contest.evidence
    if evidence is None:
        return absent(contest, decides)
    verdict: Verdict = "not decided"
    if evidence.p_value < SIGNIFICANT and evidence.effect != 0:
        verdict = "held" if evidence.effect < 0 else "not held"
    part = _part(contest, evidence, verdict, decides)
    doubt = "undecided" if verdict == "not decided" else ""
    size = (at_most_tiny if doubt else amount)(abs(part.effect), part.error)
    clause = _in_words(contest, part, size) + in_brackets(p_text(part.p_value), doubt)
    return Compared(contest.place, part, clause, part.effect)


def not_above(contest: Contest, margin: float, decides: bool = True) -> Compared:
    """Whether one is at most a margin above the other: the upper end of the 95 % interval."""
    evidence = contest.evidence
    if evidence is None:
        return absent(contest, decides)
    verdict = _verdict(evidence.high <= margin, evidence.low > margin)
    return _within(contest, evidence, margin, verdict, evidence.effect - margin, decides)


def equal(contest: Contest, margin: float, decides: bool = True) -> Compared:
    """Whether the two differ by a margin at most: the 95 % interval, both ends."""
    evidence = contest.evidence
    if evidence is None:
        return absent(contest, decides)
    inside = -margin <= evidence.low and evidence.high <= margin
    verdict = _verdict(inside, evidence.low > margin or evidence.high < -margin)
    return _within(contest, evidence, margin, verdict, abs(evidence.effect) - margin, decides)


def absent(contest: Contest, decides: bool) -> Compared:
    """Nothing to judge."""
    nan = math.nan
    part = Part(contest.what, "not decided", nan, nan, nan, contest.unit, contest.note, decides)
    return Compared(contest.place, part, "")


def _in_words(contest: Contest, part: Part, size: str) -> str:
    """``the β-ELBO 0.012 ± 0.003 below the ELBO in NLL``."""
    one, other = contest.one, contest.other
    if math.isnan(part.effect):
        return f"{one} and {other} each infinite in {contest.unit} where the other is not"
    if part.effect == 0:
        return f"{one} equal to {other} in {contest.unit}"
    side = "below" if part.effect < 0 else "above"
    far = "infinitely far" if math.isinf(part.effect) else size
    return f"{one} {far} {side} {other} in {contest.unit}"


def _verdict(inside: bool, outside: bool) -> Verdict:
    return "held" if inside else "not held" if outside else "not decided"


def _within(
    contest: Contest,
    evidence: Evidence,
    margin: float,
    verdict: Verdict,
    excess: float,
    decides: bool,
) -> Compared:
    interval = f"95 % interval {figure(evidence.low, 2)} to {figure(evidence.high, 2)}"
    part = _part(contest, evidence, verdict, decides, f"{interval}, margin {margin:g}")
    clause = _in_words(contest, part, at_most_tiny(abs(part.effect), part.error))
    kept = _KEPT[verdict].format(f"{margin:g}")
    return Compared(contest.place, part, clause + in_brackets(kept), excess)


def _part(
    contest: Contest, evidence: Evidence, verdict: Verdict, decides: bool, more: str = ""
) -> Part:
    notes = [more, evidence.over, evidence.note, contest.note]
    return Part(
        what=contest.what,
        verdict=verdict,
        effect=evidence.effect,
        error=evidence.error,
        p_value=evidence.p_value,
        unit=contest.unit,
        note="; ".join(note for note in notes if note),
        decides=decides,
    )
