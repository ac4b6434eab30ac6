"""Quantiles, intervals and P(Y ≤ y) of every family, also for counts up to a million."""

import math

import pytest
import torch
from mpmath import mpf
from torch import Tensor

from directgp.likelihoods import Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from directgp.likelihoods.counts import CountLikelihood
from directgp.predictive import (
    predictive_cdf,
    predictive_interval,
    predictive_log_density,
    predictive_quantiles,
)
from directgp.predictive.api import point_prediction
from tests.reference import predictive as reference
from tests.unit.predictive.families import COUNTS, FAMILIES, GRID, LABELS, marginals, marked, row

LEVELS = [1e-6, 0.05, 0.5, 0.9, 0.999]
DRAWS = 100_000


def test_gaussian_quantile_is_the_textbook_formula() -> None:
    q = marginals((1.0, 0.75))
    (value,) = predictive_quantiles(Gaussian(noise=0.25), q, [0.975])
    assert value.item() == pytest.approx(1 + 1.959963984540054, rel=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "student_t"])
def test_round_trip_of_real_targets(name: str) -> None:
    q = marginals(*GRID)
    levels = row(*LEVELS)[:, None].expand(len(LEVELS), len(GRID))
    value = predictive_cdf(FAMILIES[name], predictive_quantiles(FAMILIES[name], q, LEVELS), q)
    # A mean of 12 and a deviation of 0.5 cost two digits when y − μ is formed.
    torch.testing.assert_close(value, levels, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("name", marked([*COUNTS, *LABELS]))
def test_smallest_count_that_reaches_the_level(name: str) -> None:
    q = marginals(*GRID)
    levels = row(*LEVELS)[:, None]
    quantiles = predictive_quantiles(FAMILIES[name], q, LEVELS)
    assert (quantiles == quantiles.floor()).all()
    assert (quantiles >= 0).all()
    assert (predictive_cdf(FAMILIES[name], quantiles, q) >= levels - 3e-11).all()
    # Beyond a million, one count may weigh less than the rounding of the distribution function.
    below = predictive_cdf(FAMILIES[name], quantiles - 1, q)
    assert ((below < levels) | (quantiles > 1e6)).all()


def test_counts_of_a_point_mass() -> None:
    q = marginals((math.log(10.0), 1e-12))
    # From the tables of the Poisson distribution with mean 10.
    assert predictive_quantiles(Poisson(), q, [0.05, 0.5, 0.95])[:, 0].tolist() == [5, 10, 15]


def test_counts_beyond_whole_numbers_of_float64() -> None:
    q = marginals((60.0, 0.01), (30.0, 100.0))
    quantiles = predictive_quantiles(Poisson(), q, [0.5, 0.99])
    expected = torch.exp(q.mean + q.variance.sqrt() * torch.special.ndtri(row(0.5, 0.99)[:, None]))
    torch.testing.assert_close(quantiles, expected, rtol=1e-8, atol=0.0)


def test_a_count_beyond_all_numbers_is_infinite() -> None:
    (value,) = predictive_quantiles(NegativeBinomial(0.01), marginals((700.0, 1e4)), [0.999])
    assert value.item() == torch.inf


@pytest.mark.parametrize("name", LABELS)
def test_quantiles_of_labels(name: str) -> None:
    q = marginals((0.0, 1.0), (0.5, 1.0), (-0.5, 1.0))
    quantiles = predictive_quantiles(LABELS[name], q, [0.45, 0.9])
    assert quantiles.tolist() == [[0, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("name", [*LABELS, "poisson_softplus"])
@pytest.mark.parametrize("variance", [1e-8, 0.3, 1.0, 40.0])
def test_a_tie_is_reached(name: str, variance: float) -> None:
    # By symmetry P(Y = 0) = ½ at μ = 0; for counts p(0 given f) = e^{−log(1 + e^f)} = 1/(1 + e^f).
    assert predictive_quantiles(FAMILIES[name], marginals((0.0, variance)), [0.5]).item() == 0


@pytest.mark.parametrize("name", LABELS)
def test_cdf_of_labels(name: str) -> None:
    q = marginals(*[(0.4, 2.0)] * 5)
    zero = torch.exp(predictive_log_density(LABELS[name], row(*[0.0] * 5), q))[0].item()
    value = predictive_cdf(LABELS[name], row(-0.1, 0.0, 0.5, 1.0, 7.0), q)
    assert value.tolist() == [0.0, zero, zero, 1.0, 1.0]


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_interval_holds_its_coverage(name: str) -> None:
    q = marginals((0.3, 0.5), (2.0, 4.0), (-1.0, 1e-6))
    lower, upper = predictive_interval(FAMILIES[name], q, 0.9)
    inside = predictive_cdf(FAMILIES[name], upper, q)
    outside = predictive_cdf(FAMILIES[name], lower - 1, q)
    assert (lower <= upper).all()
    if name in {"gaussian", "student_t"}:
        inside = inside - predictive_cdf(FAMILIES[name], lower, q)
        torch.testing.assert_close(inside, torch.full_like(inside, 0.9), rtol=1e-10, atol=0.0)
    else:
        assert (inside - outside >= 0.9).all()


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_draws_fall_below_a_quantile_as_often_as_it_says(name: str) -> None:
    likelihood = FAMILIES[name]
    generator = torch.Generator().manual_seed(20)
    f = 0.7 + 1.3**0.5 * torch.randn(DRAWS, generator=generator, dtype=torch.float64)
    y = draw(likelihood, f, generator)
    q = marginals((0.7, 1.3))
    quantile = predictive_quantiles(likelihood, q, [0.8])[0]
    probability = predictive_cdf(likelihood, quantile, q).item()
    error = 4 * (probability * (1 - probability) / DRAWS) ** 0.5
    assert abs((y <= quantile).double().mean().item() - probability) <= error


def draw(likelihood: Likelihood, f: Tensor, generator: torch.Generator) -> Tensor:
    """One y for each f, from the definition of the family."""
    name = type(likelihood).__name__
    normal = torch.randn(f.shape, generator=generator, dtype=f.dtype)
    if name == "Gaussian":
        return f + 0.5 * normal
    if name == "StudentT":
        square = torch.randn((4, *f.shape), generator=generator, dtype=f.dtype).square().sum(0)
        return f + 0.5 * normal / torch.sqrt(square / 4)
    if name == "NegativeBinomial":
        gamma = torch._standard_gamma(torch.full_like(f, 2.5), generator=generator)
        return torch.poisson(gamma / 2.5 * torch.exp(f), generator=generator)
    if name.startswith("Poisson"):
        rate = torch.exp(f) if name == "PoissonExp" else torch.log1p(torch.exp(f))
        return torch.poisson(rate, generator=generator)
    if name.startswith("ZeroInflated"):
        family = NegativeBinomial(2.5) if name.endswith("NegativeBinomial") else Poisson()
        drawn = draw(family, f, generator)
        return drawn * (torch.rand(f.shape, generator=generator, dtype=f.dtype) < 1 / 1.4)
    if name == "Binomial":
        trials = torch.rand((60, *f.shape), generator=generator, dtype=f.dtype)
        return (trials < torch.sigmoid(f)).sum(0).double()
    if name == "ConwayMaxwellPoisson":
        # By inversion.
        k = torch.arange(600.0, dtype=f.dtype)[:, None]
        share = torch.rand(f.shape, generator=generator, dtype=f.dtype)
        found = []
        for some, level in zip(f.split(2000), share.split(2000), strict=True):
            cumulative = likelihood.log_prob(k, some).detach().exp().cumsum(0)
            found.append((cumulative < level).sum(0).double())
        return torch.cat(found)
    probability = torch.special.ndtr(f) if name == "Probit" else torch.sigmoid(f)
    return torch.bernoulli(probability, generator=generator)


@pytest.mark.parametrize(
    ("distance", "variance", "df"),
    [
        (0.0, 1e-8, 4.0),
        (0.4, 0.01, 0.5),
        (0.4, 1.0, 30.0),
        (2.0, 1.0, 1e3),
        (2.0, 100.0, 1.0),
        (30.0, 1.0, 0.5),
        (30.0, 100.0, 4.0),
    ],
)
def test_cdf_of_students_t(distance: float, variance: float, df: float) -> None:
    tail = float(reference.student_t_tail(distance, df, 0.3, variance))
    q = marginals((1.7, variance), (1.7, variance))
    below, above = predictive_cdf(StudentT(df, 0.3), 1.7 + row(-distance, distance), q).tolist()
    assert below == pytest.approx(tail, rel=1e-11)
    assert above == pytest.approx(1 - tail, rel=1e-12)


@pytest.mark.parametrize("variance", [0.48096988312782**2, 0.06955720252481**2])
def test_quantiles_of_many_degrees_of_freedom_end(variance: float) -> None:
    # The log tail has rounding errors above the tolerance of the search.
    q, many = marginals((0.0, variance)), StudentT(11502.962127334562, 0.6911365329322634)
    (found,) = predictive_quantiles(many, q, [0.158655])
    assert predictive_cdf(many, found, q).item() == pytest.approx(0.158655, rel=1e-10)


@pytest.mark.parametrize(("df", "distance"), [(1.0, 1e6), (4.0, 1e4), (30.0, 10.0)])
def test_tails_keep_their_digits(df: float, distance: float) -> None:
    tail = float(reference.student_t_tail(distance, df, 0.3, 0.1))
    value = predictive_cdf(StudentT(df, 0.3), row(-distance), marginals((0.0, 0.1))).item()
    assert value == pytest.approx(tail, rel=1e-10)


def test_cauchy_beyond_the_reach_of_squares() -> None:
    value = predictive_cdf(StudentT(1.0, 0.3), row(-1e120, 1e300), marginals(*[(0.0, 1.0)] * 2))
    assert value[0].item() == pytest.approx(0.3 / torch.pi * 1e-120, rel=1e-10)
    assert value[1].item() == 1


@pytest.mark.parametrize("df", [0.5, 1.0, 4.0, 30.0, 1e4])
def test_quantiles_invert_the_cdf(df: float) -> None:
    levels = row(1e-30, 1e-8, 0.01, 0.3, 0.5, 0.8, 0.999)
    q = marginals((0.0, 1e-8), (0.0, 0.1), (0.0, 100.0))
    likelihood = StudentT(df, 0.3)
    quantiles = predictive_quantiles(likelihood, q, levels)
    assert quantiles.shape == (7, 3)
    value = predictive_cdf(likelihood, quantiles, q)
    torch.testing.assert_close(value, levels[:, None].expand(7, 3), rtol=1e-9, atol=0.0)


def test_quantiles_are_symmetric_about_the_mean() -> None:
    q = marginals((3.0, 0.5), (-200.0, 4.0))
    low, middle, high = predictive_quantiles(StudentT(), q, [0.025, 0.5, 0.975])
    torch.testing.assert_close(middle, q.mean, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(high - q.mean, q.mean - low, rtol=1e-11, atol=0.0)


def test_a_quantile_beyond_all_numbers_is_infinite() -> None:
    (value,) = predictive_quantiles(StudentT(df=0.1), marginals((0.0, 1.0)), [1e-200])
    assert value.item() == -torch.inf


def test_many_degrees_are_gaussian() -> None:
    q = marginals((0.0, 0.5))
    (value,) = predictive_quantiles(StudentT(df=1e6, scale=0.5), q, [0.975])
    assert value.item() == pytest.approx(1.959963984540054 * 0.75**0.5, rel=1e-5)


TOLERANCE = 1e-11

# Counts that are likely, and counts at either side, under each q.
CASES = [
    (0, -12.0, 1e-8),
    (0, 0.3, 0.5),
    (0, -5.0, 100.0),
    (3, 1.5, 1e-4),
    (7, 0.0, 10.0),
    (40, 3.5, 0.01),
    (150, 5.0, 1.0),
    (12, 12.0, 100.0),
]


@pytest.mark.parametrize(("k", "mean", "variance"), CASES)
def test_poisson_exp(k: int, mean: float, variance: float) -> None:
    truth = reference.poisson_cdf(k, reference.exp, mean, variance, math.log(k + 1))
    assert cdf(Poisson(), k, mean, variance) == pytest.approx(float(truth), abs=TOLERANCE)


@pytest.mark.parametrize("exposure", [0.1, 30.0, 1e4])
@pytest.mark.parametrize(("k", "mean", "variance"), CASES[::2])
def test_poisson_softplus(k: int, mean: float, variance: float, exposure: float) -> None:
    def rate(f: mpf) -> mpf:
        return exposure * reference.softplus(f)

    level = (k + 1) / exposure
    bend = level + math.log(-math.expm1(-level))
    truth = reference.poisson_cdf(k, rate, mean, variance, bend)
    likelihood = Poisson(link="softplus").with_exposure(row(exposure))
    assert cdf(likelihood, k, mean, variance) == pytest.approx(float(truth), abs=TOLERANCE)


@pytest.mark.parametrize("dispersion", [0.3, 80.0])
@pytest.mark.parametrize(("k", "mean", "variance"), CASES[1::2])
def test_negative_binomial(k: int, mean: float, variance: float, dispersion: float) -> None:
    truth = reference.negative_binomial_cdf(k, dispersion, mean, variance)
    value = cdf(NegativeBinomial(dispersion), k, mean, variance)
    assert value == pytest.approx(float(truth), abs=TOLERANCE)


LARGE = [
    (k, math.log(k) + shift * max(variance, 1 / k) ** 0.5, variance)
    for k in (1e3, 1e5, 1e6)
    for variance in (1e-8, 1e-6, 1e-4, 1e-2, 1.0, 100.0)
    for shift in (-1.5, 0.2)
]


def test_large_counts_of_poisson() -> None:
    truth = row(*(reference.dense_poisson_cdf(*case) for case in LARGE))
    assert (values(Poisson(), LARGE) - truth).abs().max() < TOLERANCE


@pytest.mark.parametrize("dispersion", [0.05, 2.5, 1e4])
def test_large_counts_of_negative_binomial(dispersion: float) -> None:
    truth = row(
        *(reference.dense_negative_binomial_cdf(k, dispersion, *at) for k, *at in LARGE[::3])
    )
    assert (values(NegativeBinomial(dispersion), LARGE[::3]) - truth).abs().max() < TOLERANCE


def test_poisson_is_the_limit_of_negative_binomial() -> None:
    limit = values(NegativeBinomial(dispersion=1e14), LARGE)
    assert (limit - values(Poisson(), LARGE)).abs().max() < 1e-8


@pytest.mark.parametrize("name", marked(COUNTS))
@pytest.mark.parametrize("variance", [1e-8, 0.01, 1.0, 100.0])
def test_steps_are_probabilities(name: str, variance: float) -> None:
    likelihood = COUNTS[name]
    k = torch.arange(60.0, dtype=torch.float64)
    q = marginals(*[(1.2, variance)] * 60)
    steps = predictive_cdf(likelihood, k, q) - predictive_cdf(likelihood, k - 1, q)
    log_density = predictive_log_density(likelihood, k, q).detach()
    torch.testing.assert_close(steps, torch.exp(log_density), rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("name", COUNTS)
def test_probabilities_sum_to_the_cdf(name: str) -> None:
    k = torch.arange(61.0 if name == "binomial" else 4000.0, dtype=torch.float64)
    q = marginals(*[(1.0, 0.5)] * len(k))
    total = torch.exp(predictive_log_density(COUNTS[name], k, q).detach()).sum()
    assert abs(total.item() - 1) < TOLERANCE


@pytest.mark.parametrize("name", ["poisson_exp", "negative_binomial"])
def test_exposure_is_a_shift_under_the_exp_link(name: str) -> None:
    likelihood = COUNTS[name]
    assert isinstance(likelihood, CountLikelihood)
    exposure = row(0.2, 3.0, 1e3)
    k = row(0.0, 2.0, 1500.0)
    q = marginals((0.3, 1.0), (0.1, 1e-6), (0.5, 30.0))
    shifted = marginals(*zip((q.mean + exposure.log()).tolist(), q.variance.tolist(), strict=True))
    torch.testing.assert_close(
        predictive_cdf(likelihood.with_exposure(exposure), k, q),
        predictive_cdf(likelihood, k, shifted),
        rtol=0.0,
        atol=TOLERANCE,
    )


@pytest.mark.parametrize("name", marked(COUNTS))
def test_between_and_below_the_counts(name: str) -> None:
    q = marginals(*[(0.3, 1.0)] * 4)
    below, at, between, beyond = predictive_cdf(COUNTS[name], row(-0.5, 2.0, 2.9, 1e12), q).tolist()
    assert below == 0
    assert at == pytest.approx(between, abs=1e-13)
    assert beyond == pytest.approx(1, abs=1e-13)


def test_huge_variance_stays_finite() -> None:
    q = marginals((0.0, 1e4), (0.0, 1e6))
    value = predictive_cdf(Poisson(), row(3.0, 1e9), q)
    assert ((value > 0.4) & (value < 0.6)).all()


def cdf(likelihood: Likelihood, k: float, mean: float, variance: float) -> float:
    return predictive_cdf(likelihood, row(k), marginals((mean, variance))).item()


def values(likelihood: Likelihood, cases: list[tuple[float, float, float]]) -> torch.Tensor:
    q = marginals(*((mean, variance) for _, mean, variance in cases))
    return predictive_cdf(likelihood, row(*(k for k, _, _ in cases)), q)


def test_the_median_stands_in_for_a_mean_that_is_beyond_float64_or_does_not_exist() -> None:
    q = marginals((0.5, 0.3), (0.0, 1e4))
    found = point_prediction(Poisson(), q)
    assert found.tolist() == pytest.approx([math.exp(0.65), 1.0])
    assert point_prediction(StudentT(0.8, 0.3), q).tolist() == [0.5, 0.0]
