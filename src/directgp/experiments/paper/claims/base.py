"""Define claims, verdicts and the tests that decide them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from directgp.experiments.paper.cells import PaperCell, Results
from directgp.experiments.plan import METHODS
from directgp.experiments.stats import SIGNIFICANT, corrected_p_value
from directgp.text import joined, number, p_value, plural, with_error

LEVEL = 1 - SIGNIFICANT
"""Of the intervals: an interval leaves out 0 where the test of the same level is passed."""

NLL_MARGIN = 0.01
"""Nats within which two test NLLs of labels or counts count as equal.

The paper calls such curves comparable: 0.01 is a width of line of its plots, and a probability
that is 1 % off on average. "No significant difference" between rules has the same margin.
"""

RECOVERY_MARGIN = 0.05
"""Nats of the normalised target within which bMC recovers exact gradients in regression.

Regression NLLs of the paper's four sets spread over more than 1 nat; 0.05 is a width of line there.
"""

AIRLINE_MARGIN = 0.002
"""Nats within which a rule recovers the exact curve on airline.

ELBO and DLM, which the paper tells apart, differ by about 0.01 there: a fifth of it is small.
"""

ERROR_MARGIN = 0.01
"""Share of wrong labels that would not count as sacrificed: ten of the paper's 1,000 test rows."""

MRE_MARGIN = 0.01
"""Mean relative error that would still count as competitive: one percent of the count."""

SMALL_SIZE = 691
"""Training rows of the paper's plot of β on cadata."""

SMALL_FACTOR = 2.0
"""Sizes further from 691 than by this factor are another experiment."""

LARGE_SIZE = 2000
"""Training rows of cadata from which a sample counts as large: three times the small one."""

FIRST_EPOCH = 0.999
"""Airline is judged from the end of the first epoch on; before, curves show their start.

A little below 1, for epochs that are counted in steps of full batches.
"""

FIRST_STEPS = 50
"""Steps of Adam after which "an initial set of learning iterations" is over."""

REJECTIONS = (1.0, 3.0)
"""Rejected draws that count as "approximately 2"."""

VECTORISED = 0.6
"""Share of the time that vectorising must leave at most; the paper says 0.5, and clocks vary."""

SAME_ERRORS, SAME_SHARE = 3.0, 0.05
"""Standard errors, and share, within which two numbers of proposals are the same.

Theory says they are equal: three errors leave room for the many looks, and the share keeps a
difference that nobody would notice from being called one.
"""

SLOWER = 3.0
"""Times that count as "significantly slower in practice"."""


Verdict = Literal["held", "not held", "not decided"]


@final
@dataclass(frozen=True)
class Part:
    """One comparison within a claim."""

    what: str
    """In words: "pol, 2,000 rows: log-loss DLM, joint, against the ELBO"."""

    verdict: Verdict
    effect: float
    """Mean difference over the repeats, negative where the claim is right; NaN if not run."""

    error: float
    """Its standard error; NaN for one repeat."""

    p_value: float
    """Of the paired test, two-sided; NaN where there is none."""

    unit: str
    """Of the effect: "NLL", "MSE", "log10 β", …"""

    note: str = ""
    """What should be known besides."""

    decides: bool = True
    """False for comparisons that are told beside the claim."""


@final
@dataclass(frozen=True)
class Finding:
    """What results say of a claim."""

    verdict: Verdict
    sentence: str
    """Why, in one or two sentences, with the figures."""

    parts: tuple[Part, ...]


@final
@dataclass(frozen=True)
class Claim:
    """One of C1 to C14."""

    id: str
    statement: str
    """What the paper says."""

    where: str
    """In the paper: "fig. 1a"."""

    criterion: str
    """When it counts as held, as not held; fixed before anything was run."""

    figures: tuple[str, ...]
    """That show it, by their names in `directgp.reports.paper`: "1a", "2", …"""

    uses: Callable[[PaperCell], bool]
    """Whether it needs a cell."""

    judge: Callable[[Results], Finding]


_UPPER = (1 + LEVEL) / 2


@final
@dataclass(frozen=True)
class Evidence:
    """Of a mean difference."""

    effect: float
    error: float
    """Standard error; NaN where it is not known."""

    p_value: float
    """Two-sided; NaN where there is no test."""

    low: float
    high: float
    """The 95 % interval; all numbers where nothing is known."""

    over: str = ""
    """What was averaged over: "5 repeats"."""

    note: str = ""


def differences(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """One minus other in float64; what is not finite is worst, and two of the worst are equal."""
    first, second = worst(one), worst(other)
    tie = np.isinf(first) & np.isinf(second)
    return np.subtract(first, second, out=np.zeros_like(first), where=~tie)


def worst(values: NDArray[Any]) -> NDArray[np.float64]:
    """The same in float64, with ∞ for what is not finite."""
    wide = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(wide), wide, np.inf)


def over_repeats(values: NDArray[np.float64], ratio: float, resolution: float = 0.0) -> Evidence:
    """Of one difference a repeat: the paired t-test of `corrected_p_value`, and its interval.

    The standard error is the plain one; test and interval have the corrected variance.
    """
    finite = values[np.isfinite(values)]
    mean, error = _mean_and_error(finite)
    found = Evidence(
        effect=mean,
        error=error,
        p_value=corrected_p_value(finite, ratio, resolution),
        low=mean - _half_width(finite, ratio, resolution),
        high=mean + _half_width(finite, ratio, resolution),
        over=plural(len(values), "repeat"),
    )
    return _with_infinite(found, values)


def over_rows(repeats: Sequence[NDArray[np.float64]]) -> Evidence:
    """Of the differences of test rows, averaged over repeats: a z-test."""
    finite = [rows[np.isfinite(rows)] for rows in repeats]
    moments = np.array([_mean_and_error(rows) for rows in finite if len(rows)]).reshape(-1, 2)
    number = max(len(moments), 1)
    found = measured(
        float(moments[:, 0].sum()) / number, float(np.linalg.norm(moments[:, 1])) / number
    )
    over = plural(sum(map(len, repeats)), "test row")
    return _with_infinite(replace(found, over=over), np.concatenate(repeats))


def measured(effect: float, error: float) -> Evidence:
    """Of a number whose standard error is known: a z-test."""
    if not (math.isfinite(effect) and math.isfinite(error)):
        return Evidence(effect, math.nan, math.nan, -math.inf, math.inf)
    half = float(stats.norm.ppf(_UPPER)) * error
    return Evidence(effect, error, _z_test(effect, error), effect - half, effect + half)


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Of finite values; NaN where there are too few."""
    number = len(values)
    mean = float(values.mean()) if number else math.nan
    return mean, float(values.std(ddof=1)) / math.sqrt(number) if number > 1 else math.nan


def _half_width(values: NDArray[np.float64], ratio: float, resolution: float) -> float:
    """Of the interval that belongs to `corrected_p_value`."""
    number = len(values)
    if number < 2:
        return math.inf
    deviation = max(float(values.std(ddof=1)), resolution)
    return float(stats.t.ppf(_UPPER, number - 1)) * deviation * math.sqrt(1 / number + ratio)


def _z_test(effect: float, error: float) -> float:
    if error == 0:
        return 1.0 if effect == 0 else 0.0
    return float(2 * stats.norm.sf(abs(effect) / error))


def _with_infinite(found: Evidence, values: NDArray[np.float64]) -> Evidence:
    """The same with infinite differences, which decide alone only where there is nothing else.

    An infinite one says for whom it is but not how surely: the finite ones have to say the same.
    """
    above, below = int(np.isposinf(values).sum()), int(np.isneginf(values).sum())
    if not above + below:
        return found
    end = math.nan if above and below else math.inf if above else -math.inf
    note = f"{above + below} of {plural(len(values), 'difference')} infinite"
    infinite = replace(found, effect=end, error=math.nan, note=note)
    if above + below == len(values):
        return _all_infinite(infinite, len(values))
    agrees = found.effect * end > 0
    return replace(
        infinite,
        p_value=found.p_value if agrees else math.nan,
        low=-math.inf if below else found.low,
        high=math.inf if above else found.high,
    )


def _all_infinite(found: Evidence, number: int) -> Evidence:
    """Sure of itself, unless there is but one or they contradict each other."""
    if number == 1 or math.isnan(found.effect):
        return replace(found, p_value=math.nan, low=-math.inf, high=math.inf)
    return replace(found, p_value=0.0, low=found.effect, high=found.effect)


TINY = 0.0001
"""What is smaller need not be told to a digit."""


def called(method: str) -> str:
    """``the ELBO``, ``log-loss DLM (joint)``."""
    name, comma, mode = METHODS[method].label.partition(", ")
    article = "the " if name.endswith("ELBO") else ""
    return f"{article}{name} ({mode})" if comma else f"{article}{name}"


def at_most_tiny(value: float, error: float) -> str:
    """The same of a size, where nothing below a ten-thousandth is of interest."""
    small = abs(value) + (error if math.isfinite(error) else 0.0) < TINY
    return f"less than {TINY:.4f}" if small else with_error(value, error)


def in_brackets(*remarks: str) -> str:
    """Those that say something, with a blank before the bracket."""
    said = ", ".join(remark for remark in remarks if remark)
    return f" ({said})" if said else ""


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
    size = (at_most_tiny if doubt else with_error)(abs(part.effect), part.error)
    clause = _in_words(contest, part, size) + in_brackets(p_value(part.p_value), doubt)
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
    interval = f"95 % interval {number(evidence.low, 2)} to {number(evidence.high, 2)}"
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


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Held if all are, not held if any is not; of nothing, nothing is decided."""
    found = set(verdicts)
    if "not held" in found:
        return "not held"
    return "held" if found == {"held"} else "not decided"


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Held if any is, not held if none is; of nothing, nothing is decided."""
    found = set(verdicts)
    if "held" in found:
        return "held"
    return "not held" if found == {"not held"} else "not decided"


def together(parts: Iterable[Part]) -> Verdict:
    """Of the parts that decide."""
    return all_of(part.verdict for part in parts if part.decides)


def hardest(compared: Iterable[Compared]) -> Compared:
    """The one that speaks most against the claim; what was run before what was not."""
    order = {"not held": 0, "not decided": 1, "held": 2}

    def place(each: Compared) -> tuple[bool, int, bool, float]:
        unknown = each.excess != each.excess
        return not each.was_run, order[each.part.verdict], unknown, 0.0 if unknown else -each.excess

    return min(compared, key=place)


def finding(compared: Sequence[Compared], closing: str = "") -> Finding:
    """All comparisons that decide have to hold; on each data set the closest of them is told.

    What is told beside the claim is left out where it was not run. The closing sentence comes last,
    if there is one.
    """
    return _found(compared, _by_unit(compared), closing)


def finding_of_all(compared: Sequence[Compared]) -> Finding:
    """The same, where every comparison that decides is told."""
    deciding = [each for each in compared if each.part.decides and each.was_run]
    told = [
        f"{place}: {'; '.join(each.clause for each in found)}."
        for place, found in _by_place(deciding)
    ]
    return _found(compared, " ".join(told))


def _found(compared: Sequence[Compared], told: str, closing: str = "") -> Finding:
    parts = tuple(each.part for each in compared if each.part.decides or each.was_run)
    sentence = f"{told} {_lacking(compared)} {closing}"
    return Finding(together(parts), " ".join(sentence.split()), parts)


def _by_unit(compared: Sequence[Compared]) -> str:
    """Of the first unit every data set; of each other unit the closest comparison."""
    units: dict[str, list[Compared]] = {}
    for each in compared:
        if each.part.decides and each.was_run:
            units.setdefault(each.part.unit, []).append(each)
    first, *others = units.values() or [[]]
    return " ".join([_places(first), *map(_one, others)])


def _places(compared: Sequence[Compared]) -> str:
    """``pol (3 of 3 hold): …; song: ….``, with the unit where it is named first."""
    clauses = [f"{place}{_score(found)}: {_closest(found)}" for place, found in _by_place(compared)]
    unit = f" in {compared[0].part.unit}" if compared else ""
    later = [clause.replace(unit, "", 1) for clause in clauses[1:]]
    return f"{'; '.join([*clauses[:1], *later])}." if clauses else ""


def _one(compared: Sequence[Compared]) -> str:
    least = hardest(compared)
    if len(compared) == 1:
        return f"{least.place}: {least.clause}."
    held = f"{_held(compared)} of {len(compared)} hold"
    clause = least.clause.replace(f" in {least.part.unit}", "", 1)
    return f"In {least.part.unit} {held}, the closest on {least.place}: {clause}."


def _score(compared: Sequence[Compared]) -> str:
    number = len(compared)
    return f" ({_held(compared)} of {number} hold)" if number > 1 else ""


def _held(compared: Sequence[Compared]) -> int:
    return sum(each.part.verdict == "held" for each in compared)


def _closest(compared: Sequence[Compared]) -> str:
    return hardest(compared).clause


def _lacking(compared: Sequence[Compared]) -> str:
    """Which data sets were not run, or not all of what is needed there."""
    nowhere, partly = [], []
    for place, found in _by_place([each for each in compared if each.part.decides]):
        if not any(each.was_run for each in found):
            nowhere.append(place)
        elif not all(each.was_run for each in found):
            partly.append(place)
    sentence = f"Not run: {joined(nowhere)}." if nowhere else ""
    return f"{sentence} Run in part only: {joined(partly)}." if partly else sentence


def _by_place(compared: Sequence[Compared]) -> list[tuple[str, list[Compared]]]:
    """In the order of their coming."""
    places: dict[str, list[Compared]] = {}
    for each in compared:
        places.setdefault(each.place, []).append(each)
    return list(places.items())
