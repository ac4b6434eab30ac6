"""Distributions of positive targets, proportions, censored targets and ordered classes."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf

from directgp.likelihoods import Beta, Gamma, Likelihood, LogNormal, OrderedProbit, Probit, Tobit
from directgp.likelihoods.units import in_units
from directgp.predictive import (
    predictive_cdf,
    predictive_crps,
    predictive_log_density,
    predictive_mean,
    predictive_quantiles,
    predictive_variance,
)
from directgp.shapes import Marginals
from tests.reference.predictive import average
from tests.unit.predictive.families import marginals, marked, row

GAMMA = list(itertools.product((0.05, 0.6, 3.0, 200.0), (1e-3, 0.5, 20.0)))
BETA = list(itertools.product((0.3, 4.0, 300.0), (1e-4, 0.3, 0.97)))
PLACES = [(-1.5, 1e-6), (0.7, 0.01), (0.4, 1.0), (-2.0, 9.0)]


@pytest.mark.parametrize(("shape", "y"), GAMMA)
@pytest.mark.slow_for("200.0-", "0.6-")
def test_cdf_of_gamma(shape: float, y: float) -> None:
    def given(f: mpf) -> mpf:
        ratio = mpmath.mpf(shape) * y * mpmath.exp(-f)
        return mpmath.gammainc(mpmath.mpf(shape), 0, ratio, regularized=True)

    width = min(1.0, shape**-0.5)
    truths = [float(average(given, *place, bend=math.log(y), width=width)) for place in PLACES]
    found = predictive_cdf(Gamma(shape), row(*[y] * len(PLACES)), marginals(*PLACES))
    assert found.tolist() == pytest.approx(truths, abs=1e-10)


@pytest.mark.parametrize(("precision", "y"), BETA)
@pytest.mark.slow_for("300.0-", "4.0-")
def test_cdf_of_beta(precision: float, y: float) -> None:
    def given(f: mpf) -> mpf:
        a, b = precision / (1 + mpmath.exp(-f)), precision / (1 + mpmath.exp(f))
        return mpmath.betainc(a, b, 0, mpmath.mpf(y), regularized=True)

    bend, width = math.log(y / (1 - y)), min(1.0, (precision * y * (1 - y)) ** -0.5)
    truths = [float(average(given, *place, bend=bend, width=width)) for place in PLACES[:3]]
    found = predictive_cdf(Beta(precision), row(*[y] * 3), marginals(*PLACES[:3]))
    assert found.tolist() == pytest.approx(truths, abs=1e-10)


def test_given_cdf_of_beta_broadcasts() -> None:
    y = row(0.2, 0.5, 0.8)
    f = row(0.0, 1.0)
    found = Beta(3.0).cdf(y[:, None], f)
    alone = [[Beta(3.0).cdf(y[i : i + 1], f[j : j + 1]).item() for j in (0, 1)] for i in range(3)]
    assert found.tolist() == alone


FAMILIES: dict[str, Likelihood] = {
    "gamma": Gamma(3.0),
    "gamma, rough": Gamma(0.3),
    "gamma, fine": Gamma(1e5),
    "log_normal": LogNormal(0.3),
    "beta": Beta(6.0),
    "beta, fine": Beta(1e5),
    "tobit": Tobit(0.3, lower=-0.5),
}
each = pytest.mark.parametrize("name", marked(FAMILIES))
LEVELS = [1e-6, 0.05, 0.5, 0.9, 1 - 1e-6]
GRID = [(mean, v) for mean in (-3.0, 0.2, 2.0) for v in (1e-6, 0.01, 1.0, 9.0)]


@each
def test_quantiles_invert_the_cdf(name: str) -> None:
    likelihood = FAMILIES[name]
    # Wide q put proportions next to 1, where y has not the digits of 1 − y.
    proportion = likelihood.latent_scale == "logit"
    q = marginals(*[place for place in GRID if not proportion or place[1] < 1])
    quantiles = predictive_quantiles(likelihood, q, LEVELS)
    assert bool((quantiles.diff(dim=0) > 0).all())
    for level, y in zip(LEVELS, quantiles, strict=True):
        below = predictive_cdf(likelihood, y, q)
        torch.testing.assert_close(below, torch.full_like(y, level), rtol=1e-8, atol=1e-9)


@each
def test_the_cdf_is_the_integral_of_the_density(name: str) -> None:
    likelihood, (mean, variance) = FAMILIES[name], (0.2, 0.3)
    q = marginals((mean, variance))
    low, high = predictive_quantiles(likelihood, q, [0.2, 0.7])[:, 0].tolist()
    x, weights = np.polynomial.legendre.leggauss(60)
    y = torch.as_tensor(0.5 * (low + high) + 0.5 * (high - low) * x)
    if name == "tobit":
        likelihood = Tobit(0.3)
    many = Marginals(torch.full_like(y, mean), torch.full_like(y, variance))
    density = predictive_log_density(likelihood, y, many).exp().detach()
    area = 0.5 * (high - low) * float((torch.as_tensor(weights) * density).sum())
    assert area == pytest.approx(0.5, abs=1e-8)


@each
@pytest.mark.parametrize(("unit", "offset"), [(2.5, 0.4), (-0.5, 0.8)])
def test_units_change_y_and_nothing_else(name: str, unit: float, offset: float) -> None:
    """With y′ = (t − offset)/unit: the same probabilities, with levels reversed if unit < 0."""
    plain, q = FAMILIES[name], marginals((0.2, 0.3))
    if plain.additive:
        pytest.skip("f has the units of y")
    scaled = in_units(plain, unit, offset)
    # For positive targets f is the log of t/|unit|.
    shift = -math.log(abs(unit)) if plain.latent_scale == "log" else 0.0
    there = marginals((0.2 + shift, 0.3))
    levels = [0.1, 0.5, 0.8]
    t = predictive_quantiles(plain, q, levels)[:, 0]
    turned = levels if unit > 0 else [1 - level for level in levels]
    y = predictive_quantiles(scaled, there, turned)[:, 0]
    torch.testing.assert_close(unit * y + offset, t, rtol=1e-9, atol=1e-12)
    cdf = predictive_cdf(scaled, y, Marginals(*(each.expand(3) for each in vars(there).values())))
    torch.testing.assert_close(cdf, row(*turned), rtol=1e-8, atol=1e-10)
    density = [
        predictive_log_density(likelihood, value[:1], place)
        for likelihood, value, place in ((plain, t, q), (scaled, y, there))
    ]
    torch.testing.assert_close(density[1], density[0] + math.log(abs(unit)))
    mean = unit * predictive_mean(scaled, there) + offset
    torch.testing.assert_close(mean, predictive_mean(plain, q))
    spread = unit**2 * predictive_variance(scaled, there)
    torch.testing.assert_close(spread, predictive_variance(plain, q))
    scores = [predictive_crps(plain, t[:1], q), predictive_crps(scaled, y[:1], there)]
    torch.testing.assert_close(abs(unit) * scores[1], scores[0], rtol=1e-6, atol=0)


@each
def test_moments_are_those_of_draws(name: str) -> None:
    likelihood, q = FAMILIES[name], marginals((0.2, 0.3))
    generator, number = torch.Generator().manual_seed(0), 400_000
    noise = torch.randn(number, generator=generator, dtype=torch.float64)
    y = likelihood.sample(q.mean + q.variance.sqrt() * noise, np.random.RandomState(0))
    error = y.std() / number**0.5
    assert abs(y.mean() - predictive_mean(likelihood, q).item()) < 4 * error
    square = (y - y.mean()) ** 2
    spread = predictive_variance(likelihood, q).item()
    assert abs(square.mean() - spread) < 4 * square.std() / number**0.5


@each
@pytest.mark.slow
def test_crps_is_that_of_draws(name: str) -> None:
    """E|Y − y| − ½E|Y − Y′|."""
    likelihood = in_units(FAMILIES["tobit"], 1.0, 0.0) if name == "tobit" else FAMILIES[name]
    q, number = marginals((0.2, 0.3)), 200_000
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(2, number, generator=generator, dtype=torch.float64)
    one, other = likelihood.sample(q.mean + q.variance.sqrt() * noise, np.random.RandomState(1))
    for level in (0.4, 0.9):
        y = predictive_quantiles(likelihood, q, [level])[0]
        terms = np.abs(one - y.item()) - 0.5 * np.abs(one - other)
        score = predictive_crps(likelihood, y, q).item()
        assert abs(terms.mean() - score) < 4 * terms.std() / number**0.5


def test_y_outside_the_support_has_probability_0_or_1() -> None:
    q = marginals((0.2, 0.3), (0.2, 0.3))
    assert predictive_cdf(Gamma(2.0), row(-1.0, 0.0), q).tolist() == [0.0, 0.0]
    assert predictive_cdf(LogNormal(0.2), row(-1.0, 0.0), q).tolist() == [0.0, 0.0]
    assert predictive_cdf(Beta(2.0), row(-1.0, 2.0), q).tolist() == [0.0, 1.0]


def test_crps_of_a_censored_target_is_zero_where_it_says_nothing_new() -> None:
    """A value that is certainly below the limit adds nothing; an unlikely one costs."""
    limited, q = Tobit(0.01, lower=0.0), marginals((-5.0, 0.01), (5.0, 0.01))
    below, above = predictive_crps(limited, row(0.0, 0.0), q).tolist()
    assert below < 1e-12 and above == pytest.approx(5.0 - math.sqrt(0.02 / math.pi), rel=1e-9)


ORDERED = OrderedProbit(thresholds=[-0.7, 0.1, 1.9])


def test_class_probabilities_sum_to_one_and_have_the_moments() -> None:
    q = marginals(*GRID)
    log_p = ORDERED.log_class_probabilities(q.mean, q.variance).detach().T
    assert log_p.shape == (len(GRID), 4)
    p, k = log_p.exp(), torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(p.sum(-1), torch.ones(len(GRID), dtype=torch.float64))
    mean = (p * k).sum(-1)
    torch.testing.assert_close(predictive_mean(ORDERED, q).detach(), mean)
    spread = (p * (k - mean[:, None]) ** 2).sum(-1)
    torch.testing.assert_close(predictive_variance(ORDERED, q).detach(), spread)
    for y in range(4):
        cdf = predictive_cdf(ORDERED, torch.full((len(GRID),), y), q)
        torch.testing.assert_close(cdf, p[:, : y + 1].sum(-1))
        score = predictive_crps(ORDERED, torch.full((len(GRID),), y), q)
        steps = (p.cumsum(-1) - (k >= y).double()).square().sum(-1)
        torch.testing.assert_close(score, steps, rtol=1e-9, atol=1e-12)


def test_quantiles_of_classes_are_the_smallest_that_reach_the_level() -> None:
    q = marginals(*GRID)
    for level in (0.1, 0.5, 0.95):
        k = predictive_quantiles(ORDERED, q, [level])[0]
        assert bool((predictive_cdf(ORDERED, k, q) >= level - 1e-10).all())
        assert bool((predictive_cdf(ORDERED, k - 1, q) < level).all())


def test_two_classes_are_the_probit_likelihood() -> None:
    two, q = OrderedProbit(thresholds=[0.0]), marginals(*GRID)
    for y in (0, 1):
        labels = torch.full((len(GRID),), y)
        found = predictive_log_density(two, labels, q)
        torch.testing.assert_close(found, predictive_log_density(Probit(), labels, q))


def test_thresholds_start_at_the_frequencies_of_the_classes() -> None:
    y = torch.tensor([0] * 50 + [1] * 30 + [3] * 20)
    made = OrderedProbit.from_targets(y.double())
    q = Marginals(torch.zeros(1).double(), torch.ones(1).double())
    shares = made.log_class_probabilities(q.mean, q.variance).exp()[:, 0].detach()
    expected = (torch.bincount(y).double() + 0.5) / 102
    torch.testing.assert_close(shares, expected)
