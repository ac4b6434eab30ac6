"""State how good the predictions are, which method to use, why, and the limits of the verdict."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from directgp.experiments.cell import BASIC, DEFAULT, Method
from directgp.experiments.compare_cell import ComparedFit, ModelFacts, Settings, StoredMember
from directgp.experiments.fit import coarse_grid
from directgp.experiments.plan import DataFacts, Plan
from directgp.experiments.stats import Paired, RankingRow, best_of
from directgp.metrics import COVERAGE, reliability
from directgp.registry import likelihoods_of
from directgp.reports.findings import Findings, pooled
from directgp.text import (
    command_lines,
    joined,
    number,
    one_line,
    p_value,
    percent,
    plural,
    with_error,
)
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
"""A class with fewer test rows gets a caution: they say little about the class."""

_MAX_LOG_FACTOR = 9.0
"""Difference of NLL beyond which its factor of probability is not stated."""

_MAIN = 3
"""Features that are named in a sentence."""

_SCORED = {"rmse": "the mean", "error": "the class"}
"""The part of a prediction that each score evaluates."""


def calibration(findings: Findings, row: RankingRow) -> str:
    """Return a clause about the calibration of a method, without a full stop."""
    runs = findings.runs(row.method.name)
    name = row.method.name_in_text
    if "coverage" in row.scores:
        share = row.scores["coverage"].mean
        rows = sum(run.outcome.num_test for run in runs)
        factor = _variance_factor(findings, rows)
        chance = 2 * math.sqrt(factor * COVERAGE * (1 - COVERAGE) / rows)
        judged = "as they should"
        if abs(share - COVERAGE) > max(_NEAR_COVERAGE, chance):
            much = "somewhat too" if abs(share - COVERAGE) <= _MODERATE_COVERAGE else "too"
            judged = f"so they are {much} {'wide' if share > COVERAGE else 'narrow'}"
        intervals = f"The {percent(COVERAGE, 0)} intervals of {name}"
        return f"{intervals} contain {percent(share, 1)} of the test rows, {judged}"
    predictions = pooled(runs)
    if not len(predictions.mean):
        return f"The probabilities of {name} are not finite"
    bins_of_labels = reliability(*predictions.one_against_rest())
    error = bins_of_labels.expected_error
    factor = _variance_factor(findings, len(predictions.mean))
    judged = "not calibrated"
    # Most of many classes have small probabilities, which are near their shares in any case.
    classes = 2 if predictions.chances is None else predictions.chances.shape[1]
    if error <= _NEAR_SHARES * 2 / classes:
        judged = "near the observed shares"
    elif error <= bins_of_labels.error_by_chance(factor):
        judged = "as near the observed shares as so few rows can show"
    return f"The probabilities of {name} are {judged}, off by {percent(error, 1)} on average"


def _variance_factor(findings: Findings, rows: int) -> float:
    """Return the factor by which rows that repeats share increase the variance of a share of rows.

    Test rows of two repeats are the same row of the table with probability 1/n, where n is its
    number of rows. It is assumed that models of different repeats agree on such a row, which is the
    worst case.
    """
    of_other_repeats = rows - rows / findings.num_repeats
    return 1 + of_other_repeats / findings.comparison.plan.data.num_rows


def steps_allowed(plan: Plan) -> str:
    """Format how long a fit is trained."""
    settings = plan.settings
    words = "as many as lower the objective"
    if settings.max_steps is not None:
        words += f", at most {settings.max_steps:,} in a run"
    return words


def cautions(findings: Findings) -> tuple[str, ...]:
    """Return sentences about what limits the verdict."""
    every = (_out_of_time, _failures, _few_repeats, _rare_class, _not_converged, _betas_at_ends)
    return tuple(sentence for caution in every for sentence in caution(findings))


def _out_of_time(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    asked = comparison.repeats_asked
    plan = comparison.plan
    if asked is not None:
        ended = len(comparison.runs) + len(comparison.failed)
        when = f"after {plan.repeats}" if ended == len(plan.cells()) else "in the first"
        yield (
            f"The time budget ended the comparison {when} of {plural(asked, 'repeat')}. The same "
            "command with --resume continues."
        )


def _failures(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    if comparison.failed:
        fits = plural(len(comparison.failed) + len(comparison.runs), "fit")
        listed = "it is" if len(comparison.failed) == 1 else "they are"
        yield f"{len(comparison.failed)} of {fits} failed; {listed} listed below."
    shown = {row.method for row in findings.ranking}
    absent = [m for m in comparison.plan.methods if shown and m not in shown]
    none = [m.name_in_text for m in absent if not findings.finished(m.name)]
    few = [m.name_in_text for m in absent if findings.finished(m.name)]
    size = plural(findings.size, "training row")
    for names, finished in ((none, "no repeat"), (few, "too few repeats")):
        if names:
            yield f"With {size}, {joined(names)} finished {finished} and cannot be compared."
    if 0 < findings.num_repeats < comparison.plan.repeats:
        compared = f"{findings.num_repeats} of {plural(comparison.plan.repeats, 'repeat')}"
        which = "the one" if findings.num_repeats == 1 else "those"
        yield f"Compared: {compared}, {which} that all methods finished."


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
    classes = findings.comparison.plan.data.classes or ()
    counts = np.bincount(labels.astype(int), minlength=len(classes))
    rows = sum(run.outcome.num_test for run in runs)
    name = "the rarer class"
    if len(classes) > 2:
        name = f"the rarest class, {one_line(classes[int(counts.argmin())], 40)}"
    # Of many test rows only a part is stored.
    rarer = round(int(counts.min()) * rows / max(len(labels), 1))
    if rarer < _RARE:
        yield (
            f"Only {'about ' if len(labels) < rows else ''}{rarer} of {plural(rows, 'test row')}, "
            f"over all repeats, {'is' if rarer == 1 else 'are'} of {name}: too few to judge how "
            "well it is predicted."
        )


def _not_converged(findings: Findings) -> Iterator[str]:
    plan = findings.comparison.plan
    runs = findings.comparison.runs
    ended = Counter(run.cell.method for run in runs if run.outcome.status == Status.BUDGET)
    if ended:
        whose = [f"{ended[m.name]} of {m.name_in_text}" for m in plan.methods if m.name in ended]
        yield (
            f"{ended.total():,} of {plural(len(runs), 'fit')} reached the limit of steps "
            f"before convergence: {joined(whose)}; a larger --max-iter may change the scores."
        )


def _betas_at_ends(findings: Findings) -> Iterator[str]:
    """Yield a sentence about methods whose β is an end of its grid in most repeats."""
    where = " in most repeats" if findings.num_repeats > 1 else ""
    for which, end, direction in (("smallest", min, "smaller"), ("largest", max, "larger")):
        names = [
            row.method.name_in_text
            for row in findings.ranking
            if row.method.chooses_beta and _mostly_at(end, findings.runs(row.method.name))
        ]
        if names:
            yield (
                f"Validation chose the {which} β of the grid{where} for {joined(names)}: --betas "
                f"with {direction} values may do better."
            )


def _mostly_at(end: Callable[[Sequence[float]], float], runs: Sequence[ComparedFit]) -> bool:
    """Return whether most runs chose this end of the grid; β = 0 is no end."""
    grids = [run.cell.settings.betas or coarse_grid(run.cell.size) for run in runs]
    at_end = [
        run.outcome.beta == end(grid) > 0 and len(set(grid)) > 1
        for run, grid in zip(runs, grids, strict=True)
    ]
    return 2 * sum(at_end) > len(runs)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _gain(findings: Findings, mine: RankingRow, rival: RankingRow) -> str:
    """Format ``gives the actual values 1.6 times the probability that the ELBO gives, …``."""
    pair = findings.paired(mine, rival)
    than = rival.method.name_in_text
    share = f"far more probability than {than}"
    if pair.gap < _MAX_LOG_FACTOR:
        factor = math.exp(pair.gap)
        text = f"{factor:,.0f}" if factor >= 10 else f"{factor:.{2 if factor < 1.2 else 1}f}"
        times = "the same" if text == "1.00" else f"{text} times the"
        share = f"{times} probability that {than} gives"
    return f"gives the actual values {share}, {_better_in(pair, findings.num_repeats)}"


def _better_in(pair: Paired, repeats: int) -> str:
    """Format ``better in 4 of 5 repeats (p = 0.01), which may be chance``."""
    if repeats == 1:
        return "in the one split that was run"
    test = p_value(pair.p_value)
    chance = ", which may be chance" if test and not pair.significant else ""
    return f"better in {pair.wins} of {repeats} repeats{f' ({test})' if test else ''}{chance}"


def quality(findings: Findings, use: RankingRow) -> str:
    """State how large the errors are, and how often intervals or labels are right."""
    start = "On rows that were not used for training, "
    mean = findings.row("mean")
    if "error" in use.scores:
        wrong = use.scores["error"].mean
        text = f"{start}{percent(wrong, 1)} of the labels are wrong"
        if mean is not None and mean.scores["error"].mean > 0:
            always = mean.scores["error"].mean
            avoided = percent(max(0.0, 1 - wrong / always), 0)
            many = len(findings.comparison.plan.data.classes or ()) > 2
            common = "most common" if many else "commoner"
            text += f"; the {common} class for every row is wrong in {percent(always, 1)}"
            text += f", so {avoided} of these errors are avoided"
        return f"{text}. {calibration(findings, use)}."
    error = use.scores["rmse"].mean
    target = one_line(findings.comparison.plan.data.target, 40)
    covered = round(100 * use.scores["coverage"].mean)
    within = f"{covered} of 100 values fall into their {percent(COVERAGE, 0)} range."
    if not math.isfinite(error):
        return f"{start}{within}"
    text = f"{start}predictions of {target} are typically off by {number(error)}"
    if mean is not None and mean.scores["rmse"].mean > 0:
        spread = mean.scores["rmse"].mean
        share = percent(max(0.0, 1 - (error / spread) ** 2), 0)
        text += f"; the mean for every row is off by {number(spread)}"
        text += f", so {share} of the variance is explained"
    return f"{text}. {within}"


def choice(findings: Findings, best: RankingRow, use: RankingRow) -> str:
    """State which method to use, and how sure that is."""
    elbo = findings.elbo
    repeats = findings.num_repeats
    others = [row for row in findings.objectives if row is not best]
    name = best.method.name_in_text
    if not others:
        return f"Only {name} was trained: there is no other objective to compare it with."
    next_best = min(others, key=lambda row: row.scores["nll"].mean)
    rival = next_best if elbo is None or elbo is best else elbo
    pair = findings.paired(best, rival)
    gain = _gain(findings, best, rival)
    if repeats == 1:
        return f"{_capital(name)} {gain}: run more (--repeats 5) before you rely on it."
    if best is elbo:
        return f"Use the ELBO, the standard objective: it {gain}."
    if use is elbo:
        return f"Use the ELBO, the standard objective and the simplest: {name} {gain}."
    if not pair.significant and math.isfinite(pair.gap):
        return f"{_capital(name)} {gain}: take the one that is quicker to train."
    return f"Use {name}: it {gain}."


def _terms(findings: Findings, chosen: str) -> Iterator[str]:
    """Yield definitions of the objectives in a sentence, and of p."""
    for row in findings.objectives:
        if row.method.name_in_text.lower() in chosen.lower():
            yield f"{_capital(row.method.name_in_text)} is {_lower(row.method.about)}"
    if findings.num_repeats > 1 and len(findings.objectives) > 1:
        yield "p is the probability of a difference this large if both were equally good."


def details(findings: Findings, use: RankingRow) -> Iterator[str]:
    """Yield the effects of likelihood, objective and mixture, other methods, the second score."""
    yield (
        "NLL is the mean of −log of the probability (or density) that was predicted for the actual "
        "value. Lower is better; 0.1 less is 1.1 times the probability."
    )
    elbo = findings.elbo
    if elbo is not None:
        yield from _model_effect(findings, elbo)
    others = [row for row in findings.objectives if row is not elbo]
    if elbo is not None and others:
        second = min(others, key=lambda row: row.scores["nll"].mean)
        yield f"The objective: {_changed(findings, second, elbo)}."
    yield from _mixture_effect(findings)
    rival = findings.baseline
    if rival is not None:
        change = _changed(findings, use, rival)
        yield f"Without a Gaussian process: {change}."
    yield from _main_features(findings, use)
    yield second_sentence(findings, use)


def _main_features(findings: Findings, use: RankingRow) -> Iterator[str]:
    """Yield which features the predictions need most."""
    every = findings.importance(use.method.name)
    means = {item.feature: math.fsum(item.increases) / len(item.increases) for item in every}
    named = [(one_line(name, 40), increase) for name, increase in means.items() if increase > 0]
    if named and len(every) > 1:
        words = joined([f"{name} ({number(increase, 2)})" for name, increase in named[:_MAIN]])
        most = "features that matter" if len(named) > 1 else "feature that matters"
        yield f"The {most} most, by the increase of NLL when shuffled: {words}."


def _changed(findings: Findings, mine: RankingRow, rival: RankingRow, *names: str) -> str:
    """Format ``X instead of Y lowers the NLL from a to b, better in 5 of 5 repeats (p = 0.01)``."""
    pair = findings.paired(mine, rival)
    one, two = names or (mine.method.name_in_text, rival.method.name_in_text)
    values = [findings.value(row, "nll") for row in (rival, mine)]
    verb = "lowers" if pair.gap > 0 else "raises"
    better = _better_in(pair, findings.num_repeats)
    return f"{one} instead of {two} {verb} the NLL from {values[0]} to {values[1]}, {better}"


def _model_effect(findings: Findings, elbo: RankingRow) -> Iterator[str]:
    """Yield the choice of likelihood, kernel and ARD, and the effect of the likelihood."""
    models = findings.models(elbo.method.name)
    basic = findings.row(BASIC.name)
    if not models or basic is None:
        return
    counts = Counter(f"{model.likelihood.replace('_', '-')} noise" for model in models)
    plain = f"{likelihoods_of(findings.comparison.plan.data.task)[0].replace('_', '-')} noise"
    chosen, times = counts.most_common(1)[0]
    fits = "predicts the validation rows best in"
    if set(counts) == {plain}:
        yield f"The likelihood: {plain} {fits} every repeat."
        return
    change = _changed(findings, elbo, basic, chosen, plain)
    repeats = plural(len(models), "repeat")
    yield f"The likelihood: {chosen} {fits} {times} of {repeats}; {change}."


def _mixture_effect(findings: Findings) -> Iterator[str]:
    """Yield the NLL of `directgp fit` minus that of the best objective, and its members."""
    mixture = findings.row(DEFAULT.name)
    if mixture is None or not findings.objectives:
        return
    best = min(findings.objectives, key=lambda row: row.scores["nll"].mean)
    pair = findings.paired(mixture, best)
    difference = ""
    if math.isfinite(pair.gap):
        words = " (mean ± standard error)" if math.isfinite(pair.error) else ""
        difference = f"; the difference is {with_error(-pair.gap, pair.error)}{words}"
    yield f"Mixture and trees: {_changed(findings, mixture, best)}{difference}."
    members = members_in_words(findings.mixtures)
    if members:
        yield f"{_capital(members)}."


def members_in_words(mixtures: Sequence[Sequence[StoredMember]]) -> str:
    """Format ``the mixture of a repeat has 3 to 5 models; models with trees have 62 % of …``."""
    if not mixtures:
        return ""
    numbers = [len(members) for members in mixtures]
    fewest, most = min(numbers), max(numbers)
    models = plural(most, "model") if fewest == most else f"{fewest} to {most} models"
    weights = [sum(each.weight for each in members if each.stacked) for members in mixtures]
    share = percent(math.fsum(weights) / len(weights), 0)
    return f"the mixture of a repeat has {models}; models with trees have {share} of the weight"


def second_sentence(findings: Findings, use: RankingRow) -> str:
    """State calibration and second score of the recommended method."""
    score = findings.scores[1]
    mine = use.scores[score.name]
    best = best_of(findings.ranking, score.name)
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


def fit_command(
    data: DataFacts, method: Method, settings: Settings, model: ModelFacts | None = None
) -> str:
    """Return the command that trains a model by this method, as in the comparison."""
    arguments = data.arguments or (data.source.removeprefix("embedded: "), "--target", data.target)
    words = ["directgp", "fit", *arguments, "--task", data.task]
    if method != DEFAULT:
        words += ["--objective", method.objective]
        if method.objective != "fitc":
            words += ["--hyperparameters", method.hyperparameters]
            words += [] if method.chooses_beta else ["--beta", "1"]
    chosen = (model or settings) if method != DEFAULT else settings
    for option, value in (("--likelihood", chosen.likelihood), ("--kernel", chosen.kernel)):
        words += [] if value == "auto" else [option, value]
    if len(data.feature_names) > 1 and chosen.ard != "auto":
        words += ["--ard" if chosen.ard else "--no-ard"]
    if settings.num_inducing is not None:
        words += ["--inducing", str(settings.num_inducing)]
    if settings.max_steps is not None:
        words += ["--max-iter", str(settings.max_steps)]
    return command_lines([*words, "--out", "model"])


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How good the predictions are, which method to use, and why."""

    quality: str = ""
    """Answer to "is it good?"; empty if nothing can be compared."""

    choice: str
    """Answer to "which one?"."""

    terms: tuple[str, ...] = ()
    """Definitions of the words in `choice`."""

    method: Method | None = None
    """The method to use; None if nothing was finished."""

    command: str = ""
    """The command that trains the method; empty without a method."""

    details: tuple[str, ...] = ()
    """The statistics behind the answers."""

    cautions: tuple[str, ...]
    """Reasons to doubt the answers."""


def _is_better(findings: Findings, mine: RankingRow, rival: RankingRow) -> bool:
    pair = findings.paired(mine, rival)
    return pair.significant and pair.gap > 0


def verdict(findings: Findings) -> Verdict:
    """Return the verdict on the ranking at the largest size."""
    finite = [row for row in findings.objectives if math.isfinite(row.scores["nll"].mean)]
    if not finite:
        nothing = "No fit was finished: there is nothing to compare"
        if findings.objectives:
            nothing = "No method has a finite NLL: nothing can be recommended"
        elif findings.comparison.runs:
            nothing = "No repeat was finished by all methods: there is nothing to compare"
        return Verdict(choice=f"{nothing}.", cautions=cautions(findings))
    best = min(finite, key=lambda row: row.scores["nll"].mean)
    elbo = findings.elbo
    default = findings.row(DEFAULT.name)
    # Prefer the ELBO, the simplest method, unless a test shows that it is significantly worse.
    use = best
    if elbo in finite and elbo is not None and findings.num_repeats > 1:
        use = best if findings.paired(best, elbo).significant else elbo
    winner = use
    if default is not None and _is_better(findings, default, winner):
        use = default
    plan = findings.comparison.plan
    models = Counter(findings.models(use.method.name)).most_common(1)
    model = models[0][0] if models else None
    chosen = choice(findings, best, winner)
    rival = findings.baseline
    if use is not winner:
        chosen = f"Use directgp fit as it is: it {_gain(findings, use, winner)}."
    if rival is not None and _is_better(findings, rival, use):
        name = rival.method.name_in_text
        gain = _gain(findings, rival, use)
        chosen += f" But {name}, without a Gaussian process, predicts better: it {gain}."
    return Verdict(
        quality=quality(findings, use),
        choice=chosen,
        terms=tuple(_terms(findings, chosen)),
        method=use.method,
        command=fit_command(plan.data, use.method, plan.settings, model),
        details=tuple(details(findings, use)),
        cautions=cautions(findings),
    )
