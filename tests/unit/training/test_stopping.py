"""Stopping rules, on known sequences of losses."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from directgp.errors import InvalidInputError
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
def test_it_fires_at_the_step_it_should(
    rule: Monitor, losses: list[float], step: int | None
) -> None:
    rule.reset()
    assert fires_at(rule, losses) == step


@given(LOSSES, st.integers(2, 6), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=150, deadline=None, derandomize=True)
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
def test_what_cannot_be_meant_is_refused(make: Callable[[], Monitor], culprit: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{culprit} must be"):
        make()
