"""GPyTorch likelihoods of which nothing is known but log p(y given f)."""

import math
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import betaln, expit, xlogy
from torch import Tensor

from directgp import expected_log_prob, log_expectation
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.interop.gpytorch.adapted import Adapted
from directgp.likelihoods import Likelihood

Array = NDArray[np.float64]


def adapted(source: Any, *args: Any, **kwargs: Any) -> Adapted:
    return Adapted(source, args, kwargs)


def laplace(noise: float) -> Any:
    likelihood = gpytorch.likelihoods.LaplaceLikelihood().double()
    likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    return likelihood


def beta(scale: float) -> Any:
    likelihood = gpytorch.likelihoods.BetaLikelihood().double()
    likelihood.scale = torch.tensor(scale, dtype=torch.float64)
    return likelihood


def log_laplace(y: float, f: Array, noise: float) -> Array:
    return np.asarray(-np.abs(y - f) / np.sqrt(noise) - np.log(2 * np.sqrt(noise)))


def log_beta(y: float, f: Array, scale: float) -> Array:
    a = scale * expit(f) + 1
    b = scale * expit(-f) + 1
    return np.asarray(xlogy(a - 1, y) + xlogy(b - 1, 1 - y) - betaln(a, b))


def exact(log_prob: Any, y: float, mean: float, variance: float, theta: float) -> list[list[float]]:
    """log E_q[p], E_q[log p] and their slopes in mean and variance.

    Slow and obvious: 20 nodes on each of very many pieces, which end at the kink of Laplace's
    density, and the slopes by differentiating q under the integral.
    """
    deviation = np.sqrt(variance)
    kink = (y - mean) / deviation
    near = kink + np.concatenate([-(2.0 ** np.arange(-25, 5)), 2.0 ** np.arange(-25, 5)])
    ends = np.unique(np.clip(np.concatenate([near, [kink], np.linspace(-14, 14, 500)]), -14, 14))
    x, weight = np.polynomial.legendre.leggauss(20)
    half = np.diff(ends)[:, None] / 2
    z = (ends[:-1, None] + half + half * x).ravel()
    q = (half * weight).ravel() * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    values = log_prob(y, mean + deviation * z, theta)

    def moments(g: Array) -> Array:
        first, second = (q * g * z).sum() / deviation, (q * g * (z * z - 1)).sum() / (2 * variance)
        return np.array([(q * g).sum(), first, second])

    top = values.max()
    mass = moments(np.exp(values - top))
    dlm = [np.log(mass[0]) + top, mass[1] / mass[0], mass[2] / mass[0]]
    return [dlm, moments(values).tolist()]


CASES = [
    (laplace, log_laplace, 0.25, 0.3, 0.1, 0.5),
    (laplace, log_laplace, 0.01, 4.0, -1.0, 2.0),
    (laplace, log_laplace, 1e-4, 0.5, 0.4, 0.1),
    (beta, log_beta, 5.0, 0.2, 1.0, 0.7),
    (beta, log_beta, 80.0, 0.999, -2.0, 0.3),
]


@pytest.mark.parametrize(("make", "log_prob", "theta", "y", "mean", "variance"), CASES)
def test_value_and_slopes(
    make: Any, log_prob: Any, theta: float, y: float, mean: float, variance: float
) -> None:
    likelihood = adapted(make(theta))
    target = torch.tensor([y], dtype=torch.float64)
    for compute, expected in zip(
        (log_expectation, expected_log_prob), exact(log_prob, y, mean, variance, theta), strict=True
    ):
        m = torch.tensor([mean], dtype=torch.float64, requires_grad=True)
        v = torch.tensor([variance], dtype=torch.float64, requires_grad=True)
        value = compute(likelihood, target, m, v)
        slopes = torch.autograd.grad(value, (m, v))
        found = [each.item() for each in (value, *slopes)]
        assert found == pytest.approx(expected, rel=1e-8, abs=1e-10)


def test_gradients_lead_to_the_parameters() -> None:
    """Against differences of the value, for a parameter of each member of a batch."""
    source = gpytorch.likelihoods.LaplaceLikelihood(batch_shape=torch.Size([2])).double()
    y = torch.tensor([0.3, -1.0, 4.0], dtype=torch.float64)
    mean, variance = torch.zeros(2, 3).double(), torch.full((2, 3), 0.5).double()

    def value() -> Tensor:
        return log_expectation(adapted(source), y, mean, variance).sum(-1)

    (slope,) = torch.autograd.grad(value().sum(), source.raw_noise)
    step = 1e-6
    with torch.no_grad():
        source.raw_noise += step
        above = value()
        source.raw_noise -= 2 * step
        below = value()
    torch.testing.assert_close(slope[:, 0], (above - below) / (2 * step), rtol=1e-6, atol=1e-8)


def test_values_of_the_call_go_with_their_examples() -> None:
    class Shifted(gpytorch.likelihoods.Likelihood):
        def forward(self, function_samples: Tensor, *params: Any, shift: Tensor) -> Any:
            return torch.distributions.Laplace(function_samples + shift, 1.0)

    shift = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
    y, mean, variance = torch.zeros(3).double(), torch.ones(3).double(), torch.ones(3).double()
    found = log_expectation(adapted(Shifted(), shift=shift), y, mean, variance)
    moved = log_expectation(adapted(laplace(1.0)), y, mean + shift, variance)
    torch.testing.assert_close(found, moved)


def test_gpytorch_misses_the_kink() -> None:
    """Why this is not left to 20 nodes: the loss is off by a twentieth of a nat."""
    source, y = laplace(0.01), torch.zeros(1).double()
    mean, variance = torch.zeros(1).double(), torch.full((1,), 0.25).double()
    q = gpytorch.distributions.MultivariateNormal(mean, torch.diag(variance))
    value, _, _ = exact(log_laplace, 0.0, 0.0, 0.25, 0.01)[0]
    ours = log_expectation(adapted(source), y, mean, variance).item()
    assert ours == pytest.approx(value, rel=1e-9)
    assert abs(source.log_marginal(y, q).item() - value) > 0.05


def test_float32_parameters_are_widened() -> None:
    narrow, wide = gpytorch.likelihoods.BetaLikelihood(), beta(1.0)
    wide.raw_scale.data = narrow.raw_scale.data.double()
    y = torch.tensor([0.2, 0.9])
    found = log_expectation(adapted(narrow), y, torch.zeros(2), torch.ones(2))
    known = log_expectation(
        adapted(wide), y.double(), torch.zeros(2).double(), torch.ones(2).double()
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), known, rtol=1e-7, atol=1e-7)
    (slope,) = torch.autograd.grad(found.sum(), narrow.raw_scale)
    assert slope.dtype == torch.float32 and math.isfinite(slope.item())


@pytest.mark.parametrize("rule", ["bmc", "smooth_bmc"])
def test_monte_carlo_rules(rule: str) -> None:
    likelihood: Likelihood = adapted(laplace(0.25))
    generator = torch.Generator().manual_seed(0)
    one = torch.ones(4000, dtype=torch.float64)
    drawn = log_expectation(likelihood, 0 * one, 0.3 * one, 0.01 * one, rule, generator)
    exactly = log_expectation(likelihood, 0 * one[:1], 0.3 * one[:1], 0.01 * one[:1])
    error = drawn.std() / math.sqrt(len(one))
    # Ten draws are biased by about half their variance, here 2e-3.
    assert abs(drawn.mean() - exactly) < 4 * error + 3e-3


def test_targets_outside_the_support() -> None:
    with pytest.raises(InvalidInputError, match="y of BetaLikelihood must be in the support"):
        log_expectation(adapted(beta(1.0)), torch.tensor([1.5]), torch.zeros(1), torch.ones(1))


def test_likelihoods_of_several_latent_values() -> None:
    class Pair(gpytorch.likelihoods.Likelihood):
        def forward(self, function_samples: Tensor, *params: Any) -> Any:
            return torch.distributions.Normal(function_samples.mean(-1), 1.0)

    with pytest.raises(UnsupportedError, match=r"Got Pair, whose p.y given f. is a Normal of"):
        log_expectation(adapted(Pair()), torch.zeros(4), torch.zeros(4), torch.ones(4))


def test_product_sampling_says_what_it_lacks() -> None:
    with pytest.raises(UnsupportedError, match=r"Got Adapted. Use Quadrature or BiasedMonteCarlo"):
        one = torch.ones(2)
        log_expectation(adapted(laplace(1.0)), one, one, one, rule="ups")
