from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from directgp.experiments.plan import ComparedFit, Comparison
from directgp.reports.verdict import Findings, cautions
from tests.unit.reports.made import Recipe, comparison

FIVE = Recipe(repeats=5, methods=("elbo", "fitc", "log-joint", "log-fixed"))
LABELS = Recipe(task="classification", repeats=5, methods=("elbo", "log-joint"))


def said(made: Comparison) -> tuple[str, ...]:
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
    assert said(made) == ()
    assert said(unfinished(made, fitc=5, log_joint=2)) == (
        "7 of 20 fits reached the limit of steps before convergence: 5 of FITC and 2 of "
        "log-loss DLM (joint); --max-iter above 500 may change the scores.",
    )
    (sentence,) = said(unfinished(with_settings(made, max_steps=2000), elbo=1))
    assert sentence.startswith("1 of 20 fits reached") and "1 of the ELBO; " in sentence
    assert "--max-iter above 2,000" in sentence


def chosen(made: Comparison, betas: dict[str, list[float]]) -> Comparison:
    """The β of these methods, repeat by repeat."""
    return with_outcomes(
        made,
        lambda r: {"beta": betas[r.cell.method][r.cell.repeat]} if r.cell.method in betas else {},
    )


def test_a_beta_at_an_end_of_its_grid_is_said() -> None:
    made = comparison(FIVE)
    assert said(chosen(made, {"log-joint": [0.01, 0.01, 0.01, 1.0, 1.0]})) == (
        "Validation chose the smallest β of the grid in most repeats for log-loss DLM (joint): "
        "--betas with smaller values may do better.",
    )
    both = {"log-joint": [5000.0] * 5, "log-fixed": [5000.0] * 3 + [1.0] * 2}
    assert said(chosen(made, both)) == (
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
    assert said(chosen(made, {"log-joint": betas, **rest})) == ()


def test_with_one_repeat_most_repeats_are_not_talked_of() -> None:
    made = with_settings(comparison(replace(FIVE, repeats=1)), betas=(1.0, 0.1))
    assert said(chosen(made, {"log-joint": [0.1], "log-fixed": [0.5]})) == (
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
    assert said(labelled(3, common=common)) == (
        "Only 15 of 2,000 test rows, over all repeats, are of the rarer class: too few to judge "
        "how well it is predicted.",
    )
    assert said(labelled(4, common=common)) == ()


def test_rows_that_were_not_kept_are_reckoned_with() -> None:
    assert said(labelled(1, num_test=1200))[0].startswith("Only about 15 of 6,000 test rows")
    assert said(labelled(1, num_test=1600)) == ()
    assert said(labelled(0))[0].startswith("Only 0 of 2,000 test rows, over all repeats, are of")


def test_numbers_have_no_rare_class() -> None:
    made = comparison(Recipe(task="count", repeats=5, methods=("elbo",)))
    runs = [replace(r, predictions=replace(r.predictions, actual=np.zeros(400))) for r in made.runs]
    assert said(replace(made, runs=tuple(runs))) == ()


def test_methods_that_the_ranking_leaves_out_are_named() -> None:
    why = [("fitc", repeat, 5000, "x") for repeat in range(4)]
    assert said(comparison(replace(FIVE, failed=why))) == (
        "4 of 20 fits failed; they are listed below.",
        "With 5,000 training rows, FITC finished too few repeats and cannot be compared.",
    )
