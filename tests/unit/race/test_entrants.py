"""Trainers of a race, with real runs: what is trained on, judged, kept and learnt."""

import copy
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from directgp.errors import NumericalError
from directgp.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood, Poisson, Softmax
from directgp.objectives import CRPSLoss, LogLoss
from directgp.race import entrants
from directgp.race.candidates import Candidate
from directgp.race.entrants import Entrant, Trainers
from directgp.race.race import EFFORTS, Race
from directgp.race.starts import start_of
from directgp.training import trainer as trainer_module
from directgp.training.data import Data, Model
from directgp.training.result import Progress, Status, Stop, TrainingResult
from directgp.training.run import LossRange, Monitor, SmallGradient
from directgp.training.validation import Folds, Given, HoldOut, Split
from tests.unit.race.fake_runs import SmallModels, choices, some_of, trainers_of
from tests.unit.training.models import StopAt, counts, examples, normal, regression, tensors

NEVER = SmallGradient(0.0)
FIRST = choices(modes=("elbo", "joint"), betas=(4.0, 1.0, 0.25)).first()


def rows(n: int = 60) -> Data:
    """Two features, and a column of a stack."""
    X, y = regression(n)
    return Data(torch.cat([X, normal(n, 1, seed=9)], 1), y)


def begun(trainers: Trainers, candidate: Candidate = FIRST) -> Entrant:
    """A candidate in the state of the ELBO solution, whose next state is kept in any case."""
    base = trainers.base(candidate, candidate.likelihood)
    assert base is not None
    start = trainers.start(candidate, base)
    assert start is not None
    return replace(start, losses=start.losses + torch.inf)


def changed(trainers: Trainers, entrant: Entrant, **traits: Any) -> Entrant:
    found = trainers.changed(entrant, replace(entrant.candidate, **traits))
    assert found is not None
    return found


# Losses


def test_several_classes_have_no_rmse() -> None:
    """It would take the probabilities of all classes."""
    data = rows()
    labels = replace(data, y=torch.arange(len(data)).to(data.X) % 3)
    trainers = trainers_of(HoldOut(0.3), labels, {"softmax": Softmax(3)})
    base = trainers.base(replace(FIRST, likelihood="softmax"), "softmax")
    assert base is not None and trainers.rmse(base) is None


@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_folds_by_hand(weighted: bool) -> None:
    """−log N(y; μ, v + σ²) at each example, by the model of its fold."""
    data = rows()
    if weighted:
        data = replace(data, weights=normal(60, seed=4).abs())
    trainers = trainers_of(Folds(3), data)
    base = trainers.base(FIRST, "gaussian")
    assert base is not None
    losses, errors, weights = [], [], []
    for part, result in zip(trainers.splits[False], base.results, strict=True):
        q = result.posterior.predict(part.validation.X)
        assert isinstance(result.likelihood, Gaussian)
        deviation = (q.variance + result.likelihood.noise.detach()).sqrt()
        losses.append(-stats.norm.logpdf(part.validation.y, q.mean, deviation))
        errors.append(part.validation.y - q.mean)
        weights.append(np.ones(20) if part.validation.weights is None else part.validation.weights)
    share = np.concatenate(weights) / np.concatenate(weights).mean()
    np.testing.assert_allclose(base.losses, np.concatenate(losses), rtol=1e-9)
    np.testing.assert_allclose(base.weighted, share * np.concatenate(losses), rtol=1e-9)
    assert trainers.rmse(base) == pytest.approx(
        np.sqrt(np.mean(share * np.concatenate(errors) ** 2))
    )
    pool = trainers.pool([base])
    torch.testing.assert_close(
        pool.y, torch.cat([part.validation.y for part in trainers.splits[False]])
    )
    assert pool.mean(pool.best()) == pytest.approx(base.loss, rel=1e-12)


def test_forecasts_of_folds_are_in_the_order_of_the_losses() -> None:
    trainers = trainers_of(Folds(3), rows(), objective="square_loss")
    base = trainers.base(FIRST, "gaussian")
    assert base is not None and base.forecasts is not None
    pool = trainers.pool([base])
    torch.testing.assert_close(0.5 * (base.forecasts[0] - pool.y) ** 2, base.losses)


def test_a_fall_is_in_nats_for_every_loss() -> None:
    """That of ½ log of a loss that is not minus a log density."""
    logs, squares = trainers_of(data=rows()), trainers_of(data=rows(), objective="square_loss")
    assert logs.fall(3.0, 2.5) == 0.5 and logs.fall(2.5, 3.0) == -0.5
    assert squares.fall(1.001, 1.0) == pytest.approx(0.5 * np.log(1.001), rel=1e-3)
    assert squares.fall(1001.0, 1000.0) == pytest.approx(squares.fall(1.001, 1.0))
    assert squares.fall(1.0, 0.0) == torch.inf == squares.fall(torch.inf, 1.0)
    assert squares.fall(0.0, 0.0) == 0 and squares.fall(0.0, 1.0) == -torch.inf


# No example validates what it has trained


@pytest.mark.parametrize(
    ("validation", "stacked"),
    [(Folds(2), (True, False)), (HoldOut(0.25), (True,)), ("given", (False,))],
    ids=str,
)
def test_no_example_validates_what_it_has_trained(
    validation: Any, stacked: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exposures, weights and columns of a stack follow their rows: functions of the first one."""
    X, y, _ = counts()
    X = torch.cat([X, 2 * X[:, :1]], 1)
    data = Data(X, y, X[:, 0].exp())
    exposed = {"poisson": Poisson().with_exposure(X[:, 0].exp())}
    if validation == "given":
        validation = Given(-X[:, :-1], y, Poisson().with_exposure((-X[:, 0]).exp()))
    judged: list[tuple[Split, TrainingResult]] = []
    trained: dict[int, tuple[Data, Likelihood]] = {}
    whole_judged = Split.judged

    def noted(split: Split, result: TrainingResult, loss: Any) -> Any:
        judged.append((split, result))
        return whole_judged(split, result, loss)

    def joint_run(trainer: Any, recipe: Any, model: Model, beta: float) -> TrainingResult:
        result = trainer_module.joint_run(trainer, recipe, model, beta)
        trained[id(result.posterior)] = trainer.data, model.likelihood
        return result

    monkeypatch.setattr(Split, "judged", noted)
    monkeypatch.setattr(entrants, "joint_run", joint_run)
    settings = choices(
        likelihoods=("poisson",), stacked=stacked, kernels=("rbf", "matern32"), most_inducing=8
    )
    trainers = trainers_of(validation, data, exposed, stacked, max_steps=2)
    whole = trainers.splits
    trainers.splits = some_of(whole, 15)
    # No second turn pays.
    race = Race(trainers, settings, replace(EFFORTS["fast"], tolerance=10.0), "mixture")
    race.run()
    race.widen(dict(whole))
    race.run()
    assert {len(part.training) for part, _ in judged} >= {15, len(whole[stacked[0]][0].training)}
    assert trained
    for own, likelihood in trained.values():
        _check_rows(own, likelihood)
    compared = 0
    for part, result in judged:
        _check_rows(part.validation, part.validation_likelihood)
        assert not examples(part.training.X) & examples(part.validation.X)
        if id(result.posterior) in trained:
            compared += 1
            assert torch.equal(trained[id(result.posterior)][0].X, part.training.X)
    assert compared > 0


def _check_rows(data: Data, likelihood: Likelihood) -> None:
    first = data.X[:, 0]
    torch.testing.assert_close(dict(likelihood.named_buffers())["log_exposure"], first)
    if data.weights is not None:
        torch.testing.assert_close(data.weights, first.exp())
    if data.X.shape[1] == 3:
        torch.testing.assert_close(data.X[:, 2], 2 * first)


def test_the_same_rows_are_held_out_with_the_stack_and_without() -> None:
    trainers = trainers_of(Folds(3), rows(), stacked=(True, False))
    for with_stack, without in zip(*(trainers.splits[each] for each in (True, False)), strict=True):
        torch.testing.assert_close(with_stack.validation.X[:, :-1], without.validation.X)
        assert torch.equal(with_stack.training.y, without.training.y)


# What is kept


def test_a_state_with_a_higher_loss_is_not_kept() -> None:
    trainers = trainers_of(data=rows(), stopping=NEVER)
    (once,) = trainers.advanced([(begun(trainers), 5)])
    better = replace(once, losses=once.losses - 100)
    (same,) = trainers.advanced([(better, 5)])
    assert same.results == better.results and torch.equal(same.losses, better.losses)
    assert same.steps == 10 and same.rate == 0 and same.learnt == ()
    (further,) = trainers.advanced([(replace(once, losses=once.losses + 100), 5)])
    assert further.results != once.results and further.steps == 10
    taken = [stage.steps for stage in further.results[0].stages]
    assert taken[-2:] == [5, 5] and further.rate > 0


def test_steps_are_those_of_one_run_cut_in_parts() -> None:
    """With what L-BFGS has learnt; each split has its own."""
    parts = {}
    for keeps in (True, False):
        trainers = trainers_of(Folds(2), rows(), stopping=NEVER)
        entrant = begun(trainers)
        for _ in range(4):
            (entrant,) = trainers.advanced([(entrant, 10)])
            first, second = entrant.learnt
            assert first.curvature is not None and first.curvature is not second.curvature
            entrant = replace(entrant, losses=entrant.losses + torch.inf)
            entrant = entrant if keeps else replace(entrant, learnt=())
        parts[keeps] = entrant.results
    for learnt, anew in zip(parts[True], parts[False], strict=True):
        assert learnt.loss < anew.loss


def test_what_was_learnt_is_for_the_same_model_alone() -> None:
    trainers = trainers_of(data=rows(), stopping=NEVER)
    (entrant,) = trainers.advanced([(begun(trainers), 5)])
    assert entrant.learnt
    (ours,), (theirs,) = changed(trainers, entrant, beta=4.0).learnt, entrant.learnt
    # Copies: each run goes on with its own.
    assert ours.curvature is not None is not theirs.curvature
    assert ours.curvature is not theirs.curvature and ours.coordinates is not theirs.coordinates
    for traits in (
        {"num_inducing": 8},
        {"likelihood": "student_t"},
        {"mode": "elbo"},
        {"kernel": "matern32"},
    ):
        assert changed(trainers, entrant, **traits).learnt == ()


def test_a_neighbour_starts_where_the_candidate_is() -> None:
    trainers = trainers_of(Folds(2), rows(), stopping=NEVER)
    (entrant,) = trainers.advanced([(begun(trainers), 10)])
    X = trainers.models.data(False).X
    for traits in ({"beta": 4.0}, {"num_inducing": 8}):
        start = changed(trainers, entrant, **traits)
        for ours, theirs in zip(start.results, entrant.results, strict=True):
            found, expected = ours.posterior.predict(X), theirs.posterior.predict(X)
            torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.variance, expected.variance, rtol=1e-5, atol=1e-6)
        assert start.steps == 0
        assert start.results[0].posterior.num_inducing == traits.get("num_inducing", 4)
    other = changed(trainers, entrant, likelihood="student_t")
    assert type(other.results[0].likelihood).__name__ == "StudentT"
    before = tensors(entrant.results[0])
    assert torch.equal(tensors(other.results[0])["posterior.u_mean"], before["posterior.u_mean"])


def test_held_hyperparameters_stay_in_a_fixed_candidate() -> None:
    trainers = trainers_of(data=rows(), stopping=NEVER)
    (entrant,) = trainers.advanced([(begun(trainers, replace(FIRST, mode="fixed")), 10)])
    names = [name for name in tensors(entrant.results[0]) if "kernel" in name or "noise" in name]
    assert names
    for traits in ({}, {"beta": 4.0}, {"num_inducing": 8}):
        start = changed(trainers, entrant, **traits) if traits else entrant
        (after,) = trainers.advanced([(replace(start, losses=start.losses + torch.inf), 5)])
        assert after.steps > entrant.steps if not traits else after.steps > 0
        for name in names:
            value = tensors(after.results[0])[name]
            assert torch.equal(value, tensors(entrant.results[0])[name])


def test_a_model_that_cannot_be_computed_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = trainers_of(data=rows())
    entrant = begun(trainers)

    def fails(*args: Any) -> Any:
        raise NumericalError("There is no such model.")

    monkeypatch.setattr(entrants, "start_of", fails)
    assert trainers.start(FIRST, entrant) is None
    assert trainers.changed(entrant, replace(FIRST, likelihood="student_t")) is None
    assert [failure.reason for failure in trainers.failures] == 2 * ["There is no such model."]


# Recipes


@pytest.mark.parametrize(
    ("max_steps", "optimizer", "steps"),
    [(None, "lbfgs", 25), (10, "lbfgs", 10), (None, "adam", 500), (100, "adam", 10)],
)
def test_the_steps_of_a_run(max_steps: int | None, optimizer: Any, steps: int) -> None:
    """Adam takes a tenth of a whole run; each run has a stopping rule of its own."""
    rule = LossRange(5, 1e-3)
    trainers = trainers_of(data=rows(), max_steps=max_steps, optimizer=optimizer, stopping=rule)
    recipe = trainers._recipe_of(FIRST, 25)
    assert recipe.max_steps == steps
    assert recipe.stopping == rule and recipe.stopping is not rule


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("settings", [{}, {"rule": "bmc", "max_steps": 50}], ids=["exact", "bmc"])
def test_several_jobs_have_the_same_results(settings: dict[str, Any]) -> None:
    """A rule with samples draws from a generator of each run."""
    found = []
    for n_jobs in (1, 2):
        trainers = trainers_of(
            Folds(2), rows(), n_jobs=n_jobs, stopping=LossRange(4, 1e-3), **settings
        )
        first = begun(trainers)
        both = [first, replace(begun(trainers, replace(FIRST, beta=4.0)))]
        for _ in range(2):
            both = trainers.advanced([(each, 4) for each in both])
        found.append(both)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.losses, other.losses) and one.rate == other.rate
        for ours, theirs in zip(one.results, other.results, strict=True):
            expected = tensors(theirs)
            assert all(torch.equal(value, expected[k]) for k, value in tensors(ours).items())
    assert found[0][0].loss != found[0][1].loss


def test_runs_are_numbered_and_named() -> None:
    trainers = trainers_of(Folds(2), rows())
    data = trainers.models.data(False)
    phases = [trainers.trainer(data, "a run", k).phase for k in (0, 1)]
    assert [phase.name for phase in phases] == ["a run, fold 1", "a run, fold 2"]
    assert [phase.part for phase in phases] == [1, 2]
    assert all(phase.parts is None and not phase.final for phase in phases)


def test_a_base_is_trained_once() -> None:
    stop = StopAt(10**9)
    trainers = trainers_of(data=rows(), monitors=[stop])
    base = trainers.base(FIRST, "gaussian")
    seen = stop.seen
    again = trainers.base(replace(FIRST, likelihood="student_t", mode="elbo"), "gaussian")
    assert base is not None and base is again and stop.seen == seen > 0
    assert base.candidate.likelihood == "gaussian" and base.candidate.mode == "elbo"


@pytest.mark.parametrize("fold", [1, 2, 3])
def test_a_base_that_was_ended_is_none_and_its_last_state_is_kept(fold: int) -> None:
    """The race returns it if it has nothing better."""

    class After(StopAt):
        def reset(self) -> None:
            self.begun = getattr(self, "begun", 0) + 1
            self.left = 1 if self.begun == fold else 10**9

    trainers = trainers_of(Folds(3), rows(), monitors=[After(10**9)])
    assert trainers.base(FIRST, "gaussian") is None
    assert trainers.end is not None and trainers.end.status is Status.CANCELLED
    assert trainers.last is not None
    candidate, result = trainers.last
    assert candidate.mode == "elbo" and result.ended
    X = trainers.models.data(False).X
    assert result.posterior.predict(X).mean.isfinite().all()


# Starts


def solution(y: torch.Tensor, likelihood: Likelihood | None = None) -> tuple[TrainingResult, Data]:
    data = replace(rows(), y=y) if len(y) == 60 else rows()
    trainers = trainers_of(HoldOut(0.1), data)
    base = trainers.base(FIRST, "gaussian")
    assert base is not None
    return base.results[0], trainers.splits[False][0].training


def test_a_model_starts_with_the_mean_of_the_solution() -> None:
    data = rows()
    result, training = solution(data.y)
    mean = result.posterior.predict(training.X).mean
    models = SmallModels(data)
    for name in ("gaussian", "student_t"):
        model = models.model(replace(FIRST, likelihood=name))
        start = start_of(model, result, training)
        torch.testing.assert_close(start.posterior.predict(training.X).mean, mean)
        assert type(start.likelihood) is type(model.likelihood)


def test_the_first_of_more_latents_is_the_solution() -> None:
    data = rows()
    result, training = solution(data.y)
    model = SmallModels(data).model(replace(FIRST, likelihood="heteroscedastic"))
    start = start_of(model, result, training)
    assert isinstance(start.likelihood, HeteroscedasticGaussian)
    means = start.posterior.predict(training.X).mean
    expected = result.posterior.predict(training.X).mean
    torch.testing.assert_close(means[0], expected)
    # The second starts at a constant: about the log of the noise.
    assert float(means[1].std()) < 1e-6 * float(expected.std())


def test_a_solution_that_explains_nothing_is_left() -> None:
    y = normal(60, seed=77)
    result, training = solution(y)
    flat = copy.deepcopy(result)
    with torch.no_grad():
        flat.posterior.u_mean.zero_()
    model = SmallModels(replace(rows(), y=y)).model(replace(FIRST, likelihood="student_t"))
    start = start_of(model, flat, training)
    before = dict(model.posterior.named_parameters())
    assert all(
        torch.equal(value, before[name]) for name, value in start.posterior.named_parameters()
    )


def test_the_validation_loss_is_that_of_the_objective() -> None:
    assert trainers_of(data=rows()).in_nats
    crps = trainers_of(data=rows(), objective=CRPSLoss())
    assert not crps.in_nats
    base = crps.base(FIRST, "gaussian")
    assert base is not None and base.forecasts is not None
    part = crps.splits[False][0]
    judged = part.judged(base.results[0], CRPSLoss())
    assert torch.equal(base.losses, judged.losses)
    assert not torch.equal(base.losses, part.judged(base.results[0], LogLoss()).losses)


def test_seconds_count_from_the_start_of_the_fit() -> None:
    """A fit has trained the trees of its stack before."""
    seen: list[float] = []

    class Watch(Monitor):
        def __call__(self, progress: Progress) -> None:
            seen.append(progress.seconds)

    trainers = trainers_of(data=rows(), monitors=[Watch()])
    trainers.since -= 1000.0
    assert trainers.base(FIRST, "gaussian") is not None
    assert min(seen) >= 1000


# From several threads


def threads_of(monitors: list[Monitor]) -> tuple[Trainers, Monitor]:
    """Trainers of two runs at once, and their monitor."""
    trainers = trainers_of(data=rows(), n_jobs=2, monitors=monitors)
    (guarded,) = trainers.recipe.monitors
    return trainers, guarded


def progress(step: int) -> Progress:
    return Progress("elbo", step, 200, step, 0.0, 0.0, 0.0)


class Alone(Monitor):
    """Fails where two threads are in it at once."""

    def __init__(self) -> None:
        self.inside, self.seen, self.closed = threading.Lock(), 0, 0

    def __call__(self, progress: Progress) -> Stop | None:
        assert self.inside.acquire(blocking=False), "another thread is inside"
        time.sleep(0.005)
        self.seen += 1
        self.inside.release()
        return None

    def close(self) -> None:
        self.closed += 1


def test_monitors_are_called_one_at_a_time() -> None:
    alone, together = Alone(), threading.Barrier(2, timeout=20)
    trainers, guarded = threads_of([alone])

    def task() -> None:
        together.wait()
        assert [guarded(progress(step)) for step in range(1, 11)] == 10 * [None]

    trainers._run([task, task])
    guarded.close()
    assert alone.seen == 20 and alone.closed == 1


@pytest.mark.parametrize("monitors", [[], [Alone()]], ids=["no monitor", "a monitor"])
def test_ctrl_c_ends_every_run(monitors: list[Monitor]) -> None:
    """It reaches only the main thread, which waits for the others."""
    trainers, guarded = threads_of(monitors)
    statuses = []

    def task() -> None:
        until, stop = time.monotonic() + 20, None
        while stop is None and time.monotonic() < until:
            time.sleep(0.005)
            stop = guarded(progress(1))
        statuses.append(stop and stop.status)

    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    # Programs in the background of a shell are started with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        assert trainers._run([task, task, task]) == [None, None, None]
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert statuses == 3 * [Status.INTERRUPTED]
