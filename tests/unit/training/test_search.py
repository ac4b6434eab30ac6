"""A search: models by evidence, candidates on held-out examples, the chosen one on all."""

import copy
import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from directgp.errors import NumericalError
from directgp.likelihoods import Gaussian, Likelihood, Poisson, StudentT
from directgp.likelihoods.counts import CountLikelihood
from directgp.posteriors import SparsePosterior
from directgp.posteriors.prior import Prior
from directgp.training import search
from directgp.training.data import Data, Model
from directgp.training.result import Failure, Phase, Progress, TrainingResult
from directgp.training.run import Monitor, Recipe
from directgp.training.search import Search
from directgp.training.validation import Folds, Given, HoldOut, Validation
from tests.unit.training.fake_runs import FakeRuns
from tests.unit.training.models import StopAt, counts, regression, seeded

BETAS = [64.0, 16.0, 4.0, 1.0, 0.25, 0.0625]
ALL = ["elbo", "fixed", "joint"]
X, Y = regression()
HELD = torch.randperm(len(X), generator=seeded(5))

# Half of the time of a real run goes into the checks; those of a search run with fake runs.
REAL_RUNS = pytest.mark.usefixtures("without_shape_checks")


def model(X: Tensor, likelihood: Likelihood, name: str = "", ard: bool = False) -> Model:
    prior = Prior.from_data(X, None, kernel="rbf", ard=ard, mean="zero")
    return Model(SparsePosterior(prior, X[:6].clone()), likelihood, name)


def searched(
    validation: Validation,
    *,
    models: Sequence[Sequence[Model]] | None = None,
    betas: Sequence[float] = BETAS,
    modes: Sequence[str] = ALL,
    data: Data | None = None,
    **recipe: Any,
) -> Search:
    rows = models or [[model(X, Gaussian(0.1))]]
    how = Recipe(**{"max_steps": 15, **recipe})
    return Search(how, data or Data(X, Y), validation, seeded(5)).run(rows, betas, modes)


def log_losses(result: TrainingResult, X: Tensor, y: Tensor) -> np.ndarray:
    """−log N(y; μ, v + σ²), by scipy."""
    q = result.posterior.predict(X)
    assert isinstance(result.likelihood, Gaussian)
    deviation = (q.variance + result.likelihood.noise.detach()).sqrt()
    return np.asarray(-stats.norm.logpdf(y.numpy(), q.mean.numpy(), deviation.numpy()))


def expected_loss(result: TrainingResult, X: Tensor, y: Tensor) -> float:
    """Σ −E_q log p(y|f) by 80 Gauss–Hermite points a row."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    q = result.posterior.predict(X)
    f = q.mean + q.variance.sqrt() * torch.as_tensor(nodes)[:, None]
    with torch.no_grad():
        terms = result.likelihood.log_prob(y.expand_as(f), f)
    return -float((torch.as_tensor(weights / weights.sum())[:, None] * terms).sum())


def kl(result: TrainingResult) -> float:
    """KL of q(u) = N(L m, L S Sᵀ Lᵀ) from N(0, L Lᵀ), in whitened form, with numpy."""
    m = result.posterior.u_mean.detach().numpy()
    S = np.tril(result.posterior.u_chol.detach().numpy())
    log_det = 2 * np.log(np.abs(np.diag(S))).sum()
    return 0.5 * float((S**2).sum() + m @ m - len(m) - log_det)


class Watch(Monitor):
    """Keeps the phases that it is told of."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def __call__(self, progress: Progress) -> None:
        self.phases.append(progress.phase)

    def reset(self) -> None:
        pass


# Models


def rows_of(X: Tensor) -> list[list[Model]]:
    kinds: list[tuple[str, Any]] = [("gaussian", Gaussian), ("student", StudentT)]
    return [
        [model(X, kind(), f"{'ARD' if ard else 'one'}, {name}", ard) for name, kind in kinds]
        for ard in (False, True)
    ]


def heavy_tailed(n: int = 80) -> tuple[Tensor, Tensor]:
    """The second of two features of no use, and outliers."""
    X, y = regression(n, noise=0.1)
    return X, y + 0.2 * torch.as_tensor(stats.t.rvs(1.5, size=n, random_state=0))


@REAL_RUNS
def test_evidence_by_hand() -> None:
    """ELBO − ½ k log n; k counts length scales, the output scale, and the likelihood's own."""
    X, y = heavy_tailed()
    models = rows_of(X)
    found = searched(HoldOut(), models=models, data=Data(X, y), modes=["elbo"], max_steps=40)
    names = [solution.model.name for solution in found.solutions]
    parameters = {"one, gaussian": 3, "ARD, gaussian": 4, "one, student": 4, "ARD, student": 5}
    for solution in found.solutions:
        elbo = -expected_loss(solution.result, X, y) - kl(solution.result)
        by_hand = elbo - 0.5 * parameters[solution.model.name] * math.log(len(X))
        assert solution.evidence == pytest.approx(by_hand, rel=1e-5)
    assert names == ["one, gaussian", "ARD, gaussian", "ARD, student", "one, student"]
    assert not found.path.points and not found.trials


def test_kernel_then_likelihood_then_the_kernel_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known losses: a2, the best of all, is not looked at."""
    losses = {"a0": 3.0, "b0": 1.0, "c0": 2.0, "b1": 0.5, "b2": 0.9, "a1": 0.4, "c1": 0.7}
    rows = [[model(X, Gaussian(), f"{k}{i}") for i in range(3)] for k in "abc"]
    names = {id(each.posterior): each.name for row in rows for each in row}
    fake = FakeRuns().install(monkeypatch)
    ran = fake._elbo
    told: list[str] = []

    def elbo(trainer: Any, recipe: Any, model: Model, near: bool = False) -> TrainingResult:
        told.append(names[id(model.posterior)])
        fake.loss = lambda mode, beta: losses[told[-1]]
        result: TrainingResult = ran(trainer, recipe, model)
        return result

    monkeypatch.setattr(search, "elbo_run", elbo)
    found = searched(HoldOut(), models=rows, modes=["elbo"])
    assert told == ["a0", "b0", "c0", "b1", "b2", "a1", "c1"]
    assert found.best.loss == 0.4
    k = 3
    expected = [-len(X) * losses[name] - 0.5 * k * math.log(len(X)) for name in told]
    assert [each.evidence for each in found.solutions] == pytest.approx(expected)


@pytest.mark.parametrize(("gain", "winner"), [(0.04, "simple"), (0.05, "ARD")])
def test_a_parameter_more_has_to_pay(
    gain: float, winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """½ log 40 / 40 = 0.0461 of mean loss is what one more length scale costs."""
    rows = [[model(X, Gaussian(), "simple")], [model(X, Gaussian(), "ARD", ard=True)]]
    fake = FakeRuns().install(monkeypatch)

    def loss(mode: str, beta: float) -> float:
        return 1.0 - gain * (len(fake.calls) - 1)

    fake.loss = loss
    found = searched(HoldOut(), models=rows, modes=["elbo"])
    assert max(found.solutions, key=lambda each: each.evidence).model.name == winner
    assert found.best.posterior is dict(simple=rows[0], ARD=rows[1])[winner][0].posterior


def test_many_examples_models_by_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MANY_EXAMPLES", 39)
    monkeypatch.setattr(search, "_SOME_EXAMPLES", 15)
    fake = FakeRuns().install(monkeypatch)
    found = searched(HoldOut(), models=rows_of(X), modes=["elbo"])
    assert [len(call.data) for call in fake.calls] == [15, 15, 15, 40]
    part = fake.calls[0].data.X
    assert all(torch.equal(call.data.X, part) for call in fake.calls[1:3])
    assert not torch.equal(part, X[:15])
    assert len({tuple(row) for row in part.tolist()} & {tuple(row) for row in X.tolist()}) == 15
    assert found.solutions[0].evidence == pytest.approx(-1.5 * math.log(40))
    assert torch.equal(fake.calls[-1].data.X, X)


@REAL_RUNS
def test_many_examples_the_model_is_trained_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MANY_EXAMPLES", 39)
    monkeypatch.setattr(search, "_SOME_EXAMPLES", 15)
    found = searched(HoldOut(), models=rows_of(X), modes=["elbo"])
    by_hand = (expected_loss(found.best, X, Y) + kl(found.best)) / len(X)
    assert found.best.loss == pytest.approx(by_hand, rel=1e-6)


def test_one_model_needs_no_choice_however_many_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MANY_EXAMPLES", 39)
    fake = FakeRuns().install(monkeypatch)
    searched(HoldOut(), modes=["elbo"])
    assert [len(call.data) for call in fake.calls] == [40]


# Candidates


def held_out(validation: Validation) -> tuple[Tensor, Tensor]:
    """The validation examples in the order in which losses come."""
    if isinstance(validation, Given):
        return validation.X, validation.y
    held = HELD if isinstance(validation, Folds) else HELD[:8]
    return X[held], Y[held]


def parts_of(validation: Validation) -> list[slice]:
    if isinstance(validation, Folds):
        return [slice(0, 14), slice(14, 27), slice(27, 40)]
    return [slice(None)]


@REAL_RUNS
@pytest.mark.parametrize("mode", ["fixed", "joint"])
@pytest.mark.parametrize(
    "validation",
    [HoldOut(0.2), Folds(3), Given(*regression(10, seed=7))],
    ids=lambda each: type(each).__name__,
)
def test_losses_by_hand_and_the_chosen_one_on_all(validation: Validation, mode: str) -> None:
    found = searched(validation, betas=[4.0, 1.0], modes=[mode], max_steps=8)
    there, targets = held_out(validation)
    for candidate in found.trials:
        losses = [
            log_losses(result, there[part], targets[part])
            for result, part in zip(candidate.results, parts_of(validation), strict=True)
        ]
        np.testing.assert_allclose(candidate.losses, np.concatenate(losses), rtol=1e-9)
    chosen = found.trials[found.path.chosen]
    means = [float(candidate.losses.mean()) for candidate in found.trials]
    assert found.path.chosen == int(np.argmin(means))
    assert (found.best.hyperparameters, found.best.beta) == (mode, chosen.beta)
    if isinstance(validation, Given):
        assert found.best is chosen.results[0]
    by_hand = log_losses(found.best, X, Y).sum() + chosen.beta * kl(found.best)
    assert found.best.loss == pytest.approx(by_hand / len(X), rel=1e-6)


def test_no_example_validates_what_it_has_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns().install(monkeypatch)
    searched(Folds(3), modes=["joint"])
    rows = {tuple(row) for row in X.tolist()}
    for split in fake.judged[:3]:
        training = {tuple(row) for row in split.training.X.tolist()}
        validation = {tuple(row) for row in split.validation.X.tolist()}
        assert training | validation == rows and not training & validation


@REAL_RUNS
def test_fixed_holds_the_hyperparameters_of_the_elbo() -> None:
    found = searched(HoldOut(0.2), betas=[4.0, 1.0], modes=["fixed"])
    ours = dict(found.best.posterior.named_parameters())
    for name, held in found.solutions[0].result.posterior.named_parameters():
        assert torch.equal(ours[name], held) == (not name.startswith("u_")), name


@REAL_RUNS
def test_weights_count_in_losses() -> None:
    weights = torch.arange(40.0).double() % 3
    data = Data(X, Y, weights)
    found = searched(HoldOut(0.2), betas=[4.0, 1.0], modes=["joint"], data=data)
    candidate = found.trials[0]
    plain = log_losses(candidate.results[0], X[HELD[:8]], Y[HELD[:8]])
    relative = (weights[HELD[:8]] / weights[HELD[:8]].mean()).numpy()
    np.testing.assert_allclose(candidate.losses, relative * plain, rtol=1e-9)


def test_the_safest_that_cannot_be_told_from_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses that differ by the same in each example have no error: the best is told."""
    table = {"elbo": 1.0, "fixed": 0.9, "joint": 0.8}
    FakeRuns(lambda mode, beta: table[mode]).install(monkeypatch)
    assert searched(HoldOut(), betas=[1.0]).best.hyperparameters == "joint"
    FakeRuns(lambda mode, beta: 1.0).install(monkeypatch)
    assert searched(HoldOut(), betas=[1.0]).best.hyperparameters == "elbo"


@REAL_RUNS
@pytest.mark.parametrize("mode", ["fixed", "joint"])
def test_one_candidate_needs_no_validation(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(HoldOut(0.2), models=rows_of(X), betas=[0.25], modes=[mode])
    assert not found.trials and not found.path.points and len(found.solutions) >= 3
    assert (found.best.hyperparameters, found.best.beta) == (mode, 0.25)
    by_hand = log_losses(found.best, X, Y).sum() + 0.25 * kl(found.best)
    assert found.best.loss == pytest.approx(by_hand / len(X), rel=1e-6)
    fake = FakeRuns().install(monkeypatch)
    searched(HoldOut(0.2), betas=[0.25], modes=[mode])
    assert [len(call.data) for call in fake.calls] == [40, 40]


# The way outwards


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
def test_the_way_outwards_ends_at_the_first_loss_that_is_no_lower(
    losses: list[float], asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = dict(zip(BETAS, map(float, losses), strict=True))
    fake = FakeRuns(lambda mode, beta: 9.0 if mode == "elbo" else table[beta]).install(monkeypatch)
    found = searched(HoldOut(), modes=["joint"])
    assert fake.asked("joint")[:-1] == asked, "the last is on all examples"
    assert [candidate.beta for candidate in found.trials] == sorted(asked, reverse=True)
    # Of equal ones the most regularised.
    least = min(
        sorted(asked, reverse=True),
        key=lambda beta: math.inf if math.isnan(table[beta]) else table[beta],
    )
    assert found.best.beta == least == fake.asked("joint")[-1]


def test_both_modes_have_a_way_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slope = {"fixed": 1.0, "joint": -1.0, "elbo": 100.0}
    fake = FakeRuns(lambda mode, beta: slope[mode] * beta).install(monkeypatch)
    found = searched(Given(X, Y))
    assert fake.asked("fixed") == [1.0, 4.0, 0.25, 0.0625]
    assert fake.asked("joint") == [1.0, 4.0, 16.0, 64.0, 0.25]
    modes = [candidate.hyperparameters for candidate in found.trials]
    assert modes == ["elbo"] + 4 * ["fixed"] + 5 * ["joint"]
    assert (found.best.hyperparameters, found.best.beta) == ("joint", 64.0)


def test_neighbours_get_a_tenth_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda mode, beta: beta).install(monkeypatch)
    searched(HoldOut(), modes=["fixed"], max_steps=50)
    assert [call.recipe.max_steps for call in fake.calls if call.mode == "fixed"] == [
        *(50, 5, 5, 5),
        50,
    ]


# Exposures


def test_exposures_follow_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log exposure is the first feature, so that a row that lost its own is seen."""
    monkeypatch.setattr(search, "_MANY_EXAMPLES", 39)
    monkeypatch.setattr(search, "_SOME_EXAMPLES", 15)
    X, y, _ = counts()
    likelihood = Poisson().with_exposure(X[:, 0].exp())
    rows = [[model(X, likelihood, "one")], [model(X, copy.deepcopy(likelihood), "ARD", ard=True)]]
    for validation in (
        HoldOut(0.2),
        Folds(3),
        Given(-X, y, Poisson().with_exposure((-X[:, 0]).exp())),
    ):
        with monkeypatch.context() as patch:
            fake = FakeRuns(lambda mode, beta: beta).install(patch)
            searched(validation, models=rows, data=Data(X, y))
        assert {len(call.data) for call in fake.calls} >= {15, 40}
        for call in fake.calls:
            assert isinstance(call.likelihood, CountLikelihood)
            torch.testing.assert_close(call.likelihood.log_exposure, call.data.X[:, 0])
        for split in fake.judged:
            assert isinstance(split.validation_likelihood, CountLikelihood)
            there = split.validation_likelihood.log_exposure
            torch.testing.assert_close(there, split.validation.X[:, 0])


@REAL_RUNS
def test_counts_are_judged_with_their_exposures() -> None:
    X, y, exposure = counts()
    rows = [[model(X, Poisson().with_exposure(exposure))]]
    found = searched(HoldOut(0.2), models=rows, data=Data(X, y), betas=[4.0, 1.0], modes=["joint"])
    held = HELD[:8]
    q = found.trials[0].results[0].posterior.predict(X[held])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    f = q.mean.numpy() + q.variance.sqrt().numpy() * nodes[:, None]
    chances = stats.poisson.pmf(y[held].numpy(), exposure[held].numpy() * np.exp(f))
    by_hand = -np.log(weights @ chances / weights.sum())
    np.testing.assert_allclose(found.trials[0].losses, by_hand, rtol=1e-6)


# Failures


def test_a_candidate_that_fails_is_told_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = {("joint", 1.0), ("fixed", 4.0)}
    fake = FakeRuns(lambda mode, beta: beta, failing).install(monkeypatch)
    found = searched(Folds(3))
    assert found.path.failed == (
        Failure(4.0, "fixed", "fixed at 4 cannot be trained."),
        Failure(1.0, "joint", "joint at 1 cannot be trained."),
    )
    kept = [(each.hyperparameters, each.beta) for each in found.trials]
    assert not failing & set(kept) and ("fixed", 1.0) in kept and ("joint", 0.25) in kept
    assert fake.asked("joint").count(1.0) == 1, "the folds that come after are not tried"


def test_where_the_middle_fails_its_neighbours_start_from_the_elbo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRuns(lambda mode, beta: beta, {("fixed", 1.0)}).install(monkeypatch)
    searched(HoldOut(), modes=["fixed"], max_steps=50)
    steps = {call.beta: call.recipe.max_steps for call in reversed(fake.calls)}
    assert (steps[4.0], steps[0.25], steps[0.0625]) == (50, 50, 5)


def test_a_model_that_fails_is_told_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(X)
    fake = FakeRuns().install(monkeypatch)
    ran = fake._elbo

    def elbo(trainer: Any, recipe: Any, model: Model, near: bool = False) -> TrainingResult:
        if model.posterior is rows[0][0].posterior:
            raise NumericalError("Not this one.")
        result: TrainingResult = ran(trainer, recipe, model)
        return result

    monkeypatch.setattr(search, "elbo_run", elbo)
    found = searched(HoldOut(), models=rows, modes=["elbo"])
    assert [solution.model.name for solution in found.solutions] == [
        "ARD, gaussian",
        "ARD, student",
    ]
    assert found.path.failed == (Failure(1.0, "elbo, one, gaussian", "Not this one."),)


def test_if_all_models_fail_so_does_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRuns(failing={("elbo", 1.0)}).install(monkeypatch)
    with pytest.raises(NumericalError, match="elbo at 1 cannot be trained"):
        searched(HoldOut(), models=rows_of(X))


def test_if_all_candidates_fail_the_elbo_solution_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = set(itertools.product(("fixed", "joint"), BETAS))
    FakeRuns(failing=failing).install(monkeypatch)
    assert searched(HoldOut(), modes=["fixed"]).best.hyperparameters == "elbo"
    found = searched(HoldOut())
    assert found.best is found.solutions[0].result
    assert len(found.path.failed) == 2 * 3, "one and its two neighbours in each mode"


def test_if_the_run_on_all_examples_fails_the_candidate_remains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRuns(lambda mode, beta: float(mode == "elbo")).install(monkeypatch)
    ran = fake._joint

    def joint(trainer: Any, *rest: Any) -> TrainingResult:
        if len(trainer.data) == len(X):
            raise NumericalError("Not on all.")
        result: TrainingResult = ran(trainer, *rest)
        return result

    monkeypatch.setattr(search, "joint_run", joint)
    found = searched(HoldOut(), betas=[1.0], modes=["elbo", "joint"])
    assert found.best is found.trials[1].results[0]
    assert found.path.failed == (Failure(1.0, "all examples", "Not on all."),)


# Ends from outside


def until(stop: StopAt, validation: Validation) -> Search:
    """A search of two models and four candidates, with a run on all examples at the end."""
    rows = [[row[0]] for row in rows_of(X)]
    settings: dict[str, Any] = {"models": rows, "betas": [4.0, 1.0], "max_steps": 3}
    return searched(validation, modes=["fixed", "joint"], monitors=[stop], **settings)


@cache
def steps_in_all(validation: Validation) -> int:
    watch = StopAt(10**9)
    found = until(watch, validation)
    assert found.end is None and found.best.hyperparameters != "elbo"
    return watch.seen


@REAL_RUNS
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=["held out", "folds"])
def test_a_search_that_was_ended_anywhere_has_a_model(validation: Validation, share: float) -> None:
    steps = max(1, int(share * steps_in_all(validation)) - 1)
    stop = StopAt(steps)
    found = until(stop, validation)
    assert found.end is not None and found.end.reason == "Enough."
    assert stop.seen == steps and stop.closed == 1
    q = found.best.posterior.predict(X)
    assert bool(q.mean.isfinite().all()) and bool((q.variance > 0).all())


def test_ended_the_elbo_solution_of_all_examples_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of a part of them, which is there only to be compared."""
    table = {"elbo": 0.0, "fixed": 1.0, "joint": 1.0}
    fake = FakeRuns(lambda mode, beta: table[mode], ending={("fixed", 1.0)}).install(monkeypatch)
    found = searched(HoldOut())
    assert found.end is not None and fake.asked("fixed") == [1.0] and not fake.asked("joint")
    assert found.best is found.solutions[0].result


def test_ended_in_a_fold_the_candidate_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"elbo": 1.0, "fixed": 0.0}
    FakeRuns(lambda mode, beta: table[mode], ending={("fixed", 1.0)}).install(monkeypatch)
    found = searched(Folds(3))
    assert [each.hyperparameters for each in found.trials] == ["elbo"]
    assert found.best is found.solutions[0].result


# What monitors are told


@REAL_RUNS
@pytest.mark.parametrize(
    ("validation", "optimizer"),
    [
        (HoldOut(0.2), "lbfgs"),
        (Given(*regression(10, seed=7)), "lbfgs"),
        (Folds(3), "lbfgs"),
        (Folds(3), "adam"),
    ],
)
def test_parts_are_counted_from_one_to_all_of_them(validation: Validation, optimizer: str) -> None:
    watch = Watch()
    betas = [4.0, 1.0, 0.25]
    settings: dict[str, Any] = {"max_steps": 1, "optimizer": optimizer, "monitors": [watch]}
    searched(validation, models=rows_of(X), betas=betas, **settings)
    parts = [phase.part for phase in watch.phases]
    assert parts[0] == 1 and parts == sorted(parts)
    assert all(phase.part <= phase.parts for phase in watch.phases)
    totals = [phase.parts for phase in watch.phases]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] == 4 + len(parts_of(validation)) * (1 + 2 * len(betas)) + 1
    names = [name for name, _ in itertools.groupby(phase.name for phase in watch.phases)]
    assert names[:3] == ["ELBO, one, gaussian", "ELBO, ARD, gaussian", names[2]]
    assert any("fold 3" in name for name in names) == isinstance(validation, Folds)


@REAL_RUNS
@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=["held out", "folds"])
def test_the_last_part_has_the_number_of_parts(validation: Validation, optimizer: str) -> None:
    """Also where the way outwards ends early, and where a kernel need not be tried again."""
    watch = Watch()
    settings: dict[str, Any] = {"max_steps": 2, "optimizer": optimizer, "monitors": [watch]}
    rows = [[row[0]] for row in rows_of(X)]
    searched(validation, models=rows, betas=[16.0, 4.0, 1.0], modes=["joint"], **settings)
    assert watch.phases[-1].name == "all examples"
    assert all(phase.final == (phase.name == "all examples") for phase in watch.phases)
    assert watch.phases[-1].part == watch.phases[-1].parts


@REAL_RUNS
def test_a_single_candidate_is_the_final_run() -> None:
    watch, rows = Watch(), [[row[0]] for row in rows_of(X)]
    searched(HoldOut(), models=rows, betas=[1.0], modes=["joint"], max_steps=1, monitors=[watch])
    assert [phase.final for phase in watch.phases] == [False, False, True]
    assert watch.phases[-1].name == "log_loss, joint, all examples"


# Batches of models


def test_adam_trains_every_beta_at_once() -> None:
    found = searched(Folds(2), betas=[4.0, 1.0, 0.25], optimizer="adam", max_steps=10)
    kinds = [(each.hyperparameters, each.beta) for each in found.trials]
    grid = [4.0, 1.0, 0.25]
    assert kinds == [("elbo", 1.0), *(("fixed", b) for b in grid), *(("joint", b) for b in grid)]
    for candidate in found.trials:
        losses = [
            log_losses(result, X[held], Y[held])
            for result, held in zip(candidate.results, HELD.tensor_split(2), strict=True)
        ]
        np.testing.assert_allclose(candidate.losses, np.concatenate(losses), rtol=1e-9)
    means = {float(candidate.losses.mean()) for candidate in found.trials}
    assert len(means) == 7, "each has been trained on its own"
    assert found.best.posterior.u_mean.shape == (6,)


def test_a_batch_that_fails_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_grid(trainer: Any, recipe: Any, *rest: Any) -> list[TrainingResult]:
        mode = "fixed" if rest[-1] else "joint"
        trainer.failures += [Failure(beta, mode, "No.") for beta in rest[1]]
        return []

    monkeypatch.setattr(search, "train_grid", train_grid)
    found = searched(HoldOut(0.2), betas=[4.0, 1.0], optimizer="adam", max_steps=3)
    told = [(failure.hyperparameters, failure.beta) for failure in found.path.failed]
    assert told == [("fixed", 4.0), ("fixed", 1.0), ("joint", 4.0), ("joint", 1.0)]
    assert found.best is found.solutions[0].result


@REAL_RUNS
def test_the_models_of_a_search_are_not_changed() -> None:
    given = model(X, Gaussian(0.1))
    kept = copy.deepcopy((given.posterior.state_dict(), given.likelihood.state_dict()))
    searched(HoldOut(0.2), models=[[given]], betas=[1.0])
    for before, after in zip(kept, (given.posterior, given.likelihood), strict=True):
        assert all(torch.equal(before[name], value) for name, value in after.state_dict().items())


@REAL_RUNS
def test_one_seed_has_one_result() -> None:
    first, second = (searched(HoldOut(0.2), betas=[4.0, 1.0]) for _ in range(2))
    assert torch.equal(first.best.posterior.u_mean, second.best.posterior.u_mean)
    for one, other in zip(first.trials, second.trials, strict=True):
        assert torch.equal(one.losses, other.losses)
