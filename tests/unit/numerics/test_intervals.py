"""log(Φ(b) − Φ(a)), its slopes and the moments of a truncated normal variable, against mpmath."""

import itertools

import mpmath
import pytest
import torch
from mpmath import mpf

from directgp.numerics.intervals import ENDLESS, interval_slopes, log_ndtr_between

_mp = mpmath.mp.clone()
_mp.dps = 60

MIDDLES = [0.0, 0.3, -1.1, 2.0, -5.0, 9.0, -30.0, 200.0, -1000.0, 4e3]
WIDTHS = [1e-9, 1e-4, 0.01, 0.3, 0.9, 1.1, 3.0, 10.0, 60.0]
FINITE = [(m - w / 2, m + w / 2) for m, w in itertools.product(MIDDLES, WIDTHS)]
HALF_LINES = [
    ends
    for end in (-300.0, -9.0, -1.1, 0.0, 0.4, 8.0, 37.0)
    for ends in ((-ENDLESS, end), (end, ENDLESS))
]
INTERVALS = torch.tensor(FINITE + HALF_LINES, dtype=torch.float64)


def density(x: mpf) -> mpf:
    return _mp.exp(-x * x / 2) / _mp.sqrt(2 * _mp.pi) if abs(x) < 1e100 else _mp.zero


def exact(low: float, high: float) -> dict[str, mpf]:
    """By the definitions, in the smaller tail."""
    a, b = _mp.mpf(low), _mp.mpf(high)
    tail = (-b, -a) if a + b > 0 else (a, b)
    below, above = (_mp.erfc(-end / _mp.sqrt(2)) / 2 if end > -1e100 else 0 for end in tail)
    chance = above - below
    lower, upper = density(a) / chance, density(b) / chance
    ends = (b * upper if b < 1e100 else 0) - (a * lower if a > -1e100 else 0)
    return {
        "value": _mp.log(chance),
        "by_lower": -lower,
        "by_upper": upper,
        "mean": lower - upper,
        "excess": -ends - (upper - lower) ** 2,
        "scale_slope": -ends,
    }


@pytest.mark.parametrize("name", ["value", "by_lower", "by_upper", "mean", "excess", "scale_slope"])
def test_against_mpmath(name: str) -> None:
    found = getattr(interval_slopes(*INTERVALS.T), name)
    for (low, high), got in zip(INTERVALS.tolist(), found.tolist(), strict=True):
        truth = exact(low, high)[name]
        # E[T] and E[T²] − 1 cross 0; 60 digits do not tell a chance of 1 − 1e-197 from 1.
        slack = {"mean": 1e-15, "scale_slope": 1e-15}.get(name, 1e-60)
        assert abs(got - truth) <= 1e-11 * abs(truth) + slack, (low, high)


def test_gradients_of_the_value() -> None:
    lower, upper = (column.clone().requires_grad_() for column in INTERVALS.T)
    value = log_ndtr_between(lower, upper)
    slopes = torch.autograd.grad(value.sum(), (lower, upper))
    expected = interval_slopes(lower, upper)
    torch.testing.assert_close(value, expected.value, rtol=1e-12, atol=1e-300)
    for got, want in zip(slopes, (expected.by_lower, expected.by_upper), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-300)


def test_infinite_ends_are_endless() -> None:
    inf = torch.tensor([torch.inf], dtype=torch.float64)
    half = log_ndtr_between(-inf, torch.zeros_like(inf))
    torch.testing.assert_close(half, torch.log(torch.full_like(inf, 0.5)))
    assert log_ndtr_between(-inf, inf).item() == 0
