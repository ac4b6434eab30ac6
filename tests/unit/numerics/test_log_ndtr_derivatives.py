import pytest
import torch

from directgp.numerics.special import _by_erfcx, log_ndtr_and_slope, log_ndtr_derivatives
from tests.reference import special

EXACT = (special.log_ndtr, special.inverse_mills, special.inverse_mills_slope)

# Both sides of the switch at −10, whose two branches must agree, and far into either tail.
POINTS = [-1e4, -40.0, -10.001, -9.999, -5.0, -0.5, 0.0, 0.5, 5.0, 12.0]

# Those of a device switch at −25.
DEVICE_POINTS = [*POINTS, -25.001, -24.999]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_value_and_derivatives(order: int, dtype: torch.dtype) -> None:
    x = torch.tensor(POINTS, dtype=dtype)
    errors = special.relative_errors(log_ndtr_derivatives(x)[order], x, EXACT[order])
    # x²/2 rounds in the exponent of φ: an error of x²ε, and x + λ(x) loses two digits at −10.
    assert max(errors) <= (2e-12 if dtype == torch.float64 else 2e-3)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_as_a_device_computes_them(order: int) -> None:
    x = torch.tensor(DEVICE_POINTS, dtype=torch.float64)
    errors = special.relative_errors(_by_erfcx(x)[order], x, EXACT[order])
    assert max(errors) <= 2e-12


def test_value_and_slope_alone() -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    for got, want in zip(log_ndtr_and_slope(x), log_ndtr_derivatives(x)[:2], strict=True):
        assert torch.equal(got, want)


def test_one_deep_point_leaves_the_others_alone() -> None:
    x = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    alone = log_ndtr_derivatives(x)
    beside = log_ndtr_derivatives(torch.cat([x, torch.tensor([-50.0], dtype=x.dtype)]))
    for a, b in zip(alone, beside, strict=True):
        assert torch.equal(a, b[:3])
