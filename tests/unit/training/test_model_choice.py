"""The choice of kernel and likelihood, by validation or by evidence."""

import copy
import math
from typing import Any

import pytest
import torch
from directgp.training.model_choice import ModelChoice, start_of
from directgp.training.race import Effort, Race

from directgp.likelihoods import Gaussian, HeteroscedasticGaussian
from directgp.posteriors import SparsePosterior
from directgp.training.data import Data, Model
from directgp.training.result import Failure, ModelTried, TrainingResult
from directgp.training.run import Recipe
from directgp.training.validation import HoldOut, split
from tests.unit.training.fake_runs import FakeRuns, models
from tests.unit.training.models import StopAt, inputs, regression, seeded

X, Y = regression()
MODELS = models(X)


def choice_of(by_evidence: bool, data: Data | None = None, **recipe: Any) -> ModelChoice:
    race = Race(Recipe(**recipe), data or Data(X, Y), HoldOut(0.2), seeded(5))
    race.effort = Effort(rows_for_models=60)
    race.splits = split(race.validation, race.data, *MODELS[0][0][:2], race.generator)
    return ModelChoice(race, by_evidence)


def names_of(found: tuple[Model, Model] | None) -> list[str]:
    assert found is not None
    return [each.name for each in found]


@pytest.mark.parametrize(
    ("losses", "third", "chosen"),
    [
        # With Student-t noise those of rbf, rbf ARD, matern and matern ARD; then with Gaussian.
        ([5, 3, 0, 2, 9, 9, 9, 9], "matern ARD", "matern ARD, studentt"),
        ([3, 4, 5, 0, 9, 9, 9, 9], "matern", "rbf, studentt"),
        ([5, 5, 5, 5, 5, 5, 5, 5], "matern", "rbf, studentt"),
        ([5, 5, 5, 5, 4.9, 4, 1, 1], "matern", "rbf, gaussian"),
    ],
)
def test_ard_then_kernel_with_the_last_likelihood_then_likelihood(
    losses: list[float], third: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of models that are alike the first kernel and the last likelihood."""
    names = [row[column].name for column in (1, 0) for row in MODELS]
    table = dict(zip(names, map(float, losses), strict=True))
    fake = FakeRuns(lambda each: 9.5 if each.mode == "elbo" else table[each.model])
    fake.install(monkeypatch)
    choice, kernel = choice_of(by_evidence=False), chosen.split(",")[0]
    assert names_of(choice.choose(MODELS)) == [f"{kernel}, gaussian", chosen]
    calls = [(call.mode, call.model) for call in fake.calls]
    assert calls[:6:2] == [("elbo", f"{name}, gaussian") for name in ("rbf", "rbf ARD", third)]
    assert calls[1::2] == [("joint", f"{name}, studentt") for name in ("rbf", "rbf ARD", third)]
    # Its ELBO solution is known, and no model is tried twice.
    assert calls[6:] == [("joint", f"{kernel}, gaussian")] and len(choice.tried) == 4
    for each in choice.tried.values():
        assert each == ModelTried(each.name, None, table[each.name], each.name == chosen)


def test_few_steps_examples_and_inducing_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = regression(200)
    many = [
        [each._replace(posterior=SparsePosterior(each.posterior.prior, X[:120])) for each in row]
        for row in models(X, 2)
    ]
    fake = FakeRuns().install(monkeypatch)
    choice = choice_of(by_evidence=False, data=Data(X, y))
    whole = choice.race.splits
    found = choice.choose(many)
    for call in fake.calls:
        assert (call.num_inducing, len(call.data), call.recipe.max_steps) == (40, 60, 25)
        assert torch.equal(call.data.X, fake.calls[0].data.X)
    assert len(fake.calls) == 5 and choice.race.splits is whole
    assert all(len(part.validation) == 40 for part in fake.judged)
    assert found is not None and all(len(each.posterior.Z) == 120 for each in found)


def test_by_evidence_with_the_first_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    """ELBO − ½ k log Σw with k hyperparameters, on all examples and without joint runs."""
    objectives = {"rbf, gaussian": 3.0, "rbf ARD, gaussian": 2.0, "matern ARD, gaussian": 1.0}
    objectives |= {"matern ARD, studentt": 0.5, "matern, gaussian": 0.0}
    fake = FakeRuns(objective=lambda call: objectives[call.model]).install(monkeypatch)
    choice = choice_of(by_evidence=True, data=Data(X, Y, 1 + (torch.arange(40) % 2).double()))
    assert names_of(choice.choose(MODELS)) == ["matern ARD, gaussian", "matern ARD, studentt"]
    calls = [(call.mode, call.model, call.recipe.max_steps) for call in fake.calls]
    assert calls == [("elbo", name, 50) for name in [*objectives][:4]]
    assert all(torch.equal(call.data.X, X) for call in fake.calls)
    k = dict(zip(objectives, [3, 4, 4, 5], strict=False))
    by_hand = {n: -40 * objectives[n] - 0.5 * number * math.log(60) for n, number in k.items()}
    assert {n: each.evidence for n, each in choice.tried.items()} == pytest.approx(by_hand)
    assert [n for n, each in choice.tried.items() if each.chosen] == ["matern ARD, studentt"]


def test_evidence_counts_the_rows_of_the_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and penalty of the same rows, where only a part of the examples is used."""
    X, y = regression(200)
    fake = FakeRuns(objective=lambda call: 2.0).install(monkeypatch)
    choice = choice_of(by_evidence=True, data=Data(X, y))
    choice.choose([[row[0]] for row in MODELS[:2]])
    assert {len(call.data) for call in fake.calls} == {60}
    by_hand = [-60 * 2.0 - 0.5 * number * math.log(60) for number in (3, 4)]
    assert [each.evidence for each in choice.tried.values()] == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("plain", "ard", "winner"),
    # ½ log 40 / 40 = 0.0461 of mean loss is what one more length scale costs.
    [(1.0, 0.96, 0), (1.0, 0.95, 1), (math.nan, 9.0, 1), (9.0, math.nan, 0)],
)
def test_a_parameter_more_has_to_pay(
    plain: float, ard: float, winner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeRuns(objective=lambda call: ard if "ARD" in call.model else plain).install(monkeypatch)
    found = choice_of(by_evidence=True).choose([[row[0]] for row in MODELS[:2]])
    assert names_of(found) == 2 * [MODELS[winner][0].name]


@pytest.mark.usefixtures("without_shape_checks")
def test_by_evidence_the_first_model_has_its_hyperparameters_and_no_q() -> None:
    """It was trained on examples that validate what follows."""
    choice = choice_of(by_evidence=True, max_steps=8)
    found = choice.choose(MODELS[:1])
    (given, _), solution = MODELS[0], choice._solutions["rbf, gaussian"]
    assert found is not None and solution is not None
    first, after = found[0].posterior, solution.posterior
    assert float(after.u_mean.detach().abs().max()) > 0.1
    assert torch.equal(first.u_mean, torch.zeros(6)) and torch.equal(first.u_chol, torch.eye(6))
    assert torch.equal(first.prior.scale, after.prior.scale)
    assert not torch.equal(first.prior.scale, given.posterior.prior.scale)
    assert found[1] is MODELS[0][1] or found[1] is MODELS[0][0], "untrained"


@pytest.mark.parametrize("by_evidence", [False, True])
def test_a_model_that_fails_is_recorded_once_and_passed_over(
    by_evidence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(failing=lambda call: call.model == "rbf, gaussian").install(monkeypatch)
    choice = choice_of(by_evidence)
    assert names_of(choice.choose(MODELS))[0] == "rbf ARD, gaussian"
    failed = Failure(1.0, "elbo, rbf, gaussian", "elbo at 1 cannot be trained.")
    assert choice.race.failures == [failed] and not any("rbf," in name for name in choice.tried)
    assert len([call for call in fake.calls if call.model == "rbf, gaussian"]) == 1


@pytest.mark.parametrize(
    ("by_evidence", "run", "untried", "chosen"),
    [
        (False, 1, ["rbf ARD, studentt", "matern, studentt", "rbf, gaussian"], "rbf, studentt"),
        (False, 4, ["matern, studentt", "rbf, gaussian"], "rbf, studentt"),
        (False, 6, ["rbf ARD, gaussian"], "rbf ARD, studentt"),
        (True, 1, ["rbf ARD, gaussian", "matern, gaussian", "rbf, studentt"], "rbf, gaussian"),
        (True, 2, ["matern ARD, gaussian", "rbf ARD, studentt"], "rbf ARD, gaussian"),
    ],
)
def test_an_ended_race_lists_what_was_left_out_and_has_the_best_so_far(
    by_evidence: bool, run: int, untried: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ARD the losses of joint runs are lower, and the evidence is higher."""
    fake = FakeRuns(
        lambda state: 9.0 - ("ARD" in state.model) - (state.mode == "joint"),
        lambda call: -float("ARD" in call.model),
    ).install(monkeypatch)
    choice = choice_of(by_evidence, monitors=[StopAt(run)])
    found = choice.choose(MODELS)
    assert choice.race.untried == untried and len(fake.calls) == run
    assert names_of(found)[1] == chosen and choice.tried[chosen].chosen
    assert choice.best is not None
    assert bool(choice.best.posterior.predict(inputs(5)).mean.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_more_latents_start_from_the_solution_of_one(dtype: torch.dtype) -> None:
    X, y = (each.to(dtype) for each in regression())
    first = Model(MODELS[0][0].posterior.to(dtype), Gaussian(0.1), "rbf, gaussian")
    posterior = copy.deepcopy(first.posterior)
    posterior.set_q(torch.randn(posterior.u_mean.shape), 0.3 * torch.eye(posterior.num_inducing))
    solution = TrainingResult(posterior, Gaussian(0.1), "elbo", 1.0, "elbo", (), 0.0)
    before = posterior.predict(X)
    likelihood = HeteroscedasticGaussian()
    two = Model(first.posterior.with_latents(2), likelihood, "rbf, heteroscedastic")
    found = start_of(two, first, solution, Data(X, y))
    q, tolerance = found.posterior.predict(X), 1e-10 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(q.mean[0], before.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(q.variance[0], before.variance, rtol=tolerance, atol=tolerance)
    noise = torch.log((y - before.mean).var(correction=0))
    torch.testing.assert_close(q.mean[1], noise.expand(len(X)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(q.variance[1], torch.ones_like(y), rtol=1e-3, atol=1e-3)
    assert q.mean.dtype == dtype and solution.posterior.num_latent == 1
