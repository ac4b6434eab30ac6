"""State which method to use and what limits that verdict."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import final

import numpy as np

from directgp.experiments.cell import ELBO, Method
from directgp.experiments.comparison import coarse_grid
from directgp.experiments.plan import (
    ComparedFit,
    Comparison,
    DataFacts,
    Plan,
    Predictions,
    Settings,
)
from directgp.experiments.stats import RankingRow, best_of, ranking
from directgp.metrics import COVERAGE, SCORES, Score
from directgp.plots.calibration import reliability
from directgp.text import decimals_for, duration, fixed, joined, p_value, percent, plural
from directgp.training.result import Status

_NEAR_COVERAGE = 0.02
"""Coverage this near its nominal value is right, for any number of test rows."""

_MODERATE_COVERAGE = 0.05
"""Coverage this near its nominal value is only somewhat wrong."""

_NEAR_SHARES = 0.03
"""Probabilities with this expected calibration error are near the observed shares."""

_FEW_REPEATS = 4
"""Number of repeats below which a paired test detects large differences only."""

_RARE = 20
"""Number of test rows of a class below which they say little about it."""

_MAX_LOG_FACTOR = 9.0
"""Difference of NLL beyond which its factor of probability is not stated."""

_SCORED = {"mse": "the mean", "mre": "the mean", "error": "the class"}
"""The part of a prediction that each score evaluates."""


@final
@dataclass(frozen=True)
class Findings:
    """A comparison and its ranking at each size."""

    comparison: Comparison

    @cached_property
    def by_size(self) -> dict[int, tuple[RankingRow, ...]]:
        """Rankings by size, the largest first, without sizes that have none."""
        ran = {run.cell.size for run in self.comparison.runs}
        every = {size: ranking(self.comparison, size) for size in sorted(ran, reverse=True)}
        return {size: found for size, found in every.items() if found}

    @property
    def size(self) -> int:
        """The largest size with a ranking, else the largest of the plan."""
        return next(iter(self.by_size), self.comparison.plan.sizes[-1])

    @property
    def ranking(self) -> tuple[RankingRow, ...]:
        """Ranking at the largest size; empty if no repeat was finished by all methods."""
        return self.by_size.get(self.size, ())

    @property
    def elbo(self) -> RankingRow | None:
        """Row of the ELBO, the reference of the comparison."""
        return next((s for s in self.ranking if s.method == ELBO), None)

    @property
    def scores(self) -> tuple[Score, ...]:
        """Scores of this task, NLL first."""
        return SCORES[self.comparison.plan.data.task]

    @property
    def num_repeats(self) -> int:
        """Number of repeats that all methods have finished at the largest size."""
        return len(self.ranking[0].betas) if self.ranking else 0

    def value(self, row: RankingRow, score: str) -> str:
        """Format a mean with the decimals of its column of the table."""
        column = [each.scores[score] for each in self.ranking]
        decimals = decimals_for([e.mean for e in column], [e.error for e in column])
        return fixed(row.scores[score].mean, decimals)

    def runs(self, method: str) -> list[ComparedFit]:
        """Return the runs of a method at the largest size, by repeat."""
        runs = sorted(self.comparison.runs, key=lambda run: run.cell.repeat)
        return [r for r in runs if r.cell.method == method and r.cell.size == self.size]


def pooled(runs: Sequence[ComparedFit]) -> Predictions:
    """Return the test rows of all runs, without predictions that are not finite."""
    columns = zip(*(astuple(run.predictions) for run in runs), strict=True)
    rows = Predictions(*map(np.concatenate, columns))
    finite = np.isfinite([rows.actual, rows.mean, rows.below, rows.up_to]).all(0)
    kept = finite & ~np.isnan([rows.lower, rows.upper]).any(0)
    return Predictions(*(each[kept] for each in astuple(rows)))


def calibration(findings: Findings, row: RankingRow) -> str:
    """Return a clause about the calibration of a method, without a full stop."""
    runs, name = findings.runs(row.method.name), row.method.name_in_text
    if "coverage" in row.scores:
        share = row.scores["coverage"].mean
        rows = sum(run.outcome.num_test for run in runs)
        chance = 2 * math.sqrt(COVERAGE * (1 - COVERAGE) / max(rows, 1))
        judged = "as they should"
        if abs(share - COVERAGE) > max(_NEAR_COVERAGE, chance):
            much = "somewhat too" if abs(share - COVERAGE) <= _MODERATE_COVERAGE else "too"
            judged = f"so they are {much} {'wide' if share > COVERAGE else 'narrow'}"
        intervals = f"The {percent(COVERAGE, 0)} intervals of {name}"
        return f"{intervals} contain {percent(share, 1)} of the test rows, {judged}"
    predictions = pooled(runs)
    if not len(predictions.mean):
        return f"The probabilities of {name} are not finite"
    found = reliability(predictions.actual, predictions.mean)
    error, rows = found.expected_error, len(predictions.mean)
    # The probability that a row is also a test row of another given repeat.
    times = 1 + (rows - rows / len(runs)) / findings.comparison.plan.data.num_rows
    judged = "not calibrated"
    if error <= _NEAR_SHARES:
        judged = "near the observed shares"
    elif error <= found.error_by_chance(times):
        judged = "as near the observed shares as so few rows can show"
    return f"The probabilities of {name} are {judged}, off by {percent(error, 1)} on average"


def steps_allowed(plan: Plan) -> str:
    """Format how long a fit is trained."""
    settings = plan.settings
    words = "as many as lower the objective"
    if settings.max_steps is not None:
        words += f", at most {settings.max_steps:,} in a run"
    if settings.time_budget is not None:
        words += f", at most {duration(settings.time_budget)} of each fit"
    return words


def cautions(findings: Findings) -> tuple[str, ...]:
    """Return sentences about what limits the verdict."""
    every = (_failures, _few_repeats, _rare_class, _not_converged, _betas_at_ends)
    return tuple(sentence for caution in every for sentence in caution(findings))


def _failures(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    if comparison.failed:
        fits = plural(len(comparison.failed) + len(comparison.runs), "fit")
        listed = "it is" if len(comparison.failed) == 1 else "they are"
        yield f"{len(comparison.failed)} of {fits} failed; {listed} listed below."
    shown = {row.method for row in findings.ranking}
    absent = [m for m in comparison.plan.methods if shown and m not in shown]
    none = [m.name_in_text for m in absent if not findings.runs(m.name)]
    few = [m.name_in_text for m in absent if findings.runs(m.name)]
    size = plural(findings.size, "training row")
    for names, finished in ((none, "no repeat"), (few, "too few repeats")):
        if names:
            yield f"With {size}, {joined(names)} finished {finished} and cannot be compared."
    if 0 < findings.num_repeats < comparison.plan.repeats:
        kept = f"the {plural(findings.num_repeats, 'repeat')} that all methods finished"
        yield f"Only {kept} (of {comparison.plan.repeats}) are compared."


def _few_repeats(findings: Findings) -> Iterator[str]:
    if 1 < findings.num_repeats < _FEW_REPEATS and len(findings.ranking) > 1:
        yield (
            f"With {findings.num_repeats} repeats the paired test detects only large differences; "
            "run 5 or more to separate methods that are close."
        )


def _rare_class(findings: Findings) -> Iterator[str]:
    if findings.comparison.plan.data.task != "classification" or not findings.ranking:
        return
    runs = findings.runs(findings.ranking[0].method.name)
    labels = np.concatenate([run.predictions.actual for run in runs])
    rows, ones = sum(run.outcome.num_test for run in runs), int(labels.sum())
    # Of many test rows only a part is stored.
    rarer = round(min(ones, len(labels) - ones) * rows / max(len(labels), 1))
    if rarer < _RARE:
        yield (
            f"Only {'about ' if len(labels) < rows else ''}{rarer} of {plural(rows, 'test row')}, "
            f"over all repeats, {'is' if rarer == 1 else 'are'} of the rarer class: too few to "
            "judge how well it is predicted."
        )


def _not_converged(findings: Findings) -> Iterator[str]:
    plan, runs = findings.comparison.plan, findings.comparison.runs
    ended = Counter(run.cell.method for run in runs if run.outcome.status == Status.BUDGET)
    if ended:
        whose = [f"{ended[m.name]} of {m.name_in_text}" for m in plan.methods if m.name in ended]
        yield (
            f"{ended.total():,} of {plural(len(runs), 'fit')} reached the limit of time or steps "
            f"before convergence: {joined(whose)}; a larger --time-budget or --max-iter may change "
            "the scores."
        )


def _betas_at_ends(findings: Findings) -> Iterator[str]:
    """Yield a sentence about methods whose β is an end of its grid in most repeats."""
    where = " in most repeats" if findings.num_repeats > 1 else ""
    for which, end, other in (("smallest", min, "smaller"), ("largest", max, "larger")):
        names = [
            row.method.name_in_text
            for row in findings.ranking
            if row.method.chooses_beta and _mostly_at(end, findings.runs(row.method.name))
        ]
        if names:
            yield (
                f"Validation chose the {which} β of the grid{where} for {joined(names)}: --betas "
                f"with {other} values may do better."
            )


def _mostly_at(end: Callable[[Sequence[float]], float], runs: Sequence[ComparedFit]) -> bool:
    """Return whether most runs chose this end of the grid; β = 0 is no end."""
    grids = [run.cell.settings.betas or coarse_grid(run.cell.size) for run in runs]
    at_end = [
        run.outcome.beta == end(grid) > 0 and len(set(grid)) > 1
        for run, grid in zip(runs, grids, strict=True)
    ]
    return 2 * sum(at_end) > len(runs)


def nll_sentence(findings: Findings, best: RankingRow) -> str:
    """Compare the method of the lowest NLL with the ELBO, or with the next best."""
    elbo, others = findings.elbo, [each for each in findings.ranking if each is not best]
    value, name = findings.value(best, "nll"), best.method.name_in_text
    if not others:
        return f"Only {name} was run: its NLL is {value}; there is no other method to compare with."
    if elbo is None or elbo is best:
        other = min(others, key=lambda row: row.scores["nll"].mean)
    else:
        other = elbo
    rival = f"{findings.value(other, 'nll')} of {other.method.name_in_text}"
    capital, close = name[:1].upper() + name[1:], other.scores["nll"].close
    test = p_value(other.scores["nll"].p_value)
    in_brackets = f" ({test})" if test else ""
    if findings.num_repeats == 1:
        return (
            f"{capital} has the lowest NLL, {value} against {rival}, in the one split that was "
            "run: no test is possible with one repeat, so run more (--repeats 5) before you rely "
            "on it."
        )
    repeats = f"{findings.num_repeats} repeats"
    if best is elbo:
        why = ", it is the simplest" if close else ""
        differs = "is not significantly different" if close else "is significantly worse"
        return (
            f"Keep the ELBO{why}: its NLL of {value} is the lowest over {repeats}, and the next, "
            f"{rival}, {differs}{in_brackets}."
        )
    if close:
        keep = "keep the ELBO, it is the simplest"
        advice = keep if other.method == ELBO else "take the one that is quicker to train"
        return (
            f"{capital} has the lowest NLL, but not significantly: {value} against {rival} over "
            f"{repeats}{f', {test}' if test else ''}; {advice}."
        )
    pairs = zip(best.scores["nll"].values, other.scores["nll"].values, strict=True)
    always = "in each of" if all(mine < theirs for mine, theirs in pairs) else "over"
    also = [s.method.name_in_text for s in findings.ranking if s.scores["nll"].close and s != best]
    equal = f"; {joined(also)} {'is' if len(also) == 1 else 'are'} not significantly worse"
    return (
        f"{capital} predicts best: its NLL of {value} is below the {rival} {always} {repeats}"
        f"{in_brackets}{_factor(best, other)}{equal if also else ''}."
    )


def _factor(best: RankingRow, other: RankingRow) -> str:
    """Express a difference of NLL as a factor of probability."""
    gap = other.scores["nll"].mean - best.scores["nll"].mean
    if not 0 < gap < _MAX_LOG_FACTOR:
        return ""
    factor = math.exp(gap)
    text = f"{factor:,.0f}" if factor >= 10 else f"{factor:.{2 if factor < 1.2 else 1}f}"
    return f", so the actual values were {text} times as probable on (geometric) average"


def second_sentence(findings: Findings, use: RankingRow) -> str:
    """State calibration and second score of the recommended method."""
    score = findings.scores[1]
    mine, best = use.scores[score.name], best_of(findings.ranking, score.name)
    start = (
        f"{calibration(findings, use)}, and its {score.label} is {findings.value(use, score.name)}"
    )
    lowest = best.scores[score.name]
    if not math.isfinite(lowest.mean):
        return f"{start}."
    if best is use:
        return f"{start}{', the lowest' if len(findings.ranking) > 1 else ''}."
    whose = f"{findings.value(best, score.name)} of {best.method.name_in_text}"
    test = p_value(mine.p_value)
    if mine.close and all(a > b for a, b in zip(mine.values, lowest.values, strict=True)):
        repeats = f"in each of {len(mine.values)} repeats, too few to be sure ({test})"
        return f"{start}, above the lowest, {whose}, {repeats}."
    if mine.close:
        return f"{start}, not significantly different from the lowest, {whose}."
    advice = f" ({test}): take that method if only {_SCORED[score.name]} matters" if test else ""
    return f"{start}, above the lowest, {whose}{advice}."


def fit_command(data: DataFacts, method: Method, settings: Settings) -> str:
    """Return the command that trains a model by this method, as in the comparison."""
    given = data.arguments or (data.source.removeprefix("embedded: "), "--target", data.target)
    words = ["directgp", "fit", *given, "--task", data.task, "--objective", method.objective]
    if method.objective != "fitc":
        words += ["--hyperparameters", method.hyperparameters]
        words += [] if method.chooses_beta else ["--beta", "1"]
    words += ["--likelihood", settings.likelihood]
    if len(data.feature_names) > 1:
        words += ["--ard" if settings.ard else "--no-ard"]
    if settings.kernel != "rbf":
        words += ["--kernel", settings.kernel]
    if settings.num_inducing is not None:
        words += ["--inducing", str(settings.num_inducing)]
    if settings.max_steps is not None:
        words += ["--max-iter", str(settings.max_steps)]
    if settings.time_budget is not None:
        words += ["--time-budget", f"{settings.time_budget:g}"]
    return shlex.join([*words, "--out", "model"])


@final
@dataclass(frozen=True)
class Verdict:
    """Which method to use, and why."""

    sentences: tuple[str, ...]
    """Two sentences; one if nothing can be compared."""

    method: Method | None
    command: str
    """The method to use, None if nothing was finished, and the command that trains it."""

    cautions: tuple[str, ...]


def verdict(findings: Findings) -> Verdict:
    """Return the verdict on the ranking at the largest size."""
    if not findings.ranking:
        finished = findings.comparison.runs
        nothing = "repeat was finished by all methods" if finished else "fit was finished"
        sentence = f"No {nothing}: there is nothing to compare."
        return Verdict((sentence,), None, "", cautions(findings))
    best = best_of(findings.ranking, "nll")
    if not math.isfinite(best.scores["nll"].mean):
        sentence = "No method has a finite NLL: nothing can be recommended."
        return Verdict((sentence,), None, "", cautions(findings))
    # The ELBO is the simplest, unless a test was possible and it is significantly worse.
    use = findings.elbo if findings.elbo and findings.elbo.scores["nll"].close else best
    plan = findings.comparison.plan
    command = fit_command(plan.data, use.method, plan.settings)
    sentences = nll_sentence(findings, best), second_sentence(findings, use)
    return Verdict(sentences, use.method, command, cautions(findings))
