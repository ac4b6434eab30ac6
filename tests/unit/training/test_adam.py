"""Adam: the steps of torch, rollback, the best state of each model, bounds, saved states."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.adam import AdamState, FlatAdam, adam
from directgp.training.callbacks import StepBudget
from directgp.training.result import Status, Stop
from directgp.training.run import LossRange
from tests.unit.training.toys import Toy, bowl, rosenbrock, run_of, same

Parameters = dict[str, nn.Parameter]


def by_hand(slope: Callable[[float], float], x: float, rate: float, steps: int) -> list[float]:
    """Adam as its paper writes it, with β₁ = 0.9, β₂ = 0.999, ε = 1e-8; every x on the way."""
    m = v = 0.0
    path = [x]
    for t in range(1, steps + 1):
        g = slope(x)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x -= rate * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        path.append(x)
    return path


def parabola(p: Parameters) -> Tensor:
    return 0.5 * (p["x"] - 1).square().sum()


def test_steps_are_those_of_the_published_rule() -> None:
    """Also the first: filling the moments beforehand counts for nothing."""
    toy, run = Toy(parabola, {"x": [4.0]}), run_of(30)
    assert adam(run, AdamState(toy, 0.05)).status is Status.BUDGET
    expected = by_hand(lambda x: x - 1, 4.0, 0.05, 30)
    seen = [float(at["x"]) for at, _ in toy.seen]
    assert seen == pytest.approx(expected[:30], rel=1e-13)
    assert run.losses == pytest.approx([0.5 * (x - 1) ** 2 for x in expected[:30]], rel=1e-12)
    assert toy.steps == list(range(30)) and run.evaluations == 30


def test_a_state_before_its_first_step_has_moved_nothing() -> None:
    toy = Toy(rosenbrock, {"x": [-1.2, 1.0]})
    before = toy.state()
    state = AdamState(toy, 0.1)
    assert same(toy.state(), before)
    tensors = state.state()
    assert all(not tensors[key].any() for key in ("first_moment", "second_moment", "step"))
    state.restore_best()
    assert same(toy.state(), before)


def test_adam_converges() -> None:
    toy = Toy(parabola, {"x": [4.0, -3.0]})
    stop = adam(run_of(5000, LossRange(50, 1e-12)), AdamState(toy, 0.1))
    assert stop.status is Status.CONVERGED
    torch.testing.assert_close(toy.state()["x"], torch.ones(2).double(), rtol=0, atol=1e-5)


def test_the_best_state_of_a_deterministic_problem_is_kept() -> None:
    """A rate of 1 swings past the minimum, and the run ends on a swing."""
    toy = Toy(parabola, {"x": [4.0]})
    adam(run_of(7), AdamState(toy, 1.0))
    values = [float(value) for _, value in toy.seen]
    best = values.index(min(values))
    assert best < 6
    assert same(toy.state(), toy.seen[best][0])


def test_the_last_state_of_a_noisy_problem_is_kept() -> None:
    toy = Toy(parabola, {"x": [4.0]}, deterministic=False)
    adam(run_of(7), AdamState(toy, 1.0))
    expected = by_hand(lambda x: x - 1, 4.0, 1.0, 7)
    assert float(toy.state()["x"]) == pytest.approx(expected[-1], rel=1e-12)


def test_each_model_of_a_batch_keeps_its_own_best_state() -> None:
    """Three parabolas of other curvature swing apart; each is as if trained alone."""
    curvature = torch.tensor([0.2, 1.0, 30.0], dtype=torch.float64)
    start = {
        "vector": torch.tensor([4.0, -2.0, 3.0]),
        "matrix": torch.tensor([[2.0, 0.0], [5.0, 1.0], [-1.0, 7.0]]),
    }

    def value(p: Parameters, c: Tensor) -> Tensor:
        return c * (p["vector"].square() + (p["matrix"] - 1).square().sum(-1))

    together = Toy(partial(value, c=curvature), start)
    run = run_of(9)
    adam(run, AdamState(together, 1.0))
    ends = set()
    for i in range(3):
        alone = Toy(partial(value, c=curvature[i]), {k: v[i] for k, v in start.items()})
        adam(run_of(9), AdamState(alone, 1.0))
        for name, best in alone.state().items():
            torch.testing.assert_close(together.state()[name][i], best, rtol=1e-12, atol=0)
        values = [float(v) for _, v in alone.seen]
        ends.add(values.index(min(values)))
    assert len(ends) > 1, "all are best at one step: the test tests nothing"
    # What is reported is the mean over the models.
    assert run.losses == pytest.approx([float(v.mean()) for _, v in together.seen], rel=1e-14)


def troubled(bad: Callable[[], Tensor], at: set[int]) -> Toy:
    """A parabola that is bad at some evaluations, counted from 0."""
    count = -1

    def function(p: Parameters) -> Tensor:
        nonlocal count
        count += 1
        return bad() * p["x"].sum() if count in at else parabola(p)

    return Toy(function, {"x": [4.0]}, deterministic=False)


def nan() -> Tensor:
    return torch.tensor(math.nan, dtype=torch.float64)


def error() -> Tensor:
    raise NumericalError("K_uu could not be factorised.")


each_trouble = pytest.mark.parametrize("bad", [nan, error])


@each_trouble
def test_trouble_takes_it_back_with_half_the_rate(bad: Callable[[], Tensor]) -> None:
    """The last good state is that of the start: no 50 steps have passed."""
    toy, run = troubled(bad, {4}), run_of(10)
    state = AdamState(toy, 0.1)
    assert adam(run, state).status is Status.BUDGET
    assert state.optimizer.learning_rate == 0.05
    expected = by_hand(lambda x: x - 1, 4.0, 0.05, 6)
    assert float(toy.state()["x"]) == pytest.approx(expected[-1], rel=1e-12)
    assert (run.steps, run.evaluations) == (10, 11)
    assert all(math.isfinite(loss) for loss in run.losses)


@each_trouble
def test_each_time_the_rate_is_halved_again(bad: Callable[[], Tensor]) -> None:
    """Also where it goes back to one and the same state."""
    toy, run = troubled(bad, {3, 5, 9}), run_of(20)
    state = AdamState(toy, 0.8)
    adam(run, state)
    assert state.optimizer.learning_rate == 0.1


def test_it_goes_back_to_the_last_fiftieth_step() -> None:
    toy, run = troubled(nan, {120}), run_of(130)
    adam(run, AdamState(toy, 1e-3))
    # Step 120 fails; the state after 100 steps is loaded, and evaluated next.
    assert same(toy.seen[121][0], toy.seen[100][0])


def test_it_never_goes_back_to_a_state_that_it_has_not_seen_the_value_of() -> None:
    """√(x − 0.02) has no value where the fiftieth step leads; from before it smaller steps have."""
    for segment in (None, 1, 10):
        toy = Toy(lambda p: (p["x"] - 0.02).sqrt().sum(), {"x": [3.0]}, deterministic=False)
        state = AdamState(toy, 0.061)
        adam(run_of(60), state, segment=segment)
        assert state.optimizer.learning_rate < 0.061 and bool(toy.state()["x"].isfinite().all())


@each_trouble
def test_it_goes_back_five_times_and_then_says_what_to_do(bad: Callable[[], Tensor]) -> None:
    toy, run = troubled(bad, set(range(3, 100))), run_of(50)
    with pytest.raises(NumericalError, match=r"went back 5 times.*Scale inputs") as caught:
        adam(run, AdamState(toy, 0.1))
    assert ("K_uu could not be factorised." in str(caught.value)) == (bad is error)
    assert bool(toy.state()["x"].isfinite().all())
    assert run.steps == 3


def test_a_gradient_that_is_not_finite_is_trouble_too() -> None:
    toy = Toy(lambda p: p["x"].abs().sqrt().sum(), {"x": [0.0]}, deterministic=False)
    with pytest.raises(NumericalError, match="gradient not finite"):
        adam(run_of(10), AdamState(toy, 0.1))
    assert float(toy.state()["x"]) == 0.0


def test_a_wall_is_passed_with_smaller_steps() -> None:
    """√x has no value below 0, where a rate of 0.3 carries it and one of 0.3/16 does not."""
    toy = Toy(lambda p: (p["x"].sqrt() - 0.05).square().sum(), {"x": [0.01]}, deterministic=False)
    state = AdamState(toy, 0.3)
    stop = adam(run_of(2000, LossRange(20, 1e-10)), state)
    assert stop.status is Status.CONVERGED and state.optimizer.learning_rate < 0.1
    assert float(toy.state()["x"]) == pytest.approx(0.0025, rel=0.05)


def test_other_errors_are_raised_by_adam() -> None:
    def faulty(p: Parameters) -> Tensor:
        raise KeyError("x")

    toy = Toy(faulty, {"x": [1.0]})
    with pytest.raises(KeyError):
        adam(run_of(10), AdamState(toy, 0.1))


def test_adam_holds_parameters_at_their_floors() -> None:
    toy = Toy(
        lambda p: (p["x"] + 3).square().sum() + (p["y"] - 2).square().sum(),
        {"x": [4.0, -0.5], "y": [5.0]},
        floors={"x": -1.0},
    )
    adam(run_of(2000, LossRange(50, 1e-10)), AdamState(toy, 0.1))
    assert toy.state()["x"].tolist() == [-1.0, -1.0]
    assert float(toy.state()["y"]) == pytest.approx(2.0, abs=1e-4)
    assert all(bool((at["x"] >= -1.0).all()) for at, _ in toy.seen)
    assert toy.at_floor() == ("x",)


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_interrupt_ends_adam(deterministic: bool) -> None:
    def interrupted(p: Parameters) -> Tensor:
        if len(toy.seen) == 6:
            raise KeyboardInterrupt
        return parabola(p)

    toy, run = Toy(interrupted, {"x": [4.0]}, deterministic=deterministic), run_of(10)
    stop = adam(run, AdamState(toy, 1.0))
    assert stop == Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")
    assert run.steps == 6
    if deterministic:
        assert same(toy.state(), min(toy.seen, key=lambda pair: float(pair[1]))[0])
    else:
        expected = by_hand(lambda x: x - 1, 4.0, 1.0, 6)[-1]
        assert float(toy.state()["x"]) == pytest.approx(expected, rel=1e-12)


def test_monitors_end_adam() -> None:
    toy, run = Toy(parabola, {"x": [4.0]}), run_of(100, StepBudget(5))
    assert adam(run, AdamState(toy, 0.1)).status is Status.BUDGET
    assert run.steps == 5 and not run.exhausted


def test_segments_are_kept_until_the_run_stops() -> None:
    toy, run, kept = Toy(bowl, {"x": [4.0, 4.0]}), run_of(20), list[int]()
    adam(run, AdamState(toy, 0.1), 5, lambda: kept.append(run.steps))
    assert kept == [5, 10, 15]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_state_goes_on_bit_for_bit(deterministic: bool) -> None:
    """Moments, step count, rate and best state: nothing else decides how a run goes on."""
    toy, run = Toy(rosenbrock, {"x": [-1.2, 1.0]}, deterministic=deterministic), run_of(40)
    state, kept = AdamState(toy, 0.3), list[dict[str, Tensor]]()
    adam(run, state, 15, lambda: kept.append(state.state()))
    other = Toy(rosenbrock, {"x": [9.0, 9.0]}, deterministic=deterministic)
    again = AdamState(other, 77.0)
    again.load_state(kept[0])
    rerun = run_of(40)
    rerun.resume(run.losses[:15], 15)
    adam(rerun, again)
    assert rerun.losses == run.losses
    assert same(other.state(), toy.state())
    assert same(again.state(), state.state())


def test_a_resumed_run_goes_back_as_the_whole_one() -> None:
    """To the same good state, which is older than the checkpoint, and no more often."""
    function = partial(_root, wall=0.02)
    toy, run = Toy(function, {"x": [3.0]}, deterministic=False), run_of(100)
    state, saved = AdamState(toy, 0.061), dict[int, dict[str, Tensor]]()
    adam(run, state, 20, lambda: saved.update({run.steps: state.to_save()}))
    assert state.retries > 0 and saved[20]["retries"] == 0
    for steps, tensors in saved.items():
        other = Toy(function, {"x": [3.0]}, deterministic=False)
        again, rerun = AdamState(other, 0.061), run_of(100)
        again.resume(tensors)
        rerun.resume(run.losses[:steps], steps)
        adam(rerun, again)
        assert rerun.losses == run.losses and again.retries == state.retries
        assert same(other.state(), toy.state())


def test_a_checkpoint_without_a_good_state_is_resumed_from_its_own() -> None:
    toy = Toy(rosenbrock, {"x": [-1.2, 1.0]})
    state = AdamState(toy, 0.1)
    adam(run_of(10), state)
    earlier = {name: at for name, at in state.to_save().items() if name.startswith("adam.")}
    again = AdamState(Toy(rosenbrock, {"x": [9.0, 9.0]}), 77.0)
    again.resume(earlier)
    assert same(again.good, state.state()) and again.retries == 0


def _root(p: Parameters, wall: float) -> Tensor:
    return (p["x"] - wall).sqrt().sum()


def test_what_a_state_tells_is_a_copy() -> None:
    toy = Toy(rosenbrock, {"x": [-1.2, 1.0]})
    state = AdamState(toy, 0.3)
    adam(run_of(1), state)
    told = state.state()
    before = {name: value.clone() for name, value in told.items()}
    adam(run_of(1), state)
    assert same(told, before) and not same(told, state.state())


def test_float32_and_float64_parameters_together() -> None:
    toy = Toy(lambda p: parabola(p) + (p["narrow"].double() + 2).square().sum(), {"x": [4.0]})
    toy.parameters["narrow"] = nn.Parameter(torch.zeros(3))
    adam(run_of(2000, LossRange(50, 1e-9)), AdamState(toy, 0.1))
    assert toy.parameters["narrow"].dtype == torch.float32
    torch.testing.assert_close(toy.state()["narrow"], torch.full((3,), -2.0), rtol=0, atol=1e-3)


def test_input_that_became_invalid_is_trouble_and_not_a_fault() -> None:
    """Parameters that have grown too large are refused deeper down by their own names."""

    def refusing(p: Parameters) -> Tensor:
        if float(p["x"].detach()) < 3.5:
            raise InvalidInputError("scale must be finite.")
        return parabola(p)

    toy = Toy(refusing, {"x": [4.0]})
    with pytest.raises(NumericalError, match=r"scale must be finite\."):
        adam(run_of(1000), AdamState(toy, 0.5))
    assert float(toy.state()["x"]) >= 3.5


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 2), "b": (), "c": (4,)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for name, shape in shapes.items()
    }


def loss(p: dict[str, nn.Parameter]) -> Tensor:
    return (p["a"] ** 4).sum() + torch.exp(p["b"]) * p["c"].square().sum()


def gradient(loss: Tensor, p: dict[str, nn.Parameter]) -> Tensor:
    values = list(p.values())
    found = torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True)
    return torch.cat([each.reshape(-1) for each in found])


def advance(p: dict[str, nn.Parameter], adam: FlatAdam, steps: int) -> None:
    for _ in range(steps):
        adam.step(gradient(loss(p), p))


def test_steps_are_those_of_torch() -> None:
    ours, theirs = parameters(), parameters()
    other = torch.optim.Adam(theirs.values(), lr=0.05)
    advance(ours, FlatAdam(ours, 0.05, {}), 20)
    for _ in range(20):
        other.zero_grad()
        loss(theirs).backward()
        other.step()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-14)


def test_floors_hold_and_a_parameter_without_gradient_stays() -> None:
    p = parameters()
    p["unused"] = nn.Parameter(torch.ones(2, dtype=torch.float64))
    advance(p, FlatAdam(p, 0.5, {"b": 0.25}), 15)
    assert p["b"].item() == 0.25
    assert bool((p["unused"] == 1).all())


def test_a_state_that_was_kept_goes_on_bit_for_bit() -> None:
    p = parameters()
    adam = FlatAdam(p, 0.05, {})
    advance(p, adam, 7)
    kept = adam.state()
    advance(p, adam, 5)
    again = parameters()
    other = FlatAdam(again, 0.9, {})
    other.load_state(kept)
    advance(again, other, 5)
    assert other.learning_rate == 0.05
    assert all(torch.equal(again[name], value) for name, value in p.items())


def test_flags_of_models_are_spread_over_their_values() -> None:
    p = {"a": nn.Parameter(torch.zeros(2, 3)), "b": nn.Parameter(torch.zeros(2))}
    spread = FlatAdam(p, 0.1, {}).spread(torch.tensor([True, False]))
    assert spread.tolist() == [True] * 3 + [False] * 3 + [True, False]


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64)], ids=str)
def test_parameters_of_two_precisions_train_together(
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    p = {str(dtype): nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes}
    adam = FlatAdam(p, 0.1, {})
    losses = torch.stack([value.double().square().sum() for value in p.values()])
    adam.step(gradient(losses.sum(), p))
    for value in p.values():
        torch.testing.assert_close(
            value.double(), torch.full((2,), 0.9).double(), atol=1e-6, rtol=0
        )
