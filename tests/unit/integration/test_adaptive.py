"""Integrals for likelihoods that define only log p(y given f)."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor
from torch.autograd import grad
from typing_extensions import override

from directgp import expected_log_prob, log_expectation
from directgp.errors import NumericalError
from directgp.integration.adaptive import (
    GAUSS_LEGENDRE,
    Panels,
    adaptive_gibbs,
    adaptive_log_expectation,
    clenshaw_curtis,
    peaks,
    refined,
    scan,
)
from directgp.integration.contract import FlatExamples
from directgp.likelihoods import Derivatives, Likelihood, Logistic, Poisson, Probit, StudentT


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def panels(left: float, right: float) -> Panels:
    return Panels(torch.zeros(1, dtype=torch.int64), row(left), row(right))


@pytest.mark.parametrize("degree", range(0, 17, 4))
def test_polynomials_are_integrated_exactly(degree: int) -> None:
    for rule in (clenshaw_curtis(16), GAUSS_LEGENDRE):
        z, weights = panels(-1, 3).points(*rule)
        exact = (3 ** (degree + 1) - (-1) ** (degree + 1)) / (degree + 1)
        assert (weights * z**degree).sum().item() == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize(
    "function",
    [
        lambda z: torch.exp(-((z - 0.3) ** 2) / 1e-8),
        lambda z: torch.exp(-(z - math.pi).abs()),
        lambda z: (z < math.e).double(),
    ],
    ids=["spike", "kink", "jump"],
)
def test_panels_close_in_on_what_is_not_smooth(function: Callable[[Tensor], Tensor]) -> None:
    # The spike lies on an edge, as a peak that was looked for does.
    edges = row(-8, 0.3, 8)
    start = Panels(torch.zeros(2, dtype=torch.int64), edges[:-1], edges[1:])
    found = refined(lambda _, z: function(z), start, 1)
    z, weights = found.points(*GAUSS_LEGENDRE)
    exact = {
        "spike": 1e-4 * math.sqrt(math.pi),
        "kink": 2 - math.exp(-8 - math.pi) - math.exp(math.pi - 8),
        "jump": 8 + math.e,
    }
    total = (weights * function(z)).sum().item()
    assert min(abs(total / each - 1) for each in exact.values()) < 1e-10


def test_panels_of_several_examples_are_their_own() -> None:
    places = row(0.5, -0.25)
    start = Panels(torch.tensor([0, 1]), row(-1, -1), row(1, 1))
    found = refined(lambda owner, z: (z - places[owner]).abs(), start, 2)
    z, weights = found.points(*GAUSS_LEGENDRE)
    values = weights * (z - places[found.owner]).abs()
    totals = torch.zeros(2).double().index_add(0, found.owner, values.sum(0))
    torch.testing.assert_close(totals, 1 + places**2, rtol=1e-10, atol=0)


def test_what_never_settles_is_told() -> None:
    with pytest.raises(NumericalError, match="did not settle for 1 examples"):
        refined(lambda _, z: z * torch.nan, panels(0, 1), 1)


def test_peaks_far_out_are_found() -> None:
    at = row(0.3, -700.0, 1e6)

    def height(z: Tensor) -> Tensor:
        return -((z - at).abs())

    found = scan(height, at, 10.0)
    torch.testing.assert_close(peaks(height, *found), at[None], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("height", "message"),
    [(lambda z: z, "No peak"), (lambda z: z * torch.nan, "is NaN")],
)
def test_a_function_without_a_peak_is_refused(height: Any, message: str) -> None:
    with pytest.raises(NumericalError, match=message):
        scan(height, row(0.0), 10.0)


@pytest.mark.parametrize("variance", [1e-8, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize(
    ("likelihood", "y", "mean"),
    [
        (Logistic(), 1.0, -30.0),
        (Probit(), 0.0, 3.0),
        (Poisson(), 300.0, 0.5),
        (Poisson(link="softplus"), 0.0, -4.0),
        (StudentT(3.0, 0.2), 50.0, 1.0),
    ],
)
def test_as_the_rules_that_know_the_likelihood(
    likelihood: Likelihood, y: float, mean: float, variance: float
) -> None:
    target, m, v = row(y), row(mean).requires_grad_(), row(variance).requires_grad_()
    for known, blind in (
        (log_expectation, adaptive_log_expectation),
        (expected_log_prob, adaptive_gibbs),
    ):
        value = known(likelihood, target, m, v)
        slopes = grad(value, (m, v))
        with torch.no_grad():
            found = blind(FlatExamples(likelihood.frozen(), target, m, v))
        torch.testing.assert_close(found.value, value.detach(), rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(found.mean_slope, slopes[0], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(found.variance_slope, slopes[1], rtol=1e-6, atol=1e-7)


class Two(Likelihood):
    """y is f or 10 + f, as likely, with noise of 0.05: two peaks, of which one is far from q."""

    @override
    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        near, far = -0.5 * ((y - f) / 0.05) ** 2, -0.5 * ((y - f - 10) / 0.05) ** 2
        return torch.logaddexp(near, far)

    @override
    def derivatives(self, y: Tensor, f: Tensor) -> Derivatives:
        raise NotImplementedError

    @override
    def value_and_slope(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            value = self.log_kernel(y, f) + 0 * f
            (slope,) = grad(value.sum(), f)
            return value.detach(), slope

    @override
    def conditional_mean(self, f: Tensor) -> Tensor:
        return f + 5

    @override
    def conditional_variance(self, f: Tensor) -> Tensor:
        return torch.full_like(f, 25)

    @override
    def check_targets(self, y: Any) -> None:
        """Any number."""


@pytest.mark.parametrize("y", [0.3, 6.0, 10.2])
def test_two_peaks(y: float) -> None:
    def product(f: float) -> float:
        sides = math.exp(-0.5 * ((y - f) / 0.05) ** 2), math.exp(-0.5 * ((y - f - 10) / 0.05) ** 2)
        return float(sum(sides) * math.exp(-0.5 * f * f / 4) / math.sqrt(8 * math.pi))

    mass, _ = quad(product, -20, 20, points=[y, y - 10], limit=500, epsabs=0, epsrel=1e-12)
    found = log_expectation(Two(), row(y), row(0.0), row(4.0)).item()
    assert found == pytest.approx(math.log(mass), abs=1e-9)


def test_rounding_is_no_reason_to_go_on_for_ever() -> None:
    """A log p that is right to seven digits only still has an integral, right to as many."""

    class Rough(Two):
        @override
        def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
            return (1e8 - 0.5 * (y - f) ** 2) - 1e8

    found = log_expectation(Rough(), row(0.3), row(0.0), row(1.0)).item()
    exact = -0.5 * 0.3**2 / 2 - 0.5 * math.log(2)
    assert found == pytest.approx(exact, abs=1e-7)


class Known(Two):
    """A likelihood given by log p(y given f)."""

    def __init__(self, log_prob: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.log_prob_of = log_prob

    @override
    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return self.log_prob_of(y, f)


def dense(log_prob: Callable[[Tensor, Tensor], Tensor], y: float, mean: float, v: float) -> Any:
    """log E_q[p] and its slopes by two million steps, with q differentiated."""
    z = torch.linspace(-9, 9, 2_000_001, dtype=torch.float64)
    mass = torch.exp(log_prob(row(y), mean + math.sqrt(v) * z) - 0.5 * z * z)
    total = mass.sum()
    value = (total * (z[1] - z[0]) / math.sqrt(2 * math.pi)).log()
    first, second = (mass * z).sum() / total, (mass * (z * z - 1)).sum() / total
    return [value.item(), first.item() / math.sqrt(v), second.item() / (2 * v)]


@pytest.mark.parametrize(
    ("log_prob", "mean", "variance"),
    [
        (lambda y, f: -0.5 * ((y - f**2) / 0.1) ** 2, 0.1, 4.0),
        (lambda y, f: -0.5 * ((y - torch.sin(3 * f)) / 0.3) ** 2, 0.4, 2.0),
        (lambda y, f: 100 * torch.cos(y - f), -1.0, 9.0),
        (lambda y, f: torch.where((y - f).abs() < 3, 0.0, -torch.inf), 0.0, 1.0),
    ],
    ids=["square", "sine", "circle", "uniform"],
)
def test_many_peaks_and_jumps(log_prob: Any, mean: float, variance: float) -> None:
    m, v = row(mean).requires_grad_(), row(variance).requires_grad_()
    value = log_expectation(Known(log_prob), row(0.2), m, v)
    found = [each.item() for each in (value, *grad(value, (m, v)))]
    # The sum errs by some 1e-6 at a jump.
    assert found == pytest.approx(dense(log_prob, 0.2, mean, variance), rel=1e-5, abs=1e-6)


def test_jumps_of_the_expected_log_prob() -> None:
    def log_prob(y: Tensor, f: Tensor) -> Tensor:
        return -0.5 * (y - torch.round(f)) ** 2

    m, v = row(0.3).requires_grad_(), row(2.0).requires_grad_()
    value = expected_log_prob(Known(log_prob), row(0.2), m, v)
    slopes = grad(value, (m, v))
    z = torch.linspace(-9, 9, 2_000_001, dtype=torch.float64)
    q = torch.exp(-0.5 * z * z) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    ell = log_prob(row(0.2), 0.3 + math.sqrt(2.0) * z)
    expected = [
        (q * ell).sum(),
        (q * ell * z).sum() / math.sqrt(2),
        (q * ell * (z * z - 1)).sum() / 4,
    ]
    found = [each.item() for each in (value, *slopes)]
    assert found == pytest.approx([each.item() for each in expected], rel=1e-4, abs=1e-6)
