"""Budgets of time, steps and evaluations, and cancelling."""

import math
import threading
from collections.abc import Callable

import pytest

from directgp.errors import InvalidInputError
from directgp.training.callbacks import Cancel, EvaluationBudget, StepBudget, TimeBudget
from directgp.training.result import Progress, Status
from directgp.training.run import Monitor


def seen(step: int = 1, evaluations: int = 1, seconds: float = 0.0) -> Progress:
    return Progress("elbo", step, 1000, evaluations, 0.123456, math.nan, seconds)


@pytest.mark.parametrize(
    ("budget", "before", "after", "reason"),
    [
        (
            TimeBudget(2.5),
            seen(step=99, evaluations=99, seconds=2.49),
            seen(seconds=2.5),
            "2.5 of 2.5 seconds are used, at a loss of 0.12346.",
        ),
        (
            StepBudget(2),
            seen(step=1, evaluations=99, seconds=99.0),
            seen(step=2),
            "2 of 2 steps are used, at a loss of 0.12346.",
        ),
        (
            EvaluationBudget(7),
            seen(step=99, evaluations=6, seconds=99.0),
            seen(evaluations=9),  # a line search may pass the budget in one step
            "9 of 7 evaluations are used, at a loss of 0.12346.",
        ),
    ],
)
def test_a_budget_ends_the_run_when_it_is_used_up(
    budget: Monitor, before: Progress, after: Progress, reason: str
) -> None:
    assert budget(before) is None
    stop = budget(after)
    assert stop is not None
    assert stop.status is Status.BUDGET
    assert stop.reason == reason


def test_steps_and_evaluations_add_up_over_the_stages() -> None:
    steps, evaluations = StepBudget(3), EvaluationBudget(9)
    for budget in (steps, evaluations):
        budget.reset()
        assert budget(seen(step=1, evaluations=5)) is None
        budget.reset()
        assert budget(seen(step=1, evaluations=3)) is None
        assert budget(seen(step=2, evaluations=4)) is not None


def test_the_clock_goes_on_through_the_stages() -> None:
    budget = TimeBudget(10.0)
    budget.reset()
    assert budget(seen(seconds=6.0)) is None
    budget.reset()
    assert budget(seen(seconds=9.0)) is None
    assert budget(seen(seconds=12.0)) is not None


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: TimeBudget(0.0), "seconds of TimeBudget"),
        (lambda: TimeBudget(-1.0), "seconds of TimeBudget"),
        (lambda: TimeBudget(math.nan), "seconds of TimeBudget"),
        (lambda: StepBudget(0), "steps of StepBudget"),
        (lambda: EvaluationBudget(0), "evaluations of EvaluationBudget"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], Monitor], culprit: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{culprit} must be"):
        make()


def test_another_thread_can_end_the_run() -> None:
    cancel = Cancel()
    assert cancel(seen()) is None
    thread = threading.Thread(target=cancel.cancel, args=("The window was closed.",))
    thread.start()
    thread.join()
    stop = cancel(seen(step=2))
    assert stop is not None
    assert stop.status is Status.CANCELLED
    assert stop.reason == "The window was closed."


def test_who_gives_no_reason_gets_one() -> None:
    cancel = Cancel()
    cancel.cancel()
    stop = cancel(seen(step=5))
    assert stop is not None and stop.reason == "Cancelled at step 5 of elbo."


def test_a_reason_given_is_not_lost_when_asked_again() -> None:
    cancel = Cancel()
    cancel.cancel("Out of patience.")
    cancel.cancel()
    stop = cancel(seen())
    assert stop is not None and stop.reason == "Out of patience."


def test_a_cancel_between_stages_is_heard() -> None:
    cancel = Cancel()
    cancel.cancel()
    cancel.reset()
    assert cancel(seen()) is not None


def test_two_cancels_are_two() -> None:
    one, other = Cancel(), Cancel()
    one.cancel()
    assert other(seen()) is None
    assert one != other
