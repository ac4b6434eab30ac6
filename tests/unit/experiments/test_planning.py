"""Plans of a comparison."""

from typing import Any

import pytest

from directgp.errors import InvalidInputError
from directgp.experiments.plan import make_plan
from tests.unit.experiments.small import problem


def test_what_is_run_unless_one_says_otherwise() -> None:
    plan = make_plan(problem(n=400))
    assert plan.repeats == 5 and plan.sizes == (220,) and len(plan.methods) == 7
    assert plan.settings.ard and plan.settings.likelihood == "gaussian"
    assert len(plan.cells()) == 35 == len({cell.key for cell in plan.cells()})


def test_many_rows_are_not_all_trained_on() -> None:
    assert make_plan(problem(n=40_000)).sizes == (20_000,)
    assert make_plan(problem(n=40_000), sizes=[None, 500]).sizes == (500, 26_800)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"repeats": 0}, "repeats must be at least 1. Got 0."),
        ({"num_inducing": 0}, "num_inducing must be at least 1. Got 0."),
        ({"max_steps": 0}, "max_steps must be at least 1. Got 0."),
        ({"betas": []}, "betas must be of at least one value. Got none."),
        ({"sizes": []}, "sizes must be of at least one value. Got none."),
        ({"sizes": [9]}, "sizes must be 'all' or from 10 to 220"),
        ({"likelihood": "probit"}, "likelihood must be gaussian or student_t for regression."),
        ({"methods": ["magic"]}, "methods must be of elbo, beta-elbo"),
    ],
)
def test_refusals(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        make_plan(problem(n=400), **asked)
    assert str(raised.value).startswith(words)
