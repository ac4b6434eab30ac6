"""q(u) in closed form and its bounds, against dense n × n formulas, with gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.numerics.gaussian import kl_from_standard
from directgp.posteriors import Prior, SparsePosterior
from directgp.posteriors.collapsed import (
    Correction,
    Whitened,
    collapsed_losses,
    example_noise,
    optimal_q,
)
from directgp.posteriors.projection import project
from tests.reference import gaussian_process as reference
from tests.reference.gaussian_process import Array

M, N, D = 7, 25, 2

CASES: list[tuple[Correction, float]] = [
    ("vfe", 0.01),
    ("vfe", 0.5),
    ("vfe", 1.0),
    ("vfe", 30.0),
    ("fitc", 1.0),
]
each_case = pytest.mark.parametrize(("correction", "beta"), CASES)
each_correction = pytest.mark.parametrize("correction", ["vfe", "fitc"])


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


X = random(N, D)
TARGET = torch.sin(2 * X[:, 0]) + 0.3 * random(N, seed=1)
NOISE = 0.15


def posterior_at(Z: Tensor, nugget: float | None = None) -> SparsePosterior:
    prior = Prior.from_data(X, ard=True).rescaled(1.4)
    return SparsePosterior(prior, Z, nugget)


def somewhere() -> SparsePosterior:
    """Away from every example; a nugget of 1e-6 keeps the dense formulas accurate."""
    return posterior_at(1.2 * random(M, D, seed=2), nugget=1e-6)


class Dense:
    """The matrices of a posterior, by NumPy."""

    def __init__(self, posterior: SparsePosterior, inputs: Tensor = X) -> None:
        lengthscale = posterior.prior.kernel.lengthscale.detach().numpy()
        scale = posterior.prior.output_scale.item()
        Z, x = posterior.Z.detach().numpy(), inputs.numpy()
        nugget = posterior.nugget * scale * np.eye(len(Z))
        self.Kuu: Array = reference.rbf(Z, Z, lengthscale, scale) + nugget
        self.Kuf = reference.rbf(Z, x, lengthscale, scale)
        self.Kff = reference.rbf(x, x, lengthscale, scale)
        self.k_diag: Array = self.Kff.diagonal()
        self.L = np.linalg.cholesky(self.Kuu)


def dense_objective(
    correction: Correction, posterior: SparsePosterior, noise: float, beta: float
) -> float:
    dense = Dense(posterior)
    matrices = dense.Kuu, dense.Kuf, dense.k_diag, TARGET.numpy(), noise
    if correction == "vfe":
        return reference.vfe_objective(*matrices, beta)
    return reference.fitc_objective(*matrices)


def best(
    correction: Correction, posterior: SparsePosterior, noise: Tensor, beta: float
) -> Whitened:
    features = posterior.features(X)
    precision = 1 / example_noise(correction, noise.detach(), features.residual)
    return optimal_q(features.A, TARGET, precision, beta)


def objective(
    correction: Correction, posterior: SparsePosterior, noise: Tensor, beta: float, q: Whitened
) -> Tensor:
    """Σ losses + β·KL, at any q(u)."""
    cross = posterior.cross(X)
    projected = project(cross.L, cross.Kuf, cross.k_diag, q.u_mean, q.u_chol)
    losses = collapsed_losses(correction, TARGET, projected, noise)
    return losses.sum() + beta * kl_from_standard(q.u_mean, q.u_chol)


@each_case
def test_minimum_is_the_dense_formula(correction: Correction, beta: float) -> None:
    posterior, noise = somewhere(), torch.tensor(NOISE, dtype=torch.float64)
    q = best(correction, posterior, noise, beta)
    value = objective(correction, posterior, noise, beta, q).item()
    assert value == pytest.approx(dense_objective(correction, posterior, NOISE, beta), rel=1e-8)


@each_case
def test_envelope_gradient_is_that_of_the_dense_formula(
    correction: Correction, beta: float
) -> None:
    """With q(u) held at its optimum, in lengthscales, scale, noise and every inducing input."""
    posterior = somewhere()
    noise = torch.tensor(NOISE, dtype=torch.float64, requires_grad=True)
    q = best(correction, posterior, noise, beta)
    objective(correction, posterior, noise, beta, q).backward()

    def dense() -> float:
        return dense_objective(correction, posterior, noise.item(), beta)

    prior = posterior.prior
    parameters = {
        "lengthscale": prior.kernel.raw_lengthscale,
        "scale": prior.raw_output_scale,
        "noise": noise,
        "Z": posterior.Z,
    }
    for name, parameter in parameters.items():
        assert parameter.grad is not None
        slopes = numeric_slopes(dense, parameter)
        # Central differences of a value of 1e2 with steps of 1e-4 err by 1e-9.
        torch.testing.assert_close(
            parameter.grad, slopes, rtol=1e-5, atol=1e-6 * float(slopes.abs().max()), msg=name
        )


def numeric_slopes(function: Callable[[], float], parameter: Tensor) -> Tensor:
    """By central differences of fourth order."""
    flat, slopes = parameter.data.view(-1), torch.zeros(parameter.numel(), dtype=torch.float64)
    step = 1e-3
    for i in range(len(flat)):
        start, value = flat[i].item(), 0.0
        for steps, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            flat[i] = start + steps * step
            value += weight * function()
        flat[i] = start
        slopes[i] = value / (12 * step)
    return slopes.reshape(parameter.shape)


@each_case
def test_q_is_that_of_the_dense_formula(correction: Correction, beta: float) -> None:
    """Mean and covariance of u, by explicit inverses."""
    posterior, noise = somewhere(), torch.tensor(NOISE, dtype=torch.float64)
    q, dense = best(correction, posterior, noise, beta), Dense(posterior)
    residual = dense.k_diag - reference.nystrom(dense.Kuu, dense.Kuf).diagonal()
    precision = 1 / (NOISE + (residual if correction == "fitc" else 0 * residual))
    u = reference.optimal_u(dense.Kuu, dense.Kuf, TARGET.numpy(), precision, beta)
    np.testing.assert_allclose(dense.L @ q.u_mean.numpy(), u.mean, rtol=1e-7, atol=1e-9)
    factor = dense.L @ q.u_chol.numpy()
    np.testing.assert_allclose(factor @ factor.T, u.variance, rtol=1e-6, atol=1e-9)
    assert torch.equal(q.u_chol, q.u_chol.tril())
    assert bool((q.u_chol.diagonal() > 0).all())


def test_vfe_is_titsias_with_noise_beta_times_larger() -> None:
    """The q(u) of β with noise σ² is that of 1 with noise βσ²."""
    posterior = somewhere()
    noise = torch.tensor(NOISE, dtype=torch.float64)
    one, two = best("vfe", posterior, noise, 30.0), best("vfe", posterior, 30 * noise, 1.0)
    torch.testing.assert_close(one.u_mean, two.u_mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.u_chol, two.u_chol, rtol=1e-10, atol=1e-12)


@each_case
def test_q_is_a_minimum(correction: Correction, beta: float) -> None:
    posterior, noise = somewhere(), torch.tensor(NOISE, dtype=torch.float64)
    q = best(correction, posterior, noise, beta)
    lowest = objective(correction, posterior, noise, beta, q).item()
    for seed in range(10):
        mean = q.u_mean + 1e-3 * random(M, seed=seed)
        chol = q.u_chol + 1e-3 * q.u_chol.diagonal().min() * random(M, M, seed=seed).tril()
        for moved in (Whitened(mean, q.u_chol), Whitened(q.u_mean, chol), Whitened(mean, chol)):
            assert objective(correction, posterior, noise, beta, moved).item() > lowest


@each_case
def test_q_is_stationary(correction: Correction, beta: float) -> None:
    posterior, noise = somewhere(), torch.tensor(NOISE, dtype=torch.float64)
    q = best(correction, posterior, noise, beta)
    u_mean, u_chol = q.u_mean.requires_grad_(), q.u_chol.requires_grad_()
    features = posterior.features(X)
    projected = project(
        torch.eye(M).double(), features.A, posterior.prior.variance(X).detach(), u_mean, u_chol
    )
    loss = collapsed_losses(correction, TARGET, projected, noise).sum()
    data = torch.autograd.grad(loss, [u_mean, u_chol])
    # The slope of β·KL is β·u_mean and β·(S − 1/diag S), and outweighs neither.
    kl = beta * u_mean, beta * (u_chol - torch.diag(1 / u_chol.diagonal()))
    for one, other in zip(data, kl, strict=True):
        size = float(other.detach().abs().max())
        assert size > 1e-3
        torch.testing.assert_close(-one, other, rtol=0, atol=1e-9 * size)


@each_correction
def test_inducing_inputs_at_the_examples_give_exact_regression(correction: Correction) -> None:
    """The nugget of 1e-8 is what is left of the difference, relative to a noise of 0.15."""
    posterior, noise = posterior_at(X), torch.tensor(NOISE, dtype=torch.float64)
    q = best(correction, posterior, noise, 1.0)
    value = objective(correction, posterior, noise, 1.0, q).item()
    with torch.no_grad():
        posterior.u_mean.copy_(q.u_mean)
        posterior.u_chol.copy_(q.u_chol)
    inputs = torch.cat([X, random(20, D, seed=5)])
    predicted = posterior.predict(inputs)
    joint = Dense(posterior, inputs).Kff
    exact = reference.exact_regression(joint[:N, :N], joint[:N], joint, TARGET.numpy(), noise=NOISE)
    np.testing.assert_allclose(predicted.mean.numpy(), exact.mean, rtol=1e-6, atol=1e-6)
    variance = exact.variance.diagonal()
    np.testing.assert_allclose(predicted.variance.numpy(), variance, rtol=1e-6, atol=1e-6)
    likelihood = reference.exact_log_marginal(joint[:N, :N], TARGET.numpy(), NOISE)
    assert -value == pytest.approx(likelihood, rel=1e-6)


def test_bounds_are_in_order_away_from_the_examples() -> None:
    """A negative control: with few inducing inputs VFE is a bound and not an equality."""
    posterior, noise = somewhere(), torch.tensor(NOISE, dtype=torch.float64)
    bound = -objective("vfe", posterior, noise, 1.0, best("vfe", posterior, noise, 1.0)).item()
    exact = reference.exact_log_marginal(Dense(posterior).Kff, TARGET.numpy(), NOISE)
    assert bound < exact - 1


@each_correction
def test_predictions_from_fewer_inducing_inputs(correction: Correction) -> None:
    posterior, noise = somewhere(), torch.tensor(NOISE, dtype=torch.float64)
    q = best(correction, posterior, noise, 1.0)
    with torch.no_grad():
        posterior.u_mean.copy_(q.u_mean)
        posterior.u_chol.copy_(q.u_chol)
    new = random(20, D, seed=5)
    predicted, dense, there = posterior.predict(new), Dense(posterior), Dense(posterior, new)
    residual = dense.k_diag - reference.nystrom(dense.Kuu, dense.Kuf).diagonal()
    precision = 1 / (NOISE + (residual if correction == "fitc" else 0 * residual))
    u = reference.optimal_u(dense.Kuu, dense.Kuf, TARGET.numpy(), precision, 1.0)
    f = reference.sparse_posterior(dense.Kuu, there.Kuf, there.Kff, u.mean, u.variance)
    np.testing.assert_allclose(predicted.mean.numpy(), f.mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(predicted.variance.numpy(), f.variance.diagonal(), rtol=1e-7)


@pytest.mark.parametrize("beta", [0.01, 1.0, 30.0])
def test_square_loss(beta: float) -> None:
    """Its m in the space of u; a stationary point; and the VFE mean with noise variance β."""
    posterior = somewhere()
    A, dense, y = posterior.features(X).A, Dense(posterior), TARGET.numpy()
    u_mean = optimal_q(A, TARGET, torch.ones_like(TARGET), beta).u_mean
    m = dense.L @ u_mean.numpy()
    expected = reference.square_loss_m(dense.Kuu, dense.Kuf, y, beta)
    np.testing.assert_allclose(m, expected, rtol=1e-7, atol=1e-9)
    slope = A @ (A.T @ u_mean - TARGET) + beta * u_mean
    assert float(slope.abs().max()) < 1e-10
    lowest = reference.square_loss_objective(dense.Kuu, dense.Kuf, y, m, beta)
    for seed in range(5):
        moved = m + 1e-3 * dense.L @ random(M, seed=seed).numpy()
        assert reference.square_loss_objective(dense.Kuu, dense.Kuf, y, moved, beta) > lowest
    noise = torch.tensor(beta, dtype=torch.float64)
    vfe = best("vfe", posterior, noise, 1.0)
    torch.testing.assert_close(u_mean, vfe.u_mean, rtol=1e-9, atol=1e-11)


def test_beta_zero_is_least_squares() -> None:
    A = somewhere().features(X).A
    q = optimal_q(A, TARGET, torch.ones_like(TARGET), 0.0)
    expected = torch.linalg.lstsq(A.T, TARGET.unsqueeze(-1)).solution.squeeze(-1)
    torch.testing.assert_close(q.u_mean, expected, rtol=1e-8, atol=1e-10)
    assert torch.equal(q.u_chol, torch.zeros(M, M).double())


def test_beta_zero_with_fewer_examples_than_inducing_inputs() -> None:
    """The minimum is a whole plane; a point of it comes back, and the examples are met."""
    A, target = somewhere().features(X[:3]).A, TARGET[:3]
    q = optimal_q(A, target, torch.ones_like(target), 0.0)
    assert bool(q.u_mean.isfinite().all())
    torch.testing.assert_close(A.T @ q.u_mean, target, rtol=1e-6, atol=1e-6)


def test_precision_carries_weights() -> None:
    """An example of weight 3 is the example three times; one of weight 0 is none."""
    weights = torch.arange(N) % 4
    A = somewhere().features(X).A
    weighted = optimal_q(A, TARGET, weights.double() / NOISE, 0.7)
    repeated = torch.repeat_interleave(torch.arange(N), weights)
    precision = torch.full((len(repeated),), 1 / NOISE, dtype=torch.float64)
    copied = optimal_q(A[:, repeated], TARGET[repeated], precision, 0.7)
    torch.testing.assert_close(weighted.u_mean, copied.u_mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(weighted.u_chol, copied.u_chol, rtol=1e-10, atol=1e-12)


def test_optimal_q_of_a_batch_is_that_of_its_members() -> None:
    A = torch.stack([somewhere().features(X).A, 0.5 * random(M, N, seed=6)])
    target, precision = random(2, N, seed=7), 0.5 + random(2, N, seed=8).abs()
    together = optimal_q(A, target, precision, 0.4)
    shared = optimal_q(A[0], target, precision[0], 0.4)
    for i in range(2):
        one = optimal_q(A[i], target[i], precision[i], 0.4)
        torch.testing.assert_close(together.u_mean[i], one.u_mean, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(together.u_chol[i], one.u_chol, rtol=1e-11, atol=1e-13)
        same = optimal_q(A[0], target[i], precision[0], 0.4)
        torch.testing.assert_close(shared.u_mean[i], same.u_mean, rtol=1e-11, atol=1e-13)


def test_float32_is_solved_in_float64() -> None:
    """Only the rounding of A remains, though AAᵀ has a condition that float32 cannot square."""
    A = somewhere().features(X).A
    precision = torch.full((N,), 1e4, dtype=torch.float64)
    narrow = optimal_q(A.float(), TARGET.float(), precision.float(), 1.0)
    wide = optimal_q(A.float().double(), TARGET.float().double(), precision, 1.0)
    assert narrow.u_mean.dtype == narrow.u_chol.dtype == torch.float32
    torch.testing.assert_close(narrow.u_mean.double(), wide.u_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(narrow.u_chol.double(), wide.u_chol, rtol=1e-6, atol=1e-7)


def test_noise_of_each_example() -> None:
    residual, noise = torch.tensor([0.1, 0.2]), torch.tensor(0.5)
    torch.testing.assert_close(example_noise("vfe", noise, residual), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(example_noise("fitc", noise, residual), torch.tensor([0.6, 0.7]))
