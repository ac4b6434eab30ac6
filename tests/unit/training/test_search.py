"""A search: kernel, likelihood, mode, β and number of inducing inputs, then all examples."""

import copy
import math
from collections.abc import Callable, Sequence
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
from directgp.registry import KernelName
from directgp.training.data import Data, Model
from directgp.training.race import EFFORTS, Effort, Trial
from directgp.training.result import Failure, Phase, Progress, Status, TrainingResult
from directgp.training.run import Monitor, Recipe, RelativeDecrease, SmallGradient
from directgp.training.search import Reached, Search
from directgp.training.validation import Folds, Given, HoldOut, Validation
from tests.unit.training.fake_runs import Call, FakeRuns, State
from tests.unit.training.models import StopAt, counts, regression, seeded, tensors

BETAS = [64.0, 16.0, 4.0, 1.0, 0.25, 0.0625]
ALL = ["elbo", "fixed", "joint"]
NONE_IS_BEATEN = {"fixed": 1e3, "joint": -1e3}
"""Losses whose differences between modes have large errors."""

X, Y = regression()
ELSEWHERE = Given(*regression(10, seed=7))
KERNELS: list[tuple[str, KernelName, bool]] = [
    ("rbf", "rbf", False),
    ("rbf ARD", "rbf", True),
    ("matern", "matern32", False),
    ("matern ARD", "matern32", True),
]

# Half of the time of a real run goes into the checks; those of a search run with fake runs.
REAL_RUNS = pytest.mark.usefixtures("without_shape_checks")


def model(
    likelihood: Likelihood,
    name: str = "",
    kernel: KernelName = "rbf",
    ard: bool = False,
    X: Tensor = X,
) -> Model:
    prior = Prior.from_data(X, None, kernel=kernel, ard=ard, mean="zero")
    return Model(SparsePosterior(prior, X[:6].clone()), likelihood, name)


def rows(number: int = 4, X: Tensor = X) -> list[list[Model]]:
    """Kernels, each with a Gaussian and a Student-t likelihood."""
    kinds: list[tuple[str, Callable[[], Likelihood]]] = [
        ("gaussian", Gaussian),
        ("studentt", StudentT),
    ]
    return [
        [model(kind(), f"{name}, {likelihood}", kernel, ard, X) for likelihood, kind in kinds]
        for name, kernel, ard in KERNELS[:number]
    ]


def searched(
    validation: Validation,
    *,
    models: Sequence[Sequence[Model]] | None = None,
    betas: Sequence[float] = BETAS,
    modes: Sequence[str] = ALL,
    data: Data | None = None,
    effort: Effort | None = None,
    grows: bool = False,
    n_jobs: int = 1,
    **recipe: Any,
) -> Search:
    search = Search(
        Recipe(**recipe),
        data or Data(X, Y),
        validation,
        seeded(5),
        effort or EFFORTS["default"],
        n_jobs,
        grows,
    )
    return search.run(models or [[model(Gaussian(0.1))]], betas, modes)


def expected_loss(result: TrainingResult, X: Tensor, y: Tensor) -> float:
    """Σ −E_q log p(y|f) by 80 Gauss–Hermite points a row."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    q = result.posterior.predict(X)
    f = q.mean + q.variance.sqrt() * torch.as_tensor(nodes)[:, None]
    with torch.no_grad():
        terms = result.likelihood.log_prob(y.expand_as(f), f)
    return -float((torch.as_tensor(weights / weights.sum())[:, None] * terms).sum())


def log_losses(result: TrainingResult, X: Tensor, y: Tensor) -> np.ndarray:
    """−log N(y; μ, v + σ²), by scipy."""
    q = result.posterior.predict(X)
    assert isinstance(result.likelihood, Gaussian)
    deviation = (q.variance + result.likelihood.noise.detach()).sqrt()
    return np.asarray(-stats.norm.logpdf(y.numpy(), q.mean.numpy(), deviation.numpy()))


def kl(result: TrainingResult) -> float:
    """KL of q(u) = N(L m, L S Sᵀ Lᵀ) from N(0, L Lᵀ), in whitened form, with numpy."""
    m = result.posterior.u_mean.detach().numpy()
    S = np.tril(result.posterior.u_chol.detach().numpy())
    log_det = 2 * np.log(np.abs(np.diag(S))).sum()
    return 0.5 * float((S**2).sum() + m @ m - len(m) - log_det)


def examples(X: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in X.tolist()}


class Watch(Monitor):
    """Keeps the phases that it is told of."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def __call__(self, progress: Progress) -> None:
        self.phases.append(progress.phase)


# Models


def by_model(**losses: float) -> Callable[[State], float]:
    """Validation losses of joint runs; words of a name are joined by one underline."""
    table = {name.replace("__", ", ").replace("_", " "): loss for name, loss in losses.items()}
    return lambda state: 9.0 if state.mode == "elbo" else table.get(state.model, 5.0)


@pytest.mark.parametrize(
    ("losses", "tried", "chosen"),
    [
        (
            {"rbf_ARD__gaussian": 3, "matern_ARD__gaussian": 2, "matern__gaussian": 0},
            ["rbf ARD", "matern ARD"],
            "matern ARD, gaussian",
        ),
        (
            {"rbf__gaussian": 3, "rbf_ARD__gaussian": 4, "matern_ARD__gaussian": 0},
            ["rbf ARD", "matern"],
            "rbf, gaussian",
        ),
        ({}, ["rbf ARD", "matern"], "rbf, studentt"),
        ({"rbf__studentt": 1}, ["rbf ARD", "matern"], "rbf, studentt"),
        ({"rbf__gaussian": 4.9}, ["rbf ARD", "matern"], "rbf, gaussian"),
    ],
    ids=["ARD", "one lengthscale", "all alike", "heavy tails", "light tails"],
)
def test_ard_then_kernel_then_likelihood_by_validation(
    losses: dict[str, float],
    tried: list[str],
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of models that are alike the first kernel and the last likelihood."""
    fake = FakeRuns(by_model(**losses)).install(monkeypatch)
    searched(HoldOut(0.2), models=rows(), betas=[2.0, 1.0], modes=["joint"])
    kernel = chosen.split(",")[0]
    expected = [
        (mode, f"{name}, gaussian") for name in ["rbf", *tried] for mode in ("elbo", "joint")
    ]
    # The second likelihood starts from the solution with the first one.
    expected.append(("joint", f"{kernel}, studentt"))
    calls = [(call.mode, call.model) for call in fake.calls]
    assert calls[:7] == expected
    assert calls[7] == ("elbo", f"{kernel}, gaussian")
    assert {name for mode, name in calls[8:] if mode == "joint"} == {chosen}


def test_models_have_few_steps_and_few_inducing_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = regression(200)
    models = rows(2, X)
    models = [
        [each._replace(posterior=SparsePosterior(each.posterior.prior, X[:120])) for each in row]
        for row in models
    ]
    effort = Effort(rows_for_models=60, rows_for_candidates=1000)
    fake = FakeRuns().install(monkeypatch)
    searched(HoldOut(0.2), models=models, data=Data(X, y), effort=effort, modes=["joint"])
    for call in fake.calls[:5]:
        assert (call.num_inducing, len(call.data), call.recipe.max_steps) == (40, 60, 25)
    assert (fake.calls[5].num_inducing, len(fake.calls[5].data)) == (120, 160)
    part = fake.calls[0].data.X
    assert all(torch.equal(call.data.X, part) for call in fake.calls[1:5])
    assert all(split.validation.X.shape == (40, 2) for split in fake.judged)


def test_by_evidence_with_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On all examples, and without joint runs."""
    objectives = {"rbf, gaussian": 3.0, "rbf ARD, gaussian": 2.0, "matern ARD, gaussian": 1.0}
    objectives |= {"matern ARD, studentt": 0.5, "matern, gaussian": 0.0}
    fake = FakeRuns(objective=lambda call: objectives[call.model]).install(monkeypatch)
    found = searched(Folds(2), models=rows(), betas=[2.0, 1.0], modes=["joint"])
    first = fake.calls[:4]
    assert [call.mode for call in first] == 4 * ["elbo"]
    assert [call.model for call in first] == [*objectives][:4]
    assert all(torch.equal(call.data.X, X) for call in first)
    k = {"rbf, gaussian": 3, "rbf ARD, gaussian": 4, "matern ARD, gaussian": 4}
    k["matern ARD, studentt"] = 5
    by_hand = {n: -40 * objectives[n] - 0.5 * number * math.log(40) for n, number in k.items()}
    assert {each.name: each.evidence for each in found.path.models} == pytest.approx(by_hand)
    assert fake.calls[-1].model == "matern ARD, studentt"


@pytest.mark.parametrize("modes", [["elbo"], ["joint", "fixed"]], ids=["elbo", "folds"])
@pytest.mark.parametrize(("gain", "winner"), [(0.04, "rbf"), (0.05, "rbf ARD")])
def test_a_parameter_more_has_to_pay(
    gain: float, winner: str, modes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """½ log 40 / 40 = 0.0461 of mean loss is what one more length scale costs."""
    fake = FakeRuns(objective=lambda call: 1 - gain * ("ARD" in call.model)).install(monkeypatch)
    models = [[row[0]] for row in rows(2)]
    searched(Folds(2), models=models, modes=modes)
    assert fake.calls[-1].model == f"{winner}, gaussian"


@REAL_RUNS
@pytest.mark.parametrize(
    ("kernel", "likelihood", "number"), [(0, 0, 3), (1, 0, 4), (0, 1, 4), (1, 1, 5)]
)
def test_evidence_by_hand(kernel: int, likelihood: int, number: int) -> None:
    """ELBO − ½ k log Σw, k the lengthscales, the output scale and those of the likelihood."""
    X, y = regression(80, noise=0.1)
    weights = 1 + (torch.arange(80) % 2).double()
    # Ended, so that the model is the one with this evidence.
    settings: dict[str, Any] = {"modes": ["elbo"], "monitors": [StopAt(8)]}
    models = [[rows(2, X)[kernel][likelihood]]]
    found = searched(HoldOut(), models=models, data=Data(X, y, weights), **settings)
    (tried,) = found.path.models
    assert tried.name == models[0][0].name and not found.path.points
    twice = torch.cat([X, X[weights > 1]]), torch.cat([y, y[weights > 1]])
    elbo = -expected_loss(found.best, *twice) - kl(found.best)
    assert tried.evidence == pytest.approx(elbo - 0.5 * number * math.log(120), rel=1e-6)


def test_no_evidence_where_the_objective_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(objective=lambda call: 1.0 if "ARD" in call.model else math.nan)
    fake.install(monkeypatch)
    searched(HoldOut(), models=rows(2), modes=["elbo"])
    assert fake.calls[-1].model.startswith("rbf ARD")


@pytest.mark.parametrize("mode", ["elbo", "fixed", "joint"])
def test_one_candidate_is_trained_on_all_examples(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(objective=lambda call: 2.0).install(monkeypatch)
    effort, data = Effort(rows_for_candidates=15), Data(X, Y)
    found = searched(HoldOut(), models=rows(2), betas=[0.25], modes=[mode], effort=effort)
    *models, elbo, last = fake.calls if mode != "elbo" else [*fake.calls, fake.calls[-1]]
    assert [len(call.data) for call in models] == 3 * [15]
    assert [call.recipe.max_steps for call in models] == 3 * [100]
    assert elbo.mode == "elbo" and elbo.data == data and elbo.recipe.max_steps is None
    assert last.mode == mode and last.data == data and last.phase.final
    assert (found.best.hyperparameters, found.best.beta) == (mode, 1.0 if mode == "elbo" else 0.25)
    assert not found.trials and not fake.judged
    # Of 15 examples, as that of 40.
    assert found.path.models[0].evidence == pytest.approx(-80 - 1.5 * math.log(40))


# β


def order(fake: FakeRuns, mode: str) -> list[float]:
    """The values of β of a mode, in the order in which they were first trained."""
    return list(dict.fromkeys(call.beta for call in fake.of(mode)))


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
    losses: list[float], asked: list[float], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = dict(zip(BETAS, map(float, losses), strict=True))
    fake = FakeRuns(lambda state: 9.0 if state.mode == "elbo" else table[state.beta])
    found = searched_with(fake, monkeypatch, ELSEWHERE, modes=[mode])
    assert order(fake, mode) == asked
    kept = [beta for beta in sorted(asked, reverse=True) if not math.isnan(table[beta])]
    assert [trial.beta for trial in found.trials] == kept
    assert [point.beta for point in found.path.points] == kept
    # Of equal ones the most regularised.
    best = min(kept, key=lambda beta: table[beta])
    assert found.trials[found.path.chosen].beta == best == found.best.beta
    assert found.path.points[found.path.chosen].validation_loss == table[best]


def searched_with(
    fake: FakeRuns, monkeypatch: pytest.MonkeyPatch, validation: Validation, **settings: Any
) -> Search:
    with monkeypatch.context() as patch:
        fake.install(patch)
        return searched(validation, **settings)


@pytest.mark.parametrize(("gain", "asked"), [(1e-3, [1.0, 4.0, 16.0]), (-1e-3, [1.0, 4.0])])
def test_another_beta_has_to_pay_beyond_what_more_steps_would(
    gain: float, asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All losses fall by 0.001 a step; a neighbour starts from the steps taken."""

    def loss(state: State) -> float:
        steps = state.steps if state.mode == "joint" else 0
        return 9 - 1e-3 * steps - (gain if state.beta == 4 else 0.0)

    fake = FakeRuns(loss)
    searched_with(fake, monkeypatch, ELSEWHERE, betas=[16.0, 4.0, 1.0], modes=["joint"])
    assert order(fake, "joint") == asked
    assert fake.steps("joint", 4.0)[0] == 25
    starts = {call.beta: call for call in reversed(fake.of("joint"))}
    assert starts[4.0].posterior is starts[1.0].posterior, "from its neighbour"


def test_each_mode_has_a_beta_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slope = {"fixed": 1.0, "joint": -0.1, "elbo": 100.0}
    fake = FakeRuns(lambda state: slope[state.mode] * state.beta, spread=NONE_IS_BEATEN)
    found = searched_with(fake, monkeypatch, ELSEWHERE)
    assert order(fake, "joint") == [1.0, 4.0, 16.0, 64.0, 0.25]
    assert order(fake, "fixed") == [1.0, 4.0, 0.25, 0.0625]
    modes = [trial.hyperparameters for trial in found.trials]
    assert modes == ["elbo"] + 4 * ["fixed"] + 5 * ["joint"]
    # The first mode within a quarter of a standard error of the best one; the ELBO is not.
    assert (found.best.hyperparameters, found.best.beta) == ("fixed", 0.0625)


def test_a_mode_that_is_beaten_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"elbo": 2.0, "fixed": 1.0, "joint": 0.0}
    fake = FakeRuns(lambda state: table[state.mode])
    found = searched_with(fake, monkeypatch, ELSEWHERE)
    assert not fake.of("fixed") and len(fake.of("elbo")) == 1
    assert [trial.hyperparameters for trial in found.trials] == ["elbo"] + 3 * ["joint"]


def test_hyperparameters_held_are_those_of_the_elbo(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda state: {"elbo": 2.0, "fixed": 1.0}[state.mode])
    found = searched_with(fake, monkeypatch, ELSEWHERE, modes=["fixed"])
    elbo = fake.of("elbo")
    assert [call.recipe.max_steps for call in elbo] == [25, 25], "on while that pays"
    assert fake.steps("fixed", 1.0) == [50] and fake.steps("fixed", 4.0)[0] == 25
    assert found.best.posterior is elbo[0].posterior, "the second run was no better"
    assert [stage.stage for stage in found.best.stages[:2]] == ["elbo", "fixed"]


# The choice


WIDE = torch.linspace(-1, 1, 16, dtype=torch.float64)
WIDE *= 4 / WIDE.std()
"""With mean 0 and a standard error of 1."""


@pytest.mark.parametrize(
    ("validation", "behind", "chosen"),
    [
        # In standard errors: how far ELBO, fixed β = 4, joint β = 4 and joint β = 1 are behind.
        (HoldOut(), (0.2, 0.2, 0.2, 0), ("elbo", 1.0)),
        (HoldOut(), (0.3, 0.2, 0.2, 0), ("fixed", 4.0)),
        (HoldOut(), (0.3, 0.3, 0.9, 0), ("joint", 4.0)),
        (HoldOut(), (0.3, 0.3, 1.1, 0), ("joint", 1.0)),
        (Folds(), (0.9, 0.3, 1.1, 0), ("elbo", 1.0)),
        (Folds(), (1.1, 0.9, 0.2, 0), ("fixed", 4.0)),
        (Folds(), (1.1, 1.1, 0.9, 0), ("joint", 4.0)),
        (Folds(), (1.1, 1.1, 1.1, 0), ("joint", 1.0)),
    ],
)
def test_the_choice_of_mode_and_beta(
    validation: Validation, behind: tuple[float, ...], chosen: tuple[str, float]
) -> None:
    """Modes within a quarter of a standard error, or one with folds; β within one."""
    search = Search(Recipe(), Data(X, Y), validation, seeded())
    kinds = [("elbo", 1.0), ("fixed", 4.0), ("joint", 4.0), ("joint", 1.0)]
    given = model(Gaussian())
    search.trials = [
        Trial(given, mode, beta, (), errors + (WIDE if errors else 0 * WIDE))
        for (mode, beta), errors in zip(kinds, behind, strict=True)
    ]
    trial = search.trials[search._chosen()]
    assert (trial.hyperparameters, trial.beta) == chosen


# Inducing inputs


def grown_with(
    objective: Callable[[Call], float],
    monkeypatch: pytest.MonkeyPatch,
    *,
    likelihood: Likelihood | None = None,
    grows: bool = True,
    n: int = 400,
    **effort: Any,
) -> tuple[FakeRuns, list[tuple[int, int | None]]]:
    """Return the runs, and number of inducing inputs and steps of those of the ELBO."""
    X, y = regression(n)
    fake = FakeRuns(objective=objective)
    models = [[model(likelihood or Gaussian(), kernel="matern12", X=X)]]
    settings = {"grows": grows, "effort": Effort(**effort), "modes": ["joint"]}
    searched_with(fake, monkeypatch, HoldOut(0.2), models=models, data=Data(X, y), **settings)
    return fake, [(call.num_inducing, call.recipe.max_steps) for call in fake.of("elbo")]


def test_inducing_inputs_double_where_the_objective_falls_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By 0.0125 for each doubling."""
    objectives = {6: 1.0, 12: 0.98, 24: 0.97}
    fake, elbo = grown_with(lambda call: objectives[call.num_inducing], monkeypatch)
    assert elbo[:5] == [(6, 25), (6, 25), (12, 25), (12, 50), (24, 25)]
    assert {call.num_inducing for call in fake.of("joint")} == {12}
    (first,) = {id(call.posterior): call for call in fake.of("elbo")[:1]}.values()
    grown = fake.of("elbo")[2].posterior
    assert torch.equal(grown.Z[:6], first.posterior.Z)
    assert examples(grown.Z) <= examples(first.data.X) | examples(first.posterior.Z)


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({"max_inducing": 47}, 24),
        ({"max_inducing": 48}, 48),
        ({"n": 300}, 24),  # 240 to train on, and 8 for each.
        ({"n": 2000}, 192),
        ({"grows": False}, 6),
        ({"likelihood": StudentT()}, 6),
    ],
)
def test_inducing_inputs_never_beyond_the_limits(
    settings: dict[str, Any], largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = settings.pop("n", 2000)
    _, elbo = grown_with(lambda call: -math.log(call.num_inducing), monkeypatch, n=n, **settings)
    assert max(number for number, _ in elbo) == largest


def test_more_steps_before_more_inducing_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """While they lower the objective by 4e-4 a step; 100 are enough."""
    values = iter([1.0, 0.95, 0.9, 0.85])

    def objective(call: Call) -> float:
        return next(values, 0.85) if call.mode == "elbo" else 0.0

    _, elbo = grown_with(objective, monkeypatch)
    assert elbo[:5] == [(6, 25), (6, 25), (6, 50), (6, 100), (12, 25)]


# All examples


def test_held_out_the_run_on_all_goes_to_the_objective_of_the_best_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for mode in ("joint", "fixed", "elbo"):
        table = {"elbo": 3.0, "fixed": 3.0, "joint": 3.0, mode: 1.0}
        fake = FakeRuns(lambda state: table[state.mode], lambda call: 0.1 * call.beta)  # noqa: B023
        settings = {"betas": [2.0, 1.0], "modes": [mode, "fixed"] if mode != "fixed" else [mode]}
        found = searched_with(fake, monkeypatch, HoldOut(0.2), **settings)
        last, chosen = fake.calls[-1], found.trials[found.path.chosen]
        assert (last.mode, last.beta) == (mode, 1.0 if mode == "elbo" else 2.0)
        assert torch.equal(last.data.X, X) and last.phase.final
        assert [len(call.data) for call in fake.calls[:-1]] == (len(fake.calls) - 1) * [32]
        assert isinstance(last.recipe.stopping, Reached) and last.recipe.max_steps == 3200
        assert last.recipe.stopping.value == chosen.results[0].loss == 0.1 * last.beta
        if mode != "elbo":
            assert last.posterior is chosen.results[0].posterior
        assert chosen.results[0].status is Status.BUDGET and found.best.status is Status.BUDGET


def test_reached() -> None:
    rule = Reached(1.0, RelativeDecrease(1, 0.1))

    def at(loss: float) -> str | None:
        stop = rule(Progress("log_loss", 1, 1, 1, loss, 0.0, 0.0))
        return None if stop is None else stop.reason

    assert at(3.0) is None and at(2.0) is None
    assert "The last 1 steps" in (at(1.9) or "")
    rule.reset()
    assert at(1.9) is None
    assert at(1.0) == (
        "The objective of all examples, 1, is as low as that of the training examples where the "
        "validation loss was lowest."
    )


@REAL_RUNS
def test_held_out_by_hand() -> None:
    """Losses of the held-out examples, and an objective of all that is as low, but no lower."""
    weights = 1 + (torch.arange(40) % 3).double()
    data, modes = Data(X, Y, weights), ["fixed", "joint"]
    found = searched(HoldOut(0.2), data=data, betas=[1.0], modes=modes)
    held = torch.randperm(40, generator=seeded(5))[:8]
    relative = (weights[held] / weights[held].mean()).numpy()
    for trial in found.trials:
        losses = relative * log_losses(trial.results[0], X[held], Y[held])
        np.testing.assert_allclose(trial.losses, losses, rtol=1e-9)
    losses = weights.numpy() * log_losses(found.best, X, Y)
    beta = found.trials[found.path.chosen].beta
    by_hand = (losses.sum() + beta * kl(found.best)) / 40
    assert found.best.loss == pytest.approx(by_hand, rel=1e-6)
    reached = found.trials[found.path.chosen].results[0].loss
    history = found.best.history
    assert found.best.status is Status.CONVERGED
    if "as low as" in found.best.reason:
        assert history[-1] <= reached and all(loss > reached for loss in history[:-1])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("elbo", [("elbo", 25), ("elbo", 25)]),
        ("fixed", [("elbo", 25), ("elbo", 25), ("fixed", None)]),
        ("joint", [("elbo", 25), ("joint", 100)]),
    ],
)
def test_with_folds_the_run_is_repeated_from_the_start(
    mode: str, expected: list[tuple[str, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as many steps as with the lowest validation loss."""

    def loss(state: State) -> float:
        # The first ELBO run has 25 steps.
        best = {"elbo": 50, "joint": 100}.get(state.mode, state.steps)
        return abs(best - state.steps) / 10 + (0 if state.mode == mode else 9)

    fake, given = FakeRuns(loss), model(Gaussian())
    settings = {"models": [[given]], "betas": [2.0], "modes": sorted({"elbo", "fixed", mode})}
    found = searched_with(fake, monkeypatch, Folds(3), **settings)
    on_all = [call for call in fake.calls if len(call.data) == 40]
    assert [(call.mode, call.recipe.max_steps) for call in on_all] == expected
    assert torch.equal(on_all[0].posterior.Z, given.posterior.Z)
    assert all(call.phase.final for call in on_all)
    assert found.best.hyperparameters == mode
    if mode != "fixed":
        assert found.best.status is Status.CONVERGED and "cost" in found.best.reason


def test_given_examples_need_no_run_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda state: state.beta * (1 + (state.mode == "elbo")))
    found = searched_with(fake, monkeypatch, ELSEWHERE, modes=["joint"])
    chosen = found.trials[found.path.chosen].results[0]
    assert found.best.posterior is chosen.posterior and found.best.beta == 0.0625
    assert found.best.status is Status.CONVERGED
    assert not any(call.phase.final for call in fake.calls)
    assert all(torch.equal(call.data.X, X) for call in fake.calls)
    assert all(torch.equal(split.validation.X, ELSEWHERE.X) for split in fake.judged)


def test_a_race_on_some_examples_goes_on_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda state: state.beta * (1 + (state.mode == "elbo")) - state.steps / 1e3)
    settings: dict[str, Any] = {"modes": ["joint"], "betas": [1.0, 0.25]}
    effort = Effort(rows_for_candidates=15)
    found = searched_with(fake, monkeypatch, HoldOut(0.2), effort=effort, **settings)
    numbers = [len(call.data) for call in fake.calls]
    assert [*dict.fromkeys(numbers)] == [15, 32, 40] and numbers == sorted(numbers)
    more = [call for call in fake.calls if len(call.data) == 32]
    assert more[0].mode == "elbo" and {call.beta for call in more[1:]} == {0.25}
    assert len({*examples(fake.calls[0].data.X)} & examples(more[0].data.X)) == 15
    assert all(len(split.validation) == 8 for split in fake.judged)
    assert found.trials[found.path.chosen].results[0].posterior is fake.calls[-1].posterior


# Rows


@pytest.mark.parametrize(
    "validation", [HoldOut(0.2), Folds(3), ELSEWHERE], ids=["held out", "folds", "given"]
)
def test_no_example_validates_what_it_has_trained(
    validation: Validation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the choice of models with folds, which has no use for the losses."""
    fake = FakeRuns(lambda state: state.beta)
    searched_with(fake, monkeypatch, validation, effort=Effort(rows_for_candidates=20))
    assert fake.judged
    for split in fake.judged:
        assert not examples(split.training.X) & examples(split.validation.X)
    if isinstance(validation, Folds):
        judged = [examples(split.validation.X) for split in fake.judged[:3]]
        assert set.union(*judged) == examples(X) and sum(map(len, judged)) == 40


def test_exposures_follow_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log exposure is the first feature, so that a row that lost its own is seen."""
    X, y, _ = counts()
    likelihood = Poisson().with_exposure(X[:, 0].exp())
    models = [
        [model(copy.deepcopy(likelihood), f"{name}, poisson", kernel, ard, X)]
        for name, kernel, ard in KERNELS
    ]
    theirs = Poisson().with_exposure((-X[:, 0]).exp())
    for validation in (HoldOut(0.2), Folds(3), Given(-X, y, theirs)):
        fake = FakeRuns(lambda state: state.beta)
        effort = Effort(rows_for_models=10, rows_for_candidates=15)
        data = Data(X, y)
        searched_with(fake, monkeypatch, validation, models=models, data=data, effort=effort)
        assert {len(call.data) for call in fake.calls} >= {10, 15, 40}
        for call in fake.calls:
            assert isinstance(call.likelihood, CountLikelihood)
            torch.testing.assert_close(call.likelihood.log_exposure, call.data.X[:, 0])
        for split in fake.judged:
            assert isinstance(split.validation_likelihood, CountLikelihood)
            there = split.validation_likelihood.log_exposure
            torch.testing.assert_close(there, split.validation.X[:, 0])


# Failures


@pytest.mark.parametrize(
    ("mode", "failing", "asked"),
    [
        ("joint", 4.0, [1.0, 4.0, 0.25, 0.0625]),
        ("fixed", 4.0, [1.0, 4.0, 0.25, 0.0625]),
        ("fixed", 1.0, [1.0, 4.0, 16.0, 0.25, 0.0625]),
    ],
)
def test_candidates_that_fail_are_recorded_and_passed_over(
    mode: str, failing: float, asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses fall with β, and in that direction all others are trained."""
    fake = FakeRuns(
        lambda state: state.beta * (9 if state.mode == "elbo" else 1),
        failing=lambda call: (call.mode, call.beta) == (mode, failing),
    )
    found = searched_with(fake, monkeypatch, Folds(3), modes=[mode])
    reason = f"{mode} at {failing:g} cannot be trained."
    assert found.path.failed == (Failure(failing, mode, reason),)
    assert order(fake, mode) == asked
    kept = [beta for beta in sorted(asked, reverse=True) if beta != failing]
    assert [trial.beta for trial in found.trials] == kept


def test_where_all_candidates_fail_the_elbo_solution_remains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for modes in (["fixed"], ["joint"], ALL):
        fake = FakeRuns(failing=lambda call: call.mode != "elbo")
        found = searched_with(fake, monkeypatch, HoldOut(0.2), modes=modes)
        assert found.best.hyperparameters == "elbo"
        assert all(math.isfinite(point.validation_loss) for point in found.path.points)


def test_a_model_that_fails_is_recorded_once_and_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for validation in (HoldOut(0.2), Folds(3), ELSEWHERE):
        for modes in (["elbo"], ["joint", "fixed"]):
            fake = FakeRuns(failing=lambda call: call.model == "rbf, gaussian")
            found = searched_with(fake, monkeypatch, validation, models=rows(), modes=modes)
            failed = Failure(1.0, "elbo, rbf, gaussian", "elbo at 1 cannot be trained.")
            assert found.path.failed == (failed,)
            # By evidence, matern has a parameter less than rbf ARD.
            kernel = "matern" if modes == ["elbo"] else "rbf ARD"
            assert fake.calls[-1].model.startswith(f"{kernel},")


@pytest.mark.parametrize("modes", [["elbo"], ["joint", "fixed"]])
@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=["held out", "folds"])
def test_if_all_models_fail_so_does_the_search(
    validation: Validation, modes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, stop = FakeRuns(failing=lambda call: True), StopAt(10**9)
    with pytest.raises(NumericalError, match="elbo at 1 cannot be trained"):
        searched_with(fake, monkeypatch, validation, models=rows(), modes=modes, monitors=[stop])
    names = [call.model for call in fake.calls]
    assert len({*names}) == len(names), "each is tried once"
    assert stop.closed == 1


@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=["held out", "folds"])
def test_if_the_run_on_all_examples_fails_the_candidate_remains(
    validation: Validation, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(
        lambda state: float(state.mode == "elbo"), failing=lambda call: len(call.data) == 40
    )
    found = searched_with(fake, monkeypatch, validation, modes=["elbo", "joint"], betas=[1.0])
    assert found.best.posterior is found.trials[1].results[0].posterior
    (failed,) = found.path.failed
    assert (failed.beta, failed.hyperparameters) == (1.0, "all examples")


# Ends from outside


def ended_at(
    run: int, validation: Validation, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[Search, list[Call]]:
    """End a search of four kernels, two likelihoods and three modes in one of its runs."""
    fake, stop = FakeRuns(lambda state: state.beta, spread=NONE_IS_BEATEN), StopAt(run)
    how = {"models": rows(), "betas": [4.0, 1.0, 0.25], "monitors": [stop], **settings}
    found = searched_with(fake, monkeypatch, validation, **how)
    assert stop.closed == 1
    return found, fake.calls


BEYOND = "training on all rows, those for validation too"
HELD, NONE = "hyperparameters held", "every candidate"


@pytest.mark.parametrize(
    "validation", [HoldOut(0.2), Folds(2), ELSEWHERE], ids=["held out", "folds", "given"]
)
def test_a_search_that_was_ended_anywhere_has_a_model(
    validation: Validation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = ended_at(10**9, validation, monkeypatch)
    assert whole.end is None and not whole.untried
    parts = 2 if isinstance(validation, Folds) else 1
    for run, call in enumerate(calls, start=1):
        found, begun = ended_at(run, validation, monkeypatch)
        assert found.end is not None and found.end.reason == "Enough."
        assert len(begun) == run, "no run begins after the end"
        assert found.best.posterior.predict(X).mean.isfinite().all()
        if not found.trials:
            assert found.untried[-1] == NONE and not found.path.points
            continue
        unfinished = not isinstance(validation, Given) and not call.phase.final
        if unfinished or (parts == 2 and call.phase.final):
            assert found.untried[-1] == BEYOND
        if "β = " in call.phase.name:
            assert not found.best.ended, "the state before"


@pytest.mark.parametrize(
    ("number", "last", "untried"),
    [
        # The number of a run of that name, as models are compared before the candidates.
        (
            0,
            "ELBO, rbf, gaussian",
            ["rbf ARD, gaussian", "matern, gaussian", "rbf, studentt", NONE],
        ),
        (0, "rbf ARD, gaussian, joint, β = 1", ["matern, gaussian", "rbf, studentt", NONE]),
        (0, "rbf, studentt, joint, β = 1", [NONE]),
        (1, "rbf, studentt, joint, β = 1", ["β = 4", "β = 0.25", "the ELBO", HELD, BEYOND]),
        (0, "rbf, studentt, joint, β = 4", ["β = 0.25", "the ELBO", HELD, BEYOND]),
        (0, "rbf, studentt, elbo, β = 1", [HELD, BEYOND]),
        (0, "rbf, studentt, fixed, β = 4", ["β = 0.25", BEYOND]),
        (0, "all examples", []),
    ],
)
def test_what_was_left_out_is_listed(
    number: int, last: str, untried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, calls = ended_at(10**9, HoldOut(0.2), monkeypatch)
    runs = [run for run, call in enumerate(calls, start=1) if call.phase.name == last]
    found, _ = ended_at(runs[number], HoldOut(0.2), monkeypatch)
    assert found.untried == untried


def test_a_sample_of_the_rows_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    effort = Effort(rows_for_models=10, rows_for_candidates=15)
    found, _ = ended_at(15, HoldOut(0.2), monkeypatch, effort=effort)
    assert found.untried == ["training on more than a sample of the rows"]


def test_models_by_evidence_that_were_left_out_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, calls = ended_at(2, HoldOut(0.2), monkeypatch, modes=["elbo"])
    assert found.untried == ["matern, gaussian", "matern ARD, gaussian", "rbf, studentt"]
    assert len(calls) == 2 and found.end is not None and found.best.posterior is not None


def test_with_folds_a_run_on_all_that_was_ended_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It starts again, and after a few steps is worse than the model of a fold."""
    whole, calls = ended_at(10**9, Folds(2), monkeypatch)
    assert calls[-1].phase.final and whole.best.posterior is calls[-1].posterior
    first = [call.phase.final for call in calls].index(True)
    found, begun = ended_at(first + 1, Folds(2), monkeypatch)
    assert len(begun) == first + 1
    assert found.best.posterior is found.trials[found.path.chosen].results[0].posterior
    assert found.untried == [BEYOND]


@REAL_RUNS
@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=["held out", "folds"])
def test_real_runs_that_were_ended(validation: Validation) -> None:
    for steps in (1, 30, 60, 90):
        stop = StopAt(steps)
        settings: dict[str, Any] = {"betas": [4.0, 1.0], "monitors": [stop], "max_steps": 10}
        found = searched(validation, models=rows(2), **settings)
        assert found.end is not None and found.end.reason == "Enough." and found.untried
        q = found.best.posterior.predict(X)
        assert bool(q.mean.isfinite().all()) and bool((q.variance > 0).all())
        assert stop.closed == 1 and stop.seen == steps


# What monitors are told


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("modes", [["elbo"], ALL], ids=["one candidate", "several"])
@pytest.mark.parametrize(
    "validation", [HoldOut(0.2), Folds(3), ELSEWHERE], ids=["held out", "folds", "given"]
)
def test_parts_count_up_and_the_final_one_is_the_last(
    validation: Validation, modes: list[str], grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, fake = Watch(), FakeRuns(lambda state: state.beta, spread=NONE_IS_BEATEN)
    settings: dict[str, Any] = {"models": rows(), "grows": grows, "monitors": [watch]}
    searched_with(fake, monkeypatch, validation, modes=modes, **settings)
    *before, last = [phase for phase in dict.fromkeys(watch.phases)]
    parts = [phase.part for phase in before]
    assert parts == [*range(1, len(parts) + 1)] and last.part == len(parts) + 1
    assert all(phase.part < phase.parts and not phase.final for phase in before)
    if modes == ["elbo"] or not isinstance(validation, Given):
        assert last.final and last.part == last.parts
    names = [phase.name for phase in before]
    assert names[0] == "ELBO, rbf, gaussian", "all examples, and no fold"
    folds = isinstance(validation, Folds) and modes == ALL
    assert any("fold 3" in name for name in names) == folds


# Whole searches


@REAL_RUNS
def test_the_models_of_a_search_are_not_changed() -> None:
    models = rows(2)
    kept = copy.deepcopy(models)
    searched(HoldOut(0.2), models=models, betas=[4.0, 1.0], max_steps=5, grows=True)
    for row, before in zip(models, kept, strict=True):
        for each, old in zip(row, before, strict=True):
            for ours, theirs in (
                (each.posterior, old.posterior),
                (each.likelihood, old.likelihood),
            ):
                expected = theirs.state_dict()
                assert all(torch.equal(expected[k], v) for k, v in ours.state_dict().items())


@REAL_RUNS
@pytest.mark.parametrize(
    "settings",
    [{"max_steps": 10}, {"rule": "bmc", "max_steps": 50}],
    ids=["exact", "bmc"],
)
def test_one_seed_has_one_result_however_many_jobs(settings: dict[str, Any]) -> None:
    one, again, two = (
        searched(Folds(2), models=rows(2), betas=[4.0, 1.0], n_jobs=n_jobs, **settings)
        for n_jobs in (1, 1, 2)
    )
    for other in (again, two):
        expected = tensors(other.best)
        assert all(torch.equal(expected[k], value) for k, value in tensors(one.best).items())
        for ours, theirs in zip(one.trials, other.trials, strict=True):
            assert torch.equal(ours.losses, theirs.losses)


@REAL_RUNS
@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=["held out", "folds"])
def test_adam(validation: Validation) -> None:
    watch = Watch()
    settings: dict[str, Any] = {"optimizer": "adam", "max_steps": 100, "monitors": [watch]}
    found = searched(validation, models=rows(2), betas=[4.0, 1.0, 0.25], **settings)
    assert watch.phases[-1].final and watch.phases[-1].part == watch.phases[-1].parts
    assert {trial.hyperparameters for trial in found.trials} >= {"elbo", "joint"}
    assert all(trial.losses.isfinite().all() for trial in found.trials)
    assert float((found.best.posterior.predict(X).mean - Y).square().mean()) < 0.7 * float(Y.var())


@REAL_RUNS
def test_each_run_has_at_most_the_steps_of_the_recipe() -> None:
    seen: list[Progress] = []

    class Steps(Monitor):
        def __call__(self, progress: Progress) -> None:
            seen.append(progress)

    rule = SmallGradient(0.0)
    settings: dict[str, Any] = {"max_steps": 3, "stopping": rule, "monitors": [Steps()]}
    found = searched(HoldOut(0.2), models=rows(2), betas=[4.0, 1.0], **settings)
    assert max(progress.step for progress in seen) == 3
    assert {progress.max_steps for progress in seen} == {3}
    assert found.best.history
