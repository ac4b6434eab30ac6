"""Stopping rules, on known sequences of losses; budgets, and cancelling."""

import math
import random
import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from directgp.errors import InvalidInputError
from directgp.training.callbacks import Cancel, EvaluationBudget, StepBudget, TimeBudget
from directgp.training.result import Progress, Status
from directgp.training.run import LossRange, Monitor, RelativeDecrease, SmallGradient

LOSSES = st.lists(st.sampled_from([0.0, 0.5, 1.0, -3.0, 100.0]), max_size=30)


def at(step: int, loss: float, gradient_norm: float = math.nan) -> Progress:
    return Progress("elbo", step, 1000, step, loss, gradient_norm, 0.1 * step)


def fires_at(rule: Monitor, losses: Sequence[float]) -> int | None:
    """The first step, counted from 1, at which the rule stops the run."""
    for step, loss in enumerate(losses, start=1):
        stop = rule(at(step, loss))
        if stop is not None:
            assert stop.status is Status.CONVERGED
            return step
    return None


def slow_average(losses: Sequence[float], s: float) -> list[float]:
    """Σ_k s^(t−k) loss_k / Σ_k s^(t−k), term by term."""
    averages = []
    for t in range(len(losses)):
        weights = [s ** (t - k) for k in range(t + 1)]
        total = sum(w * loss for w, loss in zip(weights, losses[: t + 1], strict=True))
        averages.append(total / sum(weights))
    return averages


def slow_range(losses: Sequence[float], window: int, tolerance: float) -> int | None:
    for end in range(window, len(losses) + 1):
        last = sorted(losses[end - window : end])
        if last[-1] - last[0] <= tolerance:
            return end
    return None


def slow_decrease(losses: Sequence[float], window: int, tolerance: float) -> int | None:
    for end in range(window, len(losses)):
        loss = losses[end]
        if losses[end - window] - loss <= tolerance * max(1, abs(loss)):
            return end + 1
    return None


def test_the_defaults_are_those_of_the_paper() -> None:
    assert LossRange() == LossRange(window=50, tolerance=1e-4, smoothing=0.0)
    assert RelativeDecrease() == RelativeDecrease(window=20, tolerance=1e-6)
    assert SmallGradient() == SmallGradient(tolerance=1e-6)


@pytest.mark.parametrize(
    ("rule", "losses", "step"),
    [
        (LossRange(3, 0.5), [1.0] * 10, 3),
        (LossRange(50, 1e-4), [1.0] * 60, 50),
        (LossRange(3, 0.5), [9.0, 1.0, 1.5, 1.0], 4),  # a range equal to the tolerance
        (LossRange(3, 0.5), [9.0, 1.0, 1.625, 1.0], None),
        (LossRange(3, 0.5), [1.0, 2.0, 1.0, 2.0, 1.0], None),  # first = last is not enough
        (LossRange(2, 0.0), [3.0, 2.0, 2.0], 3),
        (RelativeDecrease(2, 0.5), [5.0, 4.0, 3.0, 2.0, 2.0, 1.5], 5),
        (RelativeDecrease(2, 0.25), [1.0, 1.0], None),  # two losses are one step
        (RelativeDecrease(2, 0.25), [1.0, 1.0, 1.0], 3),
        (RelativeDecrease(1, 0.1), [110.0, 100.0], 2),  # relative to a large loss
        (RelativeDecrease(1, 0.0625), [110.0, 100.0], None),
        (RelativeDecrease(1, 0.1), [0.01, 0.0], 2),  # absolute for a small one
        (RelativeDecrease(1, 0.1), [-90.0, -100.0], 2),  # |loss|, not loss
        (RelativeDecrease(1, 0.1), [1.0, 7.0], 2),  # a rise is no decrease
    ],
)
def test_a_rule_stops_at_the_first_step_that_meets_it(
    rule: Monitor, losses: list[float], step: int | None
) -> None:
    rule.reset()
    assert fires_at(rule, losses) == step


@given(LOSSES, st.integers(2, 6), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=150)
def test_the_rules_agree_with_their_definitions(
    losses: list[float], window: int, tolerance: float
) -> None:
    assert fires_at(LossRange(window, tolerance), losses) == slow_range(losses, window, tolerance)
    decrease = fires_at(RelativeDecrease(window, tolerance), losses)
    assert decrease == slow_decrease(losses, window, tolerance)


@pytest.mark.parametrize(("smoothing", "tolerance"), [(0.25, 0.1), (0.9, 0.02)])
def test_the_smoothed_rule_is_the_rule_on_weighted_means(
    smoothing: float, tolerance: float
) -> None:
    rng = random.Random(0)
    losses = [math.exp(-0.05 * t) + rng.gauss(0, 0.05) for t in range(400)]
    expected = slow_range(slow_average(losses, smoothing), 10, tolerance)
    assert expected is not None and expected > 10
    assert fires_at(LossRange(10, tolerance, smoothing), losses) == expected


def test_smoothing_sees_through_noise() -> None:
    rng = random.Random(1)
    losses = [1.0 + rng.gauss(0, 0.1) for _ in range(2000)]
    assert fires_at(LossRange(20, 0.05), losses) is None
    assert fires_at(LossRange(20, 0.05, smoothing=0.98), losses) is not None


def test_the_average_is_not_biased_towards_zero() -> None:
    assert fires_at(LossRange(5, 1e-9, smoothing=0.99), [7.0] * 5) == 5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda: LossRange(3, 1e-3),
        lambda: LossRange(3, 1e-3, smoothing=0.5),
        lambda: RelativeDecrease(2, 1e-3),
    ],
)
def test_a_loss_that_is_not_finite_starts_the_count_again(
    make: Callable[[], Monitor], bad: float
) -> None:
    assert fires_at(make(), [bad] * 10) is None
    assert fires_at(make(), [1.0, 1.0, bad, 1.0, 1.0]) is None
    assert fires_at(make(), [1.0, 1.0, bad, 1.0, 1.0, 1.0]) == 6


@pytest.mark.parametrize(
    "rule", [LossRange(3, 0.5), LossRange(3, 0.5, smoothing=0.5), RelativeDecrease(2, 0.5)]
)
def test_a_reset_forgets_everything(rule: Monitor) -> None:
    rule.reset()
    assert fires_at(rule, [100.0, 100.0]) is None
    rule.reset()
    # Anything left of the losses near 100 would make the first of these stop, or delay the third.
    assert fires_at(rule, [1.0, 1.0, 1.0]) == 3


@pytest.mark.parametrize(
    ("norm", "stops"),
    [
        (1e-3, True),
        (9e-4, True),
        (0.0, True),
        (1.1e-3, False),
        (math.inf, False),
        (math.nan, False),
    ],
)
def test_a_gradient_is_small_or_not(norm: float, stops: bool) -> None:
    stop = SmallGradient(1e-3)(at(1, 0.5, norm))
    assert (stop is not None) == stops
    assert stop is None or stop.status is Status.CONVERGED


def test_the_reason_has_the_figures_in_it() -> None:
    rules: list[tuple[Monitor, str]] = [
        (LossRange(2, 0.5), "The last 2 losses lie within 0.25 (tolerance 0.5)."),
        (
            LossRange(2, 0.5, smoothing=0.5),
            "The last 2 moving averages of the loss lie within 0.167 (tolerance 0.5).",
        ),
        (
            RelativeDecrease(1, 0.5),
            "The last 1 steps lowered the loss by 0.25 (tolerance 0.5 at a loss of 0.75).",
        ),
        (SmallGradient(0.5), "The largest entry of the gradient is 0.125 (tolerance 0.5)."),
    ]
    for rule, reason in rules:
        rule(at(1, 1.0))
        stop = rule(at(2, 0.75, 0.125))
        assert stop is not None and stop.reason == reason


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: LossRange(window=1), "window of LossRange"),
        (lambda: LossRange(window=-3), "window of LossRange"),
        (lambda: LossRange(tolerance=-1e-9), "tolerance of LossRange"),
        (lambda: LossRange(tolerance=math.nan), "tolerance of LossRange"),
        (lambda: LossRange(tolerance=math.inf), "tolerance of LossRange"),
        (lambda: LossRange(smoothing=1.0), "smoothing of LossRange"),
        (lambda: LossRange(smoothing=-0.1), "smoothing of LossRange"),
        (lambda: LossRange(smoothing=math.nan), "smoothing of LossRange"),
        (lambda: RelativeDecrease(window=0), "window of RelativeDecrease"),
        (lambda: RelativeDecrease(tolerance=-1.0), "tolerance of RelativeDecrease"),
        (lambda: SmallGradient(-1.0), "tolerance of SmallGradient"),
        (lambda: SmallGradient(math.nan), "tolerance of SmallGradient"),
    ],
)
def test_a_wrong_threshold_is_refused(make: Callable[[], Monitor], culprit: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{culprit} must be"):
        make()


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
def test_a_wrong_budget_is_refused(make: Callable[[], Monitor], culprit: str) -> None:
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
