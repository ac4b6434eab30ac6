"""A race: candidates are trained in turns, and on while that pays."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from directgp.likelihoods import Gaussian, Poisson
from directgp.likelihoods.counts import CountLikelihood
from directgp.training.data import Data, Model
from directgp.training.race import Effort, Race, Trial
from directgp.training.result import Failure, Progress, Status, Stop
from directgp.training.run import LossRange, Monitor, Recipe
from directgp.training.validation import Folds, HoldOut, Validation, split
from tests.unit.training.fake_runs import Call, FakeRuns, State
from tests.unit.training.models import StopAt, counts, inputs, regression, seeded, start, tensors

X, Y = regression()
BOTH = [4.0, 1.0]
MODEL = Model(start(X), Gaussian(0.1), "rbf")
Z_SCORES = torch.linspace(-1, 1, 8, dtype=torch.float64)
Z_SCORES /= Z_SCORES.std()
"""Of the eight validation examples of `HoldOut(0.2)`: mean 0, deviation 1."""


def race_of(
    validation: Validation | None = None,
    *,
    n_jobs: int = 1,
    effort: Effort | None = None,
    **recipe: Any,
) -> Race:
    how = validation or HoldOut(0.2)
    race = Race(Recipe(**recipe), Data(X, Y), how, seeded(5), effort or Effort(), n_jobs)
    race.splits = split(how, race.data, *MODEL[:2], race.generator)
    return race


def candidates(race: Race, betas: Sequence[float] = (1.0,), mode: str = "joint") -> list[Trial]:
    """Candidates at an ELBO solution of one step."""
    solutions = race.elbo(MODEL, 1)
    assert solutions is not None
    return [race.trial(MODEL, mode, beta, solutions) for beta in betas]


def raced(race: Race, betas: Sequence[float] = (1.0,), limit: int = 3200) -> list[Trial]:
    return race.race(candidates(race, betas), 1.0, limit)


def steps_taken(state: State) -> int:
    return 0 if state.mode == "elbo" else state.steps


# How long a candidate is trained


@pytest.mark.parametrize(
    ("rate", "factor", "segments"),
    [
        # It pays while rate ≥ factor · 1e-4 · (1 + steps / 200).
        (0.9e-4, 1.0, [25]),
        (1.2e-4, 1.0, [25, 25]),
        (2.6e-4, 1.0, [25, 25, 50, 100, 200]),
        (2.6e-4, 2.0, [25, 25, 50]),
        (2.6e-4, 4.0, [25]),
    ],
)
def test_a_candidate_goes_on_while_its_fall_pays(
    rate: float, factor: float, segments: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(lambda state: 1 - rate * steps_taken(state)).install(monkeypatch)
    race = race_of()
    (trained,) = race.race(candidates(race), factor)
    assert fake.steps("joint") == segments
    assert trained.steps == sum(segments) and trained.rate == pytest.approx(rate)


@pytest.mark.parametrize("best", [25, 50, 100])
def test_the_state_with_the_lowest_loss_is_kept(best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda state: abs(best - steps_taken(state)) / 100).install(monkeypatch)
    (trained,) = raced(race_of())
    assert fake.steps("joint") == {25: [25, 25], 50: [25, 25, 50], 100: [25, 25, 50, 100]}[best]
    assert trained.loss == 0 and trained.steps == best and trained.rate == 0


def test_a_candidate_that_never_falls_keeps_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda state: float(state.mode != "elbo")).install(monkeypatch)
    race = race_of()
    trials = candidates(race)
    (trained,) = race.race(trials, 1.0)
    assert len(fake.of("joint")) == 1 and trained.results == trials[0].results


def test_a_loss_of_nan_is_no_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRuns(lambda state: 1.0 if state.mode == "elbo" else torch.nan).install(monkeypatch)
    (trained,) = raced(race_of())
    assert trained.loss == 1 and trained.rate == 0


@pytest.mark.parametrize(
    ("max_steps", "limit", "segments"),
    [
        (None, 3200, [25, 25, 50, 100, 200, 400, 800, 1600]),
        (None, 50, [25, 25]),
        (60, 3200, [25, 25, 10]),
        (10, 3200, [10]),
        (60, 30, [25, 5]),
    ],
)
def test_no_more_steps_than_allowed(
    max_steps: int | None, limit: int, segments: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(lambda state: -float(steps_taken(state))).install(monkeypatch)
    raced(race_of(max_steps=max_steps), limit=limit)
    assert fake.steps("joint") == segments


def test_a_later_race_starts_with_longer_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run has to learn the curvature again."""
    fake = FakeRuns(lambda state: -float(steps_taken(state))).install(monkeypatch)
    race = race_of()
    trials = race.race(candidates(race), 1.0, 200)
    fake.calls.clear()
    race.race(trials, 1.0, 400)
    assert fake.steps("joint") == [100, 100, 200]


def test_a_run_that_has_converged_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(
        lambda state: -float(steps_taken(state)),
        converged=lambda call: call.recipe.max_steps == 50,
    ).install(monkeypatch)
    (trained,) = raced(race_of())
    assert fake.steps("joint") == [25, 25, 50] and trained.rate == 0 and trained.steps == 100


@pytest.mark.parametrize(("number", "cost"), [(10, 1.0), (100, 1.0), (200, 3.0), (400, 10.0)])
def test_the_cost_of_a_step(number: int, cost: float) -> None:
    assert race_of().cost(number) == cost


def test_a_costly_step_has_to_pay_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """At three times the cost, the rate is a third and the steps count three times."""
    monkeypatch.setattr(Race, "cost", lambda self, number: 3.0)
    fake = FakeRuns(lambda state: 1 - 5e-4 * steps_taken(state)).install(monkeypatch)
    (trained,) = raced(race_of())
    assert fake.steps("joint") == [25, 25] and trained.rate == pytest.approx(5e-4 / 3)


# Candidates that another one beats


def behind(standard_errors: float) -> FakeRuns:
    """β = 2 is behind β = 1, by so many paired standard errors of 8 examples."""

    def loss(state: State) -> Tensor:
        # The losses themselves vary far more than their differences.
        common = 100 * Z_SCORES.flip(0) - 0.01 * steps_taken(state)
        gap = standard_errors / 8**0.5 + Z_SCORES
        return common + 1e-3 * gap if state.beta == 2 else common

    return FakeRuns(loss)


@pytest.mark.parametrize(("errors", "segments"), [(1.9, [25, 25, 50]), (2.1, [25])])
def test_beaten_by_two_standard_errors_a_candidate_is_given_up(
    errors: float, segments: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = behind(errors).install(monkeypatch)
    best, other = raced(race_of(), [1.0, 2.0], limit=100)
    assert fake.steps("joint", 1.0) == [25, 25, 50] and best.steps == 100
    assert fake.steps("joint", 2.0) == segments and other.steps == sum(segments)


def trial_of(losses: Tensor) -> Trial:
    return Trial(MODEL, "joint", 1.0, (), losses)


def test_beaten_by_hand() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 30))
    gap = ours - theirs
    errors = gap.mean() / (gap.std(ddof=1) / 30**0.5)
    other = trial_of(torch.tensor(theirs))
    for wanted in (1.95, 2.05):
        shift = (wanted - errors) * gap.std(ddof=1) / 30**0.5
        one = trial_of(torch.tensor(ours + shift))
        assert one.is_beaten(other) == (wanted > 2) and not other.is_beaten(one)


def test_beaten_at_the_limits() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    assert not trial_of(ones).is_beaten(trial_of(ones))
    assert trial_of(ones).is_beaten(trial_of(0 * ones)), "every difference is the same"
    assert not trial_of(ones[:1]).is_beaten(trial_of(0 * ones[:1])), "one example shows nothing"
    for value in (torch.inf, torch.nan):
        broken = trial_of(value * ones)
        assert broken.is_beaten(trial_of(ones)) and not trial_of(ones).is_beaten(broken)


# Failures and ends from outside


def test_a_candidate_that_fails_is_recorded_once_and_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the second segment, in two of three folds."""

    def failing(call: Call) -> bool:
        again = len([each for each in fake.calls if each.beta == call.beta]) > 3
        return call.beta == 2 and again and not call.phase.name.endswith("fold 2")

    fake = FakeRuns(lambda state: -float(steps_taken(state)), failing=failing)
    fake.install(monkeypatch)
    race = race_of(Folds(3))
    good, bad = raced(race, [1.0, 2.0], limit=100)
    assert race.failures == [Failure(2.0, "joint", "joint at 2 cannot be trained.")]
    assert fake.steps("joint", 2.0) == 6 * [25], "three folds, twice"
    assert bad.steps == 25 and bad.rate == 0 and bad.loss == -25
    assert good.steps == 100


def test_an_elbo_that_fails_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(failing=lambda call: True).install(monkeypatch)
    race = race_of(Folds(3))
    assert race.elbo(MODEL, 25) is None and len(fake.calls) == 1
    assert race.failures == [Failure(1.0, "elbo, rbf", "elbo at 1 cannot be trained.")]


@pytest.mark.parametrize("status", [Status.BUDGET, Status.CANCELLED, Status.INTERRUPTED])
@pytest.mark.parametrize("fold", [1, 2, 3])
def test_a_run_that_was_ended_ends_the_race_and_leaves_the_state_before(
    status: Status, fold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second segment of the first of two candidates."""
    fake = FakeRuns(lambda state: -float(steps_taken(state))).install(monkeypatch)
    race = race_of(Folds(3), monitors=[StopAt(3 + 6 + fold, status)])
    for trained in raced(race, [1.0, 2.0]):
        assert trained.steps == 25 and trained.loss == -25 and trained.rate == 0
        assert not any(result.ended for result in trained.results)
    assert race.end is not None and (race.end.status, race.end.reason) == (status, "Enough.")
    assert len(fake.calls) == 3 + 6 + fold, "no run begins after the end"
    assert not race.failures


def test_after_the_end_nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns().install(monkeypatch)
    race = race_of(monitors=[StopAt(1)])
    trials = candidates(race)
    assert race.end is not None
    assert race.race(trials, 1.0) == trials
    race.advanced(trials, 25)
    assert not fake.of("joint")
    assert race.leaves_out("something") and race.untried == ["something"]


# Rows


@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(3)], ids=["held out", "folds"])
def test_rows_keep_their_targets_weights_and_exposures(validation: Validation) -> None:
    """All three are functions of the first feature, so that a row that lost its own is seen."""
    X = inputs()
    data = Data(X, (10 * X[:, 0]).exp().floor(), X[:, 0].exp())
    likelihood = Poisson().with_exposure(X[:, 0].exp())
    race = Race(Recipe(), data, validation, seeded(5))
    whole = split(validation, data, start(X), likelihood, race.generator)
    for part in whole:
        some = race.some(part, 15)
        assert len(some.training) == 15 and race.some(part, 40) is part
        assert rows(some.training.X) < rows(part.training.X)
        assert not torch.equal(some.training.X, part.training.X[:15]), "drawn at random"
        assert some.examples == part.examples
        for examples, theirs in (
            (some.training, some.likelihood),
            (some.validation, some.validation_likelihood),
        ):
            feature = examples.X[:, 0]
            assert isinstance(theirs, CountLikelihood) and examples.weights is not None
            torch.testing.assert_close(examples.weights, feature.exp())
            torch.testing.assert_close(examples.y, (10 * feature).exp().floor())
            torch.testing.assert_close(theirs.log_exposure, feature)


def rows(X: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in X.tolist()}


def test_each_fold_is_trained_and_judged_with_its_own_exposures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRuns(lambda state: -float(steps_taken(state))).install(monkeypatch)
    X, y, _ = counts()
    model = Model(start(X), Poisson().with_exposure(X[:, 0].exp()))
    race = Race(Recipe(), Data(X, y), Folds(3), seeded(5))
    race.splits = split(race.validation, race.data, *model[:2], race.generator)
    solutions = race.elbo(model, 1)
    assert solutions is not None
    race.race([race.trial(model, "joint", 1.0, solutions)], 1.0, 50)
    assert [len(call.data) for call in fake.calls] == 3 * [26, 27, 27]
    for call in fake.calls:
        assert isinstance(call.likelihood, CountLikelihood)
        torch.testing.assert_close(call.likelihood.log_exposure, call.data.X[:, 0])
    for part in fake.judged:
        assert not rows(part.training.X) & rows(part.validation.X)


# Recipes


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_each_run_has_a_stopping_rule_of_its_own(optimizer: Any) -> None:
    rule = LossRange(5, 1e-3)
    race = race_of(optimizer=optimizer, stopping=rule)
    theirs = race.recipe_of(MODEL, 25).stopping
    assert theirs == rule and theirs is not rule


@pytest.mark.parametrize(
    ("max_steps", "optimizer", "steps"),
    [
        (None, "lbfgs", 25),
        (10, "lbfgs", 10),
        (None, "adam", 500),
        (100, "adam", 10),
        (None, "auto", 25),
    ],
)
def test_steps_of_a_segment(max_steps: int | None, optimizer: Any, steps: int) -> None:
    """Adam takes a tenth of those of a whole run."""
    race = race_of(max_steps=max_steps, optimizer=optimizer)
    assert race.recipe_of(MODEL, 25).max_steps == steps


# Several at once


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("settings", [{}, {"rule": "bmc", "max_steps": 50}], ids=["exact", "bmc"])
def test_several_at_once_have_the_same_results(settings: dict[str, Any]) -> None:
    """A rule with samples draws from a generator of each run."""
    found = []
    for n_jobs in (1, 2):
        race = race_of(Folds(2), n_jobs=n_jobs, stopping=LossRange(4, 1e-3), **settings)
        # With infinite losses to start from, what was trained is kept.
        trials = [replace(each, losses=each.losses + torch.inf) for each in candidates(race, BOTH)]
        found.append(race.advanced(race.advanced(trials, 4), 4))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.losses, other.losses) and one.rate == other.rate
        for ours, theirs in zip(one.results, other.results, strict=True):
            assert ours.hyperparameters == "joint"
            assert [stage.losses for stage in ours.stages] == [s.losses for s in theirs.stages]
            expected = tensors(theirs)
            assert all(torch.equal(value, expected[k]) for k, value in tensors(ours).items())
    assert found[0][0].loss != found[0][1].loss


class Alone(Monitor):
    """Fails where two threads are in it at once."""

    def __init__(self) -> None:
        self.inside = threading.Lock()
        self.seen, self.closed = list[str](), 0

    def __call__(self, progress: Progress) -> Stop | None:
        assert self.inside.acquire(blocking=False), "another thread is inside"
        time.sleep(0.005)
        self.seen.append(progress.phase.name)
        self.inside.release()
        return None

    def close(self) -> None:
        self.closed += 1


def test_monitors_are_called_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=20)

    def objective(call: Call) -> float:
        if call.mode == "joint":
            together.wait()
        return 0.0

    FakeRuns(lambda state: -float(steps_taken(state)), objective).install(monkeypatch)
    alone = Alone()
    race = race_of(n_jobs=2, monitors=[alone])
    race.race(candidates(race, [2.0, 1.0]), 1.0, 100)
    assert len(alone.seen) == 1 + 3 * 2 and {*alone.seen[1:3]} == {
        "rbf, joint, β = 2",
        "rbf, joint, β = 1",
    }
    for guarded in race.recipe.monitors:
        guarded.close()
    assert alone.closed == 1


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Programs in the background of a shell are started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("monitors", [[], [StopAt(10**9)]], ids=["no monitor", "a monitor"])
def test_ctrl_c_ends_every_run(monitors: list[Monitor]) -> None:
    """It reaches only the main thread, which waits for the others."""
    race, statuses = race_of(n_jobs=2, monitors=monitors), []
    (guarded,) = race.recipe.monitors

    def task() -> None:
        until = time.monotonic() + 20
        stop = None
        while stop is None and time.monotonic() < until:
            time.sleep(0.005)
            stop = guarded(Progress("elbo", 1, 1, 1, 0.0, 0.0, 0.0))
        statuses.append(stop and stop.status)

    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    assert race._run([task, task, task]) == [None, None, None]
    timer.join()
    assert statuses == 3 * [Status.INTERRUPTED]


def test_losses_of_folds_by_hand() -> None:
    """−log N(y; μ, v + σ²) of each example, by the model of its fold."""
    race = race_of(Folds(3))
    (trial,) = candidates(race)
    order, by_hand = torch.randperm(len(X), generator=seeded(5)), []
    for held, result in zip(order.tensor_split(3), trial.results, strict=True):
        q = result.posterior.predict(X[held])
        assert isinstance(result.likelihood, Gaussian)
        deviation = (q.variance + result.likelihood.noise.detach()).sqrt()
        by_hand.append(-stats.norm.logpdf(Y[held], q.mean, deviation))
    np.testing.assert_allclose(trial.losses, np.concatenate(by_hand), rtol=1e-9)
