"""Tobit with limits and intervals, known noise of rows, and what they refuse."""

import pytest
import torch

import directgp
from directgp.errors import InvalidInputError
from directgp.likelihoods import Gaussian, GaussianKnownNoise, OrderedProbit, Tobit, Weibull
from directgp.likelihoods.capabilities import observed_range
from directgp.likelihoods.units import in_units
from directgp.numerics.intervals import ENDLESS
from directgp.predictive import predictive_cdf, predictive_crps
from directgp.shapes import Marginals

FLOAT64 = torch.float64
MEAN = torch.tensor([0.3, -0.4, 1.2, 0.1], dtype=FLOAT64)
VARIANCE = torch.tensor([0.2, 1.0, 0.01, 3.0], dtype=FLOAT64)
Y = torch.tensor([0.0, 0.5, 0.9, 1.4], dtype=FLOAT64)
UPPER = torch.tensor([0.0, 0.8, torch.inf, 1.4], dtype=FLOAT64)


def log_mean(likelihood: directgp.likelihoods.Likelihood) -> torch.Tensor:
    return directgp.log_expectation(likelihood, Y, MEAN, VARIANCE).detach()


def test_without_limits_it_is_gaussian() -> None:
    for function in (directgp.log_expectation, directgp.expected_log_prob):
        ours, theirs = (function(each, Y, MEAN, VARIANCE) for each in (Tobit(0.3), Gaussian(0.3)))
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_rows_with_an_upper_end() -> None:
    """Exact, between two ends, above one, exact."""
    likelihood = Tobit(0.3).with_row_values(UPPER)
    seen = likelihood.observed(Y)
    assert seen.exact.tolist() == [True, False, False, True]
    assert seen.upper.tolist() == [0.0, 0.8, ENDLESS, 1.4]
    deviation = torch.sqrt(VARIANCE + 0.3)
    low, high = (torch.special.ndtr((end - MEAN) / deviation) for end in (Y, UPPER))
    expected = torch.where(seen.exact, log_mean(Gaussian(0.3)), torch.log(high - low))
    torch.testing.assert_close(log_mean(likelihood), expected)


@pytest.mark.parametrize("family", [Tobit, Weibull])
def test_censored_targets_in_float32(family: type[Tobit] | type[Weibull]) -> None:
    """An end at infinity is finite, so that the distribution function takes it."""
    y = Y[1:]
    likelihood = family().with_row_values(UPPER[1:])
    q = Marginals(MEAN[1:].float(), VARIANCE[1:].float())
    wide = Marginals(q.mean.double(), q.variance.double())
    ends = observed_range(likelihood, y.float())
    for end, expected in zip(ends, observed_range(likelihood, y), strict=True):
        up_to = predictive_cdf(likelihood, end, q)
        torch.testing.assert_close(up_to, predictive_cdf(likelihood, expected, wide).float())
    if family is Tobit:
        score = predictive_crps(likelihood, y.float(), q)
        torch.testing.assert_close(score, predictive_crps(likelihood, y, wide).float())


def test_an_upper_end_of_a_row_below_the_limit() -> None:
    """y at the lower limit says only that the value is below the end of the row."""
    likelihood = Tobit(0.3, lower=0.0).with_row_values(torch.full_like(Y, 2.0))
    below = torch.special.ndtr((2.0 - MEAN[0]) / torch.sqrt(VARIANCE[0] + 0.3))
    assert log_mean(likelihood)[0].item() == pytest.approx(torch.log(below).item(), rel=1e-12)


def test_ends_below_y_are_refused() -> None:
    likelihood = Tobit().with_row_values(torch.tensor([1.0, 0.2]))
    with pytest.raises(
        InvalidInputError, match=r"upper of Tobit must be at least y.*0\.2.*index 1"
    ):
        likelihood.check_targets(torch.tensor([0.0, 0.5]))
    with pytest.raises(InvalidInputError, match="lower of Tobit must be below upper"):
        Tobit(lower=2.0, upper=1.0)


@pytest.mark.parametrize("unit", [2.0, -2.0])
def test_limits_have_the_units_of_the_user(unit: float) -> None:
    """The limit 1 of t = unit·y + 3 is y = −1, or y = 1 where the sign is reversed."""
    likelihood = in_units(Tobit(0.3, lower=1.0), unit, 3.0)
    t = torch.tensor([0.9, 1.0, 1.0 + 1e-9, 1.2], dtype=FLOAT64)
    seen = likelihood.observed((t - 3.0) / unit)
    assert seen.exact.tolist() == [False, False, False, True]
    end = seen.upper if unit > 0 else seen.lower
    torch.testing.assert_close(end[:3], torch.full((3,), -2.0 / unit, dtype=FLOAT64))
    assert likelihood.settings() == {"unit": unit, "offset": 3.0, "lower": 1.0}


def test_known_noise_is_gaussian_noise_of_each_row() -> None:
    noise = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=FLOAT64)
    for function in (directgp.log_expectation, directgp.expected_log_prob):
        plain = GaussianKnownNoise().with_row_values(noise)
        more = GaussianKnownNoise(extra=0.5).with_row_values(noise)
        for i, v in enumerate(noise.tolist()):
            for likelihood, extra in ((plain, 0.0), (more, 0.5)):
                got = function(likelihood, Y, MEAN, VARIANCE)[i]
                one = (column[i : i + 1] for column in (Y, MEAN, VARIANCE))
                torch.testing.assert_close(got, function(Gaussian(v + extra), *one)[0])
    assert not list(GaussianKnownNoise().parameters())


def test_known_noise_has_to_be_given() -> None:
    message = "noise of GaussianKnownNoise must be given for each row. Got none. Give noise="
    with pytest.raises(InvalidInputError, match=message):
        log_mean(GaussianKnownNoise())


def test_ordered_classes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"gap 1 between thresholds .* positive"):
        OrderedProbit(thresholds=[1.0, 0.5])
    with pytest.raises(InvalidInputError, match="num_classes of OrderedProbit must be a whole"):
        OrderedProbit(1)


def test_one_target_for_several_latents_has_the_derivatives_of_each() -> None:
    f = torch.tensor([-1.0, 0.0, 1.0], dtype=FLOAT64)
    y = torch.zeros(3, dtype=FLOAT64)
    limited = Tobit(1.0, lower=0.0)
    for found, wanted in zip(limited.derivatives(y[:1], f), limited.derivatives(y, f), strict=True):
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(
        limited.derivatives(y, f[0]), limited.derivatives(y, f[:1]), strict=True
    ):
        torch.testing.assert_close(found, wanted)
