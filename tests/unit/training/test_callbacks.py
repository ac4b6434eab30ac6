"""What a run reports: on a terminal and elsewhere, to monitors, to observers."""

import dataclasses
import io
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import directgp
from directgp.errors import InvalidInputError
from directgp.likelihoods import Gaussian
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training import Checkpoints, Observer
from directgp.training.callbacks import (
    Cancel,
    EvaluationBudget,
    History,
    ProgressBar,
    StepBudget,
    TimeBudget,
)
from directgp.training.result import Phase, Progress, Stop
from directgp.training.run import LossRange, Monitor, RelativeDecrease, SmallGradient

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def at(step: int, stage: str = "elbo", seconds: float = 1.0) -> Progress:
    return Progress(stage, step, 200, 2 * step, 1 / 3 + 100 / step, 0.5, seconds)


def plain(width: int = 80) -> tuple[io.StringIO, Console]:
    """A file, and a console that writes to it."""
    file = io.StringIO()
    return file, Console(file=file, force_terminal=False, width=width)


def terminal(width: int = 80) -> tuple[io.StringIO, Console]:
    """A file that takes itself for a terminal."""
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, force_interactive=True, width=width, color_system=None
    )
    return file, console


def last_screen(file: io.StringIO) -> list[str]:
    """The lines of what was drawn last."""
    frame = file.getvalue().removesuffix(SHOW).rstrip().split("\x1b[2K")[-1]
    return [line.rstrip() for line in frame.replace("\r", "").splitlines() if line.strip()]


def test_elsewhere_nothing_is_printed_before_a_stage_is_over() -> None:
    file, console = plain()
    bar = ProgressBar(console)
    bar.reset()
    for step in range(1, 50):
        bar(at(step))
    assert file.getvalue() == ""


def test_elsewhere_each_finished_stage_is_one_line() -> None:
    file, console = plain(width=40)
    with ProgressBar(console) as bar:
        for stage, seconds in (("elbo", 2.04), ("β = [b]0.5[/b]", 61.9), ("log_loss", 3725.0)):
            bar.reset()
            for step in (1, 100, 120):
                bar(at(step, stage, seconds))
    assert file.getvalue() == (
        "elbo 120/200 steps, loss 1.1667, 240 evaluations, 2 s\n"
        "β = [b]0.5[/b] 120/200 steps, loss 1.1667, 240 evaluations, 1 min 2 s\n"
        "log_loss 120/200 steps, loss 1.1667, 240 evaluations, 1 h 2 min\n"
    )


def test_a_new_name_begins_a_new_line_and_a_reset_does_for_the_same_name() -> None:
    file, console = plain()
    with ProgressBar(console) as bar:
        bar(at(1, "first"))
        bar(at(2, "second"))
        bar.reset()
        bar(at(3, "second"))
    assert [line.split(" steps")[0] for line in file.getvalue().splitlines()] == [
        "first 1/200",
        "second 2/200",
        "second 3/200",
    ]


def test_closing_twice_prints_once_and_a_closed_bar_can_be_used_again() -> None:
    file, console = plain()
    bar = ProgressBar(console)
    bar(at(1))
    bar.close()
    bar.close()
    assert len(file.getvalue().splitlines()) == 1
    bar(at(2))
    bar.close()
    assert len(file.getvalue().splitlines()) == 2


def test_a_bar_goes_to_standard_error_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        bar(at(1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("elbo 1/200 steps")


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_each_stage_keeps_its_line_with_a_bar(width: int) -> None:
    file, console = terminal(width)
    with ProgressBar(console) as bar:
        for stage in ("elbo", "[b]log_loss[/b]"):
            bar.reset()
            for step in (1, 100, 120):
                bar(at(step, stage))
    lines = last_screen(file)
    assert len(lines) == 2
    for line, stage in zip(lines, ("elbo", "[b]log_loss[/b]"), strict=True):
        assert line.startswith(stage)
        assert "━" in line
        assert line.endswith("120/200 steps, loss 1.1667, 240 evaluations, 1 s")
        assert len(line) <= width


def test_on_a_terminal_the_bar_moves_with_the_steps() -> None:
    lengths = []
    for step in (0, 100, 200):
        file, console = terminal(120)
        with ProgressBar(console) as bar:
            bar(dataclasses.replace(at(1), step=step))
        lengths.append(last_screen(file)[0].count("━"))
    assert lengths == [0, 12, 24]


def test_the_terminal_is_given_back_after_an_error() -> None:
    file, console = terminal()
    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt), ProgressBar(console) as bar:
        bar(at(1))
        assert file.getvalue().count(HIDE) == 1
        raise KeyboardInterrupt
    assert file.getvalue().count(SHOW) == 1
    assert file.getvalue().index(SHOW) > file.getvalue().index(HIDE)
    for thread in set(threading.enumerate()) - set(before):
        thread.join(timeout=10)
        assert not thread.is_alive()
    printed = file.getvalue()
    bar.close()
    assert file.getvalue() == printed


def test_a_bar_never_ends_a_run() -> None:
    _, console = plain()
    with ProgressBar(console) as bar:
        monitor: Monitor = bar
        assert all(monitor(at(step)) is None for step in range(1, 300))


def test_a_history_keeps_every_step_of_every_stage() -> None:
    history = History()
    records = [at(1), at(2), at(1, "log_loss")]
    history.reset()
    history(records[0])
    history(records[1])
    history.reset()
    history(records[2])
    history.close()
    assert history.records == records
    assert history.losses == [1 / 3 + 100, 1 / 3 + 50, 1 / 3 + 100]


def test_a_history_as_columns() -> None:
    history = History()
    assert history.to_dict() == {field.name: [] for field in dataclasses.fields(Progress)}
    history(at(1))
    last = dataclasses.replace(at(2, "log_loss"), phase=Phase("all examples", 3, 3))
    history(dataclasses.replace(last, gradient_norm=math.nan))
    columns = history.to_dict()
    assert math.isnan(columns.pop("gradient_norm")[1])
    assert columns == {
        "stage": ["elbo", "log_loss"],
        "step": [1, 2],
        "max_steps": [200, 200],
        "evaluations": [2, 4],
        "loss": [1 / 3 + 100, 1 / 3 + 50],
        "seconds": [1.0, 1.0],
        "phase": ["", "all examples"],
    }
    assert json.loads(json.dumps(columns)) == columns


def test_two_histories_do_not_share() -> None:
    one, other = History(), History()
    one(at(1))
    assert other.records == []


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


def sine() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(-1, 1)
    return X, torch.sin(2 * X[:, 0])


def start(X: torch.Tensor, y: torch.Tensor) -> SparsePosterior:
    generator = torch.Generator().manual_seed(1)
    return SparsePosterior.from_data(X, y, num_inducing=6, generator=generator)


def observed(steps: int, every: int, **settings: Any) -> tuple[list[int], list[torch.Tensor]]:
    X, y = sine()
    posterior = start(X, y)
    seen: list[int] = []
    means: list[torch.Tensor] = []

    def see(step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        seen.append(step)
        means.append(posterior.predict(X).mean)

    directgp.train(
        posterior,
        Gaussian(0.1),
        X,
        y,
        start="scratch",
        optimizer="adam",
        max_steps=steps,
        observer=Observer(every, see),
        generator=torch.Generator().manual_seed(3),
        **settings,
    )
    return seen, means


def test_an_observer_sees_the_model_after_every_so_many_steps() -> None:
    steps, means = observed(20, 5, batch_size=10)
    assert steps == [5, 10, 15, 20]
    # What a run of ten steps ends with is what the observer saw after ten.
    X, y = sine()
    posterior = start(X, y)
    ten = directgp.train(
        posterior,
        Gaussian(0.1),
        X,
        y,
        start="scratch",
        optimizer="adam",
        batch_size=10,
        max_steps=10,
        generator=torch.Generator().manual_seed(3),
    )
    torch.testing.assert_close(means[1], ten.posterior.predict(X).mean, rtol=0, atol=0)


def test_an_observer_of_an_eliminated_q_sees_its_optimum() -> None:
    y = sine()[1]
    _, (at_first, later, last) = observed(30, 10, objective="square_loss", beta=0.1)
    errors = [float((mean - y).square().mean()) for mean in (last, later, at_first)]
    assert errors == sorted(errors) and errors[-1] < float(y.square().mean())


def test_an_observer_and_checkpoints_each_keep_their_own_time(tmp_path: Path) -> None:
    steps, _ = observed(24, 6, checkpoints=Checkpoints(tmp_path / "run", every=4))
    assert steps == [6, 12, 18, 24]


def test_the_last_look_is_at_the_last_state_and_not_at_the_best() -> None:
    """With steps that are too large: the result has the best state, the curve what was passed."""
    _, means = observed(6, 3, learning_rate=1.5, beta=0.1)
    X, y = sine()
    whole = directgp.train(
        start(X, y),
        Gaussian(0.1),
        X,
        y,
        beta=0.1,
        start="scratch",
        optimizer="adam",
        learning_rate=1.5,
        max_steps=6,
    )
    losses = whole.history
    assert losses.index(min(losses)) < len(losses) - 1
    assert not torch.equal(means[-1], whole.posterior.predict(X).mean)
    # As a longer run passes it.
    torch.testing.assert_close(means[-1], observed(9, 3, learning_rate=1.5, beta=0.1)[1][1])


def test_only_adam_can_be_observed() -> None:
    with pytest.raises(InvalidInputError, match="optimizer must be 'adam' with an observer"):
        _lbfgs()


def _lbfgs() -> None:
    X, y = sine()
    posterior = start(X, y)
    nothing = Observer(5, lambda step, posterior, likelihood: None)
    directgp.train(posterior, Gaussian(0.1), X, y, optimizer="lbfgs", observer=nothing)


def test_a_look_needs_steps_between() -> None:
    with pytest.raises(InvalidInputError, match="every of Observer must be at least 1"):
        Observer(0, lambda step, posterior, likelihood: None)
