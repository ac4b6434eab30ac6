"""State which method to use and what limits that verdict."""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from directgp.datasets.problem import Task
from directgp.estimators.fitting import auto_inducing, named_likelihood
from directgp.experiments.cell import ELBO, Method
from directgp.experiments.fit import coarse_grid
from directgp.experiments.plan import (
    ComparedFit,
    Comparison,
    DataFacts,
    Plan,
    Predictions,
    Settings,
)
from directgp.experiments.stats import ScoreEstimate, Standing, best_of, standings
from directgp.metrics import COVERAGE, SCORES, Score
from directgp.text import decimals_for, fixed, joined, p_value, percent, plural
from directgp.training.beta_path import brief
from directgp.training.recipe import Recipe
from directgp.training.result import Status


@final
@dataclass(frozen=True)
class Findings:
    """A comparison and the standings at each of its sizes."""

    comparison: Comparison

    @cached_property
    def by_size(self) -> dict[int, tuple[Standing, ...]]:
        """Standings, the largest size first; without the sizes at which there are none."""
        ran = {run.cell.size for run in self.comparison.runs}
        every = {size: standings(self.comparison, size) for size in sorted(ran, reverse=True)}
        return {size: found for size, found in every.items() if found}

    @property
    def size(self) -> int:
        """The largest that has standings, else the largest of the plan."""
        return next(iter(self.by_size), self.comparison.plan.sizes[-1])

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Those at the largest size; none if no repeat was finished by all."""
        return self.by_size.get(self.size, ())

    @property
    def elbo(self) -> Standing | None:
        """The ELBO, with which the others are compared."""
        return next((s for s in self.standings if s.method == ELBO), None)

    @property
    def scores(self) -> tuple[Score, ...]:
        """By which this task is judged, NLL first."""
        return SCORES[self.comparison.plan.data.task]

    @property
    def second(self) -> Score:
        """What users of the task look at beside NLL."""
        return self.scores[1]

    @property
    def num_repeats(self) -> int:
        """Repeats that all methods have finished at the largest size."""
        return len(self.standings[0].betas) if self.standings else 0

    def value(self, standing: Standing, score: str) -> str:
        """A mean with the digits that the table gives it."""
        column = [each.scores[score] for each in self.standings]
        decimals = decimals_for([e.mean for e in column], [e.error for e in column])
        return fixed(standing.scores[score].mean, decimals)

    def runs(self, method: str) -> list[ComparedFit]:
        """Those of a method at the largest size, by repeat."""
        found = [
            run
            for run in self.comparison.runs
            if run.cell.method == method and run.cell.size == self.size
        ]
        return sorted(found, key=lambda run: run.cell.repeat)


TASKS: dict[Task, str] = {
    "regression": "regression",
    "classification": "classification",
    "count": "counts",
}


def called(method: Method) -> str:
    """``the ELBO``, ``log-loss DLM (joint)``."""
    name, comma, mode = method.label.partition(", ")
    article = "the " if name.endswith("ELBO") else ""
    return f"{article}{name} ({mode})" if comma else f"{article}{name}"


def capitalised(sentence: str) -> str:
    """With a capital where a Latin letter begins it."""
    return sentence[:1].upper() + sentence[1:]


def asked(task: Task, target: str) -> str:
    """What is predicted, in words."""
    kind = {
        "regression": "a number",
        "classification": "one of two classes",
        "count": "a count",
    }[task]
    return f"Predicting {target}, {kind}"


Array = NDArray[np.float64]


def pit_bars(below: Array, up_to: Array, bins: int) -> Array:
    """Heights of the non-randomised PIT histogram, shape (bins,): all 1 if calibrated.

    Each row spreads its weight evenly from P(Y < y) to P(Y ≤ y) (Czado, Gneiting and Held, 2009);
    where the two are equal this is the usual histogram.
    """
    edges = np.linspace(0, 1, bins + 1)[1:-1, None]
    reached = (edges >= up_to).astype(np.float64)
    within = (edges > below) & (edges < up_to)
    np.divide(edges - below, up_to - below, out=reached, where=within)
    return np.asarray(np.diff(reached.mean(1), prepend=0.0, append=1.0) * bins)


@final
@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities in bins of equal width; empty bins left out."""

    count: Array
    predicted: Array
    """Mean probability in each bin."""

    observed: Array
    """Share of ones in each bin."""

    @property
    def expected_error(self) -> float:
        """Mean distance of the two, weighted by counts."""
        distance = np.abs(self.predicted - self.observed)
        return float(np.average(distance, weights=self.count))

    def error_by_chance(self, times: float = 1.0) -> float:
        """What the expected error of right probabilities seldom exceeds.

        The distance of a bin is |N(0, σ²)| with σ² = p(1 − p)/n: this is the mean of their sum, and
        two of its standard deviations more. Rows that come several times, as in repeats that share
        them, tell less: σ² grows by `times`.
        """
        share = self.count / self.count.sum()
        spread = self.predicted * (1 - self.predicted)
        part = share * np.sqrt(times * spread / self.count)
        mean, variance = math.sqrt(2 / math.pi) * part.sum(), (1 - 2 / math.pi) * (part**2).sum()
        return float(mean + 2 * math.sqrt(variance))


def reliability(ones: Array, probability: Array, bins: int = 10) -> Reliability:
    """How often a one came for each predicted probability."""
    index = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins).astype(np.float64)
    kept = count > 0
    sums = (np.bincount(index, weights=each, minlength=bins) for each in (probability, ones))
    predicted, observed = (each[kept] / count[kept] for each in sums)
    return Reliability(count[kept], predicted, observed)


def pooled(runs: Sequence[ComparedFit]) -> Predictions:
    """The test rows of all runs whose predictions are finite."""
    columns = zip(*(astuple(run.predictions) for run in runs), strict=True)
    actual, mean, lower, upper, below, up_to = (np.concatenate(each) for each in columns)
    kept = np.isfinite(actual) & np.isfinite(mean) & np.isfinite(below) & np.isfinite(up_to)
    kept &= ~(np.isnan(lower) | np.isnan(upper))
    return Predictions(*(each[kept] for each in (actual, mean, lower, upper, below, up_to)))


_ABOUT = 0.02
"""Coverage this near is about right, whatever the number of test rows."""

_SOMEWHAT = 0.05
"""Coverage this near is not badly wrong."""

_NEAR = 0.03
"""Probabilities that miss by this much on average are near the shares that came."""


def calibration(findings: Findings, standing: Standing) -> str:
    """How far the uncertainty of a method may be believed."""
    if "coverage" in standing.scores:
        return _coverage(findings, standing)
    return _probabilities(findings, standing)


def _probabilities(findings: Findings, standing: Standing) -> str:
    runs, name = findings.runs(standing.method.name), called(standing.method)
    predictions = pooled(runs)
    if not len(predictions.mean):
        return f"The probabilities of {name} are not finite"
    found = reliability(predictions.actual, predictions.mean)
    error, rows = found.expected_error, len(predictions.mean)
    # A row is in the test rows of any other repeat with this share of the table for probability.
    times = 1 + (rows - rows / len(runs)) / findings.comparison.plan.data.num_rows
    judged = _judged(error, found.error_by_chance(times))
    return f"The probabilities of {name} are {judged}, off by {percent(error, 1)} on average"


def _judged(error: float, chance: float) -> str:
    if error <= _NEAR:
        return "near the shares that came"
    if error <= chance:
        return "as near the shares that came as so few rows can show"
    return "not to be taken literally"


def _coverage(findings: Findings, standing: Standing) -> str:
    share = standing.scores["coverage"].mean
    rows = sum(run.outcome.num_test for run in findings.runs(standing.method.name))
    chance = 2 * math.sqrt(COVERAGE * (1 - COVERAGE) / max(rows, 1))
    if abs(share - COVERAGE) <= max(_ABOUT, chance):
        judged = "about as they should"
    else:
        much = "somewhat too" if abs(share - COVERAGE) <= _SOMEWHAT else "too"
        judged = f"so they are {much} {'wide' if share > COVERAGE else 'narrow'}"
    intervals = f"The {percent(COVERAGE, 0)} intervals of {called(standing.method)}"
    return f"{intervals} hold {percent(share, 1)} of the test rows, {judged}"


_NAMES = {"lbfgs": "L-BFGS", "adam": "Adam"}


def most_steps(plan: Plan) -> int:
    """Of any run of the plan."""
    return max(limit for limit, _ in _limits(plan).values())


def steps_allowed(plan: Plan) -> str:
    """``at most 500 of L-BFGS in a run, and 50 in one that starts from a neighbouring β``."""
    shortened = any(method.chooses_beta for method in plan.methods)
    return "; ".join(
        f"at most {limit:,} of {_NAMES[optimizer]} in a run"
        + _neighbour(shorter, shortened and optimizer == "lbfgs")
        for optimizer, (limit, shorter) in _limits(plan).items()
    )


def _neighbour(steps: int, told: bool) -> str:
    # Adam trains all β at once, each by whole runs.
    return f", and {steps:,} in one that starts from a neighbouring β" if told else ""


def _limits(plan: Plan) -> dict[str, tuple[int, int]]:
    """By optimiser: the steps of a run, and of one that starts from a neighbouring β."""
    settings = plan.settings
    likelihood = named_likelihood(settings.likelihood, torch.ones(2))
    found: dict[str, tuple[int, int]] = {}
    for size in plan.sizes:
        inducing = settings.num_inducing or auto_inducing(size)
        for method in plan.methods:
            recipe = Recipe(objective=method.objective, max_steps=settings.max_steps)
            optimizer = recipe.chosen_optimizer(size, inducing)
            limit = recipe.chosen_max_steps(optimizer, likelihood)
            found[optimizer] = limit, brief(recipe, optimizer, likelihood).max_steps or limit
    return found


def without_convergence(findings: Findings) -> Iterator[str]:
    """Of fits that took all the steps they were allowed."""
    plan, runs = findings.comparison.plan, findings.comparison.runs
    ended = Counter(run.cell.method for run in runs if run.outcome.status == Status.BUDGET)
    if ended:
        whose = [f"{ended[m.name]} of {called(m)}" for m in plan.methods if m.name in ended]
        yield (
            f"{ended.total():,} of {plural(len(runs), 'fit')} ended at the last step "
            f"allowed, not by convergence: {joined(whose)}; --max-iter above "
            f"{most_steps(plan):,} may change the scores."
        )


def betas_at_ends(findings: Findings) -> Iterator[str]:
    """Of methods whose β is an end of its grid in most repeats."""
    where = " in most repeats" if findings.num_repeats > 1 else ""
    for which, other in (("smallest", "smaller"), ("largest", "larger")):
        names = [
            called(standing.method)
            for standing in findings.standings
            if standing.method.chooses_beta
            and _mostly_at(which, findings.runs(standing.method.name))
        ]
        if names:
            yield (
                f"Validation chose the {which} β of the grid{where} for {joined(names)}: --betas "
                f"with {other} values may do better."
            )


def _mostly_at(which: str, runs: list[ComparedFit]) -> bool:
    return 2 * sum(run.outcome.beta == _end(which, run) for run in runs) > len(runs)


def _end(which: str, run: ComparedFit) -> float | None:
    """Of the grid as it was asked for; none where nothing lies beyond."""
    grid = run.cell.settings.betas or coarse_grid(run.cell.size)
    end = min(grid) if which == "smallest" else max(grid)
    return end if len(set(grid)) > 1 and end > 0 else None


_FEW = 4
"""Repeats below which a paired test sees large differences only."""

_RARE = 20
"""Test rows of a class below which they say little about it."""


def cautions(findings: Findings) -> tuple[str, ...]:
    """In sentences; none where all went well."""
    every = (_failures, _few_repeats, _rare_class, without_convergence, betas_at_ends)
    return tuple(sentence for said in every for sentence in said(findings))


def _failures(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    if comparison.failed:
        fits = len(comparison.failed) + len(comparison.runs)
        listed_as = "it is" if len(comparison.failed) == 1 else "they are"
        failed = f"{len(comparison.failed)} of {plural(fits, 'fit')} failed"
        yield f"{failed}; {listed_as} listed below."
    yield from _absent(findings)
    if 0 < findings.num_repeats < comparison.plan.repeats:
        kept = f"the {plural(findings.num_repeats, 'repeat')} that all methods finished"
        yield f"Only {kept} (of {comparison.plan.repeats}) are compared."


def _absent(findings: Findings) -> Iterator[str]:
    """Of methods that the standings leave out."""
    shown = {standing.method for standing in findings.standings}
    absent = [m for m in findings.comparison.plan.methods if shown and m not in shown]
    none = [called(m) for m in absent if not findings.runs(m.name)]
    few = [called(m) for m in absent if findings.runs(m.name)]
    size = plural(findings.size, "training row")
    for names, finished in ((none, "no repeat"), (few, "too few repeats")):
        if names:
            yield f"With {size}, {joined(names)} finished {finished} and cannot be judged."


def _few_repeats(findings: Findings) -> Iterator[str]:
    if 1 < findings.num_repeats < _FEW and len(findings.standings) > 1:
        yield (
            f"With {findings.num_repeats} repeats the paired test sees only large differences; "
            "run 5 or more to separate methods that are close."
        )


def _rare_class(findings: Findings) -> Iterator[str]:
    if findings.comparison.plan.data.task != "classification" or not findings.standings:
        return
    runs = findings.runs(findings.standings[0].method.name)
    labels = np.concatenate([run.predictions.actual for run in runs])
    rows, ones = sum(run.outcome.num_test for run in runs), int(labels.sum())
    # Of many test rows only some are kept.
    rarer = round(min(ones, len(labels) - ones) * rows / max(len(labels), 1))
    if rarer < _RARE:
        yield (
            f"Only {'about ' if len(labels) < rows else ''}{rarer} of {plural(rows, 'test row')}, "
            f"over all repeats, {'is' if rarer == 1 else 'are'} of the rarer class: too few to say "
            "how well it is predicted."
        )


_LARGEST = 9.0
"""Beyond this factor, e to the 9, numbers no longer help."""


def nll_sentence(findings: Findings, best: Standing) -> str:
    """About the best method, against the ELBO or, where that was not run, the next best."""
    elbo, others = findings.elbo, [each for each in findings.standings if each is not best]
    if not others:
        return _alone(findings, best)
    runner_up = min(others, key=lambda standing: standing.scores["nll"].mean)
    other = runner_up if elbo is None or elbo is best else elbo
    if findings.num_repeats == 1:
        return _untested(findings, best, other)
    if best is elbo:
        return _elbo_is_best(findings, best, other)
    if other.scores["nll"].close:
        return _cannot_tell(findings, best, other)
    return _told_apart(findings, best, other)


def _alone(findings: Findings, only: Standing) -> str:
    value = _nll(findings, only)
    return f"Only {called(only.method)} was run: its NLL is {value}, with nothing to compare it to."


def _untested(findings: Findings, best: Standing, other: Standing) -> str:
    whose = f"{_nll(findings, other)} of {called(other.method)}"
    return (
        f"{capitalised(called(best.method))} has the lowest NLL, {_nll(findings, best)} against "
        f"{whose}, in the one split that was run: no test is possible with one repeat, so run more "
        "(--repeats 5) before you rely on it."
    )


def _elbo_is_best(findings: Findings, elbo: Standing, other: Standing) -> str:
    close = other.scores["nll"].close
    why = ", it is the simplest" if close else ""
    told = "cannot be told from it" if close else "is worse by more than chance"
    return (
        f"Keep the ELBO{why}: its NLL of {_nll(findings, elbo)} is the lowest over "
        f"{findings.num_repeats} repeats, and the next, {_nll(findings, other)} of "
        f"{called(other.method)}, {told}{_test(other)}."
    )


def _cannot_tell(findings: Findings, best: Standing, other: Standing) -> str:
    elbo = other.method == ELBO
    advice = (
        "keep the ELBO, it is the simplest" if elbo else "take the one that is quicker to train"
    )
    return (
        f"Nothing here tells {called(best.method)}, which has the lowest NLL, from "
        f"{called(other.method)} ({_nll(findings, best)} against {_nll(findings, other)} over "
        f"{findings.num_repeats} repeats{_test(other, ', {}')}): {advice}."
    )


def _told_apart(findings: Findings, best: Standing, other: Standing) -> str:
    mine, theirs = best.scores["nll"].values, other.scores["nll"].values
    always = all(a < b for a, b in zip(mine, theirs, strict=True))
    where = f"{'in each of' if always else 'over'} {findings.num_repeats} repeats{_test(other)}"
    whose = f"the {_nll(findings, other)} of {called(other.method)}"
    return (
        f"{capitalised(called(best.method))} predicts best: its NLL of {_nll(findings, best)} is "
        f"below {whose} {where}{_meaning(best, other)}{_also(findings, best)}."
    )


def _meaning(best: Standing, other: Standing) -> str:
    """A difference of NLL is a factor of probability."""
    gap = other.scores["nll"].mean - best.scores["nll"].mean
    if not 0 < gap < _LARGEST:
        return ""
    return f", so that what came was {_factor(gap)} times as probable on (geometric) average"


def _factor(gap: float) -> str:
    """e to the gap, as it is read: 1.03, 1.6, 250."""
    factor = math.exp(gap)
    if factor >= 10:
        return f"{factor:,.0f}"
    return f"{factor:.2f}" if factor < 1.2 else f"{factor:.1f}"


def _also(findings: Findings, best: Standing) -> str:
    """Those that cannot be told from it."""
    names = [called(s.method) for s in findings.standings if s.scores["nll"].close and s != best]
    return f"; {joined(names)} cannot be told from it" if names else ""


def _nll(findings: Findings, standing: Standing) -> str:
    return findings.value(standing, "nll")


def _test(standing: Standing, form: str = " ({})") -> str:
    """The outcome of the paired test against the best, where there is one."""
    p = standing.scores["nll"].p_value
    return "" if math.isnan(p) else form.format(p_value(p))


_JUDGED = {"mse": "the mean", "mre": "the mean", "error": "the class"}
"""What each score looks at."""


def second_sentence(findings: Findings, use: Standing) -> str:
    """About the method that is recommended."""
    score = findings.second
    value = findings.value(use, score.name)
    clause = _against_best(findings, use)
    return f"{calibration(findings, use)}, and its {score.label} is {value}{clause}."


def _always_above(mine: ScoreEstimate, best: ScoreEstimate) -> bool:
    return all(a > b for a, b in zip(mine.values, best.values, strict=True))


def _against_best(findings: Findings, use: Standing) -> str:
    """How its score compares with the lowest."""
    name = findings.second.name
    best, mine = best_of(findings.standings, name), use.scores[name]
    if not math.isfinite(best.scores[name].mean):
        return ""
    if best is use:
        return ", the lowest" if len(findings.standings) > 1 else ""
    value = findings.value(best, name)
    if mine.close and _always_above(mine, best.scores[name]):
        each = (
            f"in each of {len(mine.values)} repeats, too few to be sure ({p_value(mine.p_value)})"
        )
        return f", above the lowest, {value} of {called(best.method)}, {each}"
    if mine.close:
        return f", not to be told from the lowest, {value} of {called(best.method)}"
    lowest = f", where {called(best.method)} has the lowest, {value}"
    if math.isnan(mine.p_value):
        return lowest
    return f"{lowest} ({p_value(mine.p_value)}): take that if only {_JUDGED[name]} counts"


def fit_command(data: DataFacts, method: Method, settings: Settings) -> str:
    """What to type for a model trained by this method, as it was in the comparison."""
    given = data.arguments or (data.source.removeprefix("embedded: "), "--target", data.target)
    words = ["directgp", "fit", *given, "--task", data.task]
    model = _model(settings, several=len(data.feature_names) > 1)
    return shlex.join([*words, *_options(method), *model, "--out", "model"])


def _options(method: Method) -> list[str]:
    given = ["--objective", method.objective]
    if method.objective == "fitc":
        return given
    beta = [] if method.chooses_beta else ["--beta", "1"]
    return [*given, "--hyperparameters", method.hyperparameters, *beta]


def _model(settings: Settings, several: bool) -> list[str]:
    """What would be chosen otherwise, and what differs from the usual."""
    words = ["--likelihood", settings.likelihood]
    if several:
        words += ["--ard" if settings.ard else "--no-ard"]
    if settings.kernel != "rbf":
        words += ["--kernel", settings.kernel]
    if settings.num_inducing is not None:
        words += ["--inducing", str(settings.num_inducing)]
    return words


@final
@dataclass(frozen=True)
class Verdict:
    """What to use, and why."""

    sentences: tuple[str, ...]
    """Two of them; one where nothing can be compared."""

    method: Method | None
    """What to use; None where nothing was finished."""

    command: str
    """What trains it; empty where there is nothing to train."""

    cautions: tuple[str, ...]
    """What stands in the way of believing it."""


def verdict(findings: Findings) -> Verdict:
    """Read the standings at the largest size."""
    if not findings.standings:
        return Verdict((_nothing(findings),), None, "", cautions(findings))
    best = best_of(findings.standings, "nll")
    if not math.isfinite(best.scores["nll"].mean):
        sentence = "No method has a finite NLL: nothing here can be recommended."
        return Verdict((sentence,), None, "", cautions(findings))
    use = _recommended(findings, best)
    plan = findings.comparison.plan
    command = fit_command(plan.data, use.method, plan.settings)
    sentences = nll_sentence(findings, best), second_sentence(findings, use)
    return Verdict(sentences, use.method, command, cautions(findings))


def _nothing(findings: Findings) -> str:
    if not findings.comparison.runs:
        return "No fit was finished: there is nothing to compare."
    return "No repeat was finished by all methods: there is nothing to compare."


def _recommended(findings: Findings, best: Standing) -> Standing:
    """The best, unless a test was possible and could not tell the ELBO from it."""
    elbo = findings.elbo
    return elbo if elbo and elbo.scores["nll"].close else best
