"""Properties of all monitors."""

import math
from collections.abc import Callable

import pytest

from directgp.training.callbacks import (
    Cancel,
    EvaluationBudget,
    History,
    ProgressBar,
    StepBudget,
    TimeBudget,
)
from directgp.training.result import Progress, Stop
from directgp.training.run import LossRange, Monitor, RelativeDecrease, SmallGradient

MONITORS: list[Callable[[], Monitor]] = [
    Cancel,
    History,
    LossRange,
    ProgressBar,
    RelativeDecrease,
    SmallGradient,
    lambda: EvaluationBudget(10),
    lambda: StepBudget(10),
    lambda: TimeBudget(10.0),
]


class Forgetful(Monitor):
    """Has what is required, and nothing else."""

    def __call__(self, progress: Progress) -> Stop | None:
        return None

    def reset(self) -> None:
        pass


def first_step(gradient_norm: float = math.nan) -> Progress:
    return Progress("elbo", 1, 100, 1, 0.5, gradient_norm, 0.1)


def test_a_monitor_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Monitor()  # type: ignore[misc]


def test_call_is_required_and_reset_is_not() -> None:
    incomplete = type("Incomplete", (Monitor,), {"reset": Forgetful.reset})
    with pytest.raises(TypeError, match="__call__"):
        incomplete()
    type("Complete", (Monitor,), {"__call__": Forgetful.__call__})().reset()


def test_close_may_be_left_out() -> None:
    Forgetful().close()


@pytest.mark.parametrize("make", MONITORS)
def test_a_first_step_ends_nothing_and_a_run_of_none_closes(make: Callable[[], Monitor]) -> None:
    monitor = make()
    assert isinstance(monitor, Monitor)
    monitor.reset()
    monitor.close()
    monitor.reset()
    assert monitor(first_step()) is None
    monitor.close()
    monitor.close()
