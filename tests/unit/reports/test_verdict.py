"""The verdict and the cautions of a report: their sentences."""

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from directgp.experiments.cell import DEFAULT, METHODS
from directgp.experiments.compare_cell import ComparedFit
from directgp.experiments.plan import Comparison
from directgp.reports.findings import Findings
from directgp.reports.verdict import Verdict, cautions, fit_command, verdict
from directgp.text import with_error
from tests.unit.reports.made import NLL, Recipe, comparison

PAIR = ("elbo", "log-joint")


def verdict_of(recipe: Recipe) -> Verdict:
    return verdict(Findings(comparison(recipe)))


FIRST = [
    (
        Recipe(repeats=5),
        "log-joint",
        "Use log-loss DLM (joint): it gives the actual values 1.6 times the probability that "
        "the ELBO gives, better in 5 of 5 repeats (p < 0.001).",
    ),
    (
        Recipe(repeats=5, nll={**NLL, "log-fixed": -0.102}),
        "log-fixed",
        "Use log-loss DLM (fixed): it gives the actual values 1.6 times the probability that "
        "the ELBO gives, better in 5 of 5 repeats (p < 0.001).",
    ),
    (
        Recipe(repeats=5, methods=PAIR, nll={"elbo": 0.366, "log-joint": 0.29}, noise=0.05),
        "elbo",
        "Use the ELBO, the standard objective and the simplest: log-loss DLM (joint) gives "
        "the actual values 1.02 times the probability that the ELBO gives, better in 4 of 5 "
        "repeats (p = 0.52), which may be chance.",
    ),
    (
        Recipe(repeats=5, nll={**NLL, "elbo": -0.5}),
        "elbo",
        "Use the ELBO, the standard objective: it gives the actual values 1.5 times the "
        "probability that log-loss DLM (joint) gives, better in 5 of 5 repeats (p < 0.001).",
    ),
    (
        Recipe(repeats=5, methods=PAIR, nll={"elbo": 0.3, "log-joint": 0.301}),
        "elbo",
        "Use the ELBO, the standard objective: it gives the actual values 1.01 times the "
        "probability that log-loss DLM (joint) gives, better in 5 of 5 repeats (p = 0.14), "
        "which may be chance.",
    ),
    (
        Recipe(repeats=1),
        "log-joint",
        "Log-loss DLM (joint) gives the actual values 1.6 times the probability that the ELBO"
        " gives, in the one split that was run: run more (--repeats 5) before you rely on it.",
    ),
    (
        Recipe(repeats=3, methods=("elbo",)),
        "elbo",
        "Only the ELBO was trained: there is no other objective to compare it with.",
    ),
    (
        Recipe(repeats=4, methods=("log-joint", "log-fixed")),
        "log-joint",
        "Use log-loss DLM (joint): it gives the actual values 1.5 times the probability that "
        "log-loss DLM (fixed) gives, better in 4 of 4 repeats (p < 0.001).",
    ),
    (
        Recipe(
            repeats=4,
            methods=("log-joint", "log-fixed"),
            nll={"log-joint": 0.3, "log-fixed": 0.301},
        ),
        "log-fixed",
        "Log-loss DLM (fixed) gives the actual values the same probability that log-loss DLM "
        "(joint) gives, better in 2 of 4 repeats (p = 0.76), which may be chance: take the "
        "one that is quicker to train.",
    ),
    (
        Recipe(repeats=4, nll={**NLL, "elbo": math.inf}),
        "log-joint",
        "Use log-loss DLM (joint): it gives the actual values far more probability than the "
        "ELBO, better in 4 of 4 repeats.",
    ),
    (
        Recipe(repeats=4, nll={name: math.inf for name in NLL}),
        None,
        "No method has a finite NLL: nothing can be recommended.",
    ),
    (
        Recipe(repeats=1, methods=("elbo",), failed=[("elbo", 0, 5000, "why")]),
        None,
        "No fit was finished: there is nothing to compare.",
    ),
    (
        Recipe(
            repeats=2, methods=PAIR, failed=[("elbo", 0, 5000, "a"), ("log-joint", 1, 5000, "b")]
        ),
        None,
        "No repeat was finished by all methods: there is nothing to compare.",
    ),
]


@pytest.mark.parametrize(("recipe", "method", "sentence"), FIRST)
def test_the_choice(recipe: Recipe, method: str | None, sentence: str) -> None:
    found = verdict_of(recipe)
    assert found.choice == sentence
    assert (found.method.name if found.method else None) == method
    assert bool(found.quality) == (method is not None)


SECOND = [
    (
        Recipe(repeats=5),
        "The 90 % intervals of log-loss DLM (joint) contain 90.4 % of the test rows, as they "
        "should, and its RMSE is 0.3432, above the lowest, 0.3058 of square-loss DLM (joint) "
        "(p < 0.001): take that method if only the mean matters.",
    ),
    (
        Recipe(repeats=1),
        "The 90 % intervals of log-loss DLM (joint) contain 90.3 % of the test rows, as they "
        "should, and its RMSE is 0.3461, above the lowest, 0.3081 of square-loss DLM (joint).",
    ),
    (
        Recipe(repeats=5, methods=PAIR, second={"elbo": 0.2, "log-joint": 0.1}),
        "The 90 % intervals of log-loss DLM (joint) contain 90.4 % of the test rows, as they "
        "should, and its RMSE is 0.3173, the lowest.",
    ),
    (
        Recipe(repeats=5, methods=PAIR, second={"elbo": 0.1, "log-joint": 0.101}),
        "The 90 % intervals of log-loss DLM (joint) contain 90.4 % of the test rows, as they "
        "should, and its RMSE is 0.3189, above the lowest, 0.3160 of the ELBO, in each of 5 "
        "repeats, too few to be sure (p = 0.12).",
    ),
    (
        Recipe(repeats=5, methods=PAIR, second={"elbo": 0.1, "log-joint": 0.1001}),
        "The 90 % intervals of log-loss DLM (joint) contain 90.4 % of the test rows, as they "
        "should, and its RMSE is 0.3175, not significantly different from the lowest, 0.3160 "
        "of the ELBO.",
    ),
    (
        Recipe(task="count", repeats=5, methods=PAIR, coverage={"log-joint": 0.8}),
        "The 90 % intervals of log-loss DLM (joint) contain 79.8 % of the test rows, so they "
        "are too narrow, and its RMSE is 0.3432, the lowest.",
    ),
    (
        Recipe(repeats=5, methods=("log-joint",), coverage={"log-joint": 0.94}),
        "The 90 % intervals of log-loss DLM (joint) contain 93.8 % of the test rows, so they "
        "are somewhat too wide, and its RMSE is 0.3432.",
    ),
]


@pytest.mark.parametrize(("recipe", "sentence"), SECOND)
def test_calibration_and_the_second_score(recipe: Recipe, sentence: str) -> None:
    assert verdict_of(recipe).details[-1] == sentence


def small(made: Comparison, num_rows: int) -> Comparison:
    """The same comparison of a table of fewer rows, so that repeats share test rows."""
    plan = made.plan
    return replace(
        made, plan=replace(plan, data=plan.data.model_copy(update={"num_rows": num_rows}))
    )


def test_repeats_that_share_test_rows_show_less() -> None:
    """Two standard errors of 5 times 40 different rows are 4.2 %, of rows that occur twice 6 %."""
    recipe = Recipe(repeats=5, methods=("log-joint",), coverage={"log-joint": 0.947}, num_test=40)
    words = "The 90 % intervals of log-loss DLM (joint) contain 94.5 % of the test rows, "
    large = verdict(Findings(small(comparison(recipe), 20_000))).details[-1]
    assert large.startswith(f"{words}so they are somewhat too wide")
    few = verdict(Findings(small(comparison(recipe), 160))).details[-1]
    assert few.startswith(f"{words}as they should")


WITH_ALL = ("elbo", "log-joint", "elbo-basic", "auto", "mean", "linear", "boosting")


def test_what_likelihood_and_objective_changed_are_told_apart() -> None:
    nll = {**NLL, "elbo": 0.366, "elbo-basic": 0.9, "log-joint": 0.36, "auto": 0.4}
    recipe = Recipe(repeats=5, methods=WITH_ALL, likelihood="auto", chosen="student_t", nll=nll)
    told = verdict_of(recipe).details
    assert told[1] == (
        "The likelihood: student-t noise predicts the validation rows best in 5 of 5"
        " repeats; student-t noise instead of gaussian noise lowers the NLL from 0.908 to 0.372,"
        " better in 5 of 5 repeats (p < 0.001)."
    )
    assert told[2].startswith("The objective: log-loss DLM (joint) instead of the ELBO")
    assert told[2].endswith("which may be chance.")
    assert told[5].startswith("Without a Gaussian process: the ELBO instead of gradient boosting")
    basic = verdict_of(replace(recipe, chosen="gaussian")).details
    assert basic[1] == (
        "The likelihood: gaussian noise predicts the validation rows best in every repeat."
    )


def test_mixture_and_trees_are_compared_with_the_best_objective() -> None:
    """The standard error is that of the paired test, for splits that share rows."""
    recipe = Recipe(repeats=5, methods=WITH_ALL, likelihood="auto", nll={**NLL, "auto": -0.15})
    findings = Findings(comparison(recipe))
    rows = {row.method.name: row for row in findings.ranking}
    values = [rows[name] for name in ("auto", "log-joint")]
    mixture, single = (np.array(row.scores["nll"].values) for row in values)
    gaps = mixture - single
    parts = findings.comparison.plan.parts
    gap = float(gaps.mean())
    error = float(gaps.std(ddof=1)) * math.sqrt(1 / 5 + parts.test / parts.training)
    told = verdict(findings).details
    place = next(i for i, sentence in enumerate(told) if sentence.startswith("Mixture and trees"))
    assert told[place] == (
        "Mixture and trees: directgp fit instead of log-loss DLM (joint) lowers the NLL from"
        f" {findings.value(values[1], 'nll')} to {findings.value(values[0], 'nll')}, better in 5"
        f" of 5 repeats (p = 0.001); the difference is {with_error(gap, error)}"
        " (mean ± standard error)."
    )
    assert told[place + 1] == (
        "The mixture of a repeat has 2 to 3 models; models with trees have 50 % of the weight."
    )
    (once,) = (
        sentence
        for sentence in verdict_of(replace(recipe, repeats=1)).details
        if sentence.startswith("Mixture and trees")
    )
    assert "in the one split that was run; the difference is " in once and "±" not in once
    alone = verdict_of(replace(recipe, methods=("auto", "mean"))).details
    without = verdict_of(replace(recipe, methods=PAIR)).details
    assert not any("Mixture" in sentence for sentence in (*alone, *without))


def test_words_are_defined_where_they_appear() -> None:
    elbo, dlm, p = verdict_of(Recipe(repeats=5)).terms
    assert elbo.startswith("The ELBO is the evidence lower bound: ")
    assert dlm.startswith("Log-loss DLM (joint) is direct loss minimization: ")
    assert p == "p is the probability of a difference this large if both were equally good."
    once = verdict_of(Recipe(repeats=1)).terms
    assert len(once) == 2 and p not in once


def test_the_main_features_are_named() -> None:
    sentence = (
        "The features that matter most, by the increase of NLL when shuffled: d (0.4), c (0.3) and"
        " b (0.2)."
    )
    recipe = Recipe(repeats=3, features=("a", "b", "c", "d"))
    assert sentence in verdict_of(recipe).details
    for other in (replace(recipe, explained=False), replace(recipe, features=("a",))):
        assert not any("shuffled" in each for each in verdict_of(other).details)


def test_how_good_it_is() -> None:
    of_numbers = verdict_of(Recipe(repeats=5, methods=WITH_ALL, likelihood="auto")).quality
    assert of_numbers == (
        "On rows that were not used for training, predictions of y are typically off by 0.343; the"
        " mean for every row is off by 1, so 88 % of the variance is explained. 90 of 100 values"
        " fall into their 90 % range."
    )
    labels = Recipe(task="classification", repeats=5, methods=("elbo", "log-joint", "mean"))
    second = {"elbo": 0.1, "log-joint": 0.05, "mean": 0.4}
    assert verdict_of(replace(labels, second=second)).quality.startswith(
        "On rows that were not used for training, 5.0 % of the labels are wrong; the commoner class"
        " for every row is wrong in 40."
    )
    many = replace(labels, second=second, classes=("a", "b", "c"))
    words = "; the most common class for every row is wrong in 40."
    assert words in verdict_of(many).quality


def test_the_default_and_baselines_may_be_better() -> None:
    recipe = Recipe(repeats=5, methods=WITH_ALL, likelihood="auto", nll={**NLL, "auto": -0.5})
    found = verdict_of(recipe)
    assert found.method == DEFAULT
    assert found.choice.startswith("Use directgp fit as it is: it gives the actual values 1.5")
    assert "--objective" not in found.command and "--likelihood" not in found.command
    found = verdict_of(replace(recipe, nll={**NLL, "boosting": -1.0}))
    assert found.choice.endswith(
        " But gradient boosting, without a Gaussian process, predicts better: it gives the actual"
        " values 2.5 times the probability that log-loss DLM (joint) gives, better in 5 of 5"
        " repeats (p < 0.001)."
    )


def test_probabilities_are_judged_by_how_often_classes_came() -> None:
    sentence = verdict_of(Recipe(task="classification", repeats=5)).details[-1]
    assert sentence.startswith(
        "The probabilities of log-loss DLM (joint) are near the observed shares, off by "
    )
    assert sentence.endswith(": take that method if only the class matters.")


def test_what_failed_is_said() -> None:
    why = [("fitc", 1, 5000, "not positive definite")]
    assert verdict_of(Recipe(repeats=5, failed=why)).cautions == (
        "1 of 35 fits failed; it is listed below.",
        "Compared: 4 of 5 repeats, those that all methods finished.",
    )
    every = [("fitc", repeat, 5000, "x") for repeat in range(5)]
    assert verdict_of(Recipe(repeats=5, failed=every)).cautions == (
        "5 of 35 fits failed; they are listed below.",
        "With 5,000 training rows, FITC finished no repeat and cannot be compared.",
    )
    assert verdict_of(Recipe(repeats=5)).cautions == ()


def test_repeats_that_are_not_ranked_are_not_counted() -> None:
    why = [("fitc", 0, 5000, "not positive definite")]
    recipe = Recipe(
        repeats=2, methods=("elbo", "fitc", "elbo-basic"), failed=why, likelihood="auto"
    )
    findings = Findings(comparison(recipe))
    assert "Compared: 1 of 2 repeats, the one that all methods finished." in cautions(findings)
    for method in ("elbo", "fitc"):
        assert [run.cell.repeat for run in findings.runs(method)] == [1]
        assert len(findings.models(method)) == len(findings.importance(method)[0].increases) == 1
    assert [run.cell.repeat for run in findings.finished("elbo")] == [0, 1]


def test_few_repeats_are_said() -> None:
    assert "3 repeats" in verdict_of(Recipe(repeats=3)).cautions[0]
    assert not verdict_of(Recipe(repeats=3, methods=("elbo",))).cautions


def test_the_largest_size_decides() -> None:
    recipe = Recipe(repeats=5, sizes=(500, 5000))
    one, other = verdict_of(recipe), verdict_of(replace(recipe, sizes=(5000,)))
    assert (one.quality, one.choice) == (other.quality, other.choice)


def test_the_command_keeps_the_model_of_the_comparison() -> None:
    plan = comparison(Recipe()).plan
    other = plan.settings.model_copy(
        update={"kernel": "matern52", "num_inducing": 30, "max_steps": 50}
    )
    command = fit_command(plan.data, METHODS["fitc"], other).replace(" \\\n ", "")
    assert command.endswith(
        " --likelihood gaussian --kernel matern52 --ard --inducing 30 --max-iter 50 --out model"
    )


def test_embedded_data_are_called_by_their_name() -> None:
    assert verdict_of(Recipe(source="embedded: diabetes")).command.startswith(
        "directgp fit diabetes "
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("elbo", "--objective elbo --hyperparameters joint --beta 1"),
        ("beta-elbo", "--objective elbo --hyperparameters joint"),
        ("fitc", "--objective fitc"),
        ("log-fixed", "--objective log_loss --hyperparameters fixed"),
        ("square-joint", "--objective square_loss --hyperparameters joint"),
    ],
)
def test_the_command_trains_what_is_recommended(method: str, options: str) -> None:
    found = verdict_of(Recipe(methods=(method,), source="my table.csv", target="it's"))
    start = "directgp fit 'my table.csv' --target 'it'\"'\"'s' --task regression"
    whole = f"{start} {options} --likelihood gaussian --kernel rbf --ard --out model"
    assert shlex.split(found.command.replace("\\\n", "")) == shlex.split(whole)
    assert max(map(len, found.command.splitlines())) <= 80


FIVE = Recipe(repeats=5, methods=("elbo", "fitc", "log-joint", "log-fixed"))
LABELS = Recipe(task="classification", repeats=5, methods=("elbo", "log-joint"))


def cautions_of(made: Comparison) -> tuple[str, ...]:
    return cautions(Findings(made))


def with_outcomes(made: Comparison, change: Callable[[ComparedFit], dict[str, Any]]) -> Comparison:
    runs = (replace(r, outcome=r.outcome.model_copy(update=change(r))) for r in made.runs)
    return replace(made, runs=tuple(runs))


def with_settings(made: Comparison, **changed: Any) -> Comparison:
    """In the plan and in every cell."""
    settings = made.plan.settings.model_copy(update=changed)
    runs = (replace(r, cell=r.cell.model_copy(update={"settings": settings})) for r in made.runs)
    return replace(made, plan=replace(made.plan, settings=settings), runs=tuple(runs))


def unfinished(made: Comparison, **methods: int) -> Comparison:
    """The first repeats of these methods end by their steps."""
    ended = {(name.replace("_", "-"), r) for name, n in methods.items() for r in range(n)}
    budget = {"status": "budget", "reason": "100 steps were taken, as many as allowed."}
    return with_outcomes(made, lambda r: budget if (r.cell.method, r.cell.repeat) in ended else {})


def test_fits_that_did_not_converge_are_counted_in_one_sentence() -> None:
    made = comparison(FIVE)
    assert cautions_of(made) == ()
    assert cautions_of(unfinished(made, fitc=5, log_joint=2)) == (
        "7 of 20 fits reached the limit of steps before convergence: 5 of FITC and 2 of log-loss "
        "DLM (joint); a larger --max-iter may change the scores.",
    )


def test_a_comparison_that_ran_out_of_time_says_so() -> None:
    made = replace(comparison(FIVE), repeats_asked=9)
    continues = "The same command with --resume continues."
    assert cautions_of(made) == (
        f"The time budget ended the comparison after 5 of 9 repeats. {continues}",
    )
    one = comparison(Recipe(repeats=1))
    cut = replace(one, runs=one.runs[:2], repeats_asked=9)
    assert cautions_of(cut)[0] == (
        f"The time budget ended the comparison in the first of 9 repeats. {continues}"
    )


def chosen(made: Comparison, betas: dict[str, list[float]]) -> Comparison:
    """The β of these methods, repeat by repeat."""
    return with_outcomes(
        made,
        lambda r: {"beta": betas[r.cell.method][r.cell.repeat]} if r.cell.method in betas else {},
    )


def test_a_beta_at_an_end_of_its_grid_is_said() -> None:
    made = comparison(FIVE)
    assert cautions_of(chosen(made, {"log-joint": [0.01, 0.01, 0.01, 1.0, 1.0]})) == (
        "Validation chose the smallest β of the grid in most repeats for log-loss DLM (joint): "
        "--betas with smaller values may do better.",
    )
    both = {"log-joint": [5000.0] * 5, "log-fixed": [5000.0] * 3 + [1.0] * 2}
    assert cautions_of(chosen(made, both)) == (
        "Validation chose the largest β of the grid in most repeats for log-loss DLM (joint) and "
        "log-loss DLM (fixed): --betas with larger values may do better.",
    )


@pytest.mark.parametrize(
    ("grid", "betas"),
    [
        (None, [0.01, 0.01, 1.0, 1.0, 1.0]),
        (None, [0.01, 0.01, 5000.0, 5000.0, 1.0]),
        # The smallest that could be trained, not the smallest that was asked for.
        ((1.0, 0.1, 0.001), [0.1] * 5),
        # Nothing lies below 0, and one value is no grid.
        ((1.0, 0.0), [0.0] * 5),
        ((0.5,), [0.5] * 5),
    ],
)
def test_other_betas_are_not_talked_of(grid: tuple[float, ...] | None, betas: list[float]) -> None:
    made = with_settings(comparison(FIVE), betas=grid)
    rest = {"log-fixed": [0.3] * 5}
    assert cautions_of(chosen(made, {"log-joint": betas, **rest})) == ()


def test_with_one_repeat_most_repeats_are_not_talked_of() -> None:
    made = with_settings(comparison(replace(FIVE, repeats=1)), betas=(1.0, 0.1))
    assert cautions_of(chosen(made, {"log-joint": [0.1], "log-fixed": [0.5]})) == (
        "Validation chose the smallest β of the grid for log-loss DLM (joint): --betas with "
        "smaller values may do better.",
    )


def labelled(ones: int, num_test: int = 400, common: bool = False) -> Comparison:
    """So many rows of the rarer class in each repeat, of 400 that are kept."""
    labels = np.zeros(400)
    labels[:ones] = 1.0
    actual = 1 - labels if common else labels
    made = with_outcomes(comparison(LABELS), lambda _: {"num_test": num_test})
    runs = (replace(r, predictions=replace(r.predictions, actual=actual)) for r in made.runs)
    return replace(made, runs=tuple(runs))


@pytest.mark.parametrize("common", [False, True])
def test_a_rare_class_is_said(common: bool) -> None:
    assert cautions_of(labelled(3, common=common)) == (
        "Only 15 of 2,000 test rows, over all repeats, are of the rarer class: too few to judge "
        "how well it is predicted.",
    )
    assert cautions_of(labelled(4, common=common)) == ()


def test_the_rarest_of_many_classes_is_named() -> None:
    actual = np.repeat([0.0, 1.0, 2.0], [200, 3, 197])
    made = comparison(replace(LABELS, classes=("a", "b", "c")))
    runs = (replace(r, predictions=replace(r.predictions, actual=actual)) for r in made.runs)
    assert cautions_of(replace(made, runs=tuple(runs))) == (
        "Only 15 of 2,000 test rows, over all repeats, are of the rarest class, b: too few to "
        "judge how well it is predicted.",
    )


def test_rows_that_were_not_kept_are_reckoned_with() -> None:
    assert cautions_of(labelled(1, num_test=1200))[0].startswith("Only about 15 of 6,000 test rows")
    assert cautions_of(labelled(1, num_test=1600)) == ()
    assert cautions_of(labelled(0))[0].startswith(
        "Only 0 of 2,000 test rows, over all repeats, are of"
    )


def test_numbers_have_no_rare_class() -> None:
    made = comparison(Recipe(task="count", repeats=5, methods=("elbo",)))
    runs = [replace(r, predictions=replace(r.predictions, actual=np.zeros(400))) for r in made.runs]
    assert cautions_of(replace(made, runs=tuple(runs))) == ()


def test_methods_that_the_ranking_leaves_out_are_named() -> None:
    why = [("fitc", repeat, 5000, "x") for repeat in range(4)]
    assert cautions_of(comparison(replace(FIVE, failed=why))) == (
        "4 of 20 fits failed; they are listed below.",
        "With 5,000 training rows, FITC finished too few repeats and cannot be compared.",
    )
