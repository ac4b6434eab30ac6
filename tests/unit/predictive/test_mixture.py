"""The mixture of several models, against sums of single ones, scipy, and roots in mpmath."""

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from directgp.errors import InvalidInputError
from directgp.likelihoods import (
    Binomial,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Logistic,
    LogNormal,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
    Tobit,
)
from directgp.predictive import (
    predictive_cdf,
    predictive_crps,
    predictive_interval,
    predictive_log_density,
    predictive_quantiles,
    predictive_variance,
)
from directgp.predictive.api import label_log_probabilities, point_prediction
from directgp.predictive.component import Component
from directgp.predictive.mixture import PredictiveMixture
from directgp.predictive.mixture_crps import LEVELS, integrated_score
from directgp.shapes import Marginals
from tests.unit.predictive.families import FAMILIES, LABELS, marginals, marked, row

_mp = mpmath.mp.clone()
_mp.dps = 30

FAR = [1e-12, 1e-6, 0.05, 0.3, 0.5, 0.7, 0.95, 1 - 1e-6, 1 - 1e-12]
POINT = 1e-300
"""A variance of q(f) that counts as none."""


def mixture(*parts: tuple[float, Likelihood, Marginals]) -> PredictiveMixture:
    return PredictiveMixture(tuple(itertools.starmap(Component, parts)))


def gaussians(
    weights: list[float], means: list[float], deviations: list[float]
) -> PredictiveMixture:
    """A mixture of Gaussians for one example; a half of each variance is noise."""
    return mixture(
        *(
            (w, Gaussian(noise=0.5 * s * s), marginals((m, 0.5 * s * s)))
            for w, m, s in zip(weights, means, deviations, strict=True)
        )
    )


def exact_quantile(
    level: float, weights: list[float], means: list[float], deviations: list[float]
) -> float:
    """The root of Σ w Φ((y − m)/s) = level, by bisection with 30 digits."""
    target = _mp.mpf(level)

    def excess(y: Any) -> Any:
        parts = zip(weights, means, deviations, strict=True)
        # Weights are numbers of float64 whose sum is 1 up to rounding.
        total = _mp.fsum(_mp.mpf(w) for w in weights)
        return _mp.fsum(w * _mp.ncdf((y - m) / _mp.mpf(s)) for w, m, s in parts) / total - target

    parts = list(zip(means, deviations, strict=True))
    low = min(_mp.mpf(m) - 40 * _mp.mpf(s) for m, s in parts)
    high = max(_mp.mpf(m) + 40 * _mp.mpf(s) for m, s in parts)
    for _ in range(140):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return float(high)


# One component


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_one_component_is_the_single_model_to_the_last_bit(name: str) -> None:
    likelihood = FAMILIES[name]
    q = marginals((0.3, 0.2), (1.1, 0.01))
    one = mixture((1.0, likelihood, q))
    y = row(1.0, 0.0)
    pairs = [
        (one.point_prediction(), point_prediction(likelihood, q)),
        (one.log_density(y), predictive_log_density(likelihood, y, q)),
        (one.cdf(y), predictive_cdf(likelihood, y, q)),
        (one.crps(y), predictive_crps(likelihood, y, q)),
        (one.quantiles([0.1, 0.8]), predictive_quantiles(likelihood, q, [0.1, 0.8])),
        (torch.stack(one.interval(0.9)), torch.stack(predictive_interval(likelihood, q, 0.9))),
    ]
    if name != "student_t":
        pairs.append((one.deviation(), predictive_variance(likelihood, q).sqrt()))
    if name in LABELS:
        pairs.append((one.label_log_probabilities(), label_log_probabilities(likelihood, q)))
    for found, expected in pairs:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("weights", [[0.5, 0.4], [1.5, -0.5], [], [math.nan, 0.5]])
def test_weights_are_positive_and_sum_to_one(weights: list[float]) -> None:
    q = marginals((0.0, 1.0))
    with pytest.raises(InvalidInputError, match="positive, with the sum 1"):
        mixture(*((w, Gaussian(), q) for w in weights))


# Moments and densities


def test_moments_of_gaussians_far_from_zero() -> None:
    """Σ w(v + m²) − m² would lose all digits."""
    far = gaussians([0.25, 0.75], [1e9, 1e9 + 4], [1e-3, 2e-3])
    assert far.point_prediction().item() == 1e9 + 3
    expected = math.sqrt(0.25 * (1e-6 + 9) + 0.75 * (4e-6 + 1))
    assert far.deviation().item() == pytest.approx(expected, rel=1e-12)


def test_the_deviation_with_heavy_tails_is_half_of_the_central_interval() -> None:
    q = marginals((0.3, 0.2))
    found = mixture((0.5, StudentT(1.5, 0.4), q), (0.5, Gaussian(0.1), q))
    lower, upper = found.quantiles(list(stats.norm.cdf([-1, 1])))
    torch.testing.assert_close(found.deviation(), 0.5 * (upper - lower), rtol=1e-14, atol=0)


def test_the_median_stands_in_for_a_mean_that_does_not_exist() -> None:
    heavy, light = marginals((0.0, 0.1)), marginals((10.0, 0.1))
    found = mixture((0.7, StudentT(0.8, 0.3), heavy), (0.3, Gaussian(0.1), light))
    (median,) = found.quantiles([0.5])
    assert torch.equal(found.point_prediction(), median)
    assert median.item() < 3.0
    exists = mixture((0.7, StudentT(1.2, 0.3), heavy), (0.3, Gaussian(0.1), light))
    assert exists.point_prediction().item() == pytest.approx(3.0, rel=1e-15)


def test_rates_beyond_float64() -> None:
    q = marginals((0.0, 0.1), (0.0, 2000.0))
    found = mixture((0.9, Poisson(), marginals((0.0, 0.1), (0.0, 0.1))), (0.1, Poisson(), q))
    median = found.quantiles([0.5])[0]
    assert found.point_prediction()[1] == median[1]
    assert found.deviation()[1] == torch.inf
    assert torch.isfinite(found.deviation()[0])


def test_density_where_no_component_has_one_in_float64() -> None:
    parts = [0.3, 0.7], [0.0, 5.0], [0.1, 0.2]
    y = 100.0
    logs = [math.log(w) + stats.norm.logpdf(y, m, s) for w, m, s in zip(*parts, strict=True)]
    assert max(logs) < -1e5
    found = gaussians(*parts).log_density(row(y)).item()
    assert found == pytest.approx(float(np.logaddexp(*logs)), rel=1e-13)


def test_a_component_without_y_in_its_support() -> None:
    q = marginals((0.2, 0.3), (0.2, 0.3))
    y = row(-0.5, 0.7)
    found = mixture((0.4, Gaussian(0.3), q), (0.6, Gamma(), q)).log_density(y)
    real = predictive_log_density(Gaussian(0.3), y, q).exp()
    positive = predictive_log_density(Gamma(), y.clamp(min=0.7), q).exp()
    expected = torch.log(0.4 * real + 0.6 * row(0.0, 1.0) * positive)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_y_outside_of_all_supports_is_an_error() -> None:
    q = marginals((0.2, 0.3), (0.2, 0.3))
    both = mixture((0.4, LogNormal(), q), (0.6, Gamma(), q))
    with pytest.raises(InvalidInputError, match="positive"):
        both.log_density(row(1.0, -0.5))


def test_labels_in_the_tails() -> None:
    """P of the second is nearly 1, and its logarithm has all digits."""
    q, p = marginals((10.0, 0.1)), marginals((12.0, 0.3))
    found = mixture((0.5, Probit(), q), (0.5, Logistic(), p)).label_log_probabilities()
    one, other = label_log_probabilities(Probit(), q), label_log_probabilities(Logistic(), p)
    chances = 0.5 * (one[0].exp() + other[0].exp())
    expected = torch.stack([chances.log(), torch.log1p(-chances)])
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    assert found[0].item() < -10


# Distribution function and quantiles


def test_cdf_is_the_weighted_sum() -> None:
    parts = [0.2, 0.3, 0.5], [0.0, 1.0, -4.0], [1.0, 0.1, 2.0]
    y = row(-9.0, -1.0, 0.0, 1.05, 6.0)
    found = gaussians(*parts).cdf(y[:, None])[:, 0]
    expected = sum(w * stats.norm.cdf(y.numpy(), m, s) for w, m, s in zip(*parts, strict=True))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-16)


GAUSSIANS: list[tuple[list[float], list[float], list[float]]] = [
    ([0.5, 0.5], [0.0, 0.0], [1.0, 1.0]),
    ([0.7, 0.3], [0.0, 0.3], [1.0, 1.5]),
    ([0.5, 0.3, 0.2], [-2.0, 0.0, 5.0], [0.1, 3.0, 1e-3]),
    ([0.98, 0.02], [0.0, 0.0], [1e-3, 1e3]),
    ([0.02, 0.98], [7e5, 7e5], [1e-2, 1.0]),
    ([0.3, 0.25, 0.2, 0.15, 0.1], [0.1, 0.0, -0.1, 0.2, 0.3], [1.0, 1.1, 0.9, 1.2, 2.0]),
]


@pytest.mark.parametrize("parts", GAUSSIANS)
def test_quantiles_of_gaussians_against_bisection_in_mpmath(parts: Any) -> None:
    found = gaussians(*parts).quantiles(FAR)[:, 0].tolist()
    for level, value in zip(FAR, found, strict=True):
        expected = exact_quantile(level, *parts)
        density = sum(w * stats.norm.pdf(expected, m, s) for w, m, s in zip(*parts, strict=True))
        # Change of y for one of the probit of the level.
        unit = stats.norm.pdf(stats.norm.ppf(level)) / density
        assert abs(value - expected) <= 1e-11 * unit + 4e-16 * abs(expected), level


def test_components_far_apart() -> None:
    """Between them the distribution function is flat."""
    parts = [0.25, 0.5, 0.25], [0.0, 1000.0, 1e6], [1e-2, 1.0, 10.0]
    far = gaussians(*parts)
    for level in (0.1, 0.2499, 0.2501, 0.5, 0.7499, 0.7501, 0.99):
        expected = exact_quantile(level, *parts)
        assert far.quantiles([level]).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    # On the flat part every y is a quantile up to rounding, and the smallest is meant.
    for level, after, before in ((0.25, 0.05, 990.0), (0.75, 1005.0, 0.9e6)):
        value = far.quantiles([level]).item()
        assert far.cdf(row(value)).item() == pytest.approx(level, abs=1e-15)
        assert value < before
        assert far.cdf(row(value - after)).item() < level


def test_heavy_tails_decide_far_quantiles() -> None:
    """Of N(0, 0.5) and t with 2 degrees of freedom and 1 % of the weight."""
    q = marginals((0.0, POINT))
    found = mixture((0.99, Gaussian(0.5), q), (0.01, StudentT(2.0, 1.0), q))

    def log_tail(y: float) -> float:
        return math.log(
            0.99 * stats.norm.sf(y, scale=math.sqrt(0.5)) + 0.01 * stats.t.sf(y, df=2.0)
        )

    for level in (1e-3, 1e-6, 1e-12):
        root = optimize.brentq(
            lambda x, level=level: log_tail(math.exp(x)) - math.log(level), -3, 30, xtol=1e-14
        )
        lower, upper = found.quantiles([level, 1 - level])[:, 0].tolist()
        assert lower == pytest.approx(-math.exp(root), rel=1e-9)
        # The rounding of 1 − level costs digits of the level, not of the quantile.
        exact = optimize.brentq(
            lambda x, level=level: log_tail(math.exp(x)) - math.log(1 - (1 - level)),
            -3,
            30,
            xtol=1e-14,
        )
        assert upper == pytest.approx(math.exp(exact), rel=1e-9)


MIXED: dict[str, list[tuple[float, Likelihood, Marginals]]] = {
    "student_t": [
        (0.4, StudentT(4.0, 0.5), marginals((0.0, 0.3), (3.0, 1e-4))),
        (0.6, Gaussian(0.1), marginals((0.5, 0.3), (-3.0, 0.1))),
    ],
    "heteroscedastic": [
        (0.5, Gaussian(0.2), marginals((0.0, 0.3), (1.0, 0.1))),
        (
            0.5,
            HeteroscedasticGaussian(),
            Marginals(
                torch.tensor([[0.1, 1.0], [-1.0, -2.0]]).double(),
                torch.tensor([[0.2, 0.1], [0.5, 0.3]]).double(),
            ),
        ),
    ],
    "positive": [
        (0.3, Gamma(), marginals((0.2, 0.3), (3.0, 0.1))),
        (0.3, LogNormal(), marginals((0.0, 0.3), (2.5, 1.0))),
        (0.4, Gaussian(0.3), marginals((1.0, 0.3), (15.0, 9.0))),
    ],
}


@pytest.mark.parametrize("name", MIXED)
def test_round_trip_of_mixed_families(name: str) -> None:
    found = mixture(*MIXED[name])
    levels = [1e-6, 0.05, 0.5, 0.9, 0.999]
    quantiles = found.quantiles(levels)
    below = torch.stack([found.cdf(y) for y in quantiles])
    torch.testing.assert_close(below, row(*levels)[:, None].expand(-1, 2), rtol=1e-8, atol=1e-14)
    ends = torch.stack([predictive_quantiles(part[1], part[2], levels) for part in MIXED[name]])
    assert (quantiles >= ends.amin(0)).all()
    assert (quantiles <= ends.amax(0)).all()


def test_an_infinite_quantile_of_one_component() -> None:
    q = marginals((0.0, 0.1))
    heavy = mixture((0.6, StudentT(0.01, 1.0), q), (0.4, Gaussian(0.1), q))
    lower, upper = heavy.quantiles([1e-9, 1 - 1e-9]).flatten().tolist()
    assert (lower, upper) == (-math.inf, math.inf)
    inner = heavy.quantiles([0.4, 0.6])
    assert torch.isfinite(inner).all()
    torch.testing.assert_close(
        torch.stack([heavy.cdf(y) for y in inner]), row(0.4, 0.6)[:, None], rtol=1e-9, atol=0
    )


COUNT_PARTS: list[list[tuple[float, Likelihood, Marginals]]] = [
    [
        (0.5, Poisson(), marginals((0.0, 0.1), (3.0, 0.5), (5.0, 1e-4))),
        (0.3, NegativeBinomial(dispersion=1.0), marginals((1.0, 0.2), (1.0, 0.1), (2.0, 0.3))),
        (0.2, Poisson(link="softplus"), marginals((2.0, 0.3), (9.0, 0.5), (-4.0, 0.1))),
    ],
    [
        (0.5, Poisson(), marginals((0.0, 0.01), (-9.0, 0.1), (1.0, 0.1))),
        (0.5, Poisson(), marginals((11.0, 1e-4), (6.0, 0.01), (1.0, 0.1))),
    ],
]


@pytest.mark.parametrize("parts", COUNT_PARTS)
def test_quantiles_of_counts_by_enumeration(parts: Any) -> None:
    found = mixture(*parts)
    largest = 70_000 if parts is COUNT_PARTS[1] else 2000
    below = torch.cat(
        [found.cdf(k[:, None].expand(-1, 3)) for k in torch.arange(largest).double().split(5000)]
    )
    for level in (1e-12, 0.01, 0.3, 0.5, 0.8, 0.999, 1 - 1e-9):
        # A level that is met up to rounding counts as met, as for a single model.
        met = below >= level - 2e-11 * min(level, 1 - level)
        expected = met.double().argmax(0)
        assert met.any(0).all()
        assert found.quantiles([level])[0].tolist() == expected.tolist()


def test_quantiles_of_trials_and_labels() -> None:
    trials = torch.tensor([3.0, 60.0])
    binomial = Binomial().with_row_values(trials)
    found = mixture(
        (0.5, binomial, marginals((0.0, 0.5), (2.0, 0.1))),
        (0.5, binomial, marginals((-1.0, 0.5), (-2.0, 0.1))),
    )
    below = found.cdf(torch.arange(61).double()[:, None].expand(-1, 2).minimum(trials.double()))
    for level in (0.1, 0.5, 0.9):
        assert found.quantiles([level])[0].tolist() == (below >= level).double().argmax(0).tolist()
    labels = mixture(
        (0.5, Probit(), marginals((1.0, 0.1))), (0.5, Probit(), marginals((-1.0, 0.1)))
    )
    assert labels.quantiles([0.4, 0.5, 0.6]).flatten().tolist() == [0.0, 0.0, 1.0]


def test_row_values_belong_to_their_rows() -> None:
    exposure = row(1.0, 10.0, 100.0)
    q = marginals((0.0, 0.1), (0.5, 0.2), (1.0, 0.1))
    p = marginals((0.3, 0.1), (0.0, 0.2), (1.2, 0.1))
    families = Poisson(), NegativeBinomial(dispersion=2.0)

    def mixed(chosen: Any) -> PredictiveMixture:
        parts = zip((0.6, 0.4), families, (q, p), strict=True)
        return mixture(
            *(
                (
                    w,
                    f.with_row_values(exposure[chosen]),
                    Marginals(m.mean[chosen], m.variance[chosen]),
                )
                for w, f, m in parts
            )
        )

    levels = [0.05, 0.5, 0.99]
    together = mixed(slice(None)).quantiles(levels)
    alone = torch.cat([mixed(slice(i, i + 1)).quantiles(levels) for i in range(3)], 1)
    assert torch.equal(together, alone)


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1), st.floats(-50, 50), st.floats(1e-3, 30)),
        min_size=2,
        max_size=6,
    ),
    st.floats(1e-9, 1 - 1e-9),
)
@settings(max_examples=60, deadline=None)
def test_quantiles_of_any_gaussians(parts: Any, level: float) -> None:
    """P(Y ≤ y) reaches the level at y, and not a little below; y is between those of the parts."""
    total = math.fsum(w for w, _, _ in parts)
    weights, means, deviations = zip(*((w / total, m, s) for w, m, s in parts), strict=True)
    found = gaussians(list(weights), list(means), list(deviations))
    value = found.quantiles([level])[0]
    margin = 1e-10 * max(deviations) + 1e-13 * max(map(abs, means))
    rounding = 1e-12 * min(level, 1 - level) + 2e-16
    assert found.cdf(value + margin).item() >= level - rounding
    assert found.cdf(value - margin).item() <= level + rounding
    ends = [stats.norm.ppf(level, m, s) for m, s in zip(means, deviations, strict=True)]
    assert min(ends) - margin <= value.item() <= max(ends) + margin


# Scores


def integral(found: PredictiveMixture, y: float, breaks: list[float]) -> float:
    """∫ (P(Y ≤ t) − 1{y ≤ t})² dt by adaptive quadrature of scipy between the breaks."""

    def square(t: float) -> float:
        below = found.cdf(row(t)).item()
        return (below - (y <= t)) ** 2

    ends = sorted({*breaks, y})
    pieces = itertools.pairwise(ends)
    areas = [integrate.quad(square, a, b, epsabs=1e-10, limit=200)[0] for a, b in pieces]
    return math.fsum(areas)


def test_crps_of_gaussians() -> None:
    parts = [0.3, 0.7], [0.0, 5.0], [1.0, 0.2]
    found = gaussians(*parts)
    breaks = [-9.0, -1.0, 0.0, 1.0, 4.0, 4.8, 5.0, 5.2, 6.0, 9.0]
    for y in (-3.0, 0.5, 4.9, 8.0):
        assert found.crps(row(y)).item() == pytest.approx(integral(found, y, breaks), rel=1e-8)


@pytest.mark.parametrize("df", [2.1, 10.0, 1e4])
def test_crps_of_two_equal_models_is_that_of_one(df: float) -> None:
    y = torch.linspace(-3, 8, 7).double()
    likelihood = StudentT(df, 0.5)
    q = Marginals(torch.zeros(7).double(), torch.logspace(-6, 1, 7).double())
    found = PredictiveMixture.of([0.3, 0.7], [likelihood, likelihood], [q, q])
    expected = predictive_crps(likelihood, y, q)
    torch.testing.assert_close(found.crps(y), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("parts", "breaks"),
    [
        (
            [
                (0.6, StudentT(4.0, 0.5), marginals((0.0, 0.3))),
                (0.4, Gaussian(1e-4), marginals((100.0, 1e-6))),
            ],
            [-1e4, -100.0, -5.0, -1.0, 0.0, 1.0, 5.0, 50.0, 99.9, 100.0, 100.1, 200.0, 1e4],
        ),
        (
            [
                (0.5, Gamma(), marginals((0.2, 0.3))),
                (0.5, LogNormal(), marginals((1.0, 0.5))),
            ],
            [0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0],
        ),
    ],
    ids=["far apart", "positive"],
)
def test_crps_of_mixed_families(parts: Any, breaks: list[float]) -> None:
    found = mixture(*parts)
    for y in (0.3, 2.0, 99.0):
        assert found.crps(row(y)).item() == pytest.approx(integral(found, y, breaks), rel=1e-4)


def test_crps_of_quantiles_that_are_nan_is_nan() -> None:
    levels = torch.linspace(-5, 5, len(LEVELS)).double()
    quantiles = levels[None, :, None].repeat(2, 1, 3)
    quantiles[1, :, 1] = math.nan

    def tail(rows: torch.Tensor, t: torch.Tensor, above: bool) -> torch.Tensor:
        chance: torch.Tensor = torch.special.ndtr(-t if above else t)
        return chance

    y = row(0.5, 0.5, -9.0)
    found = integrated_score(tail, quantiles, (y, y))
    assert found.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("parts", COUNT_PARTS)
def test_crps_of_counts_is_the_sum(parts: Any) -> None:
    found = mixture(*parts)
    largest = 70_000 if parts is COUNT_PARTS[1] else 20_000
    y = row(2.0, 30.0, 200.0)
    total = torch.zeros(3, dtype=torch.float64)
    for k in torch.arange(largest).double()[:, None].expand(-1, 3).split(5000):
        total += (found.cdf(k) - (y <= k).double()).square().sum(0)
    torch.testing.assert_close(found.crps(y), total, rtol=1e-3, atol=0)


def test_crps_of_labels_is_the_score_of_brier() -> None:
    found = mixture(
        (0.5, Probit(), marginals((1.0, 0.1))), (0.5, Logistic(), marginals((0.2, 2.0)))
    )
    chance = found.label_log_probabilities().exp()[1].item()
    assert found.crps(row(1.0)).item() == pytest.approx((1 - chance) ** 2, rel=1e-12)


def test_crps_of_a_censored_target_ignores_values_beyond_the_limit() -> None:
    tobit = Tobit(lower=0.0)
    found = mixture((0.5, tobit, marginals((0.5, 0.1))), (0.5, tobit, marginals((-0.5, 0.2))))

    def above(t: float) -> float:
        return (1 - found.cdf(row(t)).item()) ** 2

    expected = integrate.quad(above, 0.0, 10.0, epsabs=1e-11)[0]
    assert found.crps(row(0.0)).item() == pytest.approx(expected, rel=1e-5)
