"""Claims, their readings and verdicts, the statistical tests behind them, and their wording."""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal, NamedTuple, final

import numpy as np

from directgp.experiments import SIGNIFICANT
from directgp.text import duration, joined, number, p_value, plural, with_error
from directgp_paper.experiments.cells import AIRLINE, CurveCell, FitCell, PaperCell, Results
from directgp_paper.experiments.claims.runs import (
    ALL_CONVERGED,
    Convergence,
    Difference,
    deciding,
    is_converged,
    movement,
)

Verdict = Literal["held", "no difference", "not held", "not decided"]


@final
@dataclass(frozen=True)
class Part:
    """One comparison within a claim."""

    what: str
    """Description: "pol, 2,000 rows: log-loss DLM (joint) against the ELBO"."""

    verdict: Verdict
    """Verdict of the comparison."""

    effect: float
    """Mean difference over the repeats; negative supports the claim, NaN is not run."""

    error: float
    """Standard error of the effect; NaN if not run, or for one repeat."""

    p_value: float
    """Two-sided p-value of the effect; NaN if not run, or for one repeat."""

    unit: str
    """Unit of the effect, such as "NLL"."""

    note: str = ""
    """Remarks, such as "5 repeats; our protocol"."""

    decides: bool = True
    """Whether the verdict of the claim depends on the part."""

    dataset: str = ""
    """Name of the data set, by which parts are grouped."""

    clause: str = ""
    """The result in words, for a sentence that begins "pol: "; empty if not run."""

    excess: float = math.nan
    """Distance of the effect from the claimed range; negative inside."""

    remedy: str = ""
    """What would decide a comparison that is not decided, and its cost."""


class Finding(NamedTuple):
    """A verdict, the reason in one or two sentences with numbers, and its comparisons."""

    verdict: Verdict
    sentence: str
    parts: tuple[Part, ...]


Judge = Callable[[Results], Finding]


@final
@dataclass(frozen=True)
class ClaimReading:
    """One way to decide on a claim, with the conditions for each verdict, and why it is fair."""

    name: str
    """Name of the reading in the claim."""

    of: Literal["paper", "ours"]
    """Whether the reading is of the paper's sentence, or a claim of directgp beside it."""

    criterion: str
    """The conditions for each verdict."""

    why: str
    """Why the criterion is fair."""

    judge: Judge
    """Returns the finding for the results of a sweep."""


class JudgedReading(NamedTuple):
    """A reading and its finding."""

    reading: ClaimReading
    finding: Finding


class Assessment(NamedTuple):
    """A claim with all its readings, the first of which decides, and the runs behind them."""

    claim: "Claim"
    """The claim that is judged."""

    judged: tuple[JudgedReading, ...]
    """The readings with their findings; the first decides."""

    runs: int
    """Number of runs that decide."""

    trained: int
    """Number of deciding runs that are fits or curves."""

    converged: int
    """Number of deciding fits and curves that converged."""

    moved: float
    """How far the loss of a converged run still moved, at most."""

    seconds: float
    """Processor time of all runs that decide, or wall time on a GPU."""

    @property
    def finding(self) -> Finding:
        """The finding of the first reading."""
        return self.judged[0].finding


@final
@dataclass(frozen=True)
class Claim:
    """A claim of the paper, with the ways to judge it."""

    id: str
    """Name, such as C1."""

    statement: str
    """What is claimed."""

    quote: str
    """The claim in the words of the paper."""

    where: str
    """The place in the paper."""

    figures: tuple[str, ...]
    """Figures of the claim, by their names in `directgp_paper.reports.figures`: "1a", "2", …"""

    uses: Callable[[PaperCell], bool]
    """Return whether the claim needs a cell."""

    readings: tuple[ClaimReading, ...]
    """The ways to decide on the claim; the first decides."""

    def assess(self, results: Results) -> Assessment:
        """Judge all readings."""
        runs = [run for run in deciding(results) if self.uses(run.cell)]
        trained = [run for run in runs if isinstance(run.cell, FitCell | CurveCell)]
        converged = [run for run in trained if is_converged(run)]
        return Assessment(
            self,
            tuple(JudgedReading(reading, reading.judge(results)) for reading in self.readings),
            len(runs),
            len(trained),
            len(converged),
            max(map(movement, converged), default=0.0),
            math.fsum(run.outcome.seconds for run in runs),
        )


_TEXTS = tomllib.loads(files(__package__).joinpath("claims.toml").read_text(encoding="utf-8"))


def claim(
    name: str,
    uses: Callable[[PaperCell], bool],
    judges: Mapping[str, Judge],
    **thresholds: int | float,
) -> Claim:
    """Return a claim with its texts of ``claims.toml``, the thresholds filled in.

    There is a judge for the name of each reading.
    """
    text = _TEXTS[name]
    readings = tuple(
        ClaimReading(
            reading["name"],
            reading.get("of", "paper"),
            reading["criterion"].format(**thresholds),
            reading["why"],
            judges[reading["name"]],
        )
        for reading in text["readings"]
    )
    statement, quote, where = (text[key] for key in ("statement", "quote", "where"))
    return Claim(name, statement, quote, where, tuple(text["figures"]), uses, readings)


TINY = 0.0001
"""Smaller numbers are not written with digits."""


def in_brackets(*remarks: str) -> str:
    """Join the remarks that are not empty, in brackets after a blank."""
    text = ", ".join(filter(None, remarks))
    return f" ({text})" if text else ""


# Comparisons: one description, one test, one wording.

NOT_RUN = "not run"
FAILED = "failed"
_FIRST = "Its cells have to be run."
_AGAIN = "Its failed cells have to be run again."

Relation = Literal["lower", "not above", "equal"]
"""Claimed relation of one to the reference.

"lower" is a test at 5 %; if it decides nothing, two one-sided tests at 5 % may show that the
difference is within the margin. They decide on "equal", and one of them on "not above", which the
95 % interval contradicts if it is entirely outside.
"""

_MARGINS: dict[Verdict, str] = {
    "held": "margin {} kept",
    "no difference": "no difference, margin {}",
    "not held": "margin {} exceeded",
    "not decided": "undecided, margin {}",
}


@final
@dataclass(frozen=True)
class Pair:
    """Two methods or rules on a data set, with the difference of their scores."""

    dataset: str
    """Name of the data set."""

    one: str
    """Name of the method or rule that the claim is about."""

    reference: str
    """Name of the method or rule to compare with."""

    unit: str
    """Unit of the difference, such as "NLL"."""

    difference: Difference | None = None
    """one − reference; None if not run. Lower is better."""

    note: str = NOT_RUN
    """Remarks, or why there is no difference."""

    setting: str = ""
    """More about the data, such as "2,000 rows"."""

    title: str = ""
    """The comparison; "one against reference" if empty."""

    margin: float = 0.0
    """Difference that does not matter, in the unit; 0 if every one does."""

    convergence: Convergence = ALL_CONVERGED
    """Whether the runs behind the difference converged."""

    seconds: float = math.nan
    """Processor time of one more repeat."""

    @property
    def what(self) -> str:
        """Return ``pol, 2,000 rows: log-loss DLM (joint) against the ELBO``."""
        where = f"{self.dataset}, {self.setting}" if self.setting else self.dataset
        return f"{where}: {self.title or f'{self.one} against {self.reference}'}"


Rule = Callable[[Difference], Verdict]
"""Returns the verdict on a difference."""


def compare(
    pair: Pair, relation: Relation = "lower", decides: bool = True, rule: Rule | None = None
) -> Part:
    """Test whether a pair has the claimed relation, by its rule or by another one."""
    difference = pair.difference
    if difference is None:
        return Part(
            what=pair.what,
            verdict="not decided",
            effect=math.nan,
            error=math.nan,
            p_value=math.nan,
            unit=pair.unit,
            note=pair.note,
            decides=decides,
            dataset=pair.dataset,
            remedy=_AGAIN if pair.note.startswith(FAILED) else _FIRST,
        )
    effect = difference.effect
    margin = pair.margin
    notes = [difference.over, difference.note, pair.note, pair.convergence.note]
    if relation != "lower":
        low = number(difference.inner_low, 2)
        high = number(difference.inner_high, 2)
        notes.insert(0, f"90 % interval {low} to {high}, margin {number(margin, 2)}")
    judge: Rule = rule or (lambda measured: _verdict(measured, relation, margin))
    verdict = judge(difference)
    excess = {"lower": effect, "not above": effect - margin, "equal": abs(effect) - margin}
    remedy = _more_repeats(pair, difference, judge) if verdict == "not decided" else ""
    if pair.convergence.unsettled:
        more = "more epochs" if pair.dataset == AIRLINE else "more steps, --max-steps"
        verdict = "not decided"
        remedy = f"Longer runs would decide it: {more}."
    part = Part(
        what=pair.what,
        verdict=verdict,
        effect=effect,
        error=difference.error,
        p_value=difference.p_value,
        unit=pair.unit,
        note="; ".join(filter(None, notes)),
        decides=decides,
        dataset=pair.dataset,
        excess=excess[relation],
        remedy=remedy,
    )
    return replace(part, clause=_clause(pair, part, relation))


def _verdict(difference: Difference, relation: Relation, margin: float) -> Verdict:
    effect = difference.effect
    within = -margin <= difference.inner_low and difference.inner_high <= margin
    match relation:
        case "lower":
            significant = difference.p_value < SIGNIFICANT
            decided = verdict_of(significant and effect < 0, significant and effect > 0)
            equal = decided == "not decided" and within and margin > 0
            return "no difference" if equal else decided
        case "not above":
            return verdict_of(difference.inner_high <= margin, difference.low > margin)
        case "equal":
            return verdict_of(within, difference.low > margin or difference.high < -margin)


_MOST_REPEATS = 500


def _more_repeats(pair: Pair, difference: Difference, judge: Rule) -> str:
    """Return how many repeats of the same mean and deviation would decide, and their cost."""
    if not difference.count:
        return "Two repeats or more would decide it." if difference.over == "1 repeat" else ""
    if not math.isfinite(difference.effect):
        return ""
    for count in range(difference.count + 1, _MOST_REPEATS + 1):
        if judge(difference.with_repeats(count)) != "not decided":
            more = count - difference.count
            cost = f", {duration(more * pair.seconds)} more" if pair.seconds > 0 else ""
            return f"A run of {plural(count, 'repeat')} would decide it{cost}: --repeats {count}."
    return (
        f"Not even {_MOST_REPEATS} repeats would decide it, because all splits share the rows of "
        "one data set."
    )


def _clause(pair: Pair, part: Part, relation: Relation) -> str:
    """Return ``the β-ELBO 0.012 ± 0.003 below the ELBO in NLL (p = 0.03)``."""
    one = pair.one
    reference = pair.reference
    effect = part.effect
    undecided = part.verdict == "not decided"
    size = distance(part)
    if pair.convergence.unsettled:
        remarks = in_brackets("undecided", "not converged")
    elif relation == "lower" and part.verdict != "no difference":
        remarks = in_brackets(p_value(part.p_value), "undecided" if undecided else "")
    else:
        remarks = in_brackets(_MARGINS[part.verdict].format(number(pair.margin, 2)))
    if abs(effect) + np.nan_to_num(part.error) < TINY and (relation != "lower" or undecided):
        size = f"less than {TINY:.4f}"
    if math.isnan(effect):
        text = f"{one} and {reference} each infinite in {pair.unit} where the other is not"
    elif effect == 0:
        text = f"{one} equal to {reference} in {pair.unit}"
    else:
        text = f"{one} {size} {'below' if effect < 0 else 'above'} {reference} in {pair.unit}"
    return text + remarks


def distance(part: Part) -> str:
    """Return the size of an effect in words: ``0.012 ± 0.003``."""
    if math.isinf(part.effect):
        return "infinitely far"
    return with_error(abs(part.effect), part.error)


# Verdicts and sentences of several comparisons.


_WORST_FIRST: tuple[Verdict, ...] = ("not held", "not decided", "no difference", "held")


def verdict_of(held: bool, contradicted: bool) -> Verdict:
    """Return the verdict of two conditions that exclude each other."""
    return "held" if held else "not held" if contradicted else "not decided"


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of all together.

    "not held" if any is not held, else "not decided" if any is not decided or there is none, else
    "no difference" if that is true of any, else "held".
    """
    present = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in present), "not decided")


def hardest(compared: Iterable[Part]) -> Part:
    """Return the comparison that contradicts the claim most; those that were run come first."""

    def rank(part: Part) -> tuple[bool, int, float]:
        # An unknown excess comes last.
        excess = float(np.nan_to_num(-part.excess, nan=math.inf))
        return not part.clause, _WORST_FIRST.index(part.verdict), excess

    return min(compared, key=rank)


def combined(title: str, verdict: Verdict, of: Sequence[Part]) -> Part:
    """Combine comparisons into one that decides, with the numbers of the hardest."""
    least = hardest(of)
    where, _, what = least.what.partition(": ")
    if not least.clause:
        where = least.dataset
        verdict = "not decided"
        note = of[0].note
    else:
        note = "; ".join(filter(None, (f"the closest: {what}", least.note)))
    return replace(least, what=f"{where}: {title}", verdict=verdict, note=note, decides=True)


def finding(compared: Sequence[Part], closing: str = "", every: bool = False) -> Finding:
    """Return the verdict of all comparisons that decide, with a sentence about them.

    The sentence has the hardest comparison of each data set, or every one that decides. Comparisons
    that do not decide are dropped if they were not run.
    """
    parts = tuple(part for part in compared if part.decides or part.clause)
    deciding = [part for part in compared if part.decides]
    run = [part for part in deciding if part.clause]
    if every:
        texts = [
            f"{name}: {'; '.join(part.clause for part in of_dataset)}."
            for name, of_dataset in _grouped(run, "dataset").items()
        ]
    else:
        texts = _by_unit(run)
    names = _grouped(deciding, "dataset")
    labels = {name: _absent(parts_of_set) for name, parts_of_set in names.items()}
    for label in ("Not run", "Failed", "Partly run"):
        absent = [name for name, status in labels.items() if status == label]
        texts += [f"{label}: {joined(absent)}."] if absent else []
    sentence = " ".join(filter(None, (*texts, closing)))
    return Finding(all_of(part.verdict for part in deciding), sentence, parts)


def _absent(compared: Sequence[Part]) -> str:
    """Return "Not run", "Failed" or "Partly run"; "" if all comparisons were run."""
    absent = [part.note.startswith(FAILED) for part in compared if not part.clause]
    if len(absent) < len(compared):
        return "Partly run" if absent else ""
    return "Failed" if any(absent) else "Not run"


def _by_unit(compared: Sequence[Part]) -> list[str]:
    """Describe every data set in the first unit, and the hardest comparison in each other unit."""
    sentences: list[str] = []
    for unit, parts in _grouped(compared, "unit").items():
        suffix = f" in {unit}"
        least = hardest(parts)
        if not sentences:
            clauses = [
                f"{name}{in_brackets(_score(of_dataset))}: {hardest(of_dataset).clause}"
                for name, of_dataset in _grouped(parts, "dataset").items()
            ]
            # The unit is written once.
            later = [clause.replace(suffix, "", 1) for clause in clauses[1:]]
            sentences.append("; ".join([clauses[0], *later]))
        elif len(parts) == 1:
            sentences.append(f"{least.dataset}: {least.clause}")
        else:
            clause = least.clause.replace(suffix, "", 1)
            sentences.append(f"In {unit} {_score(parts)}, the closest on {least.dataset}: {clause}")
    return [f"{sentence}." for sentence in sentences]


def _score(compared: Sequence[Part]) -> str:
    """Return ``2 of 3 hold, 1 no difference``; nothing for a single comparison."""
    if len(compared) == 1:
        return ""
    held, equal = (
        sum(part.verdict == verdict for part in compared) for verdict in ("held", "no difference")
    )
    return f"{held} of {len(compared)} hold{f', {equal} no difference' if equal else ''}"


def _grouped(compared: Sequence[Part], field: str) -> dict[str, list[Part]]:
    groups: dict[str, list[Part]] = {}
    for part in compared:
        groups.setdefault(getattr(part, field), []).append(part)
    return groups


def absence(results: Results, concerns: Callable[[PaperCell], bool]) -> str:
    """Return why there is no result: not run, or the reason of a failure."""
    reasons = [failed.reason for failed in results.failed if concerns(failed.cell)]
    return f"{FAILED}: {reasons[0]}" if reasons else NOT_RUN
