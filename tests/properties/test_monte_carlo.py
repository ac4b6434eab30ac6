"""bMC and smooth-bMC: limits, convergence rates and schedules."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import directgp
from directgp.errors import InvalidInputError
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature
from tests.properties.checks import ask, gradients, improbable, seeded, z_scores
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, Point, columns, marked, ordinary
from tests.properties.test_accuracy import named

REPEATS = 4000
TESTS = sum(2 * len(ordinary(row)) for row in LIKELIHOODS)


def elbo_gradient(row: LikelihoodRow, some: Sequence[Point]) -> Tensor:
    """The gradient of E_q[log p] in mean and variance, (points, 2)."""
    y, mean, variance = columns(list(some))
    marginals = mean.requires_grad_(), variance.requires_grad_()
    value = directgp.expected_log_prob(row.make(), y, *marginals)
    return torch.stack(torch.autograd.grad(value.sum(), marginals), -1)


def unlike_the_elbo(row: LikelihoodRow, num_samples: int) -> list[str]:
    """What speaks against the mean gradient of bMC being that of the ELBO."""
    some = ordinary(row)
    rule = BiasedMonteCarlo(num_samples=num_samples)
    draws = gradients(rule, row, some, REPEATS, seed=2)[..., :2]
    z = z_scores(draws, elbo_gradient(row, some))
    return [found for kind in z.unbind(-1) for found in improbable(kind, TESTS)]


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_one_sample_gives_the_elbo(row: LikelihoodRow) -> None:
    assert unlike_the_elbo(row, num_samples=1) == []


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_control_two_samples_do_not(row: LikelihoodRow) -> None:
    assert unlike_the_elbo(row, num_samples=2)


def mean_values(row: LikelihoodRow, point: Point, sizes: Sequence[int], repeats: int) -> Tensor:
    """E[bMC-L] − log E_q[p] for each L.

    bMC-L is the log of an average whose expectation is known, so that subtracting the relative
    error of that average changes nothing in expectation and takes most of the noise away.
    """
    y, mean, variance = columns([point] * repeats)
    exact = Quadrature()(row.make(), y[:1], mean[:1], variance[:1]).detach()
    excess = [
        BiasedMonteCarlo(num_samples=size)(row.make(), y, mean, variance, generator=seeded(size))
        - exact
        for size in sizes
    ]
    return torch.stack([(e - torch.expm1(e)).mean() for e in excess]).detach()


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_more_samples_lead_from_the_elbo_to_the_log_expectation(row: LikelihoodRow) -> None:
    point = ordinary(row)[0]
    arguments = columns([point])
    gap = directgp.expected_log_prob(row.make(), *arguments) - directgp.log_expectation(
        row.make(), *arguments
    )
    biases = mean_values(row, point, (1, 2, 4, 8, 16), 20_000)
    assert biases[0].item() == pytest.approx(gap.item(), rel=0.1)
    assert bool((biases.diff() > 0).all())
    assert bool((biases < 0).all())


SIZES = (8, 16, 32, 64, 128)


def fitted_slope(biases: Tensor) -> float:
    """The power of L with which the bias changes."""
    slope, _ = np.polyfit(np.log(SIZES), np.log(-biases.numpy()), 1)
    return float(slope)


@pytest.mark.parametrize("row", LIKELIHOODS[1:4], ids=named)
@pytest.mark.slow
def test_the_bias_falls_as_one_over_l(row: LikelihoodRow) -> None:
    assert fitted_slope(mean_values(row, Point(1, -0.5, 1.0), SIZES, 10_000)) == pytest.approx(
        -1, abs=0.2
    )


def test_control_a_bias_that_stays_is_found() -> None:
    biases = mean_values(LIKELIHOODS[1], Point(1, -0.5, 1.0), (8,) * len(SIZES), 10_000)
    assert fitted_slope(biases) != pytest.approx(-1, abs=0.2)


@pytest.mark.parametrize("nu", [1e-6, 0.1, 3.0])
@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_smoothing_adds_nu_to_the_mean(row: LikelihoodRow, nu: float) -> None:
    """log(ν + p̄), whose gradient is that of log p̄ times p̄/(ν + p̄)."""
    arguments = columns(ordinary(row))
    plain = ask(BiasedMonteCarlo(num_samples=5), row.make(), *arguments)
    smooth = ask(BiasedMonteCarlo(num_samples=5, nu=nu), row.make(), *arguments)
    mean = plain.value.exp()
    torch.testing.assert_close(smooth.value, torch.log(nu + mean))
    for mine, other in zip(smooth[1:], plain[1:], strict=True):
        torch.testing.assert_close(mine, other * mean / (nu + mean))


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_smoothing_vanishes_with_nu(row: LikelihoodRow) -> None:
    arguments = columns(ordinary(row))
    plain = ask(BiasedMonteCarlo(), row.make(), *arguments)
    smooth = ask(BiasedMonteCarlo(nu=1e-300), row.make(), *arguments)
    for mine, other in zip(smooth, plain, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=0)


def test_smoothing_bounds_the_loss_of_an_absurd_target() -> None:
    arguments = columns([Point(5000, -20.0, 1e-4)])
    smooth = ask(BiasedMonteCarlo(nu=1e-3), LIKELIHOODS[3].make(), *arguments)
    assert smooth.value.item() == pytest.approx(math.log(1e-3))
    assert smooth.mean_slope.item() == 0


def test_schedules_are_read_at_the_step() -> None:
    row = LIKELIHOODS[3]
    arguments = columns(ordinary(row))
    bmc = BiasedMonteCarlo(num_samples=lambda step: 1 + step, nu=lambda step: 0.1 / (1 + step))
    ups = ProductSampling(num_samples=lambda step: 1 + 2 * step)
    for step in (0, 3):
        fixed_bmc = BiasedMonteCarlo(num_samples=1 + step, nu=0.1 / (1 + step))
        fixed_ups = ProductSampling(num_samples=1 + 2 * step)
        for scheduled, fixed in ((bmc, fixed_bmc), (ups, fixed_ups)):
            got = ask(scheduled, row.make(), *arguments, step=step)
            for mine, other in zip(got, ask(fixed, row.make(), *arguments), strict=True):
                assert torch.equal(mine, other)


def test_more_draws_vary_less() -> None:
    row, some = LIKELIHOODS[2], ordinary(LIKELIHOODS[2])
    few, many = (
        gradients(ProductSampling(num_samples=size, gradient="score"), row, some, 4000).var(0)
        for size in (1, 16)
    )
    torch.testing.assert_close(few / many, torch.full_like(few, 16.0), rtol=0.3, atol=0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (BiasedMonteCarlo(num_samples=lambda step: 0), "num_samples must be at least 1. Got 0."),
        (ProductSampling(num_samples=lambda step: 0), "num_samples must be at least 1. Got 0."),
        (BiasedMonteCarlo(nu=lambda step: -1.0), "nu must be finite and at least 0. Got -1.0."),
    ],
)
def test_a_schedule_that_cannot_be_meant(
    rule: BiasedMonteCarlo | ProductSampling, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ask(rule, LIKELIHOODS[1].make(), *columns(ordinary(LIKELIHOODS[1])))
