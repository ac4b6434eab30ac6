"""The posterior of single summands of f."""

import pytest
import torch
from torch import Tensor

from directgp.kernels.structured import StructuredKernel
from directgp.kernels.summands import Summand, covariances, positions_of, summands_of, variances
from directgp.posteriors.collapsed import optimal_q
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.posteriors.summands import SummandPosterior
from tests.unit.kernels.columns import COLUMNS, EXPRESSIONS, PARTS, inputs

NOISE = 0.3


def kernel_of(text: str, X: Tensor) -> StructuredKernel:
    """Return the kernel with values that differ from the start."""
    torch.manual_seed(1)
    kernel = StructuredKernel.from_data(text, X, COLUMNS)
    with torch.no_grad():
        for value in kernel.parameters():
            value.add_(torch.randn_like(value), alpha=0.3)
    return kernel


def posterior_of(text: str, X: Tensor) -> SparsePosterior:
    """Return a posterior with Z = X and any q(u)."""
    prior = Prior(kernel_of(text, X), output_scale=1.7)
    posterior = SparsePosterior(prior, X[::2])
    torch.manual_seed(2)
    m = posterior.num_inducing
    chol = torch.eye(m, dtype=torch.float64) + 0.2 * torch.randn(m, m, dtype=torch.float64)
    posterior.set_q(torch.randn(m, dtype=torch.float64), chol)
    return posterior


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_summands_add_up_to_the_kernel(text: str) -> None:
    X = inputs(12)
    kernel = kernel_of(text, X)
    summands = summands_of(kernel)
    K = torch.stack([*covariances(kernel, X[:5], X, summands)])
    torch.testing.assert_close(K.sum(0), kernel.covariance(X[:5], X))
    k = torch.stack([*variances(kernel, X, summands)])
    torch.testing.assert_close(k.sum(0), kernel.variance(X))
    # A summand depends on its columns alone.
    for summand, values in zip(summands, k, strict=True):
        others = inputs(12, seed=3)
        positions = positions_of(kernel, summand)
        others[:, positions] = X[:, positions]
        (same,) = variances(kernel, others, [summand])
        torch.testing.assert_close(same, values)


def test_effects_are_those_of_single_columns_and_pairs() -> None:
    kernel = kernel_of("Additive('x', 'z', 'date', order=2) + Linear('x', 'z') + RBF()", inputs(9))
    effects = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    assert summands_of(kernel) == [
        *(Summand((0,), effect) for effect in effects),
        Summand((1,), (0,)),
        Summand((1,), (1,)),
        Summand((2,)),
    ]


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_means_of_summands_add_up_to_the_mean_of_f(text: str) -> None:
    X = inputs(14)
    posterior = posterior_of(text, X)
    parts = SummandPosterior(posterior)
    q = parts.marginals(X)
    f = posterior.predict(X)
    torch.testing.assert_close(q.mean.sum(0) + parts.constant(X), f.mean)
    torch.testing.assert_close(parts.means(X), q.mean)
    assert bool((q.variance > 0).all())


def test_posterior_of_each_term_is_that_of_the_exact_process() -> None:
    """With Z = X and the optimal q(u), p(f_t | y) of Gaussian processes."""
    X = inputs(20)
    y = X[:, 0].sin() + 0.5 * X[:, 1] + (X[:, 3] == 2.0)
    kernel = kernel_of("RBF('x') + Linear('z') + Group('city') * RBF('x')", X)
    posterior = SparsePosterior(Prior(kernel, output_scale=1.7), X)
    precision = torch.full_like(y, 1 / NOISE)
    posterior.set_q(*optimal_q(posterior.features(X).A, y, precision, beta=1.0))
    new = inputs(7, seed=5)
    parts = SummandPosterior(posterior)
    pair = Summand((0, 2))
    q = parts.marginals(new, [*parts.summands, pair])
    with torch.no_grad():
        scale = posterior.prior.scale
        K = scale * kernel.covariance(X, X) + NOISE * torch.eye(20, dtype=torch.float64)
        for i, terms in enumerate([[0], [1], [2], [0, 2]]):
            cross = scale * kernel.covariance(X, new, terms)
            solved = torch.linalg.solve(K, cross)
            torch.testing.assert_close(q.mean[i], solved.T @ y, atol=1e-5, rtol=1e-5)
            variance = scale * kernel.variance(new, terms) - (cross * solved).sum(0)
            torch.testing.assert_close(q.variance[i], variance, atol=1e-5, rtol=1e-5)


def test_latents_and_float32() -> None:
    X = inputs(14)
    posterior = posterior_of(EXPRESSIONS[0], X).with_latents(3)
    with torch.no_grad():
        posterior.u_mean.add_(torch.randn(posterior.u_mean.shape, dtype=torch.float64))
    q = SummandPosterior(posterior).marginals(X)
    assert q.mean.shape == (3, 3, 14)
    torch.testing.assert_close(q.mean.sum(0), posterior.predict(X).mean)
    own = posterior.with_own_kernels()
    torch.testing.assert_close(SummandPosterior(own).marginals(X).variance, q.variance)
    narrow = posterior.float()
    assert SummandPosterior(narrow).marginals(X.float()).mean.dtype == torch.float64


def test_a_kernel_that_is_no_expression_is_one_summand() -> None:
    X = inputs(14)
    posterior = SparsePosterior.from_data(X, X[:, 0], kernel="matern52", mean="constant")
    posterior.set_q(
        torch.randn(14, dtype=torch.float64)[: posterior.num_inducing], posterior.u_chol
    )
    parts = SummandPosterior(posterior)
    q = parts.marginals(X)
    f = posterior.predict(X)
    torch.testing.assert_close(q.mean[0] + parts.constant(X), f.mean)
    torch.testing.assert_close(q.variance[0], f.variance)
