"""Gaussian noise with a latent function for the log of its variance."""

import math
from itertools import product
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from directgp import Marginals, expected_log_prob, log_expectation
from directgp.likelihoods import Gaussian, HeteroscedasticGaussian
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling
from directgp.objectives import CRPSLoss, PinballLoss, PointLoss, SquareLoss
from directgp.predictive import (
    predictive_cdf,
    predictive_crps,
    predictive_mean,
    predictive_quantiles,
    predictive_variance,
)

LIKELIHOOD = HeteroscedasticGaussian()


def wide(values: object) -> Tensor:
    return torch.tensor(np.array(values, dtype=np.float64))


def _truth(y: float, mean: float, log_noise: float, v: float, spread: float) -> float:
    """log ∫ N(t; μ₂, v₂) N(y; μ₁, v₁ + e^t) dt, split where the integrand is large."""
    s, square = math.sqrt(spread), (y - mean) ** 2

    def height(t: float) -> float:
        noise = v + math.exp(t)
        return -0.5 * (math.log(noise) + square / noise + (t - log_noise) ** 2 / spread)

    peak = math.log(square - v) if square > v else log_noise
    ends = min(log_noise, peak) - 12 * s, max(log_noise, peak) + 12 * s
    grid = np.unique([*np.linspace(*ends, 4001), *(log_noise + s * np.linspace(-12, 12, 4001))])
    heights = np.array([height(t) for t in grid])
    top = heights.max()
    near = grid[heights > top - 80]
    points = np.linspace(near[0] - 1e-9, near[-1] + 1e-9, 120)
    with mp.workdps(25):
        area = mp.quad(
            lambda t: mp.exp(
                -0.5
                * (
                    mp.log(v + mp.exp(t))
                    + square / (v + mp.exp(t))
                    + (t - log_noise) ** 2 / mp.mpf(spread)
                )
                - top
            ),
            points.tolist(),
        )
        return float(mp.log(area) + top - mp.log(2 * mp.pi) - mp.log(spread) / 2)


FEW = {(0.0, 1e-6, 0.3), (1.5, 0.2, 1e-4), (1.5, 20.0, 4.0), (40.0, 0.2, 0.3), (40.0, 1e-6, 4.0)}


@pytest.mark.parametrize(
    ("y", "v", "spread"),
    [
        pytest.param(*each, marks=() if each in FEW else pytest.mark.slow)
        for each in product([0.0, 1.5, 40.0], [1e-6, 0.2, 20.0], [1e-4, 0.3, 4.0])
    ],
)
def test_log_expectation_agrees_with_mpmath(y: float, v: float, spread: float) -> None:
    mean, variance = wide([[0.0], [-1.0]]), wide([[v], [spread]])
    found = log_expectation(LIKELIHOOD, wide([y]), mean, variance)
    assert float(found) == pytest.approx(_truth(y, 0.0, -1.0, v, spread), rel=1e-9)


def test_without_variance_of_the_noise_it_is_gaussian() -> None:
    y, mean, v = wide([0.3, -2.0, 9.0]), wide([0.1, 0.5, -1.0]), wide([0.2, 1.0, 4.0])
    noise = 0.37
    latents = torch.stack([mean, torch.full_like(mean, math.log(noise))])
    variances = torch.stack([v, torch.full_like(v, 1e-12)])
    for integral in (log_expectation, expected_log_prob):
        found = integral(LIKELIHOOD, y, latents, variances)
        truth = integral(Gaussian(noise), y, mean, v).detach()
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rule", ["auto", BiasedMonteCarlo(6), BiasedMonteCarlo(6, nu=0.01), None])
def test_gradients_are_those_of_the_value(rule: object) -> None:
    y = wide([0.7, -3.0, 2.0])
    mean = wide([[0.1, 0.2, 0.3], [-1.0, 0.0, 1.0]]).requires_grad_()
    variance = wide([[0.5, 0.1, 2.0], [0.3, 1.0, 0.01]]).requires_grad_()

    def value(mean: Tensor, variance: Tensor) -> Tensor:
        if rule is None:
            return expected_log_prob(LIKELIHOOD, y, mean, variance)
        draws = torch.Generator().manual_seed(0)
        return log_expectation(LIKELIHOOD, y, mean, variance, rule, draws)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(value, (mean, variance), atol=1e-7)


def test_product_sampling_is_unbiased() -> None:
    number = 20_000
    mean, variance = wide([[0.2], [0.0]]), wide([[0.1], [1.0]])
    m, v = (each.expand(2, number).clone().requires_grad_() for each in (mean, variance))
    rule, random = ProductSampling(1, gradient="score"), torch.Generator().manual_seed(0)
    y = torch.full((number,), -2.0, dtype=torch.float64)
    drawn = torch.autograd.grad(log_expectation(LIKELIHOOD, y, m, v, rule, random).sum(), (m, v))
    one, other = mean.requires_grad_(), variance.requires_grad_()
    exact = torch.autograd.grad(log_expectation(LIKELIHOOD, y[:1], one, other).sum(), (one, other))
    for slopes, truth in zip(drawn, exact, strict=True):
        z = (slopes.mean(1) - truth[:, 0]) / (slopes.std(1) / number**0.5)
        assert float(z.abs().max()) < 4.5


def test_the_predictive_distribution_is_that_of_draws() -> None:
    q = Marginals(wide([[0.5], [-1.0]]), wide([[0.3], [0.8]]))
    random, number = np.random.RandomState(0), 200_000
    noise = random.standard_normal((2, number))
    f = wide(q.mean.numpy() + np.sqrt(q.variance.numpy()) * noise)
    drawn = LIKELIHOOD.sample(f, random)
    mean, variance = predictive_mean(LIKELIHOOD, q), predictive_variance(LIKELIHOOD, q)
    error = math.sqrt(float(variance) / number)
    assert abs(drawn.mean() - float(mean)) < 4.5 * error
    levels = [0.05, 0.5, 0.9]
    found = predictive_quantiles(LIKELIHOOD, q, levels)
    back = predictive_cdf(LIKELIHOOD, found, q)
    torch.testing.assert_close(back[:, 0], wide(levels), rtol=1e-10, atol=0)
    for level, value in zip(levels, found[:, 0].tolist(), strict=True):
        share = (drawn <= value).mean()
        assert abs(share - level) < 4.5 * math.sqrt(level * (1 - level) / number)
    other = LIKELIHOOD.sample(f.flip(1), random)
    for y in (0.5, 3.0):
        scores = abs(drawn - y) - 0.5 * abs(drawn - other)
        score = float(predictive_crps(LIKELIHOOD, wide([y]), q))
        assert abs(scores.mean() - score) < 4.5 * scores.std() / number**0.5


class LargestArray(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is computed."""

    elements: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_the_score_needs_no_array_of_pairs_of_nodes() -> None:
    mean, variance = wide([[0.5] * 10_000, [-1.0] * 10_000]), wide([[0.3] * 10_000, [0.8] * 10_000])
    with LargestArray() as largest:  # type: ignore[no-untyped-call]
        score = predictive_crps(LIKELIHOOD, wide([0.1] * 10_000), Marginals(mean, variance))
    assert largest.elements < 500_000
    # Few examples have all pairs in one array.
    one = predictive_crps(LIKELIHOOD, wide([0.1]), Marginals(mean[:, :1], variance[:, :1]))
    torch.testing.assert_close(score[:1], one, rtol=1e-13, atol=0.0)


LOSSES = [CRPSLoss(), SquareLoss(), PinballLoss(0.9)]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_losses_have_one_value_an_example_and_its_gradient(loss: PointLoss) -> None:
    """Also of a batch of models, each of which has its own."""
    generator = torch.Generator().manual_seed(0)
    mean, variance, y = (torch.randn(3, k, 5, generator=generator).double() for k in (2, 2, 1))
    y, variance = y[:, 0], variance.square() + 0.1
    rows = mean.requires_grad_(), variance.requires_grad_()
    found = loss(LIKELIHOOD, y, Marginals(*rows))
    assert found.shape == (3, 5)
    for k in range(3):
        alone = loss(LIKELIHOOD, y[k], Marginals(mean[k], variance[k]))
        torch.testing.assert_close(found[k], alone)
    slopes = torch.autograd.grad(found.sum(), rows, materialize_grads=True, allow_unused=True)
    for i, latent in product((0, 1), (0, 1)):
        step = torch.zeros_like(mean)
        step[:, latent] = 1e-5
        with torch.no_grad():
            ends = [
                loss(LIKELIHOOD, y, Marginals(mean + (1 - i) * move, variance + i * move))
                for move in (step, -step)
            ]
        by_steps = (ends[0] - ends[1]) / 2e-5
        torch.testing.assert_close(slopes[i][:, latent], by_steps, rtol=1e-6, atol=1e-8)
