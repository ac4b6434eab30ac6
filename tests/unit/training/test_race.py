"""A race: candidates are trained in turns, and on while that pays."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from directgp.training.race import Race, Trial
from scipy import stats
from torch import Tensor

from directgp.likelihoods import Gaussian
from directgp.training.data import Data, Model
from directgp.training.result import Failure, Status
from directgp.training.run import LossRange, Recipe, SmallGradient
from directgp.training.validation import Folds, HoldOut, Validation, split
from tests.unit.training.fake_runs import Call, FakeRuns, State
from tests.unit.training.models import StopAt, regression, seeded, start, tensors

X, Y = regression()
NEVER = SmallGradient(0.0)
MODEL = Model(start(X), Gaussian(0.1), "rbf")
Z_SCORES = torch.linspace(-1, 1, 8, dtype=torch.float64)
Z_SCORES /= Z_SCORES.std()
"""Of the eight validation examples of `HoldOut(0.2)`: mean 0, deviation 1."""


def race_of(validation: Validation | None = None, *, n_jobs: int = 1, **recipe: Any) -> Race:
    how = validation or HoldOut(0.2)
    race = Race(Recipe(**recipe), Data(X, Y), how, seeded(5), n_jobs=n_jobs)
    race.splits = split(how, race.data, *MODEL[:2], race.generator)
    return race


def candidates(race: Race, betas: Sequence[float] = (1.0,)) -> list[Trial]:
    """Candidates at an ELBO solution of one step."""
    solutions = race.elbo(MODEL, 1)
    assert solutions is not None
    return [race.trial(MODEL, "joint", beta, solutions) for beta in betas]


def unjudged(trial: Trial) -> Trial:
    """With infinite losses to start from, what is trained is kept."""
    return replace(trial, losses=trial.losses + torch.inf)


def steps_taken(state: State) -> int:
    return 0 if state.mode == "elbo" else state.steps


def falling(state: State) -> float:
    return -float(steps_taken(state))


@pytest.mark.parametrize(
    ("rate", "cost", "factor", "turns"),
    [
        # It pays while rate / cost ≥ factor · 1e-4 · (1 + cost · steps / 200).
        (0.9e-4, 1.0, 1.0, [25]),
        (1.2e-4, 1.0, 1.0, [25, 25]),
        (2.6e-4, 1.0, 1.0, [25, 25, 50, 100, 200]),
        (2.6e-4, 1.0, 2.0, [25, 25, 50]),
        (5.0e-4, 3.0, 1.0, [25, 25]),
    ],
)
def test_a_candidate_goes_on_while_its_fall_pays(
    rate: float, cost: float, factor: float, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Race, "cost", lambda self, number: cost)
    fake = FakeRuns(lambda state: 1 - rate * steps_taken(state)).install(monkeypatch)
    race = race_of()
    (trained,) = race.race(candidates(race), factor)
    assert fake.steps("joint") == turns
    assert trained.steps == sum(turns) and trained.rate == pytest.approx(rate / cost)


@pytest.mark.parametrize(
    ("number", "on_cpu", "on_cuda"), [(10, 1, 1.004), (100, 1, 1.4), (200, 3, 2.6), (1000, 55, 41)]
)
def test_the_cost_of_a_step(number: int, on_cpu: float, on_cuda: float) -> None:
    """On CPU M (M + 100) / 20,000 and at least 1; on CUDA 1 + N M² / 2.5e9, with N = 100,000."""
    race = race_of()
    assert race.cost(number) == on_cpu
    data: Any = type("Large", (SimpleNamespace,), {"__len__": lambda self: 100_000})()
    data.X, race.data = SimpleNamespace(is_cuda=True), data
    assert race.cost(number) == pytest.approx(on_cuda, rel=1e-12)


@pytest.mark.parametrize(
    ("best", "turns"), [(0, [25]), (25, [25, 25]), (50, [25, 25, 50]), (100, [25, 25, 50, 100])]
)
def test_the_state_with_the_lowest_loss_is_kept(
    best: int, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(lambda state: abs(best - steps_taken(state)) / 100).install(monkeypatch)
    race = race_of()
    (trained,) = race.race(candidates(race), 1.0)
    assert fake.steps("joint") == turns and trained.rate == 0
    assert trained.loss == 0 and trained.steps == best


@pytest.mark.parametrize(
    ("max_steps", "limit", "before", "turns"),
    [
        (None, 3200, 0, [25, 25, 50, 100, 200, 400, 800, 1600]),
        (60, 3200, 0, [25, 25, 10]),
        (60, 30, 0, [25, 5]),
        # A candidate that was trained before has longer turns.
        (None, 400, 200, [100, 100, 200]),
    ],
)
def test_turns_up_to_the_steps_allowed(
    max_steps: Any, limit: int, before: int, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, race = FakeRuns(falling).install(monkeypatch), race_of(max_steps=max_steps)
    race.race([replace(candidates(race)[0], steps=before)], 1.0, limit)
    assert fake.steps("joint") == turns


def test_a_run_that_has_converged_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(falling, converged=lambda call: call.recipe.max_steps == 50)
    fake.install(monkeypatch)
    race = race_of()
    (trained,) = race.race(candidates(race), 1.0)
    assert fake.steps("joint") == [25, 25, 50] and trained.rate == 0 and trained.steps == 100


@pytest.mark.parametrize(("errors", "turns"), [(1.9, [25, 25, 50]), (2.1, [25])])
def test_beaten_by_two_standard_errors_a_candidate_is_given_up(
    errors: float, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the paired differences, from which the losses themselves vary far more."""

    def loss(state: State) -> Tensor:
        common = 100 * Z_SCORES.flip(0) - 0.01 * steps_taken(state)
        return common + (state.beta == 2) * 1e-3 * (errors / 8**0.5 + Z_SCORES)

    fake, race = FakeRuns(loss).install(monkeypatch), race_of()
    best, other = race.race(candidates(race, [1.0, 2.0]), 1.0, 100)
    assert fake.steps("joint", 1.0) == [25, 25, 50] and best.steps == 100
    assert fake.steps("joint", 2.0) == turns and other.steps == sum(turns)


def test_beaten_at_the_limits() -> None:
    ones, broken = (
        Trial(MODEL, "joint", 1.0, (), value * torch.ones(4)) for value in (1, torch.nan)
    )
    zeros, one, zero = (replace(ones, losses=torch.tensor(x)) for x in ([0.0] * 4, [1.0], [0.0]))
    assert ones.is_beaten(zeros) and not zeros.is_beaten(ones), "every difference is the same"
    assert not one.is_beaten(zero), "one example shows nothing"
    assert broken.is_beaten(ones) and not ones.is_beaten(broken)


def test_a_candidate_that_fails_is_recorded_once_and_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the second turn, in two of three folds."""

    def failing(call: Call) -> bool:
        again = len([each for each in fake.calls if each.beta == call.beta]) > 3
        return call.beta == 2 and again and not call.phase.name.endswith("fold 2")

    fake, race = FakeRuns(falling, failing=failing), race_of(Folds(3))
    fake.install(monkeypatch)
    good, bad = race.race(candidates(race, [1.0, 2.0]), 1.0, 100)
    assert race.failures == [Failure(2.0, "joint", "joint at 2 cannot be trained.")]
    assert fake.steps("joint", 2.0) == 6 * [25], "three folds, twice"
    assert bad.steps == 25 and bad.rate == 0 and bad.loss == -25 and good.steps == 100


@pytest.mark.parametrize(
    ("status", "fold"), [(Status.BUDGET, 1), (Status.CANCELLED, 2), (Status.INTERRUPTED, 3)]
)
def test_a_run_that_was_ended_ends_the_race_and_leaves_the_state_before(
    status: Status, fold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second turn of the first of two candidates."""
    fake = FakeRuns(falling).install(monkeypatch)
    race = race_of(Folds(3), monitors=[StopAt(3 + 6 + fold, status)])
    trials = race.race(candidates(race, [1.0, 2.0]), 1.0)
    for trained in trials:
        assert trained.steps == 25 and trained.loss == -25 and trained.rate == 0
        assert not any(result.ended for result in trained.results)
    assert race.end is not None and (race.end.status, race.end.reason) == (status, "Enough.")
    assert race.race(trials, 1.0) == trials and race.elbo(MODEL, 1) is None
    race.advanced(trials, 25)
    assert len(fake.calls) == 3 + 6 + fold and not race.failures, "no run begins after the end"
    assert race.leaves_out("something") and race.untried == ["something"]


@pytest.mark.parametrize(
    ("max_steps", "optimizer", "steps"),
    [(None, "lbfgs", 25), (10, "lbfgs", 10), (None, "adam", 500), (100, "adam", 10)],
)
def test_the_recipe_of_a_turn(max_steps: int | None, optimizer: Any, steps: int) -> None:
    """Adam takes a tenth of the steps of a whole run; each run has a stopping rule of its own."""
    rule = LossRange(5, 1e-3)
    race = race_of(max_steps=max_steps, optimizer=optimizer, stopping=rule)
    recipe = race.recipe_of(MODEL, 25)
    assert recipe.max_steps == steps
    assert recipe.stopping == rule and recipe.stopping is not rule


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("settings", [{}, {"rule": "bmc", "max_steps": 50}], ids=["exact", "bmc"])
def test_several_at_once_have_the_same_results(settings: dict[str, Any]) -> None:
    """A rule with samples draws from a generator of each run."""
    found = []
    for n_jobs in (1, 2):
        race = race_of(Folds(2), n_jobs=n_jobs, stopping=LossRange(4, 1e-3), **settings)
        trials = list(map(unjudged, candidates(race, [4.0, 1.0])))
        found.append(race.advanced(race.advanced(trials, 4), 4))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.losses, other.losses) and one.rate == other.rate
        for ours, theirs in zip(one.results, other.results, strict=True):
            assert [stage.losses for stage in ours.stages] == [s.losses for s in theirs.stages]
            expected = tensors(theirs)
            assert all(torch.equal(value, expected[k]) for k, value in tensors(ours).items())
    assert found[0][0].loss != found[0][1].loss


def test_losses_and_rmse_of_folds_by_hand() -> None:
    """−log N(y; μ, v + σ²) and the error of μ at each example, by the model of its fold."""
    race = race_of(Folds(3))
    (trial,) = candidates(race)
    losses, errors = [], []
    held = torch.randperm(len(X), generator=seeded(5)).tensor_split(3)
    for rows, result in zip(held, trial.results, strict=True):
        q = result.posterior.predict(X[rows])
        assert isinstance(result.likelihood, Gaussian)
        deviation = (q.variance + result.likelihood.noise.detach()).sqrt()
        losses.append(-stats.norm.logpdf(Y[rows], q.mean, deviation))
        errors.append(Y[rows] - q.mean)
    np.testing.assert_allclose(trial.losses, np.concatenate(losses), rtol=1e-9)
    assert trial.rmse == pytest.approx(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


@pytest.mark.usefixtures("without_shape_checks")
def test_a_candidate_goes_on_with_what_it_has_learnt() -> None:
    """Each split with its own; without it the same number of steps leads less far."""
    found = {}
    for keeps in (True, False):
        race = race_of(Folds(2), stopping=NEVER)
        (trial,) = candidates(race)
        for turn in range(1, 5):
            (trial,) = race.advanced([unjudged(trial)], 10)
            first, second = trial.learnt
            assert first.curvature is not None and first.curvature is not second.curvature
            assert trial.steps == 10 * turn
            trial = trial if keeps else replace(trial, learnt=())
        found[keeps] = trial.results
    for further, anew in zip(found[True], found[False], strict=True):
        assert [stage.steps for stage in further.stages] == [1, 10, 10, 10, 10]
        assert further.loss < anew.loss and further.evaluations < anew.evaluations


@pytest.mark.usefixtures("without_shape_checks")
def test_what_was_learnt_is_dropped_when_a_candidate_is_done_and_else_kept_for_neighbours() -> None:
    race = race_of(stopping=NEVER)
    (trained,) = race.advanced([unjudged(candidates(race)[0])], 5)
    (learnt,) = trained.learnt
    (in_vain,) = race.advanced([replace(trained, losses=trained.losses - 100)], 5)
    assert in_vain.learnt == () and in_vain.rate == 0
    (raced,) = race.race([unjudged(trained)], 1.0, 5)
    assert raced.steps == 10 and raced.rate > 0 and raced.learnt[0] is learnt
