"""The members on all examples, and the record of a race."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import Poisson
from directgp.race.candidates import Candidate
from directgp.race.final import on_all
from directgp.race.race import Race
from directgp.race.record import path_of
from directgp.training.data import Data
from directgp.training.result import Status, TrainingResult
from directgp.training.validation import Folds, HoldOut
from tests.unit.race.fake_runs import (
    EFFORT,
    HELD,
    Call,
    FakeRuns,
    N,
    choices,
    raced,
    trainers_of,
)
from tests.unit.training.models import StopAt, counts, normal, regression, tensors

BETAS = (4.0, 1.0, 0.25, 0.0625)
KERNELS = choices(kernels=("rbf", "matern32"), modes=("elbo", "joint"))
MODES = pytest.mark.parametrize("mode", ["elbo", "joint", "fixed"])


def finished(race: Race) -> list[TrainingResult]:
    return on_all(race.trainers, race.entrants, EFFORT.tolerance)


def falling(c: Candidate, steps: int) -> float:
    return -min(steps, 640) / 100


@MODES
@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(3)], ids=str)
def test_members_take_a_few_steps_on_all_examples_from_what_was_judged(
    mode: str, validation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(falling)
    race = raced(fake, monkeypatch, settings=choices(modes=(mode,)), validation=validation)
    (entrant,), before = race.entrants, len(fake.calls)
    (result,) = finished(race)
    (call,) = fake.calls[before:]
    assert call.rows == N and call.phase.final and call.phase.part == call.phase.parts
    assert call.start.posterior is entrant.results[0].posterior, "the model of the first split"
    assert call.recipe.max_steps is not None
    assert 0 < call.recipe.max_steps <= max(25, entrant.steps / 2)
    assert result.hyperparameters == mode and result.status is Status.CONVERGED


@pytest.mark.parametrize(("given", "most"), [(10, 10), (10_000, 500)])
def test_steps_on_all_examples_are_limited_by_the_recipe_too(
    given: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(falling)
    race = raced(fake, monkeypatch, max_steps=given)
    finished(race)
    assert fake.calls[-1].phase.final and (fake.calls[-1].recipe.max_steps or 0) <= most


def test_row_values_are_those_of_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, exposure = counts(60)
    fake = FakeRuns(falling)
    settings = choices(likelihoods=("poisson",), stacked=(True,))
    exposed = {"poisson": Poisson().with_exposure(exposure)}
    how: Any = {"likelihoods": exposed, "data": Data(X, y)}
    race = raced(fake, monkeypatch, settings=settings, validation=Folds(3), **how)
    (result,) = finished(race)
    for likelihood in (fake.calls[-1].start.likelihood, result.likelihood):
        own = dict(likelihood.named_buffers())["log_exposure"]
        torch.testing.assert_close(own, exposure.log())


def test_one_that_fails_on_all_examples_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(falling, fails=lambda call: call.phase.final and "rbf" in call.label)
    race = raced(fake, monkeypatch, settings=KERNELS)
    results = finished(race)
    assert len(results) == len(race.entrants) > 1
    for entrant, result in zip(race.entrants, results, strict=True):
        stays = entrant.candidate.kernel == "rbf"
        assert (result.stages == entrant.results[0].stages) == stays
    failed = {failure.label for failure in race.trainers.failures}
    assert failed == {
        each.candidate.label for each in race.entrants if "rbf" in each.candidate.label
    }


@pytest.mark.parametrize("member", [1, 2])
def test_after_the_end_members_stay_as_they_were(
    member: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one whose run was ended has the best state of this run."""
    stop = StopAt(10**9)
    fake = FakeRuns(falling)
    race = raced(fake, monkeypatch, settings=KERNELS, monitors=[stop])
    stop.left = stop.seen + member
    before = len(fake.calls)
    results = finished(race)
    assert len(fake.calls) == before + member and len(results) == len(race.entrants)
    assert race.trainers.end is not None and race.trainers.end.status is Status.CANCELLED
    for k, (entrant, result) in enumerate(zip(race.entrants, results, strict=True), start=1):
        assert (result.stages == entrant.results[0].stages) == (k > member)
        assert result.posterior.predict(race.trainers.models.data(False).X).mean.isfinite().all()


def test_real_runs_on_all_examples_lower_the_objective() -> None:
    """Each mode, and the likelihood of the ELBO solution is held where it has to be."""
    kept = list[bool]()
    trainers = trainers_of(Folds(2), data=Data(*regression(60, noise=1.0)))
    for mode in ("elbo", "joint", "fixed"):
        candidate = choices(modes=(mode,)).first()
        base = trainers.base(candidate, "gaussian")
        assert base is not None
        start = trainers.start(candidate, base)
        assert start is not None
        (entrant,) = trainers.advanced([(start, 10)])
        (result,) = on_all(trainers, [entrant], 1e-5)
        losses = result.history
        assert len(losses) <= 25 and (not losses or losses[-1] <= losses[0])
        # A state that no step improved is that of the ELBO.
        assert result.hyperparameters == (mode if entrant.kept else "elbo")
        kept.append(entrant.kept > 0)
        held = {name: value for name, value in tensors(result).items() if "likelihood" in name}
        if result.hyperparameters == "fixed":
            before = tensors(entrant.results[0])
            assert all(torch.equal(value, before[name]) for name, value in held.items())
    assert sum(kept) >= 2


# The record


def noisy(c: Candidate, steps: int) -> Tensor:
    own = 0.2 * abs(math.log(c.beta))
    rows = torch.arange(HELD) % 2 == (c.kernel == "rbf")
    return (
        torch.where(rows, 2.0, 0.0) + normal(HELD, seed=1) * 0.1 - 0.5 * (c.mode == "joint") + own
    )


@pytest.mark.parametrize("combine", ["mixture", "best"])
def test_every_candidate_is_recorded_with_its_weight(
    combine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(noisy, fails=lambda call: "β = 4" in call.label)
    settings = choices(kernels=("rbf", "matern32"), modes=("elbo", "joint"), betas=BETAS)
    race = raced(fake, monkeypatch, settings=settings, combine=combine)
    path = path_of(race, settings.betas, "80 of 400 examples, held out")
    assert [point.label for point in path.points] == [e.state.label for e in race.entrants]
    assert [point.hyperparameters for point in path.points] == [
        entrant.state.mode for entrant in race.entrants
    ]
    assert [point.weight for point in path.points] == race.weights.tolist()
    assert path.chosen == int(race.weights.argmax())
    assert path.points[path.chosen].trained is race.entrants[path.chosen].results[0]
    assert path.decisions == tuple(race.decisions) and path.decisions
    assert {failure.beta for failure in path.failed} == {4.0}
    assert path.grid == BETAS and path.loss == "log_loss" and "held out" in path.validation
    losses = torch.stack([entrant.losses for entrant in race.entrants])
    means = [point.validation_loss for point in path.points]
    errors = [point.validation_error for point in path.points]
    torch.testing.assert_close(torch.tensor(means).double(), losses.mean(-1))
    torch.testing.assert_close(torch.tensor(errors).double(), losses.std(-1) / HELD**0.5)


def test_the_loss_of_the_mixture_is_that_of_rows_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    race = raced(FakeRuns(noisy), monkeypatch, settings=KERNELS)
    path = path_of(race, [1.0], "")
    rows = race.trainers.pool(race.entrants).cross_fitted(6)
    assert path.mixture_loss == pytest.approx(float(rows.mean()), rel=1e-12)
    assert path.mixture_error == pytest.approx(float(rows.std()) / HELD**0.5, rel=1e-12)
    assert path.mixture_loss is not None
    assert path.mixture_loss < min(point.validation_loss for point in path.points)


def test_one_candidate_has_no_loss_of_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    for combine in ("mixture", "best"):
        how: Any = {"combine": combine, "settings": choices()}
        path = path_of(raced(FakeRuns(falling), monkeypatch, **how), [1.0], "")
        assert path.mixture_loss is None is path.mixture_error and path.points[0].weight == 1


def test_units_of_the_targets_change_the_loss_of_the_mixture_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = path_of(raced(FakeRuns(noisy), monkeypatch, settings=KERNELS), [1.0], "")
    assert path.mixture_loss is not None
    scaled = path.in_units(8.0)
    assert scaled.mixture_loss == pytest.approx(path.mixture_loss + math.log(8))
    assert scaled.mixture_error == path.mixture_error


def test_a_race_without_any_entrant_has_an_empty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(call: Call) -> bool:
        return True

    path = path_of(raced(FakeRuns(falling, fails=fails), monkeypatch), [1.0], "")
    assert path.points == () and len(path.failed) == 1
