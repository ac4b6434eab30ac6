"""L-BFGS on functions with known minima and bounds."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import directgp
from directgp.errors import NumericalError
from directgp.likelihoods import Gaussian
from directgp.posteriors import Prior, SparsePosterior
from directgp.training.callbacks import Cancel, History, StepBudget
from directgp.training.lbfgs import Learnt, lbfgs
from directgp.training.result import Progress, Status, Stop
from directgp.training.run import RelativeDecrease, SmallGradient
from tests.unit.training.models import seeded
from tests.unit.training.toys import Toy, bowl, rosenbrock, run_of, same

Parameters = dict[str, nn.Parameter]


def test_a_bowl_of_condition_1e4() -> None:
    toy = Toy(bowl, {"x": [5.0] * 6})
    run = run_of()
    stop = lbfgs(toy, run)
    assert stop.status is Status.CONVERGED
    # The value is 0 to rounding, so that x is off by at most √(2·1e-16).
    expected = torch.arange(6, dtype=torch.float64)
    torch.testing.assert_close(toy.state()["x"], expected, rtol=0, atol=1e-7)
    assert run.evaluations >= run.steps + 1
    assert run.steps < 60


def test_rosenbrock() -> None:
    toy = Toy(rosenbrock, {"x": [-1.2, 1.0]})
    assert lbfgs(toy, run_of()).status is Status.CONVERGED
    torch.testing.assert_close(toy.state()["x"], torch.ones(2).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "bounded"), [("raw_x", True), ("x", False)])
def test_raw_parameters_do_not_leap(name: str, bounded: bool) -> None:
    """On a long slope, of which the first pairs of steps say that it has hardly any curvature."""
    toy = Toy(lambda p: torch.sqrt(1 + (p[name] - 50.0) ** 2).sum(), {name: [0.0]})
    assert lbfgs(toy, run_of()).status is Status.CONVERGED
    torch.testing.assert_close(toy.state()[name], torch.tensor([50.0]).double(), rtol=0, atol=1e-6)
    places = [float(state[name]) for state, _ in toy.seen]
    leaps = [
        abs(after - before) / max(1.0, 0.5 * abs(before))
        for before, after in itertools.pairwise(places)
    ]
    assert (max(leaps) <= 1 + 1e-12) == bounded


def test_a_flat_parameter_does_not_stop_the_others() -> None:
    """The noise of targets without a signal is learned while the lengthscale goes to infinity."""
    X = torch.linspace(-3, 3, 60, dtype=torch.float64).reshape(-1, 1)
    y = 0.01 * torch.randn(60, generator=seeded(0), dtype=torch.float64)
    posterior = SparsePosterior(Prior.from_data(X), X[::10])
    found = directgp.train(posterior, Gaussian(0.1), X, y, objective="elbo", start="scratch")
    of_noise_alone = 0.5 * math.log(2 * math.pi * math.e * float(y.square().mean()))
    assert found.loss == pytest.approx(of_noise_alone, abs=0.01)


def test_a_parameter_without_gradient_stays() -> None:
    toy = Toy(bowl, {"x": [5.0] * 2, "unused": [2.0]})
    assert lbfgs(toy, run_of()).status == Status.CONVERGED
    assert toy.parameters["unused"].tolist() == [2.0]


def test_losses_do_not_rise() -> None:
    run = run_of()
    lbfgs(Toy(rosenbrock, {"x": [-1.2, 1.0]}), run)
    assert all(after <= before for before, after in zip(run.losses, run.losses[1:], strict=False))


def test_each_step_is_told_to_the_problem() -> None:
    """Schedules read it: an evaluation of the k-th line search is told k steps."""
    toy, history = Toy(rosenbrock, {"x": [-1.2, 1.0]}), History()
    run = run_of(20, history)
    lbfgs(toy, run)
    assert toy.steps[0] == 0 and toy.steps == sorted(toy.steps)
    assert set(toy.steps) == set(range(20))
    assert [record.step for record in history.records] == list(range(1, 21))


def walled(bad: Callable[[], Tensor], where: float) -> Callable[[Parameters], Tensor]:
    """A steep way down to 1, with something bad beyond a wall at `where`."""

    def function(p: Parameters) -> Tensor:
        x = p["x"].sum()
        return bad() * x if float(x.detach()) > where else torch.cosh(x - 1.0)

    return function


def nan() -> Tensor:
    return torch.tensor(math.nan, dtype=torch.float64)


def infinity() -> Tensor:
    return torch.tensor(math.inf, dtype=torch.float64)


def error() -> Tensor:
    raise NumericalError("K_uu could not be factorised.")


each_trouble = pytest.mark.parametrize("bad", [nan, infinity, error])


@each_trouble
def test_a_wall_on_the_way_is_turned_back_from(bad: Callable[[], Tensor]) -> None:
    """The first step goes down the slope, by sinh(0.8): from 0.2 beyond the wall at 1.05."""
    toy = Toy(walled(bad, 1.05), {"x": [0.2]})
    run = run_of()
    stop = lbfgs(toy, run)
    finite = [value for _, value in toy.seen if math.isfinite(float(value))]
    assert len(finite) < len(toy.steps), "no wall was met: the test tests nothing"
    assert stop.status is Status.CONVERGED
    assert float(toy.state()["x"]) == pytest.approx(1.0, abs=1e-7)


@each_trouble
def test_where_only_a_wall_is_below_the_error_says_what_to_do(bad: Callable[[], Tensor]) -> None:
    """Down to the wall at 0.5, with no minimum before it, and a slope of 0.52 there."""
    toy = Toy(walled(bad, 0.5), {"x": [-3.0]})
    with pytest.raises(
        NumericalError, match=r"^No step with a finite value.*Scale inputs"
    ) as caught:
        lbfgs(toy, run_of())
    assert ("K_uu could not be factorised." in str(caught.value)) == (bad is error)
    # What was found is kept: the lowest finite value that was seen, which is at the wall.
    finite = [(value, at) for at, value in toy.seen if math.isfinite(float(value))]
    lowest = min(float(value) for value, _ in finite)
    assert lowest == pytest.approx(math.cosh(0.5), rel=1e-3)
    assert any(same(toy.state(), at) for value, at in finite if float(value) == lowest)


@each_trouble
def test_a_wall_met_long_ago_is_no_reason_for_an_error(bad: Callable[[], Tensor]) -> None:
    """From (0, 0.9) the slope of 180 goes straight down beyond the wall at y = 0.

    On top of 1e6, values are equal to rounding before the gradient is 0.
    """

    def function(p: Parameters) -> Tensor:
        inside = float(p["x"].detach()[1]) >= 0
        return 1e6 + rosenbrock(p) if inside else bad() * p["x"].sum()

    toy = Toy(function, {"x": [0.0, 0.9]})
    assert lbfgs(toy, run_of(150)).status is Status.CONVERGED
    finite = [value for _, value in toy.seen if math.isfinite(float(value))]
    assert len(finite) < len(toy.steps), "no wall was met: the test tests nothing"
    # Values are known to 1e-10, and the valley's curvature is 0.4.
    torch.testing.assert_close(toy.state()["x"], torch.ones(2).double(), rtol=0, atol=1e-3)


def test_a_minimum_beside_a_wall_is_a_minimum() -> None:
    """At rest to rounding, with NaN a hair's breadth further on: converged, and no error."""
    toy = Toy(walled(nan, 1.0 + 1e-9), {"x": [0.2]})
    assert lbfgs(toy, run_of()).status is Status.CONVERGED
    assert float(toy.state()["x"]) == pytest.approx(1.0, abs=1e-7)


def test_an_objective_finite_only_at_the_start_is_an_error() -> None:
    """Finite at the start and nowhere else: the error says what happened and what to do."""

    def spike(p: Parameters) -> Tensor:
        x = p["x"].sum()
        if float(x.detach()) != 3.0:
            raise NumericalError("K_uu could not be factorised.")
        return x**2

    toy = Toy(spike, {"x": [3.0]})
    with pytest.raises(
        NumericalError, match=r"^No step with a finite value.*factorised\..*Scale inputs"
    ):
        lbfgs(toy, run_of())
    assert float(toy.state()["x"]) == 3.0


@each_trouble
def test_a_start_that_is_not_finite(bad: Callable[[], Tensor]) -> None:
    toy = Toy(walled(bad, 0.5), {"x": [3.0]})
    remedy = "Scale inputs and targets, remove duplicate inducing inputs, or start from other"
    with pytest.raises(
        NumericalError, match=f"^The objective must be finite at the start.*{remedy}"
    ):
        lbfgs(toy, run_of())
    assert float(toy.state()["x"]) == 3.0


def test_a_gradient_that_is_not_finite_at_the_start() -> None:
    toy = Toy(lambda p: torch.sqrt(p["x"].abs()).sum(), {"x": [0.0]})
    with pytest.raises(NumericalError, match="gradient was not finite"):
        lbfgs(toy, run_of())


def test_other_errors_are_raised_by_lbfgs() -> None:
    """A fault of the program is no wall."""

    def faulty(p: Parameters) -> Tensor:
        if float(p["x"].detach().sum()) != 3.0:
            raise KeyError("x")
        return bowl(p)

    with pytest.raises(KeyError):
        lbfgs(Toy(faulty, {"x": [3.0]}), run_of())


def test_lbfgs_holds_parameters_at_their_floors() -> None:
    """x wants −3 and stops at −1 exactly; y is free to go to 2."""
    toy = Toy(
        lambda p: (p["x"] + 3).square().sum() + (p["y"] - 2).square().sum(),
        {"x": [4.0], "y": [5.0]},
        floors={"x": -1.0, "absent": 7.0},
    )
    history = History()
    stop = lbfgs(toy, run_of(1000, history, SmallGradient(1e-9)))
    # At rest: only the floor keeps x from descending.
    assert stop.status is Status.CONVERGED and "largest entry of the gradient" in stop.reason
    assert float(toy.state()["x"]) == -1.0
    assert float(toy.state()["y"]) == pytest.approx(2.0, abs=1e-8)
    assert all(float(at["x"]) >= -1.0 for at, _ in toy.seen)
    assert toy.at_floor() == ("x",)


def test_a_floor_that_is_not_needed_changes_nothing() -> None:
    free, floored = (Toy(rosenbrock, {"x": [-1.2, 1.0]}, floors=f) for f in ({}, {"x": -100.0}))
    for toy in (free, floored):
        lbfgs(toy, run_of())
    torch.testing.assert_close(free.state()["x"], floored.state()["x"], rtol=0, atol=1e-6)
    assert floored.at_floor() == ()


def test_a_start_below_its_floor_is_lifted() -> None:
    toy = Toy(bowl, {"x": [-5.0]}, floors={"x": 0.5})
    lbfgs(toy, run_of())
    assert float(toy.seen[0][0]["x"]) == 0.5
    assert float(toy.state()["x"]) == 0.5


@pytest.mark.parametrize("function", [bowl, lambda p: 0 * p["x"].sum() + 7.0])
def test_a_start_at_the_minimum_takes_no_step(function: Callable[[Parameters], Tensor]) -> None:
    toy, run = Toy(function, {"x": [0.0, 1.0]}), run_of()
    assert lbfgs(toy, run).status is Status.CONVERGED
    assert run.steps == 0
    assert same(toy.state(), {"x": torch.tensor([0.0, 1.0]).double()})


@pytest.mark.parametrize("at", [2, 7, 20])
def test_an_interrupt_keeps_the_best_state(at: int) -> None:
    def interrupted(p: Parameters) -> Tensor:
        if len(toy.seen) == at:
            raise KeyboardInterrupt
        return rosenbrock(p)

    toy = Toy(interrupted, {"x": [-1.2, 1.0]})
    stop = lbfgs(toy, run_of())
    assert stop == Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")
    assert len(toy.seen) == at
    assert same(toy.state(), min(toy.seen, key=lambda pair: float(pair[1]))[0])


def test_monitors_end_lbfgs() -> None:
    cancel = Cancel()
    cancel.cancel("Enough.")
    run = run_of(1000, cancel)
    assert lbfgs(Toy(rosenbrock, {"x": [-1.2, 1.0]}), run) == Stop(Status.CANCELLED, "Enough.")
    assert run.steps == 1
    run = run_of(1000, StepBudget(7))
    assert lbfgs(Toy(rosenbrock, {"x": [-1.2, 1.0]}), run).status is Status.BUDGET
    assert run.steps == 7 and not run.exhausted
    run = run_of(1000, RelativeDecrease(3, 1e-2))
    stop = lbfgs(Toy(rosenbrock, {"x": [-1.2, 1.0]}), run)
    assert stop.status is Status.CONVERGED and stop.reason.startswith("The last 3 steps")


def test_the_steps_allowed_are_taken_and_no_more() -> None:
    run = run_of(9)
    stop = lbfgs(Toy(rosenbrock, {"x": [-1.2, 1.0]}), run)
    assert stop == Stop(Status.BUDGET, "9 steps were taken, as many as allowed.")
    assert (run.steps, run.exhausted) == (9, True)


def test_a_monitor_that_fails_leaves_the_best_state() -> None:
    class Broken(History):  # type: ignore[misc]  # final for users
        def __call__(self, progress: Progress) -> None:
            if progress.step == 5:
                raise RuntimeError("broken")

    toy = Toy(rosenbrock, {"x": [-1.2, 1.0]})
    with pytest.raises(RuntimeError, match="broken"):
        lbfgs(toy, run_of(1000, Broken()))
    assert same(toy.state(), min(toy.seen, key=lambda pair: float(pair[1]))[0])


def test_segments_end_where_they_should_at_the_best_state() -> None:
    toy, run, kept = Toy(rosenbrock, {"x": [-1.2, 1.0]}), run_of(23), []

    def keep() -> None:
        best = min(toy.seen, key=lambda pair: float(pair[1]))[0]
        kept.append((run.steps, same(toy.state(), best)))

    assert lbfgs(toy, run, 5, keep).status is Status.BUDGET
    assert kept == [(5, True), (10, True), (15, True), (20, True)]
    # A frame is asked for at the beginning of each segment.
    assert toy.frames == 5


def test_a_segment_taken_up_again_goes_on_bit_for_bit() -> None:
    toy, run, kept = Toy(rosenbrock, {"x": [-1.2, 1.0]}), run_of(23), list[Any]()
    lbfgs(toy, run, 5, lambda: kept.append((toy.state(), list(run.losses), run.evaluations)))
    state, losses, evaluations = kept[1]
    again, rerun = Toy(rosenbrock, state), run_of(23)
    rerun.resume(losses, evaluations)
    lbfgs(again, rerun, 5)
    assert same(again.state(), toy.state())
    assert rerun.losses == run.losses


def test_no_segment_is_kept_after_the_run_has_stopped() -> None:
    kept: list[int] = []
    run = run_of(10)
    lbfgs(Toy(rosenbrock, {"x": [-1.2, 1.0]}), run, 5, lambda: kept.append(run.steps))
    assert kept == [5]


M = 4
GENERATOR = torch.Generator().manual_seed(0)
FRAME = torch.randn(M, M, generator=GENERATOR, dtype=torch.float64).tril() + 3 * torch.eye(M)


def test_a_floor_beside_a_frame_is_met_exactly() -> None:
    """Parameters beside q(u) are seen in units, and at_floor() asks for the floor itself."""
    floors = {"a": -0.1, "b": -1 / 3, "c": math.log(1e-3)}

    def value(p: Parameters) -> Tensor:
        q = (p["u_mean"] - 1).square().sum() + p["u_chol"].square().sum()
        return q + sum((7.3 * (p[name] + 30)).square().sum() for name in floors)

    start = {"u_mean": torch.zeros(M), "u_chol": torch.eye(M)}
    toy = Toy(
        value, {**start, **{name: [2.0] for name in floors}}, floors, frame=torch.eye(M).double()
    )
    lbfgs(toy, run_of())
    assert {name: float(toy.state()[name]) for name in floors} == floors
    assert toy.at_floor() == tuple(floors)


def test_a_frame_makes_a_narrow_valley_round() -> None:
    """With C Cᵀ the inverse curvature, one step from a quadratic's side is all it takes."""
    curvature = torch.logspace(0, 8, M, dtype=torch.float64)
    mix = FRAME @ FRAME.mT * curvature.sqrt().outer(curvature.sqrt())
    frame = torch.linalg.cholesky(mix.inverse())

    def valley(p: Parameters) -> Tensor:
        x = p["u_mean"] - 1
        return 0.5 * x @ mix @ x + 0 * p["u_chol"].sum()

    start = {"u_mean": torch.full((M,), 5.0), "u_chol": torch.eye(M)}
    plain, framed = Toy(valley, start), Toy(valley, start, frame=frame)
    plain_run, framed_run = run_of(1000, SmallGradient(1e-7)), run_of(1000, SmallGradient(1e-7))
    for toy, run in ((plain, plain_run), (framed, framed_run)):
        lbfgs(toy, run)
    assert framed_run.steps <= 3 < plain_run.steps
    # The frame is known to 1e-8, the inverse of its condition's root.
    torch.testing.assert_close(framed.state()["u_mean"], torch.ones(M).double(), rtol=0, atol=1e-6)


# What a run has learnt


def in_two_parts(first: Learnt | None, second: Learnt | None, steps: int) -> tuple[float, int]:
    """Return value and evaluations of a second run, from where one of 15 steps has ended."""
    toy = Toy(bowl, {"x": [5.0] * 8})
    lbfgs(toy, run_of(15), learnt=first)
    again, run = Toy(bowl, toy.state()), run_of(steps)
    lbfgs(again, run, learnt=second)
    return float(bowl(again.parameters).detach()), run.evaluations


def test_a_run_goes_on_with_what_another_has_learnt() -> None:
    learnt = Learnt()
    further, evaluations = in_two_parts(learnt, learnt, 10)
    anew, more = in_two_parts(None, None, 10)
    assert further < 1e-3 * anew and evaluations < more
    whole = Toy(bowl, {"x": [5.0] * 8})
    lbfgs(whole, run_of(25))
    assert further == pytest.approx(float(bowl(whole.parameters).detach()), rel=1e-6), "as one run"


def test_a_run_starts_again_where_the_learnt_curvature_leads_nowhere() -> None:
    """A curvature 1e30 times too large has steps that change nothing."""
    learnt = Learnt()
    lbfgs(Toy(lambda p: 1e30 * bowl(p), {"x": [5.0] * 8}), run_of(15), learnt=learnt)
    wrong = learnt.curvature
    value, _ = in_two_parts(None, learnt, 40)
    assert wrong is not None and value < 1e-12
    assert learnt.curvature is not wrong, "nor is it what the next run starts with"
