"""Student's t: the distribution function from the centre to the far tails, and its inverse."""

import pytest
import torch

from directgp.likelihoods import StudentT
from directgp.predictive import predictive_cdf, predictive_quantiles
from tests.reference import predictive as reference
from tests.unit.predictive.families import marginals, row


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
def test_cdf(distance: float, variance: float, df: float) -> None:
    tail = float(reference.student_t_tail(distance, df, 0.3, variance))
    q = marginals((1.7, variance), (1.7, variance))
    below, above = predictive_cdf(StudentT(df, 0.3), 1.7 + row(-distance, distance), q).tolist()
    assert below == pytest.approx(tail, rel=1e-11)
    assert above == pytest.approx(1 - tail, rel=1e-12)


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
