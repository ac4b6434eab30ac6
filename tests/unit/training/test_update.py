"""`update`: q(u) after new examples, compared with training on all."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import directgp
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit, StudentT
from directgp.log_expectations import BiasedMonteCarlo
from directgp.posteriors import SparsePosterior
from directgp.posteriors.collapsed import Whitened, composed, optimal_q, relative_features
from directgp.predictive import predictive_log_density
from directgp.training import RelativeDecrease, Status, StepBudget, TrainingResult, update
from tests.unit.training.models import (
    StopAt,
    counts,
    labels,
    named,
    normal,
    regression,
    seeded,
    start,
)

X, Y = regression(60)
FIRST, SECOND = slice(0, 25), slice(25, 60)
# Half of the time goes into the checks, which all other runs have.
LONG = pytest.mark.usefixtures("without_shape_checks")
TIGHT = RelativeDecrease(window=20, tolerance=1e-10)


def trained() -> tuple[SparsePosterior, Gaussian]:
    """Hyperparameters of some use."""
    result = directgp.train(start(X, Y), Gaussian(0.1), X, Y, objective="elbo", max_steps=20)
    assert isinstance(result.likelihood, Gaussian)
    return result.posterior, result.likelihood


POSTERIOR, GAUSSIAN = trained()


def prior(posterior: SparsePosterior = POSTERIOR) -> SparsePosterior:
    twin = copy.deepcopy(posterior)
    twin.reset()
    return twin


def in_chunks(
    parts: list[slice],
    likelihood: Likelihood = GAUSSIAN,
    data: tuple[Tensor, Tensor] = (X, Y),
    **settings: Any,
) -> TrainingResult:
    posterior = prior()
    for part in parts:
        result = update(posterior, likelihood, data[0][part], data[1][part], **settings)
        posterior = result.posterior
    return result


def moments(posterior: SparsePosterior) -> tuple[Tensor, Tensor]:
    S = posterior.u_chol.detach()
    return posterior.u_mean.detach(), S @ S.mT


def distance(one: SparsePosterior, other: SparsePosterior) -> float:
    """Largest difference of the moments of q(u)."""
    pairs = zip(moments(one), moments(other), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def nll(posterior: SparsePosterior, likelihood: Likelihood, data: tuple[Tensor, Tensor]) -> float:
    density = predictive_log_density(likelihood, data[1], posterior.predict(data[0]))
    return -float(density.detach().mean())


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("objective", ["elbo", "vfe", "fitc"])
def test_chunks_give_the_q_of_all_examples(objective: str, beta: float) -> None:
    settings: dict[str, Any] = {"objective": objective, "beta": beta}
    whole = in_chunks([slice(None)], **settings)
    forth = in_chunks([FIRST, SECOND], **settings)
    back = in_chunks([SECOND, FIRST], **settings)
    single = in_chunks([slice(0, 59), slice(59, 60)], **settings)
    for parts in (forth, back, single):
        assert distance(parts.posterior, whole.posterior) < 1e-10
    assert distance(in_chunks([FIRST], **settings).posterior, whole.posterior) > 1e-2


@LONG
def test_the_formula_is_what_a_search_finds() -> None:
    """Adam does not know the formula, nor does it start at it."""
    beta = 3.0
    posterior = in_chunks([FIRST], objective="elbo", beta=beta).posterior
    rest: dict[str, Any] = {"X": X[SECOND], "y": Y[SECOND], "objective": "elbo", "beta": beta}
    formula = update(posterior, GAUSSIAN, **rest)
    search = update(
        posterior, GAUSSIAN, optimizer="adam", learning_rate=0.01, stopping=TIGHT, **rest
    )
    assert search.steps > 0 == formula.steps
    assert distance(search.posterior, formula.posterior) < 1e-4
    assert formula.loss <= search.loss <= formula.loss + 1e-6


def test_the_optimum_of_all_examples_is_that_of_the_formula() -> None:
    """Against P⁻¹Ay/σ² and βP⁻¹ written out."""
    beta, noise = 0.5, float(GAUSSIAN.noise.detach())
    A = prior().features(X).A
    inverse = torch.linalg.inv(beta * torch.eye(len(A), dtype=A.dtype) + A @ A.mT / noise)
    found = moments(in_chunks([FIRST, SECOND], objective="elbo", beta=beta).posterior)
    torch.testing.assert_close(found[0], inverse @ A @ Y / noise, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[1], beta * inverse, rtol=1e-8, atol=1e-8)


def test_weights_count_examples() -> None:
    twice = in_chunks([FIRST, FIRST], objective="elbo")
    weights = torch.full((25,), 2)
    weighted = update(prior(), GAUSSIAN, X[FIRST], Y[FIRST], objective="elbo", weights=weights)
    assert distance(twice.posterior, weighted.posterior) < 1e-10


def test_square_loss_goes_on_as_an_elbo() -> None:
    """Its mean after the update is that of square loss for all examples, kernel and Z held."""
    beta = 0.3
    first = directgp.train(
        prior(), GAUSSIAN, X[FIRST], Y[FIRST], objective="square_loss", beta=beta
    )
    both = update(first.posterior, first.likelihood, X[SECOND], Y[SECOND], objective="elbo")
    unit = first.posterior.with_unit_scale()
    A = unit.features(X).A
    best = optimal_q(A, Y, torch.ones_like(Y), beta).u_mean @ A
    torch.testing.assert_close(both.posterior.predict(X).mean, best, rtol=1e-6, atol=1e-6)
    assert float((first.posterior.predict(X).mean - best).abs().max()) > 0.01


TASKS: list[tuple[Likelihood, Tensor, Tensor]] = [
    (Probit(), *labels(60)),
    (Poisson(), *counts(60)[:2]),
    (StudentT(0.3, 4.0), X, Y),
]


@LONG
@pytest.mark.parametrize("objective", ["elbo", "log_loss"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task[0]).__name__)
def test_chunks_of_other_likelihoods_are_near_all_examples(
    task: tuple[Likelihood, Tensor, Tensor], objective: str
) -> None:
    likelihood, inputs, y = task
    order = inputs[:, 0].argsort()
    data = inputs[order], y[order]
    settings: dict[str, Any] = {"data": data, "objective": objective}
    whole = in_chunks([slice(None)], likelihood, **settings)
    first = in_chunks([slice(0, 30)], likelihood, **settings)
    both = in_chunks([slice(0, 30), slice(30, 60)], likelihood, **settings)
    second = data[0][30:], data[1][30:]
    assert both.status == Status.CONVERGED
    before, after = (nll(each.posterior, likelihood, second) for each in (first, both))
    assert after < before - 0.02
    parts, at_once = (nll(each.posterior, likelihood, data) for each in (both, whole))
    assert parts < at_once + 0.05
    apart = distance(both.posterior, whole.posterior)
    assert apart < 0.35 * distance(first.posterior, whole.posterior)


@LONG
def test_from_the_prior_it_is_a_fixed_run() -> None:
    settings: dict[str, Any] = {"objective": "log_loss", "beta": 0.5, "stopping": TIGHT}
    fixed = directgp.train(start(X, Y), Gaussian(0.1), X, Y, hyperparameters="fixed", **settings)
    again = update(prior(fixed.posterior), fixed.likelihood, X, Y, **settings)
    assert again.loss == pytest.approx(fixed.loss, abs=1e-8)
    assert distance(again.posterior, fixed.posterior) < 1e-3
    assert again.hyperparameters == "held"


def test_only_a_copy_of_q_is_changed() -> None:
    likelihood = StudentT(0.3, 4.0)
    before = named("p", POSTERIOR) | named("l", likelihood)
    result = update(POSTERIOR, likelihood, X[SECOND], Y[SECOND])
    after = named("p", POSTERIOR) | named("l", likelihood)
    assert all(torch.equal(before[name], after[name]) for name in before)
    held = named("p", result.posterior) | named("l", result.likelihood)
    moved = {name for name in before if not torch.equal(before[name], held[name])}
    assert moved == {"p.u_mean", "p.u_chol"}


def test_examples_that_say_nothing_leave_q() -> None:
    """Far from every inducing input, where A is 0."""
    far = X[:3] + 1e6
    for objective in ("elbo", "log_loss"):
        result = update(POSTERIOR, GAUSSIAN, far, Y[:3], objective=objective)
        assert distance(result.posterior, POSTERIOR) < 1e-12


def test_an_update_that_is_cancelled_keeps_what_it_has() -> None:
    monitor = StopAt(2)
    result = update(POSTERIOR, Probit(), X, (Y > 0).double(), monitors=[monitor])
    assert (result.status, result.steps, monitor.closed) == (Status.CANCELLED, 2, 1)
    assert math.isfinite(result.loss)
    budget = update(POSTERIOR, Probit(), X, (Y > 0).double(), monitors=[StepBudget(1)])
    assert budget.status == Status.BUDGET
    assert 0 < distance(budget.posterior, POSTERIOR)


@LONG
@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 8, "max_steps": 30, "learning_rate": 0.01},
        {"optimizer": "adam", "max_steps": 30},
        {"rule": BiasedMonteCarlo(5), "max_steps": 30},
        {"rule": "ups", "batch_size": 8, "max_steps": 30, "learning_rate": 0.01},
        {"objective": "elbo", "batch_size": 8, "max_steps": 30, "learning_rate": 0.01},
        {"objective": "crps"},
    ],
)
def test_every_way_of_training_lowers_the_loss(settings: dict[str, Any]) -> None:
    posterior = in_chunks([FIRST], objective="elbo").posterior
    data = X[SECOND], Y[SECOND]
    result = update(posterior, GAUSSIAN, *data, generator=seeded(4), **settings)
    assert all(bool(p.isfinite().all()) for p in result.posterior.parameters())
    assert nll(result.posterior, GAUSSIAN, data) < nll(posterior, GAUSSIAN, data)


@LONG
def test_an_update_in_float32_is_near_that_in_float64() -> None:
    single = prior().float()
    likelihood = copy.deepcopy(GAUSSIAN).float()
    for objective in ("elbo", "log_loss"):
        posterior = single
        for part in (FIRST, SECOND):
            data = X[part].float(), Y[part].float()
            posterior = update(posterior, likelihood, *data, objective=objective).posterior
        assert posterior.u_chol.dtype == torch.float32
        double = in_chunks([FIRST, SECOND], objective=objective).posterior
        found, wanted = posterior.predict(X.float()), double.predict(X)
        torch.testing.assert_close(found.mean.double(), wanted.mean, rtol=0.02, atol=0.02)
        torch.testing.assert_close(found.variance.double(), wanted.variance, rtol=0.1, atol=1e-3)


def test_exposures_are_those_of_the_new_examples() -> None:
    inputs, y, exposure = counts(60)
    likelihood = Poisson()
    short, long = likelihood.with_exposure(exposure), likelihood.with_exposure(5 * exposure)
    found = [update(prior(), each, inputs, y, objective="elbo").posterior for each in (short, long)]
    rates = [posterior.predict(inputs).mean.mean() for posterior in found]
    assert float(rates[0] - rates[1]) > 0.5


@pytest.mark.parametrize("objective", ["square_loss", "absolute_loss"])
def test_a_loss_of_the_mean_alone_is_refused(objective: str) -> None:
    with pytest.raises(UnsupportedError, match=r"depends on the variance of f.*'elbo' or 'log"):
        update(POSTERIOR, GAUSSIAN, X, Y, objective=objective)


def test_wrong_arguments_of_update_are_refused() -> None:
    for beta in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInputError, match="beta of update must be positive"):
            update(POSTERIOR, GAUSSIAN, X, Y, beta=beta)
    with pytest.raises(InvalidInputError, match="weights of update must be positive somewhere"):
        update(POSTERIOR, GAUSSIAN, X, Y, weights=torch.zeros(60))
    with pytest.raises(InvalidInputError, match=r"X of update must be of shape \(n, 2\)"):
        update(POSTERIOR, GAUSSIAN, X[:, :1], Y)
    with pytest.raises(UnsupportedError, match="fitc needs the Gaussian likelihood"):
        update(POSTERIOR, Probit(), X, (Y > 0).double(), objective="fitc")


def test_q_relative_features_another_has_the_marginals_and_the_kl_of_itself() -> None:
    """KL[q ‖ q₀] against the formula for two Gaussians."""
    m = len(POSTERIOR.Z)
    before = Whitened(normal(m), torch.linalg.qr(normal(m, m, seed=2)).R.mT)
    relative = Whitened(normal(m, seed=3), normal(m, m, seed=4).tril())
    there, here = prior(), prior()
    there.set_q(*composed(before, relative))
    here.set_q(*relative)
    plain = there.marginals_at(there.features(X))
    seen = here.marginals_at(relative_features(before, here.features(X)))
    torch.testing.assert_close(seen.mean, plain.mean)
    torch.testing.assert_close(seen.variance, plain.variance)
    q, p = (
        torch.distributions.MultivariateNormal(w.u_mean, w.u_chol @ w.u_chol.mT)
        for w in (composed(before, relative), before)
    )
    torch.testing.assert_close(here.kl(), torch.distributions.kl_divergence(q, p))
