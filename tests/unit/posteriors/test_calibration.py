"""Variances after square loss: calibrated on new data, with unchanged means."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import directgp
from directgp.likelihoods import Gaussian
from directgp.posteriors import Prior, SparsePosterior
from directgp.posteriors.collapsed import Calibrated, calibrate, optimal_q
from tests.reference import gaussian_process as reference

N, M = 60, 8
RIDGE = 0.2


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


X = normal(N, 1)
Y = torch.sin(2 * X[:, 0]) + 0.3 * normal(N, seed=1)
NEW = normal(25, 1, seed=2)


def fitted(
    y: Tensor = Y, ridge: float = RIDGE, weights: Tensor | None = None, Z: Tensor | None = None
) -> SparsePosterior:
    """The square-loss solution at a unit scale."""
    inducing = torch.linspace(-2, 2, M, dtype=torch.float64).reshape(-1, 1) if Z is None else Z
    posterior = SparsePosterior(Prior.from_data(X), inducing)
    A = posterior.features(X).A
    flat = torch.ones(N).double() if weights is None else weights
    posterior.set_q(optimal_q(A, y, flat, ridge).u_mean, torch.eye(len(inducing)).double())
    return posterior


def calibrated(y: Tensor = Y, ridge: float = RIDGE, weights: Tensor | None = None) -> Calibrated:
    return calibrate(fitted(y, ridge, weights), X, y, ridge, weights)


@pytest.mark.parametrize("ridge", [1e-3, 0.2, 50.0])
def test_the_mean_is_left_alone(ridge: float) -> None:
    before, after = fitted(ridge=ridge), calibrated(ridge=ridge)
    expected = before.predict(NEW).mean
    torch.testing.assert_close(after.posterior.predict(NEW).mean, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(after.posterior.Z, before.Z)
    kernels = [p.prior.kernel.lengthscale for p in (before, after.posterior)]
    assert torch.equal(*kernels)


def test_it_is_the_model_that_has_that_mean() -> None:
    """Variances are those of VFE with kernel c·k and noise c·ρ, at the c that was chosen."""
    found = calibrated()
    scale = found.posterior.prior.output_scale.item()
    assert found.noise == pytest.approx(scale * RIDGE, rel=1e-12)
    features = found.posterior.features(X)
    q = optimal_q(features.A, Y, torch.full((N,), 1 / found.noise).double(), 1.0)
    # K_uu is factorised anew after scaling, and with a nugget of 1e-8 its condition is 1e8.
    torch.testing.assert_close(found.posterior.u_mean.detach(), q.u_mean, rtol=1e-7, atol=1e-7)
    chol = found.posterior.u_chol.detach()
    torch.testing.assert_close(chol @ chol.mT, q.u_chol @ q.u_chol.mT, rtol=1e-7, atol=1e-7)


def leave_one_out(posterior: SparsePosterior, scale: float) -> float:
    """Log predictive density of each example by the model without it, at kernel c·k, noise c·ρ."""
    lengthscale = posterior.prior.kernel.lengthscale.detach().numpy()
    x, Z = X.numpy(), posterior.Z.detach().numpy()
    total = 0.0
    for i in range(N):
        rest = np.arange(N) != i
        Kuu = reference.rbf(Z, Z, lengthscale, scale) + posterior.nugget * scale * np.eye(len(Z))
        Kuf = reference.rbf(Z, x[rest], lengthscale, scale)
        precision = np.full(N - 1, 1 / (scale * RIDGE))
        u = reference.optimal_u(Kuu, Kuf, Y.numpy()[rest], precision, 1.0)
        Kui = reference.rbf(Z, x[i : i + 1], lengthscale, scale)
        f = reference.sparse_posterior(Kuu, Kui, np.full((1, 1), scale), u.mean, u.variance)
        variance = f.variance[0, 0] + scale * RIDGE
        residual = Y.numpy()[i] - f.mean[0]
        total += -0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance)
    return total


def test_the_scale_maximises_the_leave_one_out_density() -> None:
    """Found by refitting without each example in turn: the formula's c is at the top."""
    scale = calibrated().posterior.prior.output_scale.item()
    centre = leave_one_out(fitted(), scale)
    for factor in (0.8, 0.97, 1.03, 1.25):
        assert leave_one_out(fitted(), factor * scale) < centre
    slope = leave_one_out(fitted(), 1.001 * scale) - leave_one_out(fitted(), 0.999 * scale)
    # Of a curvature of N/2 in log c.
    assert abs(slope) < 1e-3 * N * 2e-3


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e5])
def test_it_scales_with_the_targets(factor: float) -> None:
    one, other = calibrated(), calibrated(factor * Y)
    assert other.noise == pytest.approx(factor**2 * one.noise, rel=1e-10)
    small, large = one.posterior.predict(NEW), other.posterior.predict(NEW)
    torch.testing.assert_close(large.mean, factor * small.mean, rtol=1e-9, atol=1e-9 * factor)
    torch.testing.assert_close(large.variance, factor**2 * small.variance, rtol=1e-9, atol=0)


def test_training_scales_with_the_targets() -> None:
    noises = []
    for factor in (1.0, 10.0):
        posterior = fitted()
        for p in (*posterior.prior.parameters(), posterior.Z):
            p.requires_grad_(False)
        result = directgp.train(
            posterior,
            Gaussian(0.1),
            X,
            factor * Y,
            objective="square_loss",
            beta=RIDGE,
            start="scratch",
        )
        assert isinstance(result.likelihood, Gaussian)
        noises.append(result.likelihood.noise.item())
    assert noises[1] == pytest.approx(100 * noises[0], rel=1e-9)


def test_integer_weights_are_repeated_rows_in_the_covariance() -> None:
    weights = (torch.arange(N) % 3 + 1).double()
    rows = torch.repeat_interleave(torch.arange(N), weights.long())
    posterior = fitted(weights=weights)
    one = calibrate(posterior, X, Y, RIDGE, weights)
    other = calibrate(posterior, X[rows], Y[rows], RIDGE)
    chol, expected = one.posterior.u_chol.detach(), other.posterior.u_chol.detach()
    torch.testing.assert_close(chol @ chol.mT, expected @ expected.mT, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 1e-12])
def test_no_ridge_and_no_residuals(ridge: float) -> None:
    """As many inducing inputs as examples that are met exactly: finite, and small."""
    x = torch.linspace(-2, 2, 5, dtype=torch.float64).reshape(-1, 1)
    posterior = SparsePosterior(Prior.from_data(x), x)
    y = torch.sin(x[:, 0])
    A = posterior.features(x).A
    posterior.set_q(optimal_q(A, y, torch.ones(5).double(), 1e-10).u_mean, torch.eye(5).double())
    found = calibrate(posterior, x, y, ridge)
    assert 0 <= found.noise < 1e-3
    predicted = found.posterior.predict(NEW)
    assert bool(predicted.variance.isfinite().all()) and bool((predicted.variance > 0).all())


def test_targets_that_are_all_zero() -> None:
    found = calibrated(torch.zeros(N).double())
    predicted = found.posterior.predict(NEW)
    assert found.noise > 0 and bool((predicted.variance > 0).all())
    assert not predicted.mean.any()


def drawn(seed: int, n: int, noise: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training data, and fresh data, from one draw of a Gaussian process with unit scale."""
    inputs = 4 * torch.rand(n + 400, 1, generator=torch.Generator().manual_seed(seed)).double()
    K = torch.exp(-0.5 * (inputs - inputs.mT).square() / 0.5**2)
    L = torch.linalg.cholesky(K + 1e-8 * torch.eye(len(K)))
    y = L @ normal(len(K), seed=seed + 1) + noise * normal(len(K), seed=seed + 2)
    return inputs[:n], y[:n], inputs[n:], y[n:]


@pytest.mark.parametrize(("hyperparameters", "factor"), [("fixed", 1), ("joint", 10)])
@pytest.mark.parametrize("noise", [0.1, 0.5])
@pytest.mark.usefixtures("without_shape_checks")
def test_intervals_cover_fresh_data(
    noise: float, hyperparameters: Literal["fixed", "joint"], factor: float
) -> None:
    """Of 400 new targets 90 % lie in their interval, and the noise is about what it was.

    Within 3 binomial standard errors (4.5 points) and 2 points more. β is that of the truth with
    hyperparameters from the ELBO; joint training fits hyperparameters too, and asks for more.
    """
    x, y, x_new, y_new = drawn(10, 150, noise)
    result = directgp.train(
        SparsePosterior.from_data(
            x, y, num_inducing=20, generator=torch.Generator().manual_seed(0)
        ),
        Gaussian(0.1),
        x,
        y,
        objective="square_loss",
        beta=factor * noise**2,
        hyperparameters=hyperparameters,
        max_steps=60,
        generator=torch.Generator().manual_seed(0),
    )
    assert isinstance(result.likelihood, Gaussian)
    spread = result.likelihood.noise.item()
    marginals = result.posterior.predict(x_new)
    deviation = (marginals.variance + spread).sqrt()
    covered = float(((y_new - marginals.mean).abs() < 1.6449 * deviation).double().mean())
    assert abs(covered - 0.9) < 3 * (0.09 / 400) ** 0.5 + 0.02
    assert spread == pytest.approx(noise**2, rel=0.4)
