"""Claims, verdicts, the statistical tests behind them, and their wording."""

import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from directgp.experiments.cell import Record
from directgp.experiments.paper.cells import PaperCell, Results
from directgp.experiments.stats import SIGNIFICANT, corrected_p_value
from directgp.text import joined, number, p_value, plural, with_error

# Thresholds were fixed before the experiments were run.

NLL_MARGIN = 0.01
"""Nats within which two NLLs of labels or counts count as equal: a line width of the paper's plots,
and a probability that is 1 % off on average."""

Verdict = Literal["held", "not held", "not decided"]


@final
@dataclass(frozen=True)
class Part:
    """One comparison within a claim."""

    what: str
    """Description: "pol, 2,000 rows: log-loss DLM (joint) against the ELBO"."""

    verdict: Verdict
    effect: float
    error: float
    p_value: float
    """Mean difference over the repeats, negative if it supports the claim, with its standard error
    and two-sided p-value; NaN if not run, or for one repeat."""

    unit: str
    note: str = ""
    decides: bool = True
    """Unit of the effect, such as "NLL"; and whether the verdict of the claim depends on the
    part."""

    dataset: str = ""
    clause: str = ""
    """The result in words, for a sentence that begins "pol: "; empty if not run."""

    excess: float = math.nan
    """Distance of the effect from the claimed range; negative inside."""


class Finding(NamedTuple):
    """Verdict on a claim, the reason in one or two sentences with numbers, and its comparisons."""

    verdict: Verdict
    sentence: str
    parts: tuple[Part, ...]


@final
@dataclass(frozen=True)
class Claim:
    """A claim of the paper: one of C1 to C14."""

    id: str
    statement: str
    where: str
    criterion: str
    """What the paper says and where, and the conditions for "held" and "not held", fixed before the
    experiments were run."""

    figures: tuple[str, ...]
    """Figures that show it, by their names in `directgp.reports.paper_figures`: "1a", "2", …"""

    uses: Callable[[PaperCell], bool]
    judge: Callable[[Results], Finding]
    """Return whether the claim needs a cell, and what the results say about it."""


_TEXTS = tomllib.loads(files(__package__).joinpath("claims.toml").read_text(encoding="utf-8"))

Test = tuple[Callable[[PaperCell], bool], Callable[[Results], Finding]]
"""`uses` and `judge` of a claim."""


def claim(name: str, test: Test, **thresholds: int | float) -> Claim:
    """Return a claim with its texts of ``claims.toml``, the thresholds filled in."""
    text = _TEXTS[name]
    criterion, figures = text["criterion"].format(**thresholds), tuple(text["figures"])
    return Claim(name, text["statement"], text["where"], criterion, figures, *test)


# Statistics of differences.


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference with its test and its 95 % interval."""

    effect: float
    error: float
    p_value: float
    """Standard error and two-sided p-value; NaN if unknown."""

    low: float
    high: float
    over: str = ""
    """What was averaged: "5 repeats"."""

    note: str = ""


_UPPER = 1 - SIGNIFICANT / 2
"""Upper quantile of the intervals, which exclude 0 exactly if the test is significant."""


def differences(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Return one − other in float64; values that are not finite count as ∞, and ∞ − ∞ as 0."""
    first, second = finite_or_infinite(one), finite_or_infinite(other)
    tie = np.isinf(first) & np.isinf(second)
    return np.subtract(first, second, out=np.zeros_like(first), where=~tie)


def finite_or_infinite(values: NDArray[Any]) -> NDArray[np.float64]:
    """Convert to float64 and replace values that are not finite by ∞, the worst score."""
    wide = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(wide), wide, np.inf)


def over_repeats(values: NDArray[np.float64], ratio: float, resolution: float = 0.0) -> Difference:
    """Test the mean of one difference per repeat with `corrected_p_value`.

    The standard error is the plain one; test and interval use the corrected variance.
    """
    finite = values[np.isfinite(values)]
    mean, error = _mean_and_error(finite)
    count, half = len(finite), math.inf
    if count > 1:
        deviation = max(float(finite.std(ddof=1)), resolution)
        half = float(stats.t.ppf(_UPPER, count - 1)) * deviation * math.sqrt(1 / count + ratio)
    p = corrected_p_value(finite, ratio, resolution)
    over = plural(len(values), "repeat")
    return _with_infinite(Difference(mean, error, p, mean - half, mean + half, over), values)


def over_rows(repeats: Sequence[NDArray[np.float64]]) -> Difference:
    """Test the differences of test rows, averaged over repeats, with a z-test."""
    finite = [rows[np.isfinite(rows)] for rows in repeats]
    moments = np.array([_mean_and_error(rows) for rows in finite if len(rows)]).reshape(-1, 2)
    count = max(len(moments), 1)
    effect, error = float(moments[:, 0].sum()) / count, np.linalg.norm(moments[:, 1]) / count
    over = plural(sum(map(len, repeats)), "test row")
    found = replace(measured(effect, float(error)), over=over)
    return _with_infinite(found, np.concatenate(repeats))


def measured(effect: float, error: float) -> Difference:
    """Test a number with a known standard error with a z-test."""
    if not (math.isfinite(effect) and math.isfinite(error)):
        return Difference(effect, math.nan, math.nan, -math.inf, math.inf)
    half = float(stats.norm.ppf(_UPPER)) * error
    p = float(2 * stats.norm.sf(abs(effect) / error)) if error else float(effect == 0)
    return Difference(effect, error, p, effect - half, effect + half)


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    return mean, float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan


def _with_infinite(found: Difference, values: NDArray[np.float64]) -> Difference:
    """Add infinite differences to a test of the finite ones.

    An infinite difference shows a direction, but no certainty: the finite ones must agree.
    """
    infinite = values[np.isinf(values)].tolist()
    if not infinite:
        return found
    end, every = sum(infinite), len(infinite) == len(values)
    p, low, high = math.nan, -math.inf, math.inf
    if not every:
        p = found.p_value if found.effect * end > 0 else math.nan
        low = -math.inf if -math.inf in infinite else found.low
        high = math.inf if math.inf in infinite else found.high
    elif len(values) > 1 and not math.isnan(end):
        # All are infinite in one direction.
        p, low, high = 0.0, end, end
    note = f"{len(infinite)} of {plural(len(values), 'difference')} infinite"
    return Difference(end, math.nan, p, low, high, found.over, note)


TINY = 0.0001
"""Smaller numbers are not written with digits."""


def in_brackets(*remarks: str) -> str:
    """Join the remarks that are not empty, in brackets after a blank."""
    text = ", ".join(filter(None, remarks))
    return f" ({text})" if text else ""


# Comparisons: one description, one test, one wording.

NOT_RUN = "not run"

Relation = Literal["lower", "not above", "equal"]
"""Claimed relation of one to other.

"lower" is a test at 5 %. "not above" bounds the upper end of the 95 % interval of the difference by
a margin, "equal" bounds both ends.
"""

_MARGINS: dict[Verdict, str] = {
    "held": "margin {:g} kept",
    "not held": "margin {:g} exceeded",
    "not decided": "undecided, margin {:g}",
}


@final
@dataclass(frozen=True)
class Pair:
    """Two methods or rules on a data set, with the difference of their scores."""

    dataset: str
    one: str
    other: str
    unit: str
    difference: Difference | None = None
    """one − other; None if not run. Lower is better."""

    note: str = NOT_RUN
    setting: str = ""
    title: str = ""
    """More about the data, such as "2,000 rows"; the comparison, "one against other" if empty."""

    @property
    def what(self) -> str:
        """Return ``pol, 2,000 rows: log-loss DLM (joint) against the ELBO``."""
        where = f"{self.dataset}, {self.setting}" if self.setting else self.dataset
        return f"{where}: {self.title or f'{self.one} against {self.other}'}"


def compare(
    pair: Pair, relation: Relation = "lower", margin: float = 0.0, decides: bool = True
) -> Part:
    """Test whether a pair has the claimed relation."""
    found, nan, facts = pair.difference, math.nan, (decides, pair.dataset)
    if found is None:
        return Part(pair.what, "not decided", nan, nan, nan, pair.unit, pair.note, *facts)
    low, high, effect = found.low, found.high, found.effect
    notes = [found.over, found.note, pair.note]
    if relation != "lower":
        notes.insert(0, f"95 % interval {number(low, 2)} to {number(high, 2)}, margin {margin:g}")
    match relation:
        case "lower":
            significant = found.p_value < SIGNIFICANT
            verdict = verdict_of(significant and effect < 0, significant and effect > 0)
            excess = effect
        case "not above":
            verdict, excess = verdict_of(high <= margin, low > margin), effect - margin
        case "equal":
            inside = -margin <= low and high <= margin
            verdict = verdict_of(inside, low > margin or high < -margin)
            excess = abs(effect) - margin
    tested = found.error, found.p_value, pair.unit, "; ".join(filter(None, notes))
    part = Part(pair.what, verdict, effect, *tested, *facts, excess=excess)
    return replace(part, clause=_clause(pair, part, relation, margin))


def _clause(pair: Pair, part: Part, relation: Relation, margin: float) -> str:
    """Return ``the β-ELBO 0.012 ± 0.003 below the ELBO in NLL (p = 0.03)``."""
    one, other, effect = pair.one, pair.other, part.effect
    undecided = part.verdict == "not decided"
    size = distance(part)
    if relation == "lower":
        remarks = in_brackets(p_value(part.p_value), "undecided" if undecided else "")
    else:
        remarks = in_brackets(_MARGINS[part.verdict].format(margin))
    if abs(effect) + np.nan_to_num(part.error) < TINY and (relation != "lower" or undecided):
        size = f"less than {TINY:.4f}"
    if math.isnan(effect):
        text = f"{one} and {other} each infinite in {pair.unit} where the other is not"
    elif effect == 0:
        text = f"{one} equal to {other} in {pair.unit}"
    else:
        text = f"{one} {size} {'below' if effect < 0 else 'above'} {other} in {pair.unit}"
    return text + remarks


def distance(part: Part) -> str:
    """Return the size of an effect in words: ``0.012 ± 0.003``."""
    if math.isinf(part.effect):
        return "infinitely far"
    return with_error(abs(part.effect), part.error)


# Verdicts and sentences of several comparisons.


def verdict_of(held: bool, contradicted: bool) -> Verdict:
    """Return the verdict of two conditions that exclude each other."""
    return "held" if held else "not held" if contradicted else "not decided"


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return "held" if all are held, "not held" if any is not held."""
    found = set(verdicts)
    return verdict_of(found == {"held"}, "not held" in found)


def hardest(compared: Iterable[Part]) -> Part:
    """Return the comparison that contradicts the claim most; those that were run come first."""
    order = ("not held", "not decided", "held")

    def rank(each: Part) -> tuple[bool, int, float]:
        # An unknown excess comes last.
        excess = float(np.nan_to_num(-each.excess, nan=math.inf))
        return not each.clause, order.index(each.verdict), excess

    return min(compared, key=rank)


def combined(title: str, verdict: Verdict, of: Sequence[Part]) -> Part:
    """Return a comparison that decides, with the numbers of the hardest one that it is made of."""
    least = hardest(of)
    where, _, what = least.what.partition(": ")
    if not least.clause:
        where, verdict, note = least.dataset, "not decided", of[0].note
    else:
        note = "; ".join(filter(None, (f"the closest: {what}", least.note)))
    return replace(least, what=f"{where}: {title}", verdict=verdict, note=note, decides=True)


def finding(compared: Sequence[Part], closing: str = "", every: bool = False) -> Finding:
    """Return the verdict of all comparisons that decide, with a sentence about them.

    The sentence has the hardest comparison of each data set, or every one that decides. Comparisons
    that do not decide are dropped if they were not run.
    """
    parts = tuple(each for each in compared if each.decides or each.clause)
    deciding = [each for each in compared if each.decides]
    run = [each for each in deciding if each.clause]
    if every:
        texts = [
            f"{name}: {'; '.join(each.clause for each in found)}."
            for name, found in _grouped(run, "dataset").items()
        ]
    else:
        texts = _by_unit(run)
    names = _grouped(deciding, "dataset")
    runs = {name: {bool(c.clause) for c in some} for name, some in names.items()}
    for label, wanted in (("Not run", {False}), ("Partly run", {True, False})):
        found = [name for name, run in runs.items() if run == wanted]
        texts += [f"{label}: {joined(found)}."] if found else []
    sentence = " ".join(filter(None, (*texts, closing)))
    return Finding(all_of(each.verdict for each in deciding), sentence, parts)


def _by_unit(compared: Sequence[Part]) -> list[str]:
    """Describe every data set in the first unit, and the hardest comparison in each other unit."""
    sentences: list[str] = []
    for unit, found in _grouped(compared, "unit").items():
        suffix, least = f" in {unit}", hardest(found)
        if not sentences:
            clauses = [
                f"{name}{in_brackets(_score(some))}: {hardest(some).clause}"
                for name, some in _grouped(found, "dataset").items()
            ]
            # The unit is written once.
            later = [clause.replace(suffix, "", 1) for clause in clauses[1:]]
            sentences.append("; ".join([clauses[0], *later]))
        elif len(found) == 1:
            sentences.append(f"{least.dataset}: {least.clause}")
        else:
            clause = least.clause.replace(suffix, "", 1)
            sentences.append(f"In {unit} {_score(found)}, the closest on {least.dataset}: {clause}")
    return [f"{sentence}." for sentence in sentences]


def _score(compared: Sequence[Part]) -> str:
    """Return ``2 of 3 hold``; nothing for a single comparison."""
    held = sum(each.verdict == "held" for each in compared)
    return f"{held} of {len(compared)} hold" if len(compared) > 1 else ""


def _grouped(compared: Sequence[Part], field: str) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for each in compared:
        found.setdefault(getattr(each, field), []).append(each)
    return found


# Results of two methods on the same splits.

Split = tuple[int, int]
"""Repeat and seed."""

AnyRecord = Record[Any, Any]


def by_setting(runs: Iterable[AnyRecord], free: set[str]) -> dict[str, dict[Split, AnyRecord]]:
    """Group runs whose cells differ only in the split and in the free fields."""
    settings: dict[str, dict[Split, AnyRecord]] = {}
    for run in runs:
        setting = run.cell.model_dump_json(exclude=free | {"repeat", "seed"})
        settings.setdefault(setting, {})[run.cell.repeat, run.cell.seed] = run
    return settings


def paired_runs(
    ones: Iterable[AnyRecord],
    others: Iterable[AnyRecord],
    free: set[str],
    tie: Callable[[Any], int],
) -> list[tuple[Any, list[tuple[AnyRecord, AnyRecord]], int]]:
    """Pair runs of the same split whose cells differ only in the free fields, by setting.

    A setting has one of its cells, the pairs, and the number of runs without a partner. The largest
    size comes first; of the same size the most repeats, then the larger tie.
    """
    first, second = by_setting(ones, free), by_setting(others, free)
    found = []
    for setting in (each for each in first if each in second):
        a, b = first[setting], second[setting]
        pairs = [(a[split], b[split]) for split in sorted(a.keys() & b.keys())]
        if pairs:
            found.append((next(iter(a.values())).cell, pairs, len(a.keys() ^ b.keys())))

    def rank(setting: tuple[Any, ...]) -> tuple[int, int, int, str]:
        cell, pairs, _ = setting
        return cell.size, len(pairs), tie(cell), cell.model_dump_json()

    return sorted(found, key=rank, reverse=True)


def absence(results: Results, concerns: Callable[[PaperCell], bool]) -> str:
    """Return why there is no result: not run, or the reason of a failure."""
    reasons = [failed.reason for failed in results.failed if concerns(failed.cell)]
    return f"failed: {reasons[0]}" if reasons else NOT_RUN
