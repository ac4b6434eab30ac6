"""The Conway–Maxwell–Poisson family: its cumulants, and averages over q for more values of ν."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

import directgp
from directgp.likelihoods import ConwayMaxwellPoisson, Poisson
from directgp.likelihoods.conway_maxwell_normaliser import expanded, summed
from tests.reference.log_expectation import log_partition

FLOAT64 = torch.float64
POWERS = [0.15, 0.3, 1.0, 1.7, 3.0, 10.0, 25.0]
PLACES = [-9.0, -3.0, -1.0, 0.0, 0.3, 1.0, 2.0, 3.0, 3.2, 3.5, 4.0, 4.5, 5.0, 6.5]


@pytest.mark.parametrize("nu", POWERS)
def test_cumulants_against_mpmath(nu: float) -> None:
    """L, L′, L″ and the slope in ν, by differences of L in 60 digits."""
    likelihood = ConwayMaxwellPoisson.with_nu(nu)
    f = torch.tensor(PLACES, dtype=FLOAT64)
    zero = torch.zeros_like(f)
    value, first, second = (-each for each in likelihood.derivatives(zero, f))
    slopes = likelihood.parameter_slopes(zero, f)
    assert slopes is not None
    by_nu = slopes[0] * likelihood.dispersion.detach().square()
    power = likelihood.nu.item()
    with mpmath.workdps(15):
        for i, place in enumerate(PLACES):
            exact = _differences(place, power)
            found = value[i].item(), first[i].item(), second[i].item(), by_nu[i].item()
            for number, truth in zip(found, exact, strict=True):
                # f·E − E[log k!] is 0 near f = 0.
                error = 1e-12 * abs(truth) + 1e-14 * (number == by_nu[i].item())
                assert abs(number - truth) <= error, (place, number, truth)


def _differences(place: float, nu: float) -> tuple[mpmath.mpf, ...]:
    from tests.reference import log_expectation as reference

    context = reference._mp
    with context.workdps(60):
        z, power, step = context.mpf(place), context.mpf(nu), context.mpf(10) ** -14
        below, here, above = (log_partition(z + i * step, power) for i in (-1, 0, 1))
        less, more = (log_partition(z, power + i * step) for i in (-1, 1))
        first, second = (above - below) / (2 * step), (above - 2 * here + below) / step**2
        return here, first, second, (more - less) / (2 * step)


@pytest.mark.parametrize("nu", [0.2, 0.6, 2.5, 9.0])
def test_sum_and_expansion_agree_where_they_meet(nu: float) -> None:
    border = math.log(max(60 / nu, 20.0, 2.5 * nu))
    f, power = torch.tensor([border], dtype=FLOAT64), torch.tensor(nu, dtype=FLOAT64)
    for one, other in zip(expanded(f, power), summed(f, power, 1500), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=0.0)


def test_poisson_is_the_middle_of_the_family() -> None:
    likelihood = ConwayMaxwellPoisson.with_nu(1.0)
    y = torch.tensor([0.0, 3.0, 40.0, 5000.0], dtype=FLOAT64)
    mean, variance = torch.tensor([-2.0, 1.0, 3.0, 8.4]), torch.tensor([1.0, 0.1, 2.0, 0.3])
    found = directgp.log_expectation(likelihood, y, mean.double(), variance.double())
    truth = directgp.log_expectation(Poisson(), y, mean.double(), variance.double())
    torch.testing.assert_close(found.detach(), truth, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("nu", [0.3, 3.0, 10.0])
@pytest.mark.parametrize(("mean", "variance"), [(0.3, 1e-4), (1.2, 0.3), (-3.0, 1.0)])
def test_averages_over_q(nu: float, mean: float, variance: float) -> None:
    """Against sums over so many nodes and counts that nothing is left to go wrong."""
    likelihood = ConwayMaxwellPoisson.with_nu(nu)
    power = likelihood.nu.item()
    counts = torch.tensor([0.0, 1.0, 4.0, 30.0], dtype=FLOAT64)
    z = np.linspace(-12, 12, 8001)
    f = mean + math.sqrt(variance) * z
    weights = -0.5 * z * z - logsumexp(-0.5 * z * z)
    k = np.arange(30_000.0)
    log_z = np.empty_like(f)
    for part in np.array_split(np.arange(len(f)), 400):
        top = np.exp(f[part].max())
        some = k[: int(top + 12 * math.sqrt(top / power) + 60 + 60 / power)]
        log_z[part] = logsumexp(power * (np.outer(f[part], some) - gammaln(some + 1)), axis=1)
    q = torch.full((4,), mean, dtype=FLOAT64), torch.full((4,), variance, dtype=FLOAT64)
    found = directgp.log_expectation(likelihood, counts, *q).tolist()
    gibbs = directgp.expected_log_prob(likelihood, counts, *q).tolist()
    for i, y in enumerate(counts.tolist()):
        log_p = power * (y * f - float(gammaln(y + 1))) - log_z
        assert found[i] == pytest.approx(float(logsumexp(weights + log_p)), rel=1e-9)
        assert gibbs[i] == pytest.approx(float(np.exp(weights) @ log_p), rel=1e-9)


def test_draws_have_the_moments_of_the_family() -> None:
    likelihood = ConwayMaxwellPoisson.with_nu(4.0)
    f = torch.log(torch.tensor([1.4, 6.0, 1e7], dtype=FLOAT64))[:, None].expand(3, 20_000)
    drawn = likelihood.sample(f, np.random.RandomState(0))
    mean = likelihood.conditional_mean(f[:, :1]).detach().numpy()[:, 0]
    variance = likelihood.conditional_variance(f[:, :1]).detach().numpy()[:, 0]
    error = np.sqrt(variance / drawn.shape[1])
    assert (np.abs(drawn.mean(1) - mean) < 4 * error).all()
    assert (np.abs(drawn.var(1) / variance - 1) < 4 * np.sqrt(3 / drawn.shape[1])).all()
    assert (drawn == np.floor(drawn)).all() and (drawn >= 0).all()


@pytest.mark.parametrize("nu", [0.05, 65.0, math.inf])
def test_a_power_out_of_range_is_refused(nu: float) -> None:
    message = f"nu of ConwayMaxwellPoisson.with_nu must be above 0.1, and at most 64. Got {nu}."
    with pytest.raises(directgp.errors.InvalidInputError, match=message):
        ConwayMaxwellPoisson.with_nu(nu)


def test_the_largest_power_is_right_and_a_smaller_dispersion_refused() -> None:
    assert ConwayMaxwellPoisson.with_nu(64.0).nu.item() == pytest.approx(64.0)
    with pytest.raises(directgp.errors.InvalidInputError, match=r"at least 0\.01565, with ν up to"):
        ConwayMaxwellPoisson(0.015)
