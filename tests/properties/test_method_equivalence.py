"""Methods that must agree, at Z = X, at the optimum, or on average.

The nugget of 1e-8, relative to a noise of 0.1 and more, bounds what is left between a posterior
with inducing inputs at the examples and exact regression: some 1e-7.
"""

import copy
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import directgp
from directgp.likelihoods import Gaussian
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import GibbsLoss, LogLoss, Objective
from directgp.posteriors import Prior, SparsePosterior
from directgp.training import RelativeDecrease, Status, TrainingResult
from directgp.training.data import Data, Model, Randomness
from directgp.training.lbfgs import lbfgs
from directgp.training.problems import FreeProblem, HeldProblem
from directgp.training.run import Run
from tests.reference import gaussian_process as reference
from tests.reference.gaussian_process import Array

pytestmark = pytest.mark.usefixtures("without_shape_checks")

N, M, D = 18, 5, 2
NOISE = 0.15


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


X = normal(N, D)
Y = torch.sin(2 * X[:, 0]) + 0.3 * normal(N, seed=1)
NEW = normal(12, D, seed=2)


def posterior_at(Z: Tensor) -> SparsePosterior:
    """A nugget of 1e-6 keeps the dense formulas accurate away from the examples."""
    return SparsePosterior(Prior.from_data(X, Y), Z, None if Z is X else 1e-6)


def sparse() -> SparsePosterior:
    return posterior_at(1.1 * normal(M, D, seed=3))


def hold(posterior: SparsePosterior, likelihood: Gaussian | None = None) -> SparsePosterior:
    """Everything but q(u)."""
    for p in (*posterior.prior.parameters(), posterior.Z):
        p.requires_grad_(False)
    if likelihood is not None:
        likelihood.raw_noise.requires_grad_(False)
    return posterior


class Dense:
    """The matrices of a trained posterior, by NumPy."""

    def __init__(self, posterior: SparsePosterior, inputs: Tensor) -> None:
        lengthscale = posterior.prior.kernel.lengthscale.detach().numpy()
        scale = posterior.prior.output_scale.item()
        Z, x = posterior.Z.detach().numpy(), inputs.numpy()
        self.Kuu: Array = reference.rbf(Z, Z, lengthscale, scale)
        self.Kuu += posterior.nugget * scale * np.eye(len(Z))
        self.Kuf = reference.rbf(Z, x, lengthscale, scale)
        self.Kff = reference.rbf(x, x, lengthscale, scale)
        self.L = np.linalg.cholesky(self.Kuu)


def noise_of(result: TrainingResult) -> float:
    assert isinstance(result.likelihood, Gaussian)
    return result.likelihood.noise.item()


def train(objective: str, posterior: SparsePosterior, **settings: Any) -> TrainingResult:
    given: dict[str, Any] = {"likelihood": Gaussian(NOISE), "X": X, "y": Y}
    given |= {"generator": torch.Generator().manual_seed(0)} | settings
    return directgp.train(posterior, objective=objective, **given)


def assert_is_exact_regression(result: TrainingResult) -> None:
    inputs = torch.cat([X, NEW])
    K = Dense(result.posterior, inputs).Kff
    exact = reference.exact_regression(K[:N, :N], K[:N], K, Y.numpy(), noise_of(result))
    predicted = result.posterior.predict(inputs)
    np.testing.assert_allclose(predicted.mean.numpy(), exact.mean, rtol=1e-6, atol=1e-6)
    variance = exact.variance.diagonal()
    np.testing.assert_allclose(predicted.variance.numpy(), variance, rtol=1e-6, atol=1e-6)
    log_marginal = reference.exact_log_marginal(K[:N, :N], Y.numpy(), noise_of(result))
    assert N * result.loss == pytest.approx(-log_marginal, rel=1e-6)


@pytest.mark.parametrize("objective", ["vfe", "fitc", "elbo"])
def test_inducing_inputs_at_the_examples_give_exact_regression(objective: str) -> None:
    """At the hyperparameters that each has trained, with Z held where it is."""
    posterior = posterior_at(X)
    posterior.Z.requires_grad_(False)
    result = train(objective, posterior, stopping=RelativeDecrease(10, 1e-9))
    assert result.steps > 3 and not torch.equal(
        result.posterior.prior.raw_output_scale, posterior.prior.raw_output_scale
    )
    assert_is_exact_regression(result)


def test_all_three_train_the_same_hyperparameters_there() -> None:
    """One function of them, so one minimum: −log p(y), to the nugget."""
    losses, noises = [], []
    for objective in ("vfe", "fitc", "elbo"):
        posterior = posterior_at(X)
        posterior.Z.requires_grad_(False)
        result = train(objective, posterior, stopping=RelativeDecrease(20, 1e-12), max_steps=2000)
        losses.append(result.loss)
        noises.append(noise_of(result))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-7)
    # A minimum known to 1e-8 is known in place to 1e-4.
    assert noises == pytest.approx([noises[0]] * 3, rel=1e-3)


def test_few_inducing_inputs_are_not_exact_regression() -> None:
    """A negative control."""
    posterior = hold(sparse())
    for objective in ("vfe", "fitc"):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            assert_is_exact_regression(train(objective, posterior))


def free(posterior: SparsePosterior, likelihood: Gaussian, beta: float) -> FreeProblem:
    randomness = Randomness(torch.Generator().manual_seed(0), frozen=True)
    objective = Objective(GibbsLoss(), N, beta)
    return FreeProblem(Model(posterior, likelihood), Data(X, Y), objective, randomness)


def minimise(problem: FreeProblem | HeldProblem) -> float:
    run = Run("free", 5000, [RelativeDecrease(20, 1e-14)], time.perf_counter())
    assert lbfgs(problem, run).status is Status.CONVERGED
    problem.prepare()
    return problem.value(0).item()


@pytest.mark.parametrize("beta", [0.1, 1.0, 7.0])
def test_the_free_elbo_reaches_vfe(beta: float) -> None:
    """q(u) by L-BFGS from the prior, and q(u) by its formula: value, mean and covariance."""
    posterior, likelihood = sparse(), Gaussian(NOISE)
    hold(posterior, likelihood)
    formula = train("vfe", posterior, likelihood=likelihood, beta=beta)
    assert formula.reason == "The optimum is a formula."
    searched = copy.deepcopy(posterior)
    value = minimise(free(searched, likelihood, beta))
    # The search can only end above the minimum, and its error is of second order in q(u).
    assert -1e-12 < value - formula.loss < 1e-10
    for name in ("u_mean", "u_chol"):
        found, expected = getattr(searched, name), getattr(formula.posterior, name)
        # u_chol S is one of the square roots that differ in signs of columns.
        if name == "u_chol":
            found, expected = found.tril() @ found.tril().mT, expected @ expected.mT
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-4, atol=1e-5)


def test_the_free_elbo_and_the_held_one_are_one_problem() -> None:
    posterior, likelihood = hold(sparse()), Gaussian(NOISE)
    randomness = Randomness(torch.Generator().manual_seed(0), frozen=True)
    objective = Objective(GibbsLoss(), N, 0.4)
    posterior.set_q(normal(M), torch.eye(M).double() + 0.1 * normal(M, M).tril())
    held = HeldProblem(Model(posterior, likelihood), Data(X, Y), objective, randomness)
    assert held.value(0).item() == pytest.approx(
        free(posterior, likelihood, 0.4).value(0).item(), rel=1e-13
    )


@pytest.mark.parametrize("beta", [0.1, 1.0, 7.0])
def test_a_trained_vfe_is_the_dense_formula(beta: float) -> None:
    result = train("vfe", sparse(), beta=beta, max_steps=20)
    dense = Dense(result.posterior, X)
    matrices = dense.Kuu, dense.Kuf, dense.Kff.diagonal(), Y.numpy(), noise_of(result)
    assert N * result.loss == pytest.approx(reference.vfe_objective(*matrices, beta), rel=1e-7)


@pytest.mark.parametrize("beta", [0.1, 1.0, 7.0])
def test_vfe_and_elbo_train_alike(beta: float) -> None:
    """ "elbo" is profiled too, for a Gaussian likelihood and L-BFGS: the same steps."""
    one, other = (
        train(objective, sparse(), beta=beta, max_steps=15) for objective in ("vfe", "elbo")
    )
    assert one.history == other.history


def test_joint_free_elbo_goes_where_the_profile_goes() -> None:
    """All parameters at once, against hyperparameters alone with q(u) eliminated."""
    profile = train("elbo", sparse(), stopping=RelativeDecrease(20, 1e-12), max_steps=3000)
    posterior, likelihood = sparse(), Gaussian(NOISE)
    posterior.load_state_dict(profile.posterior.state_dict())
    likelihood.load_state_dict(profile.likelihood.state_dict())
    problem = free(posterior, likelihood, 1.0)
    value = problem.value(0)
    value.backward()
    assert value.item() == pytest.approx(profile.loss, abs=1e-11)
    for name, parameter in problem.parameters.items():
        assert parameter.grad is not None
        # The profile's minimum is known to 1e-12 in value.
        assert float(parameter.grad.abs().max()) < 1e-4, name


def test_fitc_is_minus_the_log_marginal_likelihood() -> None:
    result = train("fitc", sparse(), max_steps=20)
    dense = Dense(result.posterior, X)
    matrices = dense.Kuu, dense.Kuf, dense.Kff.diagonal(), Y.numpy(), noise_of(result)
    assert N * result.loss == pytest.approx(reference.fitc_objective(*matrices), rel=1e-7)
    Q = reference.nystrom(dense.Kuu, dense.Kuf)
    precision = 1 / (dense.Kff.diagonal() - Q.diagonal() + noise_of(result))
    u = reference.optimal_u(dense.Kuu, dense.Kuf, Y.numpy(), precision, 1.0)
    there = Dense(result.posterior, NEW)
    f = reference.sparse_posterior(there.Kuu, there.Kuf, there.Kff, u.mean, u.variance)
    predicted = result.posterior.predict(NEW)
    np.testing.assert_allclose(predicted.mean.numpy(), f.mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(predicted.variance.numpy(), f.variance.diagonal(), rtol=1e-6)


def test_whitened_is_unwhitened() -> None:
    """The trained log-loss objective again, from m = L·u_mean and V = L S Sᵀ Lᵀ by inverses."""
    result = train("log_loss", sparse(), beta=0.5, max_steps=25)
    dense = Dense(result.posterior, X)
    S = result.posterior.u_chol.detach().tril().numpy()
    m = dense.L @ result.posterior.u_mean.detach().numpy()
    V = dense.L @ S @ S.T @ dense.L.T
    f = reference.sparse_posterior(dense.Kuu, dense.Kuf, dense.Kff, m, V)
    total = f.variance.diagonal() + noise_of(result)
    losses = 0.5 * (np.log(2 * np.pi * total) + (Y.numpy() - f.mean) ** 2 / total)
    kl = reference.kl(m, V, dense.Kuu)
    # Explicit inverses of a K_uu of condition 1e6 and less.
    assert N * result.loss == pytest.approx(losses.sum() + 0.5 * kl, rel=1e-8)


@pytest.mark.parametrize("mode", ["joint", "fixed"])
@pytest.mark.parametrize("beta", [0.05, 1.0])
def test_square_loss_is_stationary_and_a_vfe_mean(beta: float, mode: str) -> None:
    """The kernel scale is held in training, at 1 in joint mode, and chosen anew afterwards.

    So the mean is that of a unit scale with β over the scale that was held.
    """
    result = train("square_loss", sparse(), beta=beta, hyperparameters=mode, max_steps=30)
    unit = result.posterior.with_unit_scale()
    elbo = train("elbo", sparse(), max_steps=30).posterior
    ridge = beta if mode == "joint" else beta / elbo.prior.output_scale.item()
    dense = Dense(unit, X)
    m = dense.L @ unit.u_mean.detach().numpy()
    expected = reference.square_loss_m(dense.Kuu, dense.Kuf, Y.numpy(), ridge)
    np.testing.assert_allclose(m, expected, rtol=1e-6, atol=1e-8)
    W = np.linalg.solve(dense.Kuu, dense.Kuf).T
    slope = W.T @ (W @ m - Y.numpy()) + ridge * np.linalg.solve(dense.Kuu, m)
    size = np.abs(W.T @ Y.numpy()).max()
    assert np.abs(slope).max() < 1e-7 * size
    likelihood = Gaussian(ridge)
    hold(unit, likelihood)
    vfe = train("vfe", unit, likelihood=likelihood)
    torch.testing.assert_close(
        result.posterior.predict(NEW).mean, vfe.posterior.predict(NEW).mean, rtol=1e-8, atol=1e-9
    )


def test_square_loss_reports_its_profile() -> None:
    """½(|y|² − yᵀK_fu(βK_uu + K_uf K_fu)⁻¹K_uf y)/N, at the trained hyperparameters."""
    result = train("square_loss", sparse(), beta=0.3, max_steps=30)
    dense, y = Dense(result.posterior.with_unit_scale(), X), Y.numpy()
    inner = dense.Kuf @ y
    solved = np.linalg.solve(0.3 * dense.Kuu + dense.Kuf @ dense.Kuf.T, inner)
    assert N * result.loss == pytest.approx(0.5 * (y @ y - inner @ solved), rel=1e-7)


def test_bmc_with_one_sample_is_the_elbo_on_average() -> None:
    """2000 values, and 4 of their standard errors; with ten samples the mean lies below."""
    posterior, likelihood = sparse(), Gaussian(NOISE)
    posterior.set_q(0.3 * normal(M), 0.4 * torch.eye(M).double())
    marginals, kl = posterior.predict(X), posterior.kl().detach()

    def values(num_samples: int) -> Tensor:
        many = directgp.Marginals(
            marginals.mean.expand(2000, N), marginals.variance.expand(2000, N)
        )
        objective = Objective(LogLoss(BiasedMonteCarlo(num_samples)), N, 1.0)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            return objective(likelihood, Y, many, kl.expand(2000), generator=generator)

    with torch.no_grad():
        elbo = float(Objective(GibbsLoss(), N, 1.0)(likelihood, Y, marginals, kl))
        log_loss = float(Objective(LogLoss(), N, 1.0)(likelihood, Y, marginals, kl))
    one, ten = values(1), values(10)
    error = float(one.std()) / len(one) ** 0.5
    assert error < 0.05 * (elbo - log_loss)
    assert abs(float(one.mean()) - elbo) < 4 * error
    assert log_loss < float(ten.mean()) < elbo - 10 * error


def test_log_loss_training_is_below_the_elbo_on_log_loss() -> None:
    """Each method wins on its own objective."""
    loss = Objective(LogLoss(), N, 1.0)
    found = {}
    for objective in ("elbo", "log_loss"):
        result = train(objective, sparse(), max_steps=150)
        with torch.no_grad():
            marginals, kl = result.posterior.predict(X), result.posterior.kl()
            gibbs = Objective(GibbsLoss(), N, 1.0)(result.likelihood, Y, marginals, kl)
            found[objective] = float(gibbs), float(loss(result.likelihood, Y, marginals, kl))
    assert found["elbo"][0] < found["log_loss"][0] - 0.01
    assert found["log_loss"][1] < found["elbo"][1] - 0.01
