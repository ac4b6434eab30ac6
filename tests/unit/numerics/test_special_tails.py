"""Values and gradients of the special functions against mpmath, from one tail to the other.

Errors are relative, so that a gradient that underflows or is clamped to 0 fails with error 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from directgp.numerics.special import (
    inverse_mills,
    log1mexp,
    log_ndtr,
    wright_omega,
)
from tests.reference import special as reference
from tests.reference.special import Reference, relative_errors

FLOAT64, FLOAT32 = torch.float64, torch.float32

# Both sides of every switch between branches are here.
LEFT = [-1e8, -1e6, -1e4, -300.0, -38.0, -20.0, -10.0, -7.01, -6.99, -6.0, -5.0, -3.01, -2.99, -2.0]
CENTRE = [-1.0, -0.5, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.5, 1.0]
# The last of each is just short of where φ(x) leaves the normal numbers.
RIGHT = {FLOAT64: [2.0, 4.0, 8.0, 13.1, 20.0, 30.0, 37.5], FLOAT32: [2.0, 4.0, 8.0, 13.1]}
NORMAL = {dtype: LEFT + CENTRE + right for dtype, right in RIGHT.items()}
POSITIVE = [1e-3, 0.1, 0.5, 0.69, 0.7, 1.0, 3.0, 10.0, 40.0]
GAP = {
    FLOAT64: [1e-300, 1e-16, *POSITIVE, 100.0, 700.0],
    FLOAT32: [1e-37, 1e-8, *POSITIVE, 87.0],
}
OUTER = [-10.0, -3.0, -1.0, -1e-3, 0.0, 0.5, 0.9, 1.1, 2.0, 3.0, 10.0, 100.0, 1e4, 1e8]
OMEGA = {
    FLOAT64: [-700.0, -100.0, -37.0, -36.0, -35.0, -20.0, *OUTER],
    FLOAT32: [-87.0, -20.0, -16.0, -15.9, *OUTER],
}


@dataclass(frozen=True)
class Row:
    """One function, its references, and the relative errors allowed in float32."""

    function: Callable[[Tensor], Tensor]
    value: Reference
    slope: Reference
    points: dict[torch.dtype, list[float]]
    value_float32: float = 1e-6
    slope_float32: float = 1e-6

    def tolerance(self, dtype: torch.dtype, float32: float) -> float:
        return float32 if dtype == FLOAT32 else 1e-12


# In the right tail a relative change ε of x, a rounding, changes φ(x) by x² ε: here up to 172 ε.
RIGHT_TAIL = 2e-5
ROWS = [
    Row(
        log_ndtr,
        reference.log_ndtr,
        reference.inverse_mills,
        NORMAL,
        value_float32=RIGHT_TAIL,
        slope_float32=RIGHT_TAIL,
    ),
    Row(
        inverse_mills,
        reference.inverse_mills,
        reference.inverse_mills_slope,
        NORMAL,
        value_float32=RIGHT_TAIL,
        slope_float32=RIGHT_TAIL,
    ),
    Row(log1mexp, reference.log1mexp, reference.log1mexp_slope, GAP),
    # A change ε in log ω = x − ω ≈ −16 changes ω by 16 ε.
    Row(
        wright_omega,
        reference.wright_omega,
        reference.wright_omega_slope,
        OMEGA,
        value_float32=3e-6,
        slope_float32=3e-6,
    ),
]

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.function.__name__)
each_dtype = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)


def slope_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(point).sum(), point)
    return slope


@each_row
@each_dtype
def test_value(row: Row, dtype: torch.dtype) -> None:
    x = torch.tensor(row.points[dtype], dtype=dtype)
    errors = relative_errors(row.function(x), x, row.value)
    assert max(errors) < row.tolerance(dtype, row.value_float32)


@each_row
@each_dtype
def test_slope(row: Row, dtype: torch.dtype) -> None:
    x = torch.tensor(row.points[dtype], dtype=dtype)
    errors = relative_errors(slope_of(row.function, x), x, row.slope)
    assert max(errors) < row.tolerance(dtype, row.slope_float32)


@each_dtype
def test_second_derivative_of_log_ndtr(dtype: torch.dtype) -> None:
    x = torch.tensor(NORMAL[dtype], dtype=dtype, requires_grad=True)
    (first,) = torch.autograd.grad(log_ndtr(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    errors = relative_errors(second, x, reference.inverse_mills_slope)
    assert max(errors) < (RIGHT_TAIL if dtype == FLOAT32 else 1e-12)


def test_slope_is_not_that_of_torch() -> None:
    """The reason for a gradient of our own; when this fails, torch's may do."""
    x = torch.tensor([-1e4], dtype=FLOAT32)
    errors = relative_errors(slope_of(torch.special.log_ndtr, x), x, reference.inverse_mills)
    assert max(errors) > 1.0
