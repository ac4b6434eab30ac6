"""GPyTorch likelihoods that define only log p(y given f)."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import gpytorch
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import betaln, expit, xlogy
from torch import Tensor

from directgp import expected_log_prob, log_expectation
from directgp.errors import InvalidInputError, NumericalError, UnsupportedError
from directgp.interop.gpytorch.translation import Adapted
from directgp.likelihoods import Likelihood, Logistic

Array = NDArray[np.float64]


def adapted(source: Any, *shape: int, **kwargs: Any) -> Adapted:
    return Adapted(source, torch.Size(shape), **kwargs)


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
    likelihood = adapted(make(theta), 1)
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
        return log_expectation(adapted(source, 2, 3), y, mean, variance).sum(-1)

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
    found = log_expectation(adapted(Shifted(), 3, shift=shift), y, mean, variance)
    moved = log_expectation(adapted(laplace(1.0), 3), y, mean + shift, variance)
    torch.testing.assert_close(found, moved)


def test_gpytorch_misses_the_kink() -> None:
    """Why this is not left to 20 nodes: the loss is off by a twentieth of a nat."""
    source, y = laplace(0.01), torch.zeros(1).double()
    mean, variance = torch.zeros(1).double(), torch.full((1,), 0.25).double()
    q = gpytorch.distributions.MultivariateNormal(mean, torch.diag(variance))
    value, _, _ = exact(log_laplace, 0.0, 0.0, 0.25, 0.01)[0]
    ours = log_expectation(adapted(source, 1), y, mean, variance).item()
    assert ours == pytest.approx(value, rel=1e-9)
    assert abs(source.log_marginal(y, q).item() - value) > 0.05


def test_float32_parameters_are_widened() -> None:
    narrow, wide = gpytorch.likelihoods.BetaLikelihood(), beta(1.0)
    wide.raw_scale.data = narrow.raw_scale.data.double()
    y = torch.tensor([0.2, 0.9])
    found = log_expectation(adapted(narrow, 2), y, torch.zeros(2), torch.ones(2))
    known = log_expectation(
        adapted(wide, 2), y.double(), torch.zeros(2).double(), torch.ones(2).double()
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), known, rtol=1e-7, atol=1e-7)
    (slope,) = torch.autograd.grad(found.sum(), narrow.raw_scale)
    assert slope.dtype == torch.float32 and math.isfinite(slope.item())


@pytest.mark.parametrize("rule", ["bmc", "smooth_bmc"])
def test_monte_carlo_rules(rule: str) -> None:
    likelihood: Likelihood = adapted(laplace(0.25), 4000)
    generator = torch.Generator().manual_seed(0)
    one = torch.ones(4000, dtype=torch.float64)
    drawn = log_expectation(likelihood, 0 * one, 0.3 * one, 0.01 * one, rule, generator)
    exactly = log_expectation(adapted(laplace(0.25), 1), 0 * one[:1], 0.3 * one[:1], 0.01 * one[:1])
    error = drawn.std() / math.sqrt(len(one))
    # Ten draws are biased by about half their variance, here 2e-3.
    assert abs(drawn.mean() - exactly) < 4 * error + 3e-3


def test_targets_outside_the_support() -> None:
    with pytest.raises(InvalidInputError, match="y of BetaLikelihood must be in the support"):
        log_expectation(adapted(beta(1.0), 1), torch.tensor([1.5]), torch.zeros(1), torch.ones(1))


def test_likelihoods_of_several_latent_values() -> None:
    class Pair(gpytorch.likelihoods.Likelihood):
        def forward(self, function_samples: Tensor, *params: Any) -> Any:
            return torch.distributions.Normal(function_samples.mean(-1), 1.0)

    with pytest.raises(UnsupportedError, match=r"Got Pair, whose p.y given f. is a Normal of"):
        log_expectation(adapted(Pair(), 4), torch.zeros(4), torch.zeros(4), torch.ones(4))


def test_product_sampling_says_what_it_lacks() -> None:
    with pytest.raises(UnsupportedError, match=r"Got Adapted. Use Quadrature or BiasedMonteCarlo"):
        one = torch.ones(2)
        log_expectation(adapted(laplace(1.0), 2), one, one, one, rule="ups")


def made(forward: Callable[..., Any], *modules: torch.nn.Module) -> Any:
    """A likelihood of somebody's own."""

    class Own(gpytorch.likelihoods.Likelihood):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(modules)

        def forward(self, function_samples: Tensor, *params: Any, **kwargs: Any) -> Any:
            return forward(function_samples, **kwargs)

    return Own()


ROWS = 0.1 * torch.arange(6, dtype=torch.float64), 0.5 + torch.zeros(6, dtype=torch.float64)


def laplace_at(mean: Tensor, scale: float) -> Tensor:
    return log_expectation(adapted(laplace(scale**2), 6), torch.zeros(6).double(), mean, ROWS[1])


@pytest.mark.parametrize("length", [6, 9])
def test_arguments_that_are_taken_as_a_whole(length: int) -> None:
    source = made(lambda f, w: torch.distributions.Laplace(f, w.sum()))
    weights = torch.ones(length).double() / 4
    found = log_expectation(adapted(source, 6, w=weights), torch.zeros(6).double(), *ROWS)
    torch.testing.assert_close(found, laplace_at(ROWS[0], length / 4))


@pytest.mark.parametrize(
    "centre",
    [lambda f: f - f.mean(), lambda f: f.cumsum(-1)],
    ids=["mean over examples", "running sum"],
)
def test_examples_that_are_not_by_themselves(centre: Callable[[Tensor], Tensor]) -> None:
    source = made(lambda f: torch.distributions.Laplace(centre(f), 1.0))
    with pytest.raises(UnsupportedError, match=r"a p.y given f. of its own\. Got Own"):
        log_expectation(adapted(source, 6), torch.zeros(6).double(), *ROWS)


def test_a_likelihood_may_contain_a_network() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(1, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    source = made(
        lambda f: torch.distributions.Laplace(network(f[..., None])[..., 0], 0.5), network
    )
    likelihood, y = adapted(source, 6), torch.zeros(6).double()
    found = log_expectation(likelihood, y, *ROWS)
    z = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    with torch.no_grad():
        f = ROWS[0][:, None] + ROWS[1].sqrt()[:, None] * z
        density = likelihood.log_kernel(y[:, None], f).exp() * torch.exp(-0.5 * z * z)
        known = (density.sum(-1) * (z[1] - z[0]) / math.sqrt(2 * math.pi)).log()
    torch.testing.assert_close(found.detach(), known, rtol=1e-6, atol=1e-6)
    (slope, *_) = torch.autograd.grad(found.sum(), list(network.parameters()))
    assert bool(slope.any())


def test_a_support_that_depends_on_f() -> None:
    source = made(lambda f: torch.distributions.Uniform(f - 3, f + 3))
    y, mean = torch.full((1,), 0.2).double(), torch.zeros(1).double().requires_grad_()
    found = log_expectation(adapted(source, 1), y, mean, torch.ones(1).double())
    normal = torch.distributions.Normal(0.0, 1.0)
    lower, upper = torch.tensor([-2.8, 3.2], dtype=torch.float64)
    mass = normal.cdf(upper) - normal.cdf(lower)
    assert found.item() == pytest.approx(math.log(mass.item() / 6), rel=1e-9)
    slope = (normal.log_prob(lower).exp() - normal.log_prob(upper).exp()) / mass
    assert torch.autograd.grad(found, mean)[0].item() == pytest.approx(slope.item(), rel=1e-6)


def test_parameters_that_underflow_far_out() -> None:
    def forward(f: Tensor) -> Any:
        return torch.distributions.Beta(20 * torch.sigmoid(f), 20 * torch.sigmoid(-f))

    y, one = torch.full((1,), 0.3).double(), torch.ones(1).double()
    for compute in (log_expectation, expected_log_prob):
        assert torch.isfinite(compute(adapted(made(forward), 1), y, 0 * one, 4 * one))
    assert torch.distributions.Beta(1.0, 1.0)._validate_args


def test_labels_by_torch() -> None:
    """log(1 − p) has few digits where p is nearly 1; the integral has as many."""
    source = made(lambda f: torch.distributions.Bernoulli(probs=torch.sigmoid(f)))
    mean, one = torch.arange(-20.0, 28.0, 4.0).double(), torch.ones(12).double()
    found = log_expectation(adapted(source, 12), 0 * one, mean, one)
    known = log_expectation(Logistic(), 0 * one, mean, one)
    torch.testing.assert_close(found, known, rtol=1e-3, atol=1e-9)


def test_distributions_with_events() -> None:
    def forward(f: Tensor) -> Any:
        normal = torch.distributions.Normal(f[..., None], 1.0)
        return torch.distributions.Independent(normal, 1)

    with pytest.raises(UnsupportedError, match="is a Independent of shape"):
        log_expectation(adapted(made(forward), 6), torch.zeros(6).double(), *ROWS)


def test_a_density_that_is_undefined_somewhere_is_told() -> None:
    source = made(lambda f: torch.distributions.Normal(f, f.abs()))
    one = torch.ones(1).double()
    with pytest.raises(NumericalError, match=r"log p.y given f. is NaN"):
        log_expectation(adapted(source, 1), 2 * one, one, one)


class Bare(torch.distributions.Distribution):
    """Somebody's own distribution, with log_prob and nothing else."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, loc: Tensor) -> None:
        self.loc = loc
        super().__init__(loc.shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return -(value - self.loc).abs() - math.log(2)


def test_distributions_with_log_prob_alone() -> None:
    found = log_expectation(adapted(made(Bare), 6), torch.zeros(6).double(), *ROWS)
    torch.testing.assert_close(found, laplace_at(ROWS[0], 1.0))
    apart = adapted(made(lambda f: Bare(f - f.mean())), 6)
    with pytest.raises(UnsupportedError, match="of its own"):
        log_expectation(apart, torch.zeros(6).double(), *ROWS)
