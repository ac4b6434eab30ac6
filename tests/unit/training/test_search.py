"""A search: kernel, likelihood, mode, β and number of inducing inputs, then all examples."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from directgp.training.race import EFFORTS, Effort, Trial
from directgp.training.search import Reached, Search

from directgp.errors import NumericalError
from directgp.likelihoods import Gaussian, Poisson, StudentT
from directgp.training import search
from directgp.training.callbacks import History
from directgp.training.data import Data
from directgp.training.result import Failure, Status, TrainingResult
from directgp.training.run import Recipe, RelativeDecrease
from directgp.training.validation import Folds, Given, HoldOut, Validation, split
from tests.unit.training.fake_runs import BETAS, Call, FakeRuns, State, model, models, searched
from tests.unit.training.models import StopAt, counts, examples, regression, seeded, tensors

ALL = ["elbo", "fixed", "joint"]
NONE_IS_BEATEN = {"fixed": 1e3, "joint": -1e3}
"""Losses whose differences between modes have large errors."""

BEYOND = "training on all rows, those for validation too"
HELD, NONE = "hyperparameters held", "every candidate"
X, Y = regression()
ELSEWHERE = Given(*regression(10, seed=7))
OWN = pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=["held out", "folds"])
EACH = pytest.mark.parametrize(
    "validation", [HoldOut(0.2), Folds(2), ELSEWHERE], ids=["held out", "folds", "given"]
)


@pytest.mark.parametrize(
    ("trials", "chosen"),
    [
        # Mode, β, how far it is behind in standard errors, and its root mean square error.
        ([("elbo", 1, 0.4, 1), ("joint", 4, 0.4, 1), ("joint", 0.25, 0, 1)], 1),
        ([("elbo", 1, 0.4, 1), ("joint", 4, 0.6, 1), ("joint", 0.25, 0, 1)], 0),
        ([("elbo", 1, 0.6, 1), ("joint", 4, 0.6, 1), ("joint", 0.25, 0, 1)], 2),
        ([("joint", 4, 0.4, 1), ("joint", 1, 0.4, 1), ("joint", 0.5, 0, 1)], 1),
        ([("joint", 0.5, 0.4, 1), ("elbo", 1, 0, 1), ("joint", 0.49, 0.4, 1)], 0),
        # Nearly the lowest error is one of at most 1.05 times as much, of those alike.
        ([("joint", 1, 0.4, 1.04), ("joint", 4, 0, 1)], 0),
        ([("joint", 1, 0.4, 1.06), ("joint", 4, 0, 1)], 1),
        ([("joint", 1, 0.4, 1), ("joint", 4, 0, 1), ("joint", 0.25, 0.6, 0.5)], 0),
        ([("joint", 1, math.inf, 0.5), ("joint", 4, 0, 1)], 1),
    ],
)
def test_the_choice_of_mode_and_beta(trials: list[tuple[str, Any, Any, Any]], chosen: int) -> None:
    """Losses alike within half a standard error, nearly the lowest RMSE, then preference."""
    wide = torch.linspace(-1, 1, 16, dtype=torch.float64)
    wide *= 4 / wide.std()  # A standard error of 1.
    search = Search(Recipe(), Data(X, Y), HoldOut(), seeded())
    for mode, beta, behind, rmse in trials:
        losses = behind + (behind > 0) * wide
        search.trials += [Trial(model(Gaussian(), X), mode, float(beta), (), losses, float(rmse))]
    assert search._chosen() == chosen


@pytest.mark.parametrize("mode", ["fixed", "joint"])
@pytest.mark.parametrize(
    ("losses", "asked"),
    [
        # From β = 1 up to the first that is no lower, then down likewise.
        ([9, 9, 2, 1, 2, 9], [1.0, 4.0, 0.25]),
        ([9, 2, 0.5, 1, 0.5, 0.4], [1.0, 4.0, 16.0, 0.25, 0.0625]),
        ([0, 9, 1, 1, 1, 0], [1.0, 4.0, 0.25]),
        ([1, 2, 3, 4, 5, 6], [1.0, 4.0, 16.0, 64.0, 0.25]),
        ([math.nan, 1, math.nan, 2, 1, math.nan], [1.0, 4.0, 0.25, 0.0625]),
    ],
)
def test_beta_is_followed_outwards_while_the_loss_falls(
    losses: list[float], asked: list[float], mode: str
) -> None:
    table = dict(zip(BETAS, map(float, losses), strict=True))
    fake = FakeRuns(
        lambda state: 9.0 if state.mode == "elbo" else table[state.beta],
        rmse=lambda state: 10 + state.beta / 100,
    )
    found = searched(ELSEWHERE, fake, modes=[mode])
    kept = [beta for beta in sorted(asked, reverse=True) if not math.isnan(table[beta])]
    assert fake.betas(mode) == asked and [trial.beta for trial in found.trials] == kept
    # Of equal ones that nearest 1.
    best = min(kept, key=lambda beta: (table[beta], abs(math.log(beta))))
    assert found.path.chosen == kept.index(best) and found.best.beta == best
    for beta, point in zip(kept, found.path.points, strict=True):
        assert (point.hyperparameters, point.beta, point.status) == (mode, beta, "")
        assert point.rmse == pytest.approx(10 + beta / 100)
        assert point.validation_loss == table[beta] == point.difference + table[best]
    # Given examples need no run on all.
    assert all(len(call.data) == 40 and not call.phase.final for call in fake.calls)
    assert found.best.posterior is found.trials[found.path.chosen].results[0].posterior


@pytest.mark.parametrize(("gain", "asked"), [(1e-3, [1.0, 4.0, 16.0]), (-1e-3, [1.0, 4.0])])
def test_another_beta_has_to_pay_beyond_what_more_steps_would(
    gain: float, asked: list[float]
) -> None:
    """All losses fall by 0.001 a step; a neighbour starts from the steps taken."""
    taken = {"elbo": 0.0, "joint": 1e-3}
    fake = FakeRuns(lambda each: 9 - taken[each.mode] * each.steps - gain * (each.beta == 4))
    searched(ELSEWHERE, fake, betas=[16.0, 4.0, 1.0], modes=["joint"])
    assert fake.betas("joint") == asked and fake.steps("joint", 4.0)[0] == 25
    starts = {call.beta: call for call in reversed(fake.of("joint"))}
    assert starts[4.0].posterior is starts[1.0].posterior, "from its neighbour"


def test_each_mode_has_a_beta_of_its_own_and_none_is_held_unless_asked_for() -> None:
    slope = {"fixed": 1.0, "joint": -0.1, "elbo": 100.0}
    fake = FakeRuns(lambda state: slope[state.mode] * state.beta, spread=NONE_IS_BEATEN)
    found = searched(ELSEWHERE, fake, modes=ALL)
    assert fake.betas("joint") == [1.0, 4.0, 16.0, 64.0, 0.25]
    assert fake.betas("fixed") == [1.0, 4.0, 0.25, 0.0625] and fake.steps("fixed")[0] == 50
    modes = [trial.hyperparameters for trial in found.trials]
    assert modes == ["elbo"] + 5 * ["joint"] + 4 * ["fixed"]
    fake.calls.clear()
    assert len(searched(ELSEWHERE, fake).trials) == 6 and not fake.of("fixed")


@pytest.mark.parametrize(("gap", "winner"), [(1.0, "studentt"), (-1.0, "gaussian")])
def test_likelihoods_race_in_the_folds(gap: float, winner: str) -> None:
    """Of the kernel that the evidence with the first likelihood has chosen."""
    fake = FakeRuns(
        lambda state: 3 - gap * ("studentt" in state.model) + (state.mode == "elbo"),
        lambda call: -float("ARD" in call.model),
    )
    found = searched(Folds(2), fake, models=models(X, 2), betas=[4.0, 1.0])
    names = ["rbf, gaussian", *3 * ["rbf ARD, gaussian"]]
    assert [(call.mode, call.model) for call in fake.calls[:4]] == [("elbo", n) for n in names]
    joint = [(call.model, call.beta, len(call.data)) for call in fake.of("joint")]
    both = ["rbf ARD, gaussian", "rbf ARD, studentt"]
    assert joint[:4] == [(name, 1.0, 20) for name in both for _ in range(2)]
    won = f"rbf ARD, {winner}"
    assert {name for name, beta, _ in joint if beta == 4} == {won}
    assert {trial.model.name for trial in found.trials} == {fake.calls[-1].model} == {won}
    tried = [(each.name, each.chosen) for each in found.path.models]
    assert tried == [("rbf", False), ("rbf ARD", True)]


@pytest.mark.parametrize("mode", ["elbo", "fixed", "joint"])
def test_one_candidate_is_trained_on_all_examples(mode: str) -> None:
    fake = FakeRuns(objective=lambda call: 2.0)
    found = searched(HoldOut(), fake, models=models(X, 2), betas=[0.25], modes=[mode])
    *first, elbo, last = fake.calls if mode != "elbo" else [*fake.calls, fake.calls[-1]]
    assert [call.recipe.max_steps for call in first] == 3 * [50]
    assert elbo.mode == "elbo" and len(elbo.data) == 40 and elbo.recipe.max_steps is None
    assert last.mode == mode and len(last.data) == 40 and last.phase.final
    assert (found.best.hyperparameters, found.best.beta) == (mode, 1.0 if mode == "elbo" else 0.25)
    assert not found.trials and not found.path.points and len(found.path.models) == 3


def grown_with(
    objective: Callable[[Call], float], n: int = 400, grows: bool = True, **effort: Any
) -> tuple[FakeRuns, list[tuple[int, int | None]]]:
    """Return the runs, and number of inducing inputs and steps of those of the ELBO."""
    (X, y), fake = regression(n), FakeRuns(objective=objective)
    given = model(effort.pop("likelihood", Gaussian()), X, kernel="matern12")
    settings = {"effort": Effort(**effort), "data": Data(X, y), "grows": grows, "betas": [1.0]}
    searched(HoldOut(0.2), fake, models=[[given]], **settings)
    return fake, [(call.num_inducing, call.recipe.max_steps) for call in fake.of("elbo")]


def test_inducing_inputs_double_where_the_objective_falls_enough() -> None:
    """By 0.0125 for each doubling; more steps come first while each lowers it by 4e-4."""
    objectives = {6: 1.0, 12: 0.98, 24: 0.97}
    fake, elbo = grown_with(lambda call: objectives[call.num_inducing])
    assert elbo[:5] == [(6, 25), (6, 25), (12, 25), (12, 50), (24, 25)]
    assert {call.num_inducing for call in fake.of("joint")} == {12}
    first, grown = fake.of("elbo")[0], fake.of("elbo")[2].posterior
    assert torch.equal(grown.Z[:6], first.posterior.Z)
    assert examples(grown.Z) <= examples(first.data.X) | examples(first.posterior.Z)
    values = iter([1.0, 0.95, 0.9, 0.85])
    _, elbo = grown_with(lambda call: next(values, 0.85) if call.mode == "elbo" else 0.0)
    assert elbo[:5] == [(6, 25), (6, 25), (6, 50), (6, 100), (12, 25)]


@pytest.mark.parametrize(
    ("cuda", "settings", "largest"),
    [
        (False, {"max_inducing": 47}, 24),
        (False, {"max_inducing": 48, "max_inducing_cuda": 24}, 48),
        (True, {"max_inducing": 24, "max_inducing_cuda": 48}, 48),
        (False, {"n": 300}, 48),  # 240 to train on, and five for each.
        (False, {"n": 298}, 24),
        (False, {"grows": False}, 6),
        (False, {"likelihood": StudentT()}, 6),
    ],
)
def test_inducing_inputs_never_beyond_the_limits(
    cuda: bool, settings: dict[str, Any], largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (Effort().max_inducing, Effort().max_inducing_cuda) == (1000, 4000)
    monkeypatch.setattr(Search, "cost", lambda self, number: 1.0)
    if cuda:
        monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    _, elbo = grown_with(lambda call: -math.log(call.num_inducing), **{"n": 600, **settings})
    assert max(number for number, _ in elbo) == largest


@pytest.mark.parametrize("falls", [True, False])
def test_the_chosen_candidate_alone_has_more_inducing_inputs(falls: bool) -> None:
    """Where the rows allow no more to all candidates, and the validation loss falls enough."""
    fall = 0.02 if falls else 0.01
    fake = FakeRuns(
        lambda each: abs(each.beta - 4) - fall * math.log2(each.num_inducing),
        lambda call: -math.log(call.num_inducing),
    )
    (X, y), effort = regression(400), Effort(rows_per_inducing=2)
    settings = {"data": Data(X, y), "effort": effort, "betas": [16.0, 4.0, 1.0], "grows": True}
    given = model(Gaussian(), X, kernel="matern12")
    found = searched(HoldOut(0.2), fake, models=[[given]], **settings)
    numbers = {beta: {c.num_inducing for c in fake.calls if c.beta == beta} for beta in (16, 4)}
    # 320 rows to train on: one for five, then one for two.
    assert numbers == {16: {48}, 4: {48, 96}}
    assert len(found.best.posterior.Z) == (96 if falls else 48)


@pytest.mark.parametrize("counted", [False, True])
def test_untrained_starts_where_the_elbo_explains_nothing(counted: bool) -> None:
    """In each split by itself, and not for counts, whose mean is no output of the latent."""
    first = model(Gaussian(0.3), X, "first")
    given = model(Poisson() if counted else StudentT(), X, "other")
    search = Search(Recipe(), Data(X, Y), Folds(2), seeded(5))
    one, other = split(search.validation, search.data, *first[:2], seeded(5))
    # With targets a hundred times as large, the same solution explains nothing.
    large = replace(other, training=Data(other.training.X, 100 * other.training.y))
    search.splits, posterior = [one, large], copy.deepcopy(first.posterior)
    with torch.no_grad():
        posterior.u_mean.copy_(torch.linspace(-2, 2, 6))
    solution = TrainingResult(posterior, first.likelihood, "elbo", 1.0, "elbo", (), 0.0)
    kept, anew = search._starts(first, given, [solution, solution])
    assert kept.posterior is posterior and (anew.posterior is posterior) == counted
    if not counted:
        noise = dict(given.likelihood.named_parameters())["raw_scale"]
        assert torch.equal(tensors(anew)["likelihood.raw_scale"], noise)
        assert not torch.equal(tensors(kept)["likelihood.raw_scale"], noise), "of the residuals"


@pytest.mark.parametrize("mode", ["joint", "fixed", "elbo"])
def test_held_out_the_run_on_all_goes_to_the_objective_of_the_best_state(mode: str) -> None:
    table = {"elbo": 3.0, "fixed": 3.0, "joint": 3.0, mode: 1.0}
    fake = FakeRuns(lambda state: table[state.mode], lambda call: 0.1 * call.beta)
    modes = ["elbo", "fixed"] if mode == "elbo" else [mode]
    found = searched(HoldOut(0.2), fake, betas=[2.0, 0.25], modes=modes)
    last, chosen = fake.calls[-1], found.trials[found.path.chosen]
    assert (last.mode, last.beta) == (mode, 1.0 if mode == "elbo" else 2.0)
    assert last.phase.final and torch.equal(last.data.X, X)
    rule = last.recipe.stopping
    assert isinstance(rule, Reached) and rule.otherwise == RelativeDecrease(20, 20 * 1e-4)
    assert rule.value == chosen.results[0].loss == 0.1 * last.beta
    assert last.recipe.max_steps == 3200 and found.best.status is Status.BUDGET


@pytest.mark.usefixtures("without_shape_checks")
def test_held_out_the_real_run_on_all_ends_where_it_is_as_low() -> None:
    found = searched(HoldOut(0.2), betas=[1.0], modes=["joint", "fixed"])
    reached, history = found.trials[found.path.chosen].results[0].loss, found.best.history
    assert found.best.status is Status.CONVERGED and "as low as" in found.best.reason
    assert history[-1] <= reached and all(loss > reached for loss in history[:-1])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("elbo", [("elbo", 125), ("elbo", 25)]),
        ("fixed", [("elbo", 125), ("elbo", 25), ("fixed", None)]),
        ("joint", [("elbo", 125), ("joint", 100)]),
    ],
)
def test_with_folds_the_run_is_repeated_from_the_start(
    mode: str, expected: list[tuple[str, int | None]]
) -> None:
    """For as many steps as with the lowest validation loss, and with as many inducing inputs."""

    def loss(state: State) -> float:
        # Before, the ELBO has 25 + 25 steps with 6 inducing inputs and 25 + 50 with 12.
        best = {"elbo": 150, "joint": 100}.get(state.mode, state.steps)
        return abs(best - state.steps) / 10 + (0 if state.mode == mode else 9)

    fake = FakeRuns(loss, lambda call: 1.0 if call.num_inducing == 6 else 0.9)
    (X, y), modes = regression(120), sorted({"elbo", "fixed", mode})
    given, effort = model(Gaussian(), X), Effort(max_inducing=20)
    settings = {"data": Data(X, y), "effort": effort, "betas": [2.0], "modes": modes}
    found = searched(Folds(2), fake, models=[[given]], grows=True, **settings)
    on_all = [call for call in fake.calls if len(call.data) == 120]
    assert [(call.mode, call.recipe.max_steps) for call in on_all] == expected
    assert torch.equal(on_all[0].posterior.Z[:6], given.posterior.Z)
    assert all(call.phase.final and call.num_inducing == 12 for call in on_all)
    assert found.best.hyperparameters == mode
    if mode != "fixed":
        assert found.best.status is Status.CONVERGED and "cost" in found.best.reason


def test_with_folds_inducing_inputs_are_added_after_as_many_steps() -> None:
    """12 for all candidates, 24 for the chosen one, after its first 100 steps."""

    def loss(state: State) -> float:
        best = 100 if state.num_inducing == 12 else 125
        return abs(best - state.steps) / 10 - state.num_inducing + 99 * (state.mode == "elbo")

    fake = FakeRuns(loss, lambda call: -float(call.num_inducing))
    (X, y), effort = regression(120), Effort(rows_per_inducing=2)
    settings = {"data": Data(X, y), "effort": effort, "betas": [2.0], "grows": True}
    searched(Folds(2), fake, models=[[model(Gaussian(), X)]], **settings)
    on_all = [
        (c.mode, c.num_inducing, c.recipe.max_steps) for c in fake.calls if len(c.data) == 120
    ]
    assert on_all == [("elbo", 12, 125), ("joint", 12, 100), ("joint", 24, 25)]


def test_along_beta_candidates_go_on_while_their_objective_falls() -> None:
    """In nats, so by its share where the loss is a square; the validation loss chooses β."""
    values = iter([3e-3, 1e-3, 8e-4, 7.99e-4, 2e-3])
    fake = FakeRuns(lambda state: state.beta + state.steps, lambda call: next(values))
    search = Search(Recipe(objective="square_loss"), Data(X, Y), ELSEWHERE, seeded(), Effort())
    with pytest.MonkeyPatch.context() as patch:
        fake.install(patch)
        search.along(model(Gaussian(), X), "joint", [4.0, 1.0])
    assert fake.steps("joint") == [25, 25, 50, 100] and fake.steps("joint", 4.0) == [25]
    assert search.best.beta == 1 and search.best.loss == 7.99e-4


def test_a_fast_search_has_the_first_kernel_and_one_beta() -> None:
    fake = FakeRuns()
    found = searched(HoldOut(0.2), fake, models=models(X, 4), effort=EFFORTS["fast"])
    assert fake.betas("joint") == [1.0] and len(found.trials) == 2
    assert {each.name.split(",")[0] for each in found.path.models} == {"rbf", "rbf ARD"}


def test_a_race_on_some_examples_goes_on_to_all() -> None:
    """From where it was; ended there, the model of some remains."""
    fake = FakeRuns(lambda state: state.beta * (1 + (state.mode == "elbo")) - state.steps / 1e3)
    settings = {"effort": Effort(rows_for_candidates=15), "modes": ["joint"], "betas": [1.0, 0.25]}
    found, calls = searched(HoldOut(0.2), fake, **settings), [*fake.calls]
    numbers = [len(call.data) for call in calls]
    assert [*dict.fromkeys(numbers)] == [15, 32, 40] and numbers == sorted(numbers)
    more = [call for call in calls if len(call.data) == 32]
    assert {(call.mode, call.beta) for call in more} == {("joint", 0.25)}
    assert examples(calls[0].data.X) < examples(more[0].data.X)
    assert found.trials[found.path.chosen].results[0].posterior is calls[-1].posterior
    for run in (1, 2):
        stop = StopAt(numbers.index(32) + run)
        found = searched(HoldOut(0.2), fake, monitors=[stop], **settings)
        assert (found.best.hyperparameters, found.best.beta) == ("joint", 0.25)
        assert not found.best.ended and found.untried == [BEYOND]


@pytest.mark.parametrize("asked", [1, 2, 5])
def test_an_interrupt_between_two_runs_keeps_the_best_so_far(asked: int) -> None:
    fake = FakeRuns()

    def loss(state: State) -> float:
        if len(fake.judged) == asked:
            raise KeyboardInterrupt
        return state.beta

    fake.loss = loss
    found = searched(HoldOut(0.2), fake)
    assert found.end is not None and found.end.status is Status.INTERRUPTED
    assert found.end.ends_training and found.best.stages[-1].steps > 0
    assert len(fake.judged) == asked


def test_an_interrupt_before_all_runs_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "split", interrupt)
    with pytest.raises(KeyboardInterrupt):
        searched(HoldOut(0.2), FakeRuns())


@EACH
def test_no_example_validates_what_it_has_trained(validation: Validation) -> None:
    """Exposures and weights follow their rows: they are functions of the first feature."""
    X, y, _ = counts()
    exposed, data = Poisson().with_exposure(X[:, 0].exp()), Data(X, y, X[:, 0].exp())
    kernels = [[row[0]._replace(likelihood=copy.deepcopy(exposed))] for row in models(X)]
    if isinstance(validation, Given):
        validation = Given(-X, y, Poisson().with_exposure((-X[:, 0]).exp()))
    fake, effort = FakeRuns(lambda state: state.beta), Effort(1e-4, 10, 15)
    searched(validation, fake, models=kernels, data=data, effort=effort)
    assert {len(call.data) for call in fake.calls} >= {10, 15, 40}
    for call in fake.calls:
        exposure = dict(call.likelihood.named_buffers())["log_exposure"]
        torch.testing.assert_close(exposure, call.data.X[:, 0])
        torch.testing.assert_close(call.data.weights, exposure.exp())
    # The losses of models that are compared by evidence are of no use.
    for part in fake.judged[3 if isinstance(validation, Folds) else 0 :]:
        assert not examples(part.training.X) & examples(part.validation.X)
        exposure = dict(part.validation_likelihood.named_buffers())["log_exposure"]
        torch.testing.assert_close(exposure, part.validation.X[:, 0])


@pytest.mark.parametrize(
    ("mode", "failing", "asked"),
    [("joint", 4.0, [1.0, 4.0, 0.25, 0.0625]), ("fixed", 1.0, [1.0, 4.0, 16.0, 0.25, 0.0625])],
)
def test_candidates_that_fail_are_recorded_and_passed_over(
    mode: str, failing: float, asked: list[float]
) -> None:
    """Losses fall with β, and in that direction all others are trained."""
    fake = FakeRuns(
        lambda state: state.beta * (9 if state.mode == "elbo" else 1),
        failing=lambda call: (call.mode, call.beta) == (mode, failing),
    )
    found = searched(Folds(3), fake, modes=[mode])
    failure = Failure(failing, mode, f"{mode} at {failing:g} cannot be trained.")
    assert found.path.failed == (failure,) and fake.betas(mode) == asked
    kept = [beta for beta in sorted(asked, reverse=True) if beta != failing]
    assert [trial.beta for trial in found.trials] == kept


@OWN
def test_where_a_run_fails_the_one_before_remains(validation: Validation) -> None:
    """The ELBO solution where all candidates fail, a candidate where the run on all does."""
    found = searched(validation, FakeRuns(failing=lambda call: call.mode != "elbo"), modes=ALL)
    assert found.best.hyperparameters == "elbo"
    assert all(math.isfinite(point.validation_loss) for point in found.path.points)
    fake = FakeRuns(lambda state: float(state.mode == "elbo"))
    fake.failing = lambda call: len(call.data) == 40
    found = searched(validation, fake, betas=[1.0])
    assert found.best.posterior is found.trials[1].results[0].posterior
    assert [each.hyperparameters for each in found.path.failed] == ["all examples"]


@EACH
def test_if_all_models_fail_so_does_the_search(validation: Validation) -> None:
    for modes in (["elbo"], ALL):
        fake, stop = FakeRuns(failing=lambda call: True), StopAt(10**9)
        with pytest.raises(NumericalError, match="elbo at 1 cannot be trained"):
            searched(validation, fake, models=models(X), modes=modes, monitors=[stop])
        assert stop.closed == 1


def ended_at(run: int, validation: Validation) -> tuple[Search, list[Call]]:
    """End a search of two kernels, two likelihoods and three modes in one of its runs."""
    fake = FakeRuns(lambda state: state.beta, spread=NONE_IS_BEATEN)
    stop, settings = StopAt(run, Status.BUDGET), {"betas": [4.0, 1.0, 0.25], "modes": ALL}
    found = searched(validation, fake, models=models(X, 2), monitors=[stop], **settings)
    assert stop.closed == 1
    return found, fake.calls


@EACH
@pytest.mark.slow
def test_a_search_that_was_ended_anywhere_has_a_model(validation: Validation) -> None:
    whole, calls = ended_at(10**9, validation)
    assert whole.end is None and not whole.untried
    folds = isinstance(validation, Folds)
    for run, call in enumerate(calls, start=1):
        found, begun = ended_at(run, validation)
        assert found.end is not None and found.end.status is Status.BUDGET
        assert len(begun) == run, "no run begins after the end"
        assert found.best.posterior.predict(X).mean.isfinite().all()
        if not found.trials:
            assert found.untried[-1] == NONE and not found.path.points
            continue
        if not isinstance(validation, Given) and (folds or not call.phase.final):
            assert found.untried[-1] == BEYOND
        if "β = " in call.phase.name or (folds and call.phase.final):
            # A repeated run is behind the model of a fold.
            assert not found.best.ended, "the state before"


@pytest.mark.parametrize(
    ("number", "last", "untried"),
    [
        # The number of a run of that name, as models are compared before the candidates.
        (0, "ELBO, rbf, gaussian", ["rbf ARD, studentt", "rbf, gaussian", NONE]),
        (0, "rbf, gaussian, joint, β = 1", [NONE]),
        (1, "rbf, studentt, joint, β = 1", ["β = 4", "β = 0.25", "the ELBO", HELD, BEYOND]),
        (0, "rbf, studentt, elbo, β = 1", [HELD, BEYOND]),
        (0, "rbf, studentt, fixed, β = 4", ["β = 0.25", BEYOND]),
        (0, "all examples", []),
    ],
)
def test_what_was_left_out_is_listed(number: int, last: str, untried: list[str]) -> None:
    _, calls = ended_at(10**9, HoldOut(0.2))
    runs = [run for run, call in enumerate(calls, start=1) if call.phase.name == last]
    found, _ = ended_at(runs[number], HoldOut(0.2))
    assert found.untried == untried


@pytest.mark.usefixtures("without_shape_checks")
@OWN
@pytest.mark.slow_for("folds")
def test_adam(validation: Validation) -> None:
    """Its phases count up, and the final one is the last."""
    seen, given = History(), models(X, 2)
    found = searched(validation, models=given, monitors=[seen], optimizer="adam", max_steps=100)
    assert float((found.best.posterior.predict(X).mean - Y).square().mean()) < 0.7 * float(Y.var())
    *before, last = dict.fromkeys(record.phase for record in seen.records)
    assert all(i == phase.part < phase.parts for i, phase in enumerate(before, start=1))
    assert last.final and last.part == last.parts and not any(phase.final for phase in before)
    assert any("fold 2" in phase.name for phase in before) == isinstance(validation, Folds)
