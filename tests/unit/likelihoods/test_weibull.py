"""Weibull times: observed, censored to the right, and known by an interval."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import directgp
from directgp import SparseGPRegressor
from directgp.diagnostics import check_likelihood
from directgp.errors import InvalidInputError
from directgp.integration.adaptive import adaptive_gibbs, adaptive_log_expectation
from directgp.integration.contract import FlatExamples
from directgp.likelihoods import Weibull


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


Y = row(0.2, 1.0, 3.0)
ENDS = {
    "observed": row(0.2, 1.0, 3.0),
    "censored": row(math.inf, math.inf, math.inf),
    "intervals": row(0.3, 1.5, 1e3),
    "of each kind": row(0.2, math.inf, 3.0001),
}
each_kind = pytest.mark.parametrize("upper", ENDS.values(), ids=ENDS.keys())


@each_kind
def test_derivatives_are_those_of_autograd(upper: Tensor) -> None:
    likelihood = Weibull(1.7).with_row_values(upper)
    f = torch.linspace(-2.2, 3, 7, dtype=torch.float64)[:, None].repeat(1, 3).requires_grad_()
    value = likelihood.log_kernel(Y, f)
    (first,) = torch.autograd.grad(value.sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), f)
    derivatives = likelihood.derivatives(Y, f.detach())
    torch.testing.assert_close(derivatives.first, first.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(derivatives.second, second, rtol=1e-12, atol=1e-12)
    assert bool((derivatives.second <= 0).all())
    log_prob = likelihood.log_kernel(Y, f.detach()) + likelihood.log_base(Y)
    (by_raw,) = torch.autograd.grad(log_prob.sum(), likelihood.raw_shape)
    (slopes,) = likelihood.parameter_slopes(Y, f.detach())
    by_shape = slopes.sum() * torch.sigmoid(likelihood.raw_shape)
    torch.testing.assert_close(by_raw, by_shape.detach(), rtol=1e-12, atol=0)


@each_kind
@torch.no_grad()
def test_sums_agree_with_adaptive_quadrature(upper: Tensor) -> None:
    likelihood = Weibull(1.7).with_row_values(upper)
    mean, variance = row(0.3, 0.1, 2.0), row(0.5, 2.0, 0.1)
    examples = FlatExamples(likelihood, Y, mean, variance)
    by_sums = directgp.log_expectation(likelihood, Y, mean, variance)
    torch.testing.assert_close(
        by_sums, adaptive_log_expectation(examples).value, rtol=1e-10, atol=1e-10
    )
    gibbs = directgp.expected_log_prob(likelihood, Y, mean, variance)
    torch.testing.assert_close(gibbs, adaptive_gibbs(examples).value, rtol=1e-10, atol=1e-10)


NARROW_AND_WIDE = [
    (1e-12, 10.0),
    (1e-300, 1e90),
    (2.0, 2.0 * (1 + 2**-50)),
    (2.0, 2.0 * (1 + 1e-9)),
]
INTERVALS = [
    (shape, y, upper, f)
    for shape in (0.05, 1.7, 100.0)
    for y, upper in NARROW_AND_WIDE
    for f in (-300.0, -50.0, 0.7, 50.0, 300.0)
    # The hazard of the others overflows.
    if shape * (math.log(y) - f) <= 700
]


@pytest.mark.parametrize(("shape", "y", "upper", "f"), INTERVALS)
def test_intervals_of_any_width_have_the_digits_of_mpmath(
    shape: float, y: float, upper: float, f: float
) -> None:
    """Relative to the size of k·log(r e^−f), which has rounding errors of its own."""
    likelihood = Weibull(shape).with_row_values(row(upper))
    k = float(likelihood.shape.detach())
    size = 1 + k * (abs(math.log(y)) + abs(f))
    with mpmath.workdps(80):
        low, high = (k * (mpmath.log(end) - f) for end in (y, upper))
        within = mpmath.exp(high) - mpmath.exp(low)
        share = within / mpmath.expm1(within) if within < 1e5 else mpmath.mpf(0)
        log_share = mpmath.log(-mpmath.expm1(-within)) if share else 0
        value = float(log_share - mpmath.exp(low))
        slope = float(k * (mpmath.exp(low) - share))
    latent = row(f).requires_grad_()
    log_prob = likelihood.log_prob(row(y), latent)
    (by_autograd,) = torch.autograd.grad(log_prob.sum(), latent)
    derivatives = likelihood.derivatives(row(y), row(f))
    error = 1e-14 * size
    assert log_prob.item() == pytest.approx(value, rel=error, abs=error)
    assert by_autograd.item() == pytest.approx(slope, rel=error, abs=error)
    assert derivatives.first.item() == pytest.approx(slope, rel=error, abs=error)
    assert math.isfinite(derivatives.second.item())
    assert math.log(y) <= likelihood.argmax(row(y)).item() <= math.log(upper)


def test_the_probabilities_of_adjoining_intervals_add_up() -> None:
    f = row(0.4, 0.4, 0.4)
    parts = Weibull(1.7).with_row_values(row(1.0, 3.0, math.inf)).log_prob(row(0.2, 1.0, 3.0), f)
    whole = Weibull(1.7).with_row_values(row(math.inf)).log_prob(row(0.2), f[:1])
    torch.testing.assert_close(parts.exp().sum(), whole.exp().sum(), rtol=1e-12, atol=0)


def test_methods_agree() -> None:
    assert check_likelihood(Weibull(1.7), Y)["density"] < 1e-9


@pytest.mark.parametrize(
    ("y", "upper", "message"),
    [
        (0.0, 1.0, "y of Weibull must be positive and finite"),
        (2.0, 1.0, "upper of Weibull must be at least y"),
    ],
)
def test_impossible_times_raise(y: float, upper: float, message: str) -> None:
    likelihood = Weibull().with_row_values(row(upper))
    with pytest.raises(InvalidInputError, match=message):
        likelihood.check_targets(row(y))


def test_a_fit_that_knows_of_censoring_predicts_longer_times() -> None:
    """True times have the mean 10·Γ(1.5); half of them are cut at 8."""
    random = np.random.default_rng(0)
    X = random.uniform(0, 1, (120, 1))
    times = 10 * random.weibull(2.0, len(X))
    y = np.minimum(times, 8.0)
    upper = np.where(times > 8.0, np.inf, y)
    quick: dict[str, Any] = {
        "objective": "elbo",
        "beta": 1.0,
        "kernel": "rbf",
        "num_inducing": 5,
        "max_iter": 30,
    }
    model = SparseGPRegressor(likelihood="weibull", **quick, random_state=0)
    blind = np.mean(model.fit(X, y).predict(X))
    aware = np.mean(model.fit(X, y, upper=upper).predict(X))
    # Four standard errors of the mean of 120 times, of which 60 % are observed.
    truth = 10 * math.gamma(1.5)
    assert blind < 7.5 and abs(aware - truth) < 4 * 4.6 / math.sqrt(70)
    low, high = model.predict_interval(X[:5], coverage=0.9)
    assert bool((low > 0).all() and (high > aware).all())


@pytest.mark.parametrize(("shape", "mean", "variance"), [(20.0, 3.0, 30.0), (100.0, 0.0, 9.0)])
def test_gradients_of_a_steep_censored_time(shape: float, mean: float, variance: float) -> None:
    """Over a wide q the hazard overflows at nodes of weight 0, and its step needs many nodes."""
    m, v = row(mean).requires_grad_(), row(variance).requires_grad_()
    likelihood = Weibull(shape).with_row_values(row(math.inf))
    value = directgp.log_expectation(likelihood, row(1.0), m, v)
    found = torch.autograd.grad(value.sum(), (m, v, likelihood.raw_shape))
    scale = likelihood.shape.item()
    # P(T > 1 given f) = exp(−e^{−kf}): a step at 0 for k → ∞.
    with mpmath.workdps(30):

        def log_mean(at: Any, spread: Any, power: Any) -> Any:
            def density(z: Any) -> Any:
                f = at + mpmath.sqrt(spread) * z
                return mpmath.exp(-mpmath.exp(-power * f)) * mpmath.npdf(z)

            middle = -at / mpmath.sqrt(spread)
            width = 1 / (power * mpmath.sqrt(spread))
            ends = [-12, *(middle + width * x for x in (-5, -2, 0, 3, 10, 30, 90)), 6, 12]
            return mpmath.log(mpmath.quad(density, sorted(ends)))

        at = mpmath.mpf(mean), mpmath.mpf(variance), mpmath.mpf(scale)
        truths = [float(mpmath.diff(log_mean, at, order)) for order in ((1, 0, 0), (0, 1, 0))]
        by_shape = float(mpmath.diff(log_mean, at, (0, 0, 1)))
    truths.append(by_shape * float(torch.sigmoid(likelihood.raw_shape.detach())))
    assert [float(slope) for slope in found] == pytest.approx(truths, rel=1e-6)
